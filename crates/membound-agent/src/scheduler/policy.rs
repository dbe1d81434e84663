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
