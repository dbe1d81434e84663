//! Sections with debug information: their reader type, and how they are read from a file.

use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, LittleEndian, SectionId};

use crate::elf::Elf;

/// The reader type for sections.
pub(super) type R = EndianArcSlice<LittleEndian>;

/// Sections that are cheap to clone.
pub(super) type Sections = Arc<Dwarf<R>>;

/// The section's name in a normal file.
#[expect(clippy::unnecessary_wraps, reason = "other files lack some sections")]
pub(super) fn own_name(id: SectionId) -> Option<&'static str> {
    Some(id.name())
}

/// Reads the sections that lines and names need.
pub(super) fn load(
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
