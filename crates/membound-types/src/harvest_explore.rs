//! Comparison of harvest settings for one program and its scavengers (`harvest explore`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, IdlePolicy, Kind, NotMeasured};

named! {
    /// Setting that is varied in one table of an exploration.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ExploreSweep {
        /// Bound on the time from a yield of the primary until it runs again.
        Bound = "bound",
        /// Largest distance between two yields in a scavenger's plan.
        Distance = "distance",
        /// CPU time that yields may cost where loads hit; it decides how many loads yield.
        Overhead = "overhead",
        /// Parts of a yield, each left out once.
        Parts = "parts",
        /// Sampling period of the profile that the primary's plan is made from.
        Periods = "periods",
        /// Number of programs that run at once.
        Chases = "chases",
        /// Scheduler: none (one program after another), the kernel, the hardware threads of a core,
        /// membound.
        Kernel = "kernel",
        /// Latency objective of the primary's requests.
        Slo = "slo",
        /// Load on the primary, under several schedulers.
        Load = "load",
        /// Parts of a yield, each left out once at each distance between a scavenger's yields.
        PartsByDistance = "parts-by-distance",
    }
}

/// Document of `membound harvest explore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestExplore {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::HarvestExplore`].
    pub kind: Kind,
    /// True if it was interrupted: some rows have fewer pairs than requested, or none.
    pub incomplete: bool,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// Start of the exploration, RFC 3339 in UTC.
    pub date: String,
    /// Host name.
    pub host: String,
    /// Model name of the host's processor.
    pub cpu: String,
    /// Wall time of the exploration, in seconds.
    pub wall_s: f64,
    /// Options of the exploration.
    pub options: ExploreOptions,
    /// Runs of the programs alone.
    pub alone: ExploreAlone,
    /// Tables, in the requested order.
    pub sweeps: Vec<ExploredSweep>,
    /// Further notes for the reader, as sentences.
    pub notes: Vec<String>,
}

/// Options of an exploration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreOptions {
    /// Command line of the primary.
    pub command: Vec<String>,
    /// Command lines of the scavengers.
    pub scavengers: Vec<Vec<String>>,
    /// True if no scavenger was given, so that copies of the primary are used.
    pub own_scavenger: bool,
    /// Number of copies of each scavenger.
    pub copies: u32,
    /// Idle policy: what scavengers do that have no thread to run on.
    pub idle: IdlePolicy,
    /// Number of rounds; in each, every setting runs once, and the programs run once alone.
    pub pairs: u32,
    /// CPU on which all programs run; profiling runs may use others.
    pub on_cpu: CpuId,
    /// How requests of the primary are observed, as in `harvest run --requests`; `None` if they are not.
    pub requests: Option<String>,
    /// Files of plans given by the user.
    pub plans: Vec<String>,
    /// Loads that replace `{load}` in the command, in ascending order; empty without sweep `load`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<String>,
}

/// Results of the programs alone, one after another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreAlone {
    /// Exit code of the primary's first run.
    pub exit_code: Option<i32>,
    /// Wall time of the primary, in seconds; `None` in sweep `load`, whose rows have it for each load.
    pub primary_s: Option<ExploreFigure>,
    /// Wall time of all scavengers with their copies, one after another, in seconds; `None` if one of them
    /// does not end by itself.
    pub scavengers_s: Option<ExploreFigure>,
    /// 95th percentile of request latency in nanoseconds; `None` if requests are not observed, and in sweep
    /// `load`.
    pub p95_ns: Option<ExploreFigure>,
}

/// Median over pairs, with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreFigure {
    /// Median over the pairs.
    pub value: f64,
    /// Lower end of the interval: from six pairs on the 95 % interval by ranks, else the smallest value.
    pub low: f64,
    /// Upper end of the interval, likewise.
    pub high: f64,
}

/// Table in which one setting is varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploredSweep {
    /// The varied setting.
    pub sweep: ExploreSweep,
    /// One row per value of the setting.
    pub rows: Vec<ExploreRow>,
    /// Why there are no rows.
    pub missing: Option<NotMeasured>,
}

/// One value of a setting with its results. A figure is `None` if the setting does not have it, or if no
/// run reported it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreRow {
    /// The value in words.
    pub setting: String,
    /// The value as a number, if it has one: nanoseconds of a bound, distance or objective, share of the
    /// CPU time of an overhead, milliseconds of a period, number of programs at once, the load.
    pub at: Option<f64>,
    /// In tables that cross two settings, the other one: the scheduler in sweep `load`, the part left out
    /// in sweep `parts-by-distance`. Rows with the same value are one line of a plot; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Why no run of it succeeded.
    pub failed: Option<String>,
    /// Wall time until the primary ended, in seconds.
    pub primary_s: Option<ExploreFigure>,
    /// Relative increase of `primary_s` over the primary alone, pair by pair.
    pub slowdown: Option<ExploreFigure>,
    /// Wall time until all programs ended, in seconds.
    pub all_s: Option<ExploreFigure>,
    /// Time of all programs one after another ÷ `all_s`, pair by pair.
    pub speedup: Option<ExploreFigure>,
    /// Work that scavengers did while the primary ran, as a share of what they do in the same time with the
    /// CPU to themselves. Computed from the work that they had left when the primary ended; for scavengers
    /// that do not end by themselves, from their CPU time, which includes their memory stalls.
    pub work: Option<ExploreFigure>,
    /// 95th percentile of request latency, in nanoseconds.
    pub p95_ns: Option<ExploreFigure>,
    /// Relative increase of `p95_ns` over runs without scavengers, pair by pair.
    pub p95_change: Option<ExploreFigure>,
    /// Median length of the time slices: from a yield of the primary until it ran again, in nanoseconds.
    pub turn_p50_ns: Option<ExploreFigure>,
    /// 90th percentile of the same, in nanoseconds.
    pub turn_p90_ns: Option<ExploreFigure>,
    /// Share of the time slices within the bound or the distance.
    pub within: Option<ExploreFigure>,
    /// Increase of the primary's time ÷ number of its time slices, in nanoseconds.
    pub yield_ns: Option<ExploreFigure>,
    /// Number of loads that yield: of the primary in a harvest whose plan was made here, or in the plan
    /// from a profile with this period.
    pub loads: Option<ExploreFigure>,
    /// For periods: agreement of the plan's loads with those of the usual period (intersection ÷ union).
    pub same_loads: Option<ExploreFigure>,
    /// All runs of this setting.
    pub runs: Vec<ExploreRun>,
}

/// One run of a setting, with the values that its figures are computed from. Times are wall times in
/// seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExploreRun {
    /// Number of the round, from 0.
    pub pair: u32,
    /// Why the run failed.
    pub failed: Option<String>,
    /// Time of the primary alone in the same round, or without a profiler.
    pub alone_s: Option<f64>,
    /// Time of all scavengers alone, one after another, in the same round.
    pub scavengers_alone_s: Option<f64>,
    /// Time until the primary ended.
    pub primary_s: Option<f64>,
    /// Time until all programs ended.
    pub all_s: Option<f64>,
    /// CPU time of the scavengers until the primary ended, if they do not end by themselves.
    pub scavengers_cpu_s: Option<f64>,
    /// 95th percentile of request latency without scavengers in the same round, in nanoseconds.
    pub alone_p95_ns: Option<f64>,
    /// 95th percentile of request latency in this run, in nanoseconds.
    pub p95_ns: Option<f64>,
    /// Median length of the time slices, in nanoseconds.
    pub turn_p50_ns: Option<f64>,
    /// 90th percentile of the length of the time slices, in nanoseconds.
    pub turn_p90_ns: Option<f64>,
    /// Share of the time slices within the bound or the distance.
    pub within: Option<f64>,
    /// Number of time slices.
    pub turns: Option<u64>,
    /// Loads that yield in the primary's plan.
    pub loads: Option<u64>,
    /// Loads that yield in both this plan and the plan of the usual period.
    pub common_loads: Option<u64>,
    /// Loads that yield in the plan of the usual period.
    pub usual_loads: Option<u64>,
}
