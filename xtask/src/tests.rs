//! `cargo xtask test`: brings in what the tests need, runs all of them, and counts.
//!
//! A test that the machine cannot run prints `skipped: reason` and returns, which libtest
//! takes for a pass. The tests are therefore run with `--show-output`, the captured output
//! of those that passed is searched for such lines instead of being shown, and a test that
//! has one is counted as skipped.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, Result};

use crate::needs;
use crate::run::{cargo, note, say};

/// Where proptest reads its seed. Without one it draws another every time, and the same
/// tree would pass today and fail tomorrow; looking for new cases is a campaign's business.
const SEED: &str = "PROPTEST_RNG_SEED";

/// Tests of the command's `profile` that hold figures to known answers: those of optimised
/// builds, since nobody profiles with another.
const FIGURES: &str = "figures::";

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

/// Runs every test of the workspace and prints the count, after bringing in what they need
/// when `install` says so.
pub(crate) fn run_all(install: bool) -> Result<Report> {
    needs::provide(install);
    let mut report = Report {
        cargo_succeeded: true,
        ..Report::default()
    };
    let mut reader = Reader::default();
    let all = ["test", "--workspace", "--no-fail-fast"];
    let but_figures = ["--show-output", "--skip", FIGURES];
    follow(&all, &but_figures, &mut reader, &mut report)?;
    // One after the other: figures of two at a time are disturbed ones.
    let optimised = ["test", "--release", "--package=membound", "--test=profile"];
    let figures = ["--show-output", "--test-threads=1", FIGURES];
    follow(&optimised, &figures, &mut reader, &mut report)?;
    for (test, reason) in &report.skipped {
        say(format_args!("skipped: {reason} ({test})"));
    }
    say(&report);
    Ok(report)
}

/// Runs `cargo` with `words`, and its tests with `arguments`, and reads what they say.
fn follow(
    words: &[&str],
    arguments: &[&str],
    reader: &mut Reader,
    report: &mut Report,
) -> Result<()> {
    let mut command = cargo(words);
    command.arg("--").args(arguments);
    if std::env::var_os(SEED).is_none() {
        command.env(SEED, "20181109");
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
    let failed = report.failed;
    let mut lines = BufReader::new(stdout);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if lines.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if reader.take(line, report) {
            say(line);
        }
    }
    let succeeded = child.wait().context("cannot wait for cargo")?.success();
    if !succeeded && report.failed == failed {
        // Something was not built, or a test's process died before it could count.
        note("cargo test failed without naming a failed test: see above");
        report.failed += 1;
    }
    report.cargo_succeeded &= succeeded;
    Ok(())
}

/// What a run of all tests came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Tests that libtest took for passed, the skipped ones among them.
    returned: usize,
    failed: usize,
    /// Test and reason, one entry for every reason given.
    skipped: Vec<(String, String)>,
    cargo_succeeded: bool,
}

impl Report {
    /// Whether nothing failed.
    pub(crate) const fn succeeded(&self) -> bool {
        self.cargo_succeeded && self.failed == 0
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
        write!(
            f,
            "{} passed, {} failed, {skipped} skipped",
            self.returned.saturating_sub(skipped),
            self.failed
        )
    }
}

/// Follows the lines of libtest through the test binaries of a run.
#[derive(Default)]
struct Reader {
    /// Inside the captured output of tests that passed.
    successes: bool,
    /// The test whose output is being read.
    test: String,
    /// Test binaries finished, so that equal names of two binaries stay apart.
    binaries: usize,
}

impl Reader {
    /// Takes one line into `report`; says whether it is to be shown.
    fn take(&mut self, line: &str, report: &mut Report) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.successes = false;
            self.binaries += 1;
            report.returned += count(counts, " passed");
            report.failed += count(counts, " failed");
            let ignored = count(counts, " ignored");
            for number in 0..ignored {
                let test = format!("ignored test {} of binary {}", number + 1, self.binaries);
                report.skipped.push((test, "marked as ignored".to_owned()));
            }
            // libtest does not count an ignored test as passed, the report takes it off.
            report.returned += ignored;
            return true;
        }
        match line {
            "successes:" => self.successes = true,
            "failures:" => self.successes = false,
            _ if self.successes => {
                if let Some(test) = line
                    .strip_prefix("---- ")
                    .and_then(|rest| rest.strip_suffix(" stdout ----"))
                {
                    self.test = test.to_owned();
                } else if let Some(reason) = line.strip_prefix("skipped: ") {
                    report.skipped.push((self.test.clone(), reason.to_owned()));
                }
            }
            _ => return true,
        }
        !self.successes
    }
}

/// The number before `what` in `12 passed; 0 failed; …`.
fn count(counts: &str, what: &str) -> usize {
    counts
        .split([';', '.'])
        .find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod reading {
    use super::*;

    /// Reads `text`, gives the report and the lines that are shown.
    fn read(text: &str) -> (Report, Vec<&str>) {
        let mut report = Report::default();
        let mut reader = Reader::default();
        let shown = text
            .lines()
            .filter(|line| reader.take(line, &mut report))
            .collect();
        (report, shown)
    }

    const TWO_BINARIES: &str = "\
running 3 tests
test a ... ok
test guest ... ok
test b ... ok

successes:

---- a stdout ----
chatter

---- guest stdout ----
skipped: no qemu-system-x86_64
skipped: no kernel


successes:
    a
    b
    guest

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s

running 3 tests
test c ... FAILED

successes:

successes:
    d

failures:

---- c stdout ----
skipped: not a skip, this test failed
panicked at src/lib.rs

failures:
    c

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
";

    #[test]
    fn skipped_tests_are_no_passes_and_failures_are_shown() {
        let (report, shown) = read(TWO_BINARIES);
        assert_eq!(report.to_string(), "3 passed, 1 failed, 2 skipped");
        assert_eq!(
            report.skipped[0],
            ("guest".to_owned(), "no qemu-system-x86_64".to_owned())
        );
        assert!(shown.contains(&"panicked at src/lib.rs"));
        assert!(!shown.contains(&"chatter"));
    }

    #[test]
    fn a_run_in_which_cargo_failed_did_not_succeed() {
        let report = Report {
            returned: 3,
            cargo_succeeded: false,
            ..Report::default()
        };
        assert!(!report.succeeded());
    }
}
