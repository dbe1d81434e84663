//! `membound compare --fail-on` of runs: what was asked for, and what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{ComparedValue, Figure};

named! {
    /// What a gate looks at.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GateSubject {
        /// The stalled time of the whole program.
        MemoryBound = "memory-bound",
        /// The stalled time on a source line.
        Line = "line",
        /// The stalled time on an object.
        Object = "object",
        /// The stalled time in a function.
        Function = "function",
        /// Objects that threads fight over without sharing data.
        FalseSharing = "false-sharing",
    }
}

named! {
    /// What the limit of a gate is a limit of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GateLimit {
        /// Growth of the stalled share of CPU time: `+3pt` is 0.03.
        Share = "share",
        /// Relative growth of the stalled seconds: `+10%` is 0.1.
        Growth = "growth",
        /// Something that the base does not have.
        New = "new",
    }
}

named! {
    /// What came of a gate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GateVerdict {
        /// The whole interval of the change lies above the limit.
        Failed = "failed",
        /// The whole interval of the change lies below the limit.
        Passed = "passed",
        /// The interval holds the limit: there are too few runs, or the change is about the limit.
        Undecided = "undecided",
    }
}

/// One expression of `--fail-on`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// As it was given.
    pub expression: String,
    /// What it looks at.
    pub subject: GateSubject,
    /// Name of the line, object or function as it was given; empty for the others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What the limit is a limit of.
    pub limit_of: GateLimit,
    /// The limit as a share (0.03 for `+3pt`, 0.1 for `+10%`); 0 for `new`.
    pub limit: f64,
    /// The base's figure: a share of CPU time, stalled seconds where growth is limited; of false
    /// sharing the share of CPU time that the costliest new object costs.
    pub base: Figure,
    /// The same of the new side.
    pub new: Figure,
    /// The change with its 98 % interval, in the unit of the limit; `null` for false sharing and
    /// where growth has no base to grow from.
    pub change: Option<ComparedValue>,
    /// What came of it.
    pub verdict: GateVerdict,
    /// Runs a side with which about 95 % of comparisons of equal programs pass, by the spread of these
    /// runs; absent where there are as many, where it takes more than 1000, and under a limit of 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_needed: Option<u32>,
    /// The verdict in a sentence, with its figures.
    pub text: String,
}

/// The runs of one side put together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSide {
    /// `base` or `new`.
    pub name: String,
    /// Positions of its runs in `runs`.
    pub runs: Vec<usize>,
    /// Mean wall time in seconds.
    pub elapsed_s: f64,
    /// Mean CPU time in seconds.
    pub cpu_s: f64,
    /// Mean stalled time in seconds.
    pub memory_stall_s: Figure,
    /// Mean of the stalled shares of CPU time.
    pub memory_bound: Figure,
    /// Standard deviation of the stalled share between runs; absent with one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bound_deviation: Option<f64>,
}
