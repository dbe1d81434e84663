//! What recorded accesses come to: counts, times, lines.

use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Accesses as they are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Process that made it.
    pub pid: u32,
    /// Thread that made it, as the program numbers it.
    pub thread: u32,
    /// Which of [`Source`]'s modules, in the order of their first records.
    pub module: usize,
    /// Address of the instruction in the module's file.
    pub site: u64,
    /// Address accessed.
    pub address: u64,
    /// Ticks of the time stamp counter that the fenced access took, overhead included;
    /// `None` when it was not timed.
    pub ticks: Option<u32>,
    /// The same of a load just before that the innermost cache served.
    pub hit: Option<u32>,
    /// Ticks until the stores that were under way before it were done; `None` in a burst.
    pub drain: Option<u32>,
    /// Time stamp counter when it was recorded.
    pub tsc: u64,
    /// Whether it stores.
    pub store: bool,
    /// Whether accesses that were to be recorded before it in the same thread are missing.
    pub after_gap: bool,
    /// Whether it is one of all that were made, as in a burst, and no sample.
    pub burst: bool,
}

/// The file that an [`Access`] belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: std::path::PathBuf,
}

/// Is given accesses while programs run.
pub trait Receiver: Send + Sync + std::fmt::Debug {
    /// Accesses recorded since the last call, in the order of each thread's; `sources` by
    /// [`Access::module`]. It is called from one thread; while it works, rings fill.
    fn receive(&self, sources: &[Source], accesses: &[Access]);
}

/// Lines told apart over all modules: beyond, new ones are only known to be more.
const LINES: usize = 1 << 22;
/// Bytes of what is called a line here.
pub const LINE_BYTES: u64 = 64;

/// What the accesses of one instruction or one file come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Accesses that were timed.
    pub timed: u64,
    /// Accesses that were recorded without a time.
    pub untimed: u64,
    /// Those among them that store.
    pub stores: u64,
    /// Ticks of the timed ones: how many took so many, in steps of at most 1/64.
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

    /// The least ticks that at least `share` (0 to 1) of the timed accesses do not exceed;
    /// `None` when none was timed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<u32> {
        let wanted = (share * self.timed as f64).ceil().max(1.0);
        let mut seen = 0.0;
        for (ticks, count) in &self.ticks {
            seen += *count as f64;
            if seen >= wanted {
                return Some(*ticks);
            }
        }
        self.ticks.keys().next_back().copied()
    }
}

/// The lower end of the step that `ticks` is counted in.
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

/// All accesses of one module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) all: Samples,
    pub(crate) sites: FxHashMap<u32, Samples>,
    lines: FxHashSet<(usize, u64)>,
    /// Whether there were lines that found no room.
    more_lines: bool,
}

impl Recorded {
    /// Counts an access by the site with this number; `image` tells address spaces apart, and
    /// `lines` counts the lines of all modules.
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

    /// Distinct lines; `None` when there were too many to tell apart.
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
