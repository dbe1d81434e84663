//! Processes that ran before recording began: what they took until then is no part of it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use membound_testkit::{in_two_of_three, skipped};

use crate::suite::{alone, fixture, machine, membound, reaches_memory, text};

#[test]
#[cfg_attr(debug_assertions, ignore = "figures are those of optimised builds")]
fn a_chase_that_follows_two_seconds_of_computing_is_a_chase() {
    let Some(program) = fixture("counts.c", "-O2") else {
        return;
    };
    let _alone = alone();
    if !reaches_memory() {
        return;
    }
    in_two_of_three(|| {
        let home = tempfile::tempdir().expect("there is room for a directory");
        let mut child = Command::new(&program)
            .arg("waits")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it writes text");
        let output = membound(home.path())
            .args([
                "profile",
                "--duration",
                "2",
                "-o",
                "attached.run",
                "--machine",
            ])
            .arg(&machine().0)
            .args(["--pid", &child.id().to_string()])
            .output()
            .expect("the command starts");
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        let stderr = text(&output.stderr);
        if !output.status.success() && stderr.contains("perf") {
            skipped(stderr.trim());
            return;
        }
        assert!(output.status.success(), "{stderr}");
        let report = membound(home.path())
            .args(["report", "attached.run", "--format", "json"])
            .output()
            .expect("the command starts");
        let profile: membound_types::Profile =
            serde_json::from_slice(&report.stdout).expect("it is the report's document");
        // All samples lie in the chase, and they make up all CPU time there was.
        let main = profile.functions.first().expect("something was sampled");
        assert_eq!(main.name, "main");
        assert!(main.share.time_fraction > 0.9, "{main:?}");
        let bound = &profile.memory_bound;
        assert!(bound.high > 0.9, "{bound:?}");
    });
}
