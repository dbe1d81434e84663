//! A program changes its process while scavengers run in it.

use std::path::PathBuf;

use membound_types::{HarvestRole, ScavengerState};

use crate::plan;
use crate::suite::{Harvest, Harvested, fixture, scavenger};

/// With scavengers that compute endlessly, and scavengers that make system calls.
#[track_caller]
fn check(mode: &str) -> Option<Harvested> {
    let (program, scavenger) = (fixture("changes.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, mode)
        .with(&scavenger, "forever")
        .with(&scavenger, "calls")
        .options("--per-thread 2 --idle steal");
    let harvested = harvest.check();
    harvested.ended(0, ScavengerState::Unfinished, None);
    Some(harvested)
}

#[test]
fn it_closes_all_descriptors() {
    check("descriptors");
}

#[test]
fn it_lowers_its_limits() {
    check("limits");
}

#[test]
fn it_changes_its_root() {
    check("root");
}

#[test]
fn it_becomes_another_user() {
    check("user");
}

#[test]
fn its_first_thread_ends_before_others() {
    check("first");
}

#[test]
fn it_unloads_a_library_that_yields() {
    let (Some(program), Some(library), Some(scavenger)) = (
        fixture("changes.c", "-O2"),
        fixture("library.c", "-O2 -shared -fPIC"),
        scavenger(),
    ) else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let path: PathBuf = room.path().join("library.json");
    let text = serde_json::to_string(&plan::of(&library, HarvestRole::Primary));
    std::fs::write(&path, text.expect("a plan is text")).expect("the directory is ours");
    let harvest = Harvest::of(&program, &format!("library {}", library.display()))
        .with(&scavenger, "forever")
        .options(&format!("--idle steal --plan {}", path.display()));
    let harvested = harvest.check();
    harvested.ended(0, ScavengerState::Unfinished, None);
}
