//! `measure mlp`: windows of the core and memory-level parallelism.
//!
//! The kernel is that of the IIT Delhi experiments: serialise, N−1 loads, K fillers, one load, stop.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, NodePolicy, Outcome, PageKind, Samples, TickCount};

named! {
    /// Instructions that serialise the kernel before and after.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum Fence {
        /// `cpuid`, as in the document, on x86-64; it traps in a guest.
        #[default]
        Cpuid = "cpuid",
        /// `lfence`, on x86-64.
        Lfence = "lfence",
        /// `dsb ld` and `isb`, on aarch64.
        Isb = "isb",
    }
}

named! {
    /// Instructions between the loads. Besides an entry of the reorder buffer, each kind occupies only the
    /// resource that its description names.
    #[derive(
        Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        JsonSchema,
    )]
    pub enum Filler {
        /// One-byte no-operations: nothing else. Some cores combine several in one entry.
        #[default]
        Nop = "nop",
        /// Additions to registers that set no flags: an integer register.
        Integer = "integer",
        /// Vector additions: a vector register.
        Vector = "vector",
        /// Tests of a register: the flags, which are renamed separately on some cores.
        Flags = "flags",
        /// Logic on mask registers (AVX-512): a mask register.
        Mask = "mask",
        /// Copies of an integer register: nothing if the core eliminates them.
        Move = "move",
        /// Registers set to zero by `xor`: nothing if the core recognises the idiom.
        Zero = "zero",
        /// Branches that are never taken: an entry of the branch order buffer.
        Branch = "branch",
        /// x87 no-operations: nothing else.
        X87 = "x87",
        /// Loads that hit the first level: an integer register and an entry of the load queue.
        Load = "load",
        /// Stores that hit the first level: an entry of the store queue.
        Store = "store",
        /// Additions that depend on the first load: an entry of a scheduler.
        Dependent = "dependent",
        /// Several kinds alternately, as the search found them on this core: see `pattern` of the window.
        Mixed = "mixed",
    }
}

named! {
    /// Whether the last load can overlap with the earlier loads.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum MlpMode {
        /// N−1 loads, K fillers, one load.
        Parallel = "parallel",
        /// N loads, each outside of the window of the one before.
        Sequential = "sequential",
    }
}

/// Cache and TLB misses per execution of a kernel, counted by the PMU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Misses {
    /// Misses of the L1 data cache.
    pub l1: Outcome<f64>,
    /// Misses of the L2 cache.
    pub l2: Outcome<f64>,
    /// Misses of the last-level cache.
    pub l3: Outcome<f64>,
    /// Misses of the data TLB.
    pub tlb: Outcome<f64>,
}

/// One cell of the plane of N loads and K fillers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MlpCell {
    /// Whether the last load could overlap with the earlier ones.
    pub mode: MlpMode,
    /// Number of loads: N (parallel) or n (sequential).
    pub loads: u32,
    /// Number of fillers: before the last load (K), or between all loads in a sequential cell.
    pub fillers: u32,
    /// Kind of the filler instructions.
    pub filler: Filler,
    /// Bytes over which the loads are spread.
    pub area_bytes: u64,
    /// Node of the area.
    pub node: NodePolicy,
    /// Page kind of the area, as verified.
    pub page: PageKind,
    /// Core clock cycles per execution, less the time of the empty kernel.
    pub cycles: f64,
    /// Half the interquartile range of the batches, in cycles.
    pub spread: f64,
    /// Cache and TLB misses per execution.
    pub misses: Outcome<Misses>,
}

/// Size of a window of the core, found from a cliff.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowLimit {
    /// Filler that found it.
    pub filler: Filler,
    /// Kinds of a `mixed` filler, in the order in which they repeat.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<Filler>,
    /// Exhausted resource: `reorder buffer`, `integer registers`, `vector registers`, `flag registers`,
    /// `mask registers`, `branches in flight`, `load queue`, `store queue`, `scheduler`, or one of these
    /// with the number of fillers that share an entry.
    pub limited_by: String,
    /// Most fillers for which the two loads still overlap.
    pub cliff_fillers: u32,
    /// Fillers per entry of the reorder buffer: 1, or more if the core fuses them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub fillers_per_entry: f64,
    /// Entries of the exhausted resource: `cliff_fillers` ÷ `fillers_per_entry`, plus the two loads if they
    /// occupy entries too. For registers, those in addition to the architectural ones.
    pub entries: Figure,
    /// Cycles of the two loads within the window.
    pub inside_cycles: f64,
    /// Cycles of the two loads outside of the window.
    pub outside_cycles: f64,
}

fn one() -> f64 {
    1.0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(fillers: &f64) -> bool {
    (*fillers - 1.0).abs() < f64::EPSILON
}

/// Fillers from which the size of the reorder buffer was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReorderEvidence {
    /// All fillers, single or mixed, whose cliffs are at the same number of instructions.
    pub agreeing: Vec<FillerCliff>,
    /// All other fillers that were tried.
    pub others: Vec<FillerCliff>,
}

/// Position of one filler's cliff.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FillerCliff {
    /// Kinds of the filler, in the order in which they repeat.
    pub pattern: Vec<Filler>,
    /// Instructions in the window at the cliff: fillers and the two loads.
    pub instructions: u32,
}

/// Throughput of several chases at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThroughputPoint {
    /// Number of independent chains.
    pub chains: u32,
    /// Core clock cycles per load.
    pub cycles_per_load: f64,
    /// Latency of one chain ÷ `cycles_per_load`.
    pub parallelism: f64,
    /// Raw batches.
    pub batches: Samples,
}

/// Share of the accesses that a level is expected to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedHits {
    /// Name of the level.
    pub level: String,
    /// Share, 0 to 1: capacity beyond the inner levels ÷ area.
    pub share: f64,
}

/// Number of the N accesses that one level served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelHits {
    /// Name of the level; two names joined by `+` if the machine counts only their sum.
    pub level: String,
    /// Accesses, 0 to N: `measured` by counters, else `estimated` from the times of single accesses.
    pub hits: Figure,
}

/// One point of the area sweep (chapter 5 of document 000).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AreaPoint {
    /// Size of the accessed area in bytes.
    pub area_bytes: u64,
    /// Number of accesses at once (N).
    pub loads: u32,
    /// Core clock cycles for all N accesses, less the time of the empty kernel.
    pub cycles: f64,
    /// Half the interquartile range of the batches, in cycles.
    pub spread: f64,
    /// `cycles` ÷ cycles of one access in the same area; `null` if either cannot be told apart from the time
    /// of the empty kernel.
    pub ratio: Option<f64>,
    /// Expected share of hits per level; empty while levels are unknown.
    #[serde(default)]
    pub expected: Vec<ExpectedHits>,
    /// Number of the N accesses that each level served, innermost first.
    #[serde(default)]
    pub hits: Outcome<Vec<LevelHits>>,
    /// Ticks of single accesses, including the cost of timing: one histogram per random choice of
    /// displacements, only at N = 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ticks: Vec<Vec<TickCount>>,
    /// Cache and TLB misses per execution.
    pub misses: Outcome<Misses>,
}

impl AreaPoint {
    /// `cycles`, if they can be told apart from the time of the empty kernel, which has been subtracted.
    #[must_use]
    pub fn distinct_cycles(&self) -> Option<f64> {
        /// Half the width of a 95 % interval in spreads of the batches, as for every time of this part.
        const HALF_WIDTH: f64 = 1.96;
        let low = self.cycles - HALF_WIDTH * self.spread.abs();
        (self.cycles.is_finite() && low > 0.0).then_some(self.cycles)
    }
}

/// Time of N loads at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleTime {
    /// Number of loads (N).
    pub loads: u32,
    /// Core clock cycles for all loads, as used by the rule: times that fell with growing N have been
    /// levelled.
    pub cycles: f64,
}

/// The two N between which the document's rule lies, each reduced by one: if 5 loads take less time than
/// two in sequence and 6 take more, the parallelism is 4–5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuleBracket {
    /// Most loads at once that take less time than two in sequence; `null` if no smaller number was
    /// measured.
    pub below: Option<RuleTime>,
    /// Fewest loads at once that take at least as long as two in sequence.
    pub reached: RuleTime,
}

/// Line through the times of n loads in sequence, T(n) = n·M + C (chapter 3.2 of document 000).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialLine {
    /// M: core clock cycles of one load.
    pub load_cycles: Figure,
    /// Standard error of M.
    pub load_error: f64,
    /// C: core clock cycles per execution, independent of the number of loads.
    pub overhead_cycles: Figure,
    /// Standard error of C.
    pub overhead_error: f64,
    /// Standard deviation of the times around the line, in cycles.
    pub scatter_cycles: f64,
    /// Number of times that the line was fitted to.
    pub points: u32,
    /// Number of times that were excluded because they are far off the line of all others.
    pub left_out: u32,
    /// Probability that times on a line bend at least this much by chance; absent if too few were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bend_p_value: Option<f64>,
    /// Two lines that meet, if one line does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bend: Option<SequentialBend>,
}

impl SequentialLine {
    /// p-value below which the times do not count as a straight line.
    pub const MAX_BENT_P_VALUE: f64 = 0.01;
    /// Relative change of the slope up to which a bend is not reported.
    pub const MAX_UNREPORTED_SLOPE_CHANGE: f64 = 0.02;
}

/// Two lines that meet at a number of loads, for sequential loads whose times are not on one line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialBend {
    /// n at which the lines meet.
    pub at_loads: u32,
    /// The line up to `at_loads`.
    pub before: SequentialPart,
    /// The line from `at_loads` on.
    pub after: SequentialPart,
    /// Standard deviation of the times around both lines, in cycles.
    pub scatter_cycles: f64,
    /// Number of times that were excluded because they are far off both lines.
    pub left_out: u32,
}

/// Part of T(n) that is a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialPart {
    /// First n of the part.
    pub from_loads: u32,
    /// Last n of the part.
    pub to_loads: u32,
    /// M on this part: core clock cycles of one more load.
    pub load_cycles: Figure,
    /// C of this part: its line extended to n = 0.
    pub overhead_cycles: Figure,
}

/// Cost of page walks, and how many are in progress at once: T(N) with these pages, compared with T(N) with
/// larger pages on the same node (chapter 2 of document 000).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PageWalks {
    /// The larger pages, whose loads are assumed to need no walk.
    pub against: PageKind,
    /// Fewest loads at once in the comparison.
    pub from_loads: u32,
    /// Most loads at once in the comparison: the rule's parallelism with the larger pages.
    pub to_loads: u32,
    /// Core clock cycles that one walk adds to one load.
    pub miss_cycles: Figure,
    /// True if `miss_cycles` is the difference of M of loads in sequence; otherwise it is that of a single
    /// load.
    pub miss_from_sequence: bool,
    /// Core clock cycles of each further load with these pages.
    pub further_cycles: Figure,
    /// Core clock cycles of each further load with the larger pages.
    pub further_against_cycles: Figure,
    /// Difference of the two: growth of the excess with each further load.
    pub excess_cycles: Figure,
    /// Page walks at once; missing if the excess does not grow, with the reason.
    pub walks: Outcome<Figure>,
    /// Lower bound of the page walks at once.
    pub walks_at_least: f64,
    /// Page walks at once according to independent chases (`parallel_walks` of the part `tlb`), if
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walks_by_chases: Option<f64>,
}

/// Times of one cell, measured repeatedly on new pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementPoint {
    /// Whether the last load could overlap with the earlier ones.
    pub mode: MlpMode,
    /// Number of loads: N (parallel) or n (sequential).
    pub loads: u32,
    /// Core clock cycles, one value per placement.
    pub cycles: Vec<f64>,
    /// Median of `cycles`.
    pub median_cycles: f64,
    /// Smallest of `cycles`.
    pub low_cycles: f64,
    /// Largest of `cycles`.
    pub high_cycles: f64,
    /// Robust standard deviation between placements, as a share of the median.
    pub between: f64,
    /// Scatter within one placement as a share of the median: half the interquartile range of its batches,
    /// the median over placements.
    pub within: f64,
}

/// Effect of the choice of pages: the same measurement, repeated on new pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placements {
    /// Number of repetitions.
    pub times: u32,
    /// Size of the area in each repetition, in bytes.
    pub area_bytes: u64,
    /// Times without those of outlying placements.
    pub points: Vec<PlacementPoint>,
    /// Placements whose times were several times those of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<PlacementOutlier>,
}

/// Placement whose times were several times those of the others, with observations made meanwhile. Its
/// times are in no point; those of its repetition are, unless they were outlying too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementOutlier {
    /// Number of the placement, from 1.
    pub placement: u32,
    /// Its times ÷ the medians over all placements: the median over the points.
    pub ratio: f64,
    /// The same ratio for its repetition on other pages; missing if there was none.
    pub repeated_ratio: Outcome<f64>,
    /// Milliseconds in which the hypervisor had the CPU meanwhile, according to the kernel.
    pub steal_ms: f64,
    /// Involuntary context switches meanwhile.
    pub involuntary_switches: u32,
    /// Probable reason for the deviation.
    pub reason: String,
}

/// Result of `measure mlp`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mlp {
    /// Cells of the N × K plane and of the sequential series.
    pub cells: Vec<MlpCell>,
    /// Number of entries of the reorder buffer.
    pub rob_size: Outcome<f64>,
    /// Fillers from which the reorder buffer was found, and the cliffs of the others; missing if no fillers
    /// of different kinds agree.
    #[serde(default)]
    pub reorder_evidence: Outcome<ReorderEvidence>,
    /// Filler of the N × K plane and of the loads in sequence.
    #[serde(default)]
    pub filler: Filler,
    /// All windows that were found, with their intervals.
    pub windows: Vec<WindowLimit>,
    /// Memory-level parallelism by the document's rule, interpolated between whole numbers.
    pub mlp_rule: Outcome<f64>,
    /// `mlp_rule` with its 95 % interval.
    #[serde(default)]
    pub mlp_rule_interval: Outcome<Figure>,
    /// The two N between which the rule's result lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlp_rule_between: Option<RuleBracket>,
    /// Memory-level parallelism by throughput: the largest over the measured numbers of chains.
    pub mlp_throughput: Outcome<f64>,
    /// `mlp_throughput` with its 95 % interval.
    #[serde(default)]
    pub mlp_throughput_interval: Outcome<Figure>,
    /// Throughput of several chases at once.
    pub throughput: Vec<ThroughputPoint>,
    /// Core clock cycles of two loads, the second outside of the window of the first.
    pub sequential_pair_cycles: Outcome<f64>,
    /// `sequential_pair_cycles` with the 95 % interval that the rule uses.
    #[serde(default)]
    pub sequential_pair_interval: Outcome<Figure>,
    /// Core clock cycles of one load, with its 95 % interval.
    #[serde(default)]
    pub one_load_cycles: Outcome<Figure>,
    /// Line T(n) = n·M + C through the loads in sequence.
    #[serde(default)]
    pub sequential_line: Outcome<SequentialLine>,
    /// Page walks with these pages, compared with larger pages in [`Mlp::others`] or the main run.
    #[serde(default)]
    pub page_walks: Outcome<PageWalks>,
    /// Points of the area sweep.
    #[serde(default)]
    pub areas: Vec<AreaPoint>,
    /// Times on new pages, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placements: Option<Placements>,
    /// Page kind of the main area.
    pub page: PageKind,
    /// Node of the main area.
    pub node: NodePolicy,
    /// Instructions that serialise the kernel.
    pub fence: Fence,
    /// Results with other pages and node policies, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Mlp>,
    /// Combinations that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
