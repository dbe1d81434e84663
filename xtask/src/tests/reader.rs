//! Reading what libtest writes.

use super::{Failure, Report};

/// Follows the lines of libtest through the test binaries of a run.
#[derive(Default)]
pub(super) struct Reader {
    section: Section,
    /// The test whose output is being read.
    test: String,
    /// Output of tests that failed in the binary that runs.
    said: Vec<(String, Vec<String>)>,
    /// Their names.
    names: Vec<String>,
    /// A test binary has begun and not told its result yet.
    runs: bool,
    /// Test binaries finished, so that equal names of two binaries stay apart.
    binaries: usize,
}

/// What is being read of a binary's output.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Section {
    /// A line for each test, or none of this.
    #[default]
    Tests,
    /// The captured output of tests that passed.
    Successes,
    /// That of those that failed, and their names.
    Failures,
}

impl Reader {
    /// Takes one line into `report`; says whether it is to be shown.
    pub(super) fn take(&mut self, line: &str, report: &mut Report) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.take_result(counts, report);
            return true;
        }
        match line {
            "successes:" => self.section = Section::Successes,
            "failures:" => {
                self.section = Section::Failures;
                self.names.clear();
                self.test.clear();
            }
            _ => return self.take_output(line, report),
        }
        self.section != Section::Successes
    }

    /// Nothing comes any more.
    pub(super) fn end(&mut self, report: &mut Report) {
        if std::mem::take(&mut self.runs) {
            let what = "a process of tests ended before it told their result";
            report.failures.push(Failure::without_name(what));
        }
    }

    fn take_result(&mut self, counts: &str, report: &mut Report) {
        self.section = Section::Tests;
        self.binaries += 1;
        self.runs = false;
        report.returned += count(counts, " passed");
        let failed = count(counts, " failed");
        let said = std::mem::take(&mut self.said);
        let names = std::mem::take(&mut self.names);
        let unnamed = failed.saturating_sub(names.len());
        report.failures.extend(names.into_iter().map(|test| {
            let said = said.iter().find(|(whose, _)| *whose == test);
            Failure {
                said: said.map(|(_, said)| said.clone()).unwrap_or_default(),
                is_named: true,
                test,
            }
        }));
        report.failures.extend(
            (0..unnamed).map(|_| Failure::without_name("a test that libtest did not name")),
        );
        let ignored = count(counts, " ignored");
        for number in 0..ignored {
            let test = format!("ignored test {} of binary {}", number + 1, self.binaries);
            report.skipped.push((test, "marked as ignored".to_owned()));
        }
        // libtest does not count an ignored test as passed, the report takes it off.
        report.returned += ignored;
    }

    /// Takes a line that is no heading; says whether it is to be shown.
    fn take_output(&mut self, line: &str, report: &mut Report) -> bool {
        let begins = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        match self.section {
            Section::Tests => {
                if line.starts_with("running ") && line.ends_with(['s', 't']) {
                    self.end(report);
                    self.runs = true;
                }
                return true;
            }
            Section::Successes => {
                if let Some(test) = begins {
                    test.clone_into(&mut self.test);
                } else if let Some(reason) = line.strip_prefix("skipped: ") {
                    report.skipped.push((self.test.clone(), reason.to_owned()));
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

    /// Reads `text`, gives the report and the lines that are shown.
    fn read(text: &str) -> (Report, Vec<&str>) {
        let mut report = Report::default();
        let mut reader = Reader::default();
        let shown = text
            .lines()
            .filter(|line| reader.take(line, &mut report))
            .collect();
        reader.end(&mut report);
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
    with a line that is no name

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
    fn a_failed_test_has_its_name_and_what_it_said() {
        let (report, _) = read(TWO_BINARIES);
        assert!(!report.succeeded());
        let [failure] = &report.failures[..] else {
            panic!("{report:?}");
        };
        assert!(failure.is_named);
        let shown = failure.to_string();
        assert!(shown.starts_with("failed: c\n"), "{shown}");
        assert!(shown.contains("\n    panicked at src/lib.rs"), "{shown}");
    }

    #[test]
    fn a_process_that_dies_is_a_failure_that_no_test_has() {
        let died = "running 2 tests\ntest a ... ok\n";
        for (text, passed) in [
            (died.to_owned(), 0),
            (format!("{died}{TWO_BINARIES}"), 3),
            (format!("{TWO_BINARIES}{died}"), 3),
        ] {
            let (report, _) = read(&text);
            let unnamed = report.failures.iter().filter(|it| !it.is_named);
            assert_eq!(unnamed.count(), 1, "{report:?}");
            assert_eq!(
                report.returned - report.skipped_tests(),
                passed,
                "{report:?}"
            );
        }
    }

    #[test]
    fn an_unsteady_test_is_told_and_is_no_pass() {
        let (mut report, _) = read(TWO_BINARIES);
        let failure = report.failures.pop().expect("one failed");
        report.unsteady.push(failure.test);
        report.returned += 1;
        assert!(report.succeeded());
        assert_eq!(
            report.to_string(),
            "3 passed, 0 failed, 2 skipped, 1 unsteady"
        );
    }
}
