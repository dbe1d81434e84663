//! Runs that are not there, or in which there is nothing, and harvests of programs of which
//! no plan can be made.

use std::fs;
use std::path::PathBuf;

use membound_types::{MachineInfo, MachineProfile};

use crate::command::{Finished, Membound, busy};

/// A machine profile in which nothing was measured, so that no command measures first.
fn machine(membound: &Membound) -> PathBuf {
    let path = membound.home.path().join("machine.json");
    let profile = MachineProfile::unmeasured(MachineInfo::default());
    let text = serde_json::to_string(&profile).expect("a profile can be written");
    fs::write(&path, text).expect("the directory is ours");
    path
}

#[test]
fn without_a_file_the_usual_run_is_reported() {
    let membound = Membound::new();
    membound
        .run("report")
        .complains(1, &["there is no membound.run", "membound profile"]);
    machine(&membound);
    let recorded = membound.run("profile --quiet --machine machine.json -- /bin/true");
    assert_eq!(recorded.code, Some(0), "{recorded:?}");
    let named = membound.run("report membound.run");
    let usual = membound.run("report");
    assert_eq!(usual.stdout, named.stdout);
    assert!(usual.stdout.contains("/bin/true"), "{usual:?}");
}

#[test]
fn a_run_without_samples_says_so_and_fails() {
    let membound = Membound::new();
    machine(&membound);
    // A period of seconds, which the program does not use.
    let line = "profile --period 9000 --machine machine.json -o none.run -- /bin/true";
    let recorded = membound.run(line);
    assert_eq!(recorded.code, Some(0), "the program's own: {recorded:?}");
    assert!(
        recorded.stderr.contains("no sample was taken"),
        "{recorded:?}"
    );
    for format in ["text", "json", "csv", "folded"] {
        let shown = membound.run(&format!("report none.run --format {format}"));
        assert_eq!(shown.code, Some(1), "{format}: {shown:?}");
        assert_eq!(shown.stderr.lines().count(), 1, "{format}: {shown:?}");
        assert!(
            shown.stderr.contains("none.run: no sample was taken"),
            "{format}: {shown:?}"
        );
    }
}

#[test]
fn a_program_of_which_there_is_no_plan_runs_all_the_same() {
    let membound = Membound::new();
    machine(&membound);
    fs::write(membound.home.path().join("there"), "").unwrap();
    let _busy = busy();
    // Too short for a profile to begin: nothing is known of either program.
    let mut command = membound.command([
        "harvest",
        "run",
        "--machine",
        "machine.json",
        "--profile-s",
        "0.001",
        "--output",
        "made/for/it",
        "--finish",
        "--scavenger",
        "/bin/true",
        "--",
        "/bin/ls",
    ]);
    command.env("XDG_CACHE_HOME", membound.home.path().join("cache"));
    let finished = Finished::of(&command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("there\n"), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("/bin/ls runs without yields of its own: "),
        "{finished:?}"
    );
    assert!(
        finished.stderr.contains("1 scavenger: 1 finished"),
        "{finished:?}"
    );
    assert!(membound.home.path().join("made/for/it").is_dir());
}

#[test]
fn what_a_harvest_cannot_write_is_found_before_anything_runs() {
    let membound = Membound::new();
    machine(&membound);
    fs::write(membound.home.path().join("file"), "").unwrap();
    fs::create_dir_all(membound.home.path().join("out/1-0.err")).unwrap();
    for (directory, cause) in [
        ("file", "cannot make the directory file"),
        ("out", "1-0.err"),
    ] {
        membound
            .run(&format!(
                "harvest run --machine machine.json --output {directory} --scavenger /bin/true \
                 -- /bin/echo ran"
            ))
            .complains(1, &[cause]);
    }
}

/// `profile` of a shell's `script`, with options before it.
fn profiled(membound: &Membound, options: &str, script: &str) -> Finished {
    let _busy = busy();
    let mut command = membound.command(["profile", "--machine", "machine.json"]);
    command.args(options.split_whitespace());
    command.args(["--", "sh", "-c", script]);
    Finished::of(&command.output().expect("the command starts"))
}

/// Enough work for samples.
const WORK: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";

#[test]
fn a_command_is_run_again_with_a_file_for_each_run() {
    let membound = Membound::new();
    let home = membound.home.path();
    machine(&membound);
    let twice = profiled(
        &membound,
        "--repeat 2 -o r.run",
        &format!("echo one; {WORK}"),
    );
    assert_eq!((twice.code, twice.stdout.as_str()), (Some(0), "one\none\n"));
    assert!(home.join("r-1.run").exists() && home.join("r-2.run").exists());
    assert!(!home.join("r.run").exists() && !home.join("r-3.run").exists());
    for part in ["run 2: waits", "2 runs together wait", "r-1.run to r-2.run"] {
        assert!(twice.stderr.contains(part), "{part}: {twice:?}");
    }
    membound
        .run("compare --base r-1.run --new r-2.run --json -")
        .printed();
    // Nothing waits for memory where no level is known: three runs are enough.
    let narrow = profiled(&membound, "--until ±30pt --repeat 5 --quiet -o u.run", WORK);
    assert_eq!((narrow.code, narrow.stderr.as_str()), (Some(0), ""));
    assert!(home.join("u-3.run").exists() && !home.join("u-4.run").exists());
    let wide = profiled(
        &membound,
        "--until 0.0001pt --repeat 2 --quiet -o w.run",
        WORK,
    );
    assert_eq!(wide.code, Some(0));
    assert!(
        wide.stderr.contains("after 2 runs, not ±0.0 pt"),
        "{wide:?}"
    );
}

#[test]
fn a_command_that_fails_is_not_run_again() {
    let membound = Membound::new();
    let home = membound.home.path();
    machine(&membound);
    let failed = profiled(&membound, "--repeat 3 --quiet -o f.run", "exit 3");
    assert_eq!(failed.code, Some(3), "{failed:?}");
    assert_eq!(failed.stderr.lines().count(), 1, "{failed:?}");
    assert!(failed.stderr.contains("run 1 of the command failed"));
    assert!(home.join("f-1.run").exists() && !home.join("f-2.run").exists());
    for line in [
        "profile --repeat 0 -- /bin/true",
        "profile --until 3% -- /bin/true",
        "profile --until -3pt -- /bin/true",
        "profile --repeat 2 --pid 1",
    ] {
        assert_eq!(membound.run(line).code, Some(2), "{line}");
    }
}
