//! What a harvest gave: the primary, the scavengers that ran in its stalls, and the time that it
//! took to come back to the primary (`harvest run`).
//!
//! A value that is not known is `None`, and [`HarvestRun::missing`] says why under the name of its
//! field. Values are plain numbers, so that other programs read them as they are; those that are
//! estimated and not counted or timed say so, and by which method.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, HarvestRole, Kind, Missing, YieldKind};

named! {
    /// What becomes of the scavengers of a thread while the primary blocks on it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum IdlePolicy {
        /// They go on on that thread.
        #[default]
        Harvest = "harvest",
        /// Threads that stall may take them over.
        Steal = "steal",
        /// They wait until the primary goes on.
        Stop = "stop",
    }
}

named! {
    /// Whether scavengers may use hardware threads beside the primary's, where cores have several.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SmtPolicy {
        /// While the primary's requests keep to the bound that they have; without one nothing is done
        /// about it.
        #[default]
        Auto = "auto",
        /// While the primary keeps to what bounds it has.
        On = "on",
        /// Never.
        Off = "off",
    }
}

named! {
    /// What a harvest can be run without, to see what it is worth: document 003's choice of loads,
    /// its bound on distances, and the parts of a cheap yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HarvestPart {
        /// Loads are chosen by what a yield gains and costs; without it all yield that can.
        Choice = "choice",
        /// Further yields bound the time between two of a scavenger's.
        Distance = "distance",
        /// Only registers that are alive are saved.
        Liveness = "liveness",
        /// Vector registers that the module has nothing to do with are not saved.
        Vectors = "vectors",
        /// The line that is about to be accessed is prefetched.
        Prefetch = "prefetch",
        /// Other lines of the same object, which the code behind a load reads, are prefetched with its own.
        Companions = "companions",
        /// A line that caches lose before it is read again is kept out of the outer ones.
        NonTemporal = "non-temporal",
        /// A load that hits now and then does not yield for a line that it yielded for lately.
        Recency = "recency",
        /// A loop around a yield is moved as a whole, and its laps are counted several at a time.
        Loops = "loops",
        /// What such a loop does not change is saved once around it, not at each of its yields.
        LoopSaves = "loop-saves",
        /// What the context after the next one begins with is prefetched.
        NextContext = "next-context",
        /// Where the program would wait for a short time, scavengers run on its thread.
        Waits = "waits",
        /// What scavengers map has huge pages, where the system has such.
        HugePages = "huge-pages",
        /// Scavengers skip turns after misses of their own where turns are longer than their bound for these.
        Skips = "skips",
        /// Control is passed on; without it yields save and restore registers, and no other context runs.
        Switch = "switch",
    }
}

named! {
    /// Where a plan comes from.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PlanSource {
        /// It was made for this run, from a short profile.
        #[default]
        Made = "made",
        /// It was given, as a file.
        Given = "given",
    }
}

named! {
    /// Where the duration of a request comes from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum LatencySource {
        /// The program marks where requests begin and end.
        Marker = "marker",
        /// The time from a request's arrival on a socket until its answer is written.
        Socket = "socket",
    }
}

named! {
    /// How a scavenger ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ScavengerState {
        /// It ended by itself, with whatever exit code.
        Finished = "finished",
        /// It had work left when the primary ended.
        Unfinished = "unfinished",
        /// A signal, an abort, or a stack that overflowed ended it, and nothing else.
        Crashed = "crashed",
        /// It was not begun.
        Refused = "refused",
    }
}

named! {
    /// What became of a planned yield.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SiteState {
        /// It stood at the end of the run.
        In = "in",
        /// It was taken out during the run.
        Out = "out",
        /// It never stood.
        Refused = "refused",
    }
}

named! {
    /// Who gives scavengers a processor beside the stalls.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SlotMode {
        /// Nobody in particular: no hardware threads beside the primary's are known or to be used.
        #[default]
        Stalls = "stalls",
        /// The other hardware threads of the primary's cores.
        Smt = "smt",
        /// The kernel, on processors that share no core with the primary's.
        Kernel = "kernel",
    }
}

/// `membound harvest run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestRun {
    /// Version of this schema.
    pub schema_version: u32,
    /// [`Kind::Harvest`].
    pub kind: Kind,
    /// The run was cut short, or parts of it could not be observed.
    pub incomplete: bool,
    /// Version of the writer.
    pub membound_version: String,
    /// When it began, RFC 3339 in UTC.
    pub date: String,
    /// Host that it ran on.
    pub host: String,
    /// Its processor.
    pub cpu: String,
    /// Wall time from the start of the command to its end, in seconds.
    pub wall_s: f64,
    /// What was asked for.
    pub options: HarvestRunOptions,
    /// The program whose stalls were harvested.
    pub primary: HarvestedPrimary,
    /// The programs that ran in them: one entry for each copy.
    pub scavengers: Vec<Scavenger>,
    /// What took them from one thread to another.
    #[serde(default)]
    pub moves: ScavengerMoves,
    /// What became of the primary's stall time.
    pub stall: HarvestedStall,
    /// Time from a yield of the primary until it ran again, in nanoseconds.
    pub distance_ns: YieldDistances,
    /// Every yield of the plans, those that gain most first.
    pub sites: Vec<HarvestedSite>,
    /// What kept the slowdown, or the latency of requests, in bounds; `None` where nothing was asked
    /// to.
    pub guard: Option<SlowdownGuard>,
    /// What turns with each other were worth to scavengers without a primary; left out where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<HarvestBalance>,
    /// Who gave scavengers a processor beside the stalls.
    pub slots: HarvestSlots,
    /// What could not be had, and why. `table` is the path of the field, as in `stall.left_s`.
    pub missing: Vec<Missing>,
    /// What the reader should know beside that: sentences.
    pub notes: Vec<String>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestRunOptions {
    /// Scavengers that each thread of the primary takes turns with.
    pub per_thread: u32,
    /// What becomes of them while the primary blocks.
    pub idle: IdlePolicy,
    /// Whether they may use hardware threads beside the primary's.
    #[serde(default)]
    pub smt: SmtPolicy,
    /// Hardware threads that share a core, a list each, where they were given; left out otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Vec<CpuId>>,
    /// Time from a yield of the primary until it runs again that is not to be exceeded, in
    /// nanoseconds; `None`: it is not bounded.
    pub bound_ns: Option<f64>,
    /// Share of the CPU time that yields may cost where loads hit.
    pub max_overhead: f64,
    /// Slowdown of the primary that is not to be exceeded, as a share; `None`: no limit.
    pub max_slowdown: Option<f64>,
    /// How requests of the primary are told, as in [`PrimaryLatency::by`]; `None`: they are not.
    pub requests: Option<String>,
    /// Duration that 95 in 100 requests are not to exceed, in nanoseconds; `None`: no limit.
    pub slo_p95_ns: Option<f64>,
    /// Whether scavengers that have work left go on when the primary has ended.
    pub finish: bool,
    /// Parts of yields and of their choice that were left out, to see what they are worth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<HarvestPart>,
    /// The plans that were followed.
    pub plans: Vec<FollowedPlan>,
}

/// A plan that was followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FollowedPlan {
    /// Whom it is for.
    pub role: HarvestRole,
    /// Where it comes from.
    pub source: PlanSource,
    /// Its file, where it was given as one; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The command that it was made from.
    pub command: Vec<String>,
    /// Time from the start of the run until it was followed, in seconds, where it was made while its program ran in
    /// this run; left out where it was followed from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planted_after_s: Option<f64>,
}

/// The program whose stalls were harvested.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedPrimary {
    /// Its command line; empty with `--no-primary`, where scavengers take turns with each other.
    pub command: Vec<String>,
    /// Its exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when one did.
    pub signal: Option<i32>,
    /// Wall time from its start until it ended, in seconds: without what scavengers took to finish after
    /// it. `None` where that is not known.
    #[serde(default)]
    pub wall_s: Option<f64>,
    /// CPU time of its own, that of scavengers left out, in seconds.
    pub cpu_s: f64,
    /// Threads that yielded.
    pub threads: u64,
    /// Turns that were begun: times that it gave way to a scavenger.
    pub yields: u64,
    /// Time from the start of the run until the first turn was seen, in seconds, to some hundredths; left out where
    /// there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_turn_s: Option<f64>,
    /// How much more CPU time it takes with scavengers than without, as a share: 0.02 is 2 %
    /// slower. Estimated: CPU time of its threads over their yields while scavengers are let in,
    /// over the same in short phases without, less 1.
    pub slowdown: Option<f64>,
    /// Lower end of the 95 % interval of `slowdown`, by the jackknife over spans of the run;
    /// `None` where the run was too short for one.
    pub slowdown_low: Option<f64>,
    /// Upper end of that interval.
    pub slowdown_high: Option<f64>,
    /// How long its requests took; `None` where it has none that can be told.
    pub latency: Option<PrimaryLatency>,
}

/// How long requests took, with scavengers and in short phases without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrimaryLatency {
    /// How a request was told.
    pub source: LatencySource,
    /// By what, as it was asked for: `sockets`, a function's name, or two as in `begin..end`.
    pub by: String,
    /// Requests that were served while scavengers were let in; `None` where there was none.
    pub with: Option<Latencies>,
    /// Requests that were served while none were; `None` where there was none.
    pub without: Option<Latencies>,
    /// Requests that are in neither, because they began in a phase with scavengers and ended in one
    /// without, or the other way round. Long ones are more likely among them.
    pub spanning: u64,
}

/// How long requests took. All durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Requests.
    pub requests: u64,
    /// The duration that half of them do not exceed.
    pub p50_ns: f64,
    /// The duration that nine tenths of them do not exceed.
    pub p90_ns: f64,
    /// The duration that 95 in 100 do not exceed.
    pub p95_ns: f64,
    /// The duration that 99 in 100 do not exceed.
    pub p99_ns: f64,
    /// The longest.
    pub max_ns: f64,
    /// All of them, by duration; spans without any may be left out.
    pub histogram: Vec<DurationBin>,
}

/// How many durations lie in a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DurationBin {
    /// Where the span begins, in nanoseconds.
    pub from_ns: f64,
    /// Where it ends, in nanoseconds; that itself lies outside.
    pub to_ns: f64,
    /// Durations in it.
    pub count: u64,
}

/// A program that ran in the primary's stalls: one copy of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scavenger {
    /// Its command line.
    pub command: Vec<String>,
    /// Which copy of that command it is, from 0.
    pub copy: u32,
    /// Its exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, when one did.
    pub signal: Option<i32>,
    /// How it ended.
    pub state: ScavengerState,
    /// Why it was refused, or how it crashed; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// CPU time that it had, in the primary's stalls and waits and on its own thread, in seconds.
    /// Estimated: `in_stalls_s`, `in_waits_s` and `own_thread_s` together; without the first where that is
    /// not known.
    pub cpu_s: Option<f64>,
    /// The part of it in the primary's stalls. Estimated: the mean of the turns that were timed,
    /// times all turns, of which it has the part that its time away from its own thread is of that
    /// of all scavengers.
    pub in_stalls_s: Option<f64>,
    /// The part of it in short waits of the primary's threads. Estimated as `in_stalls_s`, from how long
    /// these waits were.
    #[serde(default)]
    pub in_waits_s: f64,
    /// The part of it on its own thread.
    pub own_thread_s: f64,
    /// System calls that it made.
    pub calls: u64,
    /// Times that it was given a turn.
    pub turns: u64,
    /// File that its output went to; left out where it went nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// What turns were worth to scavengers that take them with each other, held against each running on its own
/// thread as the kernel has it. Measured in the run, in spans of both that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestBalance {
    /// Comparisons that were made.
    pub trials: u32,
    /// Work in turns divided by work apart, at the last: the mean over all scavengers, each told by the loads
    /// that it came by. `None`: no scavenger came by enough loads.
    pub worth: Option<f64>,
    /// Time for which they took turns, in seconds.
    pub together_s: f64,
    /// Time for which each ran on its own, in seconds.
    pub apart_s: f64,
}

/// How often a scavenger left a thread of the primary's other than at a yield.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScavengerMoves {
    /// It was taken from a thread that waited in the kernel.
    pub steals: u64,
    /// It was taken from a thread that ended.
    pub reclaimed: u64,
    /// It made a system call.
    pub calls: u64,
    /// A signal came to the primary.
    pub interrupted: u64,
    /// It did not come back to a yield for some milliseconds.
    pub overdue: u64,
}

/// What became of the primary's stall time, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedStall {
    /// What the primary's CPU time held of stall. Estimated: the share of stall in the profile that
    /// its plan was made from, times the CPU time of its threads in this run.
    pub before_s: Option<f64>,
    /// What scavengers ran of it. Estimated: the mean of the turns that were timed, times all turns,
    /// less the CPU time that the primary's slowdown stands for.
    pub harvested_s: Option<f64>,
    /// What the primary still waited, with what switching took. Estimated: `before_s` less
    /// `harvested_s`, and 0 where that is below.
    pub left_s: Option<f64>,
}

/// Time from a yield of the primary until it ran again, of those turns that were timed. All
/// durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct YieldDistances {
    /// The time that half of the turns do not exceed.
    pub p50: Option<f64>,
    /// The time that nine tenths of them do not exceed.
    pub p90: Option<f64>,
    /// The time that 99 in 100 do not exceed.
    pub p99: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The bound that was asked for; `None`: none.
    pub bound: Option<f64>,
    /// Share of the turns that kept to it; `None` without a bound or without turns.
    pub within_bound: Option<f64>,
    /// Turns that were timed.
    pub timed: u64,
    /// Turns that were to be timed and are in none of these figures: a scavenger gave way at once, since
    /// what it had asked for itself would not have been there.
    #[serde(default)]
    pub skipped: u64,
    /// All of them, by time; spans without any may be left out.
    pub histogram: Vec<DurationBin>,
}

/// A planned yield, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestedSite {
    /// Whose code it stands in.
    pub side: HarvestRole,
    /// Path of its file.
    pub module: String,
    /// Address in the file.
    pub offset: u64,
    /// Function that it stands in; empty where it has no name.
    pub symbol: String,
    /// What it is for.
    pub kind: YieldKind,
    /// What became of it.
    pub state: SiteState,
    /// Why it was taken out, or never stood; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// CPU time of its program that the plan says it turns to other work, as a share; `None`
    /// where the plan does not know, and for yields that bound the time between yields.
    pub predicted_gain: Option<f64>,
}

/// What kept the primary's slowdown, or the latency of its requests, in bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlowdownGuard {
    /// Times that the primary's pace was looked at.
    pub checks: u64,
    /// Times that yields of the primary were taken out.
    #[serde(default)]
    pub yields_taken_out: u64,
    /// Times that yields were put back.
    #[serde(default)]
    pub yields_put_back: u64,
    /// Yields that were out at the end.
    #[serde(default)]
    pub yields_out: u64,
    /// Times that scavengers were let in less from then on.
    pub steps_out: u64,
    /// Times that they were let in more again.
    pub steps_in: u64,
    /// Share of the time that they were let in at the end: 1 is always.
    pub final_share: f64,
}

/// Who gave scavengers a processor beside the stalls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarvestSlots {
    /// Who, at the end.
    pub mode: SlotMode,
    /// Why: a lower-case fragment, as in `no hardware threads beside the primary's`.
    pub why: String,
    /// Wall time in which a scavenger had a hardware thread beside the primary's, in seconds.
    #[serde(default)]
    pub smt_s: f64,
    /// CPU time that scavengers had there, in seconds; a part of their `own_thread_s`.
    #[serde(default)]
    pub beside_s: f64,
    /// Times that these were given to scavengers, or taken away, because of the primary's bounds.
    #[serde(default)]
    pub changes: u64,
    /// The CPUs that scavengers had beside the primary's.
    #[serde(default)]
    pub cpus: Vec<CpuId>,
}
