//! Ctrl-C and SIGKILL in the middle of a measurement.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{Membound, busy};

/// Starts a measurement of several parts, of which the first takes some seconds and the others take longer.
fn start(membound: &Membound) -> Child {
    membound
        .command("measure c2c latency bandwidth tlb --page 4k --max 64M --json out.json".split(' '))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the command starts")
}

/// Waits until there is a file under the data directory whose name ends in `ending`; returns its contents.
fn wait_for_kept(home: &Path, ending: &str) -> String {
    let started = Instant::now();
    loop {
        let kept = fs::read_dir(home.join("data/membound/machines"))
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .find(|entry| entry.file_name().to_string_lossy().ends_with(ending));
        if let Some(entry) = kept
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            return text;
        }
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "no part was kept in two minutes"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the command handles SIGINT: before that, the signal would end it without a word.
fn wait_for_handler(child: &Child) {
    let is_handled = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
        Some(caught >> (libc::SIGINT - 1) & 1 == 1)
    };
    let started = Instant::now();
    while is_handled() != Some(true) {
        assert!(
            started.elapsed() < Duration::from_secs(120),
            "SIGINT has no handler after two minutes"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(child: &Child, signal: i32) {
    let id = i32::try_from(child.id()).expect("process numbers fit");
    // SAFETY: the child has not been waited for, so its number is its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

#[test]
fn ctrl_c_leaves_what_was_measured_marked_incomplete() {
    let _busy = busy();
    let membound = Membound::new();
    let mut child = start(&membound);
    wait_for_handler(&child);
    // Into the first part.
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let json: Value =
        serde_json::from_str(&fs::read_to_string(membound.home.path().join("out.json")).unwrap())
            .unwrap();
    assert_eq!(json["incomplete"], true);
    assert_eq!(json["kind"], "machine");
    for point in json["latency"]["points"].as_array().into_iter().flatten() {
        assert!(point["ns"].as_f64().unwrap() > 0.0);
    }
    let kept: Value =
        serde_json::from_str(&wait_for_kept(membound.home.path(), ".incomplete.json")).unwrap();
    assert_eq!(kept["incomplete"], true);
}

#[test]
fn kill_9_loses_no_finished_part_and_no_old_document() {
    let _busy = busy();
    let membound = Membound::new();
    fs::write(membound.home.path().join("out.json"), "old").unwrap();
    let mut child = start(&membound);
    let kept: Value =
        serde_json::from_str(&wait_for_kept(membound.home.path(), ".incomplete.json")).unwrap();
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(kept["incomplete"], true);
    assert_eq!(
        fs::read_to_string(membound.home.path().join("out.json")).unwrap(),
        "old"
    );
}
