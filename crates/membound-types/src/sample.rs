//! Raw samples and perturbations, which every measured point contains in addition to its figure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

/// Raw samples of a point, and why sampling ended.
///
/// Each entry of `raw` is the mean over one timed batch, in the unit of the point's figure; every statistic
/// of the point can be computed from them again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// Batch means, in the order of measurement.
    pub raw: Vec<f64>,
    /// Why sampling ended.
    pub stopped: Stopped,
    /// Perturbations of the point.
    pub disturbed: Disturbance,
}

named! {
    /// Why sampling of a point ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Stopped {
        /// The interval became as narrow as requested.
        Converged = "converged",
        /// The time budget was used up.
        #[default]
        Budget = "budget",
        /// The user or a signal ended the run.
        Interrupted = "interrupted",
    }
}

/// Perturbations while a point was measured. All zero for an unperturbed point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disturbance {
    /// Perturbed batches that were discarded and repeated.
    pub repeated_batches: u32,
    /// Batches that were perturbed in every attempt, and kept because there were no better ones.
    #[serde(default)]
    pub kept_batches: u32,
    /// Number of involuntary context switches.
    pub involuntary_switches: u32,
    /// Number of batches that started and ended on different CPUs.
    pub migrations: u32,
    /// Time in milliseconds that the hypervisor took during the measurement.
    pub steal_ms: f64,
    /// Number of visits during which the core clock changed by more than 2 %.
    pub clock_changes: u32,
    /// Median of the slower group in the unit of the point's figure, if the samples form two groups; absent
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mode: Option<f64>,
    /// Share of the samples in the slower group, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_share: Option<f64>,
}

impl Disturbance {
    /// True if any perturbation was observed.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// True if the figure is still affected: by two modes, or by perturbed batches that had to be kept.
    /// Batches that were repeated without perturbation do not count.
    #[must_use]
    pub const fn unresolved(&self) -> bool {
        self.slow_mode.is_some() || self.kept_batches > 0
    }
}
