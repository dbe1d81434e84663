//! Which tests may be skipped on which kind of machine: `xtask/expected-skips.toml`.

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::machine::{Kind, Machine};
use super::report::{Excuse, Report};
use crate::run::{read, root};

const LIST: &str = "xtask/expected-skips.toml";

/// Maximum number of unexpected skips in a run that count as remarks, not as faults.
const UNEXPECTED_QUOTA: usize = 3;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    skip: Vec<Entry>,
}

/// Tests that a kind of machine cannot run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Kinds of machine, of which any suffices.
    when: Vec<String>,
    /// Names of tests, `PACKAGE/BINARY::PATH`; a name that ends with `*` matches all names that
    /// begin so.
    tests: Vec<String>,
}

/// The list, for one machine.
pub(super) struct Expected {
    /// The kinds of this machine that an entry names, and the entry's tests.
    here: Vec<(String, Vec<String>)>,
    /// The tests of entries for other machines.
    elsewhere: Vec<String>,
}

impl Expected {
    /// Reads the list for `machine`.
    ///
    /// # Errors
    /// When it cannot be read, or names a kind of machine that is not known.
    pub(super) fn read(machine: &Machine) -> Result<Self> {
        Self::parse(&read(&root().join(LIST))?, machine).with_context(|| LIST.to_owned())
    }

    fn parse(text: &str, machine: &Machine) -> Result<Self> {
        let file: File = toml::from_str(text)?;
        let mut expected = Self {
            here: Vec::new(),
            elsewhere: Vec::new(),
        };
        for entry in file.skip {
            let mut holding = Vec::new();
            for text in entry.when {
                if machine.is(&text.parse::<Kind>()?) {
                    holding.push(text);
                }
            }
            if holding.is_empty() {
                expected.elsewhere.extend(entry.tests);
            } else {
                expected.here.push((holding.join(", "), entry.tests));
            }
        }
        Ok(expected)
    }

    /// Compares a run of all tests with the list: unexpected skips are remarks, or faults if there
    /// are more than [`UNEXPECTED_QUOTA`]; an entry that names no test is a fault; an expected skip
    /// that did not happen is only a remark.
    pub(super) fn compare(&self, report: &mut Report) {
        let mut faults = Vec::new();
        for Excuse { test, reason } in &report.skipped {
            let mut entries = self.here.iter().flat_map(|(_, tests)| tests);
            if !entries.any(|pattern| matches(pattern, test)) {
                faults.push(format!(
                    "{LIST}: {test} is skipped ({reason}), which is not expected on a machine of this kind"
                ));
            }
        }
        // A few are only remarks: a test may be the first to find out what a machine lacks.
        if faults.len() <= UNEXPECTED_QUOTA {
            report.remarks.append(&mut faults);
        }
        let known: Vec<String> = report.tests().map(str::to_owned).collect();
        let is_known = |pattern: &str| known.iter().any(|test| matches(pattern, test));
        for (kinds, tests) in &self.here {
            for pattern in tests {
                let skipped = (report.skipped.iter()).any(|it| matches(pattern, &it.test));
                if !is_known(pattern) {
                    faults.push(format!("{LIST}: there is no test {pattern}"));
                } else if !skipped {
                    report.remarks.push(format!(
                        "not skipped, although this machine is {kinds}: {pattern}"
                    ));
                }
            }
        }
        for pattern in self.elsewhere.iter().filter(|pattern| !is_known(pattern)) {
            faults.push(format!("{LIST}: there is no test {pattern}"));
        }
        report.faults.extend(faults);
    }
}

/// Whether `pattern` names `test`: entirely, or its beginning where it ends with `*`.
pub(super) fn matches(pattern: &str, test: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => test.starts_with(beginning),
        None => pattern == test,
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::Fact;
    use super::*;

    const TEXT: &str = "
[[skip]]
when = ['one-cpu']
tests = ['a/it::threads::*']

[[skip]]
when = ['no-program no-such-program', 'intel']
tests = ['a/it::debugged']
";

    fn compared(facts: &[Fact], skipped: &[&str]) -> Report {
        let expected = Expected::parse(TEXT, &Machine::with(facts)).unwrap();
        let mut report = Report {
            returned: ["a/it::threads::two", "a/it::debugged", "a/it::plain"]
                .map(str::to_owned)
                .to_vec(),
            skipped: skipped
                .iter()
                .map(|test| Excuse {
                    test: (*test).to_owned(),
                    reason: "because".to_owned(),
                })
                .collect(),
            ..Report::default()
        };
        expected.compare(&mut report);
        report
    }

    #[test]
    fn a_skip_that_this_kind_of_machine_explains_is_expected() {
        let report = compared(&[Fact::OneCpu], &["a/it::threads::two", "a/it::debugged"]);
        assert!(report.succeeded(), "{:?}", report.faults);
        assert!(report.remarks.is_empty(), "{:?}", report.remarks);
    }

    #[test]
    fn few_skips_on_another_kind_of_machine_are_told_and_many_are_faults() {
        let one = compared(&[], &["a/it::threads::two", "a/it::debugged"]);
        assert!(one.succeeded(), "{:?}", one.faults);
        let told = one.remarks.join("\n");
        assert!(
            told.contains("a/it::threads::two is skipped (because)"),
            "{told}"
        );
        let many = compared(&[], &["a/it::threads::two"; UNEXPECTED_QUOTA + 1]);
        assert_eq!(many.faults.len(), UNEXPECTED_QUOTA + 1);
        assert!(!many.succeeded());
    }

    #[test]
    fn an_expected_skip_that_ran_is_only_told() {
        let report = compared(&[], &[]);
        assert!(report.succeeded());
        assert_eq!(
            report.remarks,
            ["not skipped, although this machine is no-program no-such-program: a/it::debugged"]
        );
    }

    #[test]
    fn an_entry_without_a_test_is_a_fault_on_every_machine() {
        let expected = Expected::parse(TEXT, &Machine::with(&[Fact::Intel])).unwrap();
        let mut report = Report::default();
        expected.compare(&mut report);
        assert_eq!(report.faults.len(), 2, "{:?}", report.faults);
    }

    #[test]
    fn the_list_of_this_workspace_can_be_read() {
        let expected = Expected::read(&Machine::here()).unwrap();
        assert!(expected.here.len() + expected.elsewhere.len() > 0);
    }
}
