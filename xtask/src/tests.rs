//! `cargo xtask test`: brings in what the tests need, runs all of them, and counts.
//!
//! A test that the machine cannot run prints `skipped: reason` and returns, which libtest
//! takes for a pass. The tests are therefore run with `--show-output`, the captured output
//! of those that passed is searched for such lines instead of being shown, and a test that
//! has one is counted as skipped.
//!
//! Tests run beside each other on a machine that may be others' too, and many look at what
//! processes do in time. One that fails is run twice more, alone: it has failed unless it
//! passes both times, and then it is counted, and told, as unsteady.

mod reader;

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};

use crate::run::{cargo, note, say};
use crate::{needs, readers};
use reader::Reader;

/// Where proptest reads its seed. Without one it draws another every time, and the same
/// tree would pass today and fail tomorrow; looking for new cases is a campaign's business.
const SEED: &str = "PROPTEST_RNG_SEED";

/// Tests of the command's `profile` that hold figures to known answers: those of optimised
/// builds, since nobody profiles with another.
const FIGURES: &str = "figures::";

/// Tests that fail in a run and are run again; where more do, it is not the moment's fault.
const MOST_UNSTEADY: usize = 3;

/// Times that each of these has to pass alone.
const AGAIN: usize = 2;

/// Lines of a failed test's output that are shown once more at the end.
const LINES_SHOWN: usize = 40;

/// Arguments of `test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name missing Debian packages instead of installing them.
    #[arg(long)]
    no_install: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let report = run_all(!args.no_install)?;
    Ok(if report.succeeded() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Tests that cargo runs by one command.
struct Suite {
    /// What cargo is called with.
    cargo: &'static [&'static str],
    /// What the tests are called with.
    tests: &'static [&'static str],
}

const SUITES: [Suite; 2] = [
    Suite {
        cargo: &["test", "--workspace", "--no-fail-fast"],
        tests: &["--skip", FIGURES],
    },
    // One after the other: figures of two at a time are disturbed ones.
    Suite {
        cargo: &["test", "--release", "--package=membound", "--test=profile"],
        tests: &["--test-threads=1", FIGURES],
    },
];

/// Runs every test of the workspace and prints the count, after bringing in what they need
/// when `install` says so.
pub(crate) fn run_all(install: bool) -> Result<Report> {
    needs::provide(install);
    readers::provide(install);
    let mut report = Report::default();
    for suite in &SUITES {
        suite.run(&mut report)?;
    }
    for (test, reason) in &report.skipped {
        say(format_args!("skipped: {reason} ({test})"));
    }
    for test in &report.unsteady {
        say(format_args!(
            "unsteady: {test} failed, then passed {AGAIN} times alone (its output is above)"
        ));
    }
    for failure in &report.failures {
        say(failure);
    }
    say(&report);
    Ok(report)
}

impl Suite {
    /// Runs all of its tests, and those that fail again.
    fn run(&self, report: &mut Report) -> Result<()> {
        let before = report.failures.len();
        follow(&mut self.command(self.tests), report, true)?;
        let failures = report.failures.split_off(before);
        let is_many = failures.len() > MOST_UNSTEADY;
        for failure in failures {
            let is_unsteady = !is_many && failure.is_named && self.passes_alone(&failure.test)?;
            if is_unsteady {
                report.returned += 1;
                report.unsteady.push(failure.test);
            } else {
                report.failures.push(failure);
            }
        }
        Ok(())
    }

    /// Whether the test of this name passes each time that it is run with none beside it.
    fn passes_alone(&self, test: &str) -> Result<bool> {
        for time in 1..=AGAIN {
            note(format_args!("{test} failed: alone, {time} of {AGAIN}"));
            let mut report = Report::default();
            let words = ["--test-threads=1", "--exact", test];
            follow(&mut self.command(&words), &mut report, false)?;
            for failure in &report.failures {
                say(failure);
            }
            if !report.succeeded() || report.returned == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn command(&self, tests: &[&str]) -> Command {
        let mut command = cargo(self.cargo);
        command.args(["--", "--show-output"]).args(tests);
        if std::env::var_os(SEED).is_none() {
            command.env(SEED, "20181109");
        }
        command
    }
}

/// Runs cargo and reads what its tests say; `aloud`: shows it, too.
fn follow(command: &mut Command, report: &mut Report, aloud: bool) -> Result<()> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
    let failures = report.failures.len();
    let mut reader = Reader::default();
    let mut lines = BufReader::new(stdout);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if lines.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if reader.take(line, report) && aloud {
            say(line);
        }
    }
    reader.end(report);
    let succeeded = child.wait().context("cannot wait for cargo")?.success();
    if !succeeded && report.failures.len() == failures {
        report.failures.push(Failure::without_name(
            "cargo test failed without naming a failed test",
        ));
    }
    Ok(())
}

/// What a run of all tests came to.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Tests that libtest took for passed, the skipped ones among them.
    returned: usize,
    failures: Vec<Failure>,
    /// Test and reason, one entry for every reason given.
    skipped: Vec<(String, String)>,
    /// Tests that failed and then passed alone; counted as returned.
    unsteady: Vec<String>,
}

/// A test that failed.
#[derive(Debug)]
struct Failure {
    test: String,
    /// The name is a test's, not what became of several.
    is_named: bool,
    /// The lines that it wrote.
    said: Vec<String>,
}

impl Failure {
    fn without_name(what: &str) -> Self {
        Self {
            test: what.to_owned(),
            is_named: false,
            said: Vec::new(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed: {}", self.test)?;
        for line in self.said.iter().take(LINES_SHOWN) {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

impl Report {
    /// Whether nothing failed.
    pub(crate) const fn succeeded(&self) -> bool {
        self.failures.is_empty()
    }

    /// Tests with at least one reason to be skipped.
    fn skipped_tests(&self) -> usize {
        let mut names: Vec<&str> = self.skipped.iter().map(|(test, _)| test.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.skipped_tests();
        let passed = self.returned.saturating_sub(skipped + self.unsteady.len());
        let failed = self.failures.len();
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        match self.unsteady.len() {
            0 => Ok(()),
            unsteady => write!(f, ", {unsteady} unsteady"),
        }
    }
}
