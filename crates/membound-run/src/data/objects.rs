//! Objects in memory and the call chains that allocated them.

pub use membound_types::ObjectClass;

use crate::record::record;
use crate::{ProcessId, StackId, ThreadId};

record! { "objects", Position, missing "objects" =>
    /// An object that samples or accesses fell into.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Object {
        /// Kind of memory.
        pub kind: ObjectClass,
        /// Process that has the object.
        pub process: ProcessId,
        /// First address in the process.
        pub address: u64,
        /// Size in bytes.
        pub size_bytes: u64,
        /// Symbol, path, or function that allocated it (`malloc`, `mmap`); empty if none.
        pub name: String,
        /// Call chain that allocated it.
        pub stack: Option<StackId>,
        /// Thread that allocated it, or whose stack it is.
        pub thread: Option<ThreadId>,
        /// Time of the allocation.
        pub allocated_ns: Option<u64>,
        /// Time of the free.
        pub freed_ns: Option<u64>,
        /// Number of blocks that it represents: small blocks may be sampled. 0: it stands for all blocks
        /// that were not recorded and lie near recorded ones of its call chain, and has neither address nor
        /// size.
        pub weight: f64,
    }
}

impl Object {
    /// True if it stands for blocks that were not recorded, wherever they are.
    #[must_use]
    pub fn is_unrecorded(&self) -> bool {
        self.weight <= 0.0
    }
}

record! { "allocations", Order, missing "objects" =>
    /// All blocks that one call chain allocated with one function.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Allocations {
        /// Call chain that allocated.
        pub stack: StackId,
        /// Process that allocated.
        pub process: ProcessId,
        /// `malloc`, `calloc`, `mmap`, …
        pub function: String,
        /// Number of blocks; an estimate where they were sampled.
        pub blocks: u64,
        /// Variance of `blocks` where they were sampled; `None` if all were counted.
        pub blocks_variance: Option<f64>,
        /// Sum of the blocks' sizes.
        pub bytes: u64,
        /// Number of blocks that were freed.
        pub freed: u64,
        /// Sum of the freed blocks' lifetimes, in nanoseconds.
        pub lifetime_ns: u64,
        /// Most bytes that were live at once.
        pub peak_bytes: u64,
    }
}

record! { "live", Order, missing "objects" =>
    /// Live bytes of one call chain and function in one step of time. Steps without a change have no row: the
    /// bytes at the end of the previous row still hold.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LiveBytes {
        /// Call chain that allocated.
        pub stack: StackId,
        /// Process that allocated.
        pub process: ProcessId,
        /// `malloc`, `calloc`, `mmap`, …
        pub function: String,
        /// Start of the step.
        pub from_ns: u64,
        /// End of the step.
        pub to_ns: u64,
        /// Live bytes at the end of the step; an estimate where blocks were sampled.
        pub bytes: u64,
        /// Most live bytes during the step.
        pub peak_bytes: u64,
    }
}
