//! Memory in which the programs of one process image, and the children that it forks, report their
//! allocations: see [`membound_wire::Allocations`].
//!
//! A program can write anything into it: at worst its own reports are wrong.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use membound_sync::record::mark;
use membound_sync::ring::{Positions, claim, owner};
use membound_wire::{
    ALLOCATION_RECORDS, AllocationKind, AllocationRecord, AllocationRing, AllocationWhat,
    Allocations,
};

use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::memory::{Shared, UsedRings};
use crate::orders::Order;
use crate::rings::is_descendant;

const PAGE_BYTES: usize = 4096;
/// Rings for threads of their own, and rings shared by threads that find none. Everything together is the
/// most that a program's memory may grow by; only the used part takes memory.
const OWN_RINGS: usize = 58;
const SHARED_RINGS: usize = 2;
const INDEX_WORDS: usize = 1 << 17;
const CHAINS_WORDS: usize = 1 << 20;
/// Numbers of chains are below this.
pub(crate) const CHAIN_NUMBERS: u32 = 1 << 20;
const _: () = assert!(CHAINS_WORDS <= CHAIN_NUMBERS as usize);
/// Most return addresses of a chain.
const DEPTH: u32 = 64;
/// Polls after which a record that was reserved counts as never written.
const MAX_POLLS_OF_RESERVED_RECORD: u32 = 25;

/// The memory.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) memory: Shared,
    rings: Vec<Reader>,
    /// Indices of rings that were ever used.
    used: UsedRings,
    /// Number of the program's process in its own namespace, and in this one.
    founder: (u64, u32),
    /// True if both namespaces use the same numbers.
    same_numbers: bool,
    /// [`MAX_POLLS_OF_RESERVED_RECORD`]; 0 when no thread will write any more.
    patience: u32,
}

/// Reading position and state of a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    thread: u32,
    process: u32,
    /// Consecutive polls at which the next record was not complete.
    waited: u32,
}

/// A record with its process and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadRecord {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) record: AllocationRecord,
    pub(crate) what: AllocationWhat,
}

/// Events found at a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    pub(crate) taken: u64,
    pub(crate) lost: u64,
}

/// Byte offsets of the parts of the memory.
struct Layout {
    rings: usize,
    index: usize,
    chains: usize,
    bytes: usize,
}

const fn layout() -> Layout {
    let rings = PAGE_BYTES;
    let ring_bytes = (OWN_RINGS + SHARED_RINGS) * size_of::<AllocationRing>();
    let index = (rings + ring_bytes).next_multiple_of(PAGE_BYTES);
    let chains = index + INDEX_WORDS * 8;
    Layout {
        rings,
        index,
        chains,
        bytes: chains + CHAINS_WORDS * 8,
    }
}

impl Memory {
    /// Makes memory for the program of this conversation.
    pub(crate) fn make(conversation: &Conversation, every_from_bytes: u64) -> io::Result<Self> {
        let own_number = conversation.hello.pid;
        Self::new(own_number, conversation.pid, every_from_bytes)
    }

    fn new(own_number: u32, founder: u32, every_from_bytes: u64) -> io::Result<Self> {
        let layout = layout();
        let made = Self {
            memory: Shared::zeroed("membound-allocations", layout.bytes)?,
            rings: vec![
                Reader {
                    thread: 0,
                    process: founder,
                    waited: 0,
                };
                OWN_RINGS + SHARED_RINGS
            ],
            used: UsedRings::default(),
            founder: (u64::from(own_number), founder),
            same_numbers: own_number == founder,
            patience: MAX_POLLS_OF_RESERVED_RECORD,
        };
        let halves = [
            (offset_of!(Allocations, rings), OWN_RINGS + SHARED_RINGS),
            (offset_of!(Allocations, shared_rings), SHARED_RINGS),
            (offset_of!(Allocations, depth), DEPTH as usize),
        ];
        for (offset, value) in halves {
            let value = u32::try_from(value).expect("rings are few");
            made.memory.word32(offset).store(value, Ordering::Relaxed);
        }
        let words = [
            (offset_of!(Allocations, every_from_bytes), every_from_bytes),
            (offset_of!(Allocations, rings_offset), layout.rings as u64),
            (offset_of!(Allocations, index_offset), layout.index as u64),
            (offset_of!(Allocations, index_words), INDEX_WORDS as u64),
            (offset_of!(Allocations, chains_offset), layout.chains as u64),
            (offset_of!(Allocations, chains_words), CHAINS_WORDS as u64),
            (offset_of!(Allocations, chains_used), 1),
        ];
        for (offset, value) in words {
            made.memory.word64(offset).store(value, Ordering::Release);
        }
        Ok(made)
    }

    /// Maps the memory into the program of this conversation and makes its agent use it.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), Failure> {
        let hung = self.memory.hang_and(conversation, maps, Order::allocations);
        hung.map(drop)
    }

    /// Sets the sampling level of small blocks.
    pub(crate) fn set_level(&self, level: u32) {
        self.memory
            .word32(offset_of!(Allocations, level))
            .store(level, Ordering::Release);
    }

    /// Number of allocations that the program's threads have timed, and the ticks that they took.
    pub(crate) fn timed(&self) -> (u64, u64) {
        let word = |offset: usize| self.memory.word64(offset).load(Ordering::Relaxed);
        (
            word(offset_of!(Allocations, timed)),
            word(offset_of!(Allocations, timed_ticks)),
        )
    }

    /// Prepares the last [`Self::drain`]: records that were reserved and not written are given up at once,
    /// and all rings are found.
    pub(crate) const fn finish(&mut self) {
        self.patience = 0;
        self.used.search_at_once();
    }

    /// Removes every complete event and passes it on; events of one thread are in order.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&ThreadRecord)) -> Drained {
        let homeless = self.memory.word64(offset_of!(Allocations, homeless));
        let mut drained = Drained {
            taken: 0,
            lost: homeless.swap(0, Ordering::Relaxed),
        };
        for index in self.used() {
            self.drain_one(index, &mut drained, &mut each);
        }
        drained
    }

    fn used(&mut self) -> Vec<usize> {
        let count = self.rings.len();
        let bytes = size_of::<AllocationRing>();
        let now = Instant::now();
        let used = self.used.look(now, &self.memory, ring(0), bytes, count);
        used.to_vec()
    }

    fn drain_one(
        &mut self,
        index: usize,
        drained: &mut Drained,
        each: &mut impl FnMut(&ThreadRecord),
    ) {
        const RECORDS: u64 = ALLOCATION_RECORDS as u64;
        /// Records freed together: the program may reuse the first of them while later ones are still being
        /// read.
        const FREED_TOGETHER: u64 = 4096;
        let ring = ring(index);
        let lost = self.memory.word32(ring + offset_of!(AllocationRing, lost));
        if lost.load(Ordering::Relaxed) != 0 {
            drained.lost += u64::from(lost.swap(0, Ordering::Relaxed));
        }
        let positions = Positions {
            head: self.memory.word64(ring + offset_of!(AllocationRing, head)),
            tail: self.memory.word64(ring + offset_of!(AllocationRing, tail)),
        };
        let Range {
            start: first,
            end: head,
        } = positions.to_read();
        if head == first {
            return;
        }
        let mut reader = self.rings[index];
        // A program that overwrites its own ring yields no more than the ring can hold.
        let waiting = head.wrapping_sub(first).min(RECORDS);
        let mut at = head.wrapping_sub(waiting);
        drained.lost += at.wrapping_sub(first);
        if at != first {
            reader.waited = 0;
        }
        while at != head {
            let slot = usize::try_from(at % RECORDS).unwrap_or(0);
            let (record, what) = self.record(ring, slot);
            if what.lap == AllocationWhat::lap_of(at) {
                reader.waited = 0;
                self.take(&mut reader, record, what, drained, each);
            } else if reader.waited < self.patience {
                reader.waited += 1;
                break;
            } else {
                // The thread that reserved it ended before it was written.
                reader.waited = 0;
                drained.lost += 1;
            }
            at = at.wrapping_add(1);
            if at.is_multiple_of(FREED_TOGETHER) {
                positions.free(at);
            }
        }
        self.rings[index] = reader;
        positions.free(at);
    }

    fn take(
        &self,
        reader: &mut Reader,
        record: AllocationRecord,
        what: AllocationWhat,
        drained: &mut Drained,
        each: &mut impl FnMut(&ThreadRecord),
    ) {
        if what.kind == AllocationKind::Thread as u8 {
            reader.thread = u32::try_from(record.address).unwrap_or(0);
            reader.process = self.process(record.size);
            return;
        }
        drained.taken += 1;
        each(&ThreadRecord {
            process: reader.process,
            thread: reader.thread,
            record,
            what,
        });
    }

    /// Number of a process in this namespace.
    fn process(&self, own_number: u64) -> u32 {
        if own_number == self.founder.0 || !self.same_numbers {
            return self.founder.1;
        }
        u32::try_from(own_number)
            .ok()
            .filter(|process| is_descendant(*process, self.founder.1))
            .unwrap_or(self.founder.1)
    }

    fn record(&self, ring: usize, slot: usize) -> (AllocationRecord, AllocationWhat) {
        let at = ring + offset_of!(AllocationRing, records) + slot * size_of::<AllocationRecord>();
        let what = self.memory.word32(at + offset_of!(AllocationRecord, what));
        let what = mark(what);
        let long = |offset: usize| self.memory.word64(at + offset).load(Ordering::Relaxed);
        let chain = self.memory.word32(at + offset_of!(AllocationRecord, chain));
        let record = AllocationRecord {
            tsc: long(offset_of!(AllocationRecord, tsc)),
            address: long(offset_of!(AllocationRecord, address)),
            size: long(offset_of!(AllocationRecord, size)),
            chain: chain.load(Ordering::Relaxed),
            what,
        };
        (record, AllocationWhat::of(what))
    }

    /// Return addresses of a chain, innermost first; empty if the chain does not exist.
    pub(crate) fn chain(&self, number: u32) -> Vec<u64> {
        const LENGTH_MASK: u64 = 0xffff;
        let chains = layout().chains;
        let word = |index: usize| {
            let inside = index > 0 && index < CHAINS_WORDS;
            inside.then(|| {
                self.memory
                    .word64(chains + index * 8)
                    .load(Ordering::Acquire)
            })
        };
        let first = number as usize;
        let length = word(first).map_or(0, |lead| lead & LENGTH_MASK);
        let length = usize::try_from(length.min(u64::from(DEPTH))).unwrap_or(0);
        (first + 1..=first + length).map_while(word).collect()
    }

    /// Frees the rings of threads that have ended.
    pub(crate) fn free(&mut self, mut each: impl FnMut(&ThreadRecord)) -> Drained {
        let mut drained = Drained::default();
        if !self.same_numbers {
            return drained;
        }
        for index in self.used() {
            if index >= OWN_RINGS {
                continue;
            }
            let at = ring(index) + offset_of!(AllocationRing, owner);
            let owner = owner(self.memory.word32(at));
            if owner == 0 || exists(owner) {
                continue;
            }
            self.drain_one(index, &mut drained, &mut each);
            // Another thread may have taken it meanwhile.
            let _ = claim(self.memory.word32(at), owner, 0);
        }
        drained
    }
}

/// Byte offset of a ring.
const fn ring(index: usize) -> usize {
    layout().rings + index * size_of::<AllocationRing>()
}

/// True if a thread of this number lives, or if that cannot be read.
fn exists(thread: u32) -> bool {
    let found = fs::metadata(format!("/proc/{thread}"));
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes as an agent does; without `complete` it omits the last word.
    fn write(memory: &Memory, index: usize, kind: AllocationKind, address: u64, complete: bool) {
        let ring = ring(index);
        let head = memory
            .memory
            .word64(ring + offset_of!(AllocationRing, head));
        let at = head.fetch_add(1, Ordering::Relaxed);
        let slot = (at % ALLOCATION_RECORDS as u64) as usize;
        let record =
            ring + offset_of!(AllocationRing, records) + slot * size_of::<AllocationRecord>();
        memory
            .memory
            .word64(record + offset_of!(AllocationRecord, address))
            .store(address, Ordering::Relaxed);
        memory
            .memory
            .word64(record + offset_of!(AllocationRecord, size))
            .store(7, Ordering::Relaxed);
        let what = AllocationWhat {
            function: 0,
            kind: kind as u8,
            level: 0,
            lap: AllocationWhat::lap_of(at),
        };
        if complete {
            memory
                .memory
                .word32(record + offset_of!(AllocationRecord, what))
                .store(what.packed(), Ordering::Release);
        }
    }

    #[test]
    fn events_come_out_once_in_order_and_with_their_thread() {
        let mut memory = Memory::new(7, 70, 4096).unwrap();
        let mut found = Vec::new();
        let mut expected = Vec::new();
        for round in 0..5_u64 {
            write(&memory, 1, AllocationKind::Thread, 40 + round, true);
            for address in 0..6000 {
                write(&memory, 1, AllocationKind::Allocated, address, true);
                expected.push((40 + round as u32, address));
            }
            let drained = memory.drain(|record| {
                assert_eq!(record.process, 70);
                found.push((record.thread, record.record.address));
            });
            assert_eq!((drained.taken, drained.lost), (6000, 0));
        }
        assert_eq!(found, expected);
        assert_eq!(memory.drain(|_| panic!()), Drained::default());
    }

    #[test]
    fn a_record_that_is_not_written_yet_is_waited_for_and_then_given_up() {
        let mut memory = Memory::new(7, 7, 4096).unwrap();
        write(&memory, 0, AllocationKind::Allocated, 1, true);
        write(&memory, 0, AllocationKind::Allocated, 2, false);
        write(&memory, 0, AllocationKind::Allocated, 3, true);
        let mut found = Vec::new();
        for _ in 0..MAX_POLLS_OF_RESERVED_RECORD {
            memory.drain(|record| found.push(record.record.address));
            assert_eq!(found, [1]);
        }
        let drained = memory.drain(|record| found.push(record.record.address));
        assert_eq!(found, [1, 3]);
        assert_eq!((drained.taken, drained.lost), (1, 1));
        write(&memory, 0, AllocationKind::Allocated, 4, false);
        memory.finish();
        assert_eq!(memory.drain(|_| panic!()).lost, 1);
    }

    #[test]
    fn whoever_overruns_a_ring_loses_what_was_overwritten() {
        let mut memory = Memory::new(7, 7, 4096).unwrap();
        let records = ALLOCATION_RECORDS as u64;
        for address in 0..records + 30 {
            write(&memory, 3, AllocationKind::Allocated, address, true);
        }
        let mut first = None;
        let drained = memory.drain(|record| {
            first.get_or_insert(record.record.address);
        });
        assert_eq!((drained.taken, drained.lost), (records, 30));
        assert_eq!(first, Some(30));
    }

    #[test]
    fn a_chain_is_read_as_far_as_it_goes() {
        let memory = Memory::new(7, 7, 4096).unwrap();
        let chains = layout().chains;
        for (index, word) in [0xabcd_0000_0000_0003, 10, 20, 30, 40]
            .into_iter()
            .enumerate()
        {
            memory
                .memory
                .word64(chains + (5 + index) * 8)
                .store(word, Ordering::Relaxed);
        }
        assert_eq!(memory.chain(5), [10, 20, 30]);
        assert!(memory.chain(0).is_empty());
        assert!(memory.chain(u32::MAX).is_empty());
        // A length that no agent has written.
        memory
            .memory
            .word64(chains + 50 * 8)
            .store(u64::MAX, Ordering::Relaxed);
        assert_eq!(memory.chain(50).len(), DEPTH as usize);
    }

    #[test]
    fn rings_of_threads_that_are_gone_are_free_again() {
        let own = std::process::id();
        let mut memory = Memory::new(own, own, 4096).unwrap();
        let owner = |memory: &Memory, index: usize| {
            let at = ring(index) + offset_of!(AllocationRing, owner);
            memory.memory.word32(at).load(Ordering::Relaxed)
        };
        for (index, thread) in [(0, u32::MAX), (1, own)] {
            let at = ring(index) + offset_of!(AllocationRing, owner);
            memory.memory.word32(at).store(thread, Ordering::Relaxed);
            write(&memory, index, AllocationKind::Freed, 5, true);
        }
        assert_eq!(memory.free(|_| {}).taken, 1);
        assert_eq!((owner(&memory, 0), owner(&memory, 1)), (0, own));
        assert_eq!(memory.drain(|_| {}).taken, 1);
    }
}
