//! Threads of the program that block signals by which guests leave them.
//!
//! The kernel kills a process one of whose threads makes a call that is dispatched, or a fault, while
//! it blocks the signal of that. So a thread has no turns while its mask has one of these; it is asked
//! anew whenever the mask changes, by itself, at the begin of a handler or at its end.

use core::sync::atomic::Ordering;

use super::block::Block;
use super::ring::announce_room;
use super::{here, warden};
use crate::{sys, trap};

/// Signals that must come to a thread on which guests run.
const NEEDED: u64 = trap::mask(&trap::OF_GUESTS) | trap::mask(&[trap::CALL]);

/// Whether a thread with this mask hears no guest.
pub(super) fn is_deaf(mask: u64) -> bool {
    mask & NEEDED != 0
}

/// Whether the calling thread has a lane of its own.
pub(crate) fn matters() -> bool {
    own().is_some()
}

/// The mask of the calling thread is this now, or is about to be.
pub(crate) fn on_mask(mask: u64) {
    if let Some(block) = own()
        && is_deaf(mask) != (block.deaf.load(Ordering::Relaxed) != 0)
    {
        block.ask_at_once();
    }
}

fn own() -> Option<&'static Block> {
    let block = Block::of_thread()?;
    let is_own = here() && block.thread.load(Ordering::Acquire) == sys::thread();
    is_own.then_some(block)
}

impl Block {
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
