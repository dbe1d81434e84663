//! Instructions that access memory: how often they ran, and single accesses of them.

use serde::{Deserialize, Serialize};

use crate::{FrameId, ObjectId, SiteId, ThreadId};

/// An instruction that accesses memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Address of the instruction.
    pub frame: FrameId,
    /// Whether it loads, stores, or both.
    pub kind: SiteKind,
    /// Bytes accessed at once, 0 if unknown.
    pub bytes: u32,
    /// The instruction in Intel's syntax.
    pub text: String,
    /// Why it could not be patched.
    pub refused: Option<String>,
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
    /// Reads and writes atomically.
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

/// Executions of a site in one span of time, over all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executions {
    /// The site.
    pub site: SiteId,
    /// Beginning of the span that was counted.
    pub from_ns: u64,
    /// End of the span that was counted.
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
    /// Beginning of the span that was counted.
    pub from_ns: u64,
    /// End of the span that was counted.
    pub to_ns: u64,
    /// How often it ran.
    pub count: u64,
    /// CPU time of the thread meanwhile, without what the kernel took of it.
    pub cpu_ns: u64,
}

/// One access that the latency sampler saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Time of the access.
    pub t_ns: u64,
    /// Thread that accessed.
    pub thread: ThreadId,
    /// Instruction that accessed.
    pub site: SiteId,
    /// Address that was accessed.
    pub address: u64,
    /// Ticks of the time stamp counter, the timing's own cost included; `None`: not timed.
    pub ticks: Option<u32>,
    /// The same of a load just before that the innermost cache served: the timing's own cost
    /// here and now.
    pub hit: Option<u32>,
    /// Ticks until the stores that were under way before it were done.
    pub drain: Option<u32>,
    /// Whether the access was a store.
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
    /// Thread whose accesses were recorded.
    pub thread: ThreadId,
    /// Sites that were recorded, all others of the program were not.
    pub sites: Vec<SiteId>,
    /// The accesses in their order: position in `sites`, address, whether it stored.
    pub accesses: Vec<(u16, u64, bool)>,
}

/// Executions of a basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCount {
    /// First instruction of the block.
    pub frame: FrameId,
    /// Length of the block in bytes.
    pub length: u32,
    /// Beginning of the span that was counted.
    pub from_ns: u64,
    /// End of the span that was counted.
    pub to_ns: u64,
    /// How often it was entered.
    pub count: u64,
}
