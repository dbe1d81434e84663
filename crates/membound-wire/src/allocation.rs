//! Memory in which a program reports its allocations, shared with the launcher.
//!
//! [`Allocations`] is its head. Its offsets locate **rings** of events, an **index** of call chains and the
//! chains themselves. Threads of the program, and of the children that it forks, are the writers; the
//! launcher reads, moves the rings' tails and sets [`Allocations::level`]. Both sides access every word
//! atomically.
//!
//! **Rings.** A thread reserves a record of its ring by moving `head`, fills it in, and writes
//! [`AllocationRecord::what`] last: a record is complete when the lap in it is that of its index. So a
//! handler that interrupts a thread between the two, or a thread that ends there, loses at most one record.
//! The last [`Allocations::shared_rings`] rings are shared by the threads that found no free ring: there a
//! marker with the thread's number precedes every event, and both are reserved at once.
//!
//! A thread never waits for the launcher: an event that finds no room is counted in
//! [`AllocationRing::lost`] and dropped.
//!
//! **Chains.** A chain is a word with its length (low 16 bits) and the upper half of its
//! hash, then its return addresses, innermost first. Its number is the index of that word among
//! the words of all chains. The index is an open hash table of words: the upper half of the hash,
//! then the chain's number; 0 is free. A chain is complete before its number is in the index.
//!
//! **Levels.** At level 0 every block is reported. At a higher level blocks below [`certain_from_bytes`]
//! are sampled as heap profilers do it: points lie on the sequence of allocated bytes at random,
//! [`allocation_interval`] bytes apart on average (a Poisson process), and a block is reported when a point
//! lies in its [`allocation_span`]. Each event carries the level that decided, from which the launcher
//! computes how many blocks the event represents. The free of a block is reported if, and only if, its
//! allocation was.

/// Head of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Allocations {
    /// Number of rings.
    pub rings: u32,
    /// Number of them, the last ones, that are shared.
    pub shared_rings: u32,
    /// Sampling level of small blocks, 0 to [`ALLOCATION_LEVELS`]: see [`allocation_interval`].
    pub level: u32,
    /// Most return addresses of a chain.
    pub depth: u32,
    /// All blocks of this many bytes or more are reported. At high levels the limit is higher: see
    /// [`certain_from_bytes`].
    pub every_from_bytes: u64,
    /// Byte offset of the first ring.
    pub rings_offset: u64,
    /// Byte offset of the index of chains.
    pub index_offset: u64,
    /// Number of words of the index, a power of two.
    pub index_words: u64,
    /// Byte offset of the chains' words.
    pub chains_offset: u64,
    /// Words for chains; word 0 belongs to none, and number 0 means that a chain is not known.
    pub chains_words: u64,
    /// First word that no chain has taken; at least 1.
    pub chains_used: u64,
    /// Events lost because there was no ring.
    pub homeless: u64,
    /// Chains that were not stored because there was no room.
    pub unkept: u64,
    /// Time stamp ticks that the program's threads spent on [`Allocations::timed`] reported allocations,
    /// including the allocating functions themselves.
    pub timed_ticks: u64,
    /// Allocations whose duration was measured: a small part of all.
    pub timed: u64,
    /// Padding up to the alignment of a ring.
    pub rest: [u64; 3],
}

/// Number of records in a ring.
pub const ALLOCATION_RECORDS: usize = 1 << 17;

/// One event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationRecord {
    /// Time stamp counter.
    pub tsc: u64,
    /// First byte of the block; in a marker the thread's number.
    pub address: u64,
    /// Size of the block in bytes; in a marker the number of the process in its own namespace.
    pub size: u64,
    /// Number of the call chain.
    pub chain: u32,
    /// [`AllocationWhat`] packed.
    pub what: u32,
}

/// The fields of [`AllocationRecord::what`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationWhat {
    /// Number of the allocating or freeing function, from the plan.
    pub function: u8,
    /// An [`AllocationKind`] as its number.
    pub kind: u8,
    /// Level at which the block was reported; 0: it was certain.
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
    /// Marker: the following events are those of another thread.
    Thread = 2,
}

impl AllocationWhat {
    /// Packs the fields into the word of a record.
    #[must_use]
    pub const fn packed(self) -> u32 {
        self.function as u32
            | (self.kind as u32 & 3) << 8
            | (self.level as u32 & 15) << 10
            | (self.lap as u32) << 16
    }

    /// Unpacks the word of a record.
    #[must_use]
    pub const fn of(word: u32) -> Self {
        Self {
            function: word as u8,
            kind: (word >> 8 & 3) as u8,
            level: (word >> 10 & 15) as u8,
            lap: (word >> 16) as u16,
        }
    }

    /// The lap of a record with this index. In the first lap it differs from the 0 of memory that was never
    /// written.
    #[must_use]
    pub const fn lap_of(index: u64) -> u16 {
        (index / ALLOCATION_RECORDS as u64 + 1) as u16
    }
}

/// A ring. Indices count on for ever; a record is at its index modulo [`ALLOCATION_RECORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationRing {
    /// Thread that owns it, 0 when free; without meaning in a shared ring.
    pub owner: u32,
    /// Events lost because it was full.
    pub lost: u32,
    /// Next index to reserve (writers).
    pub head: u64,
    /// Padding: keeps the writers' words in another cache line than the launcher's.
    pub rest: [u64; 6],
    /// Next index to read (launcher).
    pub tail: u64,
    /// Padding, as `rest`.
    pub more: [u64; 7],
    /// The records.
    pub records: [AllocationRecord; ALLOCATION_RECORDS],
}

/// Highest sampling level.
pub const ALLOCATION_LEVELS: u32 = 15;

/// Mean distance in bytes of the sampling points at a level; 0: every block is reported.
#[must_use]
pub const fn allocation_interval(level: u32) -> u64 {
    match level {
        0 => 0,
        ALLOCATION_LEVELS.. => 32 << ALLOCATION_LEVELS,
        level => 32 << level,
    }
}

/// Size in bytes from which blocks are certainly reported, where the others are sampled at `interval_bytes`
/// and those from `wanted` on should be certain. Blocks of a large part of the interval are reported at
/// most points anyway, and reporting all smaller ones may cost more than the interval saves.
#[must_use]
pub const fn certain_from_bytes(interval_bytes: u64, wanted: u64) -> u64 {
    let part = interval_bytes / 4;
    if part > wanted { part } else { wanted }
}

/// Bytes that a block of `size` bytes takes in the sequence with the sampling points. Blocks of no bytes
/// take some too, since they would otherwise never be reported.
#[must_use]
pub const fn allocation_span(size: u64) -> u64 {
    size.saturating_add(ALLOCATION_EXTRA_BYTES)
}

/// What [`allocation_span`] adds to a block's size.
pub const ALLOCATION_EXTRA_BYTES: u64 = 16;

/// Kinds of wrapped functions: the low half of the number that a plan gives to each. The high half is the
/// number of the function in records.
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
    /// `f(&block, alignment, size)`, which returns 0 for success.
    AlignedInto = 6,
    /// `f(block, size, alignment)`.
    ResizedAligned = 7,
    /// `f(block)` frees, and calls no other wrapped function.
    Free = 8,
    /// `f(block)` frees, perhaps by calling another wrapped function.
    FreeOuter = 9,
    /// `mmap`.
    Map = 10,
    /// `munmap`.
    Unmap = 11,
    /// `mremap`.
    Remap = 12,
    /// `f(descriptor, …)` receives, and returns the number of bytes, below 1 for none. This kind and the
    /// following ones serve [`crate::Requests`].
    Receive = 13,
    /// `f(descriptor, …)` receives messages, and returns their number as an `int`.
    ReceiveMany = 14,
    /// `f(descriptor, …)` sends.
    Send = 15,
    /// `f(from, offset, descriptor, …)` sends.
    SendThird = 16,
    /// `f(descriptor, …)` closes.
    Close = 17,
    /// `f(old, descriptor, …)` makes `descriptor` a copy of another one.
    Replace = 18,
    /// `f(…)` returns a new descriptor.
    Open = 19,
    /// `f(domain, type, protocol, descriptors)` makes two new ones.
    OpenTwo = 20,
    /// `f(first, last, …)` closes all from `first` to `last`.
    CloseRange = 21,
    /// `f(first)` closes all from `first` on.
    CloseFrom = 22,
}

impl WrapKind {
    /// True if a function with this number serves [`crate::Requests`].
    #[must_use]
    pub const fn is_of_requests(number: u32) -> bool {
        Self::of_requests(number).is_some()
    }

    /// The kind of a function with this number, if it serves [`crate::Requests`].
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
