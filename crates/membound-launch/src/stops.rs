//! How long changes of running text stopped threads of the programs.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Histogram of live changes of text, by the longest time that a thread stood still or waited in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Element `i` counts the changes whose longest stop had `i` binary digits in microseconds: 0 µs for
    /// element 0, from `2^(i-1)` to less than `2^i` for others. The last element is that of the longest
    /// stop.
    pub counts: Vec<u64>,
    /// The longest stop, in nanoseconds.
    pub longest_ns: u64,
    /// Sum of the time, in nanoseconds, in which text was being changed: threads stood, or met traps.
    pub changing_ns: u64,
}

impl Stops {
    fn note(&mut self, stop_ns: u64, changing_ns: u64) {
        const NS_IN_US: u64 = 1000;
        let digits = (u64::BITS - (stop_ns / NS_IN_US).leading_zeros()) as usize;
        if self.counts.len() <= digits {
            self.counts.resize(digits + 1, 0);
        }
        self.counts[digits] += 1;
        self.longest_ns = self.longest_ns.max(stop_ns);
        self.changing_ns += changing_ns;
    }
}

/// The histogram of all programs of a session.
#[derive(Debug, Default)]
pub(crate) struct StopLog(Mutex<Stops>);

impl StopLog {
    /// Counts a change that took `changing_ns`, and whose longest stop took `stop_ns`.
    pub(crate) fn note(&self, stop_ns: u64, changing_ns: u64) {
        self.lock().note(stop_ns, changing_ns);
    }

    /// All changes so far.
    pub(crate) fn so_far(&self) -> Stops {
        self.lock().clone()
    }

    /// [`Stops::changing_ns`] so far.
    pub(crate) fn changing_ns(&self) -> u64 {
        self.lock().changing_ns
    }

    fn lock(&self) -> MutexGuard<'_, Stops> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_counted_by_their_binary_digits_in_microseconds() {
        let log = StopLog::default();
        for stop_ns in [0, 999, 1000, 1999, 2000, 3999, 1_000_000] {
            log.note(stop_ns, 5);
        }
        let stops = log.so_far();
        assert_eq!(stops.counts, [2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((stops.longest_ns, stops.changing_ns), (1_000_000, 35));
    }
}
