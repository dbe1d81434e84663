//! Several words that are read together while another thread may change them.
//!
//! A version counts the changes and is odd during one. Readers, signal handlers among them, never wait: a
//! read that met a change says so.

use crate::atomic::{AtomicU64, Ordering, fence};

/// Why [`read`] returned no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A change was in progress when the read began. It may be that of a thread which the reader, a
    /// handler, has interrupted.
    Now,
    /// The words changed during the read.
    Meanwhile,
}

/// Reads the words by `copy`, which loads each of them with Relaxed.
///
/// # Errors
/// The words were changed during the read, so that what `copy` returned may be of two versions.
#[inline]
pub fn read<T>(version: &AtomicU64, copy: impl FnOnce() -> T) -> Result<T, Changed> {
    let before = version.load(Ordering::Acquire);
    if before & 1 != 0 {
        return Err(Changed::Now);
    }
    let copied = copy();
    // Keeps the loads of the words before the second load of the version.
    fence(Ordering::Acquire);
    if version.load(Ordering::Relaxed) == before {
        Ok(copied)
    } else {
        Err(Changed::Meanwhile)
    }
}

/// Changes the words by `store`, which stores each of them with Relaxed, unless another thread changes them
/// now or they are not what `is_eligible` finds. Returns whether it did.
#[inline]
pub fn change(
    version: &AtomicU64,
    is_eligible: impl FnOnce() -> bool,
    store: impl FnOnce(),
) -> bool {
    let before = version.load(Ordering::Acquire);
    if before & 1 != 0 || !is_eligible() {
        return false;
    }
    let claim = version.compare_exchange(before, before | 1, Ordering::AcqRel, Ordering::Relaxed);
    if claim.is_err() {
        return false;
    }
    // Keeps the stores of the words behind the odd version.
    fence(Ordering::Release);
    store();
    version.store(before.wrapping_add(2), Ordering::Release);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Arc, check, thread};

    struct Slot {
        version: AtomicU64,
        words: [AtomicU64; 2],
    }

    impl Slot {
        fn new() -> Self {
            Self {
                version: AtomicU64::new(0),
                words: core::array::from_fn(|_| AtomicU64::new(0)),
            }
        }

        fn read(&self) -> Result<[u64; 2], Changed> {
            read(&self.version, || {
                self.words
                    .each_ref()
                    .map(|word| word.load(Ordering::Relaxed))
            })
        }

        /// Fills the slot if it is free.
        fn fill(&self, value: u64) -> bool {
            let is_free = || self.words[1].load(Ordering::Relaxed) == 0;
            change(&self.version, is_free, || self.store(value))
        }

        fn store(&self, value: u64) {
            for word in &self.words {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn a_copy_is_of_one_version() {
        check(|| {
            let slot = Arc::new(Slot::new());
            let reader = {
                let slot = slot.clone();
                thread::spawn(move || {
                    if let Ok([first, second]) = slot.read() {
                        assert_eq!(first, second, "a copy of two versions");
                    }
                })
            };
            assert!(slot.fill(1));
            assert!(change(&slot.version, || true, || slot.store(2)));
            reader.join().unwrap();
            assert_eq!(slot.read(), Ok([2, 2]));
        });
    }

    #[test]
    fn one_of_two_threads_fills_a_free_slot() {
        check(|| {
            let slot = Arc::new(Slot::new());
            let other = {
                let slot = slot.clone();
                thread::spawn(move || slot.fill(1))
            };
            let own = slot.fill(2);
            let other = other.join().unwrap();
            assert!(own != other, "a slot was filled twice, or never");
            let value = if own { 2 } else { 1 };
            assert_eq!(slot.read(), Ok([value, value]));
        });
    }
}
