//! Scavengers whose system calls would disturb the process that they run in.

use membound_types::ScavengerState;

use crate::suite::{Harvest, fixture};

/// Runs a program that counts its signals, waits for a child and reads its scheduling, with a scavenger in
/// `mode`, and compares each line of its output with `output`.
#[track_caller]
fn check(mode: &str, line: &str) {
    let (Some(program), Some(scavenger)) =
        (fixture("victim.c", "-O2"), fixture("interference.c", "-O2"))
    else {
        return;
    };
    let harvest = Harvest::of(&program, "300 0")
        .with(&scavenger, mode)
        .options("--idle steal");
    let harvested = harvest.check();
    harvested.ended(0, ScavengerState::Finished, Some(Ok(0)));
    let (lines, done) = harvested.outputs[0]
        .split_once("done ")
        .map_or((&*harvested.outputs[0], None), |(lines, done)| {
            (lines, Some(done))
        });
    assert!(done.is_some(), "{:?}", harvested.outputs);
    assert!(
        !lines.is_empty() && lines.lines().all(|found| found == line),
        "{lines}"
    );
}

const NOT_PERMITTED: &str = "Operation not permitted";

#[test]
fn it_sets_an_alarm() {
    check("alarm", "asked");
}

#[test]
fn it_sets_an_interval() {
    check("interval", NOT_PERMITTED);
}

#[test]
fn it_makes_a_timer() {
    check("timer", NOT_PERMITTED);
}

#[test]
fn it_waits_for_any_child() {
    check("wait", "No child processes");
}

#[test]
fn it_waits_for_any_child_without_waiting() {
    check("waitid", "No child processes");
}

#[test]
fn it_takes_signals() {
    check("take", "Resource temporarily unavailable");
}

#[test]
fn it_reads_signals_from_a_descriptor() {
    check("descriptor", "Resource temporarily unavailable");
}

#[test]
fn it_polls_with_all_signals() {
    check("poll", "done");
}

#[test]
fn it_selects_with_all_signals() {
    check("select", "done");
}

#[test]
fn it_waits_for_events_with_all_signals() {
    check("epoll", "done");
}

#[test]
fn it_sends_a_signal_through_a_descriptor() {
    check("pidfd", NOT_PERMITTED);
}

#[test]
fn it_has_a_descriptor_send_signals() {
    check("owner", NOT_PERMITTED);
}

#[test]
fn it_locks_all_memory() {
    check("lock", NOT_PERMITTED);
}

#[test]
fn it_moves_the_process_to_a_processor() {
    check("affinity", "done");
}

#[test]
fn it_gives_the_process_another_policy() {
    check("policy", "done");
}

#[test]
fn it_waits_for_signals_that_are_not_its_own() {
    let (Some(program), Some(scavenger)) =
        (fixture("victim.c", "-O2"), fixture("interference.c", "-O2"))
    else {
        return;
    };
    let harvest = Harvest::of(&program, "300 1").with(&scavenger, "suspend");
    harvest.check().ended(0, ScavengerState::Unfinished, None);
}
