//! Describes a site's latency histogram as a mixture of calibrated histograms.
//!
//! Expectation maximisation (Dempster, Laird and Rubin, 1977) finds the shares of greatest
//! likelihood, over bins that follow the calibration. Intervals come
//! from resampling both the site's histogram and the calibration's, and are never narrower
//! than the interval of a share of that many accesses (Wilson, 1927).

use membound_types::{Calibration, TickCount};

use super::bins::{self, Bins};
use super::resample::Resampler;
use super::timing::Axis;
use super::{Estimate, Served, Timing};
use crate::stats::Z95;

/// Reasons why a calibration cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMixture {
    /// The calibration has no level with a histogram and a latency.
    #[error("the machine profile has no calibrated levels")]
    NotCalibrated,
    /// The innermost level is not among the calibrated ones.
    #[error("the calibration lacks the innermost level")]
    NoInnermost,
    /// The calibration was measured with another patch.
    #[error("the calibration was measured with another build's patch")]
    OtherPatch,
}

/// The share of accesses that one level served.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelShare {
    /// Name of the level in the calibration.
    pub name: String,
    /// Where the level is.
    pub served: Served,
    /// Share of the accesses, 0 to 1. Levels that cannot be distinguished (see
    /// [`Mixture::indistinguishable`]) each have their most likely share and a correspondingly wide interval.
    pub share: Estimate,
    /// Latency of the level in nanoseconds.
    pub latency_ns: f64,
}

/// The composition of a latency histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// The levels of the calibration, innermost first. Their shares and `beyond` sum to 1.
    pub levels: Vec<LevelShare>,
    /// Share slower than every calibrated level, because of address translation or contention.
    pub beyond: Estimate,
    /// Average latency of the accesses in `beyond`, in nanoseconds.
    pub beyond_ns: f64,
    /// Groups of levels (positions in `levels`) that the timer cannot distinguish, each with
    /// their common share.
    pub indistinguishable: Vec<(Vec<usize>, Estimate)>,
    /// Average latency of all accesses in nanoseconds.
    pub mean_ns: Estimate,
    /// Average latency beyond that of the innermost level, in nanoseconds; the value is 0
    /// unless the histogram shows significantly more.
    pub excess_ns: Estimate,
    /// Number of timed accesses.
    pub timed: u64,
    /// Share of the accesses whose ticks the mixture does not describe (total variation), 0
    /// to 1: high if latencies lie between calibrated levels.
    pub misfit: f64,
}

/// Overlap of two histograms above which their levels are reported together. Above it,
/// a shift of the whole histogram by a fraction of a timer's step, which the code around a
/// load can cause, would move shares from one to the other.
const MAX_DISTINGUISHABLE_OVERLAP: f64 = 0.4;
/// The same limit if one of the two is another core's cache or another node. Few programs
/// load from there, and the latency of a machine's own memory varies (open pages, busy
/// channels, translation) by more than the difference between the two.
const MAX_DISTINGUISHABLE_OVERLAP_REMOTE: f64 = 0.1;
/// Relative standard error of the cost of timing itself, at another position in code.
const TIMING_COST_SIGMA: f64 = 0.01;
/// Most rounds of expectation maximisation, and the change of a share at which it has settled.
const MAX_ROUNDS: usize = 500;
const SETTLED_SHARE_CHANGE: f64 = 1e-6;
/// Rounds for a resampled histogram, which start from the answer.
const MAX_RESAMPLED_ROUNDS: usize = 60;
/// Number of resampled histograms.
const RESAMPLES: usize = 48;
/// Most timed loads that a calibrated histogram counts as: sites differ from the
/// calibration's loop by more than chance.
const MAX_CALIBRATION_WEIGHT_LOADS: f64 = 4000.0;
/// Share of a calibrated bin that is moved to its neighbours, because a site's code differs.
const BLURRED_BIN_SHARE: f64 = 0.02;
/// Multiple of the calibrated range at which ticks are cut: a timed access that was
/// interrupted says nothing about memory.
const INTERRUPTED_RANGE_FACTOR: f64 = 2.0;
/// Limits for attributing loads to the farther of two levels. Loads that took on average less than
/// `MIN_STEP_SHARE` of the way from the nearer level to the farther, and beyond a hit less than
/// `MIN_SLOWDOWN` times as long as the nearer level, were not served by the farther; loads beyond
/// twice either limit were.
const MIN_STEP_SHARE: f64 = 0.25;
const MIN_SLOWDOWN: f64 = 1.5;
/// Least initial share in resampling: a share that starts at zero can never grow.
const MIN_INITIAL_SHARE: f64 = 1e-3;

/// A calibration, prepared for fitting many histograms.
#[derive(Clone, Debug)]
pub struct Mixer {
    levels: Vec<Level>,
    bins: Bins,
    axis: Axis,
    /// Ticks per step of the timer; all its intervals are multiples of it.
    step: u32,
    /// Position of the innermost level in `levels`.
    innermost: usize,
    /// Positions of the levels of the own core and node, nearest first.
    outward: Vec<usize>,
    /// Groups of levels that cannot be distinguished.
    indistinguishable: Vec<Vec<usize>>,
    tick_ns: f64,
}

#[derive(Clone, Debug)]
struct Level {
    name: String,
    served: Served,
    latency_ns: f64,
    /// Timed loads per bin, limited to [`MAX_CALIBRATION_WEIGHT_LOADS`] in all.
    counts: Vec<f64>,
    /// Probability of each bin for a load from this level.
    density: Vec<f64>,
    ticks: Moments,
}

/// Mean of ticks with its error.
#[derive(Clone, Copy, Debug)]
struct Moments {
    mean: f64,
    /// Variance of the mean.
    error2: f64,
}

impl Mixer {
    /// Prepares `calibration`, which must have been measured with the patch named `patch`.
    ///
    /// # Errors
    /// [`NoMixture`] if the calibration is from another patch, or lacks usable levels or the innermost
    /// level.
    pub fn new(calibration: &Calibration, patch: &str) -> Result<Self, NoMixture> {
        if calibration.patch != patch {
            return Err(NoMixture::OtherPatch);
        }
        let usable: Vec<_> = calibration
            .levels
            .iter()
            .filter(|level| level.latency_ns > 0.0 && bins::total(&level.ticks) > 0.0)
            .collect();
        if usable.is_empty() || calibration.tick_hz <= 0.0 {
            return Err(NoMixture::NotCalibrated);
        }
        let innermost = usable
            .iter()
            .position(|level| Served::of(&level.name) == Served::L1)
            .ok_or(NoMixture::NoInnermost)?;
        let raw: Vec<&[TickCount]> = usable.iter().map(|level| level.ticks.as_slice()).collect();
        let step = bins::step(&raw);
        let axis = Axis::of(&usable, innermost);
        let calibrated: Vec<Vec<TickCount>> = usable
            .iter()
            .map(|level| axis.calibrated(usable[innermost], level, step))
            .collect();
        let histograms: Vec<&[TickCount]> = calibrated.iter().map(Vec::as_slice).collect();
        let bins = Bins::of(&histograms);
        let cap = INTERRUPTED_RANGE_FACTOR * f64::from(bins.top());
        let levels: Vec<Level> = usable
            .iter()
            .zip(&calibrated)
            .map(|(level, ticks)| {
                let mut counts = bins.counts(ticks);
                let total: f64 = counts.iter().sum();
                for count in &mut counts {
                    *count *= (MAX_CALIBRATION_WEIGHT_LOADS / total).min(1.0);
                }
                Level {
                    name: level.name.clone(),
                    served: Served::of(&level.name),
                    latency_ns: level.latency_ns,
                    density: density(&counts),
                    counts,
                    ticks: Moments::of(ticks, cap),
                }
            })
            .collect();
        Ok(Self {
            outward: outward(&levels),
            indistinguishable: indistinguishable_groups(&levels),
            levels,
            axis,
            step,
            bins,
            innermost,
            tick_ns: 1e9 / calibration.tick_hz,
        })
    }

    /// The composition of `histogram`; `None` if it is empty.
    #[must_use]
    pub fn fit(&self, histogram: &[TickCount]) -> Option<Mixture> {
        self.fit_timed(histogram, Timing::default())
    }

    /// Like [`Self::fit`], for a histogram whose ticks were corrected by the time of hits at its site.
    #[must_use]
    pub fn fit_timed(&self, histogram: &[TickCount], timing: Timing) -> Option<Mixture> {
        let timed: u64 = histogram.iter().map(|entry| entry.count).sum();
        if timed == 0 {
            return None;
        }
        let at_clock = |ticks| self.axis.at(ticks, timing.pace);
        let counts = self.bins.moved(histogram, self.step, at_clock);
        let bin_ns = self.bin_ns(histogram, at_clock);
        let densities: Vec<&[f64]> = self
            .levels
            .iter()
            .map(|level| level.density.as_slice())
            .collect();
        let even = vec![1.0 / (self.levels.len() + 1) as f64; self.levels.len() + 1];
        let shares = self.shares(&counts, &bin_ns, &densities, even, MAX_ROUNDS);
        let spread = self.spread(histogram, timing, &bin_ns, &shares);
        let sized = timed as f64;
        let estimate = |members: &[usize]| {
            let value: f64 = members.iter().map(|&level| shares[level]).sum();
            let deviation = spread.deviation(members);
            let (low, high) = wilson(value, sized);
            Estimate::new(
                value,
                low.min(value - Z95 * deviation),
                high.max(value + Z95 * deviation),
            )
            .clamped(0.0, 1.0)
        };
        let indistinguishable: Vec<(Vec<usize>, Estimate)> = self
            .indistinguishable
            .iter()
            .map(|group| (group.clone(), estimate(group)))
            .collect();
        let levels = self
            .levels
            .iter()
            .enumerate()
            .map(|(position, level)| {
                let mut share = estimate(&[position]);
                if let Some((_, all)) = indistinguishable
                    .iter()
                    .find(|(it, _)| it.contains(&position))
                {
                    share = Estimate::new(share.value, 0.0, all.high);
                }
                LevelShare {
                    name: level.name.clone(),
                    served: level.served,
                    share,
                    latency_ns: level.latency_ns,
                }
            })
            .collect();
        let cap = INTERRUPTED_RANGE_FACTOR * f64::from(self.bins.top());
        let l1 = &self.levels[self.innermost];
        let (excess, error) = self.excess(&Moments::of(histogram, cap), timing.error);
        let significant = if excess > Z95 * error { excess } else { 0.0 };
        let excess_ns = Estimate::new(significant, excess - Z95 * error, excess + Z95 * error)
            .clamped(0.0, f64::MAX);
        let mean = |excess: f64| (l1.latency_ns + excess).max(0.0);
        Some(Mixture {
            levels,
            beyond: estimate(&[self.levels.len()]),
            beyond_ns: self.beyond_ns(histogram, cap),
            indistinguishable,
            mean_ns: Estimate::new(
                mean(significant),
                mean(excess - Z95 * error),
                mean(excess + Z95 * error),
            ),
            excess_ns,
            timed,
            misfit: self.misfit(&counts, &densities, &shares),
        })
    }

    /// True if the first two caches cannot be distinguished.
    #[must_use]
    pub fn l1_and_l2_together(&self) -> bool {
        self.indistinguishable.iter().any(|group| {
            let has = |served| {
                group
                    .iter()
                    .any(|&position| self.levels[position].served == served)
            };
            has(Served::L1) && has(Served::L2)
        })
    }

    /// Latency of a hit in the innermost cache, in nanoseconds.
    #[must_use]
    pub fn l1_ns(&self) -> f64 {
        self.levels[self.innermost].latency_ns
    }

    /// Ticks per step of the timer; all its intervals are multiples of it.
    #[must_use]
    pub const fn tick_step(&self) -> u32 {
        self.step
    }

    /// Standard error, in ticks, of the cost of timing at another position in code.
    fn shift_error(&self, of_shift: f64) -> f64 {
        of_shift.hypot(TIMING_COST_SIGMA * self.levels[self.innermost].ticks.mean)
    }

    /// Nanoseconds beyond the innermost level, and their standard error.
    fn excess(&self, ticks: &Moments, shift_error: f64) -> (f64, f64) {
        let l1 = &self.levels[self.innermost].ticks;
        let excess = (ticks.mean - l1.mean) * self.tick_ns;
        let error2 = ticks.error2 + l1.error2 + self.shift_error(shift_error).powi(2);
        (excess, error2.sqrt() * self.tick_ns)
    }

    /// Average latency in nanoseconds of the loads beyond all levels.
    fn beyond_ns(&self, histogram: &[TickCount], cap: f64) -> f64 {
        let beyond: Vec<TickCount> = histogram
            .iter()
            .filter(|entry| entry.ticks > self.bins.top())
            .copied()
            .collect();
        let moments = if beyond.is_empty() {
            Moments {
                mean: f64::from(self.bins.top()),
                error2: 0.0,
            }
        } else {
            Moments::of(&beyond, cap)
        };
        (self.l1_ns() + self.excess(&moments, 0.0).0).max(0.0)
    }

    /// Average latency in nanoseconds of the loads in each bin.
    fn bin_ns(&self, histogram: &[TickCount], correct: impl Fn(f64) -> f64) -> Vec<f64> {
        let l1 = &self.levels[self.innermost];
        let ns = |ticks| l1.latency_ns + (ticks - l1.ticks.mean) * self.tick_ns;
        self.bins
            .means(histogram, correct)
            .into_iter()
            .map(ns)
            .collect()
    }

    /// Shares of the levels, then of the loads beyond them all.
    fn shares(
        &self,
        counts: &[f64],
        bin_ns: &[f64],
        densities: &[&[f64]],
        start: Vec<f64>,
        rounds: usize,
    ) -> Vec<f64> {
        let mut shares = self.maximise(counts, densities, start, rounds);
        self.reassign_to_nearer(counts, bin_ns, densities, &mut shares);
        shares
    }

    /// Moves loads from a farther level to the next nearer one, if on average they are hardly slower
    /// than the nearer one.
    ///
    /// The farther level's calibrated loads were not all its own, so a few ticks more than a narrow
    /// level showed would otherwise count as the farther one. Levels of other cores and nodes are
    /// excluded, because their times overlap with those of other effects.
    fn reassign_to_nearer(
        &self,
        counts: &[f64],
        bin_ns: &[f64],
        densities: &[&[f64]],
        shares: &mut [f64],
    ) {
        let beyond = self.bins.overflow_bin();
        let likely = |bin: usize, shares: &[f64]| -> f64 {
            let of = densities.iter().zip(shares);
            of.map(|(density, share)| density[bin] * share).sum()
        };
        let average = |level: usize, shares: &[f64]| {
            let (mut number, mut ns) = (0.0, 0.0);
            for (bin, &count) in counts[..beyond].iter().enumerate() {
                if count > 0.0 {
                    let part = densities[level][bin] * shares[level]
                        / likely(bin, shares).max(f64::MIN_POSITIVE);
                    number += count * part;
                    ns += count * part * bin_ns[bin];
                }
            }
            (number > 0.0).then(|| ns / number)
        };
        for pair in self.outward.windows(2).rev() {
            let [near, far] = [pair[0], pair[1]];
            let Some(ns) = average(far, shares) else {
                continue;
            };
            let (from, to) = (self.levels[near].latency_ns, self.levels[far].latency_ns);
            let step_share = (ns - from) / (to - from).max(f64::MIN_POSITIVE);
            let slowdown = (ns - self.l1_ns()) / (from - self.l1_ns()).max(f64::MIN_POSITIVE);
            let served = |of: f64, least: f64| ((of - least) / least).clamp(0.0, 1.0);
            let kept = shares[far]
                * served(step_share, MIN_STEP_SHARE).max(served(slowdown, MIN_SLOWDOWN));
            shares[near] += shares[far] - kept;
            shares[far] = kept;
        }
    }

    /// The shares that make `counts` most likely.
    fn maximise(
        &self,
        counts: &[f64],
        densities: &[&[f64]],
        mut shares: Vec<f64>,
        rounds: usize,
    ) -> Vec<f64> {
        let total: f64 = counts.iter().sum();
        let (levels, beyond) = (densities.len(), self.bins.overflow_bin());
        let mut next = vec![0.0; levels + 1];
        for _ in 0..rounds {
            next.fill(0.0);
            for (bin, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                let mut sum = if bin == beyond { shares[levels] } else { 0.0 };
                for (density, share) in densities.iter().zip(&shares) {
                    sum += density[bin] * share;
                }
                let factor = count / sum.max(f64::MIN_POSITIVE);
                for (level, density) in densities.iter().enumerate() {
                    next[level] += density[bin] * shares[level] * factor;
                }
                if bin == beyond {
                    next[levels] += shares[levels] * factor;
                }
            }
            let mut change: f64 = 0.0;
            for (share, sum) in shares.iter_mut().zip(&next) {
                let new = sum / total;
                change = change.max((new - *share).abs());
                *share = new;
            }
            if change < SETTLED_SHARE_CHANGE {
                break;
            }
        }
        shares
    }

    /// Shares of resampled histograms: site, calibration and timing are drawn again.
    fn spread(
        &self,
        histogram: &[TickCount],
        timing: Timing,
        bin_ns: &[f64],
        shares: &[f64],
    ) -> Spread {
        let mut resampler = Resampler::new();
        let error = self.shift_error(timing.error);
        let start: Vec<f64> = shares
            .iter()
            .map(|share| share.max(MIN_INITIAL_SHARE))
            .collect();
        let sum: f64 = start.iter().sum();
        let start: Vec<f64> = start.iter().map(|share| share / sum).collect();
        let draws = (0..RESAMPLES)
            .filter_map(|_| {
                let by = error * resampler.normal();
                let moved = |ticks| self.axis.at(ticks, timing.pace) + by;
                let counts = resampler.counts(&self.bins.moved(histogram, self.step, moved));
                if counts.iter().sum::<f64>() <= 0.0 {
                    return None;
                }
                let densities: Vec<Vec<f64>> = self
                    .levels
                    .iter()
                    .map(|level| density(&resampler.counts(&level.counts)))
                    .collect();
                let densities: Vec<&[f64]> = densities.iter().map(Vec::as_slice).collect();
                Some(self.shares(
                    &counts,
                    bin_ns,
                    &densities,
                    start.clone(),
                    MAX_RESAMPLED_ROUNDS,
                ))
            })
            .collect();
        Spread {
            draws,
            answer: shares.to_vec(),
        }
    }

    /// Total variation between the counts and the mixture, minus the expected contribution of
    /// chance.
    fn misfit(&self, counts: &[f64], densities: &[&[f64]], shares: &[f64]) -> f64 {
        let total: f64 = counts.iter().sum();
        let mut distance = 0.0;
        let mut chance = 0.0;
        for (bin, count) in counts.iter().enumerate() {
            let mut expected: f64 = densities
                .iter()
                .zip(shares)
                .map(|(density, share)| density[bin] * share)
                .sum();
            if bin == self.bins.overflow_bin() {
                expected += shares[densities.len()];
            }
            distance += (count / total - expected).abs() / 2.0;
            // The mean of |x| for a normal x is σ·√(2/π).
            let deviation = (expected * (1.0 - expected).max(0.0) / total).sqrt();
            chance += deviation * (2.0 / std::f64::consts::PI).sqrt() / 2.0;
        }
        (distance - chance).clamp(0.0, 1.0)
    }
}

impl Moments {
    /// The mean of a histogram with ticks cut at `cap`.
    fn of(histogram: &[TickCount], cap: f64) -> Self {
        let total = bins::total(histogram);
        let value = |entry: &TickCount| f64::from(entry.ticks).min(cap);
        let mean = histogram
            .iter()
            .map(|entry| value(entry) * entry.count as f64)
            .sum::<f64>()
            / total;
        let variance = histogram
            .iter()
            .map(|entry| (value(entry) - mean).powi(2) * entry.count as f64)
            .sum::<f64>()
            / total;
        // A few equal values do not mean that the variance is 0.
        let least = (mean / 8.0).powi(2) / total;
        Self {
            mean,
            error2: (variance + least) / total,
        }
    }
}

/// Shares of resampled histograms.
struct Spread {
    draws: Vec<Vec<f64>>,
    answer: Vec<f64>,
}

impl Spread {
    /// Root mean square deviation of the summed share of `members` from the answer.
    fn deviation(&self, members: &[usize]) -> f64 {
        let sum = |shares: &[f64]| -> f64 { members.iter().map(|&level| shares[level]).sum() };
        let answer = sum(&self.answer);
        let squares: f64 = self
            .draws
            .iter()
            .map(|shares| (sum(shares) - answer).powi(2))
            .sum();
        (squares / self.draws.len().max(1) as f64).sqrt()
    }
}

/// Probability of each bin for a load from a level, given the loads that calibrated it: a little
/// of each bin is moved to its neighbours, and every bin gets a small probability.
fn density(counts: &[f64]) -> Vec<f64> {
    let total: f64 = counts.iter().sum();
    let everywhere = 1.0 / counts.len() as f64;
    let mut density = vec![0.0; counts.len()];
    for (bin, count) in counts.iter().enumerate() {
        let share = count / (total + 1.0);
        let before = bin.saturating_sub(1);
        // The last bin lies beyond all levels and has no neighbour.
        let after = (bin + 1).min(counts.len().saturating_sub(2)).max(bin);
        density[bin] += share * (1.0 - BLURRED_BIN_SHARE);
        density[before] += share * BLURRED_BIN_SHARE / 2.0;
        density[after] += share * BLURRED_BIN_SHARE / 2.0;
    }
    for share in &mut density {
        *share += everywhere / (total + 1.0);
    }
    density
}

/// Positions of the levels of the own core and node, by latency.
fn outward(levels: &[Level]) -> Vec<usize> {
    let mut here: Vec<usize> = (0..levels.len())
        .filter(|&level| levels[level].served != Served::Remote)
        .collect();
    here.sort_by(|&a, &b| levels[a].latency_ns.total_cmp(&levels[b].latency_ns));
    here
}

/// Groups of levels whose histograms overlap too much, each in order.
fn indistinguishable_groups(levels: &[Level]) -> Vec<Vec<usize>> {
    let mut group_of: Vec<usize> = (0..levels.len()).collect();
    for position in 1..levels.len() {
        for before in 0..position {
            let (one, other) = (&levels[before], &levels[position]);
            let common: f64 = one
                .density
                .iter()
                .zip(&other.density)
                .map(|(one, other)| one.min(*other))
                .sum();
            let remote = [one, other].map(|level| level.served == Served::Remote);
            let bound = if remote[0] == remote[1] {
                MAX_DISTINGUISHABLE_OVERLAP
            } else {
                MAX_DISTINGUISHABLE_OVERLAP_REMOTE
            };
            if common > bound {
                let (kept, joined) = (group_of[before], group_of[position]);
                for group in &mut group_of {
                    if *group == joined {
                        *group = kept;
                    }
                }
            }
        }
    }
    (0..levels.len())
        .map(|group| {
            (0..levels.len())
                .filter(|&level| group_of[level] == group)
                .collect::<Vec<usize>>()
        })
        .filter(|members| members.len() > 1)
        .collect()
}

/// The 95 % interval of the share `share` of `total` observations (Wilson, 1927).
pub(super) fn wilson(share: f64, total: f64) -> (f64, f64) {
    let z2 = Z95 * Z95;
    let middle = (share + z2 / (2.0 * total)) / (1.0 + z2 / total);
    let half = Z95 / (1.0 + z2 / total)
        * (share * (1.0 - share) / total + z2 / (4.0 * total * total))
            .max(0.0)
            .sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}
