//! Runs fuzzers side by side, each for the same time, with its output in a file.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::run::{note, read, say};

/// A fuzzer that is to be run.
pub(super) struct Job {
    /// Name of the target.
    pub(super) name: &'static str,
    /// The fuzzer with its arguments.
    pub(super) command: Command,
    /// File for its output.
    pub(super) log: PathBuf,
}

/// Lines of a failed fuzzer's output that are shown, besides the one that names the input.
const SHOWN_LINES: usize = 30;

/// Runs all jobs, `workers` at a time, and prints one line about each. Returns the names of the fuzzers that
/// found a failure.
pub(super) fn run_all(jobs: Vec<Job>, workers: usize) -> Result<Vec<&'static str>> {
    let waiting = Mutex::new(jobs.into_iter());
    let work = || {
        let mut failed = Vec::new();
        loop {
            let job = waiting.lock().expect("no worker panics").next();
            let Some(job) = job else { return Ok(failed) };
            let name = job.name;
            if !run(job)? {
                failed.push(name);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(work)).collect();
        let failed: Result<Vec<_>> = workers
            .into_iter()
            .map(|worker| worker.join().expect("no worker panics"))
            .collect();
        failed.map(|failed| failed.concat())
    })
}

/// Runs one fuzzer; returns true if it found nothing.
fn run(mut job: Job) -> Result<bool> {
    let unwritable = || format!("cannot write {}", job.log.display());
    let log = File::create(&job.log).with_context(unwritable)?;
    let same = log.try_clone().with_context(unwritable)?;
    job.command.stdout(Stdio::from(log)).stderr(same);
    let begun = Instant::now();
    let status = job
        .command
        .status()
        .with_context(|| format!("cannot start the fuzzer `{}`", job.name))?;
    let lasted = begun.elapsed();
    let output = read(&job.log)?;
    if !status.success() {
        note(cause(&output).join("\n"));
    }
    say(summary(
        job.name,
        lasted,
        executions(&output),
        status.success(),
    ));
    Ok(status.success())
}

/// The lines that tell why a fuzzer failed: from the panic on, or from libFuzzer's own error, else the last ones,
/// and the one that names the input.
fn cause(output: &str) -> Vec<&str> {
    let lines: Vec<&str> = output.lines().collect();
    let line_with = |text: &str| lines.iter().position(|line| line.contains(text));
    let first = line_with(" panicked at ")
        .or_else(|| line_with("ERROR: libFuzzer"))
        .unwrap_or(lines.len().saturating_sub(SHOWN_LINES));
    let end = lines.len().min(first + SHOWN_LINES);
    let input = line_with("Test unit written to").filter(|line| *line >= end);
    let shown = lines[first..end].iter().copied();
    shown.chain(input.map(|line| lines[line])).collect()
}

/// Number of inputs that a fuzzer has run, from its last statistics.
fn executions(output: &str) -> Option<u64> {
    let line = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))?;
    line.trim().parse().ok()
}

fn summary(name: &str, lasted: Duration, executions: Option<u64>, nothing_found: bool) -> String {
    let found = if nothing_found {
        "nothing found"
    } else {
        "FAILED"
    };
    let inputs = executions.map_or_else(String::new, |count| format!(", {count} inputs"));
    format!("{name}: {found} in {:.0} s{inputs}", lasted.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_target_time_and_inputs() {
        let output = "#2 INITED\nstat::number_of_executed_units: 1234\nstat::peak_rss_mb: 40\n";
        let minute = Duration::from_secs(60);
        assert_eq!(
            summary("elf", minute, executions(output), true),
            "elf: nothing found in 60 s, 1234 inputs"
        );
        assert_eq!(
            summary("elf", minute, executions("killed"), false),
            "elf: FAILED in 60 s"
        );
    }

    #[test]
    fn a_failure_shows_the_panic_and_the_input() {
        let frames = "   1: frame\n".repeat(SHOWN_LINES);
        let panic = "thread '<unnamed>' (7) panicked at a.rs:1:2:";
        let input = "artifact_prefix='a/'; Test unit written to a/crash-1";
        let output = format!("#2 INITED\n{panic}\nwhy\n{frames}{input}\nstat::peak_rss_mb: 40\n");
        let shown = cause(&output);
        assert_eq!(shown[..2], [panic, "why"]);
        assert_eq!(shown[SHOWN_LINES..], [input]);
        assert_eq!(cause("a\n==7== ERROR: libFuzzer: timeout\nb")[1..], ["b"]);
        assert_eq!(cause("killed"), ["killed"]);
    }
}
