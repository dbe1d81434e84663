//! Programs with few descriptors, little memory, filters, or no rights: patched where possible, and otherwise
//! run unpatched.

use std::path::PathBuf;

use crate::build::{Compiler, build};
use crate::case::{Case, Expected, cases};
use crate::run::Ending;

fn processes() -> Option<PathBuf> {
    build(Compiler::Gcc, "processes.c", "-O2")
}

cases! { processes();
    all_descriptors_are_closed: "close-all";
    no_descriptor_is_left_open: "descriptors";
    // The loader of the program that is executed finds no descriptor for its libraries.
    descriptors_run_out: "few-files".exits(127);
    address_space_runs_out: "little-memory".exits(31);
    a_filter_is_installed_later: "filter-later";
    strict_filtering_is_kept_to: "strict";
    a_process_hides_itself: "no-dump";
    a_process_must_be_one_thread: "alone";
    system_calls_are_dispatched_to_the_program: "dispatch";
}

/// Whether the tests run as root. Tests that need root print that when they do not.
fn is_root() -> bool {
    // SAFETY: the call has no conditions.
    let user = unsafe { libc::geteuid() };
    if user != 0 {
        membound_testkit::skipped("root is needed to change root and user");
    }
    user == 0
}

#[test]
fn the_root_is_changed() {
    if let Some(program) = processes()
        && is_root()
    {
        Case::new(program, "change-root").check();
    }
}

#[test]
fn rights_are_dropped() {
    if let Some(program) = processes()
        && is_root()
    {
        Case::new(program, "drop-rights").check();
    }
}

/// Patches that time accesses read it.
#[test]
fn the_time_stamp_may_not_be_read() {
    let Some(program) = processes() else { return };
    let case = Case::new(program, "untimed");
    case.check();
    let (outcome, _) = case.patched(&["--body", "sample"]);
    assert_eq!(outcome.ending, Ending::Exited(0), "{outcome:?}");
}

/// The agent's buffers neither exceed the program's limit nor use all of it.
#[test]
fn all_memory_is_locked() {
    if let Some(program) = processes()
        && is_root()
    {
        Case::new(program, "lock-all").check();
    }
}

/// Filters that deny what patching needs: the program still runs.
#[test]
fn filters_are_in_the_way() {
    let Some(program) = processes() else { return };
    for denied in ["socket", "connect", "membarrier"] {
        Case::new(&program, &format!("filter-exec {denied}"))
            .arg(&program)
            .arg("shells")
            .check();
    }
}

/// A filter that denies writing to text: the agent stops following the first program before the filter is
/// installed, the second program runs unpatched, the reason is reported, and programs that it starts run too.
#[test]
fn text_cannot_be_written() {
    let Some(program) = processes() else { return };
    let case = Case::new(&program, "filter-exec pwrite")
        .arg(&program)
        .arg("shells")
        .expected(Expected::Anything);
    case.check();
    let (_, report) = case.patched(&["--body", "count"]);
    let report = report.expect("there is a report");
    assert!(report.processes[0].patched);
    let names_filter =
        |it: &String| it.contains("seccomp") && it.contains("nor in what it executes");
    assert!(report.incomplete);
    assert!(
        report.missed.iter().any(names_filter),
        "{:?}",
        report.missed
    );
}
