//! Plans for fixtures, with the sites that they mark (`ring.h`).

use std::path::Path;

use membound_types::{HarvestPlan, HarvestRole, YieldKind};
use object::{Object as _, ObjectSection as _};

/// A plan in which all marked sites of `program` are chosen.
pub(crate) fn of(program: &Path, role: HarvestRole) -> HarvestPlan {
    let bytes = std::fs::read(program).expect("it was built");
    let path = program.display().to_string();
    let places = places(&bytes);
    let yields: Vec<(u64, YieldKind)> = places.iter().map(|it| (it.address, it.kind)).collect();
    let plan = membound_harvest::by_hand(&path, &bytes, role, &yields);
    let mut plan = plan.expect("it is an executable");
    for site in &mut plan.sites {
        let place = places.iter().find(|it| it.address == site.offset);
        let place = place.expect("it is one of them");
        (site.predicted_gain, site.hit_cost) = (place.gain, place.hit_cost);
    }
    plan.totals.gain_fraction = plan.sites.iter().map(|site| site.predicted_gain).sum();
    plan
}

/// A marked site.
struct YieldPosition {
    address: u64,
    kind: YieldKind,
    /// Shares of the CPU time.
    gain: f64,
    hit_cost: f64,
}

/// The marked sites, in the form that the fixture's macro `PLACE` writes.
fn places(bytes: &[u8]) -> Vec<YieldPosition> {
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
            let (kind, gain, hit_cost) = match kind {
                0 => (YieldKind::Primary, 0.2, 0.0),
                1 => (YieldKind::Scavenger, 0.0, 0.0),
                _ => (YieldKind::Primary, 0.0, 0.002),
            };
            YieldPosition {
                address,
                kind,
                gain,
                hit_cost,
            }
        })
        .collect()
}
