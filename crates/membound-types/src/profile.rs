//! `membound report`: where a program waited for memory.
//!
//! Shares are fractions of the CPU time of all threads unless a name says otherwise. What
//! counts as stalled is the time in which the oldest unretired instruction waited for
//! memory beyond the cost of a hit in the innermost cache.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Basis, Figure, Gate, HardwareView, Kind, NotMeasured, Outcome, RunSide};

/// A profile: what a run says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::Profile`].
    pub kind: Kind,
    /// The run was cut short: what stands here is true of the part that was recorded.
    #[serde(default)]
    pub incomplete: bool,
    /// What was run, and how it was recorded.
    pub run: RunInfo,
    /// The part of the run that this document speaks of; absent when that is the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<SelectedPart>,
    /// Wall time in seconds; of the selected span, where one was selected.
    pub elapsed_s: f64,
    /// How the threads' time divides.
    pub time: TimeSplit,
    /// Share of CPU time that was stalled on memory, and by level.
    pub memory_bound: MemoryBound,
    /// Code whose samples could not be told apart, most time first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenCode>,
    /// Average latency of the accesses that were looked at, weighted by executions.
    pub latency: Outcome<AverageLatency>,
    /// What a reader should look at first, most important first.
    pub findings: Vec<Insight>,
    /// By function, most stalled first.
    pub functions: Vec<CodeRow>,
    /// By source line.
    pub lines: Vec<CodeRow>,
    /// By instruction.
    pub instructions: Vec<CodeRow>,
    /// By thread.
    pub threads: Vec<ThreadRow>,
    /// By level.
    pub levels: Vec<LevelRow>,
    /// Accesses that the processor sampled itself, in imported runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<HardwareView>,
    /// By object.
    pub objects: Vec<ObjectRow>,
    /// By function and object together, most stalled first.
    #[serde(default)]
    pub function_objects: Vec<FunctionObjectRow>,
    /// Live bytes over time, by object.
    pub memory: Outcome<MemoryUse>,
    /// Lines of memory that threads fight over without sharing data.
    pub false_sharing: Vec<SharedLine>,
    /// Lines whose data threads do share and write.
    pub true_sharing: Vec<SharedLine>,
    /// Nodes of pages against nodes of threads.
    pub numa: Outcome<NumaView>,
    /// Traffic by domain.
    pub bandwidth: Vec<BandwidthDomain>,
    /// The machine's nodes and what moved between them.
    #[serde(default)]
    pub platform: Platform,
    /// What it would wait for on other machines, where some were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<Elsewhere>,
    /// What recording cost.
    pub overhead: Overhead,
    /// What is not here, by the name of the table that misses it.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunInfo {
    /// Command and arguments; empty when a process was attached to.
    pub command: Vec<String>,
    /// Process that was attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<u32>,
    /// Host.
    pub host: String,
    /// Processor, from the machine profile.
    pub cpu: String,
    /// When, RFC 3339 in UTC.
    pub date: String,
    /// Version of membound that recorded.
    pub membound_version: String,
    /// Exit code, when it ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// Processes seen.
    pub processes: u64,
    /// Threads seen.
    pub threads: u64,
    /// `cpu-clock` or `agent-timer`; in imported runs also `cycles` or `none`.
    pub timer: String,
    /// What the run was imported from, where another profiler recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
    /// Timer samples.
    pub samples: u64,
    /// Samples as if all had the same weight: (Σw)² ÷ Σw².
    pub effective_samples: f64,
    /// Accesses whose latency was measured.
    pub timed_accesses: u64,
    /// Whether accesses were to be timed and their addresses recorded, in one process at least.
    #[serde(default)]
    pub latencies_recorded: bool,
    /// Whether allocations were followed, in one process at least.
    #[serde(default)]
    pub objects_recorded: bool,
}

/// A part of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelectedPart {
    /// Beginning of the span, in seconds since the run began.
    pub from_s: f64,
    /// End of the span.
    pub to_s: f64,
    /// Numbers of the selected threads; empty: all threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tids: Vec<u32>,
}

/// How the threads' lifetimes divide, in seconds over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeSplit {
    /// Not on a CPU: waiting for locks, files, other threads, or a turn.
    pub idle_s: f64,
    /// Stalled on memory.
    pub memory_stall_s: f64,
    /// On a CPU otherwise.
    pub other_s: f64,
    /// CPU time: `memory_stall_s + other_s`.
    pub cpu_s: f64,
}

/// The share of CPU time that was stalled on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryBound {
    /// The share, 0 to 1.
    pub fraction: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of its 95 % interval.
    pub high: f64,
    /// Part of it in the innermost cache; together with the second where the timer cannot
    /// tell them apart, see `l1_and_l2_together`.
    pub l1: f64,
    /// In the second cache.
    pub l2: f64,
    /// In the third cache.
    pub l3: f64,
    /// In memory of the thread's own node.
    pub dram: f64,
    /// In memory of another node, or another core's cache.
    pub remote: f64,
    /// Of which nothing is known but that it waited.
    pub unknown: f64,
    /// Share of CPU time in code of which no sample could be told what it waited for
    /// ([`Profile::unseen`] says why). It is not part of `fraction`, but `high` holds it.
    #[serde(default)]
    pub unseen: f64,
    /// `l1` holds both and `l2` is 0.
    pub l1_and_l2_together: bool,
}

/// Code of which no sample could be told what it waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UnseenCode {
    /// Why: a lower-case fragment, with the file's name where there is one.
    pub reason: String,
    /// Share of all CPU time, 0 to 1.
    pub fraction: f64,
}

/// Average latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AverageLatency {
    /// In nanoseconds.
    pub ns: f64,
    /// In core clock cycles.
    pub cycles: f64,
    /// Past the threshold beyond which it is worth a look.
    pub flagged: bool,
}

named! {
    /// What a finding is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum InsightKind {
        /// A large share of time is stalled.
        MemoryBound = "memory-bound",
        /// One object has much of the stall.
        HotObject = "hot-object",
        /// Threads fight over a line without sharing data.
        FalseSharing = "false-sharing",
        /// Threads write the same data.
        TrueSharing = "true-sharing",
        /// Pages lie on other nodes than the threads that use them.
        Placement = "placement",
        /// Traffic is near what the machine can do.
        Bandwidth = "bandwidth",
        /// Time goes into address translation.
        Translation = "translation",
        /// There is nothing to gain here.
        NotMemoryBound = "not-memory-bound",
    }
}

/// Something worth a look.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Insight {
    /// What it is about.
    pub kind: InsightKind,
    /// One sentence that says what was found, with its figures.
    pub text: String,
    /// One sentence that says what to do; empty if nothing.
    pub advice: String,
    /// Share of the wall time that following the advice would save, where it can be said.
    pub predicted_gain: Option<Figure>,
    /// The threshold that was passed, in words.
    pub threshold: String,
}

/// Figures that every grouping has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Timer samples.
    pub samples: u64,
    /// CPU time in seconds.
    pub time_s: f64,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time that was stalled here.
    pub stall_fraction: f64,
    /// Lower end of its 95 % interval.
    pub stall_low: f64,
    /// Upper end of its 95 % interval.
    pub stall_high: f64,
    /// `stall_fraction` by level.
    pub levels: LevelShares,
    /// Executions of loads, where they were counted.
    pub loads: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads_high: Option<f64>,
    /// Executions of stores, where they were counted.
    pub stores: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores_high: Option<f64>,
    /// Executions that missed the last cache, where executions were counted and timed: an access that
    /// was prefetched in time is a hit.
    #[serde(default)]
    pub llc_misses: Option<f64>,
    /// Lower end of their 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_low: Option<f64>,
    /// Upper end of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc_misses_high: Option<f64>,
    /// Average latency, where it was measured.
    pub avg_latency_ns: Option<f64>,
    /// The same in core clock cycles.
    pub avg_latency_cycles: Option<f64>,
    /// Past a threshold beyond which it is worth a look.
    pub flagged: bool,
    /// How sure the attribution of samples to instructions is, 0 to 1.
    pub confidence: f64,
}

/// A stall share by level; the parts sum to the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelShares {
    /// Innermost cache (and the second, see [`MemoryBound`]).
    pub l1: f64,
    /// Second cache.
    pub l2: f64,
    /// Third cache.
    pub l3: f64,
    /// Memory of the own node.
    pub dram: f64,
    /// Memory of another node, or another core's cache.
    pub remote: f64,
    /// Not known.
    pub unknown: f64,
}

/// A function, a line or an instruction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CodeRow {
    /// Function, `file:line`, or instruction in Intel's syntax.
    pub name: String,
    /// Function that it is in.
    pub function: String,
    /// File of the code.
    pub module: String,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Address in the module; of functions where they begin.
    pub address: Option<u64>,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadRow {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Its number.
    pub tid: u32,
    /// How long it lived.
    pub lifetime_s: f64,
    /// The part of that it was on no CPU.
    pub idle_s: f64,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// A level of the hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelRow {
    /// `L1`, `L1+L2`, `L2`, `L3`, `DRAM`, `remote`, `unknown`.
    pub name: String,
    /// Share of all CPU time stalled on it.
    pub stall_fraction: f64,
    /// Lower end of its 95 % interval.
    pub stall_low: f64,
    /// Upper end.
    pub stall_high: f64,
    /// Share of the executions that were served from it.
    pub accesses_fraction: Option<f64>,
    /// Its latency on this machine, from the machine profile.
    pub latency_ns: Option<f64>,
}

named! {
    /// What an object is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum ObjectClass {
        /// Blocks of an allocator.
        Heap = "heap",
        /// Memory mapped without a file.
        Mapped = "mapped",
        /// A mapped file.
        File = "file",
        /// A variable of a module.
        Global = "global",
        /// A thread's stack.
        Stack = "stack",
        /// Nothing more is known.
        Unknown = "unknown",
    }
}

/// One frame of an allocation's call chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CallFrame {
    /// Function.
    pub function: String,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// File of the code.
    pub module: String,
}

/// An object, or all blocks of one allocating call chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectRow {
    /// `file:line (size)` of the allocation, symbol, thread or path.
    pub name: String,
    /// What it is.
    pub kind: ObjectClass,
    /// Bytes of one block (the median where they differ).
    pub size_bytes: u64,
    /// Call chain of the allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Blocks that were allocated; an estimate where they were sampled.
    pub blocks: u64,
    /// Fewest blocks that there were, with 95 % confidence, where they were sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_low: Option<u64>,
    /// Most blocks that there were, likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_high: Option<u64>,
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// Average lifetime of a block in seconds, where it was freed.
    pub lifetime_s: Option<f64>,
    /// Whether threads fight over lines of it.
    pub false_sharing: bool,
    /// Share of its accesses to pages of the accessing thread's node.
    pub node_local_fraction: Option<f64>,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
    /// Where inside: hot fields and lines, by offset.
    pub offsets: Vec<OffsetRow>,
    /// Lines of code that stall on it, most stalled first: name and share of all CPU time.
    pub code: Vec<NamedShare>,
}

/// What a function did to an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionObjectRow {
    /// Function, as in [`Profile::functions`].
    pub function: String,
    /// File of the function's code.
    pub module: String,
    /// Object, as in [`Profile::objects`].
    pub object: String,
    /// The figures.
    #[serde(flatten)]
    pub share: Share,
}

/// Memory that was allocated and not freed yet, over time. Allocated bytes count, whether they were used
/// or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryUse {
    /// Most live bytes at once.
    pub peak_bytes: u64,
    /// When that was, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes of all objects.
    pub timeline: Vec<MemoryMoment>,
    /// By object, largest peak first.
    pub objects: Vec<MemoryRow>,
}

/// Live bytes from a moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryMoment {
    /// Since when, in seconds since the run began; until the next moment.
    pub t_s: f64,
    /// Live bytes.
    pub bytes: u64,
}

/// Live bytes of an object over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRow {
    /// Object, named as in [`Profile::objects`].
    pub name: String,
    /// What it is.
    pub kind: ObjectClass,
    /// Most live bytes at once.
    pub peak_bytes: u64,
    /// When that was, in seconds since the run began.
    pub peak_s: f64,
    /// Live bytes at the end.
    pub end_bytes: u64,
    /// Over time.
    pub timeline: Vec<MemoryMoment>,
}

/// A place inside an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OffsetRow {
    /// Bytes from the beginning of the block.
    pub offset: u64,
    /// Bytes accessed there.
    pub bytes: u32,
    /// Accesses seen.
    pub accesses: u64,
    /// Share of the object's stall.
    pub stall_fraction: f64,
    /// Average latency.
    pub avg_latency_ns: Option<f64>,
}

/// A name with a share of all CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedShare {
    /// What.
    pub name: String,
    /// Share of all CPU time.
    pub fraction: f64,
}

/// A line that several threads access, at least one of them writing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharedLine {
    /// First address of the line in the process; of the costliest, where several lines of
    /// one object are contended in the same way.
    pub line_address: u64,
    /// Bytes of a line.
    pub line_bytes: u32,
    /// First addresses of all contended lines that this speaks of, ascending.
    #[serde(default)]
    pub lines: Vec<u64>,
    /// Process.
    pub pid: u32,
    /// Name of the object in it.
    pub object: String,
    /// Call chain of its allocation, innermost first.
    pub alloc_stack: Vec<CallFrame>,
    /// Offset of the line from the beginning of the object.
    pub object_offset: Option<u64>,
    /// Who accesses what.
    pub threads: Vec<SharingThread>,
    /// Distinct offsets in the line that are accessed.
    pub offsets: Vec<u32>,
    /// Code that accesses it.
    pub sites: Vec<SharingSite>,
    /// Average latency of accesses to it.
    pub avg_latency_ns: Option<f64>,
    /// The same in core clock cycles.
    pub avg_latency_cycles: Option<f64>,
    /// Latency of a hit in the innermost cache, for comparison.
    pub l1_latency_ns: Option<f64>,
    /// Share of all CPU time that it costs.
    pub stall_fraction: f64,
    /// Share of the wall time that separating the data would save.
    pub predicted_gain: Option<Figure>,
    /// What the threads cost each other, seen by holding all but one of them for a moment: then
    /// the cost and the gain are measured. Empty where it was not tried, or told nothing.
    #[serde(default)]
    pub held: Vec<SharingCost>,
    /// What to do.
    pub advice: String,
    /// Hits of hardware watchpoints on it by thread; `None` when it was not watched.
    pub confirmed: Option<Vec<WatchedBytes>>,
    /// How sure it is, 0 to 1.
    pub confidence: f64,
}

/// What others cost a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingCost {
    /// Its number.
    pub tid: u32,
    /// Share of its CPU time that it did not take while the others were held.
    pub share: Figure,
    /// CPU time in which it used the line while others did, in seconds.
    pub cpu_s: f64,
    /// Spans of time that tell it.
    pub spans: u64,
}

/// A thread's part in a shared line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingThread {
    /// Number.
    pub tid: u32,
    /// Name.
    pub name: String,
    /// First offset in the line that it accesses.
    pub from: u32,
    /// Behind the last offset.
    pub to: u32,
    /// Loads seen.
    pub loads: u64,
    /// Stores seen.
    pub stores: u64,
}

/// Code that accesses a shared line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SharingSite {
    /// `file:line` or instruction.
    pub name: String,
    /// Function.
    pub function: String,
    /// Whether it writes.
    pub stores: bool,
    /// Accesses seen.
    pub accesses: u64,
}

/// Bytes that a thread was seen to access by a watchpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedBytes {
    /// Thread.
    pub tid: u32,
    /// Offset in the line.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    /// Hits.
    pub hits: u64,
}

/// Where pages lie and who uses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaView {
    /// Nodes of the machine.
    pub nodes: u32,
    /// Share of the accesses to pages of the accessing thread's node.
    pub local_fraction: f64,
    /// Accesses by node of the thread (first index) and of the page (second index).
    pub matrix: Vec<Vec<f64>>,
    /// By object: name, local share, share of all accesses to other nodes.
    pub objects: Vec<NumaRow>,
    /// By source line.
    pub lines: Vec<NumaRow>,
}

/// Local and remote accesses of something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaRow {
    /// Object or source line.
    pub name: String,
    /// Share of its accesses that are local.
    pub local_fraction: f64,
    /// Its share of all accesses to other nodes.
    pub remote_share: f64,
    /// Node that most of its pages lie on.
    pub node: Option<u16>,
    /// What to do; empty if nothing.
    pub advice: String,
}

/// Traffic of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthDomain {
    /// `DRAM`: all memory; `DRAM 0`: that of node (or package) 0; `interconnect 0→1`: what goes from node 0
    /// to node 1.
    pub domain: String,
    /// How it was got.
    pub basis: Basis,
    /// Over time.
    pub timeline: Vec<BandwidthMoment>,
    /// Share of the time by bandwidth.
    pub histogram: Vec<BandwidthBin>,
    /// The most that this machine was measured to do with as many threads at once as the
    /// program had, for the program's mix of bytes read and written.
    pub machine_max_gb_s: Outcome<f64>,
    /// Average over the run.
    pub average_gb_s: f64,
    /// Objects that cause it: name and share of the traffic.
    pub objects: Vec<NamedShare>,
    /// Source lines that cause it.
    pub lines: Vec<NamedShare>,
}

/// The nodes of a machine, their memories and what connects them, with average traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// By number.
    pub nodes: Vec<PlatformNode>,
    /// From every node to every other one, where traffic is known by node.
    pub links: Vec<PlatformLink>,
}

/// A node: CPUs and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformNode {
    /// Its number.
    pub node: u16,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// How many of them the program kept busy on average.
    pub busy_cpus: f64,
    /// Average traffic of its memory, in 10⁹ bytes a second, where it is known.
    pub dram_gb_s: Option<f64>,
    /// The most that its memory was measured to move with the same part of writes.
    pub dram_max_gb_s: Option<f64>,
}

/// What goes from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformLink {
    /// Where bytes come from.
    pub from: u16,
    /// Where they go.
    pub to: u16,
    /// Average traffic, in 10⁹ bytes a second.
    pub gb_s: f64,
    /// The most that was measured in this direction.
    pub max_gb_s: Option<f64>,
}

/// Traffic of a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthMoment {
    /// Beginning, in seconds since the run's.
    pub t_s: f64,
    /// Read, in 10⁹ bytes a second.
    pub read_gb_s: f64,
    /// Written, in 10⁹ bytes a second.
    pub write_gb_s: f64,
}

/// A step of the histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthBin {
    /// From this bandwidth on.
    pub from_gb_s: f64,
    /// Up to this.
    pub to_gb_s: f64,
    /// Share of the time.
    pub fraction: f64,
}

/// What the program would wait for on another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Elsewhere {
    /// The machine.
    pub machine: String,
    /// Share of CPU time that would be stalled.
    pub memory_bound: Figure,
    /// By level.
    pub levels: LevelShares,
    /// Time without stalls there ÷ here: the number of core clock cycles is taken to be the same. The
    /// interval also holds the ratio of the latencies of the first caches. Missing where a clock is not
    /// known: the time without stalls is then taken to stay as it is.
    #[serde(default)]
    pub compute_ratio: Outcome<Figure>,
    /// Run time there ÷ run time here, by the stalls and by `compute_ratio`.
    pub time_ratio: Figure,
    /// Bandwidth that each core would ask of memory, in 10⁹ bytes a second.
    pub per_core_gb_s: f64,
    /// The most that machine was measured to do, all cores together.
    pub machine_max_gb_s: Outcome<f64>,
}

/// What recording cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overhead {
    /// By how much longer the program took because it was recorded, as a share of what it would
    /// have taken: an estimate.
    #[serde(default)]
    pub cost_fraction: f64,
    /// CPU time of membound's own process beside the program, in seconds.
    pub own_cpu_s: f64,
    /// Share of the program's samples that lay in membound's code inside it.
    pub inside_fraction: f64,
    /// Longest time in milliseconds that a thread of the program stood still or waited for a change of
    /// running text; absent where no text was to be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_stop_ms: Option<f64>,
    /// Changes of running text by the longest stop of each; empty without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<StopCount>,
    /// Timer samples that were lost.
    pub lost_samples: u64,
    /// Timed accesses that were lost.
    pub lost_accesses: u64,
    /// Allocation events that were lost.
    pub lost_allocations: u64,
}

/// Changes of running text that stopped threads for about as long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StopCount {
    /// The longest stop of each was shorter than this, in milliseconds, and not shorter than half of it
    /// (unless it is the first of a histogram).
    pub below_ms: f64,
    /// Number of changes.
    pub changes: u64,
}

/// Something that is not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Name of the table or field.
    pub table: String,
    /// Why, and what would change it.
    pub why: NotMeasured,
}

/// What the page, flame graphs and exports need beside a [`Profile`]: samples by time,
/// thread, call chain and object. Not part of the JSON document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// Names that frames and objects refer to.
    pub names: Vec<String>,
    /// Frames, inlined ones apart.
    pub frames: Vec<DetailFrame>,
    /// Call chains; a parent stands before its children.
    pub stacks: Vec<DetailStack>,
    /// Threads in the order of [`Profile::threads`]: position there.
    pub threads: Vec<u32>,
    /// Objects: position in [`Profile::objects`].
    pub objects: u32,
    /// Samples, by time.
    pub samples: Vec<DetailSample>,
    /// Accesses that a processor sampled itself, by time.
    pub accesses: Vec<DetailAccess>,
    /// Source and assembly of hot functions.
    pub listings: Vec<Listing>,
    /// The run divided into periods of equal length, in order; only pages have them, elsewhere it is empty.
    pub periods: Vec<Period>,
}

/// What rows of the profile's tables did in one period of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Period {
    /// When it begins, in seconds since the run began.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// Of [`Profile::functions`].
    pub functions: Vec<PeriodRow>,
    /// Of [`Profile::lines`].
    pub lines: Vec<PeriodRow>,
    /// Of [`Profile::instructions`].
    pub instructions: Vec<PeriodRow>,
    /// Of [`Profile::objects`].
    pub objects: Vec<PeriodRow>,
    /// Of [`Profile::threads`].
    pub threads: Vec<PeriodRow>,
}

/// A row of a table in one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeriodRow {
    /// Position in the profile's table.
    pub row: u32,
    /// What it did in the period; shares are of the period's CPU time.
    pub share: Share,
}

/// A frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailFrame {
    /// Function, in [`Detail::names`].
    pub function: u32,
    /// Source file, in [`Detail::names`].
    pub file: Option<u32>,
    /// Line.
    pub line: Option<u32>,
    /// Module, in [`Detail::names`].
    pub module: u32,
    /// Address in the module.
    pub address: u64,
    /// Whether its caller is the function that it was inlined into.
    pub inlined: bool,
}

/// A call chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DetailStack {
    /// The caller's, in [`Detail::stacks`].
    pub parent: Option<u32>,
    /// The frame, in [`Detail::frames`].
    pub frame: u32,
}

/// A sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailSample {
    /// When, in seconds since the run began.
    pub t_s: f64,
    /// Position in [`Profile::threads`].
    pub thread: u32,
    /// Its call chain, in [`Detail::stacks`], the waited-for access innermost.
    pub stack: u32,
    /// Position in [`Profile::objects`].
    pub object: Option<u32>,
    /// CPU time that it stands for, in seconds.
    pub weight_s: f64,
    /// The part of it that was stalled.
    pub stall_s: f64,
    /// The stalled part's level, as a position in [`Profile::levels`].
    pub level: Option<u8>,
}

/// An access that a processor sampled itself. It stands for no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetailAccess {
    /// When, in seconds since the run began.
    pub t_s: f64,
    /// Position in [`Profile::threads`].
    pub thread: u32,
    /// Its call chain, in [`Detail::stacks`].
    pub stack: u32,
    /// Where the line came from: position in [`HardwareView::levels`].
    pub level: u32,
    /// Core clock cycles that it took, where that was measured.
    pub latency_cycles: Option<u32>,
    /// The address that was accessed, where the processor says it.
    pub address: Option<u64>,
    /// Events of the processor's counter that it stands for.
    pub events: u64,
}

/// Source or assembly with figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Function.
    pub function: String,
    /// Module.
    pub module: String,
    /// Source file, when it could be read.
    pub file: Option<String>,
    /// Its lines: number, text, share of all CPU time, share stalled.
    pub source: Vec<ListedLine>,
    /// Instructions: address, text, shares, source line.
    pub assembly: Vec<ListedInstruction>,
}

/// A line of source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedLine {
    /// Number, from 1.
    pub line: u32,
    /// Text.
    pub text: String,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListedInstruction {
    /// Address in the module.
    pub address: u64,
    /// Text in Intel's syntax.
    pub text: String,
    /// Source line.
    pub line: Option<u32>,
    /// Share of all CPU time.
    pub time_fraction: f64,
    /// Share of all CPU time stalled here.
    pub stall_fraction: f64,
    /// Executions, where they were counted.
    pub executions: Option<f64>,
    /// Lower end of their 95 % interval.
    pub executions_low: Option<f64>,
    /// Upper end of it.
    pub executions_high: Option<f64>,
}

/// `membound compare` of runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunComparison {
    /// [`crate::SCHEMA_VERSION`] of the writer.
    pub schema_version: u32,
    /// Always [`Kind::RunComparison`].
    pub kind: Kind,
    /// The files, the first is the reference.
    pub runs: Vec<ComparedRun>,
    /// The base and the new side, where runs were put together; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<RunSide>,
    /// What `--fail-on` asked for, in the order given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<Gate>,
    /// Functions, lines and objects whose stall changed, largest change first.
    pub changes: Vec<RunChange>,
    /// What came and went: false sharing that is gone, new findings.
    pub findings: Vec<InsightChange>,
    /// Sentences that sum it up.
    pub summary: Vec<String>,
}

/// One of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedRun {
    /// File.
    pub file: String,
    /// Command.
    pub command: String,
    /// When.
    pub date: String,
    /// Cut short.
    pub incomplete: bool,
    /// Wall time in seconds.
    pub elapsed_s: f64,
    /// How the time divides.
    pub time: TimeSplit,
    /// Its stalled share.
    pub memory_bound: MemoryBound,
    /// Its average latency.
    pub latency: Outcome<AverageLatency>,
}

/// A group in all runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunChange {
    /// `function`, `line`, `object`.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Stalled seconds in each run, or in each side where there are sides; `null` where it was
    /// not seen.
    pub stall_s: Vec<Option<Figure>>,
    /// Last minus first, in seconds.
    pub change_s: f64,
    /// Whether the change is more than noise.
    pub significant: bool,
}

/// A finding that one run has and another has not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InsightChange {
    /// What it is about.
    pub kind: InsightKind,
    /// What it says.
    pub text: String,
    /// Whether each run has it, or most runs of each side where there are sides.
    pub present: Vec<bool>,
}
