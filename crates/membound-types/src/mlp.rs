//! `measure mlp`: windows of the core and memory-level parallelism.
//!
//! The kernel is that of the IIT Delhi experiments: serialise, N−1 loads, K fillers, one
//! load, stop.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, NodePolicy, Outcome, PageKind, Samples};

named! {
    /// How the kernel is serialised before and after.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Fence {
        /// `cpuid`, as in the document; in a guest it traps.
        Cpuid = "cpuid",
        /// `lfence`.
        Lfence = "lfence",
    }
}

named! {
    /// What stands between the loads.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum Filler {
        /// One-byte no-operations: only the reorder buffer holds them.
        Nop = "nop",
        /// Register additions: each takes an integer register too.
        Integer = "integer",
        /// Vector additions: each takes a vector register too.
        Vector = "vector",
    }
}

named! {
    /// Whether the last load could overlap with the ones before.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum MlpMode {
        /// N−1 loads, K fillers, one load.
        Parallel = "parallel",
        /// N loads, each outside the window of the one before.
        Sequential = "sequential",
    }
}

/// Cache and TLB misses per execution of a kernel, from the PMU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Misses {
    /// L1 data cache.
    pub l1: Outcome<f64>,
    /// L2 cache.
    pub l2: Outcome<f64>,
    /// Last-level cache.
    pub l3: Outcome<f64>,
    /// Data TLB.
    pub tlb: Outcome<f64>,
}

/// One cell of the N × K plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MlpCell {
    /// Parallel or sequential.
    pub mode: MlpMode,
    /// Loads (N or n).
    pub loads: u32,
    /// Fillers before the last load (K), or between all loads in a sequential cell.
    pub fillers: u32,
    /// Kind of filler.
    pub filler: Filler,
    /// Bytes over which the loads are spread.
    pub area_bytes: u64,
    /// Where the area lies.
    pub node: NodePolicy,
    /// Pages behind the area, as verified.
    pub page: PageKind,
    /// Core clock cycles per execution, the empty kernel's time taken away.
    pub cycles: f64,
    /// Half the width of the middle half of the batches, in cycles.
    pub spread: f64,
    /// Misses per execution.
    pub misses: Outcome<Misses>,
}

/// A window of the core, found from a cliff.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowLimit {
    /// Filler that found it.
    pub filler: Filler,
    /// `reorder buffer`, `integer registers` or `vector registers`.
    pub limited_by: String,
    /// Most fillers with which the two loads still overlap.
    pub cliff_fillers: u32,
    /// Entries: `cliff_fillers` + loads + the kernel's own counted uops.
    pub entries: Figure,
    /// Cycles of the two loads inside the window.
    pub inside_cycles: f64,
    /// Cycles of the two loads outside it.
    pub outside_cycles: f64,
}

/// Parallel chases at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThroughputPoint {
    /// Independent chains.
    pub chains: u32,
    /// Cycles per load.
    pub cycles_per_load: f64,
    /// Latency of one chain divided by `cycles_per_load`.
    pub parallelism: f64,
    /// The batches.
    pub batches: Samples,
}

/// Shares of the accesses that each level is expected to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedHits {
    /// Level's name.
    pub level: String,
    /// Share, 0 to 1: capacity beyond the inner levels ÷ area.
    pub share: f64,
}

/// One point of the area sweep (the document's chapter 5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AreaPoint {
    /// Bytes that the accesses fall into.
    pub area_bytes: u64,
    /// Accesses at once (N).
    pub loads: u32,
    /// Core clock cycles for all N, the empty kernel's time taken away.
    pub cycles: f64,
    /// Half the width of the middle half of the batches, in cycles.
    pub spread: f64,
    /// `cycles` divided by that of one access in the same area.
    pub ratio: f64,
    /// Expected share of hits per level; empty until levels are known.
    #[serde(default)]
    pub expected: Vec<ExpectedHits>,
    /// Misses per execution.
    pub misses: Outcome<Misses>,
}

/// The part `mlp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mlp {
    /// The N × K plane and the sequential series.
    pub cells: Vec<MlpCell>,
    /// Entries of the reorder buffer.
    pub rob_size: Outcome<f64>,
    /// Every window found, with interval.
    pub windows: Vec<WindowLimit>,
    /// Memory-level parallelism by the document's rule, with the fraction between.
    pub mlp_rule: Outcome<f64>,
    /// Memory-level parallelism by throughput: the largest over the chains tried.
    pub mlp_throughput: Outcome<f64>,
    /// Parallel chases.
    pub throughput: Vec<ThroughputPoint>,
    /// Cycles of two loads, the second outside the window of the first.
    pub sequential_pair_cycles: Outcome<f64>,
    /// Area sweep.
    #[serde(default)]
    pub areas: Vec<AreaPoint>,
    /// Pages behind the main area.
    pub page: PageKind,
    /// Where the main area lies.
    pub node: NodePolicy,
    /// Fence of the kernel.
    pub fence: Fence,
    /// The same under other pages and node policies, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Mlp>,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
