//! Every flaw has its own one-line message, with file and position.

use membound_model::hierarchy::{parse_topology, validate};
use membound_types::TlbTerm;

use super::{KIB, SOUND, sound};

/// Asserts the error of [`SOUND`] with `from` replaced by `to`.
#[track_caller]
fn check_refused(from: &str, to: &str, message: &str) {
    assert!(SOUND.contains(from), "{from}");
    let text = SOUND.replacen(from, to, 1);
    let error = parse_topology("dir/bench.toml", &text).expect_err("a flaw");
    assert_eq!(error.to_string(), format!("dir/bench.toml:{message}"));
}

#[test]
fn invalid_sizes_are_named_with_their_place() {
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
            "14:15: per_line_ns of component `t_s` is -4.5: it has to be from 0 to 1e12 nanoseconds",
        ),
        (
            "per_line_ns = 4.5",
            "per_line_ns = 1.1e12",
            "14:15: per_line_ns of component `t_s` is 1100000000000: it has to be from 0 to 1e12 nanoseconds",
        ),
        (
            "constant_ns = 0",
            "constant_ns = inf",
            "15:15: constant_ns of component `t_s` is inf: it has to be from 0 to 1e12 nanoseconds",
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
            "45:11: miss_ns of TLB `t_tlb` is -1: it has to be from 0 to 1e12 nanoseconds",
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
             it has to be from 0 to 1e12 nanoseconds",
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
fn a_file_of_nonsense_is_refused_at_once() {
    let text = "[[tlb]]\nsymbol = \"t\"\nentries = 1\npage = 1\n".repeat(257);
    assert_eq!(
        parse_topology("f", &format!("{SOUND}{text}"))
            .unwrap_err()
            .to_string(),
        "f:1:1: the number of TLB terms is 258: it has to be at most 256"
    );
    let deep = format!("name = {}", "[".repeat(100_000));
    let error = parse_topology("f", &deep).unwrap_err().to_string();
    assert!(error.starts_with("f:1:") && error.len() < 200, "{error}");
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
          used unchanged, since a section of memory may have any size"
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
fn parts_without_effect_are_warnings() {
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
            "component `t_m` lies on no level's path, so it cannot be estimated",
            "TLB term 2 `t_walk` (512 KiB) reaches no further than term 1 `t_tlb` before it (1 MiB)",
        ]
    );
}
