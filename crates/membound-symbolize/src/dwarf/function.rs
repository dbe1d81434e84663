//! Functions of a unit, and what is inlined into each.

use std::ops::Range;

use gimli::{AttributeValue, Dwarf, EntriesRaw, UnitOffset};

use super::unit::Extent;
use super::{Budget, R};
use crate::ranges::{Item, Ranges};

/// Calls that are shown of a chain of inlined ones. Compilers stop far earlier.
const DEEPEST: usize = 256;

/// All functions of a unit that have code.
#[derive(Debug)]
pub(super) struct Functions {
    functions: Vec<Function>,
    ranges: Ranges<u32>,
}

/// A function, and when it was asked for, what is inlined into it.
#[derive(Debug)]
pub(super) struct Function {
    entry: UnitOffset,
    inlined: Option<Result<Vec<Inlined>, gimli::Error>>,
}

/// A function in the place of a call.
#[derive(Clone, Debug)]
struct Inlined {
    entry: UnitOffset,
    /// How many it is inside of, all inlined here.
    depth: usize,
    from: CallSite,
    addresses: Vec<Range<u64>>,
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallSite {
    /// Number of the file.
    pub(super) file: Option<u64>,
    /// 0: unknown.
    pub(super) line: u32,
    /// 0: unknown.
    pub(super) column: u32,
}

/// A function of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The entry that names it.
    pub(super) entry: UnitOffset,
    /// From where, if it is inlined.
    pub(super) from: Option<CallSite>,
}

impl Functions {
    /// Lists them.
    pub(super) fn read(
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        budget: &mut Budget,
    ) -> Result<Self, gimli::Error> {
        let mut functions = Vec::new();
        let mut items = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            budget.spend(1)?;
            let entry = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut extent = Extent::default();
            for specification in abbreviation.attributes() {
                let attribute = entries.read_attribute(*specification)?;
                extent.see(dwarf, unit, &attribute)?;
            }
            let Ok(index) = u32::try_from(functions.len()) else {
                break;
            };
            let before = items.len();
            let told = extent.each(dwarf, unit, budget, |range| {
                items.push(Item {
                    start: range.start,
                    end: range.end,
                    what: index,
                });
            });
            // One damaged function does not hide the others.
            if told.is_err() && budget.0 == 0 {
                told?;
            }
            if items.len() > before {
                functions.push(Function {
                    entry,
                    inlined: None,
                });
            }
        }
        Ok(Self {
            functions,
            ranges: Ranges::new(items),
        })
    }

    /// The function at an address, and the part of it that holds it.
    pub(super) fn find(&mut self, address: u64) -> Option<(Range<u64>, &mut Function)> {
        let item = self.ranges.find(address)?;
        let function = self.functions.get_mut(item.what as usize)?;
        Some((item.start..item.end, function))
    }
}

impl Function {
    /// The function itself and all that is inlined at `address`, outermost first.
    pub(super) fn calls(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        address: u64,
        budget: &mut Budget,
    ) -> Result<Vec<Call>, gimli::Error> {
        let entry = self.entry;
        let inlined = self
            .inlined
            .get_or_insert_with(|| inlined(dwarf, unit, entry, budget));
        let mut calls = vec![Call { entry, from: None }];
        // They stand in the order of the file: what is inside of one follows it.
        if let Ok(inlined) = inlined {
            for inside in inlined.iter() {
                let next = calls.len() - 1;
                if next == DEEPEST {
                    break;
                }
                if inside.depth == next
                    && inside
                        .addresses
                        .iter()
                        .any(|range| range.contains(&address))
                {
                    calls.push(Call {
                        entry: inside.entry,
                        from: Some(inside.from),
                    });
                }
            }
        }
        Ok(calls)
    }
}

/// Reads everything inlined into the function at `entry`.
fn inlined(
    dwarf: &Dwarf<R>,
    unit: &gimli::Unit<R>,
    entry: UnitOffset,
    budget: &mut Budget,
) -> Result<Vec<Inlined>, gimli::Error> {
    let mut entries = unit.entries_raw(Some(entry))?;
    let own = entries.next_depth();
    let mut found = Vec::new();
    // Depths of the inlined functions that the next entry is inside of.
    let mut open: Vec<isize> = Vec::new();
    // Depth of another function that is defined in here, whose entries are its own.
    let mut foreign: Option<isize> = None;
    while !entries.is_empty() {
        budget.spend(1)?;
        let depth = entries.next_depth();
        let offset = entries.next_offset();
        if offset != entry && depth <= own {
            break;
        }
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        if foreign.is_some_and(|foreign| depth <= foreign) {
            foreign = None;
        }
        if foreign.is_some() {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        // Any entry ends what stands as deep before it: of a block that follows an inlined
        // function, what is inlined is in the block alone.
        while open.last().is_some_and(|outer| *outer >= depth) {
            open.pop();
        }
        match abbreviation.tag() {
            gimli::DW_TAG_inlined_subroutine => {
                let mut inlined = Inlined {
                    entry: offset,
                    depth: open.len(),
                    from: CallSite::default(),
                    addresses: Vec::new(),
                };
                let attributes = abbreviation.attributes();
                inlined.see(dwarf, unit, &mut entries, attributes, budget)?;
                // What was optimised away is nowhere, and what is inside of it may not be.
                if !inlined.addresses.is_empty() {
                    open.push(depth);
                    found.push(inlined);
                }
            }
            tag => {
                if tag == gimli::DW_TAG_subprogram && offset != entry {
                    foreign = Some(depth);
                }
                entries.skip_attributes(abbreviation.attributes())?;
            }
        }
    }
    Ok(found)
}

impl Inlined {
    fn see(
        &mut self,
        dwarf: &Dwarf<R>,
        unit: &gimli::Unit<R>,
        entries: &mut EntriesRaw<'_, R>,
        attributes: &[gimli::AttributeSpecification],
        budget: &mut Budget,
    ) -> Result<(), gimli::Error> {
        let mut extent = Extent::default();
        for specification in attributes {
            let attribute = entries.read_attribute(*specification)?;
            let number = || {
                let value = attribute.udata_value();
                value
                    .and_then(|value| u32::try_from(value).ok())
                    .unwrap_or(0)
            };
            match attribute.name() {
                gimli::DW_AT_call_file => {
                    if let AttributeValue::FileIndex(file) = attribute.value() {
                        // Before version 5 there is no file of number 0.
                        let real = file > 0 || unit.header.version() >= 5;
                        self.from.file = real.then_some(file);
                    }
                }
                gimli::DW_AT_call_line => self.from.line = number(),
                gimli::DW_AT_call_column => self.from.column = number(),
                _ => extent.see(dwarf, unit, &attribute)?,
            }
        }
        // Without addresses it is nowhere, and the others are still somewhere.
        match extent.each(dwarf, unit, budget, |range| self.addresses.push(range)) {
            Err(error) if budget.0 == 0 => Err(error),
            _ => Ok(()),
        }
    }
}
