//! Programs that install a system call filter while scavengers run in them; the filter would kill the process
//! at any call of ours.

use membound_types::ScavengerState;

use crate::suite::{Harvest, Harvested, fixture, scavenger};

/// The program ends as it does alone, with all of its scavengers unfinished.
#[track_caller]
fn harvested(mode: &str, options: &str, scavengers: &[&str]) -> Option<Harvested> {
    let (program, scavenger) = (fixture("filters.c", "-O2 -pthread")?, scavenger()?);
    let alone = Harvest::of(&program, mode).options(options);
    let with = |harvest: Harvest, mode: &&str| harvest.with(&scavenger, mode);
    let harvested = scavengers.iter().fold(alone, with).check_noted();
    assert_eq!(harvested.left.stdout, "wrong 0\n");
    for index in 0..harvested.document.scavengers.len() {
        harvested.ended(index, ScavengerState::Unfinished, None);
    }
    Some(harvested)
}

/// Its scavengers have ended when the filter was installed.
#[track_caller]
fn check(mode: &str, idle: &str, scavengers: [&str; 2]) {
    let options = format!("--copies 2 --per-thread 2 --idle {idle}");
    let Some(harvested) = harvested(mode, &options, &scavengers) else {
        return;
    };
    let document = &harvested.document;
    let names_filter =
        |note: &String| note.contains("seccomp") && note.ends_with("scavengers ended before");
    assert!(document.notes.iter().any(names_filter), "{document:#?}");
    assert_eq!(document.scavengers.len(), 4);
}

#[test]
fn for_all_threads_while_scavengers_run_in_another() {
    check("all", "steal", ["forever", "forever"]);
}

#[test]
fn for_all_threads_while_scavengers_run_in_idle_time() {
    check("all", "harvest", ["forever", "stubborn"]);
}

#[test]
fn for_one_thread_alone() {
    check("own", "steal", ["forever", "forever"]);
}

/// Which has filters of its own, and all else in common.
#[test]
fn by_a_child_of_vfork() {
    let options = "--per-thread 2 --idle harvest";
    let harvested = harvested("vfork", options, &["forever"]);
    assert!(harvested.is_none_or(|it| it.document.scavengers.len() == 1));
}

#[test]
fn by_two_threads_at_once() {
    check("both", "steal", ["forever", "forever"]);
}

#[test]
fn while_another_thread_computes_that_has_scavengers() {
    check("computing", "stop", ["forever", "forever"]);
}

#[test]
fn while_another_thread_waits_that_has_scavengers() {
    check("waiting", "stop", ["forever", "forever"]);
}

#[test]
fn while_another_thread_waits_in_a_call_that_is_followed_for_requests() {
    check("waiting", "stop --requests sockets", ["forever", "forever"]);
}

#[test]
fn while_a_scavenger_waits_in_a_call() {
    check("all", "harvest", ["sleep", "forever"]);
}
