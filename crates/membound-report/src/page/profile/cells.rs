//! Groups samples into as many cells as a page can hold: by thread, call chain, object, level and span of
//! time.
//!
//! If there are too many cells, they are thinned by systematic resampling over their weights in the order
//! of their groups, which keeps the time of every group to within one step; the page mentions it.

use membound_types::{Detail, Profile};

use crate::facts::run;
use crate::units::positive;

/// Fewest samples of a busy thread in a span: with fewer, the chance difference of a sample would be
/// visible.
const SAMPLES_A_BIN: f64 = 20.0;
const MIN_BINS: u32 = 40;

/// Properties that the samples of a group share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) thread: u32,
    pub(super) stack: u32,
    pub(super) object: Option<u32>,
    pub(super) level: Option<u8>,
}

/// Time of one group in one span, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) bin: u32,
    pub(super) weight_s: f64,
    pub(super) stall_s: f64,
}

/// A group with its cells, sorted by time.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) key: Key,
    pub(super) cells: Vec<Cell>,
}

/// Resolution of the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// Number of spans into which the run is divided.
    pub(super) bins: u32,
    /// Largest number of cells; more are thinned.
    pub(super) most: usize,
    /// Most characters of a name; longer ones lose their middle.
    pub(super) letters: usize,
    /// Most rows of a grouping that are embedded with their figures over the whole run.
    pub(super) rows: usize,
}

impl Grain {
    pub(super) const FINEST: Self = Self {
        bins: 320,
        most: 400_000,
        letters: 240,
        rows: 1500,
    };

    /// Next coarser resolution for a page of `held` cells that is `excess` times too large; `None` if cells
    /// cannot be reduced further.
    pub(super) fn coarser(self, held: usize, excess: f64) -> Option<Self> {
        if self.bins > 160 {
            return Some(Self {
                bins: self.bins / 2,
                ..self
            });
        }
        if self.most <= 16 {
            return None;
        }
        // Names do not shrink like cells, so one step may not suffice.
        let wanted = held as f64 / excess.max(1.0);
        Some(Self {
            most: (wanted as usize).min(self.most / 4 * 3).max(16),
            letters: (self.letters * 3 / 4).max(40),
            rows: (self.rows * 3 / 4).max(50),
            ..self
        })
    }
}

/// A run divided into cells.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub(super) bins: u32,
    /// Start of the first span, in seconds since the run began.
    pub(super) from_s: f64,
    pub(super) duration_s: f64,
    pub(super) groups: Vec<Group>,
    /// True if cells were thinned: some were left out and others made heavier.
    pub(super) thinned: bool,
}

impl Cells {
    pub(super) fn of(profile: &Profile, detail: &Detail, grain: Grain) -> Self {
        let last_s = detail
            .samples
            .iter()
            .map(|sample| positive(sample.t_s))
            .fold(0.0, f64::max);
        let (from_s, to_s) = run::span(profile);
        let from_s = positive(from_s);
        let duration_s = (positive(to_s).max(last_s) - from_s).max(0.0);
        let bins = whole_periods(
            grain.bins.min(readable(detail, duration_s)),
            detail.periods.len() as u32,
        );
        let bin = |t_s: f64| {
            if duration_s > 0.0 {
                let since_s = positive(t_s - from_s);
                ((since_s / duration_s * f64::from(bins)) as u32).min(bins - 1)
            } else {
                0
            }
        };
        let mut all: Vec<(Key, Cell)> = detail
            .samples
            .iter()
            .filter(|sample| (sample.stack as usize) < detail.stacks.len())
            .map(|sample| {
                let weight_s = positive(sample.weight_s);
                let key = Key {
                    thread: sample.thread,
                    stack: sample.stack,
                    object: sample.object,
                    level: sample.level,
                };
                let cell = Cell {
                    bin: bin(sample.t_s),
                    weight_s,
                    stall_s: positive(sample.stall_s).min(weight_s),
                };
                (key, cell)
            })
            .collect();
        // Sorted by key and bin, so that equal cells are neighbours and groups are contiguous.
        all.sort_unstable_by_key(|(key, cell)| (*key, cell.bin));
        all.dedup_by(|(key, cell), (kept_key, kept)| {
            let same = key == kept_key && cell.bin == kept.bin;
            if same {
                kept.weight_s += cell.weight_s;
                kept.stall_s += cell.stall_s;
            }
            same
        });
        let thinned = all.len() > grain.most;
        if thinned {
            thin(&mut all, grain.most);
        }
        let mut groups: Vec<Group> = Vec::new();
        for (key, cell) in all {
            match groups.last_mut().filter(|group| group.key == key) {
                Some(group) => group.cells.push(cell),
                None => groups.push(Group {
                    key,
                    cells: vec![cell],
                }),
            }
        }
        Self {
            bins,
            from_s,
            duration_s,
            groups,
            thinned,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.groups.iter().map(|group| group.cells.len()).sum()
    }

    /// Busy and stalled seconds of a thread (or of all threads) in each span.
    pub(super) fn lane(&self, thread: Option<u32>) -> Vec<(f64, f64)> {
        let mut out = vec![(0.0, 0.0); self.bins as usize];
        let groups = self
            .groups
            .iter()
            .filter(|group| thread.is_none_or(|thread| group.key.thread == thread));
        for cell in groups.flat_map(|group| &group.cells) {
            let (weight, stall) = &mut out[cell.bin as usize];
            *weight += cell.weight_s;
            *stall += cell.stall_s;
        }
        out
    }
}

/// `bins` or slightly fewer, so that every period begins at the start of a span.
const fn whole_periods(bins: u32, periods: u32) -> u32 {
    if periods == 0 || bins < periods {
        bins
    } else {
        bins / periods * periods
    }
}

/// Number of spans that hold enough samples of a busy thread for an even appearance.
fn readable(detail: &Detail, duration_s: f64) -> u32 {
    let total: f64 = detail.samples.iter().map(|it| positive(it.weight_s)).sum();
    if total <= 0.0 {
        return MIN_BINS;
    }
    let mean_s = total / detail.samples.len() as f64;
    let bins = duration_s / (mean_s * SAMPLES_A_BIN);
    (bins as u32).clamp(MIN_BINS, u32::MAX)
}

/// Keeps at most `most` cells: those that contain a multiple of an equal step along the sum of weights. A
/// cell gets the weight of the steps that it contains.
fn thin(cells: &mut Vec<(Key, Cell)>, most: usize) {
    let total: f64 = cells.iter().map(|(_, cell)| cell.weight_s).sum();
    if total <= 0.0 {
        cells.truncate(most);
        return;
    }
    let step = total / most as f64;
    let (mut sum, mut met) = (0.0, 0.0);
    cells.retain_mut(|(_, cell)| {
        sum += cell.weight_s;
        // Steps are centred in their intervals.
        let until = (sum / step + 0.5).floor();
        let steps = until - met;
        met = until;
        if steps <= 0.0 || cell.weight_s <= 0.0 {
            return false;
        }
        let ratio = cell.stall_s / cell.weight_s;
        cell.weight_s = steps * step;
        cell.stall_s = cell.weight_s * ratio;
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stack: u32) -> Key {
        Key {
            thread: 0,
            stack,
            object: None,
            level: None,
        }
    }

    #[test]
    fn thinning_keeps_the_time_of_every_group_to_within_a_step() {
        let mut cells: Vec<(Key, Cell)> = (0..10_000u32)
            .map(|index| {
                let weight_s = 1.0 + f64::from(index * 7919 % 13) / 10.0;
                let cell = Cell {
                    bin: index % 100,
                    weight_s,
                    stall_s: weight_s / 4.0,
                };
                (key(index / 1000), cell)
            })
            .collect();
        let sum = |cells: &[(Key, Cell)], stack: u32| -> f64 {
            cells
                .iter()
                .filter(|(key, _)| key.stack == stack)
                .map(|(_, cell)| cell.weight_s)
                .sum()
        };
        let before: Vec<f64> = (0..10).map(|stack| sum(&cells, stack)).collect();
        let total: f64 = before.iter().sum();
        thin(&mut cells, 500);
        assert!(cells.len() <= 500, "{}", cells.len());
        for (stack, before) in before.iter().enumerate() {
            let after = sum(&cells, stack as u32);
            assert!((after - before).abs() <= total / 500.0, "{before} {after}");
        }
        let stall: f64 = cells.iter().map(|(_, cell)| cell.stall_s).sum();
        assert!((stall / total - 0.25).abs() < 0.003);
    }

    #[test]
    fn grains_end() {
        let mut grain = Grain::FINEST;
        let mut steps = 0;
        while let Some(coarser) = grain.coarser(grain.most, 1.0) {
            grain = coarser;
            steps += 1;
        }
        assert!(steps < 50 && grain.most <= 16, "{steps} {grain:?}");
        let large = Grain {
            bins: 160,
            ..Grain::FINEST
        };
        let next = large.coarser(400_000, 4.0).expect("there is a coarser one");
        assert_eq!(next.most, 100_000);
    }
}
