//! Children and ends of a program that yields.

use membound_types::ScavengerState;

use crate::suite::{Harvest, Harvested, fixture, scavenger};

fn harvest(source: &str, mode: &str) -> Option<Harvest> {
    let (program, scavenger) = (fixture(source, "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .with(&scavenger, "calls")
        .options("--per-thread 2 --idle steal");
    Some(harvest)
}

#[track_caller]
fn check(source: &str, mode: &str) -> Option<Harvested> {
    Some(harvest(source, mode)?.check())
}

#[test]
fn it_forks() {
    check("processes.c", "fork");
}

#[test]
fn children_of_vfork_come_to_its_yields() {
    check("processes.c", "vfork");
}

#[test]
fn children_of_vfork_yield_and_execute() {
    check("processes.c", "vfork-exec");
}

#[test]
fn it_spawns() {
    check("processes.c", "spawn");
}

#[test]
fn an_exec_is_reported() {
    let Some(harvest) = harvest("processes.c", "exec") else {
        return;
    };
    let (alone, harvested) = (harvest.alone(), harvest.run());
    assert_eq!(alone, harvested.left);
    let document = &harvested.document;
    assert!(document.primary.yields > 0, "{document:#?}");
    let [note] = &document.notes[..] else {
        panic!("{document:#?}");
    };
    assert!(
        note.contains("executed") && note.contains("processes"),
        "{note}"
    );
}

#[test]
fn it_exits_with_a_code() {
    check("ends.c", "exit");
}

#[test]
fn another_thread_ends_it() {
    check("ends.c", "thread");
}

#[test]
fn it_is_killed() {
    check("ends.c", "killed");
}

#[test]
fn it_aborts() {
    check("ends.c", "abort");
}

#[test]
fn it_faults_at_a_load_that_yields() {
    check("ends.c", "fault");
}

#[test]
fn scavengers_survive_dlopen_and_dlclose() {
    if let Some(harvested) = check("ends.c", "load") {
        harvested.ended(0, ScavengerState::Unfinished, None);
    }
}
