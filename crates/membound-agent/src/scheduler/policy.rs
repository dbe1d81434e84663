//! The scheduling policy of home threads.

use super::page::has_peers;
use crate::sys::{call, check};

pub(super) const SCHED_OTHER: usize = 0;
pub(super) const SCHED_IDLE: usize = 5;

/// Sets the scheduling policy of a thread (0: the calling one). The kernel lets only a privileged thread leave
/// `SCHED_IDLE`; for others the policy stays as it is. Without a primary this does nothing.
pub(super) fn schedule(thread: u32, policy: usize) {
    if has_peers() {
        return;
    }
    const SET_SCHEDULER: usize = 144;
    let priority = 0_u32;
    // SAFETY: the kernel reads one word.
    let set = unsafe {
        call(
            SET_SCHEDULER,
            [
                thread as usize,
                policy,
                (&raw const priority) as usize,
                0,
                0,
                0,
            ],
        )
    };
    let _ = check(set);
}

/// Niceness of the lowest priority.
pub(super) const LOWEST_PRIORITY_NICENESS: isize = 19;

/// Sets the niceness of a thread. Where the kernel refuses it, the thread's niceness stays.
pub(super) fn set_niceness(thread: u32, niceness: isize) {
    const SET_PRIORITY: usize = 141;
    // SAFETY: it touches no memory.
    let _ = unsafe {
        call(
            SET_PRIORITY,
            [0, thread as usize, niceness.cast_unsigned(), 0, 0, 0],
        )
    };
}

/// The calling thread's niceness.
pub(super) fn own_niceness() -> Option<isize> {
    const GET_PRIORITY: usize = 140;
    // SAFETY: it touches no memory.
    let found = unsafe { call(GET_PRIORITY, [0; 6]) };
    // The kernel returns 20 minus the niceness, which is never negative.
    check(found).ok().map(|found| 20 - found.cast_signed())
}
