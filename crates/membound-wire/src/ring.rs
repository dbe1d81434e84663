//! Rings of records, one a thread, shared with the launcher.
//!
//! A [`RingSet`] is followed in memory by its [`Ring`]s. A thread takes a ring by putting
//! its number into `owner` (0 is free) with a compare-and-swap; only the owner writes
//! records and `head`, only the launcher moves `tail`. A full ring loses records and counts
//! them in `lost`: the program never waits.

/// Records a ring holds.
pub const RECORDS: usize = 16382;

/// Leads a set of rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingSet {
    /// Number of [`Ring`]s that follow.
    pub rings: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Records lost because no ring was free.
    pub homeless: u64,
    /// Fills up to the alignment of a ring.
    pub rest: [u64; 6],
}

/// One access.
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
    /// Bit 0: store, where bit 31 of the site number on the stack said so; bit 1: timed
    /// (`ticks` holds); bit 2: accesses of this thread were lost before it; bit 3:
    /// everything is recorded, as in a burst, and this is no sample.
    pub flags: u16,
    /// Ticks of the time stamp counter that a fenced load of the address took, overhead
    /// included; before the access itself.
    pub ticks: u32,
    /// Ticks that a load took in the same way, just before, that the innermost cache served: what
    /// fences and reading the counter cost here and now. 0 when not timed; no more than 65535.
    pub hit: u16,
    /// Ticks until the stores that were under way before it were done. 0 in a burst; no more
    /// than 65535.
    pub drain: u16,
}

/// One thread's ring. Indices run freely; a record lies at index modulo [`RECORDS`].
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
    /// The first: stack pointer of the call that is writing, 0 if none is; the second: not 0
    /// when a record was lost since the last that was written (both the owner's); the third: of
    /// `lost`, those of recording bursts. Reserved, 0.
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
