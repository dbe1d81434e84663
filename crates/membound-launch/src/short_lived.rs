//! Decides which processes of short-lived executables are patched.
//!
//! To patch a process takes two milliseconds, or ten where it loads many libraries. A script or a build may start
//! thousands of processes that hardly run for longer. Where processes of one executable follow each other that fast,
//! only some of them are patched, drawn at random: the code of the others is the same, so what the patches show holds
//! for them.
//! Nor do chosen patches come to a process before it is old enough: to register it for the barriers of a change
//! may take the kernel 20 ms, and the process cannot end before.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::process_key::ProcessKey;

/// Which processes of an executable are patched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShortLived {
    /// All.
    #[default]
    All,
    /// Once several in a row ended this soon after they began, one in 16, drawn at random. Chosen patches
    /// come to a process when it is older than that.
    Some {
        /// Run time from which a process does not count as short-lived, unless patching it takes longer than
        /// a tenth of that.
        below: Duration,
    },
}

impl ShortLived {
    /// [`Some`](Self::Some) for recordings: ten times as long as patching a small process takes.
    pub const OF_RECORDINGS: Self = Self::Some {
        below: Duration::from_millis(20),
    };
}

/// Number of short-lived processes of which one is patched, on average.
pub(crate) const ONE_IN: u64 = 16;
/// A process counts as short-lived if patching it takes more than its run time divided by this.
const MAX_PATCHING_PART: u32 = 10;
/// Number of short-lived processes in a row before any is left out.
const MIN_IN_A_ROW: u32 = 8;

/// The last process of an executable.
#[derive(Debug)]
struct Last {
    key: ProcessKey,
    begun: Instant,
    /// Number of short-lived processes in a row before it.
    in_a_row: u32,
    /// Time for which the last patched one was held to be patched.
    patching: Duration,
}

/// The processes that were started so far.
#[derive(Debug, Default)]
pub(crate) struct Draw {
    which: ShortLived,
    last: Mutex<FxHashMap<PathBuf, Last>>,
}

impl Draw {
    pub(crate) fn new(which: ShortLived) -> Self {
        Self {
            which,
            last: Mutex::default(),
        }
    }

    /// Whether a process that began at `begun` may be a short-lived one.
    pub(crate) fn may_be_short_lived(&self, begun: Instant) -> bool {
        match self.which {
            ShortLived::All => false,
            ShortLived::Some { below } => begun.elapsed() < below,
        }
    }

    /// Notes that the process `key` begins to execute `path` at `now`. If it is not to be
    /// patched, returns the run time below which those before it ended.
    pub(crate) fn leaves_out(
        &self,
        path: &Path,
        key: ProcessKey,
        now: Instant,
        runs: impl FnOnce(ProcessKey) -> bool,
    ) -> Option<Duration> {
        let ShortLived::Some { below } = self.which else {
            return None;
        };
        let mut all = self.last();
        let last = all.get(path);
        let patching = last.map_or(Duration::ZERO, |last| last.patching);
        let below = below.max(MAX_PATCHING_PART * patching);
        let in_a_row = match last {
            Some(last) if now.duration_since(last.begun) >= below => 0,
            // How long it will run is not known yet.
            Some(last) if runs(last.key) => last.in_a_row,
            Some(last) => last.in_a_row.saturating_add(1),
            None => 0,
        };
        let last = Last {
            key,
            begun: now,
            in_a_row,
            patching,
        };
        all.insert(path.to_owned(), last);
        (in_a_row >= MIN_IN_A_ROW && !is_drawn(key)).then_some(below)
    }

    /// Notes for how long a process of this executable was held to be patched.
    pub(crate) fn note_patching(&self, path: &Path, took: Duration) {
        if let Some(last) = self.last().get_mut(path) {
            last.patching = took;
        }
    }

    fn last(&self) -> MutexGuard<'_, FxHashMap<PathBuf, Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True for one process in [`ONE_IN`].
fn is_drawn(key: ProcessKey) -> bool {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish().is_multiple_of(ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts `count` processes at this interval. `runs`: each still runs when the next one starts. Returns how
    /// many were patched.
    fn patched(draw: &Draw, count: u32, interval: Duration, runs: bool) -> u32 {
        let begun = Instant::now();
        let starts = (0..count).map(|number| {
            let key = ProcessKey {
                pid: 100 + number,
                started: 7,
            };
            let now = begun + interval * number;
            let left_out = draw.leaves_out(Path::new("/bin/true"), key, now, |_| runs);
            left_out.is_none()
        });
        starts.map(u32::from).sum()
    }

    const QUICK: Duration = Duration::from_millis(2);

    #[test]
    fn a_process_may_be_short_lived_until_it_is_old_enough() {
        let begun = Instant::now();
        let below = Duration::from_secs(60);
        let some = Draw::new(ShortLived::Some { below });
        assert!(some.may_be_short_lived(begun));
        assert!(!Draw::new(ShortLived::All).may_be_short_lived(begun));
        let old = Draw::new(ShortLived::Some {
            below: Duration::ZERO,
        });
        assert!(!old.may_be_short_lived(begun));
    }

    #[test]
    fn of_many_short_processes_some_are_patched() {
        let some = patched(&Draw::new(ShortLived::OF_RECORDINGS), 1608, QUICK, false);
        assert!((60..160).contains(&some), "{some}");
        assert_eq!(patched(&Draw::new(ShortLived::All), 500, QUICK, false), 500);
    }

    #[test]
    fn processes_that_run_longer_are_all_patched() {
        let slow = patched(
            &Draw::new(ShortLived::OF_RECORDINGS),
            100,
            Duration::from_millis(20),
            false,
        );
        assert_eq!(slow, 100);
        let side_by_side = patched(&Draw::new(ShortLived::OF_RECORDINGS), 100, QUICK, true);
        assert_eq!(side_by_side, 100);
    }

    #[test]
    fn the_longer_patching_takes_the_longer_a_short_process_may_run() {
        let draw = Draw::new(ShortLived::OF_RECORDINGS);
        let path = Path::new("/bin/true");
        let interval = Duration::from_millis(50);
        assert_eq!(patched(&draw, 100, interval, false), 100);
        draw.note_patching(path, Duration::from_millis(4));
        assert_eq!(patched(&draw, 100, interval, false), 100);
        draw.note_patching(path, Duration::from_millis(6));
        assert!(patched(&draw, 100, interval, false) < 40);
    }

    #[test]
    fn a_pause_begins_anew() {
        let draw = Draw::new(ShortLived::OF_RECORDINGS);
        patched(&draw, 100, QUICK, false);
        let later = Instant::now() + Duration::from_secs(1);
        let key = ProcessKey { pid: 1, started: 1 };
        for number in 0..MIN_IN_A_ROW {
            let now = later + QUICK * number;
            let left_out = draw.leaves_out(Path::new("/bin/true"), key, now, |_| false);
            assert_eq!(left_out, None);
        }
    }

    #[test]
    fn executables_are_told_apart() {
        let draw = Draw::new(ShortLived::OF_RECORDINGS);
        patched(&draw, 100, QUICK, false);
        let key = ProcessKey { pid: 1, started: 1 };
        let now = Instant::now() + QUICK * 101;
        let left_out = draw.leaves_out(Path::new("/bin/other"), key, now, |_| false);
        assert_eq!(left_out, None);
    }
}
