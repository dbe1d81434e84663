//! `membound compare` of runs: which functions, lines and objects stall more or less.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AverageLatency, Figure, Gate, InsightKind, Kind, MemoryBound, Outcome, RunSide, TimeSplit,
};

/// Document of `membound compare` for runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunComparison {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::RunComparison`].
    pub kind: Kind,
    /// Compared runs; the first is the reference.
    pub runs: Vec<ComparedRun>,
    /// The base and the new side, if runs were pooled; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<RunSide>,
    /// Results of `--fail-on`, in the given order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
    /// Functions, lines and objects whose stall changed, largest change first.
    pub changes: Vec<RunChange>,
    /// Findings that appeared or vanished, such as false sharing that is gone.
    pub findings: Vec<InsightChange>,
    /// Summary in sentences.
    pub summary: Vec<String>,
}

/// One of the compared runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedRun {
    /// File of the run.
    pub file: String,
    /// Command line of the program.
    pub command: String,
    /// Start of the run, RFC 3339 in UTC.
    pub date: String,
    /// True if the run was cut short.
    pub incomplete: bool,
    /// Wall time in seconds.
    pub elapsed_s: f64,
    /// Division of the threads' time.
    pub time: TimeSplit,
    /// Stalled share of CPU time.
    pub memory_bound: MemoryBound,
    /// Average latency of timed accesses.
    pub latency: Outcome<AverageLatency>,
}

/// Stall of one function, line or object in all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunChange {
    /// Kind: `function`, `line` or `object`.
    pub group: String,
    /// Name of the function, line or object.
    pub name: String,
    /// Stall in seconds in each run, or in each side if there are sides; `null` if the group was not
    /// observed.
    pub stall_s: Vec<Option<Figure>>,
    /// Last minus first value, in seconds.
    pub change_s: f64,
    /// True if the change exceeds noise.
    pub significant: bool,
}

/// A finding that some runs have and others lack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InsightChange {
    /// Kind of the finding.
    pub kind: InsightKind,
    /// Text of the finding.
    pub text: String,
    /// For each run, whether it has the finding; for each side, if there are sides, whether most of its
    /// runs have it.
    pub present: Vec<bool>,
}
