//! Medians of few pairs, with intervals from ranks.

use membound_model::stats::median;
use serde::{Deserialize, Serialize};

/// A median and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// The median of `values`, and the narrowest pair of order statistics that holds the
    /// median of the population with a probability of at least 95 % (sign test), or the
    /// whole range where no pair does: of five values the range has 93.75 %.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let middle = median(values)?;
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let cut = (0..count / 2)
            .rev()
            .find(|&cut| coverage(count, cut) >= 0.95)
            .unwrap_or(0);
        Some(Self {
            median: middle,
            low: sorted[cut],
            high: sorted[count - 1 - cut],
        })
    }
}

/// Probability that the population's median lies between the order statistics `cut` and
/// `count - 1 - cut` (from 0).
fn coverage(count: usize, cut: usize) -> f64 {
    let mut chance = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut outside = 0.0;
    for below in 0..=cut {
        outside += chance;
        chance *= (count - below) as f64 / (below + 1) as f64;
    }
    1.0 - 2.0 * outside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_five_values_the_interval_is_the_range() {
        let found = Interval::of(&[1.3, 1.1, 1.2, 1.5, 1.0]).unwrap();
        assert_eq!((found.median, found.low, found.high), (1.2, 1.0, 1.5));
        assert!((coverage(5, 0) - 0.9375).abs() < 1e-12);
    }

    /// Conover, Practical Nonparametric Statistics: of ten values, the second and the ninth
    /// hold the median with 97.9 %.
    #[test]
    fn of_ten_values_the_ends_are_left_out() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let found = Interval::of(&values).unwrap();
        assert_eq!((found.median, found.low, found.high), (5.5, 2.0, 9.0));
        assert!((coverage(10, 1) - 0.978_515_625).abs() < 1e-12);
    }

    #[test]
    fn nothing_has_no_median() {
        assert_eq!(Interval::of(&[]), None);
        let one = Interval::of(&[2.0]).unwrap();
        assert_eq!((one.median, one.low, one.high), (2.0, 2.0, 2.0));
    }
}
