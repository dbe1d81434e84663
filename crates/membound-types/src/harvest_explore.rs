//! What settings of a harvest come to for one program and its scavengers, side by side (`harvest explore`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, IdlePolicy, Kind, NotMeasured};

named! {
    /// What is varied in a table of an exploration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ExploreSweep {
        /// The time from a yield of the primary until it runs again that turns are held to.
        Bound = "bound",
        /// The distance between two yields that a scavenger's plan keeps to.
        Distance = "distance",
        /// The CPU time that yields may cost where loads hit: it decides how many loads yield.
        Overhead = "overhead",
        /// Parts of a yield, each left out.
        Parts = "parts",
        /// Sampling periods of the profile that the primary's plan is made from.
        Periods = "periods",
        /// Programs that run at once.
        Chases = "chases",
        /// The scheduler: none (one program after another), the kernel, the hardware threads of a core, membound.
        Kernel = "kernel",
        /// The latency objective of the primary's requests.
        Slo = "slo",
    }
}

/// `membound harvest explore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestExplore {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::HarvestExplore`].
    pub kind: Kind,
    /// It was interrupted: some rows have fewer pairs than asked for, or none.
    pub incomplete: bool,
    /// Version of the writer.
    pub membound_version: String,
    /// When it began, RFC 3339 in UTC.
    pub date: String,
    /// Host that it ran on.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// Wall time of all of it, in seconds.
    pub wall_s: f64,
    /// What was asked for.
    pub options: ExploreOptions,
    /// The programs by themselves.
    pub alone: ExploreAlone,
    /// The tables, in the order in which they were asked for.
    pub sweeps: Vec<ExploredSweep>,
    /// What the reader should know beside that: sentences.
    pub notes: Vec<String>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreOptions {
    /// The primary's command line.
    pub command: Vec<String>,
    /// The scavengers' command lines.
    pub scavengers: Vec<Vec<String>>,
    /// Whether no scavenger was named, so that the primary is its own.
    pub own_scavenger: bool,
    /// Copies of each scavenger.
    pub copies: u32,
    /// What scavengers do that have no thread to run on.
    pub idle: IdlePolicy,
    /// Rounds in which each setting is run once, beside the programs by themselves.
    pub pairs: u32,
    /// The CPU on which all programs run; profiling runs may use others.
    pub on_cpu: CpuId,
    /// How requests of the primary are told, as in `harvest run --requests`; `None`: they are not.
    pub requests: Option<String>,
    /// Plans that were given, as files.
    pub plans: Vec<String>,
}

/// The programs by themselves, one after another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreAlone {
    /// Exit code of the primary's first run.
    pub exit_code: Option<i32>,
    /// Wall time of the primary, in seconds.
    pub primary_s: Option<ExploreFigure>,
    /// Wall time of all scavengers, with their copies, one after another, in seconds; `None` where one of
    /// them does not end by itself.
    pub scavengers_s: Option<ExploreFigure>,
    /// The duration that 95 in 100 requests do not exceed, in nanoseconds; `None` where requests are not told.
    pub p95_ns: Option<ExploreFigure>,
}

/// A median over pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreFigure {
    /// The median.
    pub value: f64,
    /// Lower end of its interval: of 95 % by ranks from six pairs on, else the smallest of all pairs.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// A table: one thing varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploredSweep {
    /// What is varied.
    pub sweep: ExploreSweep,
    /// One for each setting.
    pub rows: Vec<ExploreRow>,
    /// Why there is no row.
    pub missing: Option<NotMeasured>,
}

/// A setting, and what it came to. Of figures, `None` is one that the setting does not have or that no run
/// told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreRow {
    /// The setting, in words.
    pub setting: String,
    /// Its number where it has one: nanoseconds of a bound, a distance or an objective, a share of the CPU time of an
    /// overhead, milliseconds of a period, programs at once.
    pub at: Option<f64>,
    /// Why no run of it succeeded.
    pub failed: Option<String>,
    /// Wall time until the primary ended, in seconds.
    pub primary_s: Option<ExploreFigure>,
    /// How much longer that is than by itself, as a share, pair by pair.
    pub slowdown: Option<ExploreFigure>,
    /// Wall time until all programs ended, in seconds.
    pub all_s: Option<ExploreFigure>,
    /// The time that all programs take one after another, by that time, pair by pair.
    pub speedup: Option<ExploreFigure>,
    /// What scavengers got done while the primary ran, as a share of what they get done in as much time with
    /// the CPU to themselves: by what they had left when it ended; where they do not end by themselves, by
    /// their CPU time, which counts their waiting too.
    pub work: Option<ExploreFigure>,
    /// The duration that 95 in 100 requests do not exceed, in nanoseconds.
    pub p95_ns: Option<ExploreFigure>,
    /// How much longer that is than without scavengers, as a share, pair by pair.
    pub p95_change: Option<ExploreFigure>,
    /// The time from a yield of the primary until it ran again that half of the turns do not exceed, in
    /// nanoseconds.
    pub turn_p50_ns: Option<ExploreFigure>,
    /// The same of 90 in 100 turns.
    pub turn_p90_ns: Option<ExploreFigure>,
    /// Share of the turns that kept to the bound or the distance.
    pub within: Option<ExploreFigure>,
    /// What the primary's time grew by, over the turns that it gave, in nanoseconds.
    pub yield_ns: Option<ExploreFigure>,
    /// Loads that yield: of the primary in a harvest whose plan was made here, or in the plan of a profile with this
    /// period.
    pub loads: Option<ExploreFigure>,
    /// Of a period: share of them that the plan of the usual period has too, and the other way round (the size of the
    /// intersection over that of the union).
    pub same_loads: Option<ExploreFigure>,
    /// Every run.
    pub runs: Vec<ExploreRun>,
}

/// One run of a setting, with what its figures are computed from. Times are wall times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreRun {
    /// The round that it was in, from 0.
    pub pair: u32,
    /// Why it failed.
    pub failed: Option<String>,
    /// The primary by itself in the same round, or without a profiler.
    pub alone_s: Option<f64>,
    /// All its scavengers by themselves, one after another, in the same round.
    pub scavengers_alone_s: Option<f64>,
    /// Until the primary ended.
    pub primary_s: Option<f64>,
    /// Until all programs ended.
    pub all_s: Option<f64>,
    /// CPU time of the scavengers until the primary ended, where they do not end by themselves.
    pub scavengers_cpu_s: Option<f64>,
    /// 95th percentile of the primary's requests without scavengers in the same round, in nanoseconds.
    pub alone_p95_ns: Option<f64>,
    /// The same in this run.
    pub p95_ns: Option<f64>,
    /// Median of the turns, in nanoseconds.
    pub turn_p50_ns: Option<f64>,
    /// 90th percentile of the turns, in nanoseconds.
    pub turn_p90_ns: Option<f64>,
    /// Share of the turns that kept to the bound or the distance.
    pub within: Option<f64>,
    /// Turns that were begun.
    pub turns: Option<u64>,
    /// Loads of the primary's plan that yield.
    pub loads: Option<u64>,
    /// Those among them that the plan of the usual period has too.
    pub common_loads: Option<u64>,
    /// Those of that plan.
    pub usual_loads: Option<u64>,
}
