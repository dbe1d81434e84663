//! Which thread is the monitor thread.

use core::sync::atomic::{AtomicU32, Ordering};

/// Number of the monitor thread; 0: there is none.
pub(super) static THREAD: AtomicU32 = AtomicU32::new(0);

/// True if the monitor thread runs.
pub(super) fn is_running() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// True if `thread` is the monitor thread.
pub(super) fn is_own(thread: u32) -> bool {
    THREAD.load(Ordering::Acquire) == thread
}
