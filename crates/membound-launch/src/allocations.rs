//! What programs allocate, as it happens.

use std::sync::Arc;
use std::time::Instant;

/// Whether and how allocations are followed.
#[derive(Clone, Debug)]
pub struct Objects {
    /// All blocks of this many bytes or more are followed. Where blocks are sampled the limit may be higher: see
    /// [`certain_from_bytes`](crate::certain_from_bytes). Smaller ones are sampled when there are very many: see [`AllocationEvent::weight`].
    pub every_from_bytes: u64,
    /// Share of the program's CPU time that following its allocations may cost; sampling keeps
    /// within it.
    pub max_overhead: f64,
    /// Functions beside the usual ones that allocate as `malloc` does and free as `free`
    /// does: pairs of names.
    pub others: Vec<(String, String)>,
    /// Is told.
    pub receiver: Arc<dyn AllocationReceiver>,
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationAction {
    /// It was allocated. A `realloc` is [`Self::Freed`] and then this. A mapping may be put over
    /// another one, which is then gone without an event, and so is a block whose freeing was
    /// lost when its address is allocated anew.
    Allocated,
    /// It was freed, or unmapped: of a mapping perhaps a part. Freed is also told of blocks that
    /// were never told of as allocated.
    Freed,
}

/// One event. A thread's own come in order; across threads they are to be sorted by `tsc`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationEvent {
    /// Time stamp counter: before freeing, after allocating.
    pub tsc: u64,
    /// Thread.
    pub thread: u32,
    /// What happened.
    pub action: AllocationAction,
    /// Which function did it.
    pub function: AllocationFunction,
    /// First byte of the block.
    pub address: u64,
    /// Bytes asked for; of a [`AllocationAction::Freed`] mapping the bytes unmapped, of
    /// other freed blocks 0.
    pub size: u64,
    /// Call chain of the allocation, announced before by [`AllocationReceiver::chain`]; of no
    /// meaning when freed.
    pub chain: u32,
    /// How many blocks of its size and chain an allocation stands for: 1 divided by the probability
    /// with which it was told of. Sums of weights are unbiased. Of no meaning when freed.
    pub weight: f32,
}

/// Functions that allocate or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllocationFunction {
    /// `malloc` and what resembles it.
    Malloc,
    /// `calloc`.
    Calloc,
    /// `realloc`, `reallocarray`.
    Realloc,
    /// `aligned_alloc`, `memalign`, `posix_memalign`, `valloc`, `pvalloc`.
    Aligned,
    /// `mmap`, `mremap`.
    Mmap,
    /// `free` and what resembles it.
    Free,
    /// `munmap`.
    Munmap,
    /// One of [`Objects::others`], by its position.
    Other(u16),
}

/// Is told of allocations, from one thread at a time.
pub trait AllocationReceiver: Send + Sync + std::fmt::Debug {
    /// A process begins to run a program, a new one after an `exec`: nothing of what it had
    /// allocated is there any more. A child of a fork is not told of; it has what its parent
    /// had then. `_since` is when it began.
    fn begun(&self, _pid: u32, _since: Instant) {}

    /// A call chain that events will refer to: return addresses in the process, innermost
    /// first (the caller of the allocating function). Numbers are a process's own; also after
    /// an `exec` none is used anew. None at all: the chain is not known.
    fn chain(&self, pid: u32, chain: u32, addresses: &[u64]);

    /// Events of one process.
    fn receive(&self, pid: u32, events: &[AllocationEvent]);

    /// Events that were lost since the last call.
    fn lost(&self, pid: u32, events: u64);

    /// Of the blocks below [`certain_from_bytes`](crate::certain_from_bytes), some are or were sampled: `interval_bytes` of
    /// allocated memory stand between two sampled points on average. Told again when an interval is
    /// longer than any before; an event of that interval may come earlier or later than this.
    fn sampled(&self, pid: u32, interval_bytes: u64);

    /// CPU time that was spent on what was received until now, in nanoseconds: it counts against
    /// [`Objects::max_overhead`]. It never falls.
    fn spent_ns(&self) -> u64 {
        0
    }
}
