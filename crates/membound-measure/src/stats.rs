//! Order statistics over batches.
//!
//! Batches are few, skewed to the slow side and sometimes of two modes, so nothing here
//! assumes a distribution: medians, their binomial intervals, and a gap test for modes.

/// A median with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Samples split into a fast group and, where there are two, a slow one.
#[derive(Clone, Debug, PartialEq)]
pub struct Modes {
    /// Summary of the faster group, or of all samples when there is one group.
    pub fast: Summary,
    /// Samples in the faster group.
    pub fast_count: usize,
    /// Median and share (0 to 1) of the slower group, if there is one.
    pub slow: Option<(f64, f64)>,
}

/// Median of `samples`; `None` when there are none.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples);
    (!sorted.is_empty()).then(|| median_of_sorted(&sorted))
}

/// Half the interquartile range of `samples`; 0 for fewer than two.
#[must_use]
pub fn half_iqr(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    if sorted.len() < 2 {
        return 0.0;
    }
    let at = |share: f64| {
        let position = share * (sorted.len() - 1) as f64;
        let below = position.floor() as usize;
        let above = position.ceil() as usize;
        sorted[below] + (sorted[above] - sorted[below]) * position.fract()
    };
    (at(0.75) - at(0.25)) / 2.0
}

/// Median with its 95 % interval from the binomial distribution of ranks; the whole range
/// for fewer than six samples, where no rank interval reaches 95 %.
///
/// Source: Conover, Practical Nonparametric Statistics, the interval for a quantile.
#[must_use]
pub fn summarize(samples: &[f64]) -> Option<Summary> {
    let sorted = sorted(samples);
    (!sorted.is_empty()).then(|| summarize_sorted(&sorted))
}

/// Splits times into two groups at the widest gap, if that gap is wider than `min_gap` (relative to
/// the value below it) and three times wider than either group's own half quartile range, with at
/// least two samples and a tenth of all in the smaller group. `None` without samples.
#[must_use]
pub fn modes(samples: &[f64], min_gap: f64) -> Option<Modes> {
    let sorted = sorted(samples);
    if sorted.is_empty() {
        return None;
    }
    let count = sorted.len();
    let smallest = (count / 10).max(2);
    let split = (smallest..=count.saturating_sub(smallest))
        .map(|at| (at, sorted[at] - sorted[at - 1]))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((at, gap)) = split {
        let (fast, slow) = sorted.split_at(at);
        let within = half_iqr(fast).max(half_iqr(slow));
        if gap > min_gap * sorted[at - 1] && gap > 3.0 * within {
            return Some(Modes {
                fast: summarize_sorted(fast),
                fast_count: fast.len(),
                slow: Some((median_of_sorted(slow), slow.len() as f64 / count as f64)),
            });
        }
    }
    Some(Modes {
        fast: summarize_sorted(&sorted),
        fast_count: count,
        slow: None,
    })
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

fn summarize_sorted(sorted: &[f64]) -> Summary {
    let count = sorted.len();
    let median = median_of_sorted(sorted);
    if count < 6 {
        return Summary {
            median,
            low: sorted[0],
            high: sorted[count - 1],
        };
    }
    // Normal approximation of the binomial(count, 1/2) rank: 1.96 of its standard deviations
    // √count / 2, rounded outwards.
    let half_width = 0.98 * (count as f64).sqrt();
    let low = (count as f64 / 2.0 - half_width).floor().max(0.0) as usize;
    let high = (count as f64 / 2.0 + half_width)
        .ceil()
        .min(count as f64 - 1.0) as usize;
    Summary {
        median,
        low: sorted[low],
        high: sorted[high],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_nothing_is_none() {
        assert_eq!(median(&[]), None);
        assert_eq!(summarize(&[f64::NAN]), None);
        assert_eq!(modes(&[], 0.1), None);
    }

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_interval_covers_the_true_median_about_95_times_in_100() {
        // A fixed linear congruential generator: the test is the same every time.
        let mut state = 1_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let covered = (0..2000)
            .filter(|_| {
                let samples: Vec<f64> = (0..25).map(|_| uniform().powi(3)).collect();
                let summary = summarize(&samples).unwrap();
                (summary.low..=summary.high).contains(&0.125)
            })
            .count();
        assert!((1860..=1990).contains(&covered), "{covered} of 2000");
    }

    #[test]
    fn two_modes_are_separated_and_one_is_kept() {
        let one: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i) * 0.3).collect();
        assert_eq!(modes(&one, 0.1).unwrap().slow, None);
        let mut two = one.clone();
        two.extend((0..6).map(|i| 200.0 + f64::from(i)));
        let modes = modes(&two, 0.1).unwrap();
        assert_eq!(modes.fast_count, 20);
        let (slow, share) = modes.slow.unwrap();
        assert!((slow - 202.5).abs() < 1e-9 && (share - 6.0 / 26.0).abs() < 1e-9);
        assert!(modes.fast.median < 106.0);
    }

    #[test]
    fn a_single_outlier_is_not_a_mode() {
        let mut samples = vec![100.0; 12];
        samples.push(300.0);
        assert_eq!(modes(&samples, 0.1).unwrap().slow, None);
    }

    #[test]
    fn half_the_quartile_range_of_a_ramp() {
        let ramp: Vec<f64> = (0..=100).map(f64::from).collect();
        assert!((half_iqr(&ramp) - 25.0).abs() < 1e-9);
        assert_eq!(half_iqr(&[5.0]), 0.0);
    }
}
