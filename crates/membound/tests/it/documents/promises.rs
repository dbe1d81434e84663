//! What the commands of the page promise: tables by their column headings, with numbers below them, or the
//! reason why this machine has none.

use std::fs;
use std::path::Path;

use serde_json::Value;

use Promise::{OnPage, Said, Table, TableOr};

enum Promise {
    /// Words of one line, in this order, and numbers in the lines below it.
    Table(&'static [&'static str]),
    /// A table, or the text that begins the reason why there is none.
    TableOr(&'static [&'static str], &'static str),
    /// A text.
    Said(&'static str),
    /// A text on the page that `--html` writes.
    OnPage(&'static str),
}

/// Promises of the commands that contain all words, without those after `!`; all rows that fit a command count.
const PROMISES: &[(&[&str], &[Promise])] = &[
    (
        &["doctor", "!explore"],
        &[
            Said("caches as declared"),
            Said("core clock"),
            Table(&["memory"]),
        ],
    ),
    (
        &["measure mlp", "!--cpu 0,1"],
        &[
            Table(&["filler", "ended by", "entries", "interval"]),
            Table(&["N loads, K fillers", "cycles for all N"]),
            Table(&["chains", "cycles per load", "parallelism"]),
            TableOr(&["condition", "M", "interval", "C"], "no cliff was found"),
            Table(&["area", "1", "ratio"]),
        ],
    ),
    (
        &["measure mlp", "--page 4k,thp"],
        &[TableOr(&["cycles of", "from"], "page walks: not measured")],
    ),
    (
        &["--placements"],
        &[Table(&[
            "loads", "median", "least", "most", "between", "within",
        ])],
    ),
    (
        &["--node local,interleave"],
        &[Said("local"), Said("interleave")],
    ),
    (
        &["measure latency mlp"],
        &[
            Table(&["level", "effective", "declared", "ns"]),
            Table(&["filler", "ended by", "entries"]),
            OnPage("id=\"mlp-areas\""),
            OnPage("expected hits"),
        ],
    ),
    (&["--cpu 0,1"], &[Table(&["figure", "cpu=0", "cpu=1"])]),
    (
        &["compare", ".json"],
        &[
            Table(&["condition", "MLP", "one load", "pair", "overhead"]),
            Table(&["T(N): loads at once"]),
            Table(&["T(n): loads in sequence"]),
        ],
    ),
    (
        &["measure tlb"],
        &[
            TableOr(&["pages", "level", "entries", "reach"], "not measured"),
            Table(&["cycles of translation per load"]),
        ],
    ),
    (
        &["measure window", "!--cpu 0,1"],
        &[
            Table(&["windows", "points"]),
            Table(&["area", "1 KiB", "MFLOPS"]),
        ],
    ),
    (&["measure window", "prefetch"], &[Said("scalar-prefetch")]),
    (&["model fit"], &[Table(&["window points"])]),
    (
        &["model show origin2000"],
        &[
            Table(&["symbol", "value", "unit", "related to"]),
            Table(&["mnemonic", "level", "MFLOPS"]),
            Said("75.5"),
            Said("20.3"),
            Said("14.5"),
            Said("13.6"),
            Said("12.9"),
            Said("12.2"),
        ],
    ),
    (
        &["measure prefetch"],
        &[Table(&[
            "pattern",
            "prefetched",
            "ns",
            "random ns",
            "ratio",
        ])],
    ),
    (
        &["latency --pattern stride"],
        &[Table(&["size", "a: ns", "b: ns"])],
    ),
    (
        &["latency", "--threads 1,2"],
        &[Said("1 copy"), Said("2 copies")],
    ),
    (&["lat_mem_rd"], &[Table(&["\"stride="])]),
    (&["profile"], &[Said("memory bound")]),
    (
        &["report", "!--"],
        &[
            Said("elapsed"),
            Said("memory bound"),
            TableOr(
                &["stalled", "line", "function"],
                "of CPU time waits for memory",
            ),
        ],
    ),
    (
        &["report", "bandwidth-domain", "!csv"],
        &[
            Said("Platform"),
            TableOr(&["GB/s", "of the time"], "traffic was not measured"),
        ],
    ),
    (
        &["report", "csv"],
        &[Said("domain,basis,t_s,read_gb_s,write_gb_s")],
    ),
    (
        &["report", "--by function", "!object"],
        &[Table(&["stalled", "time", "function"])],
    ),
    (
        &["report", "--by callers"],
        &[Table(&["stalled", "time", "function", "module"])],
    ),
    (
        &["report", "--by tree"],
        &[Table(&["stalled", "time", "function", "module"])],
    ),
    (
        &["report", "--by function,object"],
        &[
            Table(&["stalled", "time", "function, below it its objects"]),
            Said("sorted by loads"),
        ],
    ),
    (
        &["report", "--by object,function"],
        &[Table(&[
            "stalled",
            "time",
            "object, below it its functions",
        ])],
    ),
    (
        &["report", "--by object", "!function"],
        &[
            Table(&["stalled", "of", "size", "object"]),
            Said("allocated in main"),
        ],
    ),
    (
        &["report", "--by memory"],
        &[Table(&["most", "at", "object"])],
    ),
    (
        &["report", "--by node"],
        &[TableOr(&["node", "stalled"], "nodes: not measured")],
    ),
    (
        &["report", "--machine"],
        &[TableOr(&["intel-knl-mcdram"], "elsewhere: ")],
    ),
    (
        &["compare", ".run"],
        &[Table(&[
            "run",
            "elapsed",
            "CPU",
            "memory bound",
            "interval",
        ])],
    ),
    (
        &["harvest plan", "!scavenger"],
        &[
            Said("as primary"),
            TableOr(&["load in", "misses", "stalled", "gain"], "No load yields"),
        ],
    ),
    (
        &["harvest plan", "scavenger"],
        &[
            Said("as scavenger"),
            TableOr(&["access in", "stalled", "why"], "distance by function"),
        ],
    ),
    (
        &["harvest plan", "scavenger", "!expected"],
        &[Said("between yields (max)")],
    ),
    (
        &["harvest plan", "expected"],
        &[Said("between yields (expected)")],
    ),
    (
        &["harvest run"],
        &[
            Table(&["class", "before", "harvested", "by"]),
            Table(&["command", "state", "CPU", "own thread", "moves", "calls"]),
            Said("scavengers a thread: "),
        ],
    ),
    (
        &["harvest run", "--requests"],
        &[TableOr(&["requests", "median", "95 %"], "latency: ")],
    ),
];

/// Checks that the output of `command`, in the short form `line`, has its tables, and that the files that it was
/// to write, below `home`, hold theirs.
#[track_caller]
pub(super) fn check(command: &str, line: &str, output: &str, home: &Path) {
    let fits = |words: &&(&[&str], &[Promise])| {
        words.0.iter().all(|word| match word.strip_prefix('!') {
            Some(word) => !command.contains(word),
            None => command.contains(word),
        })
    };
    let promises: Vec<&Promise> = (PROMISES.iter().filter(fits))
        .flat_map(|(_, promises)| *promises)
        .collect();
    assert!(
        !promises.is_empty() || command.contains("--html"),
        "`{command}` promises nothing"
    );
    for promise in promises {
        let (is_kept, text) = match promise {
            Table(headings) => (has_table(output, headings), format!("{headings:?}")),
            TableOr(headings, reason) => (
                has_table(output, headings) || output.contains(reason),
                format!("{headings:?} or `{reason}`"),
            ),
            Said(text) => (output.contains(text), format!("`{text}`")),
            OnPage(text) => (page_of(line, home).contains(text), format!("`{text}`")),
        };
        assert!(is_kept, "`{line}` does not show {text}:\n{output}");
    }
    check_files(line, home);
}

/// The page that the command line `line` writes.
#[track_caller]
fn page_of(line: &str, home: &Path) -> String {
    let (_, behind) = line
        .split_once("--html ")
        .expect("the command writes a page");
    let name = behind.split(' ').next().unwrap_or(behind);
    fs::read_to_string(home.join(name)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Checks the files that the command line `line` names.
#[track_caller]
pub(super) fn check_files(line: &str, home: &Path) {
    let own_words = line.split(" -- ").next().unwrap_or(line);
    let words: Vec<&str> = own_words.split(' ').collect();
    for pair in words.windows(2) {
        let read =
            || fs::read(home.join(pair[1])).unwrap_or_else(|error| panic!("{line}: {error}"));
        match pair[0] {
            "--html" => {
                let page = String::from_utf8(read()).expect("a page is UTF-8");
                let has_table = page.contains("<svg") || page.contains("<table");
                assert!(has_table, "{line}: the page has no plot and no table");
            }
            "--json" => {
                let document: Value = serde_json::from_slice(&read()).expect("a document is JSON");
                assert!(document["kind"].is_string(), "{line}: {document}");
                if pair[1] == "misses.json" {
                    check_misses(&document);
                }
            }
            "-o" => assert!(!read().is_empty(), "{line}: the run is empty"),
            _ => {}
        }
    }
}

/// Checks that each cell of document 000's plane has misses, or the reason why they are not known.
#[track_caller]
fn check_misses(document: &Value) {
    let cells = document["cells"].as_array().expect("the plane has cells");
    assert!(!cells.is_empty());
    for cell in cells {
        let misses = &cell["misses"];
        let is_known = misses["l2"].is_number() && misses["dtlb"].is_number();
        assert!(
            is_known || cell.to_string().contains("not_measured"),
            "{cell}"
        );
    }
}

/// Whether a line of `output` has the headings, and a line of the block below it a number. An empty line may
/// stand between headings and block.
fn has_table(output: &str, headings: &[&str]) -> bool {
    let lines: Vec<&str> = output.lines().collect();
    (0..lines.len())
        .filter(|at| has_in_order(lines[*at], headings))
        .any(|at| {
            lines[at + 1..]
                .iter()
                .skip_while(|row| row.is_empty())
                .take_while(|row| !row.is_empty())
                .flat_map(|row| row.split_whitespace())
                .any(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        })
}

fn has_in_order(line: &str, words: &[&str]) -> bool {
    let mut rest = line;
    words.iter().all(|word| match rest.split_once(word) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

#[test]
fn a_table_needs_its_headings_and_a_number() {
    for (output, expected) in [
        ("size  ns\n1 KiB  2.0\n", true),
        ("size  ns\n\n1 KiB  2.0\n", true),
        ("size  ns\nnone\n\n1 KiB\n", false),
        ("ns  size\n1 KiB  2.0\n", false),
        ("size  ns\n", false),
    ] {
        assert_eq!(has_table(output, &["size", "ns"]), expected, "{output}");
    }
}
