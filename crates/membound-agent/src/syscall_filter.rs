//! Whether this process may be behind a filter on system calls, where the agent must not make any.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// The process whose system calls may be filtered. 0: none. [`ALL`]: every process with this memory or a copy
/// of it, since a forked child inherits filters. Else the number of a child of `vfork`, which has its own.
pub(crate) static FILTERED_PROCESS: AtomicU32 = AtomicU32::new(0);
pub(crate) const ALL: u32 = u32::MAX;

/// True if this process's system calls may be filtered. Makes a system call itself only for children of
/// `vfork`.
pub(crate) fn may_apply() -> bool {
    match FILTERED_PROCESS.load(Ordering::Acquire) {
        0 => false,
        ALL => true,
        child => child == sys::process(),
    }
}
