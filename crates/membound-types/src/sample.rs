//! What every measured point carries beside its figure: raw samples and disturbances.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;

/// The raw samples of a point and how the sampling ended.
///
/// Each entry of `raw` is the mean over one timed batch, in the unit of the point's
/// figure; every statistic of the point can be computed again from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Samples {
    /// Batch means, in the order in which they were taken.
    pub raw: Vec<f64>,
    /// Why no more samples were taken.
    pub stopped: Stopped,
    /// What disturbed the point.
    pub disturbed: Disturbance,
}

named! {
    /// Why sampling of a point ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Stopped {
        /// The interval is as narrow as was asked.
        Converged = "converged",
        /// The time for it was spent.
        #[default]
        Budget = "budget",
        /// The user or a signal ended the run.
        Interrupted = "interrupted",
    }
}

/// What disturbed a point while it was measured. All zero for a quiet point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Disturbance {
    /// Batches thrown away because something below was seen during them, and repeated.
    pub repeated_batches: u32,
    /// Batches that were disturbed each time they were tried, and kept for want of better.
    #[serde(default)]
    pub kept_batches: u32,
    /// Involuntary context switches seen.
    pub involuntary_switches: u32,
    /// Batches that began and ended on different CPUs.
    pub migrations: u32,
    /// Time stolen by the hypervisor while the point was measured, in milliseconds.
    pub steal_ms: f64,
    /// Visits between whose begin and end the core clock changed by more than 2 %.
    pub clock_changes: u32,
    /// The samples fall into two groups; this is the slower one's median, in the unit of
    /// the point's figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_mode: Option<f64>,
    /// Share of the samples in the slower group, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_share: Option<f64>,
}

impl Disturbance {
    /// Whether anything at all was seen.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Whether something is left in the figure: two modes, or disturbed batches that had
    /// to be kept. What was repeated in quiet is not.
    #[must_use]
    pub const fn unresolved(&self) -> bool {
        self.slow_mode.is_some() || self.kept_batches > 0
    }
}
