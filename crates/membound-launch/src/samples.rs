//! Sums of recorded accesses: counts, times, lines.

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// One recorded access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Process that made it.
    pub pid: u32,
    /// Number of the thread that made it, in the program's namespace.
    pub thread: u32,
    /// Index of its module in the [`Source`]s, in the order of their first records.
    pub module: usize,
    /// Address of the instruction in the module's file.
    pub site: u64,
    /// Address accessed.
    pub address: u64,
    /// Ticks of the time stamp counter that the fenced access took, overhead included;
    /// `None` when it was not timed.
    pub ticks: Option<u32>,
    /// The same for a load just before that was served by the innermost cache.
    pub hit: Option<u32>,
    /// Ticks until the outstanding stores before it were done; `None` in a burst.
    pub drain: Option<u32>,
    /// Time stamp counter when it was recorded.
    pub tsc: u64,
    /// True if it stores.
    pub store: bool,
    /// True if accesses of the same thread that were to be recorded before it are missing.
    pub after_gap: bool,
    /// True if it was recorded in a burst, with all others, and is no sample.
    pub burst: bool,
}

/// The file of an [`Access`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the file.
    pub path: std::path::PathBuf,
}

/// Receives accesses while programs run.
pub trait Receiver: Send + Sync + std::fmt::Debug {
    /// Receives the accesses recorded since the last call; those of one thread are in order.
    /// [`Access::module`] is an index of `sources`. Called from one thread; rings fill while it works.
    fn receive(&self, sources: &[Source], accesses: &[Access]);
}

/// Most distinct lines over all modules; with more, only their existence is noted.
const LINES: usize = 1 << 22;
/// Bytes of a line, as counted here.
pub const LINE_BYTES: u64 = 64;

/// Sums of the accesses of one instruction or one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Accesses that were timed.
    pub timed: u64,
    /// Accesses that were recorded without a time.
    pub untimed: u64,
    /// Number of both that store.
    pub stores: u64,
    /// Histogram of the timed ones by ticks, in steps of at most 1/64.
    ticks: BTreeMap<u32, u64>,
}

impl Samples {
    pub(crate) fn add(&mut self, access: &Access) {
        self.stores += u64::from(access.store);
        match access.ticks {
            Some(ticks) => {
                self.timed += 1;
                *self.ticks.entry(step(ticks)).or_default() += 1;
            }
            None => self.untimed += 1,
        }
    }

    /// The smallest number of ticks that at least `share` (0 to 1) of the timed accesses do not exceed;
    /// `None` if none was timed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u32> {
        let wanted = (share * self.timed as f64).ceil().max(1.0);
        let mut covered = 0.0;
        for (ticks, count) in &self.ticks {
            covered += *count as f64;
            if covered >= wanted {
                return Some(*ticks);
            }
        }
        self.ticks.keys().next_back().copied()
    }
}

/// Lower bound of the histogram step of `ticks`.
const fn step(ticks: u32) -> u32 {
    const EXACT_BITS: u32 = 12;
    let bits = u32::BITS - ticks.leading_zeros();
    if bits <= EXACT_BITS {
        ticks
    } else {
        let dropped = bits - 7;
        ticks >> dropped << dropped
    }
}

/// Sums of all accesses of one module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) all: Samples,
    pub(crate) sites: FxHashMap<u32, Samples>,
    lines: FxHashSet<(usize, u64)>,
    /// True if there were lines that found no room.
    more_lines: bool,
}

impl Recorded {
    /// Counts an access by the site with this number. `image` distinguishes address spaces, and `lines`
    /// counts the lines of all modules.
    pub(crate) fn add(&mut self, image: usize, site: u32, access: &Access, lines: &mut usize) {
        self.all.add(access);
        self.sites.entry(site).or_default().add(access);
        let line = (image, access.address / LINE_BYTES);
        if *lines < LINES {
            *lines += usize::from(self.lines.insert(line));
        } else if !self.lines.contains(&line) {
            self.more_lines = true;
        }
    }

    /// Number of distinct lines; `None` if there were too many to distinguish.
    pub(crate) fn lines(&self) -> Option<u64> {
        (!self.more_lines).then_some(self.lines.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64, ticks: Option<u32>) -> Access {
        Access {
            pid: 1,
            thread: 1,
            module: 0,
            site: 0,
            address,
            ticks,
            hit: None,
            drain: None,
            tsc: 0,
            store: ticks.is_none(),
            after_gap: false,
            burst: false,
        }
    }

    #[test]
    fn quantiles_are_exact_for_short_times_and_near_for_long_ones() {
        let mut samples = Samples::default();
        assert_eq!(samples.quantile(0.5), None);
        for ticks in 1..=100 {
            samples.add(&access(0, Some(ticks)));
        }
        assert_eq!(samples.quantile(0.5), Some(50));
        assert_eq!(samples.quantile(0.9), Some(90));
        assert_eq!(samples.quantile(0.0), Some(1));
        assert_eq!(samples.quantile(1.0), Some(100));
        for ticks in [4095, 4096, 5000, 123_456, u32::MAX] {
            let step = step(ticks);
            assert!(step <= ticks && ticks - step <= ticks / 64, "{ticks}");
        }
    }

    #[test]
    fn lines_are_told_apart_by_address_space_too() {
        let mut recorded = Recorded::default();
        let mut lines = 0;
        for (image, address) in [(0, 0), (0, 63), (0, 64), (1, 0), (1, 8)] {
            recorded.add(image, 3, &access(address, None), &mut lines);
        }
        assert_eq!((recorded.lines(), lines), (Some(3), 3));
        assert_eq!(recorded.sites[&3].untimed, 5);
        assert_eq!(recorded.all.stores, 5);
        lines = LINES;
        recorded.add(0, 3, &access(9, None), &mut lines);
        assert_eq!(recorded.lines(), Some(3));
        recorded.add(0, 3, &access(640, None), &mut lines);
        assert_eq!(recorded.lines(), None);
    }
}
