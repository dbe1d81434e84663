//! Topologies from measured levels.

use membound_model::hierarchy::{from_levels, missing_sizes, validate};
use membound_types::{FitData, Level, LevelKind, SizeMeaning, TlbTerm};

use super::{KIB, MIB};

fn level(name: &str, size_bytes: Option<u64>, line_bytes: Option<u32>) -> Level {
    let kind = if size_bytes.is_some() {
        LevelKind::Cache
    } else {
        LevelKind::Memory
    };
    Level {
        name: name.to_owned(),
        kind,
        size_bytes,
        latency_ns: 1.0,
        latency_low_ns: 0.9,
        latency_high_ns: 1.1,
        latency_cycles: 4.0,
        line_bytes,
        ..Level::default()
    }
}

fn found() -> Vec<Level> {
    vec![
        level("L1", Some(48 * KIB), Some(64)),
        level("L2", Some(MIB), None),
        level("L3", Some(11 * MIB), Some(128)),
        level("DRAM", None, Some(0)),
    ]
}

#[test]
fn measured_levels_make_a_topology() {
    let components = |data| {
        let topology = from_levels(&found(), &[], data).unwrap();
        let shown = topology
            .components
            .iter()
            .map(|c| format!("{} {} {} {}", c.symbol, c.line_bytes, c.application, c.name));
        shown.collect::<Vec<_>>()
    };
    assert_eq!(
        components(FitData::Window),
        [
            "t_o 8 true program, L1 included",
            "t_l2 64 false L1 to L2",
            "t_l3 128 false L2 to L3",
            "t_dram 64 false L3 to DRAM",
        ]
    );
    assert_eq!(
        components(FitData::Latency),
        [
            "t_l1 64 false load from L1",
            "t_l2 64 false L1 to L2",
            "t_l3 128 false L2 to L3",
            "t_dram 64 false L3 to DRAM",
        ]
    );
    let topology = from_levels(&found(), &[], FitData::Latency).unwrap();
    assert_eq!(topology.sizes, SizeMeaning::Reach);
    assert_eq!(validate(&topology), Ok(Vec::new()));
    let paths = topology
        .levels
        .iter()
        .map(|level| level.path.keys().cloned().collect::<Vec<_>>().join(" "));
    assert_eq!(
        paths.collect::<Vec<_>>(),
        [
            "t_l1",
            "t_l1 t_l2",
            "t_l1 t_l2 t_l3",
            "t_dram t_l1 t_l2 t_l3"
        ]
    );
    let sizes = topology.levels.iter().map(|level| level.size_bytes);
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [Some(48 * KIB), Some(MIB), Some(11 * MIB), None]
    );
    assert_eq!(missing_sizes(&topology), Vec::<usize>::new());
}

#[test]
fn the_last_measured_level_is_without_end() {
    let caches = &found()[..3];
    let topology = from_levels(caches, &[], FitData::Window).unwrap();
    assert_eq!(topology.levels[2].size_bytes, None);
    assert_eq!(topology.levels[2].kind, LevelKind::Cache);
    let alone = from_levels(&found()[3..], &[], FitData::Latency).unwrap();
    assert_eq!(alone.levels.len(), 1);
}

#[test]
fn symbols_of_measured_levels_do_not_collide() {
    let mut levels = found();
    levels[1].name = "L 2 / o".to_owned();
    let tlb = |symbol: &str| TlbTerm {
        symbol: symbol.to_owned(),
        entries: 64,
        page_bytes: 4 * KIB,
        miss_ns: None,
    };
    let terms = [tlb("t_l3"), tlb("t_dram0")];
    let topology = from_levels(&levels, &terms, FitData::Window).unwrap();
    let symbols = topology
        .components
        .iter()
        .map(|component| &*component.symbol);
    assert_eq!(
        symbols.collect::<Vec<_>>(),
        ["t_o", "t_l_2___o", "t_l3_", "t_dram_"]
    );
    assert_eq!(topology.tlb, terms);
    let many: Vec<Level> = (1..=12)
        .map(|at| level(&format!("L{at}"), Some(KIB << at), None))
        .collect();
    let topology = from_levels(&many, &[], FitData::Latency).unwrap();
    assert_eq!(topology.components[9].symbol, "t_l10_");
}

#[test]
fn measured_levels_that_make_no_topology_are_refused() {
    let message = |levels: &[Level]| {
        from_levels(levels, &[], FitData::Latency)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        message(&[]),
        "no levels were found in the latency curve: measure latency over more sizes"
    );
    let mut levels = found();
    levels[1].size_bytes = Some(48 * KIB);
    assert_eq!(
        message(&levels),
        "level 2 `L2` (48 KiB) reaches no further than level 1 `L1` before it (48 KiB)"
    );
    let mut levels = found();
    levels[2].name = "L1".to_owned();
    assert_eq!(
        message(&levels),
        "levels 1 and 3 are both named `L1`: rename one"
    );
    let mut levels = found();
    levels[1].size_bytes = None;
    let topology = from_levels(&levels, &[], FitData::Latency).unwrap();
    assert_eq!(missing_sizes(&topology), [1]);
}
