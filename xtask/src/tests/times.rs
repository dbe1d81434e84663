//! Durations of the tests, without libtest's help: its option for that is unstable.
//!
//! libtest starts tests in the order of their names and always keeps the same number of them
//! running, so a test begins when an earlier one ends. The order in which the results arrive shows
//! which one.

use std::time::Duration;

/// When the tests of one libtest process ended.
#[derive(Debug)]
pub(super) struct Ends {
    /// Number of tests that run in parallel.
    threads: usize,
    /// Names in the order in which the tests ended, each with the time since the process began.
    ends: Vec<(String, Duration)>,
}

/// A test and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Time {
    pub(super) test: String,
    pub(super) took: Duration,
}

impl Ends {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            ends: Vec::new(),
        }
    }

    /// Handles a line that libtest wrote `since` after the process began.
    pub(super) fn take(&mut self, line: &str, since: Duration) {
        if let Some(test) = ended(line) {
            self.ends.push((test.to_owned(), since));
        }
    }

    /// The duration of every test, with `binary` before its name. If the output of a test's
    /// children hid its result, a neighbour's duration is that of both.
    pub(super) fn times(&self, binary: &str) -> Vec<Time> {
        let mut in_order: Vec<&(String, Duration)> = self.ends.iter().collect();
        in_order.sort_by(|one, other| one.0.cmp(&other.0));
        let begins = std::iter::repeat_n(Duration::ZERO, self.threads)
            .chain(self.ends.iter().map(|(_, end)| *end));
        let times = in_order
            .iter()
            .zip(begins)
            .map(|((test, end), begin)| Time {
                test: format!("{binary}::{test}"),
                took: end.saturating_sub(begin),
            });
        times.collect()
    }
}

/// The test that `test NAME ... ok` describes; an ignored test never ran.
fn ended(line: &str) -> Option<&str> {
    let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let test = test.strip_suffix(" - should panic").unwrap_or(test);
    matches!(result, "ok" | "FAILED").then_some(test)
}

/// A line for each of the `most` slowest tests that took a second and more.
pub(super) fn slowest(times: &[Time], most: usize) -> Vec<String> {
    let mut slow: Vec<&Time> = times.iter().filter(|it| it.took.as_secs() >= 1).collect();
    slow.sort_by_key(|time| std::cmp::Reverse(time.took));
    let lines = slow.iter().take(most);
    lines
        .map(|it| format!("{:>8.1} s  {}", it.took.as_secs_f64(), it.test))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(threads: usize, lines: &[(&str, u64)], expected: &[(&str, u64)]) {
        let mut ends = Ends::new(threads);
        for (line, seconds) in lines {
            ends.take(line, Duration::from_secs(*seconds));
        }
        let times = ends.times("x/it");
        let told: Vec<(&str, u64)> = times
            .iter()
            .map(|it| (it.test.strip_prefix("x/it::").unwrap(), it.took.as_secs()))
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn a_test_begins_when_the_one_before_it_ends() {
        let lines = [
            ("running 3 tests", 0),
            ("test a ... ok", 5),
            ("test b - should panic ... ok", 6),
            ("test c ... FAILED", 10),
        ];
        check(1, &lines, &[("a", 5), ("b", 1), ("c", 4)]);
    }

    #[test]
    fn with_two_threads_the_third_test_begins_when_the_first_of_two_ends() {
        // a: 0 to 9, b: 0 to 2, c: 2 to 3, d: 3 to 12.
        let lines = [
            ("test b ... ok", 2),
            ("test c ... ok", 3),
            ("test a has been running for over 60 seconds", 5),
            ("test a ... ok", 9),
            ("test d ... ok", 12),
        ];
        check(2, &lines, &[("a", 9), ("b", 2), ("c", 1), ("d", 9)]);
    }

    #[test]
    fn ignored_tests_take_no_threads() {
        let lines = [
            ("test b ... ignored, takes an hour", 0),
            ("test a ... ok", 2),
            ("test c ... ok", 3),
        ];
        check(1, &lines, &[("a", 2), ("c", 1)]);
    }

    #[test]
    fn slow_tests_are_listed_from_the_slowest() {
        let time = |test: &str, seconds| Time {
            test: test.to_owned(),
            took: Duration::from_secs(seconds),
        };
        let times = [time("a", 0), time("b", 2), time("c", 30), time("d", 4)];
        assert_eq!(slowest(&times, 2), ["    30.0 s  c", "     4.0 s  d"]);
    }
}
