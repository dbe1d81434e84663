//! Threads of the program that block signals by which guests leave them.
//!
//! The kernel kills a process one of whose threads makes a call that is dispatched, or a fault, while
//! it blocks the signal of that. So a thread has no turns while its mask has one of these; it is asked
//! anew whenever the mask changes, by itself, at the begin of a handler or at its end.

use core::sync::atomic::Ordering;

use super::block::Block;
use super::ring::announce_room;
use super::warden;
use crate::trap;

/// Signals that must come to a thread on which guests run.
const NEEDED: u64 = trap::mask(&trap::OF_GUESTS) | trap::mask(&[trap::CALL]);

/// Whether a thread with this mask hears no guest.
pub(super) fn is_deaf(mask: u64) -> bool {
    mask & NEEDED != 0
}

impl Block {
    /// Its thread's mask is this now, or is about to be.
    pub(crate) fn on_mask(&self, mask: u64) {
        if is_deaf(mask) != (self.deaf.load(Ordering::Relaxed) != 0) {
            self.ask_at_once();
        }
    }

    /// The thread has no turns until it is asked again; its guests are for others. By itself, with
    /// signals blocked.
    pub(super) fn hush(&'static self) {
        self.locked(|| {
            self.open.store(0, Ordering::SeqCst);
            warden::empty(self);
            self.deaf.store(1, Ordering::Relaxed);
            self.next.store(0, Ordering::SeqCst);
        });
        announce_room();
    }
}
