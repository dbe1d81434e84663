//! Where a program yields, so that others run while it waits for memory (`harvest plan`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Figure, Kind, Missing};

named! {
    /// What a program is in harvesting.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HarvestRole {
        /// The one whose stall time is harvested.
        #[default]
        Primary = "primary",
        /// One that runs in it.
        Scavenger = "scavenger",
    }
}

named! {
    /// What the distance between two yields is.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum DistanceRule {
        /// The longest time over all paths.
        #[default]
        Max = "max",
        /// The average over paths by how often each is taken (document 003).
        Expected = "expected",
    }
}

named! {
    /// What a yield is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum YieldKind {
        /// A load is expected to miss: its line is prefetched, and a scavenger runs.
        Primary = "primary",
        /// The time since the last yield would become too long.
        Scavenger = "scavenger",
    }
}

named! {
    /// Why there is a yield, or none.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum YieldReason {
        /// What is expected to be gained exceeds the cost.
        Pays = "pays",
        /// It bounds the time between yields.
        Bounds = "bounds",
        /// It is a store, or a locked operation, which cannot be asked for beforehand by a
        /// prefetch that only reads.
        NotALoad = "not-a-load",
        /// Its code is in no file that could be read.
        NoFile = "no-file",
        /// No patch can stand there.
        CannotPatch = "cannot-patch",
        /// It has no significant part of the stall.
        LittleStall = "little-stall",
        /// How often it ran was not counted.
        NotCounted = "not-counted",
        /// How long it takes was not timed, or nothing tells levels from times.
        NotTimed = "not-timed",
        /// Most of its executions are served from caches.
        Hits = "hits",
        /// The stall that is expected of an execution does not exceed the cost of a yield.
        ShortStall = "short-stall",
        /// Its cost on hits would exceed what all yields may cost.
        Overhead = "overhead",
    }
}

/// `membound harvest plan RUN`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestPlan {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::HarvestPlan`].
    pub kind: Kind,
    /// The run that it was made from was cut short.
    pub incomplete: bool,
    /// Version of the writer.
    pub membound_version: String,
    /// The command that was profiled; empty when a process was attached to.
    pub command: Vec<String>,
    /// When it was profiled, RFC 3339 in UTC.
    pub date: String,
    /// Host whose machine profile tells levels.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// What the program is to be.
    pub role: HarvestRole,
    /// What decided.
    pub options: HarvestOptions,
    /// What it is predicted to give and to cost.
    pub totals: HarvestTotals,
    /// Files that it is for. It holds for no others.
    pub modules: Vec<HarvestModule>,
    /// Every load that was considered, those first that gain most; then the yields that bound
    /// the time between yields, by place.
    pub sites: Vec<HarvestSite>,
    /// With a bound: functions that were looked at, those first whose distance is longest.
    pub functions: Vec<HarvestFunction>,
    /// What the run lacks that decisions need.
    pub missing: Vec<Missing>,
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestOptions {
    /// Share of the CPU time that yields may cost where loads hit.
    pub max_overhead: f64,
    /// Share of the stall from which on a load has a significant part of it.
    pub min_stall_share: f64,
    /// Share of a load's executions that must miss the last cache.
    pub min_likelihood: f64,
    /// Time from one yield to the next that is not to be exceeded, in nanoseconds; `None`: it
    /// is not bounded.
    pub bound_ns: Option<f64>,
    /// What that time is.
    pub distance: DistanceRule,
    /// Time from one context to another, in nanoseconds; a yield is two of them.
    pub switch_ns: f64,
    /// Time that a yield each k-th time takes when it is not taken, in nanoseconds.
    pub counter_ns: f64,
    /// Whether the two were measured on this machine.
    pub costs_measured: bool,
}

/// What a plan is predicted to give and to cost. Fractions are of the program's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestTotals {
    /// CPU time of the profiled program, in seconds.
    pub cpu_s: f64,
    /// The part of it that was stalled on memory.
    pub stall_fraction: f64,
    /// The part that chosen loads are stalled beyond the second cache.
    pub covered_fraction: f64,
    /// The part that others can run in: that without the cost of the yields.
    pub gain_fraction: f64,
    /// What yields cost where loads hit.
    pub hit_cost_fraction: f64,
    /// What yields cost that bound the time between yields, each as if no other context ran.
    pub bound_cost_fraction: f64,
    /// Loads that yield.
    pub primary_yields: u64,
    /// Yields that bound the time between yields.
    pub scavenger_yields: u64,
    /// Loads that were considered.
    pub considered: u64,
    /// Those among them whose decision is the likelier one of two that the figures permit.
    pub undecided: u64,
}

/// A file that a plan is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestModule {
    /// Where it lay.
    pub path: String,
    /// What it must be: `build-id:…` or `sha256:…` in hexadecimal.
    pub identity: String,
}

/// A load that was considered, or a place that bounds the time between yields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestSite {
    /// Path of its file.
    pub module: String,
    /// Address in the file.
    pub offset: u64,
    /// Function that it stands in.
    pub symbol: String,
    /// The instruction, in words; empty where it is not known.
    pub text: String,
    /// What a yield there is for.
    pub kind: YieldKind,
    /// A yield is taken each so many times that control comes there: 1 is each time.
    pub every: u32,
    /// Whether there is to be one.
    pub chosen: bool,
    /// Why.
    pub reason: YieldReason,
    /// More of it: why there can be no patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Whether the figures permit the opposite decision too: then an earlier plan decided, or
    /// their values.
    pub undecided: bool,
    /// Executions over the run, where they are known.
    pub executions: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executions_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executions_high: Option<f64>,
    /// Of a yield of the kind `scavenger`: how long the innermost loop around it runs each time that it is
    /// entered, in nanoseconds, where there is one and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts_ns: Option<f64>,
    /// Share of the CPU time that was stalled there.
    pub stall_fraction: f64,
    /// Stall of one execution, in nanoseconds, where it is known.
    pub stall_ns: Option<Figure>,
    /// Share of the executions that miss the last cache, where it is known.
    pub likelihood: Option<Figure>,
    /// CPU time of the run that is turned to other work, in nanoseconds; negative where a
    /// yield would cost more than it gives, 0 where that is not known.
    pub predicted_gain_ns: f64,
    /// The same as a share of the CPU time.
    pub predicted_gain: f64,
    /// What a yield there costs on hits, as a share of the CPU time.
    pub hit_cost: f64,
}

impl HarvestSite {
    /// A yield of this `kind` that is taken `every` so many times at `offset` in the file at `module`,
    /// where nothing is known of the place.
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

/// How long a function runs from one yield to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestFunction {
    /// Path of its file.
    pub module: String,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its name.
    pub symbol: String,
    /// Share of the CPU time that was spent in it.
    pub time_fraction: f64,
    /// The longest distance (or by the other rule the longest average), in nanoseconds, that of
    /// functions it calls included; time in code that is not known is left out. `None`: nothing
    /// bounds it.
    pub distance_ns: Option<f64>,
    /// Whether times come from the profile, rather than one cycle an instruction.
    pub profiled: bool,
    /// Where the distance is longer than the bound, or not known.
    pub gaps: Vec<HarvestGap>,
}

/// Where a distance is longer than the bound, or not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestGap {
    /// Address in the file.
    pub offset: u64,
    /// Why.
    pub why: GapReason,
}

named! {
    /// Why a distance is longer than the bound, or not known.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GapReason {
        /// A loop in which no patch can stand.
        Loop = "loop",
        /// A stretch of instructions in which no patch can stand.
        Stretch = "stretch",
        /// A single instruction takes longer than the bound.
        Instruction = "instruction",
        /// A call of code of which nothing is known.
        UnknownCall = "unknown-call",
    }
}
