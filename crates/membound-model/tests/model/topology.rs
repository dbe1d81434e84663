//! Topologies: the bundled ones with the paper's Table 2, every refusal with its one line,
//! sizes and terms from outside, levels from a profile, and text that is no topology.

use std::collections::BTreeMap;

use membound_model::hierarchy::{
    BUNDLED, PageTableChoice, TopologyError, bundled, from_levels, missing_sizes, model_levels,
    parse_topology, published, validate, with_page_table, with_sizes, with_tlb,
};
use membound_types::{
    Basis, Figure, FitData, Level, LevelKind, ModelLevel, Outcome, ParameterRole, SizeMeaning,
    TlbTerm, Topology,
};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A sound topology in which every key occurs.
const SOUND: &str = r#"name = "bench"
description = "for tests"
sizes = "own"
bytes_per_operation = 8
[[component]]
symbol = "t_o"
name = "program"
line = 8
application = true
[[component]]
symbol = "t_s"
name = "cache"
line = "64"
per_line_ns = 4.5
constant_ns = 0
fixed = true
[[component]]
symbol = "t_m"
name = "memory"
line = 64
[[level]]
name = "L1"
kind = "cache"
size = "32K"
path = ["t_o"]
steepness = 1.5
[[level]]
name = "L2"
kind = "cache"
size = 4194304
path = ["t_o", "t_s"]
[[level]]
name = "DRAM"
kind = "memory"
size = "1.5G"
path = ["t_o", "2 t_s", "t_m"]
[[level]]
name = "remote"
kind = "memory"
path = ["t_o", "2 t_s", "3 t_m"]
[[tlb]]
symbol = "t_tlb"
entries = 64
page = "16K"
miss_ns = 1005
[page_table]
symbol = "t_pt"
start = "256M"
reference = "64M"
factor_ns = 8356
"#;

fn sound() -> Topology {
    parse_topology("bench.toml", SOUND).unwrap()
}

fn origin() -> Topology {
    bundled("origin2000").unwrap()
}

/// Asserts what a file says in which `from` of [`SOUND`] is `to`.
#[track_caller]
fn check_refused(from: &str, to: &str, message: &str) {
    assert!(SOUND.contains(from), "{from}");
    let text = SOUND.replacen(from, to, 1);
    let error = parse_topology("dir/bench.toml", &text).unwrap_err();
    assert_eq!(error.to_string(), format!("dir/bench.toml:{message}"));
}

#[test]
fn a_file_says_what_its_topology_has() {
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
fn what_is_no_size_is_named_with_its_place() {
    let need = "expected a size: whole bytes, or with K, M, G, T as in \"16K\"";
    for (text, found) in [
        ("\"\"", "invalid value: string \"\""),
        ("\"K\"", "invalid value: string \"K\""),
        ("\"32Q\"", "invalid value: string \"32Q\""),
        ("\"1.3\"", "invalid value: string \"1.3\""),
        ("\"-1K\"", "invalid value: string \"-1K\""),
        ("\"inf\"", "invalid value: string \"inf\""),
        ("\"1e3\"", "invalid value: string \"1e3\""),
        ("\"99999999999T\"", "invalid value: string \"99999999999T\""),
        ("\"9999999.5T\"", "invalid value: string \"9999999.5T\""),
        ("\"a\\nb\"", "invalid value: string \"a\\nb\""),
        ("-5", "invalid value: integer `-5`"),
        ("1.5", "invalid type: floating point `1.5`"),
        ("true", "invalid type: boolean `true`"),
        ("[1]", "invalid type: sequence"),
    ] {
        check_refused("\"32K\"", text, &format!("24:8: {found}, {need}"));
    }
}

#[test]
fn text_that_is_not_of_this_form_is_refused_in_one_line() {
    let levels = "expected one of `name`, `kind`, `size`, `path`, `steepness`";
    for (from, to, message) in [
        (
            "size = \"32K\"",
            "sise = \"32K\"",
            format!("24:1: unknown field `sise`, {levels}"),
        ),
        (
            "sizes = \"own\"",
            "sizes = \"all\"",
            "3:9: unknown variant `all`, expected `own` or `reach`".to_owned(),
        ),
        (
            "kind = \"memory\"",
            "kind = \"disk\"",
            "34:8: unknown variant `disk`, expected `cache` or `memory`".to_owned(),
        ),
        (
            "symbol = \"t_m\"\n",
            "",
            "17:1: missing field `symbol`".to_owned(),
        ),
        ("line = 8\n", "", "5:1: missing field `line`".to_owned()),
        (
            "path = [\"t_o\"]\n",
            "",
            "21:1: missing field `path`".to_owned(),
        ),
        (
            "application = true",
            "application = 1",
            "9:15: invalid type: integer `1`, expected a boolean".to_owned(),
        ),
        (
            "entries = 64",
            "entries = -64",
            "43:11: invalid value: integer `-64`, expected u64".to_owned(),
        ),
        (
            "description",
            "\"a\\nb\" = 1\ndescription",
            "2:1: unknown field `a\\nb`, expected one of `name`, `description`, `sizes`, \
             `bytes_per_operation`, `component`, `level`, `tlb`, `page_table`"
                .to_owned(),
        ),
    ] {
        check_refused(from, to, &message);
    }
    for text in [
        "[[component]\n",
        "name = \"a\nb\"",
        "\u{0}",
        "= 1",
        "name = 'x'\nname = 'y'",
    ] {
        let error = parse_topology("f.toml", text).unwrap_err().to_string();
        assert!(
            error.starts_with("f.toml:") && !error.contains('\n'),
            "{error:?}"
        );
    }
}

#[test]
fn names_and_symbols_have_to_be_clear() {
    for (from, to, message) in [
        (
            "name = \"bench\"",
            "name = \"a\\nb\"",
            "1:8: the topology has the name `a\\nb`: use a word or two in one line",
        ),
        (
            "name = \"L2\"",
            "name = \" \"",
            "28:8: level 2 has the name ` `: use a word or two in one line",
        ),
        (
            "name = \"cache\"",
            "name = \"\"",
            "12:8: component `t_s` has the name ``: use a word or two in one line",
        ),
        (
            "symbol = \"t_s\"",
            "symbol = \"2t\"",
            "11:10: component 2 has the symbol `2t`: use letters, digits and _, and no digit first",
        ),
        (
            "symbol = \"t_tlb\"",
            "symbol = \"t tlb\\n\"",
            "42:10: TLB term 1 has the symbol `t tlb\\n`: use letters, digits and _, and no digit first",
        ),
        (
            "symbol = \"t_m\"",
            "symbol = \"\"",
            "18:10: component 3 has the symbol ``: use letters, digits and _, and no digit first",
        ),
        (
            "symbol = \"t_s\"",
            "symbol = \"t_o\"",
            "11:10: symbol `t_o` stands for component 1 and for component 2: rename one",
        ),
        (
            "symbol = \"t_s\"",
            "symbol = \"t_o0\"",
            "11:10: symbol `t_o0` stands for the constant part of component 1 and for component 2: \
             rename one",
        ),
        (
            "symbol = \"t_o\"",
            "symbol = \"t_s0\"",
            "11:10: symbol `t_s0` stands for component 1 and for the constant part of component 2: \
             rename one",
        ),
        (
            "symbol = \"t_pt\"",
            "symbol = \"t_tlb\"",
            "47:10: symbol `t_tlb` stands for TLB term 1 and for the page-table term: rename one",
        ),
        (
            "name = \"remote\"",
            "name = \"L2\"",
            "38:8: levels 2 and 4 are both named `L2`: rename one",
        ),
    ] {
        check_refused(from, to, message);
    }
}

#[test]
fn paths_lead_over_components_that_there_are() {
    let known = "there are `t_o`, `t_s` and `t_m`";
    let level = "in the path of level `remote` is no term: \
                 write a symbol, or a count before it as in `2 t_r`";
    for (from, to, message) in [
        (
            "\"3 t_m\"",
            "\"3 t_x\"",
            format!("40:25: path of level `remote` names `t_x`, which is no component: {known}"),
        ),
        ("\"3 t_m\"", "\"t_m 3\"", format!("40:25: `t_m 3` {level}")),
        (
            "\"3 t_m\"",
            "\"3 3 t_m\"",
            format!("40:25: `3 3 t_m` {level}"),
        ),
        (
            "\"3 t_m\"",
            "\"-3 t_m\"",
            format!("40:25: `-3 t_m` {level}"),
        ),
        ("\"3 t_m\"", "\"\"", format!("40:25: `` {level}")),
        (
            "\"3 t_m\"",
            "\"3 t\\nm\"",
            format!("40:25: `3 t\\nm` {level}"),
        ),
        (
            "\"3 t_m\"",
            "\"0 t_m\"",
            "40:25: the count of `t_m` in the path of level `remote` is 0: it has to be at least 1"
                .to_owned(),
        ),
        (
            "\"3 t_m\"",
            "\"t_o\"",
            "40:25: path of level `remote` names `t_o` twice: write a count, as in `2 t_o`"
                .to_owned(),
        ),
        (
            "path = [\"t_o\"]",
            "path = []",
            "25:8: level 1 `L1` has an empty path: name the components on the way to it".to_owned(),
        ),
    ] {
        check_refused(from, to, &message);
    }
}

#[test]
fn numbers_have_to_be_in_their_range() {
    for (from, to, message) in [
        (
            "line = 64",
            "line = 0",
            "20:8: the line of component `t_m` is 0: it has to be at least 1 byte",
        ),
        (
            "line = 64",
            "line = \"4G\"",
            "20:8: the line of component 3 is 4 GiB: it has to be below 4 GiB",
        ),
        (
            "bytes_per_operation = 8",
            "bytes_per_operation = 0",
            "4:23: bytes_per_operation is 0: it has to be at least 1",
        ),
        (
            "size = \"32K\"",
            "size = 0",
            "24:8: the size of level 1 `L1` is 0: it has to be at least 1 byte",
        ),
        (
            "steepness = 1.5",
            "steepness = 0",
            "26:13: the steepness of level `L1` is 0: it has to be a number above 0",
        ),
        (
            "steepness = 1.5",
            "steepness = nan",
            "26:13: the steepness of level `L1` is NaN: it has to be a number above 0",
        ),
        (
            "per_line_ns = 4.5",
            "per_line_ns = -4.5",
            "14:15: per_line_ns of component `t_s` is -4.5: it has to be a number of nanoseconds from 0 on",
        ),
        (
            "constant_ns = 0",
            "constant_ns = inf",
            "15:15: constant_ns of component `t_s` is inf: it has to be a number of nanoseconds from 0 on",
        ),
        (
            "per_line_ns = 4.5\nconstant_ns = 0\n",
            "",
            "14:9: component `t_s` is fixed but has no value: give per_line_ns, constant_ns or both",
        ),
        (
            "entries = 64",
            "entries = 0",
            "43:11: the number of entries of TLB `t_tlb` is 0: it has to be at least 1",
        ),
        (
            "page = \"16K\"",
            "page = 0",
            "44:8: the page size of TLB `t_tlb` is 0: it has to be at least 1 byte",
        ),
        (
            "entries = 64",
            "entries = 9223372036854775807",
            "44:8: the reach of TLB `t_tlb` is 9223372036854775807 pages of 16 KiB: \
             it has to be below 2^64 bytes",
        ),
        (
            "miss_ns = 1005",
            "miss_ns = -1",
            "45:11: miss_ns of TLB `t_tlb` is -1: it has to be a number of nanoseconds from 0 on",
        ),
        (
            "reference = \"64M\"",
            "reference = 1",
            "49:13: the reference of the page-table term is 1: \
             it has to be at least 2 bytes, since its logarithm divides",
        ),
        (
            "start = \"256M\"",
            "start = \"32M\"",
            "48:9: the start of the page-table term is 32 MiB: \
             it has to be at least its reference, or the term is negative",
        ),
        (
            "factor_ns = 8356",
            "factor_ns = nan",
            "50:13: factor_ns of the page-table term is NaN: \
             it has to be a number of nanoseconds from 0 on",
        ),
    ] {
        check_refused(from, to, message);
    }
}

#[test]
fn a_topology_without_components_or_levels_is_refused() {
    let none = "f:1:1: no components: describe each piece of hardware in a [[component]]";
    assert_eq!(parse_topology("f", "").unwrap_err().to_string(), none);
    let one = "[[component]]\nsymbol = \"t\"\nname = \"x\"\nline = 8\n";
    let none = "f:1:1: no levels: describe each in a [[level]], innermost first";
    assert_eq!(parse_topology("f", one).unwrap_err().to_string(), none);
}

#[test]
fn levels_have_to_grow() {
    for (from, to, message) in [
        (
            "size = 4194304",
            "size = \"16K\"",
            "30:8: level 2 `L2` (16 KiB) is smaller than level 1 `L1` before it (32 KiB)",
        ),
        (
            "size = 4194304",
            "size = 32767",
            "30:8: level 2 `L2` (32767 bytes) is smaller than level 1 `L1` before it (32768 bytes)",
        ),
        (
            "\"1.5G\"",
            "\"1M\"",
            "35:8: level 3 `DRAM` (1 MiB) is smaller than level 2 `L2` before it (4 MiB)",
        ),
        (
            "\"1.5G\"\npath = [\"t_o\", \"2 t_s\", \"t_m\"]\n[[level]]\nname = \"remote\"\nkind = \"memory\"",
            "9223372036854775807\npath = [\"t_o\"]\n[[level]]\nname = \"remote\"\nkind = \"memory\"\n\
             size = 9223372036854775807",
            "40:8: levels 1 to 4 hold 2^64 bytes or more together: check the size of `remote`",
        ),
    ] {
        check_refused(from, to, message);
    }
    let reach = SOUND.replacen("\"own\"", "\"reach\"", 1);
    for (size, relation) in [
        (
            "32K",
            "reaches no further than level 1 `L1` before it (32 KiB)",
        ),
        ("16K", "is smaller than level 1 `L1` before it (32 KiB)"),
    ] {
        let text = reach.replacen("4194304", &format!("\"{size}\""), 1);
        let error = parse_topology("f", &text).unwrap_err().to_string();
        let unit = size.replace('K', " KiB");
        assert_eq!(error, format!("f:30:8: level 2 `L2` ({unit}) {relation}"));
    }
}

#[test]
fn a_section_of_memory_may_be_smaller_than_the_one_before() {
    let text = SOUND.replacen(
        "name = \"remote\"\nkind = \"memory\"",
        "name = \"remote\"\nkind = \"memory\"\nsize = \"1G\"",
        1,
    );
    let topology = parse_topology("f", &text).unwrap();
    assert_eq!(
        validate(&topology).unwrap(),
        [
            "level 4 `remote` (1 GiB) is smaller than level 3 `DRAM` before it (1.5 GiB); \
          taken as it stands, since a section of memory may have any size"
        ]
    );
    let reach = text.replacen("\"own\"", "\"reach\"", 1);
    assert_eq!(
        parse_topology("f", &reach).unwrap_err().to_string(),
        "f:40:8: level 4 `remote` (1 GiB) is smaller than level 3 `DRAM` before it (1.5 GiB)"
    );
}

#[test]
fn sizes_are_compared_over_open_levels() {
    let text = SOUND
        .replacen("size = 4194304\n", "", 1)
        .replacen("\"1.5G\"", "\"16K\"", 1);
    assert_eq!(
        parse_topology("f", &text).unwrap_err().to_string(),
        "f:34:8: level 3 `DRAM` (16 KiB) is smaller than level 1 `L1` before it (32 KiB)"
    );
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let mut topology = sound();
    topology.levels[2].path.remove("t_m");
    topology.levels[3].path.remove("t_m");
    let smaller = TlbTerm {
        symbol: "t_walk".to_owned(),
        entries: 32,
        page_bytes: 16 * KIB,
        miss_ns: None,
    };
    topology.tlb.push(smaller);
    assert_eq!(
        validate(&topology).unwrap(),
        [
            "component `t_m` lies on no level's path, so nothing can be said of it",
            "TLB term 2 `t_walk` (512 KiB) reaches no further than term 1 `t_tlb` before it (1 MiB)",
        ]
    );
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

fn known(outcome: &Outcome<Figure>) -> f64 {
    outcome.known().map_or(f64::NAN, |figure| figure.value)
}

fn rounded(levels: &[ModelLevel], figure: fn(&ModelLevel) -> &Outcome<Figure>) -> Vec<String> {
    levels
        .iter()
        .map(|level| format!("{:.1}", known(figure(level))))
        .collect()
}

#[test]
fn table_2_follows_from_table_1() {
    let (_, levels) = published(&origin());
    assert_eq!(
        rounded(&levels, |level| &level.rate_mops),
        ["NaN", "75.5", "20.3", "14.5", "13.6", "12.9", "12.2"]
    );
    assert_eq!(
        rounded(&levels, |level| &level.ns_per_line),
        [
            "NaN", "53.0", "790.0", "1106.0", "1174.0", "1242.0", "1310.0"
        ]
    );
    let lines = levels.iter().map(|level| level.line_bytes);
    assert_eq!(lines.collect::<Vec<_>>(), [8, 32, 128, 128, 128, 128, 128]);
    for level in &levels[1..] {
        let bytes_a_second = known(&level.rate_mops) * 8e6;
        assert!((known(&level.rate_gb_s) * 1e9 / bytes_a_second - 1.0).abs() < 1e-12);
    }
    for missing in [
        &levels[0].ns_per_line,
        &levels[0].rate_mops,
        &levels[0].rate_gb_s,
    ] {
        assert_eq!(
            missing.why_missing().unwrap().reason,
            "the program's own time cannot be told from this level's"
        );
    }
}

#[test]
fn table_1_is_shown_with_units_and_what_it_is_related_to() {
    let (parameters, _) = published(&origin());
    let shown: Vec<String> = parameters
        .iter()
        .filter(|parameter| parameter.role != ParameterRole::Constant)
        .map(|p| format!("{} {} {} {}", p.symbol, p.value, p.unit, p.related_to))
        .collect();
    assert_eq!(
        shown,
        [
            "t_s 53 ns 32 Bytes",
            "t_hh 110 ns 128 Bytes",
            "t_hr 358 ns 128 Bytes",
            "t_r 68 ns 128 Bytes",
            "t_m 468 ns 128 Bytes",
            "t_tlb 1005 ns 1 TLB miss",
            "t_pt 8356 ns 1 window",
        ]
    );
    let constants: Vec<(&str, f64, &str)> = parameters
        .iter()
        .filter(|parameter| parameter.role == ParameterRole::Constant)
        .map(|p| (&*p.symbol, p.value, &*p.related_to))
        .collect();
    assert_eq!(
        constants,
        ["t_s0", "t_hh0", "t_hr0", "t_r0", "t_m0"].map(|symbol| (symbol, 0.0, "1 window"))
    );
    for parameter in &parameters {
        assert!(
            parameter.fixed && parameter.std_error.is_none(),
            "{parameter:?}"
        );
        assert!(
            parameter.low.is_none() && parameter.high.is_none(),
            "{parameter:?}"
        );
    }
}

#[test]
fn hubs_and_memory_are_marked_as_inseparable_until_one_is_fixed() {
    let marked = |topology: &Topology| -> Vec<String> {
        let (parameters, _) = published(topology);
        let inseparable = parameters
            .into_iter()
            .filter(|parameter| !parameter.identifiable);
        inseparable.map(|parameter| parameter.symbol).collect()
    };
    let mut topology = origin();
    assert_eq!(
        marked(&topology),
        ["t_hh0", "t_hh", "t_hr0", "t_hr", "t_m0", "t_m"]
    );
    let (parameters, _) = published(&topology);
    let router = parameters
        .iter()
        .find(|parameter| parameter.symbol == "t_hr")
        .unwrap();
    assert_eq!(
        router.reason.as_deref(),
        Some(
            "no level's path tells `t_hh`, `t_hr` and `t_m` apart: only sums of them can be measured"
        )
    );
    topology.components[5].fixed = true;
    assert_eq!(marked(&topology), Vec::<String>::new());
}

#[test]
fn a_topology_without_known_values_says_so() {
    let (parameters, levels) = published(&bundled("generic").unwrap());
    assert_eq!(parameters, []);
    let missing = levels[2].ns_per_line.why_missing().unwrap();
    assert_eq!(missing.reason, "no value is known of `t_l2` and `t_l3`");
    assert_eq!(levels[2].rate_mops.why_missing(), Some(missing));
    assert!(missing.remedy.is_some());
    assert_eq!(levels[4].reach_bytes, None);
}

#[test]
fn rates_turn_intervals_over() {
    let interval = |low, value, high| {
        move |_: &BTreeMap<String, f64>| {
            Outcome::Known(Figure {
                value,
                low,
                high,
                basis: Basis::Estimated,
            })
        }
    };
    let rates = |low, value, high| {
        let levels = model_levels(&origin(), FitData::Window, &interval(low, value, high));
        levels[2].rate_mops.clone()
    };
    assert_eq!(
        rates(400.0, 800.0, 1600.0),
        Outcome::Known(Figure {
            value: 20.0,
            low: 10.0,
            high: 40.0,
            basis: Basis::Estimated
        })
    );
    for low in [0.0, -1.0] {
        assert_eq!(
            rates(low, 800.0, 1600.0).why_missing().unwrap().reason,
            "the time of a line is not told from 0, which bounds no rate"
        );
    }
}

#[test]
fn estimates_are_asked_for_what_the_path_has() {
    let factors = |data: FitData, level: usize| {
        let value =
            |combination: &BTreeMap<String, f64>| Outcome::missing(format!("{combination:?}"));
        let levels = model_levels(&origin(), data, &value);
        levels[level]
            .ns_per_line
            .why_missing()
            .unwrap()
            .reason
            .clone()
    };
    assert_eq!(
        factors(FitData::Window, 4),
        r#"{"t_hr": 1.0, "t_m": 1.0, "t_r": 2.0, "t_s": 4.0}"#
    );
    assert_eq!(
        factors(FitData::Latency, 4),
        r#"{"t_hr": 1.0, "t_m": 1.0, "t_o": 1.0, "t_r": 2.0, "t_s": 1.0}"#
    );
    assert_eq!(factors(FitData::Latency, 0), r#"{"t_o": 1.0}"#);
}

#[test]
fn a_latency_curve_gives_no_rates() {
    let ten = |_: &BTreeMap<String, f64>| {
        Outcome::Known(Figure {
            value: 10.0,
            low: 9.0,
            high: 11.0,
            basis: Basis::Estimated,
        })
    };
    for level in model_levels(&origin(), FitData::Latency, &ten) {
        assert_eq!(known(&level.ns_per_line), 10.0);
        for rate in [&level.rate_mops, &level.rate_gb_s] {
            assert_eq!(
                rate.why_missing().unwrap().reason,
                "loads that wait for each other say nothing of a rate"
            );
        }
    }
}

#[test]
fn reach_adds_up_own_sizes() {
    let reach = |topology: &Topology| {
        let (_, levels) = published(topology);
        levels
            .iter()
            .map(|level| level.reach_bytes)
            .collect::<Vec<_>>()
    };
    let own = sound();
    let (l1, l2) = (32 * KIB, 4 * MIB);
    assert_eq!(
        reach(&own),
        [Some(l1), Some(l1 + l2), Some(l1 + l2 + 1536 * MIB), None]
    );
    let reaching = Topology {
        sizes: SizeMeaning::Reach,
        ..own
    };
    assert_eq!(
        reach(&reaching),
        [Some(l1), Some(l2), Some(1536 * MIB), None]
    );
}

#[test]
fn a_tlb_that_reaches_less_than_a_cache_is_noted_with_the_remedy() {
    let notes = |entries: u64, page_bytes: u64, cache: u64| {
        let mut topology = with_tlb(&origin(), Some(entries), Some(page_bytes)).unwrap();
        topology.levels[1].size_bytes = Some(cache);
        let (_, levels) = published(&topology);
        assert!(
            levels
                .iter()
                .all(|level| level.kind == LevelKind::Cache || level.tlb_note.is_none())
        );
        levels[1].tlb_note.clone().unwrap_or_default()
    };
    for (entries, page, cache, note) in [
        (
            64,
            16 * KIB,
            4 * MIB,
            "the TLB reaches 1 MiB, this cache holds 4 MiB: pages of 64 KiB or more would cover it",
        ),
        (256, 16 * KIB, 4 * MIB, ""),
        (
            64,
            4 * KIB,
            32 * MIB,
            "the TLB reaches 256 KiB, this cache holds 32 MiB: \
             pages of 512 KiB or more would cover it, of the usual ones those of 2 MiB",
        ),
        (
            64,
            4 * KIB,
            96 * MIB,
            "the TLB reaches 256 KiB, this cache holds 96 MiB: pages of 2 MiB or more would cover it",
        ),
        (
            1,
            4 * KIB,
            2 * GIB,
            "the TLB reaches 4 KiB, this cache holds 2 GiB: only pages of 2 GiB or more would cover it",
        ),
        (
            1,
            4 * KIB,
            u64::MAX,
            "the TLB reaches 4 KiB, this cache holds 17179869184 GiB: no pages would cover it",
        ),
    ] {
        assert_eq!(notes(entries, page, cache), note);
    }
    let mut two = origin();
    two.tlb.push(TlbTerm {
        symbol: "t_walk".to_owned(),
        entries: 128,
        page_bytes: 16 * KIB,
        miss_ns: None,
    });
    let (_, levels) = published(&two);
    assert_eq!(
        levels[1].tlb_note.as_deref(),
        Some(
            "the TLB of `t_tlb` reaches 1 MiB, this cache holds 4 MiB: \
             pages of 64 KiB or more would cover it; \
             the TLB of `t_walk` reaches 2 MiB, this cache holds 4 MiB: \
             pages of 32 KiB or more would cover it, of the usual ones those of 64 KiB"
        )
    );
}

/// Asserts the sizes after `--sizes` of so many GiB.
#[track_caller]
fn check_sizes(topology: &Topology, given: &[u64], all: &[Option<u64>]) {
    let given: Vec<u64> = given.iter().map(|size| size * MIB).collect();
    let (sized, _) = with_sizes(topology, &given).unwrap();
    let mebibytes = |level: &membound_types::TopologyLevel| level.size_bytes.map(|size| size / MIB);
    assert_eq!(sized.levels.iter().map(mebibytes).collect::<Vec<_>>(), all);
}

#[test]
fn sizes_go_to_open_levels_or_to_all() {
    let origin = origin();
    let (a, b, c) = (Some(1024), Some(6144), Some(2048));
    let all = [Some(0), Some(4), a, a, b, b, c];
    check_sizes(&origin, &[1024, 1024, 6144, 6144, 2048], &all);
    check_sizes(
        &origin,
        &[1024, 1024, 6144, 6144],
        &[Some(0), Some(4), a, a, b, b, None],
    );
    check_sizes(
        &origin,
        &[1, 8, 1024, 1024, 6144, 6144, 2048],
        &[Some(1), Some(8), a, a, b, b, c],
    );
    check_sizes(
        &origin,
        &[1, 8, 1024, 1024, 6144, 6144],
        &[Some(1), Some(8), a, a, b, b, None],
    );
    let generic = bundled("generic").unwrap();
    check_sizes(
        &generic,
        &[1, 2, 3, 4],
        &[Some(1), Some(2), Some(3), Some(4), None],
    );
    check_sizes(
        &generic,
        &[1, 2, 3, 4, 5],
        &[Some(1), Some(2), Some(3), Some(4), Some(5)],
    );
    check_sizes(&sound(), &[], &[Some(0), Some(4), Some(1536), None]);
}

#[test]
fn equal_nodes_give_a_warning_and_caches_an_error() {
    let own = [1, 1, 6, 6, 2].map(|nodes| nodes * GIB);
    let (sized, warnings) = with_sizes(&origin(), &own).unwrap();
    assert_eq!(missing_sizes(&sized), Vec::<usize>::new());
    assert_eq!(
        warnings,
        [
            "level 7 `spatial diagonal` (2 GiB) is smaller than level 6 `next but one corner` \
          before it (6 GiB); taken as it stands, since a section of memory may have any size"
        ]
    );
    let mut swapped = [4 * MIB, 32 * KIB, GIB, GIB, GIB, GIB];
    let error = with_sizes(&origin(), &swapped).unwrap_err().to_string();
    assert_eq!(
        error,
        "level 2 `SL cache` (32 KiB) is smaller than level 1 `on-chip cache` before it (4 MiB)"
    );
    swapped = [32 * KIB, 4 * MIB, GIB, MIB, GIB, GIB];
    let error = with_sizes(&origin(), &swapped).unwrap_err().to_string();
    assert_eq!(
        error,
        "level 4 `same corner` (1 MiB) is smaller than level 2 `SL cache` before it (4 MiB)"
    );
    let error = with_sizes(&origin(), &[GIB, 0, GIB, GIB])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the size of level 4 `same corner` is 0: it has to be at least 1 byte"
    );
}

#[test]
fn another_number_of_sizes_is_refused_with_the_possible_ones() {
    let origin_takes = "5 (for `home memory`, `same corner`, `neighbour corner`, \
         `next but one corner` and `spatial diagonal`), 4 (the last of these without end), \
         7 (for every level) or 6 (for every level but the last)";
    let generic_takes = "5 (for `L1`, `L2`, `L3`, `DRAM` and `remote`) \
         or 4 (the last of these without end)";
    let closed = with_sizes(&sound(), &[GIB])
        .map(|(topology, _)| topology)
        .unwrap_or_else(|_| sound());
    for (topology, count, message) in [
        (
            origin(),
            3,
            format!("3 sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            origin(),
            0,
            format!("no sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            origin(),
            8,
            format!("8 sizes given, but topology `origin2000` takes {origin_takes}"),
        ),
        (
            bundled("generic").unwrap(),
            1,
            format!("1 size given, but topology `generic` takes {generic_takes}"),
        ),
        (
            closed,
            2,
            "2 sizes given, but topology `bench` takes 4 (for every level) \
             or 3 (for every level but the last)"
                .to_owned(),
        ),
        (
            sound(),
            2,
            "2 sizes given, but topology `bench` takes 1 (for `remote`), \
             4 (for every level) or 3 (for every level but the last)"
                .to_owned(),
        ),
    ] {
        let error = with_sizes(&topology, &vec![GIB; count]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn the_page_table_term_can_be_set() {
    let constants = |topology: &Topology, choice| {
        let changed = with_page_table(topology, choice);
        assert_eq!(validate(&changed), Ok(Vec::new()));
        let term = changed.page_table?;
        Some((
            term.symbol,
            term.start_bytes,
            term.reference_bytes,
            term.factor_ns,
        ))
    };
    let own = PageTableChoice::At {
        start_bytes: GIB,
        reference_bytes: GIB,
    };
    let generic = bundled("generic").unwrap();
    assert_eq!(constants(&origin(), PageTableChoice::Off), None);
    assert_eq!(
        constants(&origin(), own),
        Some(("t_pt".to_owned(), GIB, GIB, Some(8356.0)))
    );
    assert_eq!(
        constants(&generic, PageTableChoice::Paper),
        Some(("t_pt".to_owned(), 1 << 28, 1 << 26, None))
    );
    let mut taken = generic;
    taken.components[1].symbol = "t_pt".to_owned();
    for level in &mut taken.levels[1..] {
        let times = level.path.remove("t_l2").unwrap();
        level.path.insert("t_pt".to_owned(), times);
    }
    assert_eq!(
        constants(&taken, PageTableChoice::Paper),
        Some(("t_pt_".to_owned(), 1 << 28, 1 << 26, None))
    );
}

#[test]
fn the_tlb_can_be_set() {
    let generic = bundled("generic").unwrap();
    let first = |topology: &Topology, entries, page| {
        let changed = with_tlb(topology, entries, page)?;
        let term = changed.tlb.first();
        Ok::<_, TopologyError>(
            term.map(|term| (term.symbol.clone(), term.entries, term.page_bytes)),
        )
    };
    let named = |entries, page| Ok(Some(("t_tlb".to_owned(), entries, page)));
    assert_eq!(first(&origin(), None, None), named(64, 16 * KIB));
    assert_eq!(first(&origin(), Some(128), None), named(128, 16 * KIB));
    assert_eq!(first(&origin(), None, Some(2 * MIB)), named(64, 2 * MIB));
    assert_eq!(first(&generic, Some(96), Some(4 * KIB)), named(96, 4 * KIB));
    assert_eq!(first(&generic, None, None), Ok(None));
    for (topology, entries, page, message) in [
        (
            &generic,
            Some(96),
            None,
            "topology `generic` has no TLB term: give its entries and its page size, not only one",
        ),
        (
            &generic,
            None,
            Some(4 * KIB),
            "topology `generic` has no TLB term: give its entries and its page size, not only one",
        ),
        (
            &origin(),
            Some(0),
            None,
            "the number of entries of TLB `t_tlb` is 0: it has to be at least 1",
        ),
    ] {
        assert_eq!(
            first(topology, entries, page).unwrap_err().to_string(),
            message
        );
    }
}

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
        size_low_bytes: None,
        size_high_bytes: None,
        latency_ns: 1.0,
        latency_low_ns: 0.9,
        latency_high_ns: 1.1,
        latency_cycles: 4.0,
        line_bytes,
        line_basis: None,
        declared_bytes: None,
        note: None,
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

#[test]
fn the_page_about_the_format_has_an_example_that_is_one() {
    let page = include_str!("../../../../docs/formats/topology.md");
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

/// A text that a topology is refused for is refused in one line, with file and place.
fn refused_in_one_line(text: &str) -> Result<(), TestCaseError> {
    if let Err(error) = parse_topology("f.toml", text) {
        let line = error.to_string();
        prop_assert!(
            !line.contains(['\n', '\r', '\u{2028}', '\u{2029}', '\u{85}']),
            "{line:?}"
        );
        let mut parts = line
            .strip_prefix("f.toml:")
            .unwrap_or_default()
            .splitn(3, ':');
        let mut place = || parts.next().and_then(|number| number.parse::<usize>().ok());
        let lines = text.split('\n').count();
        prop_assert!(
            place().is_some_and(|line| line >= 1 && line <= lines),
            "{line:?}"
        );
        prop_assert!(place().is_some_and(|column| column >= 1), "{line:?}");
    }
    Ok(())
}

/// Words that occur in topologies, and some that should not.
fn word() -> impl Strategy<Value = String> {
    let words: Vec<&str> = SOUND.split_whitespace().collect();
    prop_oneof![
        4 => proptest::sample::select(words).prop_map(str::to_owned),
        1 => prop_oneof![
            Just("-1"), Just("0"), Just("1e999"), Just("nan"), Just("\"\\n\""), Just("{}"),
            Just("[["), Just("]]"), Just("\"99999999999999999999\""), Just("9223372036854775807"),
            Just("\n"), Just("\"\"\"a\nb\"\"\""), Just("\u{2028}"),
        ]
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        refused_in_one_line(&text)?;
    }

    #[test]
    fn shuffled_words_never_panic(words in proptest::collection::vec((word(), 0..2_usize), 0..40)) {
        let text: String = words
            .iter()
            .flat_map(|(word, line)| [&**word, [" ", "\n"][*line]])
            .collect();
        refused_in_one_line(&text)?;
    }

    #[test]
    fn a_word_changed_never_panics(at in any::<proptest::sample::Index>(), put in word()) {
        let starts: Vec<usize> = SOUND
            .match_indices([' ', '\n'])
            .map(|(start, _)| start + 1)
            .collect();
        let start = starts[at.index(starts.len())];
        let rest = &SOUND[start..];
        let end = rest.find([' ', '\n']).unwrap_or(rest.len());
        refused_in_one_line(&format!("{}{put}{}", &SOUND[..start], &rest[end..]))?;
    }

    #[test]
    fn a_cut_or_overwritten_file_never_panics(
        text in proptest::sample::select(vec![
            SOUND,
            include_str!("../../topologies/origin2000.toml"),
            include_str!("../../topologies/generic.toml"),
        ]),
        from in any::<proptest::sample::Index>(),
        length in 0..30_usize,
        put in "\\PC{0,6}",
    ) {
        let from = from.index(text.len());
        let to = (from + length).min(text.len());
        let bytes = [&text.as_bytes()[..from], put.as_bytes(), &text.as_bytes()[to..]].concat();
        refused_in_one_line(&String::from_utf8_lossy(&bytes))?;
    }

    /// Whatever is accepted can be used: nothing later panics or gives what is no number.
    #[test]
    fn any_sizes_are_taken_or_refused(sizes in proptest::collection::vec(any::<u64>(), 0..9)) {
        for topology in [origin(), bundled("generic").unwrap(), sound()] {
            match with_sizes(&topology, &sizes) {
                Ok((sized, _)) => {
                    prop_assert!(validate(&sized).is_ok());
                    let (_, levels) = published(&sized);
                    let reaches: Vec<u64> = levels.iter().filter_map(|level| level.reach_bytes).collect();
                    prop_assert!(reaches.is_sorted(), "{reaches:?}");
                }
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
