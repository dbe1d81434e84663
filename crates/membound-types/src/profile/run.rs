//! The program, the part of the run that a profile covers, and the cost of recording.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The program and the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Command and arguments; empty if membound attached to a process.
    pub command: Vec<String>,
    /// Process that membound attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<u32>,
    /// Host name.
    pub host: String,
    /// Model name of the processor, from the machine profile.
    pub cpu: String,
    /// Start of the run, RFC 3339 in UTC.
    pub date: String,
    /// Version of membound that recorded the run.
    pub membound_version: String,
    /// Exit code, if the program ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the program, if one did.
    pub signal: Option<i32>,
    /// Number of observed processes.
    pub processes: u64,
    /// Number of observed threads.
    pub threads: u64,
    /// Sampling clock: `cpu-clock` or `agent-timer`; in imported runs also `cycles` or `none`.
    pub timer: String,
    /// Origin of the run, if another profiler recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// Number of timer samples.
    pub samples: u64,
    /// Effective number of samples of equal weight: (Σw)² ÷ Σw².
    pub effective_samples: f64,
    /// Number of accesses with a measured latency.
    pub timed_accesses: u64,
    /// True if recording of latencies and addresses of accesses was enabled, in at least one process.
    #[serde(default)]
    pub latencies_recorded: bool,
    /// True if allocations were recorded, in at least one process.
    #[serde(default)]
    pub objects_recorded: bool,
}

/// Selected part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelectedPart {
    /// Start of the span, in seconds since the run began.
    pub from_s: f64,
    /// End of the span, in seconds since the run began.
    pub to_s: f64,
    /// Identifiers of the selected threads; empty for all threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tids: Vec<u32>,
}

/// Cost of recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// Estimated slowdown of the program due to recording, as a share of its time without recording.
    #[serde(default)]
    pub cost_fraction: f64,
    /// CPU time of membound's own process and of its threads inside the program, in seconds.
    pub own_cpu_s: f64,
    /// Share of the samples of the program's threads that were in membound's code.
    pub inside_fraction: f64,
    /// Longest time in milliseconds that a thread of the program was stopped, or waited for a change of its
    /// code; absent if no code was to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_stop_ms: Option<f64>,
    /// Histogram of the changes of running code by the longest stop that each caused; empty without
    /// changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopCount>,
    /// Number of lost timer samples.
    pub lost_samples: u64,
    /// Number of lost timed accesses.
    pub lost_accesses: u64,
    /// Number of lost allocation events.
    pub lost_allocations: u64,
}

/// Bin of the histogram of changes of running code by their longest stop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopCount {
    /// Upper edge in milliseconds; the lower edge is half of it, or 0 in the first bin of a histogram.
    pub below_ms: f64,
    /// Number of changes.
    pub changes: u64,
}
