//! Turns that are held to a bound by what they are measured to last, and those that do not end.

use membound_types::ScavengerState;

use crate::suite::{Harvest, fixture, scavenger};

#[test]
fn scavengers_that_miss_skip_turns_where_these_are_too_long_and_only_there() {
    let (Some(program), Some(scavenger)) = (fixture("costs.c", "-O2"), scavenger()) else {
        return;
    };
    // No turn lasts a nanosecond, and hardly one a millisecond.
    for (options, keeps, skips) in [
        ("--bound-ns 1", false, true),
        ("--bound-ns 1 --without skips", false, false),
        ("--bound-ns 1000000", true, false),
    ] {
        let harvest = Harvest::of(&program, "3")
            .with(&scavenger, "forever")
            .options("--idle stop")
            .options(options);
        let harvested = harvest.run();
        assert_eq!(harvested.left.stdout, "costs: 0 wrong\n", "{harvested:#?}");
        assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
        let distance = &harvested.document.distance_ns;
        let within = distance.within_bound.expect("turns were timed");
        assert_eq!(within > 0.5, keeps, "{distance:#?}");
        assert_eq!(distance.skipped > 0, skips, "{options}: {distance:#?}");
    }
}

#[test]
fn a_scavenger_that_stops_yielding_after_a_second_is_called_out_of_its_turn() {
    let (Some(program), Some(scavenger)) = (fixture("costs.c", "-O2"), scavenger()) else {
        return;
    };
    // By then its turns are seldom looked at.
    let harvested = Harvest::of(&program, "3")
        .with(&scavenger, "late")
        .options("--idle stop")
        .run();
    assert_eq!(harvested.left.stdout, "costs: 0 wrong\n", "{harvested:#?}");
    assert_eq!(harvested.left.end, Ok(0), "{harvested:#?}");
    harvested.ended(0, ScavengerState::Unfinished, None);
    let document = &harvested.document;
    assert!(document.moves.overdue > 0, "{document:#?}");
    assert!(document.scavengers[0].turns > 0, "{document:#?}");
}
