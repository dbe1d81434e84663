//! Rings of timer samples, shared with the programs of one process image and the children
//! that it forks.
//!
//! Both sides access every word atomically. This side moves the tails, takes the counts of lost samples,
//! and frees the rings of threads that have ended. A program can write anything into its rings: at worst
//! its own samples are wrong.

use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering;

use membound_sync::ring::{Positions, claim, disown, owner};
use membound_wire::{
    Refused, TICK_DEPTH, TICK_HEAD_WORDS, TICK_ORPHAN, TICK_REFUSALS, TICK_WORDS, TickHead,
    TickRing, TickSet,
};

use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::memory::Shared;
use crate::orders::Order;
use crate::rings::{exists, process_of};
use crate::timers::{Registers, TimerSample};

/// Threads of a process image and its children that can be sampled at the same time. Untouched rings take
/// no memory.
const RINGS: usize = 1024;

/// The rings of one process image.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) memory: Shared,
    /// Owner of each ring when it was last read.
    owners: Vec<Owner>,
    /// Process to which threads of unknown processes are attributed.
    founder: u32,
    /// True if the program numbers its threads differently, so that this side cannot tell which ones live.
    elsewhere: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    thread: u32,
    process: u32,
}

/// Contents of a ring.
#[derive(Debug)]
pub(crate) struct DrainedRing {
    pub(crate) process: u32,
    pub(crate) sample: Option<TimerSample>,
    /// Samples that found no room.
    pub(crate) lost: u64,
}

impl Memory {
    /// Makes rings for the program of this conversation.
    pub(crate) fn make(conversation: &Conversation) -> io::Result<Self> {
        let elsewhere = conversation.hello.pid != conversation.pid;
        Self::new(RINGS, conversation.pid, elsewhere)
    }

    fn new(count: usize, founder: u32, elsewhere: bool) -> io::Result<Self> {
        let bytes = size_of::<TickSet>() + count * size_of::<TickRing>();
        let made = Self {
            memory: Shared::zeroed("membound-ticks", bytes)?,
            owners: vec![Owner::default(); count],
            founder,
            elsewhere,
        };
        let rings = u32::try_from(count).unwrap_or(u32::MAX);
        made.memory
            .word32(offset_of!(TickSet, rings))
            .store(rings, Ordering::Release);
        Ok(made)
    }

    /// Maps them into the program of this conversation, and makes it sample its threads every `period_ns`
    /// of their CPU time.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        period_ns: u64,
    ) -> Result<(), Failure> {
        let order = |at| Order::timers(at, period_ns);
        self.memory.hang_and(conversation, maps, order).map(drop)
    }

    /// Ends the timers of the programs.
    pub(crate) fn stop(&self) {
        self.memory
            .word32(offset_of!(TickSet, stopped))
            .store(1, Ordering::Release);
    }

    /// CPU time that the agent's control threads have used.
    pub(crate) fn own_ns(&self) -> u64 {
        self.memory
            .word64(offset_of!(TickSet, own_ns))
            .load(Ordering::Relaxed)
    }

    /// Threads without timers, with the kernel's error number.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..TICK_REFUSALS).filter_map(|index| {
            let at = offset_of!(TickSet, refused) + index * size_of::<Refused>();
            let thread = self.memory.word32(at + offset_of!(Refused, thread));
            let errno = self.memory.word32(at + offset_of!(Refused, errno));
            let thread = thread.load(Ordering::Acquire);
            (thread != 0).then(|| (thread, errno.load(Ordering::Acquire)))
        })
    }

    /// Removes every sample and passes it on; samples of one thread are in order. Also counts up the
    /// heartbeat.
    pub(crate) fn drain(&mut self, each: &mut dyn FnMut(DrainedRing)) {
        self.memory
            .word32(offset_of!(TickSet, heartbeat))
            .fetch_add(1, Ordering::Relaxed);
        for index in 0..self.owners.len() {
            self.drain_one(index, each);
        }
    }

    fn drain_one(&mut self, index: usize, each: &mut dyn FnMut(DrainedRing)) {
        let ring = Self::ring(index);
        // Before the positions: the samples of a thread that has ended are then all there.
        let owner = owner(self.memory.word32(ring + offset_of!(TickRing, owner)));
        if owner == 0 {
            return;
        }
        let Owner { thread, process } = self.owner(index, owner);
        let lost = self.memory.word32(ring + offset_of!(TickRing, lost));
        let lost = match lost.load(Ordering::Relaxed) {
            0 => 0,
            _ => lost.swap(0, Ordering::Relaxed),
        };
        if lost > 0 {
            each(DrainedRing {
                process,
                sample: None,
                lost: u64::from(lost),
            });
        }
        let positions = Positions {
            head: self.memory.word64(ring + offset_of!(TickRing, head)),
            tail: self.memory.word64(ring + offset_of!(TickRing, tail)),
        };
        let Range {
            start: mut at,
            end: head,
        } = positions.to_read();
        // A program that overwrites its own ring yields no more than the ring can hold.
        if head.wrapping_sub(at) > TICK_WORDS as u64 {
            at = head;
        }
        while at != head {
            let slot = usize::try_from(at % TICK_WORDS as u64).unwrap_or(0);
            let (length, sample) = self.sample(ring, slot, thread);
            if let Some(sample) = sample {
                each(DrainedRing {
                    process,
                    sample: Some(sample),
                    lost: 0,
                });
            }
            let rest = head.wrapping_sub(at);
            at = if length == 0 || length as u64 > rest {
                head
            } else {
                at.wrapping_add(length as u64)
            };
        }
        positions.free(head);
        if owner == TICK_ORPHAN {
            disown(self.memory.word32(ring + offset_of!(TickRing, owner)));
        }
    }

    /// Number of words of the entry at a slot of a ring, and the sample if it is one.
    fn sample(&self, ring: usize, slot: usize, thread: u32) -> (usize, Option<TimerSample>) {
        let word = |index: usize| {
            let at = ring + offset_of!(TickRing, words) + (slot + index) * 8;
            self.memory.word64(at).load(Ordering::Relaxed)
        };
        let head = TickHead::of(word(0));
        let length = usize::from(head.words);
        let whole = (TICK_HEAD_WORDS..=TICK_HEAD_WORDS + TICK_DEPTH).contains(&length)
            && slot + length <= TICK_WORDS;
        if head.flags & TickHead::FILLER != 0 || !whole {
            return (length, None);
        }
        let sample = TimerSample {
            thread,
            tsc: word(1),
            cpu: Some(head.cpu).filter(|cpu| *cpu != u16::MAX),
            weight_ns: word(2),
            registers: Registers {
                ip: word(19),
                ..Registers::from(std::array::from_fn(|register| word(3 + register)))
            },
            callers: (TICK_HEAD_WORDS..length).map(word).collect(),
            inside: head.flags & TickHead::INSIDE != 0,
        };
        (length, Some(sample))
    }

    /// Process and thread that write into a ring. The process of a thread can be read while the thread
    /// lives.
    fn owner(&mut self, index: usize, thread: u32) -> Owner {
        if thread != TICK_ORPHAN && self.owners[index].thread != thread {
            let process = (!self.elsewhere).then(|| process_of(thread, self.founder));
            self.owners[index] = Owner {
                thread,
                process: process.flatten().unwrap_or(self.founder),
            };
        }
        self.owners[index]
    }

    /// Frees the rings of threads that have ended without a mark of their process.
    pub(crate) fn free(&mut self, each: &mut dyn FnMut(DrainedRing)) {
        if self.elsewhere {
            return;
        }
        for index in 0..self.owners.len() {
            let at = Self::ring(index) + offset_of!(TickRing, owner);
            let thread = owner(self.memory.word32(at));
            if thread == 0 || thread == TICK_ORPHAN || exists(thread) {
                continue;
            }
            self.drain_one(index, each);
            // The agent may have marked it meanwhile.
            let _ = claim(self.memory.word32(at), thread, 0);
        }
    }

    /// Byte offset of a ring.
    const fn ring(index: usize) -> usize {
        size_of::<TickSet>() + index * size_of::<TickRing>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a sample as an agent does, or gives up if there is no room.
    fn write(memory: &Memory, index: usize, thread: u32, tsc: u64, callers: &[u64]) -> bool {
        let ring = Memory::ring(index);
        memory.memory.word32(ring).store(thread, Ordering::Relaxed);
        let head = memory.memory.word64(ring + offset_of!(TickRing, head));
        let tail = memory.memory.word64(ring + offset_of!(TickRing, tail));
        let mut at = head.load(Ordering::Relaxed);
        let most = (TICK_HEAD_WORDS + TICK_DEPTH) as u64;
        let to_end = TICK_WORDS as u64 - at % TICK_WORDS as u64;
        let skipped = if to_end < most { to_end } else { 0 };
        if at - tail.load(Ordering::Relaxed) + skipped + most > TICK_WORDS as u64 {
            return false;
        }
        let put = |at: u64, value: u64| {
            let slot = (at % TICK_WORDS as u64) as usize;
            let word = ring + offset_of!(TickRing, words) + slot * 8;
            memory.memory.word64(word).store(value, Ordering::Relaxed);
        };
        if skipped > 0 {
            let filler = TickHead {
                words: skipped as u16,
                flags: TickHead::FILLER,
                cpu: 0,
            };
            put(at, filler.word());
            at += skipped;
        }
        let words = TICK_HEAD_WORDS + callers.len();
        let first = TickHead {
            words: words as u16,
            flags: 0,
            cpu: 3,
        };
        put(at, first.word());
        put(at + 1, tsc);
        put(at + 2, 1000 + tsc);
        for register in 0..17 {
            put(at + 3 + register, 100 + register);
        }
        for (index, caller) in (TICK_HEAD_WORDS as u64..).zip(callers) {
            put(at + index, *caller);
        }
        head.store(at + words as u64, Ordering::Release);
        true
    }

    #[test]
    fn samples_come_out_whole_once_and_in_order_round_and_round() {
        let mut memory = Memory::new(2, 7, true).unwrap();
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for round in 0..400_u64 {
            let callers: Vec<u64> = (0..round % (TICK_DEPTH as u64 + 1)).collect();
            assert!(write(&memory, 1, 42, round, &callers), "{round}");
            expected.push((round, callers));
            if round % 7 == 0 {
                memory.drain(&mut |record| {
                    let sample = record.sample.unwrap();
                    assert_eq!((record.process, sample.thread), (7, 42));
                    assert_eq!((sample.cpu, sample.weight_ns), (Some(3), 1000 + sample.tsc));
                    assert_eq!(
                        (sample.registers.general[15], sample.registers.ip),
                        (115, 116)
                    );
                    found.push((sample.tsc, sample.callers));
                });
            }
        }
        memory.drain(&mut |record| {
            let sample = record.sample.unwrap();
            found.push((sample.tsc, sample.callers));
        });
        assert_eq!(found, expected);
        memory.drain(&mut |_| panic!());
    }

    #[test]
    fn nonsense_in_a_ring_is_passed_over() {
        let mut memory = Memory::new(1, 7, true).unwrap();
        assert!(write(&memory, 0, 42, 1, &[5]));
        let ring = Memory::ring(0);
        for length in [0_u16, 3, 84, 85, u16::MAX] {
            let head = TickHead {
                words: length,
                ..TickHead::default()
            };
            let words = offset_of!(TickRing, words);
            memory
                .memory
                .word64(ring + words)
                .store(head.word(), Ordering::Relaxed);
            memory
                .memory
                .word64(ring + offset_of!(TickRing, tail))
                .store(0, Ordering::Relaxed);
            memory.drain(&mut |record| {
                assert!(
                    record
                        .sample
                        .is_some_and(|it| it.callers.len() <= TICK_DEPTH)
                );
            });
        }
        let head = memory.memory.word64(ring + offset_of!(TickRing, head));
        head.store(u64::MAX, Ordering::Relaxed);
        memory.drain(&mut |_| panic!());
    }

    #[test]
    fn rings_of_threads_that_are_gone_are_free_again() {
        let mut memory = Memory::new(3, 7, false).unwrap();
        let own = std::process::id();
        // Above the largest number that the kernel gives.
        assert!(write(&memory, 0, u32::MAX - 1, 1, &[]));
        assert!(write(&memory, 1, own, 2, &[]));
        assert!(write(&memory, 2, own, 3, &[]));
        let mut found = Vec::new();
        memory.free(&mut |record| found.push(record.sample.unwrap().tsc));
        assert_eq!(found, [1]);
        let owner = |memory: &Memory, ring| {
            memory
                .memory
                .word32(Memory::ring(ring))
                .load(Ordering::Relaxed)
        };
        assert_eq!(owner(&memory, 0), 0);
        memory.drain(&mut |record| assert_eq!(record.process, own));
        // Marked by the agent: the samples are still that thread's.
        assert!(write(&memory, 2, own, 4, &[]));
        memory
            .memory
            .word32(Memory::ring(2))
            .store(TICK_ORPHAN, Ordering::Relaxed);
        memory.drain(&mut |record| assert_eq!(record.sample.unwrap().thread, own));
        assert_eq!((owner(&memory, 1), owner(&memory, 2)), (own, 0));
    }
}
