//! The interface from windows to programs: exchanges of patches, and timed readings of their counters.

use membound_launch::{Choice, Executed, Pace, Remote};
use membound_rewrite::image::Identity;
use membound_rewrite::patch::Refusal;
use rustc_hash::FxHashMap;

use crate::clock::Clock;

/// A reading of counters that took more than this share of the window is too uncertain to be used.
const WIDEST: f64 = 0.1;
/// Times that counters are read, if the readings are interrupted.
const READS: usize = 3;
/// A reading that took less than this is not repeated.
const NARROW_NS: u64 = 200_000;

/// Changes and reads the patches of programs.
pub(crate) trait Patcher {
    /// See [`Remote::is_ready`].
    fn is_ready(&self, file: &Identity) -> bool;
    /// See [`Remote::exchange`].
    fn exchange(&self, choices: Vec<Choice>) -> u64;
    /// See [`Remote::settled`].
    fn settled(&self, exchange: u64) -> bool;
    /// See [`Remote::executed`].
    fn executed(&self, choice: &Choice) -> Option<Vec<Executed>>;
    /// See [`Remote::changing_ns`].
    fn changing_ns(&self) -> u64;
    /// See [`Remote::refused`].
    fn refused(&self, choice: &Choice) -> Option<Vec<(u64, Refusal)>>;
    /// See [`Remote::arm`].
    fn arm(&self, choice: &Choice, paces: &[(u64, Pace)]);
    /// Nanoseconds since the run began.
    fn now_ns(&self) -> u64;
}

/// The running programs, and the run's clock.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) clock: Clock,
}

impl Patcher for Running<'_> {
    fn is_ready(&self, file: &Identity) -> bool {
        self.remote.is_ready(file)
    }

    fn exchange(&self, choices: Vec<Choice>) -> u64 {
        self.remote.exchange(choices)
    }

    fn settled(&self, exchange: u64) -> bool {
        self.remote.settled(exchange)
    }

    fn executed(&self, choice: &Choice) -> Option<Vec<Executed>> {
        self.remote.executed(choice)
    }

    fn changing_ns(&self) -> u64 {
        self.remote.changing_ns()
    }

    fn refused(&self, choice: &Choice) -> Option<Vec<(u64, Refusal)>> {
        self.remote.refused(choice)
    }

    fn arm(&self, choice: &Choice, paces: &[(u64, Pace)]) {
        self.remote.arm(choice, paces);
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}

/// Counters of a choice's sites at one moment.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) at_ns: u64,
    /// Duration of the reading, in nanoseconds.
    width_ns: u64,
    /// Executions by address.
    of: FxHashMap<u64, u64>,
}

impl Counts {
    /// Reads the counters of a choice's sites, the fastest of a few tries; `None` if it was placed nowhere.
    pub(crate) fn read(patcher: &impl Patcher, choice: &Choice) -> Option<Self> {
        let mut best: Option<Self> = None;
        for _ in 0..READS {
            let before = patcher.now_ns();
            let executed = patcher.executed(choice)?;
            let width_ns = patcher.now_ns().saturating_sub(before);
            if best.as_ref().is_none_or(|it| width_ns < it.width_ns) {
                best = Some(Self {
                    at_ns: before + width_ns / 2,
                    width_ns,
                    of: executed
                        .into_iter()
                        .map(|it| (it.address, it.executions))
                        .collect(),
                });
            }
            if width_ns < NARROW_NS {
                break;
            }
        }
        best
    }

    /// Executions by address between this reading and `after`.
    pub(crate) fn until(&self, after: &Self) -> FxHashMap<u64, u64> {
        let grown = after.of.iter().map(|(address, count)| {
            let known = self.of.get(address).copied().unwrap_or(0);
            (*address, count.saturating_sub(known))
        });
        grown.collect()
    }

    /// True if the times of both readings are precise enough, compared with the time between them.
    pub(crate) fn is_sharp(&self, after: &Self) -> bool {
        let length = after.at_ns.saturating_sub(self.at_ns) as f64;
        // Each may have been read at any moment of its duration.
        ((self.width_ns + after.width_ns) as f64) < 2.0 * WIDEST * length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(at_ns: u64, width_ns: u64, of: &[(u64, u64)]) -> Counts {
        Counts {
            at_ns,
            width_ns,
            of: of.iter().copied().collect(),
        }
    }

    #[test]
    fn what_was_read_too_slowly_for_its_window_is_not_sharp() {
        let before = counts(1_000_000, 100_000, &[(8, 5), (16, 7)]);
        let after = counts(11_000_000, 900_000, &[(8, 25), (16, 7), (24, 3)]);
        assert!(before.is_sharp(&after));
        let grown = before.until(&after);
        assert_eq!((grown[&8], grown[&16], grown[&24]), (20, 0, 3));
        let late = counts(11_000_000, 2_500_000, &[]);
        assert!(!before.is_sharp(&late));
        assert!(!before.is_sharp(&before), "nothing lies between");
    }
}
