//! Statistics of the repetitions of one figure: a mean error with its interval, or how often a
//! finding was right; and the verdict.

use membound_model::stats::student_95;
use serde::{Deserialize, Serialize};

/// How the difference of finding and truth is expressed, and how large it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Tolerance {
    /// Difference of two shares, in points (hundredths).
    Points(f64),
    /// Difference as a part of the truth, in percent.
    Percent(f64),
    /// For a share that should be large: the points by which it may fall short of 100.
    Short(f64),
    /// Right or wrong: right in nine runs of ten.
    Finding,
}

/// The 0.975 quantile of the normal distribution.
const NORMAL: f64 = 1.959_963_984_540_054;

/// Share of the runs in which a finding must be right.
const RIGHT: f64 = 0.9;

/// Result of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reading {
    /// From the program's own output; 1 for a finding.
    pub(super) truth: f64,
    /// From the profile; for a finding 1 if it is right, else 0.
    pub(super) found: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The interval lies in the tolerance.
    Met,
    /// The whole interval lies outside the tolerance.
    Missed,
    /// Neither of the two.
    Open,
    /// The machine was perturbed too often to tell.
    Inconclusive,
}

impl Verdict {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Open => "open",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// A mean and the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Mean {
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Mean {
    /// Half the width of the interval.
    pub(super) const fn half(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

impl Tolerance {
    /// The error of one repetition in points or percent; for a finding, 1 if it is right.
    pub(super) fn error(self, reading: Reading) -> f64 {
        let Reading { truth, found } = reading;
        match self {
            Self::Points(_) => (found - truth) * 100.0,
            Self::Percent(_) => (found / truth - 1.0) * 100.0,
            Self::Short(_) => (found - 1.0) * 100.0,
            Self::Finding => found,
        }
    }

    /// The mean of `errors` with Student's interval, or of findings with Wilson's (1927). `None`
    /// for fewer than two.
    pub(super) fn mean(self, errors: &[f64]) -> Option<Mean> {
        let count = errors.len() as f64;
        if errors.len() < 2 {
            return None;
        }
        let value = errors.iter().sum::<f64>() / count;
        if self == Self::Finding {
            let square = NORMAL.powi(2);
            let middle = (value + square / (2.0 * count)) / (1.0 + square / count);
            let spread = value * (1.0 - value) / count + square / (4.0 * count * count);
            let half = (square * spread).sqrt() / (1.0 + square / count);
            return Some(Mean {
                value,
                low: middle - half,
                high: middle + half,
            });
        }
        let squares: f64 = errors.iter().map(|error| (error - value).powi(2)).sum();
        let half = student_95(errors.len() - 1) * (squares / (count - 1.0) / count).sqrt();
        Some(Mean {
            value,
            low: value - half,
            high: value + half,
        })
    }

    /// The verdict on a mean.
    pub(super) fn judge(self, mean: &Mean) -> Verdict {
        let (least, most) = match self {
            Self::Points(most) | Self::Percent(most) => (-most, most),
            Self::Short(most) => (-most, f64::INFINITY),
            Self::Finding => {
                return match () {
                    () if mean.value >= RIGHT => Verdict::Met,
                    () if mean.high < RIGHT => Verdict::Missed,
                    () => Verdict::Open,
                };
            }
        };
        match () {
            () if least <= mean.low && mean.high <= most => Verdict::Met,
            () if mean.high < least || most < mean.low => Verdict::Missed,
            () => Verdict::Open,
        }
    }

    /// Whether a mean is known well enough: to within `half_width` points or percent. A finding
    /// always is, once it has the minimum number of repetitions.
    pub(super) fn is_known(self, mean: &Mean, half_width: f64) -> bool {
        self == Self::Finding || mean.half() <= half_width
    }

    /// The tolerance, for a table.
    pub(super) fn told(self) -> String {
        match self {
            Self::Points(most) => format!("±{most} points"),
            Self::Percent(most) => format!("±{most} %"),
            Self::Short(most) => format!("≥ {} %", 100.0 - most),
            Self::Finding => "found".to_owned(),
        }
    }

    /// A mean, for a table.
    pub(super) fn told_mean(self, mean: &Mean, count: usize) -> String {
        let Mean { value, low, high } = mean;
        match self {
            Self::Points(_) => format!("{value:+.1} [{low:+.1}, {high:+.1}] points"),
            Self::Percent(_) => format!("{value:+.1} [{low:+.1}, {high:+.1}] %"),
            Self::Short(_) => {
                let [value, low, high] = [value, low, high].map(|it| 100.0 + it);
                format!("{value:.1} [{low:.1}, {high:.1}] %")
            }
            Self::Finding => format!("{:.0} of {count} runs", value * count as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(one: f64, other: f64) -> bool {
        (one - other).abs() < 5e-3
    }

    #[test]
    fn the_interval_of_a_mean_is_student_s() {
        // Mean 3, standard deviation 1.5811, t of 4 degrees of freedom 2.7764.
        let mean = Tolerance::Points(4.0).mean(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let Mean { value, low, high } = mean.unwrap();
        assert!(near(value, 3.0) && near(low, 1.037) && near(high, 4.963));
        assert_eq!(Tolerance::Points(4.0).mean(&[1.0]), None);
    }

    /// Newcombe (1998): 15 of 148 has [0.0624, 0.1605].
    #[test]
    fn the_interval_of_a_finding_is_wilson_s() {
        let mut runs = vec![0.0; 133];
        runs.extend([1.0; 15]);
        let Mean { low, high, .. } = Tolerance::Finding.mean(&runs).unwrap();
        assert!(near(low, 0.0624) && near(high, 0.1605), "{low} {high}");
    }

    #[test]
    fn a_verdict_needs_the_whole_interval_on_one_side() {
        let mean = |low, high| Mean {
            value: f64::midpoint(low, high),
            low,
            high,
        };
        for (tolerance, low, high, verdict) in [
            (Tolerance::Points(4.0), -1.0, 3.9, Verdict::Met),
            (Tolerance::Points(4.0), -1.0, 4.1, Verdict::Open),
            (Tolerance::Points(4.0), 4.1, 6.0, Verdict::Missed),
            (Tolerance::Percent(10.0), -30.0, -12.0, Verdict::Missed),
            (Tolerance::Short(15.0), -14.0, -2.0, Verdict::Met),
            (Tolerance::Short(15.0), -16.0, -2.0, Verdict::Open),
            (Tolerance::Short(15.0), -40.0, -20.0, Verdict::Missed),
        ] {
            assert_eq!(tolerance.judge(&mean(low, high)), verdict, "{tolerance:?}");
        }
        for (right, verdict) in [(5, Verdict::Met), (4, Verdict::Open), (1, Verdict::Missed)] {
            let runs: Vec<f64> = (0..5).map(|run| f64::from(u8::from(run < right))).collect();
            let mean = Tolerance::Finding.mean(&runs).unwrap();
            assert_eq!(Tolerance::Finding.judge(&mean), verdict, "{right}");
        }
    }

    #[test]
    fn errors_are_points_and_percent() {
        let reading = Reading {
            truth: 0.5,
            found: 0.48,
        };
        assert!(near(Tolerance::Points(4.0).error(reading), -2.0));
        assert!(near(Tolerance::Percent(4.0).error(reading), -4.0));
        assert!(near(Tolerance::Short(4.0).error(reading), -52.0));
    }
}
