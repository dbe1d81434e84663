//! `measure mlp`: windows of the core and memory-level parallelism.
//!
//! The kernel is that of the IIT Delhi experiments: serialise, N−1 loads, K fillers, one
//! load, stop.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, NodePolicy, Outcome, PageKind, Samples, TickCount};

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
    /// What stands between the loads. Each kind takes, besides its place in the reorder
    /// buffer, the one thing that its description names.
    #[derive(
        Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    pub enum Filler {
        /// One-byte no-operations: nothing else. Some cores keep several in one entry.
        Nop = "nop",
        /// Additions to registers that set no flags: an integer register.
        Integer = "integer",
        /// Vector additions: a vector register.
        Vector = "vector",
        /// Tests of a register: the flags, which are a register of their own on some cores.
        Flags = "flags",
        /// Logic on mask registers (AVX-512): a mask register.
        Mask = "mask",
        /// Copies of an integer register: nothing where the core eliminates them.
        Move = "move",
        /// Registers set to zero by `xor`: nothing where the core knows the idiom.
        Zero = "zero",
        /// Branches that are never taken: an entry of the branch order buffer.
        Branch = "branch",
        /// x87 no-operations: nothing else.
        X87 = "x87",
        /// Loads that hit the first level: an integer register and an entry of the load queue.
        Load = "load",
        /// Stores that hit the first level: an entry of the store queue.
        Store = "store",
        /// Additions that wait for the first load: an entry of a scheduler.
        Dependent = "dependent",
        /// Kinds in turns, as the search found them on this core: see `pattern` of the window.
        Mixed = "mixed",
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
    /// Kinds in the order in which they stand, over and over, of a `mixed` filler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<Filler>,
    /// What ran out: `reorder buffer`, `integer registers`, `vector registers`, `flag
    /// registers`, `mask registers`, `branches in flight`, `load queue`, `store queue`,
    /// `scheduler`, or one of these with how many fillers share an entry.
    pub limited_by: String,
    /// Most fillers with which the two loads still overlap.
    pub cliff_fillers: u32,
    /// Fillers that share an entry of the reorder buffer: 1, or more where the core fuses
    /// them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub fillers_per_entry: f64,
    /// Entries of what ran out: `cliff_fillers` ÷ `fillers_per_entry`, and the two loads
    /// where they take an entry too. Of registers those beyond the architecture's own.
    pub entries: Figure,
    /// Cycles of the two loads inside the window.
    pub inside_cycles: f64,
    /// Cycles of the two loads outside it.
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

/// By which fillers the entries of the reorder buffer were found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReorderEvidence {
    /// Every filler, single or mixed, whose cliff lies at the same number of instructions.
    pub agreeing: Vec<FillerCliff>,
    /// All others that were tried.
    pub others: Vec<FillerCliff>,
}

/// Where one filler's cliff lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FillerCliff {
    /// Kinds in the order in which they stand, over and over.
    pub pattern: Vec<Filler>,
    /// Instructions in the window at the cliff: fillers and the two loads.
    pub instructions: u32,
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

/// How many of the N accesses one level served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelHits {
    /// Level's name; two joined by `+` where the machine counts only their sum.
    pub level: String,
    /// Accesses, 0 to N. `measured` by counters, else `estimated` from the times of single
    /// accesses.
    pub hits: Figure,
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
    /// Accesses, of the N, that each level served, innermost first.
    #[serde(default)]
    pub hits: Outcome<Vec<LevelHits>>,
    /// Ticks of single accesses, the timing's own with them: one histogram for each draw of
    /// displacements, at N = 1 only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ticks: Vec<Vec<TickCount>>,
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
    /// Probability that times on a line bend by chance as much as these do; absent where too
    /// few were measured to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bend_p_value: Option<f64>,
    /// Where the line does not hold: two lines that meet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bend: Option<SequentialBend>,
}

/// Times of loads in sequence that do not lie on one line: two lines that meet at a number
/// of loads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialBend {
    /// n at which they meet.
    pub at_loads: u32,
    /// The line up to there.
    pub before: SequentialPart,
    /// The line from there on.
    pub after: SequentialPart,
    /// Standard deviation of the times around both, in cycles.
    pub scatter_cycles: f64,
    /// Times that were left out because they lie far off both.
    pub left_out: u32,
}

/// A part of T(n) on which it is a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SequentialPart {
    /// First n of the part.
    pub from_loads: u32,
    /// Last n of the part.
    pub to_loads: u32,
    /// M on this part: core clock cycles of one more load.
    pub load_cycles: Figure,
    /// C of this part: its line carried on to no load at all.
    pub overhead_cycles: Figure,
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

const fn nop() -> Filler {
    Filler::Nop
}

/// A time measured again on new pages each time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementPoint {
    /// Parallel or sequential.
    pub mode: MlpMode,
    /// Loads (N or n).
    pub loads: u32,
    /// Core clock cycles, one for each placement.
    pub cycles: Vec<f64>,
    /// Their median.
    pub median_cycles: f64,
    /// The least of them.
    pub low_cycles: f64,
    /// The most of them.
    pub high_cycles: f64,
    /// Robust standard deviation between placements, as a share of the median.
    pub between: f64,
    /// What the batches of one placement scatter over (half the width of their middle half,
    /// the median over placements), as a share of the median.
    pub within: f64,
}

/// What the choice of pages does to figures: the same measurement on new pages, again and
/// again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Placements {
    /// How often.
    pub times: u32,
    /// Bytes of the area each time.
    pub area_bytes: u64,
    /// The times, without those of placements that were far off.
    pub points: Vec<PlacementPoint>,
    /// Placements whose times were several times those of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<PlacementOutlier>,
}

/// A placement whose times were several times those of the others, and what went on beside it.
/// Its times are in no point; those of its repetition are, unless they were far off too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementOutlier {
    /// Which of the placements, from 1.
    pub placement: u32,
    /// Its times ÷ the medians of all: the median over the points.
    pub ratio: f64,
    /// The same of the repetition on other pages; missing where there was none.
    pub repeated_ratio: Outcome<f64>,
    /// Milliseconds that the hypervisor had the CPU meanwhile, by the kernel's account.
    pub steal_ms: f64,
    /// How often others had the CPU meanwhile.
    pub involuntary_switches: u32,
    /// The likely reason.
    pub reason: String,
}

/// The part `mlp`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Mlp {
    /// The N × K plane and the sequential series.
    pub cells: Vec<MlpCell>,
    /// Entries of the reorder buffer.
    pub rob_size: Outcome<f64>,
    /// By which fillers they were found, and what the other fillers found; missing where no
    /// fillers of different kinds agree.
    #[serde(default)]
    pub reorder_evidence: Outcome<ReorderEvidence>,
    /// Filler of the N × K plane and of the loads in sequence.
    #[serde(default = "nop")]
    pub filler: Filler,
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
    /// The same with its 95 % interval.
    #[serde(default)]
    pub mlp_throughput_interval: Outcome<Figure>,
    /// Parallel chases.
    pub throughput: Vec<ThroughputPoint>,
    /// Cycles of two loads, the second outside the window of the first.
    pub sequential_pair_cycles: Outcome<f64>,
    /// The same with its 95 % interval, the one that the rule reads the pair with.
    #[serde(default)]
    pub sequential_pair_interval: Outcome<Figure>,
    /// Core clock cycles of one load, with its 95 % interval.
    #[serde(default)]
    pub one_load_cycles: Outcome<Figure>,
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
    /// The same on new pages each time, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placements: Option<Placements>,
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
