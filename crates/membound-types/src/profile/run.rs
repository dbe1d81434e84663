//! What was run, which part of it a profile covers, and what recording cost.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Command and arguments; empty when a process was attached to.
    pub command: Vec<String>,
    /// Process that was attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<u32>,
    /// Host.
    pub host: String,
    /// Processor, from the machine profile.
    pub cpu: String,
    /// When, RFC 3339 in UTC.
    pub date: String,
    /// Version of membound that recorded.
    pub membound_version: String,
    /// Exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Processes seen.
    pub processes: u64,
    /// Threads seen.
    pub threads: u64,
    /// `cpu-clock` or `agent-timer`; in imported runs also `cycles` or `none`.
    pub timer: String,
    /// What the run was imported from, where another profiler recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// Timer samples.
    pub samples: u64,
    /// Samples as if all had the same weight: (Σw)² ÷ Σw².
    pub effective_samples: f64,
    /// Accesses whose latency was measured.
    pub timed_accesses: u64,
    /// Whether accesses were to be timed and their addresses recorded, in one process at least.
    #[serde(default)]
    pub latencies_recorded: bool,
    /// Whether allocations were followed, in one process at least.
    #[serde(default)]
    pub objects_recorded: bool,
}

/// A part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelectedPart {
    /// Beginning of the span, in seconds since the run began.
    pub from_s: f64,
    /// End of the span.
    pub to_s: f64,
    /// Numbers of the selected threads; empty: all threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tids: Vec<u32>,
}

/// What recording cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// By how much longer the program took because it was recorded, as a share of what it would
    /// have taken: an estimate.
    #[serde(default)]
    pub cost_fraction: f64,
    /// CPU time of membound's own process beside the program, in seconds.
    pub own_cpu_s: f64,
    /// Share of the program's samples that lay in membound's code inside it.
    pub inside_fraction: f64,
    /// Longest time in milliseconds that a thread of the program stood still or waited for a change of
    /// running text; absent where no text was to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_stop_ms: Option<f64>,
    /// Changes of running text by the longest stop of each; empty without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopCount>,
    /// Timer samples that were lost.
    pub lost_samples: u64,
    /// Timed accesses that were lost.
    pub lost_accesses: u64,
    /// Allocation events that were lost.
    pub lost_allocations: u64,
}

/// Changes of running text that stopped threads for about as long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopCount {
    /// The longest stop of each was shorter than this, in milliseconds, and not shorter than half of it
    /// (unless it is the first of a histogram).
    pub below_ms: f64,
    /// Number of changes.
    pub changes: u64,
}
