//! Missing or empty runs, and harvests of programs that cannot be planned.

use std::fs;
use std::num::NonZero;
use std::path::PathBuf;

use membound_testkit::skipped;
use membound_types::{MachineInfo, MachineProfile};

use crate::command::{Finished, Membound, busy};

/// A machine profile without measurements, so that no command measures first.
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
fn a_run_without_samples_is_reported_and_fails() {
    let membound = Membound::new();
    machine(&membound);
    // A sampling period of seconds, more CPU time than the program uses.
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

/// `harvest run` with `options`, and these words after them.
fn harvested(membound: &Membound, options: &[&str], words: &[&str]) -> Finished {
    let _busy = busy();
    let mut command = membound.command(["harvest", "run", "--machine", "machine.json"]);
    command.args(options).args(words);
    command.env("XDG_CACHE_HOME", membound.home.path().join("cache"));
    Finished::of(&command.output().expect("the command starts"))
}

/// Number of lines of a file in the test's directory.
fn lines(membound: &Membound, name: &str) -> usize {
    let text = fs::read_to_string(membound.home.path().join(name)).unwrap_or_default();
    text.lines().count()
}

#[test]
fn programs_without_a_plan_are_executed_once_each() {
    let membound = Membound::new();
    machine(&membound);
    let options = [
        "--output",
        "made/for/it",
        "--finish",
        "--scavenger",
        "/bin/sh -c 'echo scavenger >> scavengers'",
        "--copies",
        "2",
    ];
    let script = "echo command >> commands; echo there; exit 3";
    let finished = harvested(&membound, &options, &["--", "/bin/sh", "-c", script]);
    assert_eq!(finished.code, Some(3), "{finished:?}");
    assert_eq!(finished.stdout, "there\n", "{finished:?}");
    assert_eq!(lines(&membound, "commands"), 1, "{finished:?}");
    assert_eq!(lines(&membound, "scavengers"), 2, "{finished:?}");
    for expected in ["2 scavengers: 2 finished", "the command was "] {
        assert!(finished.stderr.contains(expected), "{finished:?}");
    }
    assert!(membound.home.path().join("made/for/it").is_dir());
}

#[test]
fn copies_that_wait_for_a_plan_run_once_each_whatever_comes_of_it() {
    let membound = Membound::new();
    machine(&membound);
    // The second time it is known that there can be no plan.
    for round in 1..=2 {
        let options = [
            "--no-primary",
            "--scavenger",
            "/bin/sh -c 'echo scavenger >> scavengers; exit 5'",
            "--copies",
            "4",
            "--json",
            "harvest.json",
        ];
        let finished = harvested(&membound, &options, &[]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!(lines(&membound, "scavengers"), 4 * round, "{finished:?}");
        let text = fs::read_to_string(membound.home.path().join("harvest.json")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let scavengers = document["scavengers"].as_array().unwrap();
        assert_eq!(scavengers.len(), 4);
        for scavenger in scavengers {
            assert_eq!(scavenger["exit_code"], 5, "{scavenger}");
            let reason = scavenger["reason"].as_str().unwrap();
            assert!(
                reason.starts_with("ran as an ordinary process: "),
                "{reason}"
            );
        }
    }
}

#[test]
fn of_many_copies_one_is_timed_and_one_profiled_and_each_runs_once() {
    let membound = Membound::new();
    machine(&membound);
    let scavenger =
        "/bin/sh -c 'i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo $i >> log'";
    let options = [
        "--no-primary",
        "--scavenger",
        scavenger,
        "--copies",
        "16",
        "--json",
        "harvest.json",
    ];
    let finished = harvested(&membound, &options, &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert_eq!(lines(&membound, "log"), 16, "{finished:?}");
    let text = fs::read_to_string(membound.home.path().join("harvest.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let scavengers = document["scavengers"].as_array().unwrap();
    let with = |part: &str| {
        let reasons = scavengers.iter().filter_map(|it| it["reason"].as_str());
        reasons.filter(|reason| reason.contains(part)).count()
    };
    assert_eq!(with("it was only timed"), 1, "{text}");
    assert_eq!(with("it was profiled in this run"), 1, "{text}");
    for scavenger in scavengers {
        assert_eq!(scavenger["state"], "finished", "{scavenger}");
    }
}

/// Waits until two of its copies run, in a loop that starts nothing, or fails after some seconds.
const MEETS: &str = "/bin/sh -c ': > here.$$; i=0; set --; while [ $# -lt 2 ] && [ $i -lt 300000 ]; \
                     do i=$((i+1)); set -- here.*; done; : > met; [ $# -ge 2 ]'";

#[test]
fn copies_known_to_be_too_short_for_a_plan_run_at_the_same_time() {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if processors < 2 {
        return skipped("one processor runs copies one after another");
    }
    let membound = Membound::new();
    machine(&membound);
    let harvested = |scavengers: &[String]| {
        let mut options = vec!["--no-primary", "--json", "harvest.json"];
        for scavenger in scavengers {
            options.extend(["--scavenger", scavenger]);
        }
        let finished = harvested(&membound, &options, &[]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let text = fs::read_to_string(membound.home.path().join("harvest.json")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        document["scavengers"].as_array().unwrap().clone()
    };
    // Meets a file, so that its short time is known.
    fs::write(membound.home.path().join("here.0"), "").unwrap();
    harvested(&[MEETS.to_owned()]);
    for entry in fs::read_dir(membound.home.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("here.") || name == "met" {
            fs::remove_file(path).unwrap();
        }
    }
    // With the first copy, these use all processors until the two have met.
    let busy = (1..processors)
        .map(|number| format!("/bin/sh -c 'until [ -e met ]; do :; done; exit 0' {number}"));
    let mut scavengers = vec![MEETS.to_owned()];
    scavengers.extend(busy);
    scavengers.push(MEETS.to_owned());
    for scavenger in harvested(&scavengers) {
        assert_eq!(scavenger["exit_code"], 0, "{scavenger}");
    }
}

#[test]
fn a_machine_that_was_never_measured_is_not_measured_for_a_harvest() {
    let membound = Membound::new();
    let mut command = membound.command(["harvest", "run", "--no-primary"]);
    command.args(["--scavenger", "/bin/echo once", "--output", "out"]);
    let finished = Finished::of(&command.output().unwrap());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let output = fs::read_to_string(membound.home.path().join("out/1-0.out")).unwrap();
    assert_eq!(output, "once\n");
    assert!(
        !finished.stderr.contains("measuring this machine"),
        "{finished:?}"
    );
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

/// Runs `profile` with options on a shell that executes `script`.
fn profiled(membound: &Membound, options: &str, script: &str) -> Finished {
    let _busy = busy();
    let mut command = membound.command(["profile", "--machine", "machine.json"]);
    command.args(options.split_whitespace());
    command.args(["--", "sh", "-c", script]);
    Finished::of(&command.output().expect("the command starts"))
}

/// A script with enough work for samples.
const WORK: &str = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";

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
    // Without known levels nothing waits for memory, so three runs are enough.
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
