//! How the threads' time divides, and which part of the CPU time was stalled on memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the threads' lifetimes divide, in seconds over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeSplit {
    /// Not on a CPU: waiting for locks, files, other threads, or a turn.
    pub idle_s: f64,
    /// Stalled on memory.
    pub memory_stall_s: f64,
    /// On a CPU otherwise.
    pub other_s: f64,
    /// CPU time: `memory_stall_s + other_s`.
    pub cpu_s: f64,
}

/// The share of CPU time that was stalled on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryBound {
    /// The share, 0 to 1.
    pub fraction: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of its 95 % interval.
    pub high: f64,
    /// Part of it in the innermost cache; together with the second where the timer cannot
    /// tell them apart, see `l1_and_l2_together`.
    pub l1: f64,
    /// In the second cache.
    pub l2: f64,
    /// In the third cache.
    pub l3: f64,
    /// In memory of the thread's own node.
    pub dram: f64,
    /// In memory of another node, or another core's cache.
    pub remote: f64,
    /// At a level that is not known.
    pub unknown: f64,
    /// Share of CPU time in code whose samples could not be attributed to an access
    /// (the profile's `unseen` says why). It is not part of `fraction`, but `high` holds it.
    #[serde(default)]
    pub unseen: f64,
    /// `l1` holds both and `l2` is 0.
    pub l1_and_l2_together: bool,
}

/// Code whose samples could not be attributed to an access.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnseenCode {
    /// Why: a lower-case fragment, with the file's name where there is one.
    pub reason: String,
    /// Share of all CPU time, 0 to 1.
    pub fraction: f64,
}

/// Average latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AverageLatency {
    /// In nanoseconds.
    pub ns: f64,
    /// In core clock cycles.
    pub cycles: f64,
    /// Past the threshold beyond which it is worth a look.
    pub flagged: bool,
}
