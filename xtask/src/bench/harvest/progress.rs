//! Work that programs have done, read from outside while they run: the file of counters that
//! `bench/harvest/common.h` describes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};

/// Environment variable with the path of the file.
pub(super) const VARIABLE: &str = "HARVEST_PROGRESS";
const FILE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;
/// Interval between two polls of the counters.
const LOOK: Duration = Duration::from_millis(10);

/// Units done by all programs that count, at one time of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    at_ns: f64,
    units: f64,
    /// Number of programs that have done work.
    working: usize,
}

impl Look {
    /// The sum of all counters: every line except the first begins with one.
    fn of(at_ns: f64, bytes: &[u8; FILE_BYTES]) -> Self {
        let lines = bytes.chunks_exact(LINE_BYTES).skip(1);
        let counts = lines.filter_map(|line| line.first_chunk().copied().map(u64::from_ne_bytes));
        Self {
            at_ns,
            units: counts.clone().sum::<u64>() as f64,
            working: counts.filter(|count| *count > 0).count(),
        }
    }
}

/// Polls the counters in a thread.
pub(super) struct Watch {
    path: PathBuf,
    end: Sender<()>,
    thread: JoinHandle<Vec<Look>>,
}

/// Counters over the time of a run.
#[derive(Debug, Default)]
pub(super) struct Progress {
    looks: Vec<Look>,
}

impl Watch {
    /// Creates the file of counters at `path`, all 0, and polls it until the watch is ended.
    pub(super) fn begin(path: &Path) -> Result<Self> {
        std::fs::write(path, [0; FILE_BYTES])
            .with_context(|| format!("cannot write {}", path.display()))?;
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let (end, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut looks = Vec::new();
            loop {
                // The last poll comes after the end, so that a poll follows every earlier time.
                let last = ended.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
                let mut bytes = [0; FILE_BYTES];
                // A failed poll is left out; the figure fails if too few remain.
                if file.read_exact_at(&mut bytes, 0).is_ok() {
                    looks.push(Look::of(now_ns(), &bytes));
                }
                if last {
                    return looks;
                }
            }
        });
        Ok(Self {
            path: path.to_owned(),
            end,
            thread,
        })
    }

    /// The file, for [`VARIABLE`].
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Stops polling and returns the counts.
    pub(super) fn end(self) -> Result<Progress> {
        drop(self.end);
        let looks = self.thread.join();
        let looks = looks.map_err(|_| anyhow!("the thread that read counts panicked"))?;
        Ok(Progress { looks })
    }
}

impl Progress {
    /// Units done from `from_ns` to `to_ns` of CLOCK_MONOTONIC, interpolated between polls. An
    /// error if no poll precedes the first time or none follows the second.
    pub(super) fn units(&self, from_ns: f64, to_ns: f64) -> Result<f64> {
        let at = |ns| self.at(ns).context("the counts were not looked at in time");
        Ok(at(to_ns)? - at(from_ns)?)
    }

    /// The time of CLOCK_MONOTONIC from which on `count` programs were observed working, so that
    /// the preparation of each is over. `None` if there were never as many.
    pub(super) fn all_work_from_ns(&self, count: usize) -> Option<f64> {
        let first = self.looks.iter().find(|look| look.working >= count);
        first.map(|look| look.at_ns)
    }

    fn at(&self, ns: f64) -> Option<f64> {
        let after = self.looks.partition_point(|look| look.at_ns < ns);
        let (before, next) = (
            self.looks.get(after.checked_sub(1)?)?,
            self.looks.get(after)?,
        );
        let share = (ns - before.at_ns) / (next.at_ns - before.at_ns);
        Some(before.units + share * (next.units - before.units))
    }
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of the times that programs print.
fn now_ns() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live variable of the type that is filled.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_between_two_times_is_interpolated_and_never_guessed() {
        let looks = [(100.0, 0.0, 0), (200.0, 50.0, 1), (300.0, 250.0, 2)];
        let looks = looks.map(|(at_ns, units, working)| Look {
            at_ns,
            units,
            working,
        });
        let looks = looks.to_vec();
        let progress = Progress { looks };
        let units = |from, to| progress.units(from, to).ok();
        assert_eq!(units(150.0, 250.0), Some(125.0));
        assert_eq!(units(200.0, 300.0), Some(200.0));
        assert_eq!(units(100.0, 200.0), None);
        assert_eq!(units(150.0, 301.0), None);
        assert_eq!(progress.all_work_from_ns(2), Some(300.0));
        assert_eq!(progress.all_work_from_ns(3), None);
    }

    #[test]
    fn counts_of_all_lines_but_the_first_are_one_sum() {
        let mut bytes = [0; FILE_BYTES];
        for (line, count) in [(0, 2_u64), (1, 40), (2, 3)] {
            bytes[line * LINE_BYTES..][..8].copy_from_slice(&count.to_ne_bytes());
        }
        let look = Look::of(1.0, &bytes);
        assert_eq!((look.units, look.working), (43.0, 2));
    }

    #[test]
    fn a_watch_sees_what_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let watch = Watch::begin(&directory.path().join("counts")).unwrap();
        let file = File::options().write(true).open(watch.path()).unwrap();
        file.write_all_at(&7_u64.to_ne_bytes(), LINE_BYTES as u64)
            .unwrap();
        let progress = watch.end().unwrap();
        assert_eq!(progress.looks.last().map(|look| look.units), Some(7.0));
    }
}
