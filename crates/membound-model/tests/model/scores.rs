//! Scores of the search for levels in random hierarchies.

use membound_model::levels::Interval;
use membound_model::stats::quantile;
use membound_model::{LevelOptions, find_levels};

use crate::hierarchies::{Disturbance, Hierarchy, MissShape};
use membound_testkit::Random;

/// Results over many hierarchies. Errors and intervals are those of curves with the
/// right number of levels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Score {
    all: u32,
    right: u32,
    size_errors: Vec<f64>,
    latency_errors: Vec<f64>,
    sizes_covered: u32,
    latencies_covered: u32,
    /// Seeds, and the wrong result of each.
    pub(crate) wrong: Vec<String>,
}

impl Score {
    /// Draws `count` hierarchies and finds their levels.
    pub(crate) fn of(shape: MissShape, disturbance: Disturbance, count: u32) -> Self {
        let mut score = Self::default();
        for seed in 0..u64::from(count) {
            let mut random = Random::new(1_000_003 * (seed + 1));
            let truth = Hierarchy::random(shape, &mut random);
            let curve = truth.curve(disturbance, &mut random);
            let found = find_levels(&curve, &LevelOptions::default());
            score.all += 1;
            if found.plateaus.len() != truth.latencies.len() {
                score.wrong.push(format!(
                    "seed {seed}: {} of {} levels, {:?} {:.1?}; found {:?}",
                    found.plateaus.len(),
                    truth.latencies.len(),
                    truth
                        .sizes
                        .iter()
                        .map(|size| (10.0 * size.log2()).round() / 10.0)
                        .collect::<Vec<_>>(),
                    truth.latencies,
                    found
                        .plateaus
                        .iter()
                        .map(|plateau| (
                            plateau
                                .size
                                .map(|(size, _)| (10.0 * size.value.log2()).round() / 10.0),
                            (10.0 * plateau.latency_ns.value).round() / 10.0
                        ))
                        .collect::<Vec<_>>()
                ));
                continue;
            }
            score.right += 1;
            for (plateau, &latency) in found.plateaus.iter().zip(&truth.latencies) {
                score
                    .latency_errors
                    .push((plateau.latency_ns.value / latency - 1.0).abs());
                score.latencies_covered += u32::from(holds(plateau.latency_ns, latency));
            }
            for (plateau, &bytes) in found.plateaus.iter().zip(&truth.sizes) {
                let (error, held) = plateau.size.map_or((1.0, false), |(size, _)| {
                    ((size.value / bytes - 1.0).abs(), holds(size, bytes))
                });
                score.size_errors.push(error);
                score.sizes_covered += u32::from(held);
            }
        }
        score
    }

    /// Share of curves with the right number of levels.
    pub(crate) fn right_share(&self) -> f64 {
        f64::from(self.right) / f64::from(self.all)
    }

    /// A quantile of the relative errors of sizes.
    pub(crate) fn size_error(&self, share: f64) -> f64 {
        quantile(&self.size_errors, share).unwrap_or(f64::NAN)
    }

    /// A quantile of the relative errors of latencies.
    pub(crate) fn latency_error(&self, share: f64) -> f64 {
        quantile(&self.latency_errors, share).unwrap_or(f64::NAN)
    }

    /// Share of true sizes inside the stated interval.
    pub(crate) fn size_coverage(&self) -> f64 {
        f64::from(self.sizes_covered) / self.size_errors.len() as f64
    }

    /// Share of true latencies inside the stated interval.
    pub(crate) fn latency_coverage(&self) -> f64 {
        f64::from(self.latencies_covered) / self.latency_errors.len() as f64
    }
}

fn holds(interval: Interval, truth: f64) -> bool {
    interval.low <= truth && truth <= interval.high
}
