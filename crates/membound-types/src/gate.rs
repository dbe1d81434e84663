//! `membound compare --fail-on` for runs: conditions and their verdicts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{ComparedValue, Figure};

named! {
    /// Quantity that a gate examines.
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
        /// Objects that threads contend for without sharing data.
        FalseSharing = "false-sharing",
    }
}

named! {
    /// Quantity that the limit of a gate applies to.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GateLimit {
        /// Growth of the stalled share of CPU time: `+3pt` is 0.03.
        Share = "share",
        /// Relative growth of the stalled seconds: `+10%` is 0.1.
        Growth = "growth",
        /// A finding that the base does not have.
        New = "new",
    }
}

named! {
    /// Result of a gate.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GateVerdict {
        /// The whole interval of the change lies above the limit.
        Failed = "failed",
        /// The whole interval of the change lies below the limit.
        Passed = "passed",
        /// The interval contains the limit: there are too few runs, or the change is close to the limit.
        Undecided = "undecided",
    }
}

/// One expression of `--fail-on` with its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// The expression as given.
    pub expression: String,
    /// Quantity that the gate examines.
    pub subject: GateSubject,
    /// Name of the line, object or function as given; empty for other subjects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Quantity that the limit applies to.
    pub limit_of: GateLimit,
    /// The limit as a share (0.03 for `+3pt`, 0.1 for `+10%`); 0 for `new`.
    pub limit: f64,
    /// Figure of the base: a share of CPU time, or stalled seconds if growth is limited. For false sharing:
    /// the share of CPU time that the costliest new object costs.
    pub base: Figure,
    /// The same figure of the new side.
    pub new: Figure,
    /// Change with its 98 % interval, in the unit of the limit; `null` for false sharing, and if the base
    /// is 0, so that growth is undefined.
    pub change: Option<ComparedValue>,
    /// Result of the gate.
    pub verdict: GateVerdict,
    /// Runs per side with which about 95 % of the comparisons of equal programs pass, given the variation
    /// of these runs. Absent if there are as many already, if more than 1000 are needed, and for a limit of
    /// 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs_needed: Option<u32>,
    /// The verdict as a sentence with its figures.
    pub text: String,
}

/// The pooled runs of one side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSide {
    /// `base` or `new`.
    pub name: String,
    /// Positions of the side's runs in `runs`.
    pub runs: Vec<usize>,
    /// Mean wall time in seconds.
    pub elapsed_s: f64,
    /// Mean CPU time in seconds.
    pub cpu_s: f64,
    /// Mean stalled time in seconds.
    pub memory_stall_s: Figure,
    /// Mean stalled share of CPU time.
    pub memory_bound: Figure,
    /// Standard deviation of the stalled share between runs; absent for a single run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bound_deviation: Option<f64>,
}
