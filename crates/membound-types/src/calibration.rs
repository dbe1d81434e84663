//! What the latency sampler's patch shows of loads that are known to be served from a level.
//!
//! A single fenced and timed load says little: the timer moves in steps of many ticks and
//! the fences cost more than a hit. Shares of levels are therefore found by fitting a
//! site's histogram with those that the same patch gave for loads of each level.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Histograms of the patch by level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// Levels, innermost first; memory last, then what lies beyond (remote nodes, another
    /// core's cache) where it could be had.
    pub levels: Vec<CalibratedLevel>,
    /// Rate of the ticks.
    pub tick_hz: f64,
    /// Identifies the patch: another body gives other histograms.
    pub patch: String,
    /// Levels that could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// A locked addition to a line that the innermost cache holds, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_ns: Option<f64>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}

/// The histogram of one level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibratedLevel {
    /// `L1`, `L2`, `L3`, `DRAM` (large pages), `DRAM 4k`, `core` (a line that another core
    /// has modified), `node 1`.
    pub name: String,
    /// Bytes that the loads were spread over.
    pub area_bytes: u64,
    /// Latency of the same chain without patch, in nanoseconds.
    pub latency_ns: f64,
    /// Timed loads.
    pub count: u64,
    /// Their ticks, ascending.
    pub ticks: Vec<TickCount>,
    /// Average ticks of a load from the innermost cache that is timed just before each, in the
    /// same way: what the timing itself costs. Where it differs at another place or time, so
    /// does that cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ticks: Option<f64>,
    /// Average ticks until the stores under way before each are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_ticks: Option<f64>,
}

/// How many loads took so many ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TickCount {
    /// Ticks, the timing's own cost included.
    pub ticks: u32,
    /// Loads.
    pub count: u64,
}
