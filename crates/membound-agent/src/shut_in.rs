//! Whether this process may be behind a filter on system calls, where the agent must not make any.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Who is behind a filter. 0: no process. [`ALL`]: every process with this memory or a copy of it, as a
/// forked child inherits filters. Else the number of a child of `vfork`, whose filters are its own.
pub(crate) static SHUT_IN: AtomicU32 = AtomicU32::new(0);
pub(crate) const ALL: u32 = u32::MAX;

/// True if this process's system calls may be filtered. Makes a system call itself only for children of
/// `vfork`.
pub(crate) fn shut_in() -> bool {
    match SHUT_IN.load(Ordering::Acquire) {
        0 => false,
        ALL => true,
        child => child == sys::process(),
    }
}
