//! Rings of records, one for each thread, shared with the launcher.
//!
//! A [`RingSet`] is followed in memory by its [`Ring`]s. A thread takes a ring by putting its number into
//! `owner` (0 is free) with a compare-and-swap. Only the owner writes records and `head`; only the launcher
//! moves `tail`. A full ring loses records and counts them in `lost`, so that the program never waits.

/// Number of records in a ring.
pub const RECORDS: usize = 16382;

/// Head of a set of rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingSet {
    /// Number of [`Ring`]s that follow.
    pub rings: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Records lost because no ring was free.
    pub homeless: u64,
    /// Padding up to the alignment of a ring.
    pub rest: [u64; 6],
}

/// One recorded access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Time stamp counter when it was recorded.
    pub tsc: u64,
    /// Address accessed.
    pub address: u64,
    /// Site number within its module's plan.
    pub site: u32,
    /// Module number, from [`crate::Slots::module`].
    pub module: u16,
    /// Bit 0: store (bit 31 of the site number on the stack); bit 1: timed (`ticks` is valid); bit 2:
    /// accesses of this thread were lost before it; bit 3: recorded in a burst, and no sample.
    pub flags: u16,
    /// Ticks of the time stamp counter that a fenced load of the address took, overhead included, before
    /// the access itself.
    pub ticks: u32,
    /// Ticks that a load from the innermost cache took in the same way, just before: the cost of fences and
    /// of reading the counter. 0 when not timed; at most 65535.
    pub hit: u16,
    /// Ticks until the outstanding stores before it were done. 0 in a burst; at most 65535.
    pub drain: u16,
}

/// One thread's ring. Indices count on for ever; a record is at its index modulo [`RECORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ring {
    /// Thread that owns it, 0 when free.
    pub owner: u32,
    /// Records lost because it was full.
    pub lost: u32,
    /// Next index to write (owner).
    pub head: u64,
    /// Next index to read (launcher).
    pub tail: u64,
    /// First: stack pointer of the call that is writing, 0 if none is. Second: not 0 if a record was lost
    /// since the last one written (both written by the owner). Third: the part of `lost` that belongs to
    /// bursts. The rest is reserved, 0.
    pub rest: [u64; 5],
    /// The records.
    pub records: [Record; RECORDS],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_without_holes() {
        assert_eq!(size_of::<RingSet>(), 64);
        assert_eq!(size_of::<Record>(), 32);
        assert_eq!(size_of::<Ring>(), 64 + RECORDS * 32);
    }
}
