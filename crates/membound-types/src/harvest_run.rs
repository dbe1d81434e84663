//! Result of a harvest: the primary, the scavengers that ran in its stalls, and the time until the primary
//! ran again after a yield (`harvest run`).
//!
//! An unknown value is `None`, and [`HarvestRun::missing`] gives the reason under the name of the field.
//! Values are plain numbers, so that other programs can read them directly; the description of a field says
//! if its value is estimated rather than counted or timed, and by which method.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, HarvestRole, Kind, Missing, YieldKind};

named! {
    /// What the scavengers of a thread do while the primary blocks on it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum IdlePolicy {
        /// They continue on that thread.
        #[default]
        Harvest = "harvest",
        /// Threads that stall may take them over.
        Steal = "steal",
        /// They wait until the primary continues.
        Stop = "stop",
    }
}

named! {
    /// Whether scavengers may run on SMT siblings of the primary's CPUs, if cores have several hardware
    /// threads.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SmtPolicy {
        /// They may while the primary's requests keep their latency bound; without such a bound, no
        /// scavenger gets a sibling.
        #[default]
        Auto = "auto",
        /// They may while the primary keeps the bounds that it has.
        On = "on",
        /// They never may.
        Off = "off",
    }
}

named! {
    /// Part of a harvest that can be left out to measure its benefit: document 003's choice of loads, its
    /// bound on distances, and the parts of a cheap yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HarvestPart {
        /// Loads are chosen by gain and cost of a yield; without this part, all loads yield that can.
        Choice = "choice",
        /// Bound yields limit the time between two yields of a scavenger.
        Distance = "distance",
        /// Only live registers are saved.
        Liveness = "liveness",
        /// Vector registers that the module does not use are not saved.
        Vectors = "vectors",
        /// The line that is about to be accessed is prefetched.
        Prefetch = "prefetch",
        /// Other lines of the same object that the code after a load reads are prefetched with its own.
        Companions = "companions",
        /// A line that caches lose before it is read again is kept out of the outer caches.
        NonTemporal = "non-temporal",
        /// Recent-miss filter: a load that sometimes hits does not yield for a line that it yielded for
        /// recently.
        Recency = "recency",
        /// A loop around a yield is moved as a whole, and several iterations are counted at a time.
        Loops = "loops",
        /// Registers that such a loop does not change are saved once around the loop, not at each of its
        /// yields.
        LoopSaves = "loop-saves",
        /// Data that the context after the next one needs first is prefetched.
        NextContext = "next-context",
        /// During short waits of the program, scavengers run on its thread.
        Waits = "waits",
        /// Memory mapped by scavengers uses huge pages, if the system has any.
        HugePages = "huge-pages",
        /// Scavengers skip time slices after misses of their own, if time slices are longer than their
        /// bound for misses.
        Skips = "skips",
        /// Control is passed to another context; without this part, yields save and restore registers but
        /// no other context runs.
        Switch = "switch",
    }
}

named! {
    /// Origin of a plan.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PlanSource {
        /// Made for this run, from a short profile.
        #[default]
        Made = "made",
        /// Given by the user as a file.
        Given = "given",
    }
}

named! {
    /// How the duration of a request is observed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum LatencySource {
        /// The program marks the begin and the end of requests.
        Marker = "marker",
        /// From the arrival of a request on a socket until its answer is written.
        Socket = "socket",
    }
}

named! {
    /// How a scavenger ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ScavengerState {
        /// By itself, with any exit code.
        Finished = "finished",
        /// It had work left when the primary ended.
        Unfinished = "unfinished",
        /// Ended by a signal, an abort, or a stack overflow of its own.
        Crashed = "crashed",
        /// It was not started.
        Refused = "refused",
    }
}

named! {
    /// State of a planned yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SiteState {
        /// Installed at the end of the run.
        In = "in",
        /// Removed during the run.
        Out = "out",
        /// Never installed.
        Refused = "refused",
    }
}

named! {
    /// Source of CPU time for scavengers in addition to the stalls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SlotMode {
        /// None: no SMT siblings of the primary's CPUs are known, or they must not be used.
        #[default]
        Stalls = "stalls",
        /// SMT siblings of the primary's CPUs.
        Smt = "smt",
        /// The kernel, on CPUs that share no core with the primary's.
        Kernel = "kernel",
    }
}

/// Document of `membound harvest run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestRun {
    /// Version of this schema.
    pub schema_version: u32,
    /// Always [`Kind::Harvest`].
    pub kind: Kind,
    /// True if the run was cut short, or parts of it could not be observed.
    pub incomplete: bool,
    /// Version of membound that wrote this.
    pub membound_version: String,
    /// Start of the run, RFC 3339 in UTC.
    pub date: String,
    /// Host name.
    pub host: String,
    /// Model name of the host's processor.
    pub cpu: String,
    /// Wall time from the start of the command to its end, in seconds.
    pub wall_s: f64,
    /// Options of the run.
    pub options: HarvestRunOptions,
    /// The program whose stalls were harvested.
    pub primary: HarvestedPrimary,
    /// Programs that ran in the primary's stalls, one entry for each copy.
    pub scavengers: Vec<Scavenger>,
    /// Number of times that scavengers left a thread of the primary, by cause.
    #[serde(default)]
    pub moves: ScavengerMoves,
    /// Stall time of the primary: total, harvested, left.
    pub stall: HarvestedStall,
    /// Time from a yield of the primary until it ran again (length of a time slice), in nanoseconds.
    pub distance_ns: YieldDistances,
    /// All yields of the plans, largest gain first.
    pub sites: Vec<HarvestedSite>,
    /// Guard of the slowdown or of request latency; `None` if no bound was requested.
    pub guard: Option<SlowdownGuard>,
    /// Benefit of time slices that scavengers give each other without a primary; absent with a primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<HarvestBalance>,
    /// Source of CPU time for scavengers in addition to the stalls.
    pub slots: HarvestSlots,
    /// Missing values with their reasons. `table` is the path of the field, as in `stall.left_s`.
    pub missing: Vec<Missing>,
    /// Further notes for the reader, as sentences.
    pub notes: Vec<String>,
}

/// Options of a harvest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestRunOptions {
    /// Scavengers per thread of the primary.
    pub per_thread: u32,
    /// What scavengers do while the primary blocks.
    pub idle: IdlePolicy,
    /// Whether scavengers may run on SMT siblings of the primary's CPUs.
    #[serde(default)]
    pub smt: SmtPolicy,
    /// Hardware threads that share a core, one list per core, if given by the user; absent otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Vec<CpuId>>,
    /// Largest time from a yield of the primary until it runs again, in nanoseconds; `None` if it is not
    /// bounded.
    pub bound_ns: Option<f64>,
    /// Share of the CPU time that yields may cost where loads hit.
    pub max_overhead: f64,
    /// Largest slowdown of the primary, as a share; `None` for no limit.
    pub max_slowdown: Option<f64>,
    /// How requests of the primary are observed, as in [`PrimaryLatency::by`]; `None` if they are not.
    pub requests: Option<String>,
    /// Bound on the 95th percentile of request latency in nanoseconds; `None` for no limit.
    pub slo_p95_ns: Option<f64>,
    /// True if scavengers with work left continue when the primary has ended.
    pub finish: bool,
    /// Parts that were left out to measure their benefit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<HarvestPart>,
    /// Plans that were used.
    pub plans: Vec<FollowedPlan>,
}

/// A plan that was used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FollowedPlan {
    /// Role of the program that the plan is for.
    pub role: HarvestRole,
    /// Origin of the plan.
    pub source: PlanSource,
    /// File of the plan, if the user gave one; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Command that the plan was made from.
    pub command: Vec<String>,
    /// Time in seconds from the start of the run until the plan was used, if it was made during the run;
    /// absent if it was used from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted_after_s: Option<f64>,
}

/// The program whose stalls were harvested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedPrimary {
    /// Command line; empty with `--no-primary`, where scavengers yield to each other.
    pub command: Vec<String>,
    /// Exit code, if the primary ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the primary, if one did.
    pub signal: Option<i32>,
    /// Wall time in seconds from its start to its end, without the time that scavengers took to finish
    /// afterwards. `None` if unknown.
    #[serde(default)]
    pub wall_s: Option<f64>,
    /// CPU time of the primary without that of scavengers, in seconds.
    pub cpu_s: f64,
    /// Number of threads that yielded.
    pub threads: u64,
    /// Number of time slices: yields at which a scavenger ran.
    pub yields: u64,
    /// Time in seconds from the start of the run until the first time slice was observed, accurate to some
    /// hundredths; absent without time slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_turn_s: Option<f64>,
    /// Relative increase of the primary's CPU time caused by scavengers: 0.02 is 2 % slower. Estimated: CPU
    /// time of its threads ÷ their yields while scavengers are allowed, ÷ the same ratio in short phases
    /// without scavengers, − 1.
    pub slowdown: Option<f64>,
    /// Lower end of the 95 % interval of `slowdown`, by the jackknife over spans of the run; `None` if the
    /// run was too short.
    pub slowdown_low: Option<f64>,
    /// Upper end of the 95 % interval of `slowdown`.
    pub slowdown_high: Option<f64>,
    /// Latency of its requests; `None` if none can be observed.
    pub latency: Option<PrimaryLatency>,
}

/// Request latency with scavengers, and in short phases without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrimaryLatency {
    /// How requests were observed.
    pub source: LatencySource,
    /// Object of the observation as requested: `sockets`, a function's name, or two names as in
    /// `begin..end`.
    pub by: String,
    /// Requests served while scavengers were allowed; `None` if there were none.
    pub with: Option<Latencies>,
    /// Requests served in phases without scavengers; `None` if there were none.
    pub without: Option<Latencies>,
    /// Requests in neither group, because they began in a phase with scavengers and ended in one without,
    /// or the reverse. Long requests are more likely among them.
    pub spanning: u64,
}

/// Distribution of request durations, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Number of requests.
    pub requests: u64,
    /// Median duration.
    pub p50_ns: f64,
    /// 90th percentile of the duration.
    pub p90_ns: f64,
    /// 95th percentile of the duration.
    pub p95_ns: f64,
    /// 99th percentile of the duration.
    pub p99_ns: f64,
    /// Longest duration.
    pub max_ns: f64,
    /// Histogram of all durations; empty bins may be left out.
    pub histogram: Vec<DurationBin>,
}

/// Bin of a histogram of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DurationBin {
    /// Lower edge in nanoseconds.
    pub from_ns: f64,
    /// Upper edge in nanoseconds, exclusive.
    pub to_ns: f64,
    /// Number of durations in the bin.
    pub count: u64,
}

/// One copy of a program that ran in the primary's stalls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scavenger {
    /// Command line of the scavenger.
    pub command: Vec<String>,
    /// Number of the copy, from 0.
    pub copy: u32,
    /// Exit code, if the scavenger ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the scavenger, if one did.
    pub signal: Option<i32>,
    /// How the scavenger ended.
    pub state: ScavengerState,
    /// Why it was refused, or how it crashed; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// CPU time in the primary's stalls and waits and on its home thread, in seconds. Estimated: the sum of
    /// `in_stalls_s`, `in_waits_s` and `own_thread_s`; without the first if that is unknown.
    pub cpu_s: Option<f64>,
    /// CPU time in the primary's stalls. Estimated: mean length of the timed time slices × number of all
    /// time slices, divided among scavengers in proportion to their time away from their home threads.
    pub in_stalls_s: Option<f64>,
    /// CPU time in short waits of the primary's threads. Estimated like `in_stalls_s`, from the length of
    /// these waits.
    #[serde(default)]
    pub in_waits_s: f64,
    /// CPU time on its home thread, in seconds.
    pub own_thread_s: f64,
    /// Number of system calls that it made.
    pub calls: u64,
    /// Number of times that it left its home thread for a run queue.
    pub turns: u64,
    /// File with its output; absent if the output was discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// Benefit of time slices for scavengers that yield to each other without a primary, compared with running
/// them one after another. Measured in trials during the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestBalance {
    /// Number of trials.
    pub trials: u32,
    /// Throughput with time slices ÷ throughput one after another, in the last trial: the sum over all
    /// scavengers of the ratio of their rates of executed yield loads, per processor. `None` if no
    /// scavenger executed enough such loads alone.
    pub worth: Option<f64>,
    /// Time with time slices, in seconds.
    pub together_s: f64,
    /// Time in which scavengers ran one after another, in seconds.
    pub apart_s: f64,
}

/// Number of times that a scavenger left a thread of the primary other than at a yield, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScavengerMoves {
    /// Stolen from a thread that waited in the kernel.
    pub steals: u64,
    /// Taken from a thread that ended.
    pub reclaimed: u64,
    /// The scavenger made a system call.
    pub calls: u64,
    /// A signal arrived for the primary.
    pub interrupted: u64,
    /// The scavenger reached no yield for some milliseconds.
    pub overdue: u64,
}

/// Stall time of the primary, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedStall {
    /// Stall within the primary's CPU time. Estimated: share of stall in the profile that its plan was made
    /// from × CPU time of its threads in this run.
    pub before_s: Option<f64>,
    /// Stall in which scavengers ran. Estimated: mean length of the timed time slices × number of all time
    /// slices, less the CPU time caused by the primary's slowdown.
    pub harvested_s: Option<f64>,
    /// Stall that the primary still waited, including context switches. Estimated: `before_s` −
    /// `harvested_s`, at least 0.
    pub left_s: Option<f64>,
}

/// Distribution of the time from a yield of the primary until it ran again, over the timed time slices, in
/// nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct YieldDistances {
    /// Median over the timed time slices.
    pub p50: Option<f64>,
    /// 90th percentile over the timed time slices.
    pub p90: Option<f64>,
    /// 99th percentile over the timed time slices.
    pub p99: Option<f64>,
    /// Longest timed time slice.
    pub max: Option<f64>,
    /// The requested bound; `None` if there is none.
    pub bound: Option<f64>,
    /// Share of the time slices within the bound; `None` without a bound or without time slices.
    pub within_bound: Option<f64>,
    /// Number of timed time slices.
    pub timed: u64,
    /// Skipped time slices that would have been timed, and are in none of these figures: the scavenger
    /// yielded at once, because the line that it had prefetched for itself would not have arrived.
    #[serde(default)]
    pub skipped: u64,
    /// Histogram of all timed time slices; empty bins may be left out.
    pub histogram: Vec<DurationBin>,
}

/// A planned yield and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedSite {
    /// Program that contains it: primary or scavenger.
    pub side: HarvestRole,
    /// Path of the file with the code.
    pub module: String,
    /// Address of the instruction in the file.
    pub offset: u64,
    /// Function that contains it; empty if it has no name.
    pub symbol: String,
    /// Purpose of the yield.
    pub kind: YieldKind,
    /// State at the end of the run.
    pub state: SiteState,
    /// Why it was removed or never installed; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// CPU time that becomes available to other programs according to the plan, as a share of its program's
    /// CPU time; `None` if the plan does not know it, and for bound yields.
    pub predicted_gain: Option<f64>,
}

/// Guard that keeps the primary's slowdown, or the latency of its requests, within bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlowdownGuard {
    /// Number of checks of the primary's progress.
    pub checks: u64,
    /// Number of times that yields of the primary were removed.
    #[serde(default)]
    pub yields_taken_out: u64,
    /// Number of times that yields were installed again.
    #[serde(default)]
    pub yields_put_back: u64,
    /// Number of yields that were removed at the end.
    #[serde(default)]
    pub yields_out: u64,
    /// Number of times that the share of time with scavengers was reduced.
    pub steps_out: u64,
    /// Number of times that it was increased again.
    pub steps_in: u64,
    /// Share of the time in which scavengers were allowed at the end: 1 is always.
    pub final_share: f64,
}

/// Source of CPU time for scavengers in addition to the stalls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestSlots {
    /// Source at the end of the run.
    pub mode: SlotMode,
    /// Reason, as a lower-case fragment such as `no hardware threads beside the primary's`.
    pub why: String,
    /// Wall time in which a scavenger was assigned an SMT sibling of the primary's CPU, in seconds.
    #[serde(default)]
    pub smt_s: f64,
    /// CPU time of scavengers on SMT siblings, in seconds; part of their `own_thread_s`.
    #[serde(default)]
    pub beside_s: f64,
    /// Number of times that siblings were given to scavengers or withdrawn because of the primary's bounds.
    #[serde(default)]
    pub changes: u64,
    /// CPUs that scavengers used in addition to the primary's.
    #[serde(default)]
    pub cpus: Vec<CpuId>,
}
