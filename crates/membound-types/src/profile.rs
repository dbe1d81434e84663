//! `membound report`: where a program waited for memory.
//!
//! Shares are fractions of the CPU time of all threads unless a name says otherwise. Stalled time is time
//! in which the oldest unretired instruction waited for memory, beyond the cost of a hit in the innermost
//! cache.

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

/// Profile: the analysis of a recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Profile`].
    pub kind: Kind,
    /// True if the run was cut short: the content is valid for the recorded part.
    #[serde(default)]
    pub incomplete: bool,
    /// The program, and how it was recorded.
    pub run: RunInfo,
    /// Part of the run that this document covers; absent for the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectedPart>,
    /// Wall time in seconds; of the selected span if one was selected.
    pub elapsed_s: f64,
    /// Division of the threads' time into stall, other CPU time and idle time.
    pub time: TimeSplit,
    /// Share of CPU time that was stalled on memory, in total and by level.
    pub memory_bound: MemoryBound,
    /// Code whose samples could not be attributed to an access, most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenCode>,
    /// Average latency of the timed accesses, weighted by executions.
    pub latency: Outcome<AverageLatency>,
    /// Findings for the reader, most important first.
    pub findings: Vec<Insight>,
    /// Figures by function, most stalled first.
    pub functions: Vec<CodeRow>,
    /// Figures by source line, most stalled first.
    pub lines: Vec<CodeRow>,
    /// Figures by instruction, most stalled first.
    pub instructions: Vec<CodeRow>,
    /// Figures by thread, most stalled first.
    pub threads: Vec<ThreadRow>,
    /// Stall by level of the memory hierarchy, innermost first.
    pub levels: Vec<LevelRow>,
    /// Accesses that the processor sampled; only in imported runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareView>,
    /// Figures by object, most stalled first.
    pub objects: Vec<ObjectRow>,
    /// Figures by pair of function and object, most stalled first.
    #[serde(default)]
    pub function_objects: Vec<FunctionObjectRow>,
    /// Live bytes over time, in total and by object.
    pub memory: Outcome<MemoryUse>,
    /// Cache lines that threads contend for without sharing data.
    pub false_sharing: Vec<SharedLine>,
    /// Cache lines whose data threads share and write.
    pub true_sharing: Vec<SharedLine>,
    /// Accesses by node of the page and node of the thread.
    pub numa: Outcome<NumaView>,
    /// Memory traffic by domain.
    pub bandwidth: Vec<BandwidthDomain>,
    /// The machine's nodes and the traffic between them.
    #[serde(default)]
    pub platform: Platform,
    /// Predictions for other machines; empty if none were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// Cost of recording.
    pub overhead: Overhead,
    /// Missing data, by the name of the table that lacks it.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// Prediction of how the program would run on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Elsewhere {
    /// Name of the other machine.
    pub machine: String,
    /// Predicted share of CPU time that is stalled.
    pub memory_bound: Figure,
    /// `memory_bound` by level.
    pub levels: LevelShares,
    /// Time without stalls there ÷ here, assuming the same number of core clock cycles. The interval
    /// includes the ratio of the first caches' latencies and, between cores of different designs, a factor
    /// for the work per cycle. Missing if a clock is unknown; the time without stalls is then assumed to stay
    /// the same.
    #[serde(default)]
    pub compute_ratio: Outcome<Figure>,
    /// Run time there ÷ run time here, from the stalls and `compute_ratio`.
    pub time_ratio: Figure,
    /// Memory bandwidth that each core would need, in 10⁹ bytes per second.
    pub per_core_gb_s: f64,
    /// Highest bandwidth measured on that machine with all cores, in 10⁹ bytes per second.
    pub machine_max_gb_s: Outcome<f64>,
}

/// Something that the document lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Name of the table or field.
    pub table: String,
    /// Reason, and remedy if there is one.
    pub why: NotMeasured,
}
