//! Time slices that are held to a bound by their measured durations, and slices that do not end.

use membound_types::ScavengerState;

use crate::suite::{Harvest, Harvested, fixture, scavenger};

/// Runs a program for three seconds alongside a scavenger in `mode`, which must not affect it.
#[track_caller]
fn run_with_scavenger(mode: &str, options: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("costs.c", "-O2")?, scavenger()?);
    let harvested = Harvest::of(&program, "3")
        .with(&scavenger, mode)
        .options("--idle stop")
        .options(options)
        .run();
    assert_eq!(harvested.left.stdout, "costs: 0 wrong\n", "{harvested:#?}");
    assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
    Some(harvested)
}

#[test]
fn scavengers_that_miss_skip_slices_only_where_slices_are_too_long() {
    // No slice is as short as a nanosecond, and hardly one as long as a millisecond.
    for (options, keeps, skips) in [
        ("--bound-ns 1", false, true),
        ("--bound-ns 1 --without skips", false, false),
        ("--bound-ns 1000000", true, false),
    ] {
        let Some(harvested) = run_with_scavenger("forever", options) else {
            return;
        };
        let distance = &harvested.document.distance_ns;
        let within = distance.within_bound.expect("turns were timed");
        assert_eq!(within > 0.5, keeps, "{distance:#?}");
        assert_eq!(distance.skipped > 0, skips, "{options}: {distance:#?}");
    }
}

#[test]
fn a_scavenger_that_stops_yielding_is_interrupted() {
    // By then its turns are seldom looked at.
    let Some(harvested) = run_with_scavenger("late", "") else {
        return;
    };
    harvested.ended(0, ScavengerState::Unfinished, None);
    let document = &harvested.document;
    assert!(document.moves.overdue > 0, "{document:#?}");
    assert!(document.scavengers[0].turns > 0, "{document:#?}");
}
