//! Tests whether a difference is more than noise.
//!
//! An interval in a profile covers the scatter of batches within one run. Two runs differ
//! more: pages lie elsewhere, a neighbour becomes active, the clock settles at another step. So
//! each kind of figure also has a stated scatter between runs ([`Noise::floor`]), which
//! is added in quadrature. It is the scatter of repeated runs on a small guest whose
//! neighbours are not quiet, rounded up: medians of 0.5 % in L1, 1 % in L2 and 1.2 % in
//! memory with worst points of 1, 3.5 and 7.5 %; parallelism, the quotient of two
//! times of which one may be disturbed, moved by a fifth.

use membound_types::{NoiseFloor, Worse};
use statrs::function::erf::erfc;

use crate::stats::Z95;

/// Kind of a figure, which determines its scatter between runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Noise {
    /// Latency and cycles of the first level.
    InnerLatency,
    /// Latency and cycles of private caches beyond the first.
    CacheLatency,
    /// Latency of the outermost cache, which others share.
    SharedLatency,
    /// Latency of memory, measured by any kernel.
    MemoryLatency,
    /// Latency of memory under the heaviest traffic, where a small change of traffic has a large effect.
    LoadedLatency,
    /// Time of a few cold loads between fences: short kernels that a neighbour disturbs more.
    ColdLoads,
    /// Effective size of a private cache.
    CacheSize,
    /// Effective size of the outermost cache, which others share.
    SharedSize,
    /// Bandwidth of caches.
    CacheBandwidth,
    /// Bandwidth of memory and of the outermost cache.
    MemoryBandwidth,
    /// Windows of the core, such as the reorder buffer: counts that noise moves by an entry or two.
    Window,
    /// Memory-level parallelism by either method.
    Parallelism,
    /// Entries of a TLB.
    TlbEntries,
    /// Cost of a TLB miss.
    TlbCost,
    /// Time of a pattern ÷ time of random loads.
    PrefetchRatio,
    /// Time to move a line from core to core.
    CoreToCore,
    /// The core's clock.
    Clock,
    /// A count that repeats exactly.
    Exact,
    /// A parameter of a fitted model.
    Parameter,
}

impl Noise {
    /// All kinds.
    pub const ALL: [Self; 19] = [
        Self::InnerLatency,
        Self::CacheLatency,
        Self::SharedLatency,
        Self::MemoryLatency,
        Self::LoadedLatency,
        Self::ColdLoads,
        Self::CacheSize,
        Self::SharedSize,
        Self::CacheBandwidth,
        Self::MemoryBandwidth,
        Self::Window,
        Self::Parallelism,
        Self::TlbEntries,
        Self::TlbCost,
        Self::PrefetchRatio,
        Self::CoreToCore,
        Self::Clock,
        Self::Exact,
        Self::Parameter,
    ];

    /// Standard deviation between runs: a share of the value, and an amount in the figure's
    /// unit, to be added in quadrature.
    #[must_use]
    pub const fn floor(self) -> (f64, f64) {
        match self {
            Self::InnerLatency => (0.01, 0.0),
            Self::CacheLatency => (0.02, 0.0),
            Self::SharedLatency => (0.06, 0.0),
            Self::MemoryLatency => (0.03, 0.0),
            Self::LoadedLatency => (0.06, 0.0),
            Self::ColdLoads => (0.06, 0.0),
            Self::CacheSize => (0.03, 0.0),
            Self::SharedSize => (0.10, 0.0),
            Self::CacheBandwidth => (0.02, 0.0),
            Self::MemoryBandwidth => (0.04, 0.0),
            Self::Window => (0.01, 1.5),
            Self::Parallelism => (0.20, 0.3),
            Self::TlbEntries => (0.04, 0.5),
            Self::TlbCost => (0.08, 0.3),
            Self::PrefetchRatio => (0.08, 0.01),
            Self::CoreToCore => (0.04, 0.0),
            Self::Clock => (0.015, 0.0),
            Self::Exact => (0.0, 0.0),
            Self::Parameter => (0.03, 0.0),
        }
    }

    /// Direction in which a change of a figure in `unit` is worse.
    pub(super) fn worse(self, unit: &str) -> Worse {
        match self {
            Self::InnerLatency
            | Self::CacheLatency
            | Self::SharedLatency
            | Self::MemoryLatency
            | Self::LoadedLatency
            | Self::ColdLoads
            | Self::TlbCost
            | Self::PrefetchRatio
            | Self::CoreToCore => Worse::Higher,
            Self::CacheSize
            | Self::SharedSize
            | Self::CacheBandwidth
            | Self::MemoryBandwidth
            | Self::Parallelism
            | Self::TlbEntries
            | Self::Clock => Worse::Lower,
            Self::Window | Self::Exact => Worse::Neither,
            Self::Parameter => match unit {
                "ns" => Worse::Higher,
                "bytes" => Worse::Lower,
                _ => Worse::Neither,
            },
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::InnerLatency => "latency of the first level",
            Self::CacheLatency => "latency of private caches",
            Self::SharedLatency => "latency of the outermost cache",
            Self::MemoryLatency => "latency of memory",
            Self::LoadedLatency => "latency of memory under load",
            Self::ColdLoads => "a few cold loads between fences",
            Self::CacheSize => "effective size of private caches",
            Self::SharedSize => "effective size of the outermost cache",
            Self::CacheBandwidth => "bandwidth of private caches",
            Self::MemoryBandwidth => "bandwidth of memory and the outermost cache",
            Self::Window => "windows of the core",
            Self::Parallelism => "memory-level parallelism",
            Self::TlbEntries => "TLB entries",
            Self::TlbCost => "cost of a TLB miss",
            Self::PrefetchRatio => "prefetch ratios",
            Self::CoreToCore => "core to core",
            Self::Clock => "core clock",
            Self::Exact => "counts",
            Self::Parameter => "parameters of a fitted model",
        }
    }
}

/// The scatter between runs of all kinds, for the comparison document.
#[must_use]
pub fn floors() -> Vec<NoiseFloor> {
    Noise::ALL
        .into_iter()
        .map(|noise| {
            let (relative, absolute) = noise.floor();
            NoiseFloor {
                figures: noise.title().to_owned(),
                relative,
                absolute,
            }
        })
        .collect()
}

/// A value, its own 95 % interval if it has one, and its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uncertain {
    /// The value in the figure's unit.
    pub value: f64,
    /// Ends of the 95 % interval within one run, if known.
    pub interval: Option<(f64, f64)>,
    /// Kind of the figure.
    pub noise: Noise,
}

impl Uncertain {
    /// Relative standard deviation of a repetition, from the interval and the
    /// scatter between runs. `None` if the value is not positive.
    #[must_use]
    pub fn relative_sigma(&self) -> Option<f64> {
        if !(self.value > 0.0 && self.value.is_finite()) {
            return None;
        }
        let own = match self.interval {
            Some((low, high)) if low > 0.0 && high.is_finite() => {
                (high / low).ln().abs() / (2.0 * Z95)
            }
            Some((_, high)) if high.is_finite() => (high - self.value).abs() / self.value / Z95,
            _ => 0.0,
        };
        let (relative, absolute) = self.noise.floor();
        Some(own.hypot(relative).hypot(absolute / self.value))
    }

    /// Standard deviation of a repetition in the figure's unit.
    #[must_use]
    pub fn sigma(&self) -> f64 {
        let own = self
            .interval
            .map_or(0.0, |(low, high)| (high - low).abs() / (2.0 * Z95));
        let (relative, absolute) = self.noise.floor();
        own.hypot(relative * self.value).hypot(absolute)
    }

    /// True if the scatter of the value is known.
    #[must_use]
    pub fn stated(&self) -> bool {
        self.interval.is_some() || self.noise == Noise::Exact
    }
}

/// Result of a test for a difference, before the correction for the number of tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Test {
    /// Later ÷ first − 1 with the ends of its 95 % interval; `None` if either value is not positive.
    pub relative: Option<(f64, f64, f64)>,
    /// Two-sided probability of so large a difference by noise alone; `None` if the scatter of
    /// a value is unknown.
    pub p_value: Option<f64>,
}

/// Tests two values for a difference.
///
/// The logarithms of positive values are compared as normal with the standard deviations
/// of [`Uncertain::relative_sigma`], because intervals of times and rates are skewed and
/// their scatter grows with the value; other values are compared directly.
#[must_use]
pub fn test(first: &Uncertain, later: &Uncertain) -> Test {
    let stated = first.stated() && later.stated();
    let two_sided = |distance: f64, sigma: f64| {
        if !stated {
            return (distance == 0.0).then_some(1.0);
        }
        Some(if distance == 0.0 {
            1.0
        } else if sigma > 0.0 {
            erfc(distance.abs() / sigma / std::f64::consts::SQRT_2)
        } else {
            0.0
        })
    };
    match (first.relative_sigma(), later.relative_sigma()) {
        (Some(a), Some(b)) => {
            let sigma = a.hypot(b);
            let distance = (later.value / first.value).ln();
            let change = |z: f64| (distance + z * sigma).exp_m1();
            Test {
                relative: Some((change(0.0), change(-Z95), change(Z95))),
                p_value: two_sided(distance, sigma),
            }
        }
        _ => Test {
            relative: None,
            p_value: two_sided(
                later.value - first.value,
                first.sigma().hypot(later.sigma()),
            ),
        },
    }
}

/// Corrects p-values for their number: each becomes the smallest false discovery rate at
/// which its difference would be reported.
///
/// Benjamini and Hochberg, Controlling the False Discovery Rate (1995). The method also holds
/// for positively dependent figures, such as a latency in nanoseconds and in
/// cycles (Benjamini and Yekutieli, 2001).
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*b].total_cmp(&p_values[*a]));
    let count = p_values.len() as f64;
    let mut corrected = vec![1.0; p_values.len()];
    let mut least: f64 = 1.0;
    for (place, &index) in order.iter().enumerate() {
        let rank = count - place as f64;
        least = least.min(p_values[index] * count / rank);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(value: f64, low: f64, high: f64) -> Uncertain {
        Uncertain {
            value,
            interval: Some((low, high)),
            noise: Noise::MemoryLatency,
        }
    }

    #[test]
    fn a_difference_within_the_scatter_between_runs_is_none() {
        let check = |first: Uncertain, later: Uncertain, low: f64, high: f64| {
            let p = test(&first, &later).p_value.unwrap();
            assert!(p >= low && p <= high, "{p} is not in {low}…{high}");
        };
        let quiet = value(150.0, 149.9, 150.1);
        check(quiet, value(154.0, 153.9, 154.1), 0.4, 0.7);
        check(quiet, value(180.0, 179.9, 180.1), 0.0, 1e-4);
        check(quiet, quiet, 1.0, 1.0);
        // The interval stated in the file is also part of the scatter.
        check(quiet, value(180.0, 130.0, 230.0), 0.1, 1.0);
    }

    #[test]
    fn the_interval_of_the_change_holds_the_change() {
        let found = test(&value(100.0, 99.0, 101.0), &value(110.0, 109.0, 111.0));
        let (change, low, high) = found.relative.unwrap();
        assert!((change - 0.1).abs() < 1e-12);
        assert!(low > 0.0 && low < change && change < high && high < 0.21);
    }

    #[test]
    fn without_an_interval_only_equal_figures_have_a_verdict() {
        let bare = |value| Uncertain {
            value,
            interval: None,
            noise: Noise::Parallelism,
        };
        assert_eq!(test(&bare(10.0), &bare(20.0)).p_value, None);
        assert_eq!(test(&bare(10.0), &bare(10.0)).p_value, Some(1.0));
        let counted = |value| Uncertain {
            noise: Noise::Exact,
            ..bare(value)
        };
        assert_eq!(test(&counted(64.0), &counted(128.0)).p_value, Some(0.0));
    }

    #[test]
    fn values_that_are_not_positive_are_compared_as_they_stand() {
        let zero = value(0.0, -1.0, 1.0);
        let found = test(&zero, &value(9.0, 8.0, 10.0));
        assert_eq!(found.relative, None);
        assert!(found.p_value.unwrap() < 1e-6);
    }

    #[test]
    fn many_comparisons_are_paid_for() {
        let corrected = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.5]);
        let right = [0.04, 0.16 / 3.0, 0.16 / 3.0, 0.5];
        for (found, right) in corrected.iter().zip(right) {
            assert!((found - right).abs() < 1e-12, "{corrected:?}");
        }
        assert!(benjamini_hochberg(&[]).is_empty());
    }
}
