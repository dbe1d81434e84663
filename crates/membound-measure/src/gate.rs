//! Threads that begin together without waiting for a thread that never comes.
//!
//! At a barrier, the others would wait for ever if one thread cannot be started or panics before it
//! arrives. Here every thread has a [`Ticket`], and dropping a ticket, for any reason, counts
//! as arriving and finishing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Meeting point that a fixed number of threads pass once.
#[derive(Debug)]
pub(crate) struct Gate {
    threads: usize,
    arrived: Mutex<usize>,
    all_arrived: Condvar,
    done: AtomicUsize,
}

/// One thread's right to pass; made before the thread and moved into it.
#[derive(Debug)]
pub(crate) struct Ticket<'gate> {
    gate: &'gate Gate,
    has_arrived: bool,
    is_done: bool,
}

impl Gate {
    /// A gate for `threads` threads, for each of which [`Gate::ticket`] must be called once.
    pub(crate) const fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: Mutex::new(0),
            all_arrived: Condvar::new(),
            done: AtomicUsize::new(0),
        }
    }

    pub(crate) const fn ticket(&self) -> Ticket<'_> {
        Ticket {
            gate: self,
            has_arrived: false,
            is_done: false,
        }
    }

    fn arrive(&self) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        *arrived += 1;
        if *arrived >= self.threads {
            self.all_arrived.notify_all();
        }
    }
}

impl Ticket<'_> {
    /// Waits until every thread has arrived or dropped its ticket.
    pub(crate) fn pass(&mut self) {
        if !std::mem::replace(&mut self.has_arrived, true) {
            self.gate.arrive();
        }
        let mut arrived = (self.gate.arrived.lock()).unwrap_or_else(PoisonError::into_inner);
        while *arrived < self.gate.threads {
            arrived = (self.gate.all_arrived.wait(arrived)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks this thread's measurement as complete.
    pub(crate) fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_done, true) {
            self.gate.done.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether all threads' measurements are complete.
    pub(crate) fn all_finished(&self) -> bool {
        self.gate.done.load(Ordering::SeqCst) >= self.gate.threads
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.has_arrived {
            self.gate.arrive();
        }
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::threads::joined;

    #[test]
    fn no_thread_passes_before_all_arrive() {
        let gate = Gate::new(3);
        let before = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (mut ticket, before) = (gate.ticket(), &before);
                scope.spawn(move || {
                    before.fetch_add(1, Ordering::SeqCst);
                    ticket.pass();
                    assert_eq!(before.load(Ordering::SeqCst), 3);
                    ticket.finish();
                    while !ticket.all_finished() {
                        std::thread::yield_now();
                    }
                });
            }
        });
    }

    #[test]
    fn a_thread_that_panics_or_never_starts_blocks_no_other() {
        let gate = Gate::new(3);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            std::thread::scope(|scope| {
                let mut ticket = gate.ticket();
                let waiting = scope.spawn(move || {
                    ticket.pass();
                    ticket.finish();
                    while !ticket.all_finished() {
                        std::thread::yield_now();
                    }
                });
                drop(gate.ticket());
                let mut ticket = gate.ticket();
                let panicking = scope.spawn(move || {
                    ticket.pass();
                    panic!("as a copy might");
                });
                waiting.join().unwrap();
                joined(panicking);
            });
        }));
        assert!(panicked.is_err());
    }
}
