//! Switching a harvest off while it runs.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::suite::{Harvest, fixture, scavenger};

/// The process ID of the program that was called with these words.
fn find(words: &[&str]) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|pid| {
        let given = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut given = given
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word));
        let is_program = given.next().is_some_and(|word| word.contains("costs"));
        is_program
            && words
                .iter()
                .all(|word| given.next().is_some_and(|it| it == *word))
    })
}

/// The output of `membound harvest stop`, and whether it succeeded.
fn stop(words: &[&str]) -> (String, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    let output = command
        .args(["harvest", "stop"])
        .args(words)
        .output()
        .expect("the command starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (stderr, output.status.success())
}

#[test]
fn a_harvest_that_is_switched_off_leaves_the_program_s_text_as_it_was() {
    let (Some(program), Some(scavenger)) = (fixture("costs.c", "-O2"), scavenger()) else {
        return;
    };
    // The program ends once its text has changed, and would otherwise run for 47 seconds.
    let words = ["47", "1"];
    let harvest = Harvest::of(&program, &words.join(" ")).with(&scavenger, "forever");
    let started = Instant::now();
    let harvested = std::thread::scope(|scope| {
        let running = scope.spawn(|| harvest.run());
        let pid = loop {
            match find(&words) {
                Some(pid) => break pid,
                None if started.elapsed() > Duration::from_secs(30) => panic!("it was not begun"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        std::thread::sleep(Duration::from_secs(2));
        let (stderr, done) = stop(&[&pid.to_string()]);
        assert!(done, "{stderr}");
        running.join().expect("it runs to its end")
    });
    let context = format!("{harvested:#?}");
    assert_eq!(harvested.left.stdout, "costs: 0 wrong\n", "{context}");
    assert_eq!(harvested.left.end, Ok(0), "{context}");
    assert!(started.elapsed() < Duration::from_secs(40), "{context}");
    assert!(harvested.document.primary.yields > 0, "{context}");
    let notes = &harvested.document.notes;
    let note = notes
        .iter()
        .find(|note| note.contains("it was switched off"));
    let note = note.unwrap_or_else(|| panic!("{context}"));
    assert!(
        note.contains("2 of the command's 2 yields were removed"),
        "{note}"
    );
}

#[test]
fn there_is_nothing_to_switch_off_in_other_programs() {
    let own = std::process::id().to_string();
    let (stderr, done) = stop(&[&own]);
    assert!(
        !done && stderr.contains("is neither a harvest of yours"),
        "{stderr}"
    );
    let (stderr, done) = stop(&["none"]);
    assert!(!done && stderr.contains("invalid value"), "{stderr}");
}
