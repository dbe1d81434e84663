//! Rings of records, shared with the programs of one process image and the children that
//! it forks.
//!
//! Both sides access every word atomically. This side moves the tails, takes the counts of lost records,
//! and frees the rings of threads that have ended. A program can write anything into its rings: at worst
//! its own records are wrong.

use std::fs;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use membound_platform::stat;
use membound_sync::ring::{Positions, disown, owner};
use membound_wire::{RECORDS, Record, Ring, RingSet};

use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::memory::{Shared, UsedRings};
use crate::orders::Order;

/// Offset of the lost records that belong to bursts.
const LOST_OF_BURSTS: usize = offset_of!(Ring, rest) + 2 * size_of::<u64>();

/// The rings of one process image.
#[derive(Debug)]
pub(crate) struct Rings {
    pub(crate) memory: Shared,
    count: usize,
    /// Indices of rings that were ever used.
    used: UsedRings,
    /// Owner of each ring at the last poll.
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

/// Process and thread of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) process: u32,
    pub(crate) thread: u32,
}

/// Records found at a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    pub(crate) taken: u64,
    pub(crate) lost: u64,
    /// Part of these that belongs to bursts, whose rings are expected to fill.
    pub(crate) lost_in_bursts: u64,
}

impl Rings {
    /// Makes rings for `count` threads at a time, for the program of this conversation.
    pub(crate) fn make(conversation: &Conversation, count: u32) -> io::Result<Self> {
        let elsewhere = conversation.hello.pid != conversation.pid;
        Self::new(count, conversation.pid, elsewhere)
    }

    fn new(count: u32, founder: u32, elsewhere: bool) -> io::Result<Self> {
        let threads = count as usize;
        let bytes = size_of::<RingSet>() + threads * size_of::<Ring>();
        let rings = Self {
            memory: Shared::zeroed("membound-rings", bytes)?,
            count: threads,
            used: UsedRings::default(),
            owners: vec![Owner::default(); threads],
            founder,
            elsewhere,
        };
        rings
            .memory
            .word32(offset_of!(RingSet, rings))
            .store(count, Ordering::Release);
        Ok(rings)
    }

    /// Maps them into the program of this conversation and makes its agent use them.
    pub(crate) fn hang(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), Failure> {
        let hung = self.memory.hang_and(conversation, maps, Order::rings);
        hung.map(drop)
    }

    /// Makes the next [`Self::drain`] find all rings, including those that threads have just begun to use.
    pub(crate) const fn find_all(&mut self) {
        self.used.search_at_once();
    }

    /// Removes every record and passes it on; records of one thread are in order.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Origin, &Record)) -> Drained {
        let homeless = self.memory.word64(offset_of!(RingSet, homeless));
        let mut drained = Drained {
            taken: 0,
            lost: homeless.swap(0, Ordering::Relaxed),
            lost_in_bursts: 0,
        };
        for index in self.used() {
            self.drain_one(index, &mut drained, &mut each);
        }
        drained
    }

    fn used(&mut self) -> Vec<usize> {
        let (first, bytes) = (Self::ring(0), size_of::<Ring>());
        let now = Instant::now();
        let used = self.used.look(now, &self.memory, first, bytes, self.count);
        used.to_vec()
    }

    fn drain_one(
        &mut self,
        index: usize,
        drained: &mut Drained,
        each: &mut impl FnMut(Origin, &Record),
    ) {
        let ring = Self::ring(index);
        let Range {
            start: tail,
            end: head,
        } = self.positions(index).to_read();
        let lost = self.memory.word32(ring + offset_of!(Ring, lost));
        if lost.load(Ordering::Relaxed) != 0 {
            // The part first, so that it never exceeds the whole.
            let of_bursts = self.memory.word64(ring + LOST_OF_BURSTS);
            drained.lost_in_bursts += of_bursts.swap(0, Ordering::Relaxed);
            drained.lost += u64::from(lost.swap(0, Ordering::Relaxed));
        }
        if head == tail {
            return;
        }
        let origin = self.origin(index);
        // A program that overwrites its own ring yields no more than the ring can hold.
        let waiting = head.wrapping_sub(tail).min(RECORDS as u64);
        for at in head.wrapping_sub(waiting)..head {
            let slot = usize::try_from(at % RECORDS as u64).unwrap_or(0);
            each(origin, &self.record(index, slot));
        }
        drained.taken += waiting;
        self.positions(index).free(head);
    }

    fn positions(&self, index: usize) -> Positions<'_> {
        let ring = Self::ring(index);
        Positions {
            head: self.memory.word64(ring + offset_of!(Ring, head)),
            tail: self.memory.word64(ring + offset_of!(Ring, tail)),
        }
    }

    fn record(&self, ring: usize, slot: usize) -> Record {
        let at = Self::ring(ring) + offset_of!(Ring, records) + slot * size_of::<Record>();
        let long = |offset: usize| self.memory.word64(at + offset).load(Ordering::Relaxed);
        let word = |offset: usize| self.memory.word32(at + offset).load(Ordering::Relaxed);
        let module_and_flags = word(offset_of!(Record, module)).to_ne_bytes();
        let [module_low, module_high, flags_low, flags_high] = module_and_flags;
        let [hit_low, hit_high, drain_low, drain_high] =
            word(offset_of!(Record, hit)).to_ne_bytes();
        Record {
            tsc: long(offset_of!(Record, tsc)),
            address: long(offset_of!(Record, address)),
            site: word(offset_of!(Record, site)),
            module: u16::from_ne_bytes([module_low, module_high]),
            flags: u16::from_ne_bytes([flags_low, flags_high]),
            ticks: word(offset_of!(Record, ticks)),
            hit: u16::from_ne_bytes([hit_low, hit_high]),
            drain: u16::from_ne_bytes([drain_low, drain_high]),
        }
    }

    /// Process and thread that write into a ring. The process of a thread can be read while the thread
    /// lives.
    fn origin(&mut self, index: usize) -> Origin {
        let owner = self
            .memory
            .word32(Self::ring(index) + offset_of!(Ring, owner));
        let thread = owner.load(Ordering::Relaxed);
        if self.owners[index].thread != thread {
            let process = (!self.elsewhere).then(|| process_of(thread, self.founder));
            self.owners[index] = Owner {
                thread,
                process: process.flatten().unwrap_or(self.founder),
            };
        }
        Origin {
            process: self.owners[index].process,
            thread,
        }
    }

    /// Frees the rings of threads that have ended, after draining what they wrote last: see
    /// [`Self::drain`].
    pub(crate) fn free(&mut self, mut each: impl FnMut(Origin, &Record)) -> Drained {
        let mut drained = Drained::default();
        if self.elsewhere {
            return drained;
        }
        for index in self.used() {
            let ring = Self::ring(index);
            let thread = owner(self.memory.word32(ring + offset_of!(Ring, owner)));
            if thread == 0 || exists(thread) {
                continue;
            }
            self.drain_one(index, &mut drained, &mut each);
            // A process that was killed while it wrote left its mark.
            self.memory
                .word64(ring + offset_of!(Ring, rest))
                .store(0, Ordering::Relaxed);
            // Another thread may have got the number meanwhile, and then be the owner: it takes a ring
            // again when it finds that it has none.
            disown(self.memory.word32(ring + offset_of!(Ring, owner)));
        }
        drained
    }

    /// Byte offset of a ring.
    const fn ring(index: usize) -> usize {
        size_of::<RingSet>() + index * size_of::<Ring>()
    }
}

/// True if a thread of this number lives, or if that cannot be read.
pub(crate) fn exists(thread: u32) -> bool {
    let found = fs::metadata(format!("/proc/{thread}"));
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The process that a thread of `founder` or of its forked children belongs to.
pub(crate) fn process_of(thread: u32, founder: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    let process = line.trim().parse().ok()?;
    is_descendant(process, founder).then_some(process)
}

/// False if `process` is older than `founder`, so that it was not forked from it: a child in a process
/// namespace of its own calls itself 1, which is another process here.
pub(crate) fn is_descendant(process: u32, founder: u32) -> bool {
    let started = |pid: u32| stat::started(pid).ok();
    started(process)
        .zip(started(founder))
        .is_none_or(|(one, first)| one >= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_process_is_no_descendant() {
        let own = std::process::id();
        assert!(is_descendant(own, own) && !is_descendant(1, own));
        assert_eq!(process_of(1, own), None);
        assert_eq!(process_of(own, own), Some(own));
    }

    /// Writes as an agent does.
    fn write(rings: &Rings, ring: usize, owner: u32, addresses: std::ops::Range<u64>) {
        let at = Rings::ring(ring);
        rings.memory.word32(at).store(owner, Ordering::Relaxed);
        for address in addresses {
            let head = rings.memory.word64(at + offset_of!(Ring, head));
            let tail = rings.memory.word64(at + offset_of!(Ring, tail));
            let next = head.load(Ordering::Relaxed);
            if next - tail.load(Ordering::Relaxed) >= RECORDS as u64 {
                rings
                    .memory
                    .word32(at + offset_of!(Ring, lost))
                    .fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let slot = (next % RECORDS as u64) as usize;
            let record = at + offset_of!(Ring, records) + slot * size_of::<Record>();
            rings
                .memory
                .word64(record + offset_of!(Record, address))
                .store(address, Ordering::Relaxed);
            rings
                .memory
                .word32(record + offset_of!(Record, module))
                .store(0x0003_0102, Ordering::Relaxed);
            head.store(next + 1, Ordering::Release);
        }
    }

    #[test]
    fn records_come_out_once_and_in_order() {
        let mut rings = Rings::new(2, 7, true).unwrap();
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for round in 0..5 {
            let addresses = round * 1000..round * 1000 + 600;
            write(&rings, 1, 42, addresses.clone());
            expected.extend(addresses);
            let drained = rings.drain(|origin, record| {
                let from = Origin {
                    process: 7,
                    thread: 42,
                };
                assert_eq!(origin, from);
                if cfg!(target_endian = "little") {
                    assert_eq!((record.module, record.flags), (0x102, 3));
                }
                found.push(record.address);
            });
            assert_eq!((drained.taken, drained.lost), (600, 0));
        }
        assert_eq!(found, expected);
        assert_eq!(rings.drain(|_, _| panic!()), Drained::default());
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted() {
        let mut rings = Rings::new(1, 7, true).unwrap();
        write(&rings, 0, 42, 0..RECORDS as u64 + 30);
        let mut last = None;
        let drained = rings.drain(|_, record| last = Some(record.address));
        assert_eq!((drained.taken, drained.lost), (RECORDS as u64, 30));
        assert_eq!(last, Some(RECORDS as u64 - 1));
    }

    #[test]
    fn rings_of_threads_that_are_gone_are_free_again() {
        let mut rings = Rings::new(2, 7, false).unwrap();
        let own = std::process::id();
        // Above the largest number that the kernel gives.
        write(&rings, 0, u32::MAX, 0..10);
        write(&rings, 1, own, 0..10);
        let mut found = Vec::new();
        let drained = rings.free(|origin, _| found.push(origin.process));
        assert_eq!(drained.taken, 10);
        assert_eq!(found, [7; 10]);
        let owner = |ring| {
            rings
                .memory
                .word32(Rings::ring(ring))
                .load(Ordering::Relaxed)
        };
        assert_eq!((owner(0), owner(1)), (0, own));
        let drained = rings.drain(|origin, _| assert_eq!(origin.process, own));
        assert_eq!(drained.taken, 10);
    }
}
