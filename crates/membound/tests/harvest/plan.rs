//! Plans for fixtures, of the places that they name (`ring.h`).

use std::path::Path;

use membound_types::{HarvestPlan, HarvestRole, YieldKind};
use object::{Object as _, ObjectSection as _};

/// A plan in which all places of `program` are chosen.
pub(crate) fn of(program: &Path, role: HarvestRole) -> HarvestPlan {
    let bytes = std::fs::read(program).expect("it was built");
    let path = program.display().to_string();
    membound_harvest::by_hand(&path, &bytes, role, &places(&bytes)).expect("it is an executable")
}

/// Addresses and kinds, as the fixture's macro `PLACE` writes them.
fn places(bytes: &[u8]) -> Vec<(u64, YieldKind)> {
    let file = object::File::parse(bytes).expect("it is an ELF file");
    let section = file.section_by_name(".membound_places");
    let data = section.map_or(&[][..], |section| {
        section.data().expect("it is in the file")
    });
    let words: Vec<u64> = data
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect();
    words
        .as_chunks()
        .0
        .iter()
        .map(|&[address, kind]| {
            let kind = if kind == 0 {
                YieldKind::Primary
            } else {
                YieldKind::Scavenger
            };
            (address, kind)
        })
        .collect()
}
