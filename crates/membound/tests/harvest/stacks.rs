//! Threads without an alternate signal stack, on which scavengers overflow their stacks.

use membound_types::ScavengerState;

use crate::suite::{Harvest, fixture, scavenger};

/// A thread whose alternate stack is set and removed according to `mode`, with two scavengers that overflow
/// their stacks on it: they crash, and the program continues.
#[track_caller]
fn check(mode: &str) {
    let (Some(program), Some(scavenger)) = (fixture("stacks.c", "-O2 -pthread"), scavenger())
    else {
        return;
    };
    let harvested = Harvest::of(&program, mode)
        .with(&scavenger, "overflow")
        .with(&scavenger, "overflow")
        .options("--per-thread 2 --idle stop --without waits")
        .check();
    for index in 0..2 {
        harvested.ended(index, ScavengerState::Crashed, Some(Err(libc::SIGSEGV)));
    }
}

#[test]
fn a_thread_yields_for_the_first_time_in_a_handler() {
    check("handler");
}

#[test]
fn handlers_run_on_the_stack_that_the_thread_was_given() {
    check("nested");
}

#[test]
fn a_thread_gives_its_alternate_stack_up_and_goes_on() {
    check("taken");
}

#[test]
fn a_handler_runs_on_a_stack_that_the_thread_has_not_got_meanwhile() {
    check("disarmed");
}

#[test]
fn sigaltstack_returns_the_stack_that_the_thread_set() {
    check("asked");
}
