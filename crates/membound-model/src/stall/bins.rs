//! Divides the axis of ticks into bins that follow the calibration.
//!
//! Timers advance in steps of many ticks, and the steps are at different ticks on each
//! machine. Bins are therefore made of whole calibrated values: each holds
//! about the same share of the histograms of all levels together, so that every level has bins of
//! suitable width. One further bin holds everything beyond the calibrated range.

use membound_types::TickCount;

/// Most bins of the calibrated range.
const MAX_BINS: usize = 48;
/// Share of a level's own timed loads that may lie beyond the calibrated range, because of
/// interrupts and the like.
const MAX_OUTLIER_SHARE: f64 = 0.002;

/// The bins of the calibrated range, and one beyond it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bins {
    /// The highest ticks of each bin of the calibrated range, ascending.
    tops: Vec<u32>,
}

impl Bins {
    /// Divides the axis according to these histograms.
    pub(super) fn of(levels: &[&[TickCount]]) -> Self {
        let mut density: Vec<(u32, f64)> = Vec::new();
        let mut top = 0;
        for histogram in levels {
            let total: f64 = total(histogram);
            let mut beyond = total;
            for entry in *histogram {
                density.push((
                    entry.ticks,
                    entry.count as f64 / total / levels.len() as f64,
                ));
                beyond -= entry.count as f64;
                if beyond >= MAX_OUTLIER_SHARE * total {
                    // At least the allowed outliers remain above, so the next value belongs to the range.
                    top = top.max(next_above(histogram, entry.ticks));
                }
            }
        }
        density.retain(|(ticks, _)| *ticks <= top);
        density.sort_unstable_by_key(|(ticks, _)| *ticks);
        let mut tops: Vec<u32> = Vec::new();
        let mut filled = 0.0;
        let mut values = density.chunk_by(|one, other| one.0 == other.0).peekable();
        while let Some(value) = values.next() {
            filled += value.iter().map(|(_, share)| share).sum::<f64>();
            let last = values.peek().is_none();
            if filled >= 1.0 / MAX_BINS as f64 || last {
                // Values between two calibrated ones belong to the nearer one.
                let top = match values.peek() {
                    Some(next) => value[0].0.midpoint(next[0].0),
                    None => value[0].0,
                };
                tops.push(top);
                filled = 0.0;
            }
        }
        Self { tops }
    }

    /// Number of bins, including the one beyond the calibrated range.
    pub(super) fn len(&self) -> usize {
        self.tops.len() + 1
    }

    /// Index of the bin beyond the calibrated range.
    pub(super) fn overflow_bin(&self) -> usize {
        self.tops.len()
    }

    /// Index of the bin that contains `ticks`.
    pub(super) fn of_ticks(&self, ticks: u32) -> usize {
        self.tops.partition_point(|top| *top < ticks)
    }

    /// The highest ticks of the calibrated range.
    pub(super) fn top(&self) -> u32 {
        self.tops.last().copied().unwrap_or(0)
    }

    /// Counts per bin after `correct` has corrected the ticks of each entry of `histogram`.
    pub(super) fn moved(
        &self,
        histogram: &[TickCount],
        step: u32,
        correct: impl Fn(f64) -> f64,
    ) -> Vec<f64> {
        let mut counts = vec![0.0; self.len()];
        for entry in histogram {
            let ticks = correct(f64::from(entry.ticks));
            for (ticks, count) in on_steps(ticks, entry.count as f64, step) {
                counts[self.of_ticks(ticks)] += count;
            }
        }
        counts
    }

    /// Mean corrected ticks in each bin; 0 for an empty bin.
    pub(super) fn means(&self, histogram: &[TickCount], correct: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut sums = vec![(0.0, 0.0); self.len()];
        for entry in histogram {
            let moved = correct(f64::from(entry.ticks));
            let (ticks, count) = &mut sums[self.of_ticks(moved.max(0.0) as u32)];
            *ticks += moved * entry.count as f64;
            *count += entry.count as f64;
        }
        let mean = |(ticks, count)| if count > 0.0 { ticks / count } else { 0.0 };
        sums.into_iter().map(mean).collect()
    }

    /// Counts of a histogram per bin.
    pub(super) fn counts(&self, histogram: &[TickCount]) -> Vec<f64> {
        let mut counts = vec![0.0; self.len()];
        for entry in histogram {
            counts[self.of_ticks(entry.ticks)] += entry.count as f64;
        }
        counts
    }
}

/// Divides `weight` at `ticks` between the two neighbouring timer steps so that the mean stays.
#[must_use]
pub fn on_steps(ticks: f64, weight: f64, step: u32) -> [(u32, f64); 2] {
    let steps = ticks.max(0.0) / f64::from(step.max(1));
    let below = steps.floor();
    let above = steps - below;
    let at = |steps: f64| (steps as u32).saturating_mul(step.max(1));
    [
        (at(below), weight * (1.0 - above)),
        (at(below + 1.0), weight * above),
    ]
}

/// A histogram of weights at whole ticks. Cumulative sums are rounded instead of single weights,
/// so that the total is kept and rare latencies do not all vanish.
#[must_use]
pub fn collected(mut ticks: Vec<(u32, f64)>) -> Vec<TickCount> {
    ticks.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut before = 0.0;
    ticks
        .chunk_by(|a, b| a.0 == b.0)
        .filter_map(|same| {
            let weight: f64 = same.iter().map(|(_, weight)| weight).sum();
            let behind = before + weight;
            let count = behind.round() - before.round();
            before = behind;
            (count > 0.0).then_some(TickCount {
                ticks: same[0].0,
                count: count as u64,
            })
        })
        .collect()
}

/// The largest step of which all ticks in these histograms are multiples.
pub(super) fn step(levels: &[&[TickCount]]) -> u32 {
    const fn gcd(mut a: u32, mut b: u32) -> u32 {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }
    let ticks = levels.iter().flat_map(|histogram| histogram.iter());
    ticks.fold(0, |step, bin| gcd(step, bin.ticks)).max(1)
}

pub(super) fn total(histogram: &[TickCount]) -> f64 {
    histogram.iter().map(|entry| entry.count as f64).sum()
}

/// Mean ticks without the slowest [`MAX_OUTLIER_SHARE`], which were interrupted.
pub(super) fn mean_ticks(histogram: &[TickCount]) -> f64 {
    let mut left = total(histogram) * (1.0 - MAX_OUTLIER_SHARE);
    let (mut sum, mut count) = (0.0, 0.0);
    for entry in histogram {
        let part = left.min(entry.count as f64);
        sum += f64::from(entry.ticks) * part;
        count += part;
        left -= part;
    }
    sum / f64::max(count, f64::MIN_POSITIVE)
}

fn next_above(histogram: &[TickCount], ticks: u32) -> u32 {
    let after = histogram.partition_point(|entry| entry.ticks <= ticks);
    histogram.get(after).map_or(ticks, |entry| entry.ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(entries: &[(u32, u64)]) -> Vec<TickCount> {
        entries
            .iter()
            .map(|&(ticks, count)| TickCount { ticks, count })
            .collect()
    }

    #[test]
    fn a_value_is_never_split_and_outliers_lie_beyond() {
        let near = histogram(&[(52, 900), (78, 99), (9000, 1)]);
        let far = histogram(&[(390, 300), (416, 400), (442, 299), (20_000, 1)]);
        let bins = Bins::of(&[&near, &far]);
        assert_eq!(bins.top(), 442);
        assert_eq!(bins.len(), 6);
        assert_eq!(bins.counts(&near), [900.0, 99.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(bins.counts(&far), [0.0, 0.0, 300.0, 400.0, 299.0, 1.0]);
        assert_eq!(bins.of_ticks(0), 0);
        assert_eq!(bins.of_ticks(64), 0, "the nearer value");
        assert_eq!(bins.of_ticks(66), 1);
        assert_eq!(bins.of_ticks(443), bins.overflow_bin());
    }

    #[test]
    fn wide_levels_do_not_crowd_out_narrow_ones() {
        let narrow = histogram(&[(50, 500), (51, 500)]);
        let wide: Vec<(u32, u64)> = (400..1400).map(|ticks| (ticks, 1)).collect();
        let bins = Bins::of(&[&narrow, &histogram(&wide)]);
        assert!(bins.len() <= MAX_BINS + 2, "{}", bins.len());
        assert_ne!(bins.of_ticks(50), bins.of_ticks(51));
    }
}
