//! Threads that yield and end.

use membound_types::ScavengerState;

use crate::suite::{Harvest, Harvested, fixture, scavenger};

#[track_caller]
fn check(mode: &str, copies: u32, options: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("threads.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .options(&format!("--copies {copies}"))
        .options(options);
    let harvested = harvest.check();
    for index in 0..copies as usize {
        let state = harvested.document.scavengers[index].state;
        assert_eq!(state, ScavengerState::Unfinished, "{harvested:#?}");
    }
    Some(harvested)
}

#[test]
fn a_thousand_threads_come_and_go() {
    if let Some(harvested) = check("churn", 3, "--idle steal") {
        // Each thread has a run queue of its own from its first yield on, and the first thread has the first
        // one.
        assert_eq!(harvested.document.primary.threads, 1001);
    }
}

#[test]
fn a_thousand_detached_threads_come_and_go() {
    check("detached", 3, "--idle steal");
}

#[test]
fn a_program_that_sleeps_before_its_first_yield_leaves_idle_time() {
    let (Some(program), Some(scavenger)) = (fixture("threads.c", "-O2"), scavenger()) else {
        return;
    };
    // It needs many periods of idle time, and ends long before the program yields.
    let harvest = Harvest::of(&program, "late").with(&scavenger, "rounding");
    let harvested = harvest.options("--idle harvest").run();
    assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
    harvested.ended(0, ScavengerState::Finished, Some(Ok(0)));
    assert_eq!(harvested.document.primary.yields, 0, "{harvested:#?}");
}

#[test]
fn threads_that_have_left_their_run_queue_call_the_kernel_themselves() {
    check("relay", 4, "--idle steal");
}

#[test]
fn threads_leave_by_pthread_exit() {
    check("exit", 3, "--idle harvest");
}

#[test]
fn threads_are_cancelled() {
    check("cancel", 3, "--idle steal");
}

#[test]
fn there_are_more_threads_than_scavengers() {
    check("many", 2, "--idle steal");
}

#[test]
fn there_are_more_scavengers_than_a_thread_may_have() {
    check("many", 8, "--per-thread 2 --idle harvest");
}

#[test]
fn threads_that_block_are_stolen_from() {
    check("blocking", 2, "--idle steal");
}

#[test]
fn threads_that_block_keep_their_scavengers() {
    check("blocking", 2, "--idle stop");
}

#[test]
fn threads_that_block_leave_idle_time() {
    check("blocking", 2, "--idle harvest");
}

#[test]
fn ten_thousand_scavengers_are_stolen() {
    const STEALS: u64 = 10_000;
    // How many a run has depends on scheduling: fewer on a busy machine.
    const RUNS: usize = 6;
    let mut counts = Vec::new();
    while counts.iter().sum::<u64>() < STEALS {
        assert!(counts.len() < RUNS, "{counts:?} steals");
        let Some(harvested) = check("stolen 2200", 16, "--idle steal --per-thread 4") else {
            return;
        };
        counts.push(harvested.document.moves.steals);
    }
}
