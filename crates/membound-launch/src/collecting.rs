//! The threads that collect what programs report, and how often they look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::slice;

/// Shortest interval between two looks while programs are left in peace.
const CALM_INTERVAL: Duration = Duration::from_millis(100);

/// How often the threads look.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    is_calm: Mutex<bool>,
    changed: Condvar,
}

impl Pacing {
    /// Sets whether the threads look rarely: each look takes a processor for which a program may have to wait.
    pub(crate) fn set_calm(&self, calm: bool) {
        if std::mem::replace(&mut *self.is_calm(), calm) != calm {
            self.changed.notify_all();
        }
    }

    fn is_calm(&self) -> MutexGuard<'_, bool> {
        self.is_calm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `interval`, or longer while calm; ends early when that or `is_over` changes. Returns `is_over`.
    fn wait(&self, interval: Duration, is_over: &AtomicBool) -> bool {
        let is_calm = self.is_calm();
        let before = *is_calm;
        let interval = match before {
            true => interval.max(CALM_INTERVAL),
            false => interval,
        };
        let is_same = |calm: &mut bool| *calm == before && !is_over.load(Ordering::Acquire);
        drop(self.changed.wait_timeout_while(is_calm, interval, is_same));
        is_over.load(Ordering::Acquire)
    }
}

/// A thread that collects.
#[derive(Debug)]
pub(crate) struct Collector {
    pacing: Arc<Pacing>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Runs `collect` in a thread. `collect` gets a function that waits for a while and returns true if the
    /// thread is to end.
    pub(crate) fn start(
        pacing: &Arc<Pacing>,
        collect: impl FnOnce(&dyn Fn(Duration) -> bool) + Send + 'static,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (paced, over) = (Arc::clone(pacing), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            slice::shorten();
            collect(&|interval| paced.wait(interval, &over));
        });
        Self {
            pacing: Arc::clone(pacing),
            is_over,
            thread: Some(thread),
        }
    }

    /// Lets the thread collect what is there, and waits until it has ended.
    pub(crate) fn end(mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        // With the lock, no thread is between its check and its wait.
        let calm = self.pacing.is_calm();
        self.pacing.changed.notify_all();
        drop(calm);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn calm_threads_look_rarely_and_at_once_when_they_are_needed() {
        let (pacing, is_over) = (Pacing::default(), AtomicBool::new(false));
        assert!(!pacing.wait(Duration::ZERO, &is_over));
        pacing.set_calm(true);
        let begun = Instant::now();
        assert!(!pacing.wait(Duration::ZERO, &is_over));
        assert!(begun.elapsed() >= CALM_INTERVAL);
        std::thread::scope(|scope| {
            // Ends long before an hour is over.
            let waits = scope.spawn(|| pacing.wait(Duration::from_secs(3600), &is_over));
            while !waits.is_finished() {
                pacing.set_calm(false);
                pacing.set_calm(true);
                std::thread::yield_now();
            }
        });
        is_over.store(true, Ordering::Release);
        assert!(pacing.wait(Duration::from_secs(3600), &is_over));
    }
}
