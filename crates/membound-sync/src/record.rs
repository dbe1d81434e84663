//! A ring with several writers. A writer completes a record by writing the record's mark.
//!
//! Writers reserve indices by advancing `head`, and write the records in any order after that. The last word
//! of a record is its mark: it contains the lap of the index, so that the reader can distinguish a complete
//! record from the one that the slot had a lap before. The reader frees slots as in [`crate::ring`].

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::ring::Positions;

/// Reserves `step` indices for a writer among several; returns the first.
#[must_use]
#[inline]
pub fn reserve(head: &AtomicU64, step: u64) -> u64 {
    // Relaxed: the reader learns from a record's mark, not from `head`, that the record is complete.
    head.fetch_add(step, Ordering::Relaxed)
}

/// Number of items that are reserved and not freed. Before a writer overwrites an item it must have found
/// here that the reader has freed it.
#[must_use]
#[inline]
pub fn used(positions: Positions<'_>) -> u64 {
    positions.to_write().1
}

/// Completes a record whose other words were written before.
#[inline]
pub fn complete(mark: &AtomicU32, value: u32) {
    mark.store(value, Ordering::Release);
}

/// The mark of a record. If it is that of the index's lap, the other words can be read.
#[must_use]
#[inline]
pub fn mark(mark: &AtomicU32) -> u32 {
    mark.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::scenario::{Arc, Guarded, check, thread};

    const ITEMS: usize = 3;

    struct Ring {
        head: AtomicU64,
        tail: AtomicU64,
        items: [(AtomicU64, AtomicU32); ITEMS],
        guarded: [Guarded; ITEMS],
    }

    impl Ring {
        fn new() -> Self {
            Self {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                items: core::array::from_fn(|_| (AtomicU64::new(0), AtomicU32::new(0))),
                guarded: Default::default(),
            }
        }

        fn positions(&self) -> Positions<'_> {
            Positions {
                head: &self.head,
                tail: &self.tail,
            }
        }

        fn lap(index: u64) -> u32 {
            index as u32 / ITEMS as u32 + 1
        }

        /// Writes a record unless fewer than `spare` and one are free; other writers may reserve those.
        fn write(&self, value: u64, spare: u64) -> bool {
            if used(self.positions()) + 1 + spare > ITEMS as u64 {
                return false;
            }
            let index = reserve(&self.head, 1);
            let slot = index as usize % ITEMS;
            self.guarded[slot].change();
            let (word, mark) = &self.items[slot];
            word.store(value, Ordering::Relaxed);
            complete(mark, Self::lap(index));
            true
        }

        /// Takes out all records up to the first that is not complete.
        fn drain(&self, found: &mut Vec<u64>) {
            let range = self.positions().to_read();
            let mut tail = range.start;
            for index in range {
                let slot = index as usize % ITEMS;
                let (word, is) = &self.items[slot];
                if mark(is) != Self::lap(index) {
                    break;
                }
                self.guarded[slot].read();
                found.push(word.load(Ordering::Relaxed));
                tail = index + 1;
            }
            self.positions().free(tail);
        }
    }

    /// The reader is the last thread to start, since loom begins with the order in which the threads start.
    #[test]
    fn records_of_two_writers_come_out_once() {
        check(|| {
            let ring = Arc::new(Ring::new());
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || ring.write(10, 1))
            };
            let reader = {
                let ring = ring.clone();
                thread::spawn(move || {
                    let mut found = Vec::new();
                    ring.drain(&mut found);
                    found
                })
            };
            assert!(ring.write(20, 1));
            assert!(writer.join().unwrap());
            let mut found = reader.join().unwrap();
            ring.drain(&mut found);
            found.sort_unstable();
            assert_eq!(found, [10, 20], "a lost, repeated or incomplete record");
        });
    }

    #[test]
    fn a_slot_is_overwritten_only_after_it_was_read() {
        check(|| {
            let ring = Arc::new(Ring::new());
            assert!((1..4).all(|value| ring.write(value, 0)));
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || ring.write(4, 0))
            };
            let mut found = Vec::new();
            ring.drain(&mut found);
            assert_eq!(found, [1, 2, 3], "a record was overwritten");
            let written = writer.join().unwrap();
            ring.drain(&mut found);
            assert_eq!(found.len(), if written { 4 } else { 3 });
        });
    }
}
