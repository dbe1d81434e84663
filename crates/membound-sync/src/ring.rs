//! A ring with one writer and one reader, and a ring's owner.
//!
//! Two positions count items for ever: the writer moves `head`, the reader moves `tail`. Items before
//! `head` are complete and the reader's; items before `tail` are read, and the writer may overwrite them.
//! Each position is stored with Release after the items are accessed, and loaded with Acquire by the other
//! side before it accesses them.
//!
//! A ring belongs to one thread after another. A thread takes a free ring with [`claim`]; the reader frees
//! it after the thread has ended and the ring is empty. The next owner continues at the last one's `head`.

use core::ops::Range;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// The positions of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Positions<'a> {
    /// Next index to write.
    pub head: &'a AtomicU64,
    /// Next index to read.
    pub tail: &'a AtomicU64,
}

impl Positions<'_> {
    /// For the writer: its next index, and the number of items before it that are not read yet.
    #[must_use]
    #[inline]
    pub fn to_write(self) -> (u64, u64) {
        let head = self.head.load(Ordering::Relaxed);
        (head, head.wrapping_sub(self.tail.load(Ordering::Acquire)))
    }

    /// For the writer: hands the items before `head` to the reader.
    #[inline]
    pub fn publish(self, head: u64) {
        self.head.store(head, Ordering::Release);
    }

    /// For the reader: the indices of the items that it may read. A writer that overwrites its positions
    /// can make the range any, also longer than the ring.
    #[must_use]
    #[inline]
    pub fn to_read(self) -> Range<u64> {
        let head = self.head.load(Ordering::Acquire);
        self.tail.load(Ordering::Relaxed)..head
    }

    /// For the reader: gives the items before `tail` back to the writer.
    #[inline]
    pub fn free(self, tail: u64) {
        self.tail.store(tail, Ordering::Release);
    }
}

/// Makes `thread` the owner of a ring whose owner is `found`; false if the owner is another one by now.
#[must_use]
#[inline]
pub fn claim(owner: &AtomicU32, found: u32, thread: u32) -> bool {
    // Acquire: the new owner continues at the positions that the last one left, which the reader has seen.
    owner
        .compare_exchange(found, thread, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// For the owner: it ends, and leaves the ring to the reader. `mark` stands for all ended owners.
#[inline]
pub fn leave(owner: &AtomicU32, mark: u32) {
    owner.store(mark, Ordering::Release);
}

/// For the reader: the owner, to be read before the positions. If it has ended, everything that it wrote is
/// found after that.
#[must_use]
#[inline]
pub fn owner(owner: &AtomicU32) -> u32 {
    owner.load(Ordering::Acquire)
}

/// For the reader: frees a ring whose owner has ended.
#[inline]
pub fn disown(owner: &AtomicU32) {
    owner.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::scenario::{Arc, Guarded, check, thread};

    const ITEMS: usize = 2;

    /// A ring whose items have two words: a value and its complement.
    struct Ring {
        owner: AtomicU32,
        head: AtomicU64,
        tail: AtomicU64,
        items: [[AtomicU64; 2]; ITEMS],
        guarded: [Guarded; ITEMS],
    }

    impl Ring {
        fn new() -> Self {
            Self {
                owner: AtomicU32::new(0),
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                items: core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(7))),
                guarded: Default::default(),
            }
        }

        fn positions(&self) -> Positions<'_> {
            Positions {
                head: &self.head,
                tail: &self.tail,
            }
        }

        /// Writes an item; false if there is no room.
        fn write(&self, value: u64) -> bool {
            let (head, used) = self.positions().to_write();
            if used >= ITEMS as u64 {
                return false;
            }
            let slot = head as usize % ITEMS;
            self.guarded[slot].change();
            let [value_word, check_word] = &self.items[slot];
            value_word.store(value, Ordering::Relaxed);
            check_word.store(!value, Ordering::Relaxed);
            self.positions().publish(head + 1);
            true
        }

        /// Takes all items out.
        fn drain(&self, found: &mut Vec<u64>) {
            let range = self.positions().to_read();
            let end = range.end;
            for index in range {
                let slot = index as usize % ITEMS;
                self.guarded[slot].read();
                let [value_word, check_word] = &self.items[slot];
                let value = value_word.load(Ordering::Relaxed);
                assert_eq!(check_word.load(Ordering::Relaxed), !value, "a torn item");
                found.push(value);
            }
            self.positions().free(end);
        }
    }

    #[test]
    fn items_come_out_whole_once_and_in_order() {
        check(|| {
            let ring = Arc::new(Ring::new());
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || (1..4).filter(|value| ring.write(*value)).collect())
            };
            let mut found = Vec::new();
            for _ in 0..2 {
                ring.drain(&mut found);
            }
            let written: Vec<u64> = writer.join().unwrap();
            ring.drain(&mut found);
            assert_eq!(found, written, "a lost or repeated item");
        });
    }

    /// A thread ends, the reader frees its ring, and another thread takes the ring.
    #[test]
    fn the_next_owner_continues_where_the_last_one_ended() {
        const ENDED: u32 = u32::MAX;
        check(|| {
            let ring = Arc::new(Ring::new());
            assert!(claim(&ring.owner, 0, 1));
            let last_owner = {
                let ring = ring.clone();
                thread::spawn(move || {
                    assert!(ring.write(10));
                    leave(&ring.owner, ENDED);
                })
            };
            let next_owner = {
                let ring = ring.clone();
                thread::spawn(move || {
                    // Two items have room only if the end of the first is seen.
                    let claimed = claim(&ring.owner, 0, 2);
                    assert!(!claimed || ring.write(11) && ring.write(12), "a full ring");
                    claimed
                })
            };
            let mut found = Vec::new();
            let has_ended = owner(&ring.owner) == ENDED;
            ring.drain(&mut found);
            if has_ended {
                assert_eq!(found, [10], "an item of an ended thread was missed");
                disown(&ring.owner);
            }
            last_owner.join().unwrap();
            let mut written = Vec::from([10]);
            if next_owner.join().unwrap() {
                written.extend([11, 12]);
            }
            ring.drain(&mut found);
            assert_eq!(found, written);
        });
    }

    #[test]
    fn one_of_two_threads_gets_a_free_ring() {
        check(|| {
            let ring = Arc::new(Ring::new());
            let other = {
                let ring = ring.clone();
                thread::spawn(move || claim(&ring.owner, 0, 1))
            };
            let own = claim(&ring.owner, 0, 2);
            let other = other.join().unwrap();
            assert!(own != other, "two owners, or none");
            let owner = if own { 2 } else { 1 };
            assert_eq!(ring.owner.load(Ordering::Relaxed), owner);
        });
    }
}
