//! The ring of contexts that a lane goes round: who gets into it and out, and what the thread's next
//! yield finds.

use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use membound_wire::ASK;

use super::berth::{self, Errand};
use super::block::{Block, Context, Use};
use super::{board, has_peers, warden};
use crate::{guest, sys};

/// 1 once a thread of the program's has come to a yield.
pub(super) static YIELDED: AtomicU32 = AtomicU32::new(0);
/// Counts the occasions on which a guest may find a lane.
pub(super) static ROOM: AtomicU32 = AtomicU32::new(0);

/// Looks in a row after which a context that is alone in a ring is sent home: one whose neighbour only makes a
/// call is to stay.
const LONELY_LOOKS: u32 = 2;

/// What [`Block::changing`] is while the thread changes what its next turn is, and when a handler came between.
const CHANGES: u32 = 1;
const INTERRUPTED: u32 = 2;

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
        let begin = self.begin();
        if begin == 0 {
            self.next.store(0, Ordering::SeqCst);
            // Somebody may have become ready, and asked, since it was looked for them.
            if self.owner.load(Ordering::SeqCst) != base {
                self.ask();
            }
            return;
        }
        self.ring.store(begin, Ordering::Relaxed);
        self.set_turns();
        let before = if warden::lets_in() {
            &self.stopwatch
        } else {
            &self.nobody
        };
        self.begin_with(before, begin);
    }

    /// Has turns be as they are to be in stalls.
    pub(super) fn set_turns(&self) {
        if let Some(board) = board() {
            self.span.store(board.span, Ordering::Relaxed);
            self.skips.store(board.skips, Ordering::Relaxed);
        }
    }

    /// The context of its ring that has the next turn: what is next, if that is one of them. Others may have
    /// been put there by a thread that a handler, with turns of its own, came between.
    fn begin(&self) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        let ring = self.ring.load(Ordering::Relaxed);
        let mut at = ring;
        for _ in 0..self.count.load(Ordering::Acquire) {
            if at == next || at == 0 {
                break;
            }
            at = Context::at(at).next.load(Ordering::Relaxed);
        }
        if at == next { next } else { ring }
    }

    /// Has `change` say what the next turn of its own thread is, from what that is now. Where a handler comes
    /// between, in which the thread has had turns, the ring may be another one than it was when `change`
    /// looked at it: then the thread asks. Handlers do the same.
    pub(super) fn change_next(&self, change: impl FnOnce()) {
        let of_interrupted = self.changing.swap(CHANGES, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        change();
        compiler_fence(Ordering::SeqCst);
        if self.changing.load(Ordering::Relaxed) == INTERRUPTED {
            self.ask_at_once();
        }
        self.changing.store(of_interrupted, Ordering::Relaxed);
    }

    /// A handler begins: what its thread is about to change is not to be relied on, now and afterwards.
    pub(super) fn interrupt_change(&self) {
        if self.changing.load(Ordering::Relaxed) != 0 {
            self.changing.store(INTERRUPTED, Ordering::Relaxed);
            self.ask_at_once();
        }
    }

    /// Sends home those that no lane is to have. They are parked: it is the thread's own turn.
    fn send_away(&self) {
        if self.current.load(Ordering::Relaxed) != 0 {
            return;
        }
        let is_lonely = self.is_lonely();
        let mut at = self.ring.load(Ordering::Relaxed);
        for _ in 0..self.count.load(Ordering::Acquire) {
            if at == 0 {
                return;
            }
            let context = Context::at(at);
            at = context.next.load(Ordering::Relaxed);
            let goes = is_lonely || berth::keeps_off_lanes(context);
            if goes && context.resume.load(Ordering::Relaxed) != 0 {
                self.unlink(context);
                berth::send_home(context, 0, Errand::Run);
            }
        }
    }

    /// Whether a context has been alone in the ring for so long that it runs better on its own thread, where
    /// there is no program whose stalls it fills.
    fn is_lonely(&self) -> bool {
        has_peers() && self.lonely_looks.load(Ordering::Relaxed) >= LONELY_LOOKS
    }

    /// Looks whether there is a context alone in the ring.
    pub(super) fn look_for_lonely(&self) {
        if !has_peers() {
            return;
        }
        let is_one = self.count.load(Ordering::Acquire) == 1;
        let looks = self.lonely_looks.load(Ordering::Relaxed);
        let looks = if is_one { looks.saturating_add(1) } else { 0 };
        self.lonely_looks.store(looks, Ordering::Relaxed);
        if looks >= LONELY_LOOKS {
            self.ask();
        }
    }

    /// Takes contexts that lie ready, for as many as it may have.
    fn take_ready(&self) {
        if has_peers() && self.count.load(Ordering::Acquire) + guest::count_ready() < 2 {
            return;
        }
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
            && (!has_peers() || berth::candidates(sys::monotonic_ns()) > 1)
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

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;

    use super::*;

    /// A block whose ring has these contexts.
    fn ring_of(contexts: &[Context]) -> Box<Block> {
        // SAFETY: a block that was never used is all zeroes.
        let block: Box<Block> = unsafe { Box::new_zeroed().assume_init() };
        for context in contexts {
            block.count.fetch_add(1, Ordering::Relaxed);
            block.link(context);
        }
        block
    }

    #[test]
    fn the_next_turn_is_that_of_a_context_of_the_ring() {
        let own = [const { Context::new() }; 3];
        let stranger = Context::new();
        stranger.next.store(stranger.address(), Ordering::Relaxed);
        let block = ring_of(&own);
        for context in &own {
            block.next.store(context.address(), Ordering::Relaxed);
            assert_eq!(block.begin(), context.address());
        }
        for next in [stranger.address(), block.stopwatch.address(), ASK, 0] {
            block.next.store(next, Ordering::Relaxed);
            assert_eq!(block.begin(), own[0].address());
        }
        assert_eq!(ring_of(&[]).begin(), 0);
    }

    /// The thread was about to go on as a context that its handler's turns have sent home since.
    #[test]
    fn a_thread_asks_when_a_handler_had_turns_while_it_changed_the_next_one() {
        let own = [const { Context::new() }; 2];
        let block = ring_of(&own);
        let base = 0x1000;
        block.owner.store(base, Ordering::Relaxed);
        block.change_next(|| {
            let next = own[0].address();
            block.interrupt_change();
            assert_eq!(block.owner.load(Ordering::Relaxed), 0);
            block.unlink(&own[0]);
            // The handler asks at its first yield.
            block.owner.store(base, Ordering::Relaxed);
            block.change_next(|| block.next.store(own[1].address(), Ordering::Relaxed));
            assert_eq!(block.next.load(Ordering::Relaxed), own[1].address());
            block.next.store(next, Ordering::Relaxed);
        });
        let found = [&block.next, &block.owner].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(found, [ASK, 0]);
        // Without a handler it does not, nor does a handler that comes at another time.
        block.change_next(|| block.next.store(own[1].address(), Ordering::Relaxed));
        block.interrupt_change();
        assert_eq!(block.next.load(Ordering::Relaxed), own[1].address());
    }
}
