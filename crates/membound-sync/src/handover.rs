//! Handing a scavenger's context over between its home thread and run queues.
//!
//! The home thread offers the context, any run queue or the home thread itself takes it, and the thread of
//! the run queue returns it with what the home thread is to do.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// State: the context is on its home thread.
pub const HOME: u32 = 0;
/// State: a run queue has the context, or is being given it.
pub const AWAY: u32 = 1;
/// State: the context is ready, and any run queue may take it.
pub const READY: u32 = 2;

/// The words of a context's handover.
#[derive(Clone, Copy, Debug)]
pub struct Handover<'a> {
    /// [`HOME`], [`AWAY`] or [`READY`]; a futex word.
    pub state: &'a AtomicU32,
    /// Where the context resumes, set with `request`.
    pub frame: &'a AtomicU64,
    /// What the home thread does before the context continues.
    pub request: &'a AtomicU32,
}

impl Handover<'_> {
    /// For the home thread: offers the context to all run queues. The result is the value of `room` before
    /// the offer; that word counts the occasions on which a run queue may have got room. A home thread that
    /// waits while `room` has this value misses none of them.
    #[must_use]
    #[inline]
    pub fn offer(self, room: &AtomicU32) -> u32 {
        let seen = room.load(Ordering::Acquire);
        // SeqCst, as `open` in `Queue::open`: either that queue's thread finds READY, or this one finds the
        // queue open.
        self.state.store(READY, Ordering::SeqCst);
        seen
    }

    /// For a run queue: takes the context, if it is ready. The exchange lets exactly one of all run queues
    /// and the home thread win.
    #[must_use]
    #[inline]
    pub fn take(self) -> bool {
        // SeqCst also where it fails: see `Queue::open`.
        self.state
            .compare_exchange(READY, AWAY, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// For the home thread: withdraws the offer; false if a run queue has the context.
    #[must_use]
    #[inline]
    pub fn take_back(self) -> bool {
        self.state
            .compare_exchange(READY, HOME, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// For the thread of a run queue: returns the context, which no ring has any more. The caller wakes the
    /// home thread.
    #[inline]
    pub fn return_home(self, frame: u64, request: u32) {
        self.frame.store(frame, Ordering::Relaxed);
        self.request.store(request, Ordering::Relaxed);
        // Last, with Release: the home thread reads `frame` and `request` once it has loaded HOME with
        // Acquire.
        self.state.store(HOME, Ordering::Release);
    }

    /// True if the context is on its home thread.
    #[must_use]
    #[inline]
    pub fn is_home(self) -> bool {
        self.state.load(Ordering::Acquire) == HOME
    }

    /// For the home thread: takes what the context was returned with: `frame` and `request`, which are 0
    /// afterwards.
    #[must_use]
    #[inline]
    pub fn take_request(self) -> (u64, u32) {
        let request = self.request.swap(0, Ordering::AcqRel);
        (self.frame.swap(0, Ordering::AcqRel), request)
    }
}

/// Counts an occasion on which a run queue may have got room. The caller wakes the threads that wait while
/// `room` is unchanged.
#[inline]
pub fn announce_room(room: &AtomicU32) {
    room.fetch_add(1, Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::scenario::{Arc, Futex, check, thread};

    struct Home {
        state: Futex,
        frame: AtomicU64,
        request: AtomicU32,
        room: Futex,
        /// What the threads that have the context do with it, one after the other.
        work: AtomicU64,
        next: AtomicU64,
        owner: AtomicU64,
        open: AtomicU32,
    }

    impl Home {
        fn new(state: u32) -> Self {
            Self {
                state: Futex::new(state),
                frame: AtomicU64::new(0),
                request: AtomicU32::new(0),
                room: Futex::new(0),
                work: AtomicU64::new(0),
                next: AtomicU64::new(0),
                owner: AtomicU64::new(0),
                open: AtomicU32::new(0),
            }
        }

        fn handover(&self) -> Handover<'_> {
            Handover {
                state: &self.state.word,
                frame: &self.frame,
                request: &self.request,
            }
        }

        fn queue(&self) -> Queue<'_> {
            Queue {
                next: &self.next,
                owner: &self.owner,
                open: &self.open,
            }
        }

        /// Work that is lost if two threads have the context, or one has it without the other's work.
        fn run(&self) {
            let work = self.work.load(Ordering::Relaxed);
            self.work.store(work + 1, Ordering::Relaxed);
        }

        /// As the thread of a run queue: takes the context, runs it, and returns it with a request.
        fn have_slice(&self) -> bool {
            let taken = self.handover().take();
            if taken {
                self.run();
                self.handover().return_home(5, 6);
                self.state.wake_all();
            }
            taken
        }

        fn await_return(&self) {
            while !self.handover().is_home() {
                self.state.wait_while(AWAY);
            }
        }
    }

    #[test]
    fn one_of_two_run_queues_and_the_home_thread_gets_the_context() {
        check(|| {
            let home = Arc::new(Home::new(HOME));
            let _ = home.handover().offer(&home.room.word);
            let queues = [(); 2].map(|()| {
                let home = home.clone();
                thread::spawn(move || home.handover().take())
            });
            let own = home.handover().take_back();
            let taken = queues.map(|queue| queue.join().unwrap());
            let winners = taken.into_iter().chain([own]).filter(|won| *won).count();
            assert_eq!(winners, 1);
        });
    }

    #[test]
    fn the_home_thread_wakes_with_the_work_and_the_request_of_the_run_queue() {
        check(|| {
            let home = Arc::new(Home::new(HOME));
            let queue = {
                let home = home.clone();
                thread::spawn(move || home.have_slice())
            };
            home.run();
            let _ = home.handover().offer(&home.room.word);
            let mut expected = (0, 0);
            if !home.handover().take_back() {
                home.await_return();
                expected = (5, 6);
            }
            assert_eq!(home.handover().take_request(), expected);
            home.run();
            let taken = queue.join().unwrap();
            let runs = home.work.load(Ordering::Relaxed);
            assert_eq!(runs, if taken { 3 } else { 2 }, "lost work");
        });
    }

    /// A home thread offers its context while the only run queue opens and announces room.
    #[test]
    fn a_home_thread_that_waits_for_room_is_woken() {
        check(|| {
            let home = Arc::new(Home::new(HOME));
            let queue = {
                let home = home.clone();
                thread::spawn(move || {
                    const BASE: u64 = 0x1000;
                    home.queue().open(BASE);
                    if !home.have_slice() {
                        home.queue().stay_empty(BASE);
                    }
                    announce_room(&home.room.word);
                    home.room.wake_all();
                })
            };
            let room = home.handover().offer(&home.room.word);
            // Room that was there before the offer is found here, later room ends the wait.
            if home.queue().is_open() {
                home.queue().ask();
            } else {
                home.room.wait_while(room);
            }
            if !home.handover().take_back() {
                home.await_return();
            }
            queue.join().unwrap();
        });
    }
}
