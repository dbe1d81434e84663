//! `compare --fail-on` of runs from outside: sides, verdicts, exit codes and output files.

use std::fs;

use membound_run::{RunData, SiteKind};
use quick_junit::{NonSuccessKind, Report, TestCaseStatus};
use serde_json::Value;

use crate::command::{Finished, Membound, busy, number};
use crate::synthetic::{From, Like, Synthetic};

/// A thread that chases pointers through a table for `share` of a second and computes for the rest.
fn program(share: f64) -> Synthetic {
    let mut program = Synthetic::new(1.0, 2);
    let main = program.thread("main");
    let table = program.heap(&[("main", "main.c", 7)], 64 << 20);
    let site = program.site(("work", "work.c", 20), SiteKind::Load, 8);
    program.access(
        main,
        0,
        site,
        0.0..share,
        &Like::chase(From::Dram, &[table]),
    );
    let rest = program.stack(&[("rest", "rest.c", 5), ("main", "main.c", 9)]);
    program.plain(main, rest, share..1.0);
    program
}

fn write(membound: &Membound, name: &str, run: &RunData) {
    membound_run::write(&membound.home.path().join(name), run).expect("there is room for a run");
}

/// Three base runs (`a…`), three runs that wait 20 points more (`c…`), and three further runs of the
/// unchanged program (`b…`).
fn runs() -> Membound {
    let membound = Membound::new();
    for (side, share) in [("a", 0.40), ("b", 0.40), ("c", 0.60)] {
        for (number, off) in [(1, 0.0), (2, 0.005), (3, -0.005)] {
            let run = program(share + off).finish();
            write(&membound, &format!("{side}{number}.run"), &run);
        }
    }
    membound
}

/// `compare` with words and then one expression per gate.
fn compare(membound: &Membound, words: &str, expressions: &[&str]) -> Finished {
    let _busy = busy();
    let mut command = membound.command(["compare"]);
    command.args(words.split_whitespace());
    for expression in expressions {
        command.args(["--fail-on", expression]);
    }
    Finished::of(&command.output().expect("the command starts"))
}

const BAD: &str = "--base a1.run a2.run a3.run --new c1.run c2.run c3.run";
const GOOD: &str = "--base a1.run a2.run a3.run --new b1.run b2.run b3.run";

#[test]
fn sides_are_combined_and_checked_against_every_expression() {
    let membound = runs();
    let expressions = [
        "memory-bound +3pt",
        "line work.c:20 +10%",
        "object main.c:7 +90%",
        "function work +15pt",
        "false-sharing new",
    ];
    let failed = compare(&membound, BAD, &expressions);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let stderr_lines: Vec<&str> = failed.stderr.lines().collect();
    assert_eq!(stderr_lines.len(), 3, "{stderr_lines:?}");
    assert!(stderr_lines[0].starts_with("membound: memory-bound +3pt failed: "));
    for word in [
        "Gates",
        "failed",
        "passed",
        "base: 3 runs",
        "98 %",
        "a1.run",
    ] {
        assert!(failed.stdout.contains(word), "{word}: {}", failed.stdout);
    }
    assert!(failed.stdout.lines().all(|line| line.chars().count() <= 80));
    // With a thousand samples a run, some points stay undecided.
    let wider = [
        "memory-bound +10pt",
        "line work.c:20 +40%",
        "object main.c:7 +90%",
        "function work +15pt",
        "false-sharing new",
    ];
    compare(&membound, GOOD, &wider).printed();
    // Two files are one side each.
    let two = compare(&membound, "a1.run c1.run", &["memory-bound +3pt"]);
    assert_eq!(two.code, Some(1), "{two:?}");
    compare(&membound, "c1.run a1.run", &["memory-bound +3pt"]).printed();
    // Without a gate, the sides are still shown.
    let shown = compare(&membound, BAD, &[]).printed();
    assert!(shown.contains("More of the CPU time waits"), "{shown}");
}

#[test]
fn undecided_passes_unless_it_is_to_fail() {
    let membound = runs();
    let words = "--base a1.run a2.run a3.run --new c1.run c2.run c3.run";
    let expression = ["memory-bound +20pt"];
    let open = compare(&membound, words, &expression);
    assert_eq!(open.code, Some(0), "{open:?}");
    assert_eq!(open.stderr.lines().count(), 1, "{}", open.stderr);
    assert!(
        open.stderr.contains("undecided, which passes")
            && open.stderr.contains("close to the limit"),
        "{}",
        open.stderr
    );
    let failed = compare(&membound, &format!("{words} --undecided fail"), &expression);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stderr.contains("undecided, which fails"));
}

#[test]
fn the_document_has_gates_and_sides() {
    let membound = runs();
    let found = compare(
        &membound,
        &format!("{BAD} --json -"),
        &["memory-bound +3pt"],
    );
    assert_eq!(found.code, Some(1));
    let document: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(document["kind"], "run-comparison");
    let gate = &document["gates"][0];
    assert_eq!(gate["verdict"], "failed");
    assert_eq!(
        (&gate["subject"], &gate["limit_of"]),
        (&"memory-bound".into(), &"share".into())
    );
    assert!((number(&gate["limit"]) - 0.03).abs() < 1e-12);
    let change = number(&gate["change"]["value"]);
    assert!((change - 0.2).abs() < 0.02, "{change}");
    assert!(number(&gate["change"]["low"]) > 0.1);
    assert_eq!(document["sides"][1]["runs"], serde_json::json!([3, 4, 5]));
    assert_eq!(document["runs"].as_array().unwrap().len(), 6);
}

#[test]
fn junit_and_markdown_are_valid() {
    let membound = runs();
    let home = membound.home.path();
    let expressions = [
        "memory-bound +3pt",
        "function work +90%",
        "memory-bound +20pt",
    ];
    let words = format!("{BAD} --junit gate.xml --markdown gate.md --html gate.html");
    assert_eq!(compare(&membound, &words, &expressions).code, Some(1));
    let xml = fs::read_to_string(home.join("gate.xml")).unwrap();
    let report = Report::deserialize_from_str(&xml).unwrap();
    let cases = &report.test_suites[0].test_cases;
    let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, expressions);
    assert!(matches!(
        &cases[0].status,
        TestCaseStatus::NonSuccess { kind: NonSuccessKind::Failure, message: Some(message), .. }
            if message.as_str().contains("waits for memory")
    ));
    assert!(matches!(&cases[1].status, TestCaseStatus::Success { .. }));
    assert!(matches!(&cases[2].status, TestCaseStatus::Skipped { .. }));
    assert_eq!(report.failures, 1);
    let markdown = fs::read_to_string(home.join("gate.md")).unwrap();
    for part in [
        "### membound: failed\n",
        "| **failed** | `memory-bound +3pt` | ",
        "| passed | `function work +90%` | ",
        "- `memory-bound +20pt` undecided: ",
        "<details><summary>What changed",
        "object `main.c:7 (64 MiB)` |",
    ] {
        assert!(markdown.contains(part), "{part} is not in {markdown}");
    }
    let page = fs::read_to_string(home.join("gate.html")).unwrap();
    assert!(page.contains("memory-bound +3pt") && page.ends_with("</html>"));
    let strict = format!("{BAD} --junit strict.xml --undecided fail");
    assert_eq!(compare(&membound, &strict, &expressions).code, Some(1));
    let xml = fs::read_to_string(home.join("strict.xml")).unwrap();
    assert_eq!(Report::deserialize_from_str(&xml).unwrap().failures, 2);
}

#[test]
fn what_makes_no_sense_is_one_line_and_usage() {
    let membound = runs();
    for (words, expression, parts) in [
        ("a1.run c1.run", "5%", &["`5%`", "memory-bound +3pt"][..]),
        ("a1.run c1.run", "memory-bound 3pt", &["`3pt` is no limit"]),
        ("a1.run c1.run", "-3pt", &["`-3pt`"]),
        (
            "a1.run c1.run",
            "line nowhere.c:1 +5%",
            &["no line `nowhere.c:1`", "`work.c:20`"],
        ),
        (
            "a1.run c1.run",
            "object tabel +5%",
            &["no object `tabel`", "main.c:7"],
        ),
        (
            "a1.run c1.run",
            "function wrok +5%",
            &["no function `wrok`", "`work`"],
        ),
        (
            "a1.run b1.run c1.run",
            "memory-bound +3pt",
            &["3 runs", "--base", "--new"],
        ),
        (
            "--base a1.run a1.run --new c1.run",
            "memory-bound +3pt",
            &["a1.run is named twice"],
        ),
        (
            "--base a1.run --new a1.run",
            "memory-bound +3pt",
            &["a1.run is named twice"],
        ),
        (
            "a1.run c1.run --json - --junit -",
            "memory-bound +3pt",
            &["stdout takes one"],
        ),
        (
            "a1.run c1.run --html -",
            "memory-bound +3pt",
            &["--html needs a file"],
        ),
    ] {
        compare(&membound, words, &[expression]).complains(2, parts);
    }
    // What clap refuses has its usage with it.
    for (words, expressions) in [
        ("--base a1.run", &["memory-bound +3pt"][..]),
        ("a1.run --base a1.run --new c1.run", &["memory-bound +3pt"]),
        ("a1.run c1.run --junit x.xml", &[]),
        ("a1.run c1.run --undecided fail", &[]),
    ] {
        assert_eq!(
            compare(&membound, words, expressions).code,
            Some(2),
            "{words}"
        );
    }
    fs::write(membound.home.path().join("a.json"), "{}").unwrap();
    compare(&membound, "a.json a.json", &["memory-bound +3pt"]).complains(2, &["guards runs"]);
    compare(&membound, "a.json a.json --markdown x.md", &[]).complains(2, &["--markdown"]);
    compare(&membound, "a1.run none.run", &["memory-bound +3pt"])
        .complains(1, &["cannot read none.run"]);
}

#[test]
fn runs_without_the_needed_parts_are_refused() {
    let membound = runs();
    let mut plain = program(0.4).finish();
    plain.meta.objects_from_bytes = None;
    plain.meta.latencies = false;
    write(&membound, "plain.run", &plain);
    let words = "--base a1.run a2.run --new plain.run";
    compare(&membound, words, &["object main.c:7 +5%"]).complains(
        2,
        &["plain.run has no objects: allocations were not followed"],
    );
    compare(&membound, words, &["false-sharing new"])
        .complains(2, &["plain.run has no latencies: accesses were not timed"]);
    let mut empty = program(0.4).finish();
    empty.samples.clear();
    write(&membound, "empty.run", &empty);
    compare(&membound, "a1.run empty.run", &["memory-bound +3pt"])
        .complains(1, &["empty.run: no sample was taken"]);
}
