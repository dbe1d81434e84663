//! Live bytes over time, by call chain and function.
//!
//! Time is cut into steps. The history of a heap has a bounded number of steps: when there are too many,
//! every two become one. A long run therefore has longer steps than a short one, and each step keeps its
//! peak, so that no peak is lost.

use membound_launch::AllocationFunction;
use rustc_hash::FxHashMap;

use crate::allocation_sums::Totals;

/// Length of a step in nanoseconds when a run begins.
const FIRST_STEP_NS: u64 = 1 << 20;
/// Steps that a heap keeps in memory, over all its call chains: 24 bytes each.
const MAX_STEPS: usize = 200_000;
/// Steps that a run is divided into in the file.
const STEPS_IN_FILE: u32 = 512;
/// Call chains that never had as many live bytes have no history: they would be most of the chains, and
/// nothing of the memory.
const MIN_BYTES: f64 = 4096.0;

/// A call chain, as the process numbers it, and the function that allocated.
type Key = (u32, AllocationFunction);

/// Live bytes of one call chain in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    number: u32,
    /// Live bytes at the end of the step.
    pub(crate) bytes: f64,
    /// Most live bytes during the step.
    pub(crate) peak_bytes: f64,
}

/// Live bytes over time of all call chains of a heap.
#[derive(Debug)]
pub(crate) struct LiveHistory {
    step_ns: u64,
    steps: usize,
    most_steps: usize,
    series: FxHashMap<Key, Vec<Step>>,
}

impl Default for LiveHistory {
    fn default() -> Self {
        Self {
            step_ns: FIRST_STEP_NS,
            steps: 0,
            most_steps: MAX_STEPS,
            series: FxHashMap::default(),
        }
    }
}

impl LiveHistory {
    /// Notes the live bytes of a call chain that changed at `t_ns`.
    pub(crate) fn note(&mut self, key: Key, t_ns: u64, totals: &Totals) {
        if totals.peak_bytes < MIN_BYTES {
            return;
        }
        let bytes = totals.live_bytes.max(0.0);
        let number = u32::try_from(t_ns / self.step_ns).unwrap_or(u32::MAX);
        let series = self.series.entry(key).or_default();
        // Events of several threads may be some microseconds out of order.
        match series.last_mut() {
            Some(last) if last.number >= number => {
                last.bytes = bytes;
                last.peak_bytes = last.peak_bytes.max(bytes);
                return;
            }
            last => {
                let before = last.map_or(0.0, |last| last.bytes);
                series.push(Step {
                    number,
                    bytes,
                    peak_bytes: before.max(bytes),
                });
            }
        }
        self.steps += 1;
        if self.steps > self.most_steps {
            self.coarsen();
        }
    }

    /// Makes one step of every two.
    fn coarsen(&mut self) {
        self.step_ns *= 2;
        self.steps = 0;
        for series in self.series.values_mut() {
            for step in &mut *series {
                step.number /= 2;
            }
            series.dedup_by(|next, into| {
                let same = next.number == into.number;
                if same {
                    into.bytes = next.bytes;
                    into.peak_bytes = into.peak_bytes.max(next.peak_bytes);
                }
                same
            });
            self.steps += series.len();
        }
    }

    /// The history in at most [`STEPS_IN_FILE`] steps per chain, each with its start and end in nanoseconds.
    pub(crate) fn finished(&mut self) -> impl Iterator<Item = (Key, u64, u64, Step)> {
        let last = |series: &Vec<Step>| series.last().map_or(0, |step| step.number);
        while self.series.values().map(last).max().unwrap_or(0) >= STEPS_IN_FILE {
            self.coarsen();
        }
        let step_ns = self.step_ns;
        self.series.iter().flat_map(move |(key, series)| {
            series.iter().map(move |step| {
                let from_ns = u64::from(step.number) * step_ns;
                (*key, from_ns, from_ns + step_ns, *step)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (7, AllocationFunction::Malloc);

    /// Notes live bytes at times; the peak is the most so far, as in a heap.
    fn noted(history: &mut LiveHistory, live: &[(u64, f64)]) {
        let mut totals = Totals::default();
        for (t_ns, bytes) in live {
            totals.live_bytes = *bytes;
            totals.peak_bytes = totals.peak_bytes.max(*bytes);
            history.note(KEY, *t_ns, &totals);
        }
    }

    fn rows(history: &mut LiveHistory) -> Vec<(u64, f64, f64)> {
        history
            .finished()
            .map(|(_, from_ns, _, step)| (from_ns, step.bytes, step.peak_bytes))
            .collect()
    }

    #[test]
    fn steps_hold_what_was_live_at_their_end_and_the_most_in_between() {
        let step = FIRST_STEP_NS;
        let mut history = LiveHistory::default();
        noted(
            &mut history,
            &[
                (0, 5e3),
                (10, 9e3),
                (20, 6e3),
                (3 * step, 1e3),
                (3 * step + 1, 2e3),
            ],
        );
        assert_eq!(
            rows(&mut history),
            [(0, 6e3, 9e3), (3 * step, 2e3, 6e3)],
            "the peak of a step has what was live when it began"
        );
    }

    #[test]
    fn small_chains_have_no_history() {
        let mut history = LiveHistory::default();
        noted(&mut history, &[(0, 100.0), (5, MIN_BYTES - 1.0)]);
        assert_eq!(rows(&mut history), []);
    }

    #[test]
    fn long_runs_have_longer_steps_and_keep_their_peaks() {
        let mut history = LiveHistory {
            most_steps: 100,
            ..LiveHistory::default()
        };
        let live: Vec<(u64, f64)> = (0..100_000)
            .map(|at| (at * FIRST_STEP_NS, if at == 71_234 { 1e9 } else { 1e6 }))
            .collect();
        noted(&mut history, &live);
        assert!(history.steps <= 100);
        let rows = rows(&mut history);
        let peaks: Vec<_> = rows.iter().filter(|row| row.2 == 1e9).collect();
        let [(from_ns, ..)] = peaks[..] else {
            panic!("{peaks:?}");
        };
        let at_ns = 71_234 * FIRST_STEP_NS;
        assert!((*from_ns..from_ns + history.step_ns).contains(&at_ns));
    }
}
