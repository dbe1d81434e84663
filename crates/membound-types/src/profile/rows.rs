//! Samples and stalls of a function, line, instruction, thread or level.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Figures that every grouping has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Timer samples.
    pub samples: u64,
    /// CPU time in seconds.
    pub time_s: f64,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time that was stalled here.
    pub stall_fraction: f64,
    /// Lower end of its 95 % interval.
    pub stall_low: f64,
    /// Upper end of its 95 % interval.
    pub stall_high: f64,
    /// `stall_fraction` by level.
    pub levels: LevelShares,
    /// Executions of loads, where they were counted.
    pub loads: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_high: Option<f64>,
    /// Executions of stores, where they were counted.
    pub stores: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_high: Option<f64>,
    /// Executions that missed the last cache, where executions were counted and timed: an access that
    /// was prefetched in time is a hit.
    #[serde(default)]
    pub llc_misses: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_high: Option<f64>,
    /// Average latency, where it was measured.
    pub avg_latency_ns: Option<f64>,
    /// The same in core clock cycles.
    pub avg_latency_cycles: Option<f64>,
    /// Past a threshold beyond which it is worth a look.
    pub flagged: bool,
    /// How sure the attribution of samples to instructions is, 0 to 1.
    pub confidence: f64,
}

/// A stall share by level; the parts sum to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelShares {
    /// Innermost cache (and the second where `l1_and_l2_together`).
    pub l1: f64,
    /// Second cache.
    pub l2: f64,
    /// Third cache.
    pub l3: f64,
    /// Memory of the own node.
    pub dram: f64,
    /// Memory of another node, or another core's cache.
    pub remote: f64,
    /// Not known.
    pub unknown: f64,
}

/// A name with a share of all CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedShare {
    /// What.
    pub name: String,
    /// Share of all CPU time.
    pub fraction: f64,
}

/// A function, a line or an instruction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeRow {
    /// Function, `file:line`, or instruction in Intel's syntax.
    pub name: String,
    /// Function that it is in.
    pub function: String,
    /// File of the code.
    pub module: String,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Address in the module; of functions where they begin.
    pub address: Option<u64>,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadRow {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its number.
    pub tid: u32,
    /// How long it lived.
    pub lifetime_s: f64,
    /// The part of that it was on no CPU.
    pub idle_s: f64,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// A level of the hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelRow {
    /// `L1`, `L1+L2`, `L2`, `L3`, `DRAM`, `remote`, `unknown`.
    pub name: String,
    /// Share of all CPU time stalled on it.
    pub stall_fraction: f64,
    /// Lower end of its 95 % interval.
    pub stall_low: f64,
    /// Upper end.
    pub stall_high: f64,
    /// Share of the executions that were served from it.
    pub accesses_fraction: Option<f64>,
    /// Its latency on this machine, from the machine profile.
    pub latency_ns: Option<f64>,
}
