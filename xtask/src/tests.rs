//! `cargo xtask test`: installs what the tests need, runs all of them, and counts.
//!
//! A test that the machine cannot run prints `skipped: reason` and returns, which libtest counts as
//! passed. Such lines are found in the captured output, and compared with the list of skips that
//! are expected on this kind of machine (`expected.rs`). A test whose probe found the machine
//! perturbed, before or while it measured, prints `inconclusive: reason`; a few of these are
//! permitted. A failed test is run again, alone, so that its output shows whether it is unsteady;
//! that is a failure too, unless it is quarantined (`quarantine.rs`).

mod binaries;
mod expected;
mod machine;
mod quarantine;
mod reader;
mod report;
mod start;
mod times;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use membound_platform::date::now_utc;

use self::binaries::{Binary, build, documentation};
use self::expected::Expected;
use self::machine::Machine;
pub(crate) use self::quarantine::Quarantine;
pub(crate) use self::report::Report;
use self::report::{Failure, Unsteady};
use crate::run::{note, say};
use crate::{needs, readers};

/// Maximum number of failed tests of one binary that are run again; if more fail, chance is not the
/// cause.
const MAX_RETRIED_TESTS: usize = 5;

/// Times that each of these must pass alone to count as unsteady.
const AGAIN: usize = 2;

/// Slowest tests whose durations are printed.
const SLOWEST_SHOWN: usize = 20;

/// Binaries that `--fast` runs besides the unit tests: they patch, profile and measure no program.
const FAST: [&str; 6] = [
    "membound-analyze/it",
    "membound-control/replay",
    "membound-harvest/walks",
    "membound-input/it",
    "membound-platform/it",
    "membound-run/it",
];

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name missing Debian packages instead of installing them.
    #[arg(long)]
    no_install: bool,
    /// Only unit tests and the quick suites: at most two minutes when all is built.
    #[arg(long)]
    fast: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let report = if args.fast {
        run_fast()?
    } else {
        run_all(!args.no_install)?
    };
    Ok(if report.succeeded() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs every test of the workspace and prints the count; first installs what they need if
/// `install` is set.
pub(crate) fn run_all(install: bool) -> Result<Report> {
    needs::provide(install);
    readers::provide(install);
    let quarantine = Quarantine::read()?;
    let machine = Machine::here();
    let expected = Expected::read(&machine)?;
    note(format_args!("this machine is {}", machine.told()));
    let mut binaries = build()?;
    binaries.push(documentation());
    let mut report = run_each(&binaries, &quarantine)?;
    expected.compare(&mut report);
    quarantine.compare(&mut report);
    tell(&report);
    Ok(report)
}

/// Runs unit tests and quick suites. The lists are not compared, because the tests that they name
/// may be among the others.
fn run_fast() -> Result<Report> {
    let quarantine = Quarantine::read()?;
    let mut binaries = build()?;
    binaries.retain(|binary| !binary.name.contains('/') || FAST.contains(&&*binary.name));
    let report = run_each(&binaries, &quarantine)?;
    tell(&report);
    Ok(report)
}

/// Result of one binary.
struct Done<'a> {
    binary: &'a Binary,
    report: Report,
    took: Duration,
}

fn run_each(binaries: &[Binary], quarantine: &Quarantine) -> Result<Report> {
    quarantine.lines().iter().for_each(say);
    let today = now_utc();
    let mut report = Report::default();
    report.faults.extend(quarantine.expired(&today));
    let begun = Instant::now();
    let mut times = Vec::new();
    for binary in binaries {
        let done = run_one(binary, &mut |line| say(line))?;
        times.push((done.binary.name.as_str(), done.took));
        report.add(repeated(done, quarantine, &today)?);
    }
    say(slowest(begun.elapsed(), times));
    say("the slowest tests:");
    times::slowest(&report.times, SLOWEST_SHOWN)
        .iter()
        .for_each(say);
    Ok(report)
}

/// Runs a binary's tests once.
fn run_one<'a>(binary: &'a Binary, show: &mut dyn FnMut(&str)) -> Result<Done<'a>> {
    show(&format!("── {}", binary.name));
    let begun = Instant::now();
    let report = binary.run(&[], show)?;
    Ok(Done {
        binary,
        report,
        took: begun.elapsed(),
    })
}

/// Runs the failed tests of a binary again, and separates the unsteady ones from the others.
fn repeated(done: Done<'_>, quarantine: &Quarantine, today: &str) -> Result<Report> {
    let mut found = done.report;
    let failures = std::mem::take(&mut found.failures);
    let is_many = failures.len() > MAX_RETRIED_TESTS;
    for failure in failures {
        if !is_many && failure.is_named && passes_alone(done.binary, &failure)? {
            let is_quarantined = quarantine.holds(&failure.test, today);
            found.unsteady.push(Unsteady {
                failure,
                is_quarantined,
            });
        } else {
            found.failures.push(failure);
        }
    }
    Ok(found)
}

/// Whether a failed test passes each time that it runs alone.
fn passes_alone(binary: &Binary, failure: &Failure) -> Result<bool> {
    let test = failure.test.strip_prefix(&binary.name);
    let test = test.unwrap_or(&failure.test);
    let test = test.trim_start_matches("::");
    for time in 1..=AGAIN {
        note(format_args!(
            "{} failed: alone, {time} of {AGAIN}",
            failure.test
        ));
        let words = ["--test-threads=1", "--exact", test];
        let report = binary.run(&words, &mut |_| {})?;
        report.failures.iter().for_each(say);
        if !report.failures.is_empty() || report.returned.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How long `all` took, and the binaries that took a second and more, the slowest first.
fn slowest(all: Duration, mut times: Vec<(&str, Duration)>) -> String {
    times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    let mut lines = vec![format!("{:<28}{:>8.1} s", "all tests", all.as_secs_f64())];
    let slow = times.iter().filter(|(_, time)| time.as_secs() >= 1);
    lines.extend(slow.map(|(label, time)| format!("{label:<28}{:>8.1} s", time.as_secs_f64())));
    lines.join("\n")
}

fn tell(report: &Report) {
    report.details().iter().for_each(say);
    say(report);
}

#[cfg(test)]
mod tests_of_times {
    use super::*;

    #[test]
    fn binaries_are_listed_from_the_slowest_and_quick_ones_are_left_out() {
        let times = vec![
            ("a", Duration::from_millis(400)),
            ("b/it", Duration::from_secs(2)),
            ("c/it", Duration::from_secs(30)),
        ];
        let text = slowest(Duration::from_secs(31), times);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "all", "tests", "31.0", "s", "c/it", "30.0", "s", "b/it", "2.0", "s"
            ]
        );
    }
}
