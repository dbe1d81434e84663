//! A lock of one word, for threads that may be asked to wait elsewhere or to give up.

use crate::atomic::{AtomicU32, Ordering};

/// Takes the lock if it is free.
#[must_use]
#[inline]
pub fn try_lock(lock: &AtomicU32) -> bool {
    lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Releases the lock. The caller wakes the threads that wait while the word is 1.
#[inline]
pub fn unlock(lock: &AtomicU32) {
    lock.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicU64;
    use crate::scenario::{Arc, Futex, check, thread};

    struct Guarded {
        lock: Futex,
        value: AtomicU64,
    }

    impl Guarded {
        fn add(&self) {
            while !try_lock(&self.lock.word) {
                self.lock.wait_while(1);
            }
            let value = self.value.load(Ordering::Relaxed);
            self.value.store(value + 1, Ordering::Relaxed);
            unlock(&self.lock.word);
            self.lock.wake_all();
        }
    }

    #[test]
    fn changes_under_the_lock_are_not_lost_and_waiters_are_woken() {
        check(|| {
            let guarded = Arc::new(Guarded {
                lock: Futex::new(0),
                value: AtomicU64::new(0),
            });
            let other = {
                let guarded = guarded.clone();
                thread::spawn(move || guarded.add())
            };
            guarded.add();
            other.join().unwrap();
            assert_eq!(guarded.value.load(Ordering::Relaxed), 2, "a lost change");
        });
    }
}
