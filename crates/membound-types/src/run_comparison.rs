//! `membound compare` of runs: which functions, lines and objects stall more or less.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    AverageLatency, Figure, Gate, InsightKind, Kind, MemoryBound, Outcome, RunSide, TimeSplit,
};

/// `membound compare` of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunComparison {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::RunComparison`].
    pub kind: Kind,
    /// The files, the first is the reference.
    pub runs: Vec<ComparedRun>,
    /// The base and the new side, where runs were put together; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<RunSide>,
    /// What `--fail-on` asked for, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
    /// Functions, lines and objects whose stall changed, largest change first.
    pub changes: Vec<RunChange>,
    /// What came and went: false sharing that is gone, new findings.
    pub findings: Vec<InsightChange>,
    /// Sentences that sum it up.
    pub summary: Vec<String>,
}

/// One of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedRun {
    /// File.
    pub file: String,
    /// Command.
    pub command: String,
    /// When.
    pub date: String,
    /// Cut short.
    pub incomplete: bool,
    /// Wall time in seconds.
    pub elapsed_s: f64,
    /// How the time divides.
    pub time: TimeSplit,
    /// Its stalled share.
    pub memory_bound: MemoryBound,
    /// Its average latency.
    pub latency: Outcome<AverageLatency>,
}

/// A group in all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunChange {
    /// `function`, `line`, `object`.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Stalled seconds in each run, or in each side where there are sides; `null` where it was
    /// not seen.
    pub stall_s: Vec<Option<Figure>>,
    /// Last minus first, in seconds.
    pub change_s: f64,
    /// Whether the change is more than noise.
    pub significant: bool,
}

/// A finding that one run has and another has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InsightChange {
    /// What it is about.
    pub kind: InsightKind,
    /// What it says.
    pub text: String,
    /// Whether each run has it, or most runs of each side where there are sides.
    pub present: Vec<bool>,
}
