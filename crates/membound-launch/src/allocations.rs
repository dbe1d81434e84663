//! What programs allocate, as it happens.

use std::sync::Arc;
use std::time::Instant;

/// Whether and how allocations are followed.
#[derive(Clone, Debug)]
pub struct Objects {
    /// Blocks of at least so many bytes are all followed. Smaller ones are followed in part
    /// when there are very many: see [`AllocationEvent::weight`].
    pub every_from_bytes: u64,
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
    /// How many blocks of its kind it stands for (1 when all are followed).
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

    /// From now on fewer of the blocks below [`Objects::every_from_bytes`] are followed: of
    /// those that were allocated before, the ones that are not among `kept` will be freed
    /// without an event, and are best forgotten. Mappings are always kept.
    fn narrowed(&self, pid: u32, kept: Kept);
}

/// Which small blocks are followed: a share of all addresses, the same for allocating and
/// freeing. Of two shares, the smaller one is part of the larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// One block in 2 to this power.
    pub(crate) level: u32,
}

impl Kept {
    /// Whether a small block at `address` is followed.
    #[must_use]
    pub const fn contains(self, address: u64) -> bool {
        membound_wire::allocation_level(address) >= self.level
    }
}
