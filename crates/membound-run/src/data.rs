//! A run as plain data.

mod code;
mod hardware;
mod ids;
mod nodes;
mod objects;
mod program;
mod samples;
mod sharing;
mod sites;

use membound_types::MachineProfile;
use serde::{Deserialize, Serialize};

use crate::record::record;
use crate::value::names;

pub use self::code::*;
pub use self::hardware::*;
pub use self::ids::*;
pub use self::nodes::*;
pub use self::objects::*;
pub use self::program::*;
pub use self::samples::*;
pub use self::sharing::*;
pub use self::sites::*;

/// All data of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunData {
    /// How and where it was recorded.
    pub meta: Meta,
    /// Process images, in the order of their starts.
    pub processes: Vec<Process>,
    /// Threads of all processes, the agent's own among them.
    pub threads: Vec<Thread>,
    /// Files with code, and pieces of code without a file.
    pub modules: Vec<Module>,
    /// Where modules lay in processes.
    pub mappings: Vec<Mapping>,
    /// Distinct places in code that were seen.
    pub frames: Vec<Frame>,
    /// Distinct call chains: each is its innermost frame and the chain of its caller. A parent always comes
    /// before its children.
    pub stacks: Vec<Stack>,
    /// Expiries of the sampling timer, by thread and call chain.
    pub samples: Vec<Sample>,
    /// Instructions that access memory and were examined.
    pub sites: Vec<Site>,
    /// Which access each sampled instruction waited for.
    pub attributions: Vec<Attribution>,
    /// Counts of executions of sites.
    pub executions: Vec<Executions>,
    /// Iterations of loops, as executions of their sites, from registers that count them.
    pub laps: Vec<Laps>,
    /// Loops around frames and sites.
    pub loops: Vec<LoopAround>,
    /// Single accesses that the latency sampler recorded.
    pub accesses: Vec<Access>,
    /// Bursts in which every access of some sites was recorded.
    pub bursts: Vec<Burst>,
    /// Counts of executions of basic blocks.
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
    /// NUMA nodes of pages, with the times at which the kernel was asked.
    pub pages: Vec<PageNode>,
    /// Memory traffic from hardware counters, where there are any.
    pub traffic: Vec<Traffic>,
    /// Hits of hardware watchpoints.
    pub watched: Vec<Watched>,
    /// Spans of trials in which threads were held, or not, to measure what they cost each other.
    pub holds: Vec<Hold>,
    /// Accesses that a processor sampled itself, from recordings of other profilers.
    pub hardware_accesses: Vec<HardwareAccess>,
    /// What was not recorded, and why.
    pub gaps: Vec<Gap>,
}

record! { "run", Position, missing "processes" =>
    /// How, when and where a run was recorded.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Meta {
        /// Version of membound that wrote it.
        pub membound_version: String,
        /// The command with its arguments; empty when processes were attached to.
        pub command: Vec<String>,
        /// Process that was attached to.
        pub attached: Option<u32>,
        /// Host name of the machine that recorded.
        pub host: String,
        /// Start of the recording, RFC 3339 in UTC.
        pub date: String,
        /// True if the recording was ended properly; it stays false when membound was killed.
        pub complete: bool,
        /// Wall time in nanoseconds from the start to the program's end, or to the last write before it.
        pub elapsed_ns: u64,
        /// Exit code of the command, if it exited.
        pub exit_code: Option<i32>,
        /// Signal that ended the command.
        pub signal: Option<i32>,
        /// Source of the timer samples.
        pub timer: TimerKind,
        /// Format that the run was imported from, if another profiler recorded it.
        pub imported: Option<String>,
        /// Requested CPU time between two timer samples, in nanoseconds.
        pub period_ns: u64,
        /// Mean executions per sample of a patched site.
        pub site_period: u32,
        /// Whether hot sites were patched.
        pub latencies: bool,
        /// Identifies the latency sampler's patch, as `Calibration::patch` does; empty when it
        /// is the one that the machine profile was calibrated with.
        pub patch: String,
        /// Size in bytes from which on every block was followed; `None`: allocations were not followed.
        pub objects_from_bytes: Option<u64>,
        /// Ticks of the time stamp counter per second.
        pub tsc_hz: f64,
        /// Number of CPUs that the program could run on.
        pub cpus: u32,
        /// Number of NUMA nodes of the machine.
        pub nodes: u32,
        /// Node of each CPU, by the CPU's number; empty where it could not be read.
        pub cpu_nodes: Vec<u16>,
        /// CPU time that membound itself took while the program ran, in nanoseconds.
        pub own_cpu_ns: u64,
        /// Changes of running text, by the longest time that a thread of the program was stopped or waited for
        /// each: element `i` counts those whose time in microseconds has `i` binary digits.
        pub stops: Vec<u64>,
        /// The longest of those times, in nanoseconds; `None` where no text was changed.
        pub longest_stop_ns: Option<u64>,
        /// CPU time that the programs lost to recording, in nanoseconds, apart from what samples show in
        /// membound's code inside them: an estimate.
        pub lost_cpu_ns: u64,
        /// Time for which programs were held at their start and when they loaded libraries, in
        /// nanoseconds.
        pub held_ns: u64,
    } without {
        /// The machine profile that levels and latencies are taken from.
        pub machine: Option<Box<MachineProfile>>,
    }
}

membound_types::named! {
    /// The source of timer samples.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum TimerKind {
        /// perf's event `cpu-clock`, in the kernel.
        #[default]
        CpuClock = "cpu-clock",
        /// Timers on threads' CPU clocks, served by the agent.
        AgentTimer = "agent-timer",
        /// A counter of core clock cycles; only in imported recordings.
        Cycles = "cycles",
        /// None: an imported recording without samples that represent CPU time.
        None = "none",
    }
}

names!(TimerKind);

record! { "gaps", Order, missing "samples" =>
    /// Data that a run lacks.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Gap {
        /// Subject: `samples`, `latencies`, `objects`, `names`, `nodes`, `bandwidth`, `bursts`, `blocks`,
        /// `watchpoints`, `holds`, `processes`, `hardware`, `events`; `code`: code whose samples could not be
        /// attributed to an access; the reason is then the module's path, a colon and why.
        pub about: String,
        /// The reason, a lower-case fragment.
        pub reason: String,
        /// What the user can do about it.
        pub remedy: Option<String>,
        /// Number of missing items, where they can be counted (lost samples).
        pub count: Option<u64>,
    }
}

impl Gap {
    /// [`Self::about`] of code whose samples could not be attributed to an access.
    pub const UNSEEN_CODE: &'static str = "code";
}
