//! State of the program that is live across its yields.

use crate::suite::{Harvest, fixture, output_of, scavenger};

/// With scavengers that change all of this state.
#[track_caller]
fn check(source: &str, words: &str, mode: &str) {
    let (Some(program), Some(scavenger)) = (fixture(source, words), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .with(&scavenger, "rounding")
        .with(&scavenger, "vectors")
        .options("--per-thread 3 --idle steal");
    harvest.check();
}

#[test]
fn flags_are_alive_over_its_yields() {
    check("state.c", "-O2", "flags");
}

#[test]
fn vectors_are_alive_over_its_yields() {
    check("state.c", "-O2", "vectors");
}

/// Whichever part yields leave out, the program is the same; without the switch no scavenger runs.
#[test]
fn parts_of_yields_can_be_left_out() {
    let (Some(program), Some(scavenger)) = (fixture("state.c", "-O2"), scavenger()) else {
        return;
    };
    for part in [
        "liveness",
        "vectors",
        "prefetch",
        "companions",
        "recency",
        "distance",
        "choice",
        "switch",
    ] {
        let harvest = Harvest::of(&program, "vectors")
            .with(&scavenger, "vectors")
            .options(&format!("--idle steal --without {part}"));
        let run = if part == "switch" {
            let run = harvest.run();
            assert_eq!(run.left, harvest.alone());
            assert_eq!(run.document.primary.yields, 0);
            run.document
        } else {
            harvest.check().document
        };
        let left_out: Vec<&str> = run.options.without.iter().map(|it| it.name()).collect();
        assert_eq!(left_out, [part]);
    }
}

#[test]
fn leaves_keep_what_is_below_their_stack_pointer() {
    check("state.c", "-O2", "redzone");
}

#[test]
fn it_rounds_as_before_and_sees_no_others_exceptions() {
    check("state.c", "-O2", "rounding");
}

#[test]
fn it_recurses_around_its_yields() {
    check("state.c", "-O2 -fstack-protector-all", "recursion");
}

#[test]
fn it_throws_around_its_yields() {
    check("exceptions.cc", "-O2", "");
}

#[test]
fn a_scavenger_throws() {
    let (Some(program), Some(throws)) = (fixture("ends.c", "-O2"), fixture("exceptions.cc", "-O2"))
    else {
        return;
    };
    let harvested = Harvest::of(&program, "outlast").with(&throws, "").check();
    harvested.wrote(0, &output_of(&throws, ""));
}

#[test]
fn a_program_is_its_own_scavenger_twice() {
    let Some(program) = fixture("state.c", "-O2") else {
        return;
    };
    let harvest = Harvest::of(&program, "flags")
        .with(&program, "vectors")
        .options("--copies 2 --per-thread 2");
    harvest.check();
}
