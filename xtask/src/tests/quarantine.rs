//! Tests that are known to be unsteady, each for a limited time: `xtask/quarantine.toml`.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::expected::matches;
use super::report::Report;
use crate::run::{read, root};

const LIST: &str = "xtask/quarantine.toml";

/// Maximum number of entries in the list.
const MAX_ENTRIES: usize = 7;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quarantine {
    #[serde(default)]
    test: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// `PACKAGE/BINARY::PATH`; with `*` at the end, all names that begin so.
    name: String,
    /// Day on which it was listed, `2026-11-25`.
    since: String,
    /// The last day on which it may be unsteady.
    until: String,
    /// What is known of it, and who investigates.
    reason: String,
}

impl Quarantine {
    /// Reads the list.
    ///
    /// # Errors
    /// When it cannot be read, is too long, or contains an invalid date.
    pub(crate) fn read() -> Result<Self> {
        Self::parse(&read(&root().join(LIST))?).with_context(|| LIST.to_owned())
    }

    fn parse(text: &str) -> Result<Self> {
        let list: Self = toml::from_str(text)?;
        let count = list.test.len();
        ensure!(
            count <= MAX_ENTRIES,
            "{count} tests are quarantined, of at most {MAX_ENTRIES}: mend some"
        );
        for entry in &list.test {
            let Entry {
                name, since, until, ..
            } = entry;
            ensure!(
                is_date(since) && is_date(until) && since <= until,
                "{name}: `since` and `until` are days in order, such as 2026-11-25"
            );
        }
        Ok(list)
    }

    /// A line for each entry.
    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = self.test.iter().map(|entry| {
            format!(
                "quarantined from {} to {}: {} ({})",
                entry.since, entry.until, entry.name, entry.reason
            )
        });
        lines.collect()
    }

    /// A line for each entry that expired before the day with which `today` begins.
    pub(crate) fn expired(&self, today: &str) -> Vec<String> {
        let expired = self.test.iter().filter(|entry| entry.is_over(today));
        expired
            .map(|entry| {
                format!(
                    "{LIST}: the time of {} ended on {}",
                    entry.name, entry.until
                )
            })
            .collect()
    }

    /// Whether this test may be unsteady on the day with which `today` begins.
    pub(super) fn holds(&self, test: &str, today: &str) -> bool {
        (self.test.iter()).any(|entry| matches(&entry.name, test) && !entry.is_over(today))
    }

    /// Compares the list with a run of all tests: an entry without a test is a fault.
    pub(super) fn compare(&self, report: &mut Report) {
        for entry in &self.test {
            let name = &entry.name;
            let is_known = report.tests().any(|test| matches(name, test));
            if !is_known {
                report
                    .faults
                    .push(format!("{LIST}: there is no test {name}"));
            }
        }
    }
}

impl Entry {
    fn is_over(&self, today: &str) -> bool {
        today
            .get(..self.until.len())
            .is_none_or(|day| day > self.until.as_str())
    }
}

/// Whether `text` has the form `2026-11-25`; such texts sort by date.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([4, 2, 2]) && parts.iter().all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
[[test]]
name = 'a/it::b'
since = '2026-11-25'
until = '2026-12-09'
reason = 'a race in the fixture'
";

    #[test]
    fn an_entry_holds_until_its_day_is_over() {
        let list = Quarantine::parse(TEXT).unwrap();
        for (today, holds) in [
            ("2026-11-25T10:00:00Z", true),
            ("2026-12-09T23:59:59Z", true),
            ("2026-12-10T00:00:00Z", false),
            ("2027-01-01T00:00:00Z", false),
        ] {
            assert_eq!(list.holds("a/it::b", today), holds, "{today}");
            assert_eq!(list.expired(today).is_empty(), holds, "{today}");
        }
        assert!(!list.holds("a/it::c", "2026-11-25"));
        assert!(list.lines()[0].contains("a race in the fixture"));
    }

    #[test]
    fn a_list_without_order_or_measure_is_refused() {
        let wrong = [
            TEXT.replace("2026-12-09", "2026-10-01"),
            TEXT.replace("2026-12-09", "soon"),
            TEXT.repeat(MAX_ENTRIES + 1),
        ];
        for text in wrong {
            assert!(Quarantine::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_entry_without_a_test_is_a_fault() {
        let list = Quarantine::parse(TEXT).unwrap();
        let mut report = Report::default();
        list.compare(&mut report);
        assert_eq!(report.faults.len(), 1);
        let mut report = Report {
            returned: vec!["a/it::b".to_owned()],
            ..Report::default()
        };
        list.compare(&mut report);
        assert!(report.faults.is_empty());
    }

    #[test]
    fn the_list_of_this_workspace_can_be_read() {
        let list = Quarantine::read().unwrap();
        assert_eq!(list.lines().len(), list.test.len());
    }
}
