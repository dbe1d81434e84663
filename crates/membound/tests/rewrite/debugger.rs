//! A debugger attaches to a patched program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::build::{Compiler, build, is_there};
use crate::run::{Ending, Room, check, wait};

/// The process that runs `program`, once there is one.
fn process_of(program: &Path) -> u32 {
    let begun = Instant::now();
    loop {
        let found = std::fs::read_dir("/proc")
            .expect("proc is mounted")
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .find(|pid| {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
            });
        if let Some(pid) = found {
            return pid;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it never ran");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the file has this line.
fn wait_for(path: &Path, line: &str) {
    let begun = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|text| text.contains(line)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no `{line}`");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn gdb_attaches_shows_the_stack_and_leaves() {
    if !is_there("gdb") {
        membound_testkit::skipped("no gdb");
        return;
    }
    let Some(built) = build(Compiler::Gcc, "waits.c", "-O2") else {
        return;
    };
    let room = Room::new();
    // A copy, so that its process is found by its file.
    let program: PathBuf = room.path().join("waits");
    std::fs::copy(built, &program).unwrap();
    let program = program.canonicalize().unwrap();
    let stop = room.path().join("stop");
    File::create(&stop).unwrap();
    let out = room.path().join("stdout");
    let mut child = check(&room, &["--body", "count"])
        .arg(&program)
        .arg(&stop)
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .spawn()
        .unwrap();
    wait_for(&out, "working");
    let pid = process_of(&program);
    for _ in 0..5 {
        let output = Command::new("gdb")
            .args(["-nx", "-batch", "-p", &pid.to_string()])
            .args(["-ex", "bt", "-ex", "info registers rip", "-ex", "detach"])
            .env("DEBUGINFOD_URLS", "")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if !text.contains("#0") {
            child.kill().unwrap();
            child.wait().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                errors.contains("ptrace: Operation not permitted"),
                "gdb shows no stack: {text}{errors}"
            );
            membound_testkit::skipped("ptrace is not permitted");
            return;
        }
        let stack: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        assert!(
            stack.iter().any(|line| line.contains(" main (")),
            "the stack does not reach main: {text}"
        );
    }
    std::fs::remove_file(&stop).unwrap();
    assert_eq!(Ending::from(wait(&mut child)), Ending::Exited(0));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "working\nworked\n");
}
