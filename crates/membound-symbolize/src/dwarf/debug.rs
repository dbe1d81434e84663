//! One file's debug information: the list of its units, and what was read so far.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use gimli::{
    Abbreviations, DebugAbbrev, DebugAbbrevOffset, Dwarf, DwarfFileType, Reader as _, Section as _,
    UnitHeader, UnitType,
};

use super::budget::Budget;
use super::error_text::error_text;
use super::located::Name;
use super::scopes::Scopes;
use super::sections::{R, load, own_name};
use super::split::Split;
use super::unit::Unit;
use crate::elf::Elf;

/// Units that are listed, at most. The largest programs have a twentieth of that.
const MAX_UNITS: usize = 1 << 20;

/// The file and unit that an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum File {
    /// The opened file; index in its `units`.
    Own(u32),
    /// The split part of the unit with this index.
    SplitUnit(u32),
    /// The shared file; index in `shared`.
    Shared(u32),
}

/// One file's debug information.
#[derive(Debug)]
pub(crate) struct Debug {
    pub(super) dwarf: Arc<Dwarf<R>>,
    /// Sorted by offset in the file.
    pub(super) units: Vec<Unit>,
    /// Units of the file that is shared with others.
    pub(super) shared: Vec<Unit>,
    /// First address, one past the last, and index in `units`; sorted by first address.
    pub(super) ranges: Vec<(u64, u64, u32)>,
    /// For each of `ranges`, the largest end so far.
    pub(super) farthest: Vec<u64>,
    pub(super) split: Split,
    pub(super) names: HashMap<(File, usize), Option<Name>>,
    pub(super) scopes: HashMap<File, Scopes>,
    pub(super) budget: Budget,
    pub(super) notes: Vec<String>,
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
                error_text(error)
            ));
        }
        if let Some(sup) = dwarf.sup() {
            debug.shared = all_units(sup, &mut debug.budget, |_, _| {}).unwrap_or_default();
        }
        Some(debug)
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
