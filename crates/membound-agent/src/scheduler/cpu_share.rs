//! The share of the time that a thread has run since it was last judged.

use core::sync::atomic::{AtomicU64, Ordering};

/// Shares of the time are in units of 1 / `WHOLE`.
pub(super) const WHOLE: u64 = 1024;

/// CPU time of a thread at the last judgement, in nanoseconds; 0: none yet.
#[derive(Debug)]
pub(super) struct JudgedCpuTime(AtomicU64);

impl JudgedCpuTime {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Share of `since_ns` that the thread has run since the last call, if its CPU time is `cpu_ns` now;
    /// `None` at the first call.
    pub(super) fn share(&self, cpu_ns: u64, since_ns: u64) -> Option<u64> {
        let before = self.0.swap(cpu_ns, Ordering::Relaxed);
        let share = cpu_ns.saturating_sub(before).saturating_mul(WHOLE) / since_ns.max(1);
        (before != 0).then(|| share.min(WHOLE))
    }

    /// Forgets the CPU time: the thread is another one.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
