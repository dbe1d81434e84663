//! Mean and error of pooled runs of one program.
//!
//! Differences between runs (samples, addresses, clock, other load on the machine) show in the spread
//! between them; with two runs or more that spread gives the error of the mean (Student's t). From six runs
//! on, a fifth of them is left out at each end (Yuen's trimmed mean), since single runs are far off now and
//! then. The error is never less than the sampling error that every run has: a few runs can agree by
//! accident. A single run has no spread: its own interval is used instead, together with [`RUN_TO_RUN`].
//!
//! A difference of two means has the degrees of freedom of Welch and Satterthwaite, because the sides may
//! spread differently.

use membound_types::{Basis, Figure, Profile, Share};
use statrs::distribution::{ContinuousCDF as _, Normal, StudentsT};

/// Assumed variation between two unchanged runs of one program, as a share of the figure: other addresses,
/// another clock, other load on the machine. Used for a side with one run.
pub(crate) const RUN_TO_RUN: f64 = 0.05;

/// Half width of a 95 % interval in standard errors.
pub(crate) const HALF_INTERVAL: f64 = 1.96;

/// Upper 95 % bound for the number of samples missed where none was observed (the rule of three).
const MAX_UNOBSERVED_SAMPLES: f64 = 3.0;

/// One value of this many is left out at each end: of 210 short runs on a busy machine five were off by
/// about four standard deviations of the others.
const VALUES_PER_TRIMMED: usize = 5;

/// Number of values from which on some are left out. With five, the lost degrees of freedom weigh more.
const MIN_TRIMMED: usize = 6;

/// Figure of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    pub value: f64,
    /// Ends of its 95 % interval.
    pub low: f64,
    pub high: f64,
    /// Standard error due to sampling alone, in the unit of the value.
    pub sampling: f64,
}

impl Observation {
    /// Stalled share of CPU time of a whole run.
    pub(crate) fn of_bound(profile: &Profile) -> Self {
        let bound = &profile.memory_bound;
        Self::of_share(bound.fraction, bound.low, bound.high, profile)
    }

    /// Stalled share of CPU time of a row.
    pub(crate) fn of_row(share: &Share, profile: &Profile) -> Self {
        let (low, high) = (share.stall_low, share.stall_high);
        Self::of_share(share.stall_fraction, low, high, profile)
    }

    /// Value of a row that a run lacks because no sample fell into it.
    pub(crate) fn without_row(profile: &Profile) -> Self {
        let samples = profile.run.effective_samples.max(MAX_UNOBSERVED_SAMPLES);
        Self::of_share(0.0, 0.0, MAX_UNOBSERVED_SAMPLES / samples, profile)
    }

    fn of_share(value: f64, low: f64, high: f64, profile: &Profile) -> Self {
        let samples = profile.run.effective_samples.max(1.0);
        // Variance of a share, plus one sample that may have been missed.
        let variance = (value * (1.0 - value)).max(0.0) + 1.0 / samples;
        Self {
            value,
            low,
            high,
            sampling: (variance / samples).sqrt(),
        }
    }

    /// Converts to another unit, such as seconds for shares of CPU time.
    pub(crate) fn scaled(self, by: f64) -> Self {
        Self {
            value: self.value * by,
            low: self.low * by,
            high: self.high * by,
            sampling: self.sampling * by,
        }
    }

    /// Sum of several rows of one run, with independent errors.
    pub(crate) fn sum(rows: &[Self]) -> Option<Self> {
        let (first, others) = rows.split_first()?;
        Some(others.iter().fold(*first, |sum, row| {
            let value = sum.value + row.value;
            Self {
                value,
                low: value - (sum.value - sum.low).hypot(row.value - row.low),
                high: value + (sum.high - sum.value).hypot(row.high - row.value),
                sampling: sum.sampling.hypot(row.sampling),
            }
        }))
    }
}

/// Figure of one side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Mean over the runs, trimmed from six runs on.
    pub mean: f64,
    /// Standard error of the mean due to variation between runs.
    pub error: f64,
    /// Degrees of freedom of `error`; infinite with one run.
    pub freedom: f64,
    /// Standard deviation between runs; `None` with one run.
    pub deviation: Option<f64>,
    pub runs: usize,
    /// Ends of the 95 % interval of the mean.
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// Estimates the mean of `runs`; `None` if there are none.
    pub(crate) fn of(runs: &[Observation]) -> Option<Self> {
        match runs {
            [] => None,
            [only] => Some(Self::of_one(*only)),
            several => Some(Self::of_several(several)),
        }
    }

    fn of_one(run: Observation) -> Self {
        let own = (run.high - run.low) / 2.0 / HALF_INTERVAL;
        Self {
            mean: run.value,
            error: own.max(run.sampling).hypot(run.value * RUN_TO_RUN),
            freedom: f64::INFINITY,
            deviation: None,
            runs: 1,
            low: run.low,
            high: run.high,
        }
    }

    fn of_several(runs: &[Observation]) -> Self {
        let count = runs.len() as f64;
        let average = |of: &dyn Fn(&Observation) -> f64| runs.iter().map(of).sum::<f64>() / count;
        let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
        let trimmed = Trimmed::of(&values);
        let chance = average(&|run| run.sampling.powi(2)) / count;
        let error = trimmed.variance.max(chance).sqrt();
        let half = quantile(0.975, trimmed.freedom) * error;
        // The part of a run's own interval that exceeds the variation between runs is a common error of all
        // runs, which more runs do not reduce.
        let spread = HALF_INTERVAL * error * count.sqrt();
        let common = |own: f64| (own * own - spread * spread).max(0.0).sqrt();
        let below = common(average(&|run| run.value - run.low));
        let above = common(average(&|run| run.high - run.value));
        Self {
            mean: trimmed.mean,
            error,
            freedom: trimmed.freedom,
            deviation: Some(mean_and_variance(&values).1.sqrt()),
            runs: runs.len(),
            // Neither a share nor a time is negative.
            low: (trimmed.mean - half.hypot(below)).max(0.0),
            high: trimmed.mean + half.hypot(above),
        }
    }

    /// The mean with its interval.
    pub(crate) fn figure(&self) -> Figure {
        Figure {
            value: self.mean,
            low: self.low,
            high: self.high,
            basis: Basis::Estimated,
        }
    }

    /// Variance of a single run.
    pub(crate) fn variance_of_a_run(&self) -> f64 {
        self.error * self.error * self.runs as f64
    }
}

/// Trimmed mean with the square of Yuen's standard error.
struct Trimmed {
    mean: f64,
    variance: f64,
    freedom: f64,
}

impl Trimmed {
    /// Computes the mean of at least two values.
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let out = if count < MIN_TRIMMED {
            0
        } else {
            count / VALUES_PER_TRIMMED
        };
        let trimmed = &sorted[out..count - out];
        let (mean, _) = mean_and_variance(trimmed);
        let (least, most) = (trimmed[0], trimmed[trimmed.len() - 1]);
        let winsorized: Vec<f64> = (sorted.iter())
            .map(|value| value.clamp(least, most))
            .collect();
        let (_, variance) = mean_and_variance(&winsorized);
        let trimmed = trimmed.len() as f64;
        let freedom = trimmed - 1.0;
        Self {
            mean,
            variance: variance * (count as f64 - 1.0) / (trimmed * freedom),
            freedom,
        }
    }
}

/// Mean and variance of at least two values.
fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares / (count - 1.0))
}

/// Difference `new` − `factor` · `base` of figures with independent errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Contrast {
    pub value: f64,
    pub error: f64,
    pub freedom: f64,
}

impl Contrast {
    pub(crate) fn new(base: &Estimate, new: &Estimate, factor: f64) -> Self {
        let parts = [
            ((factor * base.error).powi(2), base.freedom),
            (new.error.powi(2), new.freedom),
        ];
        let variance: f64 = parts.iter().map(|(part, _)| part).sum();
        let squares: f64 = parts
            .iter()
            .map(|(part, freedom)| part * part / freedom)
            .sum();
        Self {
            value: new.mean - factor * base.mean,
            error: variance.sqrt(),
            freedom: if squares > 0.0 {
                variance * variance / squares
            } else {
                f64::INFINITY
            },
        }
    }

    /// Half the width of an interval that the true value exceeds with probability `tail` on each side.
    pub(crate) fn half(&self, tail: f64) -> f64 {
        quantile(1.0 - tail, self.freedom) * self.error
    }
}

/// Runs per side needed to detect a change of `limit`: with that many, the interval of two equal programs
/// ends below `limit` in the share `power` of comparisons.
///
/// `variance` is the variance of the difference of two single runs. `None` if more than [`MAX_RUNS`] are
/// needed.
pub(crate) fn runs_needed(variance: f64, limit: f64, tail: f64, power: f64) -> Option<u32> {
    (2..=MAX_RUNS).find(|runs| {
        let count = f64::from(*runs);
        let freedom = 2.0 * (count - 1.0);
        let reach = quantile(1.0 - tail, freedom) + quantile(power, freedom);
        reach * (variance / count).sqrt() <= limit
    })
}

/// Largest number of runs that is recommended.
const MAX_RUNS: u32 = 1000;

/// Quantile of Student's t for `freedom` degrees of freedom; of the normal distribution if that is
/// infinite.
pub(crate) fn quantile(probability: f64, freedom: f64) -> f64 {
    /// From here on the two agree to four digits, and the incomplete beta function gets slow.
    const AS_GOOD_AS_NORMAL: f64 = 1e5;
    if freedom < AS_GOOD_AS_NORMAL {
        let student = StudentsT::new(0.0, 1.0, freedom.max(1.0));
        student.map_or(f64::INFINITY, |student| student.inverse_cdf(probability))
    } else {
        Normal::standard().inverse_cdf(probability)
    }
}

/// The mean of `values`; 0 where there are none.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    if count > 0.0 { sum / count } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, within: f64) {
        assert!((found - expected).abs() <= within, "{found} {expected}");
    }

    fn exact(value: f64) -> Observation {
        Observation {
            value,
            low: value,
            high: value,
            sampling: 0.0,
        }
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        near(quantile(0.975, 1.0), 12.706, 1e-3);
        near(quantile(0.975, 4.0), 2.776, 1e-3);
        near(quantile(0.99, 8.0), 2.896, 1e-3);
        near(quantile(0.975, f64::INFINITY), 1.960, 1e-3);
        near(quantile(0.975, 2e5), 1.960, 1e-3);
    }

    #[test]
    fn a_mean_has_students_interval() {
        let runs = [0.30, 0.32, 0.34, 0.36, 0.38].map(exact);
        let side = Estimate::of(&runs).unwrap();
        near(side.mean, 0.34, 1e-12);
        // s = 0.0316, s/√5 = 0.01414, t(4) = 2.776.
        near(side.error, 0.014_142, 1e-6);
        near(side.high - side.mean, 0.039_26, 1e-4);
        near(side.mean - side.low, 0.039_26, 1e-4);
        assert_eq!((side.runs, side.freedom), (5, 4.0));
    }

    #[test]
    fn a_run_that_is_far_off_is_left_out() {
        let runs: Vec<Observation> = [1, 2, 3, 4, 5, 6, 7, 8, 9, 100]
            .map(|value| exact(f64::from(value)))
            .to_vec();
        let side = Estimate::of(&runs).unwrap();
        // Winsorized: 3 3 3 4 5 6 7 8 8 8 with s² = 42.5 ÷ 9; 9 · s² ÷ (6 · 5).
        near(side.mean, 5.5, 1e-12);
        near(side.error * side.error, 42.5 / 30.0, 1e-12);
        assert_eq!(side.freedom, 5.0);
        // The deviation includes the runs that were left out.
        near(side.deviation.unwrap(), 30.152, 1e-3);
    }

    #[test]
    fn common_errors_of_runs_do_not_average_out() {
        let runs = [0.30, 0.32, 0.34, 0.36, 0.38].map(|value| Observation {
            low: value - 0.01,
            high: value + 0.3,
            ..exact(value)
        });
        let side = Estimate::of(&runs).unwrap();
        assert!(side.high - side.mean > 0.29, "{side:?}");
        near(side.mean - side.low, 0.039_26, 1e-4);
        // A difference is not wider for it: both sides share this error.
        near(side.error, 0.014_142, 1e-6);
    }

    #[test]
    fn runs_that_agree_by_accident_keep_the_chance_of_sampling() {
        let runs = [0.0, 0.0].map(|value| Observation {
            high: 0.003,
            sampling: 0.001,
            ..exact(value)
        });
        let side = Estimate::of(&runs).unwrap();
        near(side.error, 0.001 / f64::sqrt(2.0), 1e-9);
    }

    #[test]
    fn one_run_has_its_own_interval_and_what_runs_differ_by() {
        let run = Observation {
            low: 0.36,
            high: 0.44,
            ..exact(0.40)
        };
        let side = Estimate::of(&[run]).unwrap();
        near(side.error, (0.04_f64 / 1.96).hypot(0.02), 1e-9);
        assert_eq!((side.low, side.high, side.deviation), (0.36, 0.44, None));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn a_change_has_welchs_degrees_of_freedom() {
        // Textbook: s² = 4 with 5 runs and 1 with 10: (0.8 + 0.1)² ÷ (0.8²/4 + 0.1²/9).
        let side = |variance: f64, runs: usize| Estimate {
            mean: 0.0,
            error: (variance / runs as f64).sqrt(),
            freedom: runs as f64 - 1.0,
            deviation: Some(variance.sqrt()),
            runs,
            low: 0.0,
            high: 0.0,
        };
        let change = Contrast::new(&side(4.0, 5), &side(1.0, 10), 1.0);
        near(change.freedom, 0.81 / (0.16 + 0.01 / 9.0), 1e-9);
        near(change.error, 0.9_f64.sqrt(), 1e-12);
    }

    #[test]
    fn more_spread_needs_more_runs() {
        let needed = |deviation: f64| runs_needed(2.0 * deviation * deviation, 3.0, 0.01, 0.95);
        let runs = [0.5, 1.0, 2.0, 4.0].map(|deviation| needed(deviation).unwrap());
        assert!(runs.is_sorted() && runs[0] <= 4, "{runs:?}");
        // Without small samples: (2.326 + 1.645)² · 2 · 4² ÷ 3² = 56.
        assert!((56..=60).contains(&runs[3]), "{runs:?}");
        assert_eq!(needed(100.0), None);
    }
}
