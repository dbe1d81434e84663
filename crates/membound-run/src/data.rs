//! A run as plain data.

use membound_types::MachineProfile;
use serde::{Deserialize, Serialize};

/// Defines positions in the vectors of [`RunData`].
macro_rules! ids {
    ($($(#[$meta:meta])* $Name:ident;)+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $Name(pub u32);

        impl $Name {
            /// As a position in its vector.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )+};
}

ids! {
    /// In [`RunData::processes`].
    ProcessId;
    /// In [`RunData::threads`].
    ThreadId;
    /// In [`RunData::modules`].
    ModuleId;
    /// In [`RunData::frames`].
    FrameId;
    /// In [`RunData::stacks`].
    StackId;
    /// In [`RunData::sites`].
    SiteId;
    /// In [`RunData::objects`].
    ObjectId;
}

/// Everything that a run holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunData {
    /// What the run was.
    pub meta: Meta,
    /// Process images, in the order of their starts.
    pub processes: Vec<Process>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// Files with code, and pieces of code without a file.
    pub modules: Vec<Module>,
    /// Where modules lay in processes.
    pub mappings: Vec<Mapping>,
    /// Distinct places in code that were seen.
    pub frames: Vec<Frame>,
    /// Distinct call chains, each its innermost frame and the chain of its caller. A parent
    /// always stands before its children.
    pub stacks: Vec<Stack>,
    /// Timer samples.
    pub samples: Vec<Sample>,
    /// Instructions that access memory and were looked at.
    pub sites: Vec<Site>,
    /// Which access each sampled instruction waited for.
    pub attributions: Vec<Attribution>,
    /// How often sites ran.
    pub executions: Vec<Executions>,
    /// Laps of loops, as executions of their sites, from registers that count them.
    pub laps: Vec<Laps>,
    /// Loops around frames and sites.
    pub loops: Vec<LoopAround>,
    /// Single accesses that the latency sampler saw.
    pub accesses: Vec<Access>,
    /// Bursts in which every access of some sites was recorded.
    pub bursts: Vec<Burst>,
    /// How often basic blocks ran.
    pub blocks: Vec<BlockCount>,
    /// Objects that samples or accesses fell into.
    pub objects: Vec<Object>,
    /// All allocations, by call chain.
    pub allocations: Vec<Allocations>,
    /// Live bytes over time, by call chain.
    pub live: Vec<LiveBytes>,
    /// Functions, lines and inlining of frames, innermost first.
    pub locations: Vec<Location>,
    /// Code of functions that were sampled.
    pub code: Vec<Code>,
    /// Nodes of pages.
    pub pages: Vec<PageNode>,
    /// Traffic by counters, where there are some.
    pub traffic: Vec<Traffic>,
    /// Hits of hardware watchpoints.
    pub watched: Vec<Watched>,
    /// Spans in which threads were held, or not, to see what they cost each other.
    pub holds: Vec<Hold>,
    /// Accesses that a processor sampled itself, out of recordings of other profilers.
    pub hardware_accesses: Vec<HardwareAccess>,
    /// What was not recorded, and why.
    pub gaps: Vec<Gap>,
}

/// What the run was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of membound that wrote it.
    pub membound_version: String,
    /// The command; empty when processes were attached to.
    pub command: Vec<String>,
    /// Process that was attached to.
    pub attached: Option<u32>,
    /// Host.
    pub host: String,
    /// When it began, RFC 3339 in UTC.
    pub date: String,
    /// Whether it was ended in order. Stays false when membound was killed.
    pub complete: bool,
    /// Wall time in nanoseconds from the start to the program's end (or the last that was seen).
    pub elapsed_ns: u64,
    /// Exit code of the command, when it ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that ended the command.
    pub signal: Option<i32>,
    /// What took the timer samples.
    pub timer: TimerKind,
    /// What the run was imported from, where another profiler recorded it.
    #[serde(default)]
    pub imported: Option<String>,
    /// Nanoseconds of CPU time between two timer samples, as asked for.
    pub period_ns: u64,
    /// Mean executions between two samples of a patched site.
    pub site_period: u32,
    /// Whether hot sites were patched.
    pub latencies: bool,
    /// Identifies the latency sampler's patch, as `Calibration::patch` does; empty when it
    /// is the one that the machine profile was calibrated with.
    #[serde(default)]
    pub patch: String,
    /// Whether allocations were followed, and from how many bytes on every one.
    pub objects_from_bytes: Option<u64>,
    /// Rate of the time stamp counter.
    pub tsc_hz: f64,
    /// CPUs that the program could run on.
    pub cpus: u32,
    /// NUMA nodes of the machine.
    pub nodes: u32,
    /// Node of each CPU, by the CPU's number; empty where it could not be read.
    #[serde(default)]
    pub cpu_nodes: Vec<u16>,
    /// CPU time that membound itself took while the program ran, in nanoseconds.
    pub own_cpu_ns: u64,
    /// Changes of running text by the longest time that a thread of the program stood still or waited for
    /// each: element `i` counts those of `i` binary digits in microseconds.
    #[serde(default)]
    pub stops: Vec<u64>,
    /// The longest of those times, in nanoseconds; `None` where no text was to be changed.
    #[serde(default)]
    pub longest_stop_ns: Option<u64>,
    /// CPU time that the programs lost by recording, in nanoseconds, beside what samples show in
    /// membound's code inside them: an estimate.
    #[serde(default)]
    pub lost_cpu_ns: u64,
    /// Time for which programs were held when they began and when they loaded something, in
    /// nanoseconds.
    #[serde(default)]
    pub held_ns: u64,
    /// The machine profile that levels and latencies are taken from.
    pub machine: Option<Box<MachineProfile>>,
}

/// What takes timer samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimerKind {
    /// perf's cpu-clock.
    #[default]
    CpuClock,
    /// Timers on threads' CPU clocks, served by the agent.
    AgentTimer,
    /// A counter of core clock cycles, in imported recordings.
    Cycles,
    /// Nothing: an imported recording has no samples that stand for CPU time.
    None,
}

/// What of a processor samples accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessSampler {
    /// Intel's Processor Event-Based Sampling.
    Pebs,
    /// AMD's Instruction-Based Sampling.
    Ibs,
    /// Arm's Statistical Profiling Extension.
    Spe,
    /// It is not known what.
    Other,
}

/// What a sampled access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Read.
    Load,
    /// Wrote.
    Store,
    /// Read and wrote.
    LoadStore,
    /// Fetched ahead.
    Prefetch,
    /// Fetched code.
    Execute,
}

/// Where the line of a sampled access came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedBy {
    /// The innermost cache.
    L1,
    /// A buffer for a line that was on its way already.
    LineFill,
    /// The second cache.
    L2,
    /// The third cache.
    L3,
    /// A fourth cache, or one on the side of memory.
    L4,
    /// A cache, it is not known which.
    Cache,
    /// Another core's cache.
    RemoteCache,
    /// Memory of the own node.
    Dram,
    /// Memory of another node.
    RemoteDram,
    /// Persistent memory.
    Persistent,
    /// Memory behind CXL.
    Cxl,
    /// A device.
    Device,
    /// Memory that is not cached.
    Uncached,
}

/// What other caches answered a sampled access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Snoop {
    /// None was asked.
    None,
    /// None had the line.
    Miss,
    /// One had the line unchanged.
    Hit,
    /// One had changed the line.
    Modified,
    /// One sent the line.
    Forwarded,
}

/// How the address of a sampled access was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Translation {
    /// By the first TLB.
    L1,
    /// By the second TLB.
    L2,
    /// By one of the TLBs.
    Tlb,
    /// By a walk of the page table.
    Walk,
}

/// A process image: an exec begins another one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Number of the process that started it.
    pub parent: Option<u32>,
    /// The executable.
    pub path: String,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: Option<u64>,
    /// Why nothing was patched in it.
    pub unpatched: Option<String>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Its process.
    pub process: ProcessId,
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: Option<u64>,
    /// CPU time that it took, as the kernel counts it, where it could be asked.
    pub cpu_ns: Option<u64>,
}

impl Thread {
    /// The name of the thread that the agent has in live programs. Threads bear the name of
    /// their program until they are given another, so it is one that no command has.
    const AGENTS: &'static str = "membound-agent";

    /// Whether this is the agent's own thread of a program with this number, and none of the
    /// program's. The first thread of a program is never the agent's, whatever its name.
    #[must_use]
    pub fn is_agents(&self, pid: u32) -> bool {
        self.tid != pid && self.name == Self::AGENTS
    }
}

/// A file with code.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// Path, or `[vdso]`, `[jit]`, `[agent]`, `[kernel]`.
    pub path: String,
    /// Build-id in hexadecimal digits.
    pub build_id: Option<String>,
    /// SHA-256 of its text, where it has no build-id.
    pub text_hash: Option<String>,
    /// What it is.
    pub kind: ModuleKind,
}

/// What a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleKind {
    /// An executable or a library.
    File,
    /// The kernel's page of system calls.
    Vdso,
    /// Code made at run time; frames' addresses are those of the process.
    Jit,
    /// membound's own code in the program.
    Agent,
    /// The kernel.
    Kernel,
}

/// Where a module lay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The process.
    pub process: ProcessId,
    /// The module.
    pub module: ModuleId,
    /// First address.
    pub start: u64,
    /// Behind the last address.
    pub end: u64,
    /// Address in the process minus address in the file.
    pub bias: u64,
    /// When it was mapped.
    pub t_ns: u64,
}

/// A place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The module, when it is known.
    pub module: Option<ModuleId>,
    /// Address in the file: of the sampled instruction (innermost) or of the call
    /// (return address minus 1). The process's own address without a module.
    pub address: u64,
}

/// A call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The caller's chain.
    pub parent: Option<StackId>,
    /// The innermost frame.
    pub frame: FrameId,
}

/// A timer sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub t_ns: u64,
    /// Which thread.
    pub thread: ThreadId,
    /// On which CPU, where it is known.
    pub cpu: Option<u16>,
    /// Call chain; its innermost frame is the sampled instruction, not yet the one that
    /// was waited for.
    pub stack: StackId,
    /// CPU time that it stands for, in nanoseconds.
    pub weight_ns: u64,
    /// Address accessed by the instruction that was waited for, where the registers tell.
    pub address: Option<u64>,
    /// Whether `address` is what was accessed, or only near it (a pointer that was loaded).
    pub exact: bool,
    /// What lies at `address`.
    pub object: Option<ObjectId>,
}

/// What an instruction does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteKind {
    /// Reads.
    Load,
    /// Writes.
    Store,
    /// Reads and writes.
    Both,
    /// Reads and writes in one step that no other core sees half of.
    Locked,
}

impl SiteKind {
    /// Whether it writes.
    #[must_use]
    pub const fn stores(self) -> bool {
        !matches!(self, Self::Load)
    }

    /// Whether it reads.
    #[must_use]
    pub const fn loads(self) -> bool {
        !matches!(self, Self::Store)
    }
}

/// An instruction that accesses memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Where.
    pub frame: FrameId,
    /// What it does.
    pub kind: SiteKind,
    /// Bytes accessed at once, 0 if unknown.
    pub bytes: u32,
    /// The instruction in Intel's syntax.
    pub text: String,
    /// Why it could not be patched.
    pub refused: Option<String>,
}

/// An access that a sampled instruction waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attribution {
    /// Sampled instruction.
    pub frame: FrameId,
    /// The access; `None`: it waited for no memory.
    pub site: Option<SiteId>,
    /// Share of the frame's samples that are this access's; those of a frame sum to 1.
    pub share: f64,
    /// How sure that is, from 0 to 1.
    pub confidence: f64,
}

/// Executions of a site over a while in which it was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executions {
    /// The site.
    pub site: SiteId,
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// How often it ran, over all processes.
    pub count: u64,
    /// CPU time that all threads took meanwhile, without that of the patches which counted.
    pub cpu_ns: u64,
    /// The least that this may have been: the patches took the most that samples permit.
    pub least_cpu_ns: Option<u64>,
    /// The most that it may have been: the patches took nothing.
    pub most_cpu_ns: Option<u64>,
}

/// Executions of a site by one thread over a while in which nothing was patched, from a register
/// to which each lap of the site's loop adds a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laps {
    /// The site, which runs once in each lap.
    pub site: SiteId,
    /// The thread.
    pub thread: ThreadId,
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// How often it ran.
    pub count: u64,
    /// CPU time of the thread meanwhile, without what the kernel took of it.
    pub cpu_ns: u64,
}

/// A loop around an instruction that was sampled or is a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopAround {
    /// The instruction.
    pub frame: FrameId,
    /// 0 for the innermost loop around it, 1 for the one around that, and so on.
    pub level: u32,
    /// Address of the loop's first block in the frame's module.
    pub start: u64,
}

/// One access that the latency sampler saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When.
    pub t_ns: u64,
    /// Which thread.
    pub thread: ThreadId,
    /// Which instruction.
    pub site: SiteId,
    /// What it accessed.
    pub address: u64,
    /// Ticks of the time stamp counter, the timing's own cost included; `None`: not timed.
    pub ticks: Option<u32>,
    /// The same of a load just before that the innermost cache served: the timing's own cost
    /// here and now.
    pub hit: Option<u32>,
    /// Ticks until the stores that were under way before it were done.
    pub drain: Option<u32>,
    /// Whether it stored.
    pub store: bool,
    /// What lies at `address`.
    pub object: Option<ObjectId>,
    /// On which CPU the thread ran, where it is known.
    pub cpu: Option<u16>,
    /// NUMA node of the page, where it was asked.
    pub node: Option<u16>,
}

/// A stretch of one thread's accesses without gaps: all that some sites did.
#[derive(Clone, Debug, PartialEq)]
pub struct Burst {
    /// When it began.
    pub from_ns: u64,
    /// When it ended.
    pub to_ns: u64,
    /// Whose it is.
    pub thread: ThreadId,
    /// Sites that were recorded, all others of the program were not.
    pub sites: Vec<SiteId>,
    /// The accesses in their order: position in `sites`, address, whether it stored.
    pub accesses: Vec<(u16, u64, bool)>,
}

/// Executions of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCount {
    /// First instruction.
    pub frame: FrameId,
    /// Bytes.
    pub length: u32,
    /// Since when it was counted.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// How often it was entered.
    pub count: u64,
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObjectKind {
    /// A block of an allocator.
    Heap,
    /// Memory that the program mapped without a file.
    Mapped,
    /// A file that the program mapped.
    File,
    /// A variable of a module.
    Global,
    /// A thread's stack.
    Stack,
    /// Memory of which nothing more is known.
    Unknown,
}

/// Something that samples or accesses fell into.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Its process.
    pub process: ProcessId,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub size_bytes: u64,
    /// Symbol, path, or function that allocated it (`malloc`, `mmap`); empty if none.
    pub name: String,
    /// Call chain that allocated it.
    pub stack: Option<StackId>,
    /// Thread that allocated it, or whose stack it is.
    pub thread: Option<ThreadId>,
    /// When it was allocated.
    pub allocated_ns: Option<u64>,
    /// When it was freed.
    pub freed_ns: Option<u64>,
    /// How many blocks it stands for: small ones may be followed only in part.
    pub weight: f64,
}

/// All blocks that one call chain allocated with one function.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocations {
    /// Who allocated.
    pub stack: StackId,
    /// The process.
    pub process: ProcessId,
    /// `malloc`, `calloc`, `mmap`, …
    pub function: String,
    /// Blocks; an estimate where they were sampled.
    pub blocks: u64,
    /// Variance of `blocks` where they were sampled; `None`: all were counted.
    pub blocks_variance: Option<f64>,
    /// Bytes.
    pub bytes: u64,
    /// Blocks that were freed.
    pub freed: u64,
    /// Sum of the freed blocks' lifetimes.
    pub lifetime_ns: u64,
    /// Most bytes that were allocated at once.
    pub peak_bytes: u64,
}

/// Live bytes of one call chain and function in one step of time. Steps in which nothing changed have
/// no row: the bytes at the end of the row before still hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBytes {
    /// Call chain that allocated.
    pub stack: StackId,
    /// The process.
    pub process: ProcessId,
    /// `malloc`, `calloc`, `mmap`, …
    pub function: String,
    /// Beginning of the step.
    pub from_ns: u64,
    /// End of the step.
    pub to_ns: u64,
    /// Live bytes at the end of the step; an estimate where blocks were sampled.
    pub bytes: u64,
    /// Most live bytes during the step.
    pub peak_bytes: u64,
}

/// What a frame is in source code.
#[derive(Clone, Debug, PartialEq)]
pub struct Location {
    /// The frame.
    pub frame: FrameId,
    /// 0 is the innermost function, those above have it inlined.
    pub depth: u32,
    /// Demangled name; empty if unknown.
    pub function: String,
    /// Address in the file at which the function that is not inlined begins.
    pub function_start: Option<u64>,
    /// Bytes of that function.
    pub function_size: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
}

/// Code of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its module.
    pub module: ModuleId,
    /// Address in the file.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The node of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageNode {
    /// Whose page.
    pub process: ProcessId,
    /// Its first address.
    pub address: u64,
    /// When it was asked.
    pub t_ns: u64,
    /// The node.
    pub node: u16,
}

/// Bytes that a domain moved.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// `DRAM 0`, `interconnect 0-1`, …
    pub domain: String,
    /// Since when.
    pub from_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// A hit of a watchpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// When.
    pub t_ns: u64,
    /// Which thread.
    pub thread: ThreadId,
    /// First address watched.
    pub address: u64,
    /// Bytes watched.
    pub bytes: u8,
    /// The instruction behind the one that hit.
    pub frame: FrameId,
}

/// How far a thread got in a span in which all others that use a line were held, or in one in which
/// none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When it ended.
    pub t_ns: u64,
    /// Number of the trial that it belongs to.
    pub trial: u32,
    /// The thread.
    pub thread: ThreadId,
    /// First address of the line that is the reason of the trial.
    pub line: u64,
    /// Whether the others were held.
    pub alone: bool,
    /// Length in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of the thread.
    pub cpu_ns: u64,
    /// By how much a word grew that tells how far the thread is. Its unit is the same for a thread
    /// in one trial, and in no other. 0: no such word is known, or the thread got nowhere.
    pub progress: u64,
}

/// An access that a processor sampled itself. What is `None` is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareAccess {
    /// When.
    pub t_ns: u64,
    /// Which thread.
    pub thread: ThreadId,
    /// On which CPU.
    pub cpu: Option<u16>,
    /// Call chain; its innermost frame is the access.
    pub stack: StackId,
    /// What sampled it.
    pub sampler: AccessSampler,
    /// What it did.
    pub operation: Option<Operation>,
    /// Where the line came from.
    pub served: Option<ServedBy>,
    /// The outermost cache that is known not to have had the line, where `served` is not known.
    pub missed: Option<ServedBy>,
    /// What other caches answered.
    pub snoop: Option<Snoop>,
    /// How the address was translated.
    pub translation: Option<Translation>,
    /// Whether no other core could come between.
    pub locked: Option<bool>,
    /// Core clock cycles that it took.
    pub latency_cycles: Option<u32>,
    /// What it accessed.
    pub address: Option<u64>,
    /// The same in physical memory.
    pub physical_address: Option<u64>,
    /// Events that it stands for, by which it was chosen.
    pub period: u64,
}

/// Something that a run lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// What it is about: `samples`, `latencies`, `objects`, `names`, `nodes`, `bandwidth`,
    /// `bursts`, `blocks`, `watchpoints`, `processes`, `hardware`; `code`: of what code no sample could be
    /// told what it waited for, the reason being the module's path, a colon and why.
    pub about: String,
    /// Why, a lower-case fragment.
    pub reason: String,
    /// What would change it.
    pub remedy: Option<String>,
    /// How many, where it counts something (lost samples).
    pub count: Option<u64>,
}

impl Gap {
    /// [`Self::about`] of code of which no sample could be told what it waited for.
    pub const UNSEEN_CODE: &'static str = "code";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_their_name_from_a_program_are_the_programs() {
        let thread = |tid: u32, name: &str| Thread {
            process: ProcessId(0),
            tid,
            name: name.to_owned(),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        };
        assert!(thread(8, "membound-agent").is_agents(7));
        assert!(!thread(7, "membound-agent").is_agents(7));
        // The command itself may be what is profiled: the tour does it.
        assert!(!thread(8, "membound").is_agents(7));
    }
}
