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
        /// `cpuid`, as in the document, on x86-64; in a guest it traps.
        Cpuid = "cpuid",
        /// `lfence`, on x86-64.
        Lfence = "lfence",
        /// `dsb ld` and `isb`, on aarch64.
        Isb = "isb",
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

/// A time of N loads at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleTime {
    /// N.
    pub loads: u32,
    /// Core clock cycles for all of them, as the rule read it: times that fell with growing
    /// N have been made level.
    pub cycles: f64,
}

/// The two N that the document's rule lies between, each minus one: with 5 loads below the
/// time of two in sequence and 6 above it, the parallelism is 4–5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleBracket {
    /// Most loads at once that still take less time than two in sequence; `null` where no
    /// fewer were measured.
    pub below: Option<RuleTime>,
    /// Fewest loads at once that take at least as long.
    pub reached: RuleTime,
}

/// The time of n loads in sequence as a line, T(n) = n·M + C (chapter 3.2 of document 000).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialLine {
    /// M: core clock cycles of one load.
    pub load_cycles: Figure,
    /// Standard error of M.
    pub load_error: f64,
    /// C: core clock cycles that every execution costs whatever its number of loads.
    pub overhead_cycles: Figure,
    /// Standard error of C.
    pub overhead_error: f64,
    /// Standard deviation of the times around the line, in cycles.
    pub scatter_cycles: f64,
    /// Times that the line was fitted to.
    pub points: u32,
    /// Times that were left out because they lie far off the line of all others.
    pub left_out: u32,
}

/// What page walks cost, and how many are under way at once: T(N) with these pages against
/// T(N) with larger ones on the same node (chapter 2 of document 000).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageWalks {
    /// The larger pages, whose loads are taken to need no walk.
    pub against: PageKind,
    /// Fewest loads at once that were compared.
    pub from_loads: u32,
    /// Most loads at once that were compared: the rule's parallelism with the larger pages.
    pub to_loads: u32,
    /// Core clock cycles that one walk adds to one load.
    pub miss_cycles: Figure,
    /// Whether `miss_cycles` is the difference of M of loads in sequence; else that of one
    /// load alone.
    pub miss_from_sequence: bool,
    /// Core clock cycles that each further load takes with these pages.
    pub further_cycles: Figure,
    /// The same with the larger pages.
    pub further_against_cycles: Figure,
    /// Their difference: how much the excess grows with each further load.
    pub excess_cycles: Figure,
    /// Walks under way at once; missing, with what is known instead, where the excess does
    /// not grow.
    pub walks: Outcome<Figure>,
    /// Walks under way at once, at least.
    pub walks_at_least: f64,
    /// The same by independent chases (`parallel_walks` of the part `tlb`), where measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walks_by_chases: Option<f64>,
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
    /// The same with its 95 % interval.
    #[serde(default)]
    pub mlp_rule_interval: Outcome<Figure>,
    /// The two N that it lies between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlp_rule_between: Option<RuleBracket>,
    /// Memory-level parallelism by throughput: the largest over the chains tried.
    pub mlp_throughput: Outcome<f64>,
    /// Parallel chases.
    pub throughput: Vec<ThroughputPoint>,
    /// Cycles of two loads, the second outside the window of the first.
    pub sequential_pair_cycles: Outcome<f64>,
    /// T(n) = n·M + C through the loads in sequence.
    #[serde(default)]
    pub sequential_line: Outcome<SequentialLine>,
    /// Page walks with these pages against larger ones among [`Mlp::others`] and the main
    /// run.
    #[serde(default)]
    pub page_walks: Outcome<PageWalks>,
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
