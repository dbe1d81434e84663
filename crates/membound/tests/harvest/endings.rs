//! The end of scavengers when the program ends, and without a program; shared objects as scavengers.

use std::path::Path;

use membound_types::{HarvestRun, ScavengerState};

use crate::suite::{Harvest, finish, fixture, output_of, scavenger};

#[test]
fn scavengers_finish_after_the_program() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "exit")
        .with(&scavenger, "work")
        .options("--finish --copies 2");
    let alone = harvest.alone();
    let harvested = harvest.run();
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    let expected = output_of(&scavenger, "work");
    for (index, output) in harvested.outputs.iter().enumerate() {
        let state = harvested.document.scavengers[index].state;
        assert_eq!(state, ScavengerState::Finished, "{:#?}", harvested.document);
        assert_eq!(*output, expected);
    }
}

#[test]
fn scavengers_finish_after_a_program_that_never_yields() {
    let (Some(program), Some(scavenger)) = (fixture("idle.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "")
        .with(&scavenger, "vectors")
        .options("--finish --copies 3 --idle stop");
    let alone = harvest.alone();
    let harvested = harvest.run();
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    let expected = output_of(&scavenger, "vectors");
    for (index, output) in harvested.outputs.iter().enumerate() {
        let state = harvested.document.scavengers[index].state;
        assert_eq!(state, ScavengerState::Finished, "{:#?}", harvested.document);
        assert_eq!(*output, expected);
    }
}

/// A user who waits for scavengers that never finish can end them; the program's own end is unchanged.
#[test]
fn a_program_that_has_ended_but_for_its_scavengers_ends_when_a_signal_asks_it_to() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let harvest = Harvest::of(&program, "exit").with(&scavenger, "forever");
    let command = harvest.command();
    let mut ended = std::process::Command::new("timeout");
    ended.args(["--preserve-status", "-s", "TERM", "5"]);
    ended.arg(command.get_program()).args(command.get_args());
    ended.args(["--finish", "--output"]).arg(room.path());
    ended.arg("--").arg(&program).arg("exit");
    let alone = harvest.alone();
    let left = finish(&mut ended, room.path());
    assert_eq!((&left.end, left.stdout), (&alone.end, alone.stdout));
}

#[test]
fn scavengers_interleave_without_a_primary() {
    let Some(scavenger) = scavenger() else {
        return;
    };
    let document = finished_without_a_primary(&scavenger, 3);
    assert!(!document.sites.is_empty(), "{document:#?}");
    for scavenger in &document.scavengers {
        assert_eq!(scavenger.reason, None, "{document:#?}");
    }
}

/// No command waits for these scavengers, and their plan predicts no gain: they run as ordinary processes.
#[test]
fn yields_that_only_keep_a_bound_are_left_out_without_a_primary() {
    let Some(scavenger) = fixture("bounded.c", "-O2") else {
        return;
    };
    let document = finished_without_a_primary(&scavenger, 2);
    assert_eq!(document.sites, [], "{document:#?}");
    for scavenger in &document.scavengers {
        let reason = scavenger.reason.as_deref().expect("it ran by itself");
        assert!(reason.contains("0 % of its time"), "{document:#?}");
    }
}

/// Runs copies of a scavenger with the argument `work`, and checks that they do what they do alone.
fn finished_without_a_primary(scavenger: &Path, copies: usize) -> HarvestRun {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let json = room.path().join("harvest.json");
    let harvest = Harvest::of(scavenger, "").with(scavenger, "work");
    let mut command = harvest.command();
    command
        .args(["--no-primary", "--copies", &copies.to_string(), "--output"])
        .arg(room.path())
        .arg("--json")
        .arg(&json);
    let left = finish(&mut command, room.path());
    assert_eq!(left.end, Ok(0), "{left:#?}");
    let text = std::fs::read_to_string(&json).expect("it was written");
    let document: HarvestRun = serde_json::from_str(&text).expect("it is a document");
    assert!(document.primary.command.is_empty());
    assert_eq!(document.scavengers.len(), copies);
    let expected = output_of(scavenger, "work");
    for scavenger in &document.scavengers {
        assert_eq!(scavenger.state, ScavengerState::Finished, "{document:#?}");
        let path = scavenger.output.as_deref().expect("it was asked for");
        let output = std::fs::read_to_string(path).expect("it was written");
        assert_eq!(output, expected);
    }
    document
}

#[test]
fn a_shared_object_is_a_scavenger() {
    let (Some(program), Some(executable), Some(object)) = (
        fixture("ends.c", "-O2"),
        scavenger(),
        fixture("scavenger.c", "-O2 -shared -fPIC"),
    ) else {
        return;
    };
    let harvest = Harvest::of(&program, "outlast")
        .with(&object, "work")
        .with(&object, "exit")
        .options("--per-thread 2 --idle steal");
    let harvested = harvest.run();
    assert_eq!(harvest.alone(), harvested.left, "{:#?}", harvested.document);
    harvested.wrote(0, &output_of(&executable, "work"));
    harvested.ended(1, ScavengerState::Finished, Some(Ok(7)));
}

#[test]
fn scavengers_finish_after_a_program_whose_threads_go_on() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    // More of them than become ready before it ends: its first thread has some when it is ended.
    let harvest = Harvest::of(&program, "thread")
        .with(&scavenger, "calls")
        .with(&scavenger, "vectors")
        .options("--finish --copies 4 --idle steal");
    let alone = harvest.alone();
    let harvested = harvest.run();
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    for (index, mode) in ["calls", "vectors"].into_iter().enumerate() {
        let expected = output_of(&scavenger, mode);
        for copy in 0..4 {
            harvested.wrote(4 * index + copy, &expected);
        }
    }
}
