//! `membound report`: where a program waited for memory.
//!
//! Shares are fractions of the CPU time of all threads unless a name says otherwise. What
//! counts as stalled is the time in which the oldest unretired instruction waited for
//! memory beyond the cost of a hit in the innermost cache.

mod bandwidth;
mod detail;
mod findings;
mod nodes;
mod objects;
mod rows;
mod run;
mod sharing;
mod time;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::bandwidth::*;
pub use self::detail::*;
pub use self::findings::*;
pub use self::nodes::*;
pub use self::objects::*;
pub use self::rows::*;
pub use self::run::*;
pub use self::sharing::*;
pub use self::time::*;
use crate::{Figure, HardwareView, Kind, NotMeasured, Outcome};

/// A profile: what a run says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Profile`].
    pub kind: Kind,
    /// The run was cut short: what stands here is true of the part that was recorded.
    #[serde(default)]
    pub incomplete: bool,
    /// What was run, and how it was recorded.
    pub run: RunInfo,
    /// The part of the run that this document speaks of; absent when that is the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectedPart>,
    /// Wall time in seconds; of the selected span, where one was selected.
    pub elapsed_s: f64,
    /// How the threads' time divides.
    pub time: TimeSplit,
    /// Share of CPU time that was stalled on memory, and by level.
    pub memory_bound: MemoryBound,
    /// Code whose samples could not be told apart, most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenCode>,
    /// Average latency of the accesses that were looked at, weighted by executions.
    pub latency: Outcome<AverageLatency>,
    /// What a reader should look at first, most important first.
    pub findings: Vec<Insight>,
    /// By function, most stalled first.
    pub functions: Vec<CodeRow>,
    /// By source line.
    pub lines: Vec<CodeRow>,
    /// By instruction.
    pub instructions: Vec<CodeRow>,
    /// By thread.
    pub threads: Vec<ThreadRow>,
    /// By level.
    pub levels: Vec<LevelRow>,
    /// Accesses that the processor sampled itself, in imported runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareView>,
    /// By object.
    pub objects: Vec<ObjectRow>,
    /// By function and object together, most stalled first.
    #[serde(default)]
    pub function_objects: Vec<FunctionObjectRow>,
    /// Live bytes over time, by object.
    pub memory: Outcome<MemoryUse>,
    /// Lines of memory that threads fight over without sharing data.
    pub false_sharing: Vec<SharedLine>,
    /// Lines whose data threads do share and write.
    pub true_sharing: Vec<SharedLine>,
    /// Nodes of pages against nodes of threads.
    pub numa: Outcome<NumaView>,
    /// Traffic by domain.
    pub bandwidth: Vec<BandwidthDomain>,
    /// The machine's nodes and what moved between them.
    #[serde(default)]
    pub platform: Platform,
    /// What it would wait for on other machines, where some were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// What recording cost.
    pub overhead: Overhead,
    /// What is not here, by the name of the table that misses it.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// What the program would wait for on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Elsewhere {
    /// The machine.
    pub machine: String,
    /// Share of CPU time that would be stalled.
    pub memory_bound: Figure,
    /// By level.
    pub levels: LevelShares,
    /// Time without stalls there ÷ here: the number of core clock cycles is taken to be the same. The
    /// interval also holds the ratio of the latencies of the first caches. Missing where a clock is not
    /// known: the time without stalls is then taken to stay as it is.
    #[serde(default)]
    pub compute_ratio: Outcome<Figure>,
    /// Run time there ÷ run time here, by the stalls and by `compute_ratio`.
    pub time_ratio: Figure,
    /// Bandwidth that each core would ask of memory, in 10⁹ bytes a second.
    pub per_core_gb_s: f64,
    /// The most that machine was measured to do, all cores together.
    pub machine_max_gb_s: Outcome<f64>,
}

/// Something that is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Name of the table or field.
    pub table: String,
    /// Why, and what would change it.
    pub why: NotMeasured,
}
