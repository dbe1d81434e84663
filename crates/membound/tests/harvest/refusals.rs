//! Programs that cannot be scavengers, and requests that are refused.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use membound_testkit::Compiler;
use membound_types::{HarvestRun, ScavengerState};

use crate::suite::{Harvest, ProgramResult, finish, fixture, fixture_of, output_of, scavenger};

#[test]
fn a_second_scavenger_at_the_same_fixed_addresses_is_refused() {
    let (Some(program), Some(scavenger)) = (
        fixture("ends.c", "-O2"),
        fixture("scavenger.c", "-O2 -no-pie"),
    ) else {
        return;
    };
    let harvest = Harvest::of(&program, "exit")
        .with(&scavenger, "work")
        .options("--copies 2");
    let alone = harvest.alone();
    let harvested = harvest.run();
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    let refused = harvested
        .document
        .scavengers
        .iter()
        .filter(|scavenger| scavenger.state == ScavengerState::Refused);
    let reasons: Vec<_> = refused
        .map(|scavenger| scavenger.reason.as_deref())
        .collect();
    let expected = "it is linked for fixed addresses that the command uses itself";
    assert_eq!(reasons, [Some(expected)], "{:#?}", harvested.document);
}

/// Runs `membound harvest run WORDS`, which must fail with one line that contains `part`.
#[track_caller]
fn complains(words: &[&str], code: i32, part: &str) {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_membound"));
    command.args(["harvest", "run"]).args(words);
    let ProgramResult { stderr, end, .. } = finish(&mut command, room.path());
    assert_eq!(end, Ok(code), "{words:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{words:?}: {stderr}");
    assert!(stderr.contains(part), "{words:?}: {stderr}");
}

#[test]
fn there_is_no_scavenger() {
    complains(&["--", "/bin/true"], 2, "there is no scavenger");
}

#[test]
fn a_scavenger_is_missing() {
    complains(
        &["--scavenger", "/no/such", "--", "/bin/true"],
        2,
        "/no/such",
    );
}

#[test]
fn a_scavenger_is_no_command() {
    complains(
        &["--scavenger", "a 'b", "--", "/bin/true"],
        2,
        "a quote is open",
    );
}

#[test]
fn a_directory_for_output_cannot_be_made() {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, "exit").with(&scavenger, "work");
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = harvest.command();
    command.args(["--output", "/proc/such", "--"]).arg(&program);
    let ProgramResult {
        stderr,
        end,
        stdout,
    } = finish(&mut command, room.path());
    assert_eq!((end, stdout.as_str()), (Ok(1), ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("/proc/such"), "{stderr}");
}

/// `membound harvest run --finish` of a program with a file of this text as its scavenger.
fn with_script(program: &Path, room: &Path, text: &str) -> (ProgramResult, Option<HarvestRun>) {
    let script = room.join("script");
    std::fs::write(&script, text).expect("the directory is ours");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("the file is ours");
    let json = room.join("harvest.json");
    // The plan lies in a directory that is removed with it.
    let harvest = Harvest::of(program, "exit");
    let mut command = harvest.command();
    command.args(["--finish", "--json"]).arg(&json);
    command.arg("--output").arg(room.join("out"));
    command.arg("--scavenger").arg(&script);
    command.arg("--").arg(program).arg("exit");
    let left = finish(&mut command, room);
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    (left, serde_json::from_str(&text).ok())
}

#[test]
fn files_that_are_no_program_are_refused() {
    let Some(program) = fixture("ends.c", "-O2") else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let (left, _) = with_script(&program, room.path(), "exit 0\n");
    assert_eq!((left.end, left.stdout.as_str()), (Ok(2), ""), "{left:?}");
    assert_eq!(left.stderr.lines().count(), 1, "{left:?}");
    assert!(left.stderr.contains("not an ELF file"), "{left:?}");
}

#[test]
fn a_script_runs_as_an_ordinary_process() {
    let Some(program) = fixture("ends.c", "-O2") else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let text = "#!/bin/sh\necho ran\nexit 7\n";
    let (left, document) = with_script(&program, room.path(), text);
    let alone = Harvest::of(&program, "exit").alone();
    assert_eq!(
        (&left.end, &left.stdout),
        (&alone.end, &alone.stdout),
        "{left:?}"
    );
    let document = document.expect("it was written");
    let [script] = &document.scavengers[..] else {
        panic!("{document:#?}");
    };
    assert_eq!(script.state, ScavengerState::Finished, "{script:#?}");
    assert_eq!((script.exit_code, script.turns), (Some(7), 0));
    let why = script.reason.as_deref().expect("it took no turns");
    assert!(why.contains("it is a script"), "{why}");
    let written = std::fs::read_to_string(script.output.as_deref().expect("it was asked for"));
    assert_eq!(written.expect("it is there"), "ran\n");
}

/// A program that cannot be a scavenger, alongside one that can: the first runs as an ordinary process, for a
/// reason that contains `part`, and the harvest continues.
#[track_caller]
fn is_ordinary_beside_a_scavenger(program: &Path, words: &str, part: &str) {
    let (Some(primary), Some(other)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let alone = Harvest::of(program, words).alone();
    let harvest = Harvest::of(&primary, "outlast")
        .with(&other, "work")
        .with_unplanned(program, words)
        .options("--finish --idle steal");
    let harvested = harvest.check();
    harvested.wrote(0, &output_of(&other, "work"));
    let ordinary = &harvested.document.scavengers[1];
    let end = (ordinary.exit_code, ordinary.signal);
    assert_eq!(ordinary.state, ScavengerState::Finished, "{ordinary:#?}");
    assert_eq!(end, (alone.end.ok(), None), "{ordinary:#?}");
    assert_eq!((ordinary.turns, ordinary.in_stalls_s), (0, None));
    assert!(ordinary.cpu_s.is_some(), "{ordinary:#?}");
    assert_eq!(harvested.outputs[1], alone.stdout);
    let why = ordinary.reason.as_deref().expect("it took no turns");
    assert!(why.contains(part), "{why}");
}

#[test]
fn a_go_program_runs_as_an_ordinary_process() {
    if let Some(program) = fixture_of(Compiler::Go, "ordinary.go", "") {
        is_ordinary_beside_a_scavenger(&program, "one two", "it is a Go program");
    }
}

#[test]
fn a_program_of_32_bits_runs_as_an_ordinary_process() {
    let words = "-m32 -O1 -ffreestanding -nostdlib -static -fno-pie -no-pie -fno-stack-protector";
    let Some(program) = fixture_of(Compiler::Gcc, "word32.c", words) else {
        return;
    };
    if std::process::Command::new(&program).output().is_ok() {
        return is_ordinary_beside_a_scavenger(&program, "", "it is not x86-64 code");
    }
    // The kernel may not run such programs: then only this scavenger fails.
    let Some(primary) = fixture("ends.c", "-O2") else {
        return;
    };
    let harvest = Harvest::of(&primary, "exit").with_unplanned(&program, "");
    let (alone, harvested) = (harvest.alone(), harvest.run());
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    harvested.ended(0, ScavengerState::Refused, None);
}

#[test]
fn an_unreadable_program_runs_as_an_ordinary_process() {
    let Some(program) = fixture("ends.c", "-O2") else {
        return;
    };
    let room = tempfile::tempdir().expect("there is room for a directory");
    let closed = room.path().join("closed");
    std::fs::copy("/bin/true", &closed).expect("the directory is ours");
    let mode = std::fs::Permissions::from_mode(0o111);
    std::fs::set_permissions(&closed, mode).expect("the file is ours");
    // Root can read it all the same; then it has time slices or is timed.
    let part = match std::fs::read(&closed) {
        Ok(_) => "",
        Err(_) => "can be executed and not be read",
    };
    let harvest = Harvest::of(&program, "exit")
        .with_unplanned(&closed, "")
        .options("--finish");
    let (alone, harvested) = (harvest.alone(), harvest.run());
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    let ended = &harvested.document.scavengers[0];
    assert_eq!(
        (ended.state, ended.exit_code),
        (ScavengerState::Finished, Some(0))
    );
    let why = ended.reason.as_deref().expect("it took no turns");
    assert!(why.contains(part), "{why}");
}

#[test]
fn a_go_program_as_the_command_runs_beside_a_scavenger_with_a_plan() {
    let (Some(program), Some(other)) = (fixture_of(Compiler::Go, "ordinary.go", ""), scavenger())
    else {
        return;
    };
    let harvest = Harvest::of(&program, "three")
        .with(&other, "work")
        .options("--finish")
        .unplanned();
    let (alone, harvested) = (harvest.alone(), harvest.run());
    assert_eq!(alone, harvested.left, "{:#?}", harvested.document);
    let ended = &harvested.document.scavengers[0];
    assert_eq!(ended.state, ScavengerState::Finished, "{ended:#?}");
    assert_eq!(harvested.outputs[0], output_of(&other, "work"));
}

#[test]
fn siblings_are_no_cpus_or_no_core() {
    for (list, part) in [
        ("0", "`0` is one CPU"),
        ("0,x", "no list of CPU numbers"),
        ("0,0", "cpu 0 is named twice"),
        ("0,1000000", "cpu 1000000 does not exist"),
    ] {
        let words = [
            "--siblings",
            list,
            "--scavenger",
            "/bin/true",
            "--",
            "/bin/true",
        ];
        complains(&words, 2, part);
    }
}

/// If a document cannot be written, the program's exit code is still returned.
#[track_caller]
fn cannot_be_written(to: &str, mode: &str, end: Result<i32, i32>, has_run: bool) {
    let (Some(program), Some(scavenger)) = (fixture("ends.c", "-O2"), scavenger()) else {
        return;
    };
    let harvest = Harvest::of(&program, mode).with(&scavenger, "forever");
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut command = harvest.command();
    command.args(["--json", to, "--"]).arg(&program).arg(mode);
    let left = finish(&mut command, room.path());
    let stdout = if has_run {
        harvest.alone().stdout
    } else {
        String::new()
    };
    assert_eq!((left.end, left.stdout), (end, stdout), "{}", left.stderr);
    assert_eq!(left.stderr.lines().count(), 1, "{}", left.stderr);
    assert!(left.stderr.contains(to), "{}", left.stderr);
}

#[test]
fn a_document_has_no_directory() {
    cannot_be_written("/no/such/file.json", "work", Ok(1), false);
}

#[test]
fn a_document_is_a_directory() {
    cannot_be_written("/", "work", Ok(1), false);
}

#[test]
fn a_document_finds_the_disk_full() {
    cannot_be_written("/dev/full", "work", Ok(1), true);
}

#[test]
fn a_document_finds_the_disk_full_after_a_program_that_failed() {
    cannot_be_written("/dev/full", "exit", Ok(42), true);
}

#[test]
fn a_document_finds_the_disk_full_after_a_program_that_was_killed() {
    cannot_be_written("/dev/full", "killed", Err(libc::SIGTERM), true);
}
