//! Instructions that access memory: counts of their executions, and single accesses.

use serde::{Deserialize, Serialize};

use crate::record::record;
use crate::value::names;
use crate::{FrameId, ObjectId, SiteId, ThreadId};

record! { "sites", Position, missing "latencies" =>
    /// An instruction that accesses memory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Site {
        /// Address of the instruction.
        pub frame: FrameId,
        /// Whether it loads, stores, or both.
        pub kind: SiteKind,
        /// Bytes of one access, 0 if unknown.
        pub bytes: u32,
        /// The instruction in Intel's syntax.
        pub text: String,
        /// Why it could not be patched; `None` if it could, or was not tried.
        pub refused: Option<String>,
    }
}

membound_types::named! {
    /// Direction of an instruction's access.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum SiteKind {
        /// Reads.
        Load = "load",
        /// Writes.
        Store = "store",
        /// Reads and writes.
        Both = "both",
        /// Reads and writes atomically.
        Locked = "locked",
        /// Asks for a line, and uses none of its bytes.
        Prefetch = "prefetch",
    }
}

names!(SiteKind);

impl SiteKind {
    /// Whether it writes.
    #[must_use]
    pub const fn stores(self) -> bool {
        !matches!(self, Self::Load | Self::Prefetch)
    }

    /// Whether it reads.
    #[must_use]
    pub const fn loads(self) -> bool {
        !matches!(self, Self::Store | Self::Prefetch)
    }
}

record! { "executions", Order, missing "latencies" =>
    /// Executions of a site in one span of time, over all threads.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Executions {
        /// The site.
        pub site: SiteId,
        /// Start of the counted span.
        pub from_ns: u64,
        /// End of the counted span.
        pub to_ns: u64,
        /// Number of executions, over all processes.
        pub count: u64,
        /// CPU time of all threads in the span, in nanoseconds, without the estimated time of the counting
        /// patches.
        pub cpu_ns: u64,
        /// Lower bound of that: the patches took the most that samples permit.
        pub least_cpu_ns: Option<u64>,
        /// Upper bound of that: the patches took nothing.
        pub most_cpu_ns: Option<u64>,
    }
}

record! { "laps", Order, missing "latencies" =>
    /// Executions of a site by one thread in a span without patches, from a register to which each iteration of
    /// the site's loop adds a constant.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Laps {
        /// The site, which executes once in each iteration.
        pub site: SiteId,
        /// The thread.
        pub thread: ThreadId,
        /// Start of the counted span.
        pub from_ns: u64,
        /// End of the counted span.
        pub to_ns: u64,
        /// Number of executions in `cpu_ns`. Where the loop begins again, it is a lower bound.
        pub count: u64,
        /// The number if the loop began again once more between each two samples than they show; `None` if it
        /// was not seen to begin again.
        pub more_count: Option<u64>,
        /// CPU time of the thread in the span, in nanoseconds, without its time in the kernel and without the
        /// time in which the loop began again.
        pub cpu_ns: u64,
    }
}

record! { "accesses", Order, missing "latencies" =>
    /// One access that the latency sampler recorded.
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
        /// Latency in ticks of the time stamp counter, the cost of timing included; `None` if not timed.
        pub ticks: Option<u32>,
        /// The same for a load just before that hit the innermost cache: the cost of timing at this time and
        /// place.
        pub hit: Option<u32>,
        /// Ticks until the stores in progress before it were done.
        pub drain: Option<u32>,
        /// Whether the access was a store.
        pub store: bool,
        /// Object at `address`.
        pub object: Option<ObjectId>,
        /// CPU that the thread ran on, where known.
        pub cpu: Option<u16>,
        /// NUMA node of the page, where known.
        pub node: Option<u16>,
    }
}

/// All accesses of some sites by one thread in a span, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Burst {
    /// Time of the first access.
    pub from_ns: u64,
    /// Time of the last access.
    pub to_ns: u64,
    /// Thread whose accesses were recorded.
    pub thread: ThreadId,
    /// Sites that were recorded; other sites of the program were not.
    pub sites: Vec<SiteId>,
    /// The accesses in order: position in `sites`, address, true for a store.
    pub accesses: Vec<(u16, u64, bool)>,
}

record! { "blocks", Order, missing "blocks" =>
    /// Executions of a basic block.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BlockCount {
        /// First instruction of the block.
        pub frame: FrameId,
        /// Length of the block in bytes.
        pub length: u32,
        /// Start of the counted span.
        pub from_ns: u64,
        /// End of the counted span.
        pub to_ns: u64,
        /// Number of executions.
        pub count: u64,
        /// CPU time of all threads meanwhile, with that of the patches which counted, in nanoseconds.
        pub cpu_ns: Option<u64>,
        /// The same without the most that these patches may have taken.
        pub least_cpu_ns: Option<u64>,
    }
}
