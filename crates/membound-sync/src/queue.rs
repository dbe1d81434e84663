//! A thread's run queue: how other threads make its thread enter the agent at its next yield.
//!
//! The code of a yield reads two words without the agent: where `next` is 0, the thread goes on; else, where
//! `owner` is not the thread's base, it enters the agent. A thread with an empty ring has 0 in `next`, so
//! that its yields cost little, and another thread that has a context for it must change both words
//! ([`Queue::ask`]), while the queue's own thread may be setting them anew.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Value of `next` that names no context.
pub const ASK: u64 = 1;

/// The words of a run queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'a> {
    /// Context with the next slice; 0: the ring is empty; [`ASK`].
    pub next: &'a AtomicU64,
    /// Base of the thread's `fs`; 0: the thread enters the agent at its next yield.
    pub owner: &'a AtomicU64,
    /// 1 while the run queue takes contexts.
    pub open: &'a AtomicU32,
}

impl Queue<'_> {
    /// Opens the queue. Its thread, whose base is `base`, looks for ready contexts after this, and then
    /// calls [`Self::begin`] or [`Self::stay_empty`].
    #[inline]
    pub fn open(self, base: u64) {
        // SeqCst, as the load of a context's state afterwards: a home thread offers its context and then
        // loads `open`, so one side sees the other.
        self.open.store(1, Ordering::SeqCst);
        self.owner.store(base, Ordering::SeqCst);
    }

    /// True while the queue takes contexts.
    #[must_use]
    #[inline]
    pub fn is_open(self) -> bool {
        self.open.load(Ordering::SeqCst) != 0
    }

    /// Gives the next slice to the context `first`.
    #[inline]
    pub fn begin(self, first: u64) {
        self.next.store(first, Ordering::Release);
    }

    /// The ring stays empty: yields go on at once, unless a thread has asked since [`Self::open`].
    #[inline]
    pub fn stay_empty(self, base: u64) {
        self.next.store(0, Ordering::SeqCst);
        // A home thread may have offered its context, and asked, after this thread looked. Its `ASK` in
        // `next` has just been overwritten; its 0 in `owner`, stored before, has not.
        if self.owner.load(Ordering::SeqCst) != base {
            self.ask();
        }
    }

    /// Makes the thread enter the agent at its next yield. Called by any thread.
    #[inline]
    pub fn ask(self) {
        // `owner` first: `stay_empty` stores 0 to `next` and then reads `owner`, so it finds every request
        // whose ASK it has overwritten. ASK replaces only 0, at which a yield would not look at `owner`.
        self.owner.store(0, Ordering::SeqCst);
        let _ = self
            .next
            .compare_exchange(0, ASK, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// As [`Self::ask`], by the queue's own thread, whatever `next` was.
    #[inline]
    pub fn ask_at_once(self) {
        self.next.store(ASK, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }

    /// Closes the queue: no context is offered to it until its thread opens it again.
    #[inline]
    pub fn close(self) {
        self.open.store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::{HOME, Handover};
    use crate::scenario::{Arc, check, thread};

    /// Base of the thread.
    const BASE: u64 = 0x1000;
    /// A context that the ring has.
    const MEMBER: u64 = 0x40;

    /// A run queue and a scavenger that may come into it.
    struct World {
        next: AtomicU64,
        owner: AtomicU64,
        open: AtomicU32,
        state: AtomicU32,
        frame: AtomicU64,
        request: AtomicU32,
        room: AtomicU32,
    }

    impl World {
        fn new(next: u64, is_open: bool) -> Self {
            Self {
                next: AtomicU64::new(next),
                owner: AtomicU64::new(if is_open { BASE } else { 0 }),
                open: AtomicU32::new(u32::from(is_open)),
                state: AtomicU32::new(HOME),
                frame: AtomicU64::new(0),
                request: AtomicU32::new(0),
                room: AtomicU32::new(0),
            }
        }

        fn queue(&self) -> Queue<'_> {
            Queue {
                next: &self.next,
                owner: &self.owner,
                open: &self.open,
            }
        }

        fn handover(&self) -> Handover<'_> {
            Handover {
                state: &self.state,
                frame: &self.frame,
                request: &self.request,
            }
        }

        /// As a thread at a yield that enters the agent; `member` is the first context of its ring.
        /// Returns whether it took the scavenger.
        fn refill(&self, member: u64) -> bool {
            self.queue().open(BASE);
            let taken = self.handover().take();
            match (taken, member) {
                (true, _) => self.queue().begin(0x80),
                (false, 0) => self.queue().stay_empty(BASE),
                (false, member) => self.queue().begin(member),
            }
            taken
        }

        /// As a home thread that looks for a run queue.
        fn offer(&self) {
            let _ = self.handover().offer(&self.room);
            if self.queue().is_open() {
                self.queue().ask();
            }
        }

        fn next_yield_enters(&self) -> bool {
            let next = self.next.load(Ordering::Relaxed);
            next != 0 && self.owner.load(Ordering::Relaxed) != BASE
        }
    }

    fn an_offer_is_taken_or_asked_for(member: u64, is_open: bool) {
        check(move || {
            let world = Arc::new(World::new(member, is_open));
            let refilled = {
                let world = world.clone();
                thread::spawn(move || world.refill(member))
            };
            world.offer();
            let taken = refilled.join().unwrap();
            assert!(
                taken || world.next_yield_enters(),
                "a ready scavenger that no yield will find"
            );
        });
    }

    #[test]
    fn a_queue_that_opens_finds_the_offer_or_is_asked() {
        an_offer_is_taken_or_asked_for(0, false);
    }

    #[test]
    fn an_empty_queue_finds_the_offer_or_is_asked() {
        an_offer_is_taken_or_asked_for(0, true);
    }

    #[test]
    fn a_queue_with_contexts_finds_the_offer_or_is_asked() {
        an_offer_is_taken_or_asked_for(MEMBER, true);
    }

    #[test]
    fn two_threads_that_ask_leave_the_request() {
        check(|| {
            let world = Arc::new(World::new(0, true));
            let others = [(); 2].map(|()| {
                let world = world.clone();
                thread::spawn(move || world.queue().ask())
            });
            for other in others {
                other.join().unwrap();
            }
            assert!(world.next_yield_enters());
        });
    }
}
