//! Figures of functions, lines, instructions, threads and levels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Figures that every grouping has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Number of timer samples.
    pub samples: u64,
    /// CPU time in seconds.
    pub time_s: f64,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time that was stalled here.
    pub stall_fraction: f64,
    /// Lower end of the 95 % interval of `stall_fraction`.
    pub stall_low: f64,
    /// Upper end of the 95 % interval of `stall_fraction`.
    pub stall_high: f64,
    /// `stall_fraction` by level.
    pub levels: LevelShares,
    /// Executions of loads, if counted.
    pub loads: Option<f64>,
    /// Lower end of the 95 % interval of `loads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_low: Option<f64>,
    /// Upper end of the 95 % interval of `loads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_high: Option<f64>,
    /// Executions of stores, if counted.
    pub stores: Option<f64>,
    /// Lower end of the 95 % interval of `stores`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_low: Option<f64>,
    /// Upper end of the 95 % interval of `stores`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_high: Option<f64>,
    /// Executions that missed the last cache, if executions were counted and timed; an access that was
    /// prefetched in time is a hit.
    #[serde(default)]
    pub llc_misses: Option<f64>,
    /// Lower end of the 95 % interval of `llc_misses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_low: Option<f64>,
    /// Upper end of the 95 % interval of `llc_misses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_high: Option<f64>,
    /// Average latency in nanoseconds, if measured.
    pub avg_latency_ns: Option<f64>,
    /// Average latency in core clock cycles, if measured.
    pub avg_latency_cycles: Option<f64>,
    /// True if the row exceeds a threshold and is worth a look.
    pub flagged: bool,
    /// Confidence of the attribution of samples to instructions, 0 to 1.
    pub confidence: f64,
}

/// A stall share divided by level; the parts sum to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelShares {
    /// First cache (and the second if `l1_and_l2_together`).
    pub l1: f64,
    /// Second cache (0 if `l1_and_l2_together`).
    pub l2: f64,
    /// Third cache.
    pub l3: f64,
    /// Memory of the thread's own node.
    pub dram: f64,
    /// Memory of another node, or another core's cache.
    pub remote: f64,
    /// Level unknown.
    pub unknown: f64,
}

/// A name with a share; the containing field says of which whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedShare {
    /// Name of a function, line or object.
    pub name: String,
    /// Share of all CPU time, or of the whole that the containing field names.
    pub fraction: f64,
}

/// Figures of a function, a line or an instruction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeRow {
    /// Function, `file:line`, or instruction in Intel syntax.
    pub name: String,
    /// Name of the containing function.
    pub function: String,
    /// Path of the module with the code.
    pub module: String,
    /// Path of the source file, if known.
    pub file: Option<String>,
    /// Source line, if known.
    pub line: Option<u32>,
    /// Address in the module; for a function, of its start.
    pub address: Option<u64>,
    /// Of a line in a library, or of code without lines: the line of the program itself for which most of its samples
    /// ran. Absent if no line has half of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_from: Option<ProgramLine>,
    /// Samples, stall, executions and latency.
    #[serde(flatten)]
    pub share: Share,
}

/// A line of the program itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramLine {
    /// `file:line`.
    pub name: String,
    /// Name of the function, inlined or not.
    pub function: String,
    /// Path of the source file.
    pub file: String,
    /// Source line.
    pub line: u32,
}

/// Figures of a thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadRow {
    /// Name of the thread.
    pub name: String,
    /// Process identifier.
    pub pid: u32,
    /// Thread identifier.
    pub tid: u32,
    /// Lifetime of the thread, in seconds.
    pub lifetime_s: f64,
    /// Time in which the thread was on no CPU, in seconds.
    pub idle_s: f64,
    /// Samples, stall, executions and latency.
    #[serde(flatten)]
    pub share: Share,
}

/// Stall on one level of the memory hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelRow {
    /// `L1`, `L1+L2`, `L2`, `L3`, `DRAM`, `remote`, `unknown`.
    pub name: String,
    /// Share of all CPU time that was stalled on the level.
    pub stall_fraction: f64,
    /// Lower end of the 95 % interval of `stall_fraction`.
    pub stall_low: f64,
    /// Upper end of the 95 % interval of `stall_fraction`.
    pub stall_high: f64,
    /// Share of the executions that the level served.
    pub accesses_fraction: Option<f64>,
    /// Latency of the level on this machine in nanoseconds, from the machine profile.
    pub latency_ns: Option<f64>,
}
