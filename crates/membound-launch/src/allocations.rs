//! What programs allocate, reported while they run.

use std::sync::Arc;
use std::time::Instant;

/// Settings for following allocations.
#[derive(Clone, Debug)]
pub struct Objects {
    /// All blocks of this many bytes or more are reported. If blocks are sampled the limit may be higher:
    /// see [`certain_from_bytes`](crate::certain_from_bytes). Smaller blocks are sampled when there are
    /// very many: see [`AllocationEvent::weight`].
    pub every_from_bytes: u64,
    /// Share of the program's CPU time, 0 to 1, that following its allocations may cost; sampling keeps
    /// within it. Infinity: every block is reported as long as the rings have room.
    pub max_overhead: f64,
    /// Further functions that allocate like `malloc` and free like `free`: pairs of names.
    pub others: Vec<(String, String)>,
    /// Receives the events.
    pub receiver: Arc<dyn AllocationReceiver>,
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationAction {
    /// It was allocated. A `realloc` is [`Self::Freed`] followed by this. A mapping may replace another
    /// one, which then ends without an event. So does a block whose free was lost, when its address is
    /// allocated again.
    Allocated,
    /// It was freed, or unmapped; of a mapping perhaps only a part. Also reported for blocks whose
    /// allocation was never reported.
    Freed,
}

/// One event. Events of one thread are in order; those of several threads must be sorted by `tsc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationEvent {
    /// Time stamp counter: before a free, after an allocation.
    pub tsc: u64,
    /// Number of the thread.
    pub thread: u32,
    /// Whether the block was allocated or freed.
    pub action: AllocationAction,
    /// The function that did it.
    pub function: AllocationFunction,
    /// First byte of the block.
    pub address: u64,
    /// Bytes asked for; for [`AllocationAction::Freed`] the bytes unmapped, or 0 for a freed block.
    pub size: u64,
    /// Call chain of the allocation, announced before by [`AllocationReceiver::chain`]; without meaning for
    /// a free.
    pub chain: u32,
    /// Number of blocks of its size and chain that an allocation represents: 1 divided by the probability
    /// with which it was reported. Sums of weights are unbiased. Without meaning for a free.
    pub weight: f32,
}

/// Functions that allocate or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationFunction {
    /// `malloc` and similar functions.
    Malloc,
    /// `calloc`.
    Calloc,
    /// `realloc`, `reallocarray`.
    Realloc,
    /// `aligned_alloc`, `memalign`, `posix_memalign`, `valloc`, `pvalloc`.
    Aligned,
    /// `mmap`, `mremap`.
    Mmap,
    /// `free` and similar functions.
    Free,
    /// `munmap`.
    Munmap,
    /// One of [`Objects::others`], by its index.
    Other(u16),
}

/// Receives allocations, called from one thread at a time.
pub trait AllocationReceiver: Send + Sync + std::fmt::Debug {
    /// A process begins to run a program, also after an `exec`: all earlier allocations of the process are
    /// gone. Forked children are not announced; they have their parent's allocations at the fork. `_since`
    /// is the time of the start.
    fn begun(&self, _pid: u32, _since: Instant) {}

    /// Announces a call chain that events will refer to: return addresses in the process, innermost first
    /// (the caller of the allocating function). Numbers are unique in a process, also across an `exec`. No
    /// addresses: the chain is not known.
    fn chain(&self, pid: u32, chain: u32, addresses: &[u64]);

    /// Events of one process.
    fn receive(&self, pid: u32, events: &[AllocationEvent]);

    /// Events that were lost since the last call.
    fn lost(&self, pid: u32, events: u64);

    /// Blocks below [`certain_from_bytes`](crate::certain_from_bytes) are or were sampled, with
    /// `interval_bytes` of allocated memory between two sampling points on average. Called again when an
    /// interval is longer than any before; events of that interval may come earlier or later than this
    /// call.
    fn sampled(&self, pid: u32, interval_bytes: u64);

    /// CPU time spent on events received until now, in nanoseconds, never decreasing: it counts towards
    /// [`Objects::max_overhead`].
    fn spent_ns(&self) -> u64 {
        0
    }
}
