//! Plan of yields, at which other programs run while a program waits for memory (`harvest plan`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, Kind, Missing};

named! {
    /// Role of a program in a harvest.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HarvestRole {
        /// Program whose stall time is harvested.
        #[default]
        Primary = "primary",
        /// Program that runs in the stall time of the primary.
        Scavenger = "scavenger",
    }
}

named! {
    /// Definition of the distance between two yields.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum DistanceRule {
        /// Longest time over all paths.
        #[default]
        Max = "max",
        /// Average over paths, weighted by how often each is taken (document 003).
        Expected = "expected",
    }
}

named! {
    /// Purpose of a yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum YieldKind {
        /// Miss yield: a load is likely to miss, so its line is prefetched and a scavenger runs.
        Primary = "primary",
        /// Bound yield: the time since the last yield would otherwise become too long.
        Scavenger = "scavenger",
    }
}

named! {
    /// Reason for or against a yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum YieldReason {
        /// The expected gain exceeds the cost.
        Pays = "pays",
        /// The yield bounds the time between yields.
        Bounds = "bounds",
        /// The access is a store or a locked operation: a read prefetch beforehand does not help it.
        NotALoad = "not-a-load",
        /// Its code is in no readable file.
        NoFile = "no-file",
        /// A patch cannot be placed there.
        CannotPatch = "cannot-patch",
        /// The load has no significant share of the stall.
        LittleStall = "little-stall",
        /// Its executions were not counted.
        NotCounted = "not-counted",
        /// Its latency was not timed, or latencies cannot be assigned to levels.
        NotTimed = "not-timed",
        /// Most of its executions are served from caches.
        Hits = "hits",
        /// The expected stall of an execution does not exceed the cost of a yield.
        ShortStall = "short-stall",
        /// The cost of yielding on hits would exceed the allowed overhead of all yields.
        Overhead = "overhead",
    }
}

/// Document of `membound harvest plan RUN`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestPlan {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::HarvestPlan`].
    pub kind: Kind,
    /// True if the run that the plan is based on was cut short.
    pub incomplete: bool,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// The profiled command; empty if membound attached to a process.
    pub command: Vec<String>,
    /// Start of the profile, RFC 3339 in UTC.
    pub date: String,
    /// Host of the machine profile that levels are taken from.
    pub host: String,
    /// Model name of its processor.
    pub cpu: String,
    /// Role that the plan is made for.
    pub role: HarvestRole,
    /// Limits and costs that decided.
    pub options: HarvestOptions,
    /// Predicted gain and cost of the plan.
    pub totals: HarvestTotals,
    /// Files that the plan applies to; it is not valid for other files.
    pub modules: Vec<HarvestModule>,
    /// All considered loads, largest gain first; then bound yields, by position.
    pub sites: Vec<HarvestSite>,
    /// With a bound: the examined functions, longest distance first.
    pub functions: Vec<HarvestFunction>,
    /// Data that decisions need and the run lacks.
    pub missing: Vec<Missing>,
}

impl HarvestPlan {
    /// The plan without its bound and the yields that keep it.
    #[must_use]
    pub fn without_bound(mut self) -> Self {
        self.options.bound_ns = None;
        self.sites.retain(|site| site.kind != YieldKind::Scavenger);
        self.totals.scavenger_yields = 0;
        self.totals.bound_cost_fraction = 0.0;
        self.functions.clear();
        self
    }
}

/// Limits and costs that decide about yields.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestOptions {
    /// Largest share of the CPU time that yields may cost where loads hit.
    pub max_overhead: f64,
    /// Share of the stall from which on a load is considered.
    pub min_stall_share: f64,
    /// Share of a load's executions that must miss the last cache for it to yield.
    pub min_likelihood: f64,
    /// Largest time between two yields, in nanoseconds; `None` if it is not bounded.
    pub bound_ns: Option<f64>,
    /// Definition of that time.
    pub distance: DistanceRule,
    /// Time of one context switch in nanoseconds; a yield needs two.
    pub switch_ns: f64,
    /// Time in nanoseconds of a yield taken every k-th time, when it is not taken.
    pub counter_ns: f64,
    /// True if `switch_ns` and `counter_ns` were measured on this machine.
    pub costs_measured: bool,
}

/// Predicted gain and cost of a plan. Fractions refer to the program's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestTotals {
    /// CPU time of the profiled program, in seconds.
    pub cpu_s: f64,
    /// Share stalled on memory.
    pub stall_fraction: f64,
    /// Share stalled beyond the second cache at the chosen loads.
    pub covered_fraction: f64,
    /// Share that other programs can use: the covered share less the cost of the yields.
    pub gain_fraction: f64,
    /// Cost of yields where loads hit.
    pub hit_cost_fraction: f64,
    /// Cost of bound yields, assuming that no other context runs.
    pub bound_cost_fraction: f64,
    /// Number of loads that yield.
    pub primary_yields: u64,
    /// Number of bound yields.
    pub scavenger_yields: u64,
    /// Number of considered loads.
    pub considered: u64,
    /// Considered loads for which the figures also permit the opposite decision.
    pub undecided: u64,
}

/// File that a plan applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestModule {
    /// Path of the file.
    pub path: String,
    /// Required identity: `build-id:…` or `sha256:…` in hexadecimal.
    pub identity: String,
}

/// A considered load, or the position of a bound yield.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestSite {
    /// Path of the file with the code.
    pub module: String,
    /// Address of the instruction in the file.
    pub offset: u64,
    /// Function that contains the instruction.
    pub symbol: String,
    /// Text of the instruction; empty if unknown.
    pub text: String,
    /// Purpose of a yield there.
    pub kind: YieldKind,
    /// Number of executions per yield: 1 yields at each, k at every k-th.
    pub every: u32,
    /// True if the plan has a yield there.
    pub chosen: bool,
    /// Reason for the decision.
    pub reason: YieldReason,
    /// Details of the reason, for example why a patch is impossible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// True if the figures also permit the opposite decision; then an earlier plan decided, or the
    /// estimated values.
    pub undecided: bool,
    /// Executions over the run, if known.
    pub executions: Option<f64>,
    /// Lower end of the 95 % interval of `executions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executions_low: Option<f64>,
    /// Upper end of the 95 % interval of `executions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executions_high: Option<f64>,
    /// For yields of the kind `scavenger`: time in nanoseconds that the innermost loop around it runs per
    /// entry, if there is a loop and the time is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts_ns: Option<f64>,
    /// Share of the CPU time that is stalled at the load.
    pub stall_fraction: f64,
    /// Stall of one execution in nanoseconds, if known.
    pub stall_ns: Option<Figure>,
    /// Share of the executions that miss the last cache, if known.
    pub likelihood: Option<Figure>,
    /// CPU time of the run in nanoseconds that becomes available to other programs; negative if a yield
    /// would cost more than it gives, 0 if unknown.
    pub predicted_gain_ns: f64,
    /// `predicted_gain_ns` as a share of the CPU time.
    pub predicted_gain: f64,
    /// Cost of yielding on hits, as a share of the CPU time.
    pub hit_cost: f64,
}

impl HarvestSite {
    /// A chosen yield of this `kind` at `offset` in the file `module`, taken every `every` executions,
    /// without further data.
    #[must_use]
    pub const fn chosen(module: String, offset: u64, kind: YieldKind, every: u32) -> Self {
        Self {
            module,
            offset,
            symbol: String::new(),
            text: String::new(),
            kind,
            every,
            chosen: true,
            reason: match kind {
                YieldKind::Primary => YieldReason::Pays,
                YieldKind::Scavenger => YieldReason::Bounds,
            },
            detail: None,
            undecided: false,
            executions: None,
            executions_low: None,
            executions_high: None,
            lasts_ns: None,
            stall_fraction: 0.0,
            stall_ns: None,
            likelihood: None,
            predicted_gain_ns: 0.0,
            predicted_gain: 0.0,
            hit_cost: 0.0,
        }
    }
}

/// Time that a function runs between two yields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestFunction {
    /// Path of the file with the code.
    pub module: String,
    /// Address of the function's start in the file.
    pub offset: u64,
    /// Name of the function.
    pub symbol: String,
    /// Share of the CPU time spent in the function.
    pub time_fraction: f64,
    /// Longest distance in nanoseconds (or longest average, by the other rule), including called functions;
    /// time in unknown code is left out. `None` if nothing bounds it.
    pub distance_ns: Option<f64>,
    /// True if times come from the profile; otherwise one cycle per instruction is assumed.
    pub profiled: bool,
    /// Positions where the distance exceeds the bound or is unknown.
    pub gaps: Vec<HarvestGap>,
}

/// Position where a distance exceeds the bound or is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestGap {
    /// Address in the file.
    pub offset: u64,
    /// Cause of the gap.
    pub why: GapReason,
}

named! {
    /// Cause of a distance that exceeds the bound or is unknown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GapReason {
        /// A loop in which a patch cannot be placed.
        Loop = "loop",
        /// A sequence of instructions in which a patch cannot be placed.
        Stretch = "stretch",
        /// A single instruction takes longer than the bound.
        Instruction = "instruction",
        /// A call of unknown code.
        UnknownCall = "unknown-call",
    }
}
