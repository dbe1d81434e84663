//! Rings of timer samples, one for each thread, shared with the launcher.
//!
//! A [`TickSet`] is followed in memory by its [`TickRing`]s. A ring is taken for a thread by putting the
//! thread's number into `owner` (0 is free) with a compare-and-swap. Only that thread writes samples and
//! `head`; only the launcher moves `tail`. A sample is a run of words that never crosses the ring's end:
//! [`TICK_HEAD_WORDS`] and then the return addresses. A full ring loses samples and counts them; their CPU
//! time goes to the next sample.

/// Number of words in a ring.
pub const TICK_WORDS: usize = 4096 - 16;
/// Words of a sample before its return addresses: [`TickHead`], time stamp, weight, sixteen general
/// registers by their numbers, and the instruction pointer.
pub const TICK_HEAD_WORDS: usize = 20;
/// Most return addresses of a sample.
pub const TICK_DEPTH: usize = 64;
/// Most entries of [`TickSet::refused`].
pub const TICK_REFUSALS: usize = 16;
/// Owner of a ring whose thread has ended: the launcher empties and frees it.
pub const TICK_ORPHAN: u32 = u32::MAX;

/// Head of a set of rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TickSet {
    /// Number of [`TickRing`]s that follow.
    pub rings: u32,
    /// Not 0 when timers must be deleted and none made any more; written by the launcher.
    pub stopped: u32,
    /// Heartbeat: counts up while the launcher is there; written by the launcher.
    pub heartbeat: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// CPU time that the control threads have used, in nanoseconds.
    pub own_ns: u64,
    /// Threads without timers, with the kernel's error number.
    pub refused: [Refused; TICK_REFUSALS],
    /// Padding up to the alignment of a ring.
    pub rest: [u64; 13],
}

/// A thread without a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Refused {
    /// Number of the thread; 0: no entry yet; [`Refused::ALL`]: all threads.
    pub thread: u32,
    /// The kernel's error number; 0: the program uses every signal itself.
    pub errno: u32,
}

impl Refused {
    /// No thread of the process has a timer any more.
    pub const ALL: u32 = u32::MAX;
}

/// One thread's ring. Indices count words and count on for ever; a word is at its index modulo
/// [`TICK_WORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TickRing {
    /// Thread that owns it, 0 when free, [`TICK_ORPHAN`] when it has ended.
    pub owner: u32,
    /// Samples lost because it was full.
    pub lost: u32,
    /// Next index to write (owner).
    pub head: u64,
    /// Next index to read (launcher).
    pub tail: u64,
    /// CPU time of the thread at its last sample, in nanoseconds; written by the owner.
    pub clock_ns: u64,
    /// Identifier of the thread's timer.
    pub timer: u32,
    /// [`TickSet::heartbeat`] as the owner last saw it.
    pub heartbeat: u32,
    /// CPU time of the owner when it saw a new one, in nanoseconds.
    pub heartbeat_ns: u64,
    /// Reserved, 0.
    pub rest: [u64; 10],
    /// The samples.
    pub words: [u64; TICK_WORDS],
}

/// The first word of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickHead {
    /// Words of the sample, this one included.
    pub words: u16,
    /// Bits: [`TickHead::FILLER`], [`TickHead::INSIDE`].
    pub flags: u16,
    /// CPU that the thread ran on; `u16::MAX`: unknown.
    pub cpu: u16,
}

impl TickHead {
    /// Not a sample: the ring continues at its start.
    pub const FILLER: u16 = 1;
    /// The thread was in the agent or in a trampoline's own code.
    pub const INSIDE: u16 = 2;

    /// Packs the fields into a word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.words as u64 | (self.flags as u64) << 16 | (self.cpu as u64) << 32
    }

    /// Unpacks a word.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self {
            words: word as u16,
            flags: (word >> 16) as u16,
            cpu: (word >> 32) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_without_holes() {
        assert_eq!(size_of::<TickSet>(), 256);
        assert_eq!(size_of::<TickRing>(), 32 << 10);
        assert_eq!(core::mem::offset_of!(TickRing, words), 128);
    }

    #[test]
    fn heads_come_back_from_their_words() {
        let head = TickHead {
            words: 84,
            flags: TickHead::INSIDE,
            cpu: u16::MAX,
        };
        assert_eq!(TickHead::of(head.word()), head);
    }
}
