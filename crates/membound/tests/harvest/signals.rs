//! Signals that arrive during time slices.

use membound_types::ScavengerState;

use crate::suite::{Harvest, fixture, output_of, scavenger};

/// Storms of two signals, with scavengers that compute and scavengers that make system calls.
#[track_caller]
fn check(mode: &str) {
    let (Some(program), Some(scavenger)) = (fixture("signals.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .with(&scavenger, "calls")
        .options("--per-thread 2 --idle steal");
    let harvested = harvest.check();
    assert!(harvested.left.stdout.contains(": 0 wrong, all handled"));
    let expected = output_of(&scavenger, "calls");
    // It may have work left when the storm is over.
    assert!(
        expected.starts_with(&harvested.outputs[1]),
        "{harvested:#?}"
    );
}

#[test]
fn a_storm_of_signals_interrupts_slices() {
    check("storm");
}

#[test]
fn a_storm_of_signals_is_handled_on_another_stack() {
    check("storm-onstack");
}

#[test]
fn a_storm_of_signals_is_not_deferred() {
    check("storm-nodefer");
}

#[test]
fn a_storm_of_signals_is_not_deferred_on_another_stack() {
    check("storm-onstack-nodefer");
}

#[test]
fn a_storm_of_signals_comes_to_a_thread_whose_other_stack_holds_one_frame() {
    check("storm-small-nodefer");
}

#[test]
fn handlers_leave_slices_by_siglongjmp() {
    check("jump");
}

#[test]
fn handlers_leave_slices_by_siglongjmp_from_another_stack() {
    check("jump-onstack");
}

#[test]
fn handlers_yield_themselves() {
    check("yields");
}

#[test]
fn handlers_yield_themselves_on_another_stack() {
    check("yields-onstack");
}

/// A loop keeps live vectors that it does not change on the stack; a handler must see them, and they must be
/// restored wherever execution resumes.
#[test]
fn handlers_see_the_vectors_of_a_loop_that_yields_and_may_leave_it() {
    let (Some(program), Some(scavenger)) = (fixture("signals.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "vectors")
        .with(&scavenger, "vectors")
        .with(&scavenger, "forever")
        .options("--per-thread 2 --idle steal");
    let left = harvest.check().left;
    assert_eq!(left.stdout, "vectors: 0 wrong, all handled\n");
}

/// A program with scavengers that make system calls and that fault.
#[track_caller]
fn calls_and_faults(mode: &str) {
    let (Some(program), Some(scavenger)) = (fixture("signals.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "calls")
        .with(&scavenger, "fault")
        .options("--per-thread 2 --idle steal");
    harvest.check();
}

#[test]
fn threads_are_sent_signals_before_they_yield() {
    calls_and_faults("children");
}

#[test]
fn it_yields_with_all_signals_blocked() {
    calls_and_faults("blocked");
}

#[test]
fn a_thread_begins_with_all_signals_blocked() {
    calls_and_faults("blocked-thread");
}

#[test]
fn handlers_block_all_signals_and_yield() {
    calls_and_faults("yields-masked");
}

/// Signals as a fault would send them, and changes of text, are sent to the process from outside: they are
/// not meant for its scavengers, which must receive only their own.
#[track_caller]
fn is_sent(words: &str) {
    let (Some(program), Some(scavenger)) = (fixture("victim.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, words)
        .with(&scavenger, "forever")
        .options("--copies 4 --idle harvest");
    let harvested = harvest.run();
    assert_eq!(harvest.alone(), harvested.left, "{:#?}", harvested.document);
    for index in 0..4 {
        let state = harvested.document.scavengers[index].state;
        assert_eq!(state, ScavengerState::Unfinished, "{harvested:#?}");
    }
}

#[test]
fn it_handles_signals_of_faults_that_are_sent() {
    is_sent("100 9 11");
}

#[test]
fn it_handles_traps_that_are_sent() {
    is_sent("100 9 5");
}

#[test]
fn it_handles_the_signal_of_calls_when_it_is_sent() {
    is_sent("100 9 16");
}

#[test]
fn it_is_killed_by_the_signal_of_faults() {
    // A number from 65 on means that signal less 65, without a handler.
    is_sent("1 9 76");
}
