//! Memory in which a program tells of its allocations, shared with the launcher.
//!
//! [`Allocations`] leads it. Behind it lie, where it says, **rings** of events, an **index** of
//! call chains and the chains themselves. All writers are threads of the program and of the
//! children that it forks; the launcher reads, moves the rings' tails and sets
//! [`Allocations::level`]. Both sides use atomics on every word.
//!
//! **Rings.** A thread reserves a record of its ring by moving `head`, fills it in, and
//! writes [`AllocationRecord::what`] last: a record is complete when the lap in it is that of its
//! index. So a handler that interrupts a thread between the two, or a thread that is ended there,
//! costs nothing or one record. The last [`Allocations::shared_rings`] rings are shared by the
//! threads that found none of their own: there a marker with the thread's number precedes
//! every event, both reserved at once.
//!
//! A thread never waits for the launcher: an event that finds no room is counted in
//! [`AllocationRing::lost`] and dropped.
//!
//! **Chains.** A chain is a word with its length (low 16 bits) and the upper half of its
//! hash, then its return addresses, innermost first. Its number is the index of that word among
//! the words of all chains. The index is an open hash table of words: the upper half of the hash,
//! then the chain's number; 0 is free. A chain is complete before its number is in the index.
//!
//! **Levels.** At level 0 every block is told of. At a level above 0 blocks below
//! [`certain_from_bytes`] are sampled as heap profilers do it: points lie on the sequence
//! of allocated bytes at random, [`allocation_interval`] bytes apart on average (a Poisson
//! process), and a block is told of when a point lies in its [`allocation_span`]. Each event carries the
//! level that decided, from which the launcher computes how many blocks the event stands for. The end of a
//! block is told of if, and only if, the block was.

/// Leads the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Allocations {
    /// Rings.
    pub rings: u32,
    /// How many of them, the last ones, are shared.
    pub shared_rings: u32,
    /// What decides which small blocks are told of, 0 to [`ALLOCATION_LEVELS`]: see
    /// [`allocation_interval`].
    pub level: u32,
    /// Most return addresses of a chain.
    pub depth: u32,
    /// All blocks of this many bytes or more are followed. At high levels the limit is higher: see [`certain_from_bytes`].
    pub every_from_bytes: u64,
    /// Byte offset of the first ring.
    pub rings_offset: u64,
    /// Byte offset of the index of chains.
    pub index_offset: u64,
    /// Words of the index, a power of two.
    pub index_words: u64,
    /// Byte offset of the chains' words.
    pub chains_offset: u64,
    /// Words for chains; word 0 belongs to none, and number 0 says that a chain is not known.
    pub chains_words: u64,
    /// First word that no chain has taken; at least 1.
    pub chains_used: u64,
    /// Events lost because there was no ring.
    pub homeless: u64,
    /// Chains that were not kept because there was no room.
    pub unkept: u64,
    /// Time stamp ticks that the program's threads spent on telling of
    /// [`Allocations::timed`] allocations, the allocating functions themselves included.
    pub timed_ticks: u64,
    /// Allocations that were timed: a few of all.
    pub timed: u64,
    /// Fills up to the alignment of a ring.
    pub rest: [u64; 3],
}

/// Records a ring holds.
pub const ALLOCATION_RECORDS: usize = 1 << 17;

/// One event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationRecord {
    /// Time stamp counter.
    pub tsc: u64,
    /// First byte of the block; of a marker the thread's number.
    pub address: u64,
    /// Bytes; of a marker the number of the process, as it sees itself.
    pub size: u64,
    /// Number of the call chain.
    pub chain: u32,
    /// [`AllocationWhat`] packed.
    pub what: u32,
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationWhat {
    /// Which function, by the number that the plan gave to it.
    pub function: u8,
    /// An [`AllocationKind`] as its number.
    pub kind: u8,
    /// Level that decided whether the block is told of; 0: it was certain.
    pub level: u8,
    /// Lap of the record's index: see [`AllocationWhat::lap_of`].
    pub lap: u16,
}

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AllocationKind {
    /// A block was allocated.
    Allocated = 0,
    /// A block was freed.
    Freed = 1,
    /// What follows is of another thread.
    Thread = 2,
}

impl AllocationWhat {
    /// The word for a record.
    #[must_use]
    pub const fn packed(self) -> u32 {
        self.function as u32
            | (self.kind as u32 & 3) << 8
            | (self.level as u32 & 15) << 10
            | (self.lap as u32) << 16
    }

    /// What the word of a record says.
    #[must_use]
    pub const fn of(word: u32) -> Self {
        Self {
            function: word as u8,
            kind: (word >> 8 & 3) as u8,
            level: (word >> 10 & 15) as u8,
            lap: (word >> 16) as u16,
        }
    }

    /// The lap of a record with this index: never that of memory that was not written yet, in
    /// the first one.
    #[must_use]
    pub const fn lap_of(index: u64) -> u16 {
        (index / ALLOCATION_RECORDS as u64 + 1) as u16
    }
}

/// A ring. Indices run freely; a record lies at index modulo [`ALLOCATION_RECORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationRing {
    /// Thread that owns it, 0 when free; of no meaning where it is shared.
    pub owner: u32,
    /// Events lost because it was full.
    pub lost: u32,
    /// Next index to reserve (writers).
    pub head: u64,
    /// Apart from what the launcher writes.
    pub rest: [u64; 6],
    /// Next index to read (launcher).
    pub tail: u64,
    /// As `rest`.
    pub more: [u64; 7],
    /// The records.
    pub records: [AllocationRecord; ALLOCATION_RECORDS],
}

/// Highest level.
pub const ALLOCATION_LEVELS: u32 = 15;

/// Mean distance in bytes of the points that decide which blocks are told of at a level; 0: every
/// block is told of.
#[must_use]
pub const fn allocation_interval(level: u32) -> u64 {
    match level {
        0 => 0,
        ALLOCATION_LEVELS.. => 32 << ALLOCATION_LEVELS,
        level => 32 << level,
    }
}

/// Size from which on blocks are told of for certain while others are at an interval, where those from `wanted` bytes on
/// are to be: blocks that are much of the interval are told of at most points anyway, and following all smaller ones may
/// cost more than the interval spares.
#[must_use]
pub const fn certain_from_bytes(interval_bytes: u64, wanted: u64) -> u64 {
    let part = interval_bytes / 4;
    if part > wanted { part } else { wanted }
}

/// Bytes that a block of `size` bytes takes of the sequence on which the points lie. Blocks of no
/// bytes take some too, or none of them would ever be told of.
#[must_use]
pub const fn allocation_span(size: u64) -> u64 {
    size.saturating_add(ALLOCATION_EXTRA_BYTES)
}

/// What [`allocation_span`] adds to a block's size.
pub const ALLOCATION_EXTRA_BYTES: u64 = 16;

/// What wrapped functions are, as the low half of the number that a plan gives to each; the high
/// half is the number of the function in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum WrapKind {
    /// `f(size)`.
    Sized = 1,
    /// `f(count, size)`.
    Counted = 2,
    /// `f(block, size)`.
    Resized = 3,
    /// `f(block, count, size)`.
    ResizedCounted = 4,
    /// `f(alignment, size)`.
    Aligned = 5,
    /// `f(&block, alignment, size)`, 0 when it was done.
    AlignedInto = 6,
    /// `f(block, size, alignment)`.
    ResizedAligned = 7,
    /// `f(block)` frees, and calls no other wrapped function.
    Free = 8,
    /// `f(block)` frees, perhaps by calling another one.
    FreeOuter = 9,
    /// `mmap`.
    Map = 10,
    /// `munmap`.
    Unmap = 11,
    /// `mremap`.
    Remap = 12,
    /// `f(descriptor, …)` receives, and says how many bytes, below 1 for none. It and those that
    /// follow serve [`crate::Requests`].
    Receive = 13,
    /// `f(descriptor, …)` receives messages, and says in an `int` how many.
    ReceiveMany = 14,
    /// `f(descriptor, …)` sends.
    Send = 15,
    /// `f(from, offset, descriptor, …)` sends.
    SendThird = 16,
    /// `f(descriptor, …)` closes.
    Close = 17,
    /// `f(old, descriptor, …)` makes the descriptor another one.
    Replace = 18,
    /// `f(…)` gives a new descriptor.
    Open = 19,
    /// `f(domain, type, protocol, descriptors)` gives two new ones.
    OpenTwo = 20,
    /// `f(first, last, …)` closes all from the first to the last.
    CloseRange = 21,
    /// `f(first)` closes all from it on.
    CloseFrom = 22,
}

impl WrapKind {
    /// Whether a function with this number serves [`crate::Requests`].
    #[must_use]
    pub const fn is_of_requests(number: u32) -> bool {
        Self::of_requests(number).is_some()
    }

    /// The kind of a function with this number that serves [`crate::Requests`].
    #[must_use]
    pub const fn of_requests(number: u32) -> Option<Self> {
        Some(match number & 0xffff {
            13 => Self::Receive,
            14 => Self::ReceiveMany,
            15 => Self::Send,
            16 => Self::SendThird,
            17 => Self::Close,
            18 => Self::Replace,
            19 => Self::Open,
            20 => Self::OpenTwo,
            21 => Self::CloseRange,
            22 => Self::CloseFrom,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_without_holes() {
        assert_eq!(size_of::<Allocations>(), 128);
        assert_eq!(size_of::<AllocationRecord>(), 32);
        assert_eq!(
            size_of::<AllocationRing>(),
            128 + ALLOCATION_RECORDS * size_of::<AllocationRecord>()
        );
    }

    #[test]
    fn kinds_of_requests_have_their_numbers() {
        for number in 0..100 {
            let kind = WrapKind::of_requests(0x0007_0000 + number);
            let is_one = (WrapKind::Receive as u32..=WrapKind::CloseFrom as u32).contains(&number);
            assert_eq!(kind.is_some(), is_one, "{number}");
            assert!(kind.is_none_or(|kind| kind as u32 == number), "{kind:?}");
        }
    }

    #[test]
    fn a_word_gives_back_what_was_packed() {
        for lap in [1, 2, 65535, 0] {
            let what = AllocationWhat {
                function: 200,
                kind: AllocationKind::Thread as u8,
                level: 15,
                lap,
            };
            assert_eq!(AllocationWhat::of(what.packed()), what);
        }
        assert_eq!(AllocationWhat::lap_of(0), 1);
        assert_eq!(AllocationWhat::lap_of(ALLOCATION_RECORDS as u64), 2);
    }

    #[test]
    fn each_level_tells_of_half_as_many_blocks_as_the_one_below() {
        assert_eq!(allocation_interval(0), 0);
        for level in 2..=ALLOCATION_LEVELS {
            assert_eq!(
                allocation_interval(level),
                2 * allocation_interval(level - 1)
            );
        }
        assert_eq!(
            allocation_interval(u32::MAX),
            allocation_interval(ALLOCATION_LEVELS)
        );
        assert_eq!(allocation_span(0), ALLOCATION_EXTRA_BYTES);
        assert_eq!(allocation_span(u64::MAX), u64::MAX);
    }
}
