//! What a thread slot keeps of its thread's short waits.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// State of a thread's short waits. Times are time stamps, except those named `_ns`.
#[derive(Debug)]
pub(super) struct Waits {
    /// Key of the present wait (see `key_of`); 0: none.
    pub(super) key: AtomicU64,
    pub(super) begun: AtomicU64,
    /// Time stamp of the last entry.
    pub(super) asked: AtomicU64,
    /// Time stamp at which the wait ends, or is left to the kernel.
    pub(super) end: AtomicU64,
    pub(super) polls: AtomicU32,
    /// Of a sleep until a time: that time, in nanoseconds of the kernel's clock `clock`; `u64::MAX`: none.
    pub(super) until_ns: AtomicU64,
    pub(super) clock: AtomicU32,
    /// Consecutive waits that were too long.
    pub(super) long: AtomicU32,
    /// Waits that are left to the kernel before the next one is tried.
    pub(super) pause: AtomicU32,
    /// Judgements for which other threads count as wanting the processor.
    pub(super) paused_judgements: AtomicU32,
    /// The same, the next time.
    pub(super) next_paused_judgements: AtomicU32,
    /// Time for which the thread had waited for a processor by the last judgement.
    pub(super) delay_ns: AtomicU64,
    /// Slices in waits so far.
    pub(super) turns: AtomicU64,
    /// Duration of these waits so far.
    pub(super) waited_ns: AtomicU64,
    /// What the monitor thread has reported of the two.
    pub(super) reported_slices: AtomicU64,
    pub(super) reported_ns: AtomicU64,
}

impl Waits {
    /// Clears the state: the slot is another thread's.
    pub(super) fn forget(&self) {
        for word in [
            &self.key,
            &self.delay_ns,
            &self.turns,
            &self.waited_ns,
            &self.reported_slices,
            &self.reported_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [
            &self.long,
            &self.pause,
            &self.paused_judgements,
            &self.next_paused_judgements,
        ] {
            word.store(0, Ordering::Relaxed);
        }
    }
}
