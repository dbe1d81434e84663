//! The GitHub Action under `packaging/action`: its script, run here as a runner would.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use membound_types::{MachineInfo, MachineProfile};
use tempfile::TempDir;

use crate::command::{Finished, busy};

/// A stub of membound that writes down its arguments and ends a comparison with the code in the file `code`.
const STUB: &str = r#"#!/bin/sh
echo "$*" >>"$STUB/calls"
case $1 in
  --version) echo "membound 0" ;;
  profile)
    while [ "$1" != -o ]; do shift; done
    : >"$2"
    while [ "$1" != -- ]; do shift; done
    shift
    exec "$@"
    ;;
  compare)
    case $* in
      *bad*) echo "membound: \`bad\` is nothing that is guarded" >&2; exit 2 ;;
      *base-0.run*) exit 1 ;;
    esac
    while [ "$1" != --json ]; do shift; done
    [ "$(cat "$STUB/code")" -gt 2 ] || echo "{}" >"$2"
    while [ "$1" != --markdown ]; do shift; done
    echo '### membound: stub' >"$2"
    exit "$(cat "$STUB/code")"
    ;;
esac
"#;

/// A runner's directory with the files that a step may write.
struct Runner {
    place: TempDir,
}

impl Runner {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("there is room for a directory");
        let runner = Self { place };
        let stub = runner.path("membound");
        fs::write(&stub, STUB).expect("the directory is ours");
        fs::set_permissions(&stub, fs::Permissions::from_mode(0o755))
            .expect("the directory is ours");
        // A runner creates these files before a step begins, and earlier steps have written to them.
        fs::write(runner.path("summary"), "earlier\n").expect("the directory is ours");
        runner
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs the script with these inputs; a comparison by the stub ends with `code`.
    fn run(&self, code: u8, inputs: &[(&str, &str)]) -> Finished {
        for name in ["calls", "output"] {
            let _ = fs::remove_file(self.path(name));
        }
        fs::write(self.path("code"), code.to_string()).expect("the directory is ours");
        let _busy = busy();
        let mut command = Command::new("sh");
        command
            .arg(action("gate.sh"))
            .current_dir(self.place.path())
            .env("STUB", self.place.path())
            .env("GITHUB_OUTPUT", self.path("output"))
            .env("GITHUB_STEP_SUMMARY", self.path("summary"))
            .env("RUNNER_TEMP", self.path("temp"))
            .env("XDG_DATA_HOME", self.path("data"))
            .env("GATE_MEMBOUND", self.path("membound"))
            .env("GATE_BASE", "echo old >>ran")
            .env("GATE_HEAD", "echo new >>ran")
            .env("GATE_RUNS", "3");
        for (name, value) in inputs {
            command.env(name, value);
        }
        Finished::of(&command.output().expect("there is a shell"))
    }
}

fn action(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging/action")
        .join(name)
}

#[test]
fn runs_are_made_in_turn_and_compared_once() {
    let runner = Runner::new();
    let expressions = "memory-bound +3pt\n\n  object a b +5%\n";
    let passed = runner.run(0, &[("GATE_FAIL_ON", expressions)]);
    assert_eq!(passed.code, Some(0), "{passed:?}");
    assert_eq!(runner.text("ran"), "old\nnew\nnew\nold\nold\nnew\n");
    let output = runner.text("output");
    assert_eq!(output, "directory=membound-gate\nverdict=passed\n");
    assert_eq!(runner.text("summary"), "earlier\n### membound: stub\n");
    let calls = runner.text("calls");
    let last = calls.lines().last().unwrap();
    assert_eq!(
        last,
        "compare --undecided pass --fail-on memory-bound +3pt --fail-on   object a b +5% \
         --base membound-gate/base-1.run membound-gate/base-2.run membound-gate/base-3.run \
         --new membound-gate/head-1.run membound-gate/head-2.run membound-gate/head-3.run \
         --json membound-gate/gate.json --html membound-gate/report.html \
         --markdown membound-gate/gate.md --junit membound-gate/gate.xml"
    );
    // With fewer runs afterwards, earlier runs must not be mistaken for new ones.
    assert_eq!(runner.run(0, &[("GATE_RUNS", "1")]).code, Some(0));
    let calls = runner.text("calls");
    assert!(
        !calls.lines().last().unwrap().contains("base-2.run"),
        "{calls}"
    );
}

#[test]
fn a_failed_gate_fails_the_step_and_has_a_summary() {
    let runner = Runner::new();
    let failed = runner.run(1, &[("GATE_UNDECIDED", "fail")]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stdout.contains("::error title=membound gate::"));
    assert!(runner.text("output").ends_with("verdict=failed\n"));
    assert!(runner.text("summary").contains("### membound: stub"));
    assert!(runner.text("calls").contains("compare --undecided fail"));
}

#[test]
fn without_a_verdict_the_step_gives_the_reason() {
    for (inputs, code, reason) in [
        (&[("GATE_BASE", "")][..], 0, "the input base is empty"),
        (&[("GATE_RUNS", "0")], 0, "the input runs is `0`"),
        (&[("GATE_RUNS", "3;x")], 0, "the input runs is `3;x`"),
        (
            &[("GATE_MEMBOUND", "./nowhere")],
            0,
            "./nowhere does not run",
        ),
        (
            &[("GATE_FAIL_ON", "bad +3pt")],
            0,
            "`bad` is nothing that is guarded",
        ),
        (
            &[("GATE_HEAD", "exit 7")],
            0,
            "run 1 of head ended with exit code 7",
        ),
        (&[], 3, "the runs cannot be compared (exit code 3)"),
    ] {
        let runner = Runner::new();
        let ended = runner.run(code, inputs);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(
            ended.stdout.contains("::error title=membound gate::"),
            "{ended:?}"
        );
        assert!(ended.stdout.contains(reason), "{reason}: {ended:?}");
        assert!(runner.text("output").ends_with("verdict=error\n"));
    }
    // A bad expression is found before anything runs.
    let runner = Runner::new();
    runner.run(0, &[("GATE_FAIL_ON", "bad +3pt")]);
    assert_eq!(runner.text("ran"), "");
}

#[test]
fn the_real_command_goes_through_it() {
    let runner = Runner::new();
    let profile = MachineProfile::unmeasured(MachineInfo::default());
    fs::write(
        runner.path("machine.json"),
        serde_json::to_string(&profile).unwrap(),
    )
    .unwrap();
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let passed = runner.run(
        0,
        &[
            ("GATE_MEMBOUND", env!("CARGO_BIN_EXE_membound")),
            ("GATE_MACHINE", "machine.json"),
            ("GATE_BASE", work),
            ("GATE_HEAD", work),
            ("GATE_FAIL_ON", "memory-bound +50pt"),
        ],
    );
    assert_eq!(passed.code, Some(0), "{passed:?}");
    let summary = runner.text("summary");
    assert!(summary.contains("### membound: passed\n"), "{summary}");
    for name in [
        "gate.json",
        "gate.xml",
        "gate.md",
        "report.html",
        "base-3.run",
    ] {
        assert!(runner.path("membound-gate").join(name).exists(), "{name}");
    }
}

#[test]
fn the_action_sets_what_the_script_reads() {
    let (action, script) = (
        fs::read_to_string(action("action.yml")).unwrap(),
        fs::read_to_string(action("gate.sh")).unwrap(),
    );
    let mut names: Vec<&str> = script
        .split(|letter: char| !letter.is_ascii_uppercase() && letter != '_')
        .filter(|word| word.starts_with("GATE_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 9, "{names:?}");
    for name in names {
        assert!(action.contains(&format!("{name}: ${{{{ inputs.")), "{name}");
    }
    // The wheel of the same version.
    let wheel = format!("membound=={}", env!("CARGO_PKG_VERSION"));
    assert!(action.contains(&wheel), "{wheel}");
}
