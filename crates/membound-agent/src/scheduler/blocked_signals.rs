//! Threads of the program whose signal mask blocks a signal that scavengers need.
//!
//! The kernel kills a process when one of its threads makes a dispatched system call, or faults, while it
//! blocks the signal that reports it. So a thread has no time slices while its mask has one of these
//! signals. It enters the agent anew whenever its mask changes: by its own call, at the start of a handler
//! or at the handler's end.

use core::sync::atomic::Ordering;

use super::monitor;
use super::ring::announce_room;
use super::thread_slot::ThreadSlot;
use crate::own_signals;

/// Signals that a thread with scavengers must not block: those of faults and dispatched calls, and
/// [`own_signals::CALL`].
const NEEDED: u64 =
    own_signals::mask(&own_signals::OF_SCAVENGERS) | own_signals::mask(&[own_signals::CALL]);

/// True if a thread with this mask cannot be interrupted on behalf of a scavenger.
pub(super) fn blocks_needed_signals(mask: u64) -> bool {
    mask & NEEDED != 0
}

impl ThreadSlot {
    /// Tells the run queue that its thread's mask is `mask` now, or is about to be.
    pub(crate) fn on_mask(&self, mask: u64) {
        if blocks_needed_signals(mask) != (self.signals_blocked.load(Ordering::Relaxed) != 0) {
            self.ask_at_once();
        }
    }

    /// Suspends the run queue until its thread is asked again, and returns its scavengers to their home
    /// threads. Called by the thread itself, with signals blocked.
    pub(super) fn suspend(&'static self) {
        self.locked(|| {
            self.queue().close();
            monitor::empty(self);
            self.signals_blocked.store(1, Ordering::Relaxed);
            self.next.store(0, Ordering::SeqCst);
        });
        announce_room();
    }
}
