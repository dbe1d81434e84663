//! Plans for fixtures, of the places that they name (`ring.h`).

use std::path::Path;

use membound_rewrite::image::{Identity, Image};
use membound_types::{
    DistanceRule, HarvestModule, HarvestOptions, HarvestPlan, HarvestRole, HarvestSite,
    HarvestTotals, Kind, SCHEMA_VERSION, YieldKind, YieldReason,
};
use object::{Object as _, ObjectSection as _};

/// A plan in which all places of `program` are chosen.
pub(crate) fn of(program: &Path, role: HarvestRole) -> HarvestPlan {
    let bytes = std::fs::read(program).expect("it was built");
    let image = Image::parse(&bytes).expect("it is an executable");
    let module = program.display().to_string();
    let sites = places(&bytes)
        .into_iter()
        .map(|(offset, kind)| site(&module, offset, kind))
        .collect();
    HarvestPlan {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestPlan,
        incomplete: false,
        membound_version: "test".to_owned(),
        command: vec![module.clone()],
        date: "2026-01-01T00:00:00Z".to_owned(),
        host: String::new(),
        cpu: String::new(),
        role,
        options: HarvestOptions {
            max_overhead: 1.0,
            min_stall_share: 0.0,
            min_likelihood: 0.0,
            bound_ns: (role == HarvestRole::Scavenger).then_some(200.0),
            distance: DistanceRule::Max,
            switch_ns: 10.0,
            counter_ns: 1.0,
            costs_measured: false,
        },
        totals: HarvestTotals::default(),
        modules: vec![HarvestModule {
            path: module,
            identity: identity(&image),
        }],
        sites,
        functions: Vec::new(),
        missing: Vec::new(),
    }
}

fn site(module: &str, offset: u64, kind: YieldKind) -> HarvestSite {
    HarvestSite {
        module: module.to_owned(),
        offset,
        symbol: String::new(),
        text: String::new(),
        kind,
        every: match kind {
            YieldKind::Primary => 1,
            YieldKind::Scavenger => 10,
        },
        chosen: true,
        reason: match kind {
            YieldKind::Primary => YieldReason::Pays,
            YieldKind::Scavenger => YieldReason::Bounds,
        },
        detail: None,
        undecided: false,
        executions: None,
        stall_fraction: 0.0,
        stall_ns: None,
        likelihood: None,
        predicted_gain_ns: 0.0,
        predicted_gain: 0.0,
        hit_cost: 0.0,
    }
}

fn identity(image: &Image<'_>) -> String {
    let (kind, bytes): (_, &[u8]) = match image.identity() {
        Identity::BuildId(bytes) => ("build-id", bytes),
        Identity::TextHash(bytes) => ("sha256", bytes),
    };
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}:{digits}")
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
