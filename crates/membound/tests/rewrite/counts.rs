//! Counts whose exact values are known.

use crate::build::{Compiler, build};
use crate::case::{Case, summary};
use crate::run::{Ending, executions, module};

/// Executions in the program of `counted.c`, run with `times` and `threads`.
fn counted(times: u32, threads: u32, words: &[&str]) -> Option<u64> {
    let program = build(Compiler::Gcc, "counted.c", "-O2")?;
    let case = Case::new(program, &format!("{times:08x} {threads}"));
    let (outcome, report) = case.patched(words);
    assert_eq!(outcome.ending, Ending::Exited(0), "{outcome:?}");
    let report = report.expect("there is a report");
    let own = module(&report, "counted")
        .unwrap_or_else(|| panic!("the program is missing: {}", summary(Some(&report))));
    Some(executions(own))
}

/// Two runs differ by three accesses for each further iteration, and by nothing else.
#[test]
fn every_execution_is_counted() {
    let words = ["--body", "count"];
    let (Some(few), Some(many)) = (counted(1000, 1, &words), counted(251_000, 1, &words)) else {
        return;
    };
    assert_eq!(many - few, 3 * 250_000);
}

/// Without locks two threads that count in the same place lose counts; with them none.
#[test]
fn locked_counts_are_exact_over_threads() {
    let words = ["--body", "count", "--exact"];
    let (Some(few), Some(many)) = (counted(1000, 4, &words), counted(501_000, 4, &words)) else {
        return;
    };
    assert_eq!(many - few, 4 * 3 * 500_000);
}

/// Counters keep their values when patches are removed and installed again. What runs unpatched meanwhile is
/// not counted, so counts may be lower, never higher.
#[test]
fn no_execution_is_counted_twice() {
    let words = ["--body", "count", "--exact", "--churn", "5"];
    let (Some(few), Some(many)) = (counted(1000, 2, &words), counted(20_001_000, 2, &words)) else {
        return;
    };
    assert!(
        many > few && many - few <= 2 * 3 * 20_000_000,
        "{few} {many}"
    );
}

/// The C library is counted too, and the same run gives the same counts.
#[test]
fn counts_repeat() {
    let words = ["--body", "count"];
    assert_eq!(counted(5000, 1, &words), counted(5000, 1, &words));
}
