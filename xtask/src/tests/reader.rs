//! Reads the output of libtest.

use super::report::{Excuse, Failure, Report};

/// Reads the lines of one process of libtest, or of several one after the other.
pub(super) struct Reader<'a> {
    /// Prefix of the names of its tests.
    binary: &'a str,
    report: Report,
    section: Section,
    /// The test whose output is being read.
    test: String,
    /// Names that libtest lists as passed.
    passed: Vec<String>,
    /// Output of the failed tests of the current run.
    said: Vec<(String, Vec<String>)>,
    /// Names of the failed tests.
    names: Vec<String>,
    /// A run has begun and has not printed its result yet.
    runs: bool,
}

/// The section of a run's output that is being read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Section {
    /// A line for each test, or output outside of the other sections.
    #[default]
    Tests,
    /// The captured output of tests that passed, and their names.
    Successes,
    /// The captured output of tests that failed, and their names.
    Failures,
}

impl<'a> Reader<'a> {
    pub(super) fn new(binary: &'a str) -> Self {
        Self {
            binary,
            report: Report::default(),
            section: Section::default(),
            test: String::new(),
            passed: Vec::new(),
            said: Vec::new(),
            names: Vec::new(),
            runs: false,
        }
    }

    /// Handles one line; returns true if it is to be shown.
    pub(super) fn take(&mut self, line: &str) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.take_result(counts);
            return true;
        }
        match line {
            "successes:" => {
                self.section = Section::Successes;
                self.test.clear();
            }
            "failures:" => {
                self.section = Section::Failures;
                self.names.clear();
                self.test.clear();
            }
            _ => return self.take_output(line),
        }
        self.section != Section::Successes
    }

    /// The report, when there are no more lines.
    pub(super) fn end(mut self) -> Report {
        self.end_run();
        self.report
    }

    fn end_run(&mut self) {
        if std::mem::take(&mut self.runs) {
            let what = format!("{} ended before it told its result", self.binary);
            self.report.failures.push(Failure::without_name(what));
        }
    }

    fn name(&self, test: &str) -> String {
        format!("{}::{test}", self.binary)
    }

    fn take_result(&mut self, counts: &str) {
        self.section = Section::Tests;
        self.runs = false;
        let passed = std::mem::take(&mut self.passed);
        let unlisted = count(counts, " passed").saturating_sub(passed.len());
        for test in passed {
            let test = self.name(&test);
            self.report.returned.push(test);
        }
        // Output of child processes between the names may have hidden one.
        for number in 1..=unlisted {
            let test = self.name(&format!("unlisted test {number}"));
            self.report.returned.push(test);
        }
        let failed = count(counts, " failed");
        let said = std::mem::take(&mut self.said);
        let names = std::mem::take(&mut self.names);
        let unnamed = failed.saturating_sub(names.len());
        for test in names {
            let said = said.iter().find(|(whose, _)| *whose == test);
            let failure = Failure {
                said: said.map(|(_, said)| said.clone()).unwrap_or_default(),
                is_named: true,
                test: self.name(&test),
            };
            self.report.failures.push(failure);
        }
        for _ in 0..unnamed {
            let what = format!("a test of {} that libtest did not name", self.binary);
            self.report.failures.push(Failure::without_name(what));
        }
    }

    /// Handles a line that is no heading; returns true if it is to be shown.
    fn take_output(&mut self, line: &str) -> bool {
        let begins = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        match self.section {
            Section::Tests => {
                if line.starts_with("running ") && line.ends_with(['s', 't']) {
                    self.end_run();
                    self.runs = true;
                }
                self.take_ignored(line);
                return true;
            }
            Section::Successes => {
                let excuse = |reason: &str| Excuse {
                    test: self.name(&self.test),
                    reason: reason.trim().to_owned(),
                };
                if let Some(test) = begins {
                    test.clone_into(&mut self.test);
                } else if self.test.is_empty() {
                    self.passed
                        .extend(line.strip_prefix("    ").map(str::to_owned));
                } else if let Some(reason) = line.strip_prefix("skipped: ") {
                    let excuse = excuse(reason);
                    self.report.skipped.push(excuse);
                } else if let Some(reason) = line.strip_prefix("inconclusive: ") {
                    let excuse = excuse(reason);
                    self.report.inconclusive.push(excuse);
                }
            }
            Section::Failures => {
                if let Some(test) = begins {
                    test.clone_into(&mut self.test);
                    self.said.push((test.to_owned(), Vec::new()));
                } else if self.test.is_empty() {
                    self.names
                        .extend(line.strip_prefix("    ").map(str::to_owned));
                } else if let Some((_, said)) = self.said.last_mut() {
                    said.push(line.to_owned());
                }
            }
        }
        self.section != Section::Successes
    }

    /// `test NAME ... ignored, REASON`: libtest's own way to skip.
    fn take_ignored(&mut self, line: &str) {
        let Some((test, rest)) = line
            .strip_prefix("test ")
            .and_then(|line| line.split_once(" ... ignored"))
        else {
            return;
        };
        let test = self.name(test);
        let reason = format!("ignored{rest}");
        // libtest does not count it as passed; the report subtracts skipped tests.
        self.report.returned.push(test.clone());
        self.report.skipped.push(Excuse { test, reason });
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
mod tests {
    use super::*;

    /// Reads `text`; returns the report and the lines that are shown.
    fn read(text: &str) -> (Report, Vec<&str>) {
        let mut reader = Reader::new("x/it");
        let shown = text.lines().filter(|line| reader.take(line)).collect();
        (reader.end(), shown)
    }

    const TWO_RUNS: &str = "\
running 5 tests
test a ... ok
test guest ... ok
test b ... ok
test later ... ignored, takes an hour
test busy ... ok

successes:

---- a stdout ----
chatter

---- busy stdout ----
inconclusive: others had the processors

---- guest stdout ----
skipped: no qemu-system-x86_64
skipped: no kernel


successes:
    a
    b
    busy
    guest

test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s

running 2 tests
test c ... FAILED

successes:

successes:
    d

failures:

---- c stdout ----
skipped: not a skip, this test failed
panicked at src/lib.rs
    with a line that is no name

failures:
    c

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
";

    #[test]
    fn skipped_tests_are_no_passes_and_failures_are_shown() {
        let (report, shown) = read(TWO_RUNS);
        assert_eq!(
            report.to_string(),
            "3 passed, 1 failed, 2 skipped, 1 inconclusive"
        );
        let [ignored, guest, _] = &report.skipped[..] else {
            panic!("{report:?}");
        };
        assert_eq!(
            (ignored.test.as_str(), ignored.reason.as_str()),
            ("x/it::later", "ignored, takes an hour")
        );
        assert_eq!(
            (guest.test.as_str(), guest.reason.as_str()),
            ("x/it::guest", "no qemu-system-x86_64")
        );
        assert_eq!(
            report.returned,
            ["later", "a", "b", "busy", "guest", "d"].map(|test| format!("x/it::{test}"))
        );
        assert!(shown.contains(&"panicked at src/lib.rs"));
        assert!(!shown.contains(&"chatter"));
    }

    #[test]
    fn a_failed_test_has_its_name_and_what_it_said() {
        let (report, _) = read(TWO_RUNS);
        assert!(!report.succeeded());
        let [failure] = &report.failures[..] else {
            panic!("{report:?}");
        };
        assert!(failure.is_named);
        let shown = failure.to_string();
        assert!(shown.starts_with("failed: x/it::c\n"), "{shown}");
        assert!(shown.contains("\n    panicked at src/lib.rs"), "{shown}");
    }

    #[test]
    fn a_process_that_dies_is_a_failure_that_no_test_has() {
        let died = "running 2 tests\ntest a ... ok\n";
        for (text, returned) in [
            (died.to_owned(), 0),
            (format!("{died}{TWO_RUNS}"), 6),
            (format!("{TWO_RUNS}{died}"), 6),
        ] {
            let (report, _) = read(&text);
            let unnamed = report.failures.iter().filter(|it| !it.is_named);
            assert_eq!(unnamed.count(), 1, "{report:?}");
            assert_eq!(report.returned.len(), returned, "{report:?}");
        }
    }

    #[test]
    fn tests_that_are_counted_and_not_listed_are_counted() {
        let text =
            "running 2 tests\nsuccesses:\n    a\n\ntest result: ok. 2 passed; 0 failed; 0 ignored";
        let (report, _) = read(text);
        assert_eq!(report.to_string(), "2 passed, 0 failed, 0 skipped");
    }
}
