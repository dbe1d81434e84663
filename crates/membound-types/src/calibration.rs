//! Histograms of the latency sampler's patch for loads of known levels.
//!
//! A single fenced and timed load says little: the timer moves in steps of many ticks, and the fences cost
//! more than a hit. Shares of levels are therefore found by fitting the histogram of a site with the
//! histograms that the same patch gave for each level.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Histograms of the latency sampler's patch, by level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// Levels, innermost first; memory last, followed by what lies beyond (remote nodes, another core's
    /// cache) if it could be measured.
    pub levels: Vec<CalibratedLevel>,
    /// Frequency of the timer, in ticks per second.
    pub tick_hz: f64,
    /// Identity of the patch; the histograms are valid only for this one.
    pub patch: String,
    /// Levels that could not be calibrated, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Time of a locked addition to a line in the innermost cache, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_ns: Option<f64>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}

/// Histogram of the timed loads of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibratedLevel {
    /// `L1`, `L2`, `L3`, `DRAM` (large pages), `DRAM 4k`, `core` (a line that another core
    /// has modified), `node 1`.
    pub name: String,
    /// Size in bytes of the area that the loads are spread over.
    pub area_bytes: u64,
    /// Latency of the same chase without the patch, in nanoseconds.
    pub latency_ns: f64,
    /// Number of timed loads.
    pub count: u64,
    /// Histogram of their ticks, ascending.
    pub ticks: Vec<TickCount>,
    /// Average ticks of a reference load from the innermost cache, timed in the same way just before each
    /// load: the cost of the timing itself. Where the reference differs at another place or time, that cost
    /// differs by as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ticks: Option<f64>,
    /// Average ticks until earlier stores have drained, before each load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_ticks: Option<f64>,
}

/// Number of loads that took a number of ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TickCount {
    /// Ticks of a load, including the cost of timing.
    pub ticks: u32,
    /// Number of loads.
    pub count: u64,
}
