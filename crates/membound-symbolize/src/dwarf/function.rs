//! Functions of a unit, and the functions inlined into each.

use std::ops::Range;

use gimli::{AttributeValue, Dwarf, EntriesRaw, UnitOffset};

use super::budget::Budget;
use super::extent::Extent;
use super::sections::R;
use crate::ranges::{Item, Ranges};

/// Frames of inlined functions at one address, at most. Compilers stop far earlier.
const DEEPEST: usize = 256;

/// All functions of a unit that have code.
#[derive(Debug)]
pub(super) struct Functions {
    functions: Vec<Function>,
    ranges: Ranges<u32>,
}

/// A function; the functions inlined into it are read when first requested.
#[derive(Debug)]
pub(super) struct Function {
    entry: UnitOffset,
    inlined: Option<Result<Vec<Inlined>, gimli::Error>>,
}

/// An inlined function.
#[derive(Clone, Debug)]
struct Inlined {
    entry: UnitOffset,
    /// Number of inlined functions that it is inside of.
    depth: usize,
    from: CallSite,
    addresses: Vec<Range<u64>>,
}

/// Source position of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallSite {
    /// Number of the file in the unit's line table.
    pub(super) file: Option<u64>,
    /// Line, from 1; 0 if unknown.
    pub(super) line: u32,
    /// Column, from 1; 0 if unknown.
    pub(super) column: u32,
}

/// A function in the chain at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Offset of the entry that names it.
    pub(super) entry: UnitOffset,
    /// Position of the call, if the function is inlined.
    pub(super) from: Option<CallSite>,
}

impl Functions {
    /// Lists the functions of a unit.
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
            let read = extent.each(dwarf, unit, budget, |range| {
                items.push(Item {
                    start: range.start,
                    end: range.end,
                    what: index,
                });
            });
            // One damaged function does not prevent the use of others.
            if read.is_err() && budget.0 == 0 {
                read?;
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

    /// The function at an address, and the part of it that contains the address.
    pub(super) fn find(&mut self, address: u64) -> Option<(Range<u64>, &mut Function)> {
        let item = self.ranges.find(address)?;
        let function = self.functions.get_mut(item.what as usize)?;
        Some((item.start..item.end, function))
    }
}

impl Function {
    /// The function itself and the functions inlined at `address`, outermost first.
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
        // They are in the order of the file: a function's inner ones follow it.
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

/// Reads all functions inlined into the function at `entry`.
fn inlined(
    dwarf: &Dwarf<R>,
    unit: &gimli::Unit<R>,
    entry: UnitOffset,
    budget: &mut Budget,
) -> Result<Vec<Inlined>, gimli::Error> {
    let mut entries = unit.entries_raw(Some(entry))?;
    let own = entries.next_depth();
    let mut found = Vec::new();
    // Depths in the tree of the inlined functions that contain the next entry.
    let mut open: Vec<isize> = Vec::new();
    // Depth of another function defined inside this one, whose entries are skipped.
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
        // An entry ends all entries at its depth or deeper. So a block after an inlined function is not
        // inside of it.
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
                // A function that was optimised away has no addresses, but inner ones may have.
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
                        // File numbers begin at 1 before version 5.
                        let real = file > 0 || unit.header.version() >= 5;
                        self.from.file = real.then_some(file);
                    }
                }
                gimli::DW_AT_call_line => self.from.line = number(),
                gimli::DW_AT_call_column => self.from.column = number(),
                _ => extent.see(dwarf, unit, &attribute)?,
            }
        }
        // An entry without valid addresses is skipped; the others can still be used.
        match extent.each(dwarf, unit, budget, |range| self.addresses.push(range)) {
            Err(error) if budget.0 == 0 => Err(error),
            _ => Ok(()),
        }
    }
}
