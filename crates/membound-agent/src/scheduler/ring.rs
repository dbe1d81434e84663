//! The ring of contexts of a run queue: which contexts enter and leave it, and what the thread's next yield
//! finds.

use core::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use membound_wire::ASK;

use super::handover::{self, PendingRequest};
use super::page::{control_page, has_peers};
use super::thread_slot::{Context, ThreadSlot, Use};
use super::{admission, home_threads};
use crate::scavenger::table;
use crate::sys;

const _: () = assert!(membound_sync::queue::ASK == ASK);

/// 1 once a thread of the program has come to a yield.
pub(super) static YIELDED: AtomicU32 = AtomicU32::new(0);
/// Futex word: counts the occasions on which a scavenger may find a run queue with room.
pub(super) static ROOM_EVENTS: AtomicU32 = AtomicU32::new(0);

/// Consecutive polls after which a context that is alone in a ring returns to its home thread. More than
/// one, since a neighbour may be away only for a system call.
const LONELY_POLLS: u32 = 2;

/// Values of [`ThreadSlot::changing`]: the thread is changing what its next slice is.
const CHANGES: u32 = 1;
/// The same, and a handler has interrupted it.
const INTERRUPTED: u32 = 2;

/// True if a thread of the program has come to a yield.
pub(super) fn has_yielded() -> bool {
    YIELDED.load(Ordering::Acquire) != 0
}

/// Wakes home threads that wait for a run queue with room.
pub(super) fn announce_room() {
    membound_sync::handover::announce_room(&ROOM_EVENTS);
    sys::wake_all(&ROOM_EVENTS);
}

impl ThreadSlot {
    /// True if this value of `next` or `current` is a context of the ring.
    pub(super) fn is_member(&self, context: u64) -> bool {
        context > ASK
            && context != self.stopwatch.address()
            && context != self.empty_slice.address()
    }

    /// Takes as many contexts as there is room for, and sets what the next yield finds. Called by the
    /// thread itself, under the lock, between slices.
    pub(super) fn refill(&self) {
        self.send_away();
        let base = self.base.load(Ordering::Relaxed);
        // Before `take_ready` looks.
        self.queue().open(base);
        if YIELDED.swap(1, Ordering::AcqRel) == 0 {
            admission::begin_phases();
        }
        self.take_ready();
        let begin = self.begin();
        if begin == 0 {
            self.queue().stay_empty(base);
            return;
        }
        self.ring.store(begin, Ordering::Relaxed);
        self.set_stall_slices();
        let before = if admission::are_admitted() {
            &self.stopwatch
        } else {
            &self.empty_slice
        };
        self.begin_with(before, begin);
    }

    /// Sets span and skips of the slices in stalls, as opposed to those in waits.
    pub(super) fn set_stall_slices(&self) {
        if let Some(control_page) = control_page() {
            self.span.store(control_page.span, Ordering::Relaxed);
            self.skips.store(control_page.skips, Ordering::Relaxed);
        }
    }

    /// The context that has the next slice: `next` if that is in the ring, else the ring's first. `next`
    /// may name another context where a handler, with slices of its own, interrupted a change of it.
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

    /// Lets `change` decide the thread's next slice from the present one. A handler that interrupts
    /// `change` may itself have time slices, after which the ring may differ from what `change` has read;
    /// then the thread asks the agent instead. Handlers use this too. Relaxed accesses and compiler fences
    /// suffice, since a handler runs on the same thread.
    pub(super) fn change_next(&self, change: impl FnOnce()) {
        let previous = self.changing.swap(CHANGES, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        change();
        compiler_fence(Ordering::SeqCst);
        if self.changing.load(Ordering::Relaxed) == INTERRUPTED {
            self.ask_at_once();
        }
        self.changing.store(previous, Ordering::Relaxed);
    }

    /// A handler begins: if it interrupts a change of the next slice, the thread asks now, and again after
    /// the change.
    pub(super) fn interrupt_change(&self) {
        if self.changing.load(Ordering::Relaxed) != 0 {
            self.changing.store(INTERRUPTED, Ordering::Relaxed);
            self.ask_at_once();
        }
    }

    /// Returns the contexts that no run queue may have to their home threads. They are parked, since the
    /// thread itself runs.
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
            let must_leave = is_lonely || home_threads::is_barred_from_run_queues(context);
            if must_leave && context.resume.load(Ordering::Relaxed) != 0 {
                self.unlink(context);
                handover::return_home(context, 0, PendingRequest::Run);
            }
        }
    }

    /// True if a context has been alone in the ring for so long that it should run on its home thread, in a
    /// process without a primary whose stalls it could fill.
    fn is_lonely(&self) -> bool {
        has_peers() && self.lonely_polls.load(Ordering::Relaxed) >= LONELY_POLLS
    }

    /// Counts polls that find a single context in the ring, and asks the thread when they are enough.
    pub(super) fn count_lonely_polls(&self) {
        if !has_peers() {
            return;
        }
        let is_single = self.count.load(Ordering::Acquire) == 1;
        let polls = self.lonely_polls.load(Ordering::Relaxed);
        let polls = if is_single {
            polls.saturating_add(1)
        } else {
            0
        };
        self.lonely_polls.store(polls, Ordering::Relaxed);
        if polls >= LONELY_POLLS {
            self.ask();
        }
    }

    /// Takes ready contexts, up to the limit of the run queue.
    fn take_ready(&self) {
        if has_peers() && self.count.load(Ordering::Acquire) + table::count_ready() < 2 {
            return;
        }
        while self.has_room()
            && let Some(context) = table::take_ready()
        {
            self.count.fetch_add(1, Ordering::AcqRel);
            self.link(context);
        }
    }

    fn has_room(&self) -> bool {
        let most = control_page().map_or(0, |control_page| control_page.per_thread);
        self.count.load(Ordering::Acquire) < most
    }

    /// Closes the run queue: no contexts are given to it until its thread yields.
    pub(super) fn close(&self) {
        self.queue().close();
        self.ask_at_once();
    }

    /// Makes the thread enter the agent at its next yield. Called by any thread.
    pub(super) fn ask(&self) {
        self.queue().ask();
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

    /// Takes a context out of the ring. Called by the slot's own thread, or under the lock while the kernel
    /// has that thread blocked.
    pub(super) fn unlink(&self, context: &Context) {
        let address = context.address();
        let next = context.next.load(Ordering::Relaxed);
        let remaining = if next == address {
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
            self.ring.store(remaining, Ordering::Relaxed);
        }
        // `next` may still name this context: the next yield asks the agent, which sets `next` anew.
        self.ask_at_once();
        self.count.fetch_sub(1, Ordering::AcqRel);
        announce_room();
    }

    /// As [`Self::ask`], by the slot's own thread, whatever `next` was.
    pub(super) fn ask_at_once(&self) {
        self.queue().ask_at_once();
    }

    /// True if the run queue would take a context now.
    pub(super) fn can_take(&self) -> bool {
        self.used.load(Ordering::Acquire) == Use::Thread as u32
            && self.queue().is_open()
            && self.has_room()
            && (!has_peers() || home_threads::candidates(sys::monotonic_ns()) > 1)
    }

    /// As [`Self::can_take`]; if true, asks the thread to look for a context.
    pub(super) fn ask_to_take(&self) -> bool {
        let can_take = self.can_take();
        if can_take {
            self.ask();
        }
        can_take
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;

    use super::*;

    /// A thread slot whose ring has these contexts.
    fn ring_of(contexts: &[Context]) -> Box<ThreadSlot> {
        // SAFETY: a thread slot that was never used is all zeroes.
        let slot: Box<ThreadSlot> = unsafe { Box::new_zeroed().assume_init() };
        for context in contexts {
            slot.count.fetch_add(1, Ordering::Relaxed);
            slot.link(context);
        }
        slot
    }

    #[test]
    fn the_next_slice_is_of_a_context_of_the_ring() {
        let own = [const { Context::new() }; 3];
        let foreign = Context::new();
        foreign.next.store(foreign.address(), Ordering::Relaxed);
        let slot = ring_of(&own);
        for context in &own {
            slot.next.store(context.address(), Ordering::Relaxed);
            assert_eq!(slot.begin(), context.address());
        }
        for next in [foreign.address(), slot.stopwatch.address(), ASK, 0] {
            slot.next.store(next, Ordering::Relaxed);
            assert_eq!(slot.begin(), own[0].address());
        }
        assert_eq!(ring_of(&[]).begin(), 0);
    }

    /// The thread was about to resume a context that slices in its handler have returned to its home thread.
    #[test]
    fn a_thread_asks_after_a_handler_with_slices_interrupted_a_change() {
        let own = [const { Context::new() }; 2];
        let slot = ring_of(&own);
        let base = 0x1000;
        slot.owner.store(base, Ordering::Relaxed);
        slot.change_next(|| {
            let next = own[0].address();
            slot.interrupt_change();
            assert_eq!(slot.owner.load(Ordering::Relaxed), 0);
            slot.unlink(&own[0]);
            // The handler asks at its first yield.
            slot.owner.store(base, Ordering::Relaxed);
            slot.change_next(|| slot.next.store(own[1].address(), Ordering::Relaxed));
            assert_eq!(slot.next.load(Ordering::Relaxed), own[1].address());
            slot.next.store(next, Ordering::Relaxed);
        });
        let found = [&slot.next, &slot.owner].map(|word| word.load(Ordering::Relaxed));
        assert_eq!(found, [ASK, 0]);
        // It does not ask without a handler, nor when a handler comes at another time.
        slot.change_next(|| slot.next.store(own[1].address(), Ordering::Relaxed));
        slot.interrupt_change();
        assert_eq!(slot.next.load(Ordering::Relaxed), own[1].address());
    }
}
