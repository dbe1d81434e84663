//! The ring of contexts that a lane goes round: who gets into it and out, and what the thread's next
//! yield finds.

use core::sync::atomic::{AtomicU32, Ordering};

use membound_wire::ASK;

use super::berth::{self, Errand};
use super::block::{Block, Context, Use};
use super::{board, warden};
use crate::{guest, sys};

/// 1 once a thread of the program's has come to a yield.
pub(super) static YIELDED: AtomicU32 = AtomicU32::new(0);
/// Counts the occasions on which a guest may find a lane.
pub(super) static ROOM: AtomicU32 = AtomicU32::new(0);

/// Whether a thread of the program's has come to a yield.
pub(super) fn has_yielded() -> bool {
    YIELDED.load(Ordering::Acquire) != 0
}

/// A guest may find a lane.
pub(super) fn announce_room() {
    ROOM.fetch_add(1, Ordering::AcqRel);
    sys::wake_all(&ROOM);
}

impl Block {
    /// Whether a context of the ring is meant.
    pub(super) fn is_member(&self, context: u64) -> bool {
        context > ASK && context != self.stopwatch.address() && context != self.nobody.address()
    }

    /// Takes what it has room for into its ring, and says what the next yield does. By its own
    /// thread, under the lock, between turns.
    pub(super) fn refill(&self) {
        self.send_away();
        let base = self.base.load(Ordering::Relaxed);
        self.open.store(1, Ordering::SeqCst);
        self.owner.store(base, Ordering::SeqCst);
        if YIELDED.swap(1, Ordering::AcqRel) == 0 {
            warden::begin_phases();
        }
        self.take_ready();
        let begin = self.next.load(Ordering::Relaxed);
        let ring = self.ring.load(Ordering::Relaxed);
        if ring == 0 {
            self.next.store(0, Ordering::SeqCst);
            // Somebody may have become ready, and asked, since it was looked for them.
            if self.owner.load(Ordering::SeqCst) != base {
                self.ask();
            }
            return;
        }
        let begin = if self.is_member(begin) { begin } else { ring };
        self.ring.store(begin, Ordering::Relaxed);
        let Some(board) = board() else { return };
        self.span.store(board.span, Ordering::Relaxed);
        let before = if warden::lets_in() {
            &self.stopwatch
        } else {
            &self.nobody
        };
        self.begin_with(before, begin);
    }

    /// Sends home those that no lane is to have. They are parked: it is the thread's own turn.
    fn send_away(&self) {
        if self.current.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut at = self.ring.load(Ordering::Relaxed);
        for _ in 0..self.count.load(Ordering::Acquire) {
            if at == 0 {
                return;
            }
            let context = Context::at(at);
            at = context.next.load(Ordering::Relaxed);
            if berth::keeps_off_lanes(context) && context.resume.load(Ordering::Relaxed) != 0 {
                self.unlink(context);
                berth::send_home(context, 0, Errand::Run);
            }
        }
    }

    /// Takes contexts that lie ready, for as many as it may have.
    fn take_ready(&self) {
        while self.has_room()
            && let Some(context) = guest::take_ready()
        {
            self.count.fetch_add(1, Ordering::AcqRel);
            self.link(context);
        }
    }

    fn has_room(&self) -> bool {
        let most = board().map_or(0, |board| board.per_thread);
        self.count.load(Ordering::Acquire) < most
    }

    /// Nothing is given to it until its thread yields.
    pub(super) fn close(&self) {
        self.open.store(0, Ordering::SeqCst);
        self.ask_at_once();
    }

    /// Makes the thread come to the agent at its next yield.
    pub(super) fn ask(&self) {
        self.owner.store(0, Ordering::SeqCst);
        let _ = self
            .next
            .compare_exchange(0, ASK, Ordering::SeqCst, Ordering::Relaxed);
    }

    fn link(&self, context: &Context) {
        let ring = self.ring.load(Ordering::Relaxed);
        if ring == 0 {
            context.next.store(context.address(), Ordering::Release);
            self.ring.store(context.address(), Ordering::Relaxed);
        } else {
            let member = Context::at(ring);
            context
                .next
                .store(member.next.load(Ordering::Relaxed), Ordering::Release);
            member.next.store(context.address(), Ordering::Release);
        }
    }

    /// Takes a context out of the ring. By the block's own thread, or under the lock while that
    /// is known to be blocked.
    pub(super) fn unlink(&self, context: &Context) {
        let address = context.address();
        let next = context.next.load(Ordering::Relaxed);
        let rest = if next == address {
            0
        } else {
            let mut before = Context::at(next);
            while before.next.load(Ordering::Relaxed) != address {
                before = Context::at(before.next.load(Ordering::Relaxed));
            }
            before.next.store(next, Ordering::Relaxed);
            next
        };
        if self.ring.load(Ordering::Relaxed) == address {
            self.ring.store(rest, Ordering::Relaxed);
        }
        // What the next yield finds: it asks, which also sets right what named this one.
        self.ask_at_once();
        self.count.fetch_sub(1, Ordering::AcqRel);
        announce_room();
    }

    /// As [`Self::ask`], by its own thread: whatever was next is so no longer.
    pub(super) fn ask_at_once(&self) {
        self.next.store(ASK, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }

    /// Whether it would take a context now.
    pub(super) fn takes(&self) -> bool {
        self.used.load(Ordering::Acquire) == Use::Thread as u32
            && self.open.load(Ordering::SeqCst) != 0
            && self.has_room()
    }

    /// The same, and then it is asked to look for one.
    pub(super) fn asked_to_take(&self) -> bool {
        let takes = self.takes();
        if takes {
            self.ask();
        }
        takes
    }
}
