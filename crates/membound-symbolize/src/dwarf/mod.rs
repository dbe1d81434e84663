//! Source lines and inlined functions, from DWARF.
//!
//! Units are listed once. A unit is read when its first address is located, and a function of it when the
//! first address in that is. Compilers' output may nest and share as much as it likes, so nothing here
//! recurses, and every repeated reading is charged to a [`Budget`] that real files do not come near.

mod function;
mod lines;
mod names;
mod scopes;
mod split;
mod unit;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use gimli::{
    Abbreviations, DebugAbbrev, DebugAbbrevOffset, DebugInfoOffset, Dwarf, DwarfFileType,
    EndianArcSlice, LittleEndian, Reader as _, Section as _, SectionId, UnitHeader, UnitType,
};

use self::lines::FileLine;
use self::scopes::Scopes;
use self::split::Split;
use self::unit::Unit;
use crate::elf::Elf;

/// The reader type for sections.
type R = EndianArcSlice<LittleEndian>;

/// Units that are listed, at most. The largest programs have a twentieth of that.
const MAX_UNITS: usize = 1 << 20;

/// Units examined for one address, at most: units of one file overlap only by mistake.
const MAX_OVERLAPPING: usize = 16;

/// Ranges before an address that are searched for one that reaches over it, at most.
const MAX_COVERED: usize = 4096;

/// Number of entries, rows and ranges that may still be read.
#[derive(Debug)]
struct Budget(u64);

impl Budget {
    /// For sections with this many bytes in all. Every item takes at least a byte, and real files are read
    /// about once.
    const fn new(bytes: u64) -> Self {
        Self(bytes.saturating_mul(8).saturating_add(1 << 20))
    }

    /// Charges `amount`, or fails if not as much is left.
    const fn spend(&mut self, amount: u64) -> Result<(), gimli::Error> {
        match self.0.checked_sub(amount) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => {
                self.0 = 0;
                Err(gimli::Error::TooManyIterations)
            }
        }
    }
}

/// A function at an address: an inlined one, or the outermost one.
#[derive(Clone, Debug, Default)]
pub(crate) struct InlineFrame {
    pub(crate) name: Option<Name>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

/// A function's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The demangled name.
    pub(crate) shown: Arc<str>,
    /// True if it includes parameters or scopes: a linkage name, or a language that has no more.
    pub(crate) full: bool,
}

/// Functions and lines at an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Located {
    /// Innermost first; empty if nothing is known.
    pub(crate) frames: Vec<InlineFrame>,
    /// The part of the outermost function that contains the address.
    pub(crate) function: Option<std::ops::Range<u64>>,
}

/// One file's debug information.
#[derive(Debug)]
pub(crate) struct Debug {
    dwarf: Arc<Dwarf<R>>,
    /// Sorted by offset in the file.
    units: Vec<Unit>,
    /// Units of the file that is shared with others.
    shared: Vec<Unit>,
    /// First address, one past the last, and index in `units`; sorted by first address.
    ranges: Vec<(u64, u64, u32)>,
    /// For each of `ranges`, the largest end so far.
    farthest: Vec<u64>,
    split: Split,
    names: HashMap<(names::File, usize), Option<Name>>,
    scopes: HashMap<names::File, Scopes>,
    budget: Budget,
    notes: Vec<String>,
}

impl Debug {
    /// Lists the units. `None` if there is no debug information.
    pub(crate) fn read(
        elf: &Elf<'_>,
        shared: Option<&Elf<'_>>,
        program: Option<PathBuf>,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        elf.section(".debug_info")?;
        let mut bytes = 0;
        let mut dwarf = load(elf, own_name, &mut bytes, notes);
        if let Some(shared) = shared {
            let mut sections = load(shared, own_name, &mut bytes, notes);
            sections.file_type = DwarfFileType::Main;
            dwarf.set_sup(sections);
        }
        let mut debug = Self {
            dwarf: Arc::new(dwarf),
            units: Vec::new(),
            shared: Vec::new(),
            ranges: Vec::new(),
            farthest: Vec::new(),
            split: Split::new(program),
            names: HashMap::new(),
            scopes: HashMap::new(),
            budget: Budget::new(bytes),
            notes: Vec::new(),
        };
        let dwarf = debug.dwarf.clone();
        if let Err(error) = debug.list_units(&dwarf) {
            notes.push(format!(
                "debug information of {} is damaged and used in part: {}",
                elf.name,
                told(error)
            ));
        }
        if let Some(sup) = dwarf.sup() {
            debug.shared = all_units(sup, &mut debug.budget, |_, _| {}).unwrap_or_default();
        }
        Some(debug)
    }

    /// Functions and lines at an address.
    pub(crate) fn locate(&mut self, address: u64) -> Located {
        let units = self.units_at(address);
        for unit in &units {
            match self.locate_in(*unit, address) {
                Ok(located) if !located.frames.is_empty() => return located,
                Ok(_) => {}
                Err(error) => self.note(*unit, error),
            }
        }
        Located::default()
    }

    /// What could not be used since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn note(&mut self, unit: usize, error: gimli::Error) {
        let unit = &mut self.units[unit];
        if !std::mem::replace(&mut unit.noted, true) {
            let name = unit.name();
            self.notes.push(format!(
                "debug information of {name} is damaged: {}",
                told(error)
            ));
        }
    }

    fn locate_in(&mut self, unit: usize, address: u64) -> Result<Located, gimli::Error> {
        let dwarf = self.dwarf.clone();
        let index = unit;
        let unit = &mut self.units[index];
        let line = unit.line(&dwarf, address, &mut self.budget)?;
        let split = &mut self.split;
        unit.load(&dwarf, split, &mut self.budget, &mut self.notes)?;
        let Some(chain) = unit.chain(&dwarf, address, &mut self.budget)? else {
            let frames = line.map(|line| frame(None, Some(line)));
            return Ok(Located {
                frames: frames.into_iter().collect(),
                function: None,
            });
        };
        let mut located = Located {
            frames: Vec::with_capacity(chain.calls.len()),
            function: Some(chain.range),
        };
        let mut at = line;
        for call in chain.calls.into_iter().rev() {
            let name = self.name(index, call.entry);
            located.frames.push(frame(name, at));
            let unit = &mut self.units[index];
            at = call.from.and_then(|from| unit.call_line(&dwarf, from));
        }
        Ok(located)
    }

    fn units_at(&self, address: u64) -> Vec<usize> {
        let mut at = self
            .ranges
            .partition_point(|(start, _, _)| *start <= address);
        let mut found = Vec::new();
        // Units that begin nearest to the address come first.
        let last = at.saturating_sub(MAX_COVERED);
        while at > last && self.farthest[at - 1] > address && found.len() < MAX_OVERLAPPING {
            at -= 1;
            let (_, end, unit) = self.ranges[at];
            let unit = unit as usize;
            if address < end && !found.contains(&unit) {
                found.push(unit);
            }
        }
        found
    }

    fn list_units(&mut self, dwarf: &Dwarf<R>) -> Result<(), gimli::Error> {
        let mut ranges = Vec::new();
        let listed = all_units(dwarf, &mut self.budget, |unit, range| {
            // Code that the linker discarded is said to be at 0.
            if range.begin < range.end
                && range.begin != 0
                && let Ok(unit) = u32::try_from(unit)
            {
                ranges.push((range.begin, range.end, unit));
            }
        });
        // If the list is damaged, its ranges must not be used either: their units are missing.
        self.units = listed?;
        ranges.sort_unstable();
        let mut farthest = 0;
        self.farthest = ranges
            .iter()
            .map(|(_, end, _)| {
                farthest = farthest.max(*end);
                farthest
            })
            .collect();
        self.ranges = ranges;
        Ok(())
    }
}

fn frame(name: Option<Name>, at: Option<FileLine>) -> InlineFrame {
    let at = at.unwrap_or_default();
    InlineFrame {
        name,
        file: at.file,
        line: at.line,
        column: at.column,
    }
}

/// Messages of the library begin with a capital letter.
fn told(error: gimli::Error) -> String {
    let mut text = error.to_string();
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text.replace(['\n', '\r'], " ")
}

/// The section's name in a normal file.
#[expect(clippy::unnecessary_wraps, reason = "other files lack some sections")]
fn own_name(id: SectionId) -> Option<&'static str> {
    Some(id.name())
}

/// Reads the sections that lines and names need.
fn load(
    elf: &Elf<'_>,
    name: impl Fn(SectionId) -> Option<&'static str>,
    bytes: &mut u64,
    notes: &mut Vec<String>,
) -> Dwarf<R> {
    let section = |id: SectionId| -> Result<R, std::convert::Infallible> {
        let contents = match id {
            // Variables and macros are not needed.
            SectionId::DebugLoc
            | SectionId::DebugLocLists
            | SectionId::DebugMacinfo
            | SectionId::DebugMacro
            | SectionId::DebugTypes
            | SectionId::DebugNames
            | SectionId::DebugAranges => Vec::new(),
            _ => name(id)
                .and_then(|name| elf.section(name))
                .map(|section| elf.contents(section))
                .transpose()
                .unwrap_or_else(|why| {
                    notes.push(why);
                    None
                })
                .unwrap_or_default(),
        };
        *bytes = bytes.saturating_add(contents.len() as u64);
        Ok(R::new(Arc::from(contents), LittleEndian))
    };
    match Dwarf::load(section) {
        Ok(dwarf) => dwarf,
    }
}

/// Lists the units of a file; passes the address ranges of each to `range`, with the unit's index.
fn all_units(
    dwarf: &Dwarf<R>,
    budget: &mut Budget,
    mut range: impl FnMut(usize, gimli::Range),
) -> Result<Vec<Unit>, gimli::Error> {
    let mut headers = Vec::new();
    let mut iterator = dwarf.units();
    let ended = loop {
        match iterator.next() {
            Ok(Some(header)) if headers.len() < MAX_UNITS => headers.push(header),
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let mut abbreviations = Shared::new(dwarf, &headers);
    let mut units = Vec::with_capacity(headers.len());
    for header in headers {
        budget.spend(1)?;
        let Some(offset) = header.debug_info_offset() else {
            continue;
        };
        if matches!(
            header.type_(),
            UnitType::Type { .. } | UnitType::SplitType { .. }
        ) {
            continue;
        }
        // A unit that cannot be read does not prevent the use of others.
        let Some(read) = abbreviations
            .of(&header)
            .and_then(|shared| gimli::Unit::new_with_abbreviations(dwarf, header, shared).ok())
        else {
            continue;
        };
        let unit = Unit::new(offset.0, read, budget)?;
        unit.ranges(dwarf, budget, |found| range(units.len(), found))?;
        units.push(unit);
    }
    ended.map(|()| units)
}

/// Abbreviation tables that several units use; each is read once.
struct Shared<'a> {
    section: &'a R,
    /// Offsets of all tables.
    starts: BTreeSet<usize>,
    read: HashMap<usize, Option<Arc<Abbreviations>>>,
}

impl<'a> Shared<'a> {
    fn new(dwarf: &'a Dwarf<R>, headers: &[UnitHeader<R>]) -> Self {
        Self {
            section: dwarf.debug_abbrev.reader(),
            starts: headers
                .iter()
                .map(|header| header.debug_abbrev_offset().0)
                .collect(),
            read: HashMap::new(),
        }
    }

    fn of(&mut self, header: &UnitHeader<R>) -> Option<Arc<Abbreviations>> {
        let start = header.debug_abbrev_offset().0;
        let (section, starts) = (self.section, &self.starts);
        self.read
            .entry(start)
            .or_insert_with(|| {
                // Tables do not overlap: cut each off at the next one, so that all together are read once.
                let mut section = section.clone();
                if let Some(next) = starts.range(start + 1..).next()
                    && *next < section.len()
                {
                    section.truncate(*next).ok()?;
                }
                DebugAbbrev::from(section)
                    .abbreviations(DebugAbbrevOffset(start))
                    .ok()
                    .map(Arc::new)
            })
            .clone()
    }
}

/// Index of the unit that contains an offset of its file.
fn unit_holding(units: &[Unit], offset: DebugInfoOffset) -> Option<usize> {
    units
        .partition_point(|unit| unit.offset() <= offset.0)
        .checked_sub(1)
}
