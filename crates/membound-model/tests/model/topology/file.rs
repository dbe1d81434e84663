//! Topology files: the included ones, and the one in the documentation of the format.

use std::collections::BTreeMap;

use membound_model::hierarchy::{BUNDLED, bundled, missing_sizes, parse_topology, validate};
use membound_types::{SizeMeaning, TlbTerm};

use super::{KIB, MIB, SOUND, origin, sound};

#[test]
fn a_file_has_the_parts_of_its_topology() {
    let topology = sound();
    assert_eq!(topology.name, "bench");
    assert_eq!(topology.description.as_deref(), Some("for tests"));
    assert_eq!(topology.sizes, SizeMeaning::Own);
    assert_eq!(topology.bytes_per_operation, 8);
    let cache = &topology.components[1];
    assert_eq!((&*cache.symbol, &*cache.name), ("t_s", "cache"));
    assert_eq!(cache.line_bytes, 64);
    assert_eq!(
        (cache.per_line_ns, cache.constant_ns),
        (Some(4.5), Some(0.0))
    );
    let marks = topology
        .components
        .iter()
        .map(|component| (component.application, component.fixed));
    assert_eq!(
        marks.collect::<Vec<_>>(),
        [(true, false), (false, true), (false, false)]
    );
    let sizes = topology.levels.iter().map(|level| level.size_bytes);
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [Some(32 * KIB), Some(4 * MIB), Some(1536 * MIB), None]
    );
    let steepness = topology.levels.iter().map(|level| level.steepness);
    assert_eq!(steepness.collect::<Vec<_>>(), [1.5, 1.0, 1.0, 1.0]);
    let path =
        [("t_o", 1), ("t_s", 2), ("t_m", 3)].map(|(symbol, times)| (symbol.to_owned(), times));
    assert_eq!(topology.levels[3].path, BTreeMap::from(path));
    assert_eq!(
        topology.tlb,
        [TlbTerm {
            symbol: "t_tlb".to_owned(),
            entries: 64,
            page_bytes: 16 * KIB,
            miss_ns: Some(1005.0)
        }]
    );
    let term = topology.page_table.as_ref().unwrap();
    assert_eq!(
        (term.start_bytes, term.reference_bytes),
        (256 * MIB, 64 * MIB)
    );
    assert_eq!(term.factor_ns, Some(8356.0));
    assert_eq!(validate(&topology), Ok(Vec::new()));
}

#[test]
fn a_file_without_a_name_gives_its_own() {
    let text = SOUND.replacen("name = \"bench\"\n", "", 1);
    for (file, name) in [
        ("a/b/lab.toml", "lab"),
        ("C:\\x\\lab.toml", "lab"),
        ("lab", "lab"),
        ("-", "-"),
    ] {
        assert_eq!(parse_topology(file, &text).unwrap().name, name);
    }
    let error = parse_topology("a/.toml", &text).unwrap_err().to_string();
    assert_eq!(
        error,
        "a/.toml:1:1: the topology has the name ``: use a word or two in one line"
    );
}

#[test]
fn sizes_in_files_are_written_as_people_type_them() {
    for (text, bytes) in [
        ("\"32K\"", 32 * KIB),
        ("\"48k\"", 48 * KIB),
        ("\"32 KiB\"", 32 * KIB),
        ("\"1.5M\"", 3 * MIB / 2),
        ("\"65536\"", 64 * KIB),
        ("65_536", 64 * KIB),
        ("0x8000", 32 * KIB),
    ] {
        let text = SOUND.replacen("\"32K\"", text, 1);
        let topology = parse_topology("f", &text).unwrap();
        assert_eq!(topology.levels[0].size_bytes, Some(bytes), "{text}");
    }
}

#[test]
fn every_bundled_topology_is_sound_and_has_its_name() {
    for name in BUNDLED {
        let topology = bundled(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(topology.name, name);
        assert_eq!(validate(&topology), Ok(Vec::new()), "{name}");
    }
    assert_eq!(bundled("cray"), None);
}

#[test]
fn the_origin2000_is_that_of_the_paper() {
    let topology = origin();
    let paths: Vec<Vec<u32>> = topology
        .levels
        .iter()
        .map(|level| {
            let of = |symbol| level.path.get(symbol).copied().unwrap_or(0);
            ["t_o", "t_s", "t_hh", "t_hr", "t_r", "t_m"]
                .map(of)
                .to_vec()
        })
        .collect();
    assert_eq!(
        paths,
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 1],
            [1, 1, 0, 1, 1, 1],
            [1, 1, 0, 1, 2, 1],
            [1, 1, 0, 1, 3, 1],
            [1, 1, 0, 1, 4, 1],
        ]
    );
    let lines = topology
        .components
        .iter()
        .map(|component| component.line_bytes);
    assert_eq!(lines.collect::<Vec<_>>(), [8, 32, 128, 128, 128, 128]);
    assert_eq!(topology.levels[0].size_bytes, Some(32 * KIB));
    assert_eq!(topology.levels[1].size_bytes, Some(4 * MIB));
    assert_eq!(missing_sizes(&topology), [2, 3, 4, 5]);
}

#[test]
fn the_page_about_the_format_has_an_example_that_is_one() {
    let page = include_str!("../../../../../docs/formats/topology.md");
    let examples: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let topology = parse_topology("topology.md", examples[0]).unwrap();
    assert_eq!(validate(&topology), Ok(Vec::new()));
    assert_eq!(topology.name, "laptop");
    assert_eq!(topology.levels.len(), 4);
    assert!(missing_sizes(&topology).is_empty());
    assert_eq!(topology.levels[3].path["t_dram"], 1);
    assert!(topology.components[1].fixed);
    assert!(topology.page_table.is_some() && topology.tlb.len() == 1);
}
