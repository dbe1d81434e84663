//! Whether all scavengers and the monitor thread are to end, because of a filter on system calls.

use core::sync::atomic::{AtomicBool, Ordering};

/// Set when scavengers are to end.
pub(super) static ENDING: AtomicBool = AtomicBool::new(false);
/// Set when the monitor thread is to end.
pub(super) static MONITOR_ENDING: AtomicBool = AtomicBool::new(false);

/// True if scavengers are to end, and none may have a time slice any more.
pub(crate) fn is_requested() -> bool {
    ENDING.load(Ordering::Acquire)
}

/// True if the monitor thread is to end.
pub(super) fn is_monitor_ending() -> bool {
    MONITOR_ENDING.load(Ordering::Acquire)
}
