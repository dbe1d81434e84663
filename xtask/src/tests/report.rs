//! Result of a run of the tests: counts, and everything that makes it fail.

use std::fmt;

use super::times::Time;

/// Lines of a failed test's output that are shown once more at the end.
const LINES_SHOWN: usize = 40;

/// Maximum number of inconclusive tests in one run, which a probe found perturbed before or while
/// they measured; with more, the run says nothing about what they test.
pub(crate) const INCONCLUSIVE_QUOTA: usize = 3;

/// Maximum number of quarantined tests in one run that may be unsteady.
pub(crate) const UNSTEADY_QUOTA: usize = 3;

/// Result of a run of tests. Tests are named `PACKAGE/BINARY::PATH`.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Tests that libtest counted as passed, including the skipped ones.
    pub(super) returned: Vec<String>,
    pub(super) failures: Vec<Failure>,
    /// One entry for every reason given.
    pub(super) skipped: Vec<Excuse>,
    pub(super) inconclusive: Vec<Excuse>,
    /// Tests that failed and then passed alone.
    pub(super) unsteady: Vec<Unsteady>,
    /// Errors in the lists of quarantined tests and expected skips.
    pub(super) faults: Vec<String>,
    /// Remarks on these lists that are no errors.
    pub(super) remarks: Vec<String>,
    /// Duration of each test, in the order of names within a binary.
    pub(super) times: Vec<Time>,
}

/// A test that was skipped or inconclusive, wholly or in part, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excuse {
    pub(super) test: String,
    pub(super) reason: String,
}

/// A test that failed and then passed alone.
#[derive(Clone, Debug)]
pub(super) struct Unsteady {
    pub(super) failure: Failure,
    /// It is in the quarantine list, and has not expired there.
    pub(super) is_quarantined: bool,
}

/// A test that failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) test: String,
    /// The name is that of a test, instead of a description of several.
    pub(super) is_named: bool,
    /// The lines that it wrote.
    pub(super) said: Vec<String>,
}

impl Failure {
    pub(super) fn without_name(what: impl Into<String>) -> Self {
        Self {
            test: what.into(),
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
    /// Whether nothing makes the run fail.
    pub(crate) fn succeeded(&self) -> bool {
        self.failures.is_empty()
            && self.faults.is_empty()
            && self.unsteady.iter().all(|it| it.is_quarantined)
            && self.unsteady.len() <= UNSTEADY_QUOTA
            && tests(&self.inconclusive) <= INCONCLUSIVE_QUOTA
    }

    /// The names of all tests that ran.
    pub(super) fn tests(&self) -> impl Iterator<Item = &str> {
        (self.returned.iter())
            .chain(self.failures.iter().map(|failure| &failure.test))
            .chain(self.unsteady.iter().map(|it| &it.failure.test))
            .map(String::as_str)
    }

    /// Adds the results of another run.
    pub(super) fn add(&mut self, other: Self) {
        self.returned.extend(other.returned);
        self.failures.extend(other.failures);
        self.skipped.extend(other.skipped);
        self.inconclusive.extend(other.inconclusive);
        self.unsteady.extend(other.unsteady);
        self.faults.extend(other.faults);
        self.remarks.extend(other.remarks);
        self.times.extend(other.times);
    }

    /// Everything except the counts, in one or more lines each.
    pub(super) fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let excuses = [
            ("skipped", &self.skipped),
            ("inconclusive", &self.inconclusive),
        ];
        for (kind, list) in excuses {
            lines.extend(
                (list.iter()).map(|Excuse { test, reason }| format!("{kind}: {reason} ({test})")),
            );
        }
        lines.extend(self.remarks.iter().cloned());
        for Unsteady {
            failure,
            is_quarantined,
        } in &self.unsteady
        {
            let quarantined = if *is_quarantined { ", quarantined" } else { "" };
            lines.push(format!(
                "unsteady{quarantined}: failed beside others, passed alone; {failure}"
            ));
        }
        lines.extend(self.failures.iter().map(ToString::to_string));
        lines.extend(self.faults.iter().cloned());
        let inconclusive = tests(&self.inconclusive);
        if inconclusive > INCONCLUSIVE_QUOTA {
            lines.push(format!(
                "{inconclusive} tests are inconclusive, of at most {INCONCLUSIVE_QUOTA}: run them on a quieter machine"
            ));
        }
        lines
    }
}

/// Number of tests that gave at least one of these reasons.
fn tests(excuses: &[Excuse]) -> usize {
    let mut names: Vec<&str> = excuses.iter().map(|it| it.test.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (skipped, inconclusive) = (tests(&self.skipped), tests(&self.inconclusive));
        let passed = (self.returned.len()).saturating_sub(skipped + inconclusive);
        let failed = self.failures.len();
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        let others = [
            (inconclusive, "inconclusive"),
            (self.unsteady.len(), "unsteady"),
            (self.faults.len(), "faults of the lists"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests_of_report {
    use super::*;

    fn excuse(test: &str) -> Excuse {
        Excuse {
            test: test.to_owned(),
            reason: "because".to_owned(),
        }
    }

    fn unsteady(is_quarantined: bool) -> Unsteady {
        Unsteady {
            failure: Failure::without_name("a/it::b"),
            is_quarantined,
        }
    }

    #[test]
    fn an_unsteady_test_is_red_unless_it_is_quarantined() {
        let mut report = Report {
            returned: vec!["a/it::c".to_owned()],
            unsteady: vec![unsteady(true)],
            ..Report::default()
        };
        assert!(report.succeeded());
        assert_eq!(
            report.to_string(),
            "1 passed, 0 failed, 0 skipped, 1 unsteady"
        );
        report.unsteady.push(unsteady(false));
        assert!(!report.succeeded());
    }

    #[test]
    fn more_inconclusive_tests_than_the_quota_are_red() {
        let mut report = Report::default();
        for number in 0..INCONCLUSIVE_QUOTA {
            report
                .inconclusive
                .push(excuse(&format!("a/it::t{number}")));
        }
        // A second reason of the same test counts once.
        report.inconclusive.push(excuse("a/it::t0"));
        assert!(report.succeeded());
        report.inconclusive.push(excuse("a/it::other"));
        assert!(!report.succeeded());
        assert!(report.details().last().unwrap().contains("4 tests"));
    }

    #[test]
    fn a_fault_of_the_lists_is_red_and_shown() {
        let report = Report {
            faults: vec!["quarantine.toml: x is over".to_owned()],
            ..Report::default()
        };
        assert!(!report.succeeded());
        assert_eq!(report.details(), ["quarantine.toml: x is over"]);
    }
}
