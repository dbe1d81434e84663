//! Runs the scenarios of the tests: by loom's model, or with threads of the system.

#[cfg(loom)]
pub(crate) use loom::{sync::Arc, thread};
#[cfg(not(loom))]
pub(crate) use std::{sync::Arc, thread};

use crate::atomic::AtomicU32;

/// Runs `scenario` in every possible order of its steps.
#[cfg(loom)]
pub(crate) fn check(scenario: impl Fn() + Sync + Send + 'static) {
    loom::model(scenario);
}

/// Runs `scenario` in a few of its possible orders, as the system's threads happen to have them.
#[cfg(not(loom))]
pub(crate) fn check(scenario: impl Fn() + Sync + Send + 'static) {
    // Miri, which explores orders by itself, takes long for each.
    let rounds = if cfg!(miri) { 20 } else { 1000 };
    for _ in 0..rounds {
        scenario();
    }
}

/// Data that one thread at a time may access. The model fails where two accesses, one of them a change, are
/// not ordered by the atomics.
#[derive(Debug, Default)]
pub(crate) struct Guarded(#[cfg(loom)] loom::cell::UnsafeCell<()>);

impl Guarded {
    pub(crate) fn read(&self) {
        #[cfg(loom)]
        self.0.with(|_| ());
    }

    pub(crate) fn change(&self) {
        #[cfg(loom)]
        self.0.with_mut(|_| ());
    }
}

/// A futex: threads that sleep until a word has another value.
#[derive(Debug)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
    #[cfg(not(loom))]
    sleepers: (std::sync::Mutex<()>, std::sync::Condvar),
}

impl Futex {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            sleepers: Default::default(),
        }
    }

    /// Sleeps while the word is `value`, as `FUTEX_WAIT`: the kernel compares under the lock of its queue.
    /// A thread that no other wakes makes the scenario fail.
    pub(crate) fn wait_while(&self, value: u32) {
        let (lock, woken) = &self.sleepers;
        let guard = lock.lock().unwrap();
        if self.word.load(crate::atomic::Ordering::Relaxed) == value {
            drop(woken.wait(guard).unwrap());
        }
    }

    /// Wakes all sleepers, as `FUTEX_WAKE`.
    pub(crate) fn wake_all(&self) {
        let (lock, woken) = &self.sleepers;
        let _guard = lock.lock().unwrap();
        woken.notify_all();
    }
}
