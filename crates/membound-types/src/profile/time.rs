//! Division of the threads' time, and the stalled share of CPU time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Division of the threads' lifetimes, in seconds summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeSplit {
    /// Time on no CPU: waiting for locks, files, other threads, or to be scheduled.
    pub idle_s: f64,
    /// CPU time stalled on memory.
    pub memory_stall_s: f64,
    /// CPU time that was not stalled on memory.
    pub other_s: f64,
    /// CPU time: `memory_stall_s + other_s`.
    pub cpu_s: f64,
}

/// Share of CPU time that was stalled on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryBound {
    /// The stalled share, 0 to 1.
    pub fraction: f64,
    /// Lower end of the 95 % interval of `fraction`.
    pub low: f64,
    /// Upper end of the 95 % interval of `fraction`.
    pub high: f64,
    /// Part of `fraction` in the innermost cache; also in the second cache if the timer cannot separate the
    /// two, see `l1_and_l2_together`.
    pub l1: f64,
    /// Part of `fraction` in the second cache.
    pub l2: f64,
    /// Part of `fraction` in the third cache.
    pub l3: f64,
    /// Part of `fraction` in memory of the thread's own node.
    pub dram: f64,
    /// Part of `fraction` in memory of another node, or another core's cache.
    pub remote: f64,
    /// Part of `fraction` at an unknown level.
    pub unknown: f64,
    /// Share of CPU time in code whose samples could not be attributed to an access (the profile's `unseen`
    /// gives reasons). It is not part of `fraction`, but `high` includes it.
    #[serde(default)]
    pub unseen: f64,
    /// True if `l1` includes the second cache and `l2` is 0.
    pub l1_and_l2_together: bool,
}

/// CPU time in code whose samples could not be attributed to an access.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnseenCode {
    /// Reason, as a lower-case fragment, with the file's name if there is one.
    pub reason: String,
    /// Share of all CPU time, 0 to 1.
    pub fraction: f64,
}

/// Average latency of timed accesses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AverageLatency {
    /// Latency in nanoseconds.
    pub ns: f64,
    /// Latency in core clock cycles.
    pub cycles: f64,
    /// True if it exceeds the threshold and is worth a look.
    pub flagged: bool,
}
