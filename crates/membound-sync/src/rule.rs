//! A cache of rules by address, read and written by all threads without a lock.
//!
//! An entry is two words that are written separately: the rule with the generation of the tables that it
//! was found in, and a sum of both with the address. A reader accepts the pair only if the sum is right, so
//! words of different entries are rejected. The generation is advanced after each change of the tables and
//! read before a rule is looked up in them: a rule of older tables has an older generation.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Multiplier that spreads the bits of a word: two to the 64th divided by the golden ratio.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generation of the tables now.
#[must_use]
#[inline]
pub fn generation(counter: &AtomicU32) -> u32 {
    counter.load(Ordering::Acquire)
}

/// The tables have changed: cached rules are invalid.
#[inline]
pub fn advance(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::Release);
}

/// An entry of the cache.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The rule, and above it the generation.
    pub rule: &'a AtomicU64,
    /// The address, with the other word mixed in.
    pub sum: &'a AtomicU64,
}

impl Entry<'_> {
    /// The rule of `address` in this generation, if the entry has it.
    #[must_use]
    #[inline]
    pub fn get(self, address: u64, generation: u32) -> Option<u32> {
        let word = self.rule.load(Ordering::Relaxed);
        let sum = self.sum.load(Ordering::Relaxed);
        let is_of_address = sum ^ word.wrapping_mul(SPREAD) == address;
        (is_of_address && word >> 32 == u64::from(generation)).then_some(word as u32)
    }

    /// Replaces the entry by the rule of `address`, found in tables of this generation or newer ones.
    #[inline]
    pub fn put(self, address: u64, generation: u32, rule: u32) {
        let word = u64::from(rule) | u64::from(generation) << 32;
        self.rule.store(word, Ordering::Relaxed);
        self.sum
            .store(address ^ word.wrapping_mul(SPREAD), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Arc, check, thread};

    /// Tables with one rule for all addresses, and a cache of one entry.
    struct Rules {
        generation: AtomicU32,
        table: AtomicU32,
        rule: AtomicU64,
        sum: AtomicU64,
    }

    impl Rules {
        fn new(rule: u32) -> Self {
            Self {
                generation: AtomicU32::new(0),
                table: AtomicU32::new(rule),
                rule: AtomicU64::new(0),
                sum: AtomicU64::new(0),
            }
        }

        fn entry(&self) -> Entry<'_> {
            Entry {
                rule: &self.rule,
                sum: &self.sum,
            }
        }

        fn find(&self, address: u64) -> u32 {
            let generation = generation(&self.generation);
            self.entry().get(address, generation).unwrap_or_else(|| {
                let rule = self.table.load(Ordering::Relaxed);
                self.entry().put(address, generation, rule);
                rule
            })
        }

        fn change(&self, rule: u32) {
            self.table.store(rule, Ordering::Relaxed);
            advance(&self.generation);
        }
    }

    #[test]
    fn no_thread_gets_the_rule_of_another_address() {
        check(|| {
            let rules = Arc::new(Rules::new(0));
            let writer = {
                let rules = rules.clone();
                thread::spawn(move || {
                    for address in [1, 2] {
                        rules.entry().put(address, 0, address as u32);
                    }
                })
            };
            for address in [1, 2] {
                if let Some(rule) = rules.entry().get(address, 0) {
                    assert_eq!(u64::from(rule), address);
                }
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn no_old_rule_is_found_after_a_change() {
        check(|| {
            let rules = Arc::new(Rules::new(10));
            let changer = {
                let rules = rules.clone();
                thread::spawn(move || rules.change(11))
            };
            let other = {
                let rules = rules.clone();
                thread::spawn(move || rules.find(5))
            };
            let found = other.join().unwrap();
            assert!([10, 11].contains(&found));
            changer.join().unwrap();
            assert_eq!(rules.find(5), 11, "a rule of the old tables");
        });
    }
}
