//! Short waits of the program's threads, during which scavengers run on these threads.

use membound_testkit::inconclusive;

use crate::suite::{Harvest, Harvested, fixture, scavenger};

/// Runs a mode of the fixture with a scavenger for each of two threads; the fixture checks its own results.
#[track_caller]
fn check(mode: &str, options: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("waits.c", "-O2 -pthread")?, scavenger()?);
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .options("--copies 2 --per-thread 1")
        .options(options);
    let harvested = harvest.run();
    let expected = format!("{mode}: 0 wrong\n");
    assert_eq!(harvested.left.stdout, expected, "{harvested:#?}");
    assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
    Some(harvested)
}

/// CPU time that scavengers had in waits, in seconds.
fn in_waits_s(harvested: &Harvested) -> f64 {
    let scavengers = harvested.document.scavengers.iter();
    scavengers.map(|one| one.in_waits_s).sum()
}

#[test]
fn a_sleep_is_never_shorter_than_was_asked_for() {
    /// Share of the time, in thousandths, that other processes had the processor, from which on waits are
    /// left to the kernel.
    const WANTED: u32 = 20;
    let Some(harvested) = check("sleeps", "") else {
        return;
    };
    let delayed: u32 = harvested.left.stderr.trim().parse().expect("it says so");
    if delayed > WANTED {
        inconclusive("whether scavengers run in sleeps: others had the processors");
    } else {
        assert!(in_waits_s(&harvested) > 0.0, "{harvested:#?}");
    }
}

#[test]
fn waits_that_the_kernel_refuses_are_refused() {
    check("errors", "");
}

#[test]
fn threads_that_wait_for_each_other_lose_no_wakeup() {
    check("turns", "");
}

#[test]
fn readiness_of_descriptors_is_reported_once() {
    check("descriptors", "");
}

#[test]
fn signals_come_into_short_sleeps() {
    check("interrupted", "");
}

#[test]
fn without_waits_no_scavenger_runs_in_waits() {
    for options in ["--without waits", "--idle steal"] {
        if let Some(harvested) = check("sleeps", options) {
            assert!(in_waits_s(&harvested) <= 0.0, "{harvested:#?}");
        }
    }
}
