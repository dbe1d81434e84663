//! `membound harvest explore`: all requested rows are there, figures agree with their runs, and neither the
//! user's program nor Ctrl-C is disturbed. No test asserts a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use membound_testkit::inconclusive;
use membound_types::{
    ExploreFigure, ExploreRow, ExploreRun, ExploreSweep, ExploredSweep, HarvestExplore,
};

use crate::machine_profile::measured;
use crate::suite::{Harvest, ProgramResult, finish, fixture, machine, scavenger};

/// Runs an exploration of `program` alongside a scavenger that ends.
fn explored(options: &str) -> Option<(ProgramResult, HarvestExplore)> {
    let (program, scavenger) = (fixture("state.c", "-O2")?, scavenger()?);
    let harvest = Harvest::of(&program, "flags")
        .with(&scavenger, "work")
        .options(options);
    let (left, document) = harvest.explore();
    assert_eq!(left.stdout, harvest.alone().stdout, "{left:#?}");
    assert_eq!(left.end, Ok(0), "{left:#?}");
    Some((left, document.expect("it was written")))
}

fn table(document: &HarvestExplore, sweep: ExploreSweep) -> &ExploredSweep {
    let found = document.sweeps.iter().find(|it| it.sweep == sweep);
    found.unwrap_or_else(|| panic!("no {sweep} in {document:#?}"))
}

fn names(table: &ExploredSweep) -> Vec<&str> {
    table.rows.iter().map(|row| row.setting.as_str()).collect()
}

/// Checks that a figure is the mean of two runs, between them.
#[track_caller]
fn agrees(figure: Option<ExploreFigure>, runs: &[ExploreRun], of: fn(&ExploreRun) -> Option<f64>) {
    let values: Option<Vec<f64>> = runs.iter().map(of).collect();
    let Some(values) = values.filter(|values| !values.is_empty()) else {
        assert_eq!(figure, None);
        return;
    };
    let figure = figure.expect("all runs say it");
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for (found, expected) in [
        (figure.value, mean),
        (figure.low, least),
        (figure.high, most),
    ] {
        let near = (found - expected).abs() <= 1e-9 * expected.abs().max(1.0);
        assert!(near, "{found} is not {expected}: {runs:#?}");
    }
}

/// Checks that a row has `pairs` runs and that its figures agree with them.
#[track_caller]
fn is_sound(row: &ExploreRow, pairs: usize) {
    assert_eq!(row.failed, None, "{row:#?}");
    assert_eq!(row.runs.len(), pairs, "{row:#?}");
    agrees(row.primary_s, &row.runs, |run| run.primary_s);
    agrees(row.all_s, &row.runs, |run| run.all_s);
    agrees(row.slowdown, &row.runs, |run| {
        Some(run.primary_s? / run.alone_s? - 1.0)
    });
    agrees(row.speedup, &row.runs, |run| {
        Some((run.alone_s? + run.scavengers_alone_s?) / run.all_s?)
    });
    for run in &row.runs {
        if let (Some(primary), Some(all)) = (run.primary_s, run.all_s) {
            assert!(primary <= all, "{run:#?}");
        }
    }
}

#[test]
fn every_row_that_was_asked_for_is_there_and_agrees_with_its_runs() {
    let options = "--sweep bound,distance,kernel,chases --bounds 200,none --pairs 2";
    let Some((_, document)) = explored(options) else {
        return;
    };
    assert!(!document.incomplete);
    assert_eq!(document.options.pairs, 2);
    assert_eq!(
        names(table(&document, ExploreSweep::Bound)),
        ["200 ns", "none"]
    );
    assert_eq!(
        names(table(&document, ExploreSweep::Chases)),
        ["1", "2", "4", "6", "8"]
    );
    let kernel = table(&document, ExploreSweep::Kernel);
    let expected = [
        "alone",
        "one after another",
        "nice 19",
        "SCHED_IDLE",
        "SMT",
        "harvest",
    ];
    assert_eq!(names(kernel), expected);
    let distance = table(&document, ExploreSweep::Distance);
    let why = distance.missing.as_ref().expect("plans were given");
    assert!(why.reason.contains("--plan"), "{why:?}");
    for row in document.sweeps.iter().flat_map(|sweep| &sweep.rows) {
        // Whether there are SMT siblings, and permission for scheduling classes, depends on the machine.
        if !["SMT", "SCHED_IDLE"].contains(&row.setting.as_str()) {
            is_sound(row, 2);
        }
    }
    let harvest = kernel.rows.last().expect("it has rows");
    let slices = harvest.runs.iter().map(|run| run.turns);
    assert!(slices.flatten().all(|slices| slices > 0), "{harvest:#?}");
}

#[test]
fn a_program_is_its_own_scavenger_and_is_run_without_each_part() {
    let Some(program) = scavenger() else { return };
    // The plan of its role as a scavenger comes with the scavenger's own; none is named.
    let room = tempfile::tempdir().expect("there is room for a directory");
    let plans = Harvest::of(&program, "work").with(&program, "work");
    let command = plans.command_of("explore");
    let mut explore = Command::new(command.get_program());
    let mut words = command.get_args();
    while let Some(word) = words.next() {
        if word == "--scavenger" {
            words.next();
        } else {
            explore.arg(word);
        }
    }
    let json = room.path().join("explore.json");
    explore.args(["--sweep", "parts", "--pairs", "1", "--json"]);
    explore.arg(&json).arg("--").arg(&program).arg("work");
    let left = finish(&mut explore, room.path());
    assert_eq!(left.end, Ok(0), "{left:#?}");
    let text = std::fs::read_to_string(&json).expect("it was written");
    let document: HarvestExplore = serde_json::from_str(&text).expect("it is a document");
    assert!(document.options.own_scavenger);
    let parts = table(&document, ExploreSweep::Parts);
    assert_eq!(parts.rows.len(), 1 + membound_types::HarvestPart::ALL.len());
    for row in &parts.rows {
        is_sound(row, 1);
        let slices = row.runs[0].turns.expect("it was a harvest");
        let switches = row.setting != "switch";
        assert_eq!(slices > 0, switches, "{row:#?}");
    }
}

#[test]
fn each_load_replaces_the_placeholder_and_has_every_scheduler() {
    let (Some(program), Some(scavenger)) = (fixture("state.c", "-O2"), scavenger()) else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let json = room.path().join("explore.json");
    let plans = Harvest::of(&program, "flags")
        .with(&scavenger, "work")
        .options("--sweep load --loads 3 --pairs 1 --profile-s 1");
    let mut command = plans.command_of("explore");
    // The program takes no load, so it stands where the program ignores it.
    command.arg("--json").arg(&json).arg("--").arg(&program);
    let left = finish(command.args(["flags", "{load}"]), room.path());
    assert_eq!(left.end, Ok(0), "{left:#?}");
    let text = std::fs::read_to_string(&json).expect("it was written");
    let document: HarvestExplore = serde_json::from_str(&text).expect("it is a document");
    assert_eq!(document.options.loads, ["3"]);
    assert_eq!(document.options.command[2], "{load}");
    assert_eq!(document.alone.primary_s, None);
    let loads = table(&document, ExploreSweep::Load);
    let schedulers = ["alone", "nice 19", "SCHED_IDLE", "harvest"];
    assert_eq!(names(loads), schedulers.map(|it| format!("3, {it}")));
    for row in &loads.rows {
        assert_eq!(row.at, Some(3.0), "{row:#?}");
        // Permission for scheduling classes depends on the machine.
        if row.series.as_deref() != Some("SCHED_IDLE") {
            is_sound(row, 1);
        }
    }
}

#[test]
fn the_first_run_has_the_load_in_its_arguments() {
    let Some(scavenger) = scavenger() else { return };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command
        .args(["harvest", "explore", "--machine"])
        .arg(machine());
    command.args(["--loads", "0.5,40", "--scavenger"]);
    command.arg(format!("{} work", scavenger.display()));
    command.args([
        "--",
        "sh",
        "-c",
        "echo at {load}; test {load} != 40 || exit 3",
    ]);
    let left = finish(&mut command, room.path());
    assert_eq!(left.end, Ok(3), "{left:#?}");
    assert_eq!(left.stdout, "at 0.5\n");
    let why = "fails by itself at load 40 (exit code 3): nothing was explored";
    assert!(left.stderr.contains(why), "{left:#?}");
}

#[test]
fn a_plan_that_was_given_leaves_no_overhead_to_vary() {
    let Some((_, document)) = explored("--sweep overhead --pairs 1") else {
        return;
    };
    let overhead = table(&document, ExploreSweep::Overhead);
    assert!(overhead.rows.is_empty(), "{overhead:#?}");
    let why = overhead.missing.as_ref().expect("the plan was given");
    assert!(why.reason.contains("--plan"), "{why:?}");
}

#[test]
fn the_overhead_of_yields_is_varied_and_decides_how_many_loads_yield() {
    let Some(program) = fixture("late.c", "-O2") else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let json = room.path().join("explore.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command.args(["harvest", "explore", "--quiet", "--machine"]);
    command.arg(&measured().0).arg("--json").arg(&json);
    let words = "--sweep overhead --overheads 0.2%,5,20% --pairs 1 --profile-s 2";
    command.args(words.split(' '));
    command.arg("--").arg(&program).args(["succeed", "5", "64"]);
    let left = finish(&mut command, room.path());
    assert_eq!(left.end, Ok(0), "{left:#?}");
    let text = std::fs::read_to_string(&json).expect("it was written");
    let document: HarvestExplore = serde_json::from_str(&text).expect("it is a document");
    let overhead = table(&document, ExploreSweep::Overhead);
    assert_eq!(names(overhead), ["0.2 %", "5 %", "20 %"]);
    let at: Vec<Option<f64>> = overhead.rows.iter().map(|row| row.at).collect();
    assert_eq!(at, [Some(0.002), Some(0.05), Some(0.2)]);
    if let Some(why) = overhead.rows.iter().find_map(|row| row.failed.as_ref()) {
        // A profile in which nothing was sampled has no plan.
        return inconclusive(format!("a setting failed: {why}"));
    }
    let mut before = 0.0;
    for row in &overhead.rows {
        is_sound(row, 1);
        let loads = row.loads.expect("the plan was made here").value;
        assert!(loads >= before, "more overhead, fewer loads: {overhead:#?}");
        before = loads;
    }
}

#[test]
fn a_setting_that_fails_is_a_row_with_the_reason() {
    let (Some(program), Some(fixed)) = (
        fixture("state.c", "-O2 -no-pie"),
        fixture("scavenger.c", "-O2 -no-pie"),
    ) else {
        return;
    };
    let (left, document) = Harvest::of(&program, "vectors")
        .with(&fixed, "work")
        .options("--sweep kernel --pairs 1")
        .explore();
    assert_eq!(left.end, Ok(0), "{left:#?}");
    let document = document.expect("it was written");
    let rows = &table(&document, ExploreSweep::Kernel).rows;
    let harvest = rows.last().expect("it has rows");
    let why = harvest.failed.as_deref().unwrap_or_default();
    assert!(
        why.contains("refused: it is linked for fixed addresses"),
        "{harvest:#?}"
    );
    is_sound(&rows[2], 1);
}

#[test]
fn a_program_that_fails_by_itself_passes_its_code_on() {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command
        .args(["harvest", "explore", "--machine"])
        .arg(machine());
    command.args(["--", "sh", "-c", "echo told; exit 3"]);
    let left = finish(&mut command, room.path());
    assert_eq!(left.end, Ok(3), "{left:#?}");
    assert_eq!(left.stdout, "told\n");
    assert!(left.stderr.contains("nothing was explored"), "{left:#?}");
}

/// Runs `membound harvest explore WORDS`, which must fail with one line that contains `part` and run nothing.
#[track_caller]
fn complains(words: &[&str], code: i32, part: &str) {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command
        .args(["harvest", "explore", "--machine"])
        .arg(machine());
    command.args(words).args(["--", "sh", "-c", "echo ran"]);
    let ProgramResult {
        stderr,
        stdout,
        end,
    } = finish(&mut command, room.path());
    assert_eq!(end, Ok(code), "{words:?}: {stderr}");
    assert_eq!(stdout, "", "{words:?}: it was run");
    assert!(stderr.contains(part), "{words:?}: {stderr}");
}

#[test]
fn invalid_options_are_refused_before_any_run() {
    for (words, code, part) in [
        (["--sweep", "slo"], 2, "--requests"),
        (["--sweep", "all"], 2, "is not one of"),
        (["--bounds", "-1,none"], 2, "nor `none`"),
        (["--overheads", "5%,200%"], 2, "no share of 0% to 100%"),
        (["--pairs", "0"], 2, "1..=1000"),
        (["--cpu", "4095"], 2, "may not be used"),
        (["--scavenger", "/no/such"], 2, "/no/such"),
        (["--scavenger", "a 'b"], 2, "a quote is open"),
        (["--html", "-"], 2, "--html needs a file"),
        (["--json", "/no/such/f.json"], 1, "there is no directory"),
        (["--plan", "/no/such.json"], 1, "cannot read"),
        (["--requests", "a b"], 2, "neither"),
        (["--sweep", "load"], 2, "needs --loads"),
        (["--loads", "1000,0"], 2, "a load is a number above 0"),
        (
            ["--loads", "1000"],
            2,
            "no argument of the command has {load}",
        ),
    ] {
        complains(&words, code, part);
    }
    for (sweep, loads, part) in [
        ("kernel", "1000", "--loads needs --sweep load"),
        ("load,kernel", "1000", "no other sweep goes with it"),
    ] {
        complains(&["--sweep", sweep, "--loads", loads], 2, part);
    }
}

#[test]
fn loads_that_contradict_the_command_are_refused_before_any_run() {
    let room = tempfile::tempdir().expect("there is room for a directory");
    for (words, part) in [
        (vec!["--loads", "1000"], "needs --scavenger"),
        (
            vec!["--loads", "10,1e1", "--scavenger", "true"],
            "--loads has 1e1 twice",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
        command
            .args(["harvest", "explore", "--machine"])
            .arg(machine());
        command.args(&words).args(["--", "echo", "{load}"]);
        let left = finish(&mut command, room.path());
        assert_eq!(left.end, Ok(2), "{left:#?}");
        assert_eq!(left.stdout, "", "{words:?}: it was run");
        assert!(left.stderr.contains(part), "{words:?}: {left:#?}");
        assert_eq!(left.stderr.trim_end().lines().count(), 1, "{left:#?}");
    }
}

#[test]
fn a_missing_command_has_the_exit_code_of_a_shell() {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command
        .args(["harvest", "explore", "--machine"])
        .arg(machine());
    command.args(["--", "/no/such/program"]);
    assert_eq!(finish(&mut command, room.path()).end, Ok(127));
}

/// Number of processes that execute the file at `path`.
fn processes(path: &Path) -> usize {
    let entries = std::fs::read_dir("/proc").expect("there are processes");
    let executes = |process: &PathBuf| std::fs::read_link(process.join("exe")).ok();
    let found = entries.flatten().map(|entry| entry.path());
    found
        .filter(|process| executes(process).is_some_and(|file| file == path))
        .count()
}

#[test]
fn ctrl_c_ends_all_processes_and_shows_the_runs_so_far() {
    let (Some(program), Some(scavenger)) = (fixture("state.c", "-O2"), scavenger()) else {
        return;
    };
    // A copy of the fixture, by which its processes are identified.
    let room = tempfile::tempdir().expect("there is room for a directory");
    let own = std::fs::canonicalize(room.path())
        .expect("it is there")
        .join("state");
    std::fs::copy(&program, &own).expect("the directory is ours");
    let harvest = Harvest::of(&own, "flags").with(&scavenger, "work");
    let json = room.path().join("explore.json");
    let mut command = harvest.command_of("explore");
    command.args(["--sweep", "kernel", "--pairs", "1000", "--json"]);
    command.arg(&json).arg("--").arg(&own).arg("flags");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let started = Instant::now();
    while processes(&own) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "nothing runs");
        std::thread::sleep(Duration::from_millis(2));
    }
    // Somewhere in a round, or before the first.
    std::thread::sleep(Duration::from_secs(2));
    let pid = i32::try_from(child.id()).expect("process numbers fit");
    // SAFETY: the child has not been waited for.
    unsafe { libc::kill(pid, libc::SIGINT) };
    let status = child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(130));
    assert_eq!(processes(&own), 0);
    if let Ok(text) = std::fs::read_to_string(&json) {
        let document: HarvestExplore = serde_json::from_str(&text).expect("it is a document");
        assert!(document.incomplete);
    }
}
