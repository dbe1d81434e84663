//! Commands without a plan, which is made and adopted while they run.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use membound_testkit::inconclusive;
use membound_types::{HarvestRole, ScavengerState};

use crate::machine_profile::measured;
use crate::suite::{Harvest, Harvested, finish, fixture, output_of, scavenger};

/// A command whose loads miss, without a plan, and a scavenger with one.
fn unplanned(words: &str, scavenger_words: &str) -> Option<Harvest> {
    let (program, scavenger) = (fixture("late.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, words)
        .with(&scavenger, scavenger_words)
        .unplanned();
    Some(harvest.on(&measured().0))
}

/// The time at which the command's plan was adopted, if it was made in this run.
fn planted_after_s(harvested: &Harvested) -> Option<f64> {
    let plans = &harvested.document.options.plans;
    let plan = plans.iter().find(|it| it.role == HarvestRole::Primary)?;
    plan.planted_after_s
}

/// CPU time in seconds in which a command whose every load misses must get its plan.
const PLANNED_WITHIN_CPU_S: f64 = 5.0;

/// Excuses a command that got no plan, if it had too little CPU time to get one.
#[track_caller]
fn no_plan(harvested: &Harvested) {
    let document = &harvested.document;
    let cpu_s = document.primary.cpu_s;
    assert!(
        cpu_s < PLANNED_WITHIN_CPU_S,
        "no plan in {cpu_s} s of CPU time: {document:#?}"
    );
    inconclusive(format!("no plan was made: {:?}", document.notes));
}

/// Checks that a command ends as it does alone, and had time slices by a plan of this run.
#[track_caller]
fn check(words: &str) {
    let Some(harvest) = unplanned(words, "forever") else {
        return;
    };
    let (alone, harvested) = (harvest.alone(), harvest.run());
    let document = &harvested.document;
    assert_eq!(alone, harvested.left, "{document:#?}");
    let Some(planted_s) = planted_after_s(&harvested) else {
        return no_plan(&harvested);
    };
    if document.primary.yields == 0 {
        return inconclusive(format!("nobody yielded: {document:#?}"));
    }
    let first_s = document.primary.first_turn_s.expect("there were turns");
    assert!(
        first_s <= document.wall_s && planted_s <= document.wall_s,
        "{document:#?}"
    );
    // The scavenger was inside the process from the beginning, and has time slices now.
    assert_eq!(document.scavengers.len(), 1, "{document:#?}");
    assert_eq!(document.scavengers[0].state, ScavengerState::Unfinished);
    assert!(document.scavengers[0].reason.is_none(), "{document:#?}");
}

#[test]
fn it_yields_in_the_run_in_which_its_plan_is_made() {
    check("plain 60");
}

#[test]
fn its_threads_run_while_yields_come_into_their_text() {
    check("threads 80");
}

#[test]
fn signals_come_while_yields_come_into_its_text() {
    check("storm 60");
}

#[test]
fn it_kills_itself_after_its_plan_was_made() {
    check("killed 60");
}

#[test]
fn the_plan_that_was_made_is_kept_and_followed_from_the_start() {
    let Some(harvest) = unplanned("plain 60", "forever") else {
        return;
    };
    let first = harvest.run();
    if planted_after_s(&first).is_none() {
        return no_plan(&first);
    }
    let second = harvest.check_noted();
    let document = &second.document;
    let plans = &document.options.plans;
    assert!(
        plans.iter().any(|it| it.role == HarvestRole::Primary),
        "{document:#?}"
    );
    assert_eq!(planted_after_s(&second), None, "{document:#?}");
}

#[test]
fn a_short_one_just_runs() {
    let Some(harvest) = unplanned("plain 0 1", "work") else {
        return;
    };
    let (alone, harvested) = (harvest.alone(), harvest.run());
    let document = &harvested.document;
    assert_eq!(alone, harvested.left, "{document:#?}");
    assert_eq!(document.primary.yields, 0, "{document:#?}");
    let notes = document.notes.join("\n");
    assert!(notes.contains("ended before a plan"), "{notes}");
}

#[test]
fn scavengers_finish_after_a_short_one() {
    let Some(harvest) = unplanned("plain 0 1", "work") else {
        return;
    };
    let harvest = harvest.options("--finish");
    let (alone, harvested) = (harvest.alone(), harvest.run());
    let document = &harvested.document;
    assert_eq!(alone, harvested.left, "{document:#?}");
    let Some(scavenger) = scavenger() else { return };
    assert_eq!(document.scavengers[0].state, ScavengerState::Finished);
    assert_eq!(harvested.outputs[0], output_of(&scavenger, "work"));
}

/// On a busy machine a program of some milliseconds ends while its scavenger's thread starts. That thread was
/// taken for one of the program's and ended, and the command waited for the scavenger for ever.
#[test]
fn a_scavenger_that_starts_while_the_program_ends_finishes() {
    let Some(harvest) = unplanned("plain 0 1", "work") else {
        return;
    };
    let harvest = harvest.options("--finish");
    let busy = AtomicBool::new(true);
    let until = Instant::now() + Duration::from_secs(30);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) && Instant::now() < until {
                    std::hint::spin_loop();
                }
            });
        }
        let states: Vec<ScavengerState> = (0..8)
            .map(|_| harvest.run().document.scavengers[0].state)
            .collect();
        busy.store(false, Ordering::Relaxed);
        assert_eq!(states, [ScavengerState::Finished; 8]);
    });
}

/// The process that runs this file, with a word that no other test passes.
fn process_of(program: &Path) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    numbers.find(|pid| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
        let words = std::fs::read(format!("/proc/{pid}/cmdline"));
        exe.is_ok_and(|exe| exe == *program) && words.is_ok_and(|it| it.ends_with(b"\x004000\0"))
    })
}

#[test]
fn a_kill_during_planning_is_reported() {
    let Some(harvest) = unplanned("plain 4000", "forever") else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = harvest.command();
    command.arg("--").args(harvest.primary_words());
    let program = std::fs::canonicalize(&harvest.primary_words()[0]).expect("it was built");
    let killing = std::thread::spawn(move || {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
            let Some(pid) = process_of(&program) else {
                continue;
            };
            std::thread::sleep(Duration::from_millis(300));
            // SAFETY: it sends a signal.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            return;
        }
    });
    let left = finish(&mut command, room.path());
    killing.join().expect("it only waits");
    assert_eq!(left.end, Err(libc::SIGKILL), "{left:#?}");
}

/// A command that is recorded alongside its scavengers, and ends as it does alone, with any plan.
#[track_caller]
fn is_the_same(source: &str, words: &str) {
    let (Some(program), Some(scavenger)) = (fixture(source, "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, words)
        .with(&scavenger, "forever")
        .with(&scavenger, "calls")
        .unplanned();
    let (alone, harvested) = (harvest.alone(), harvest.run());
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
}

#[test]
fn it_forks_while_it_is_recorded() {
    is_the_same("processes.c", "fork");
}

#[test]
fn its_children_of_vfork_execute_while_it_is_recorded() {
    is_the_same("processes.c", "vfork-exec");
}

#[test]
fn it_executes_another_image_while_it_is_recorded() {
    is_the_same("processes.c", "exec");
}

#[test]
fn it_aborts_while_it_is_recorded() {
    is_the_same("ends.c", "abort");
}

#[test]
fn it_loads_and_unloads_while_it_is_recorded() {
    is_the_same("ends.c", "load");
}

#[test]
fn its_threads_come_and_go_while_it_is_recorded() {
    is_the_same("threads.c", "churn");
}

#[test]
fn a_program_without_missing_loads_is_reported() {
    let (Some(program), Some(scavenger)) = (fixture("late.c", "-O2"), scavenger()) else {
        return;
    };
    // All of its data lies in the inner caches.
    let harvest = Harvest::of(&program, "plain 400 1")
        .with(&scavenger, "forever")
        .options("--profile-s 1")
        .unplanned()
        .on(&measured().0);
    let (alone, harvested) = (harvest.alone(), harvest.run());
    let document = &harvested.document;
    assert_eq!(alone, harvested.left, "{document:#?}");
    let notes = document.notes.join("\n");
    let reasons = ["no load of the command yields", "has no plan", "too short"];
    assert!(
        document.primary.yields > 0 || reasons.iter().any(|it| notes.contains(it)),
        "{document:#?}"
    );
}
