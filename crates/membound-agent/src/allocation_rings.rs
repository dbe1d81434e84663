//! Writes events into rings that the launcher reads: see [`membound_wire::Allocations`].

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use membound_sync::record;
use membound_sync::ring::Positions;
use membound_wire::{
    ALLOCATION_RECORDS, AllocationKind, AllocationRecord, AllocationRing, AllocationWhat,
    Allocations,
};

use crate::thread_table::Thread;
use crate::words::{word32, word64};
use crate::{assembly, reported_blocks, sys};

/// Address of the memory; 0 without one.
static MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Records that stay free in a ring, for handlers that interrupt a thread between the check and the
/// reservation.
const SPARE: u64 = 64;
/// As [`SPARE`], for all the threads that share a ring.
const SPARE_SHARED: u64 = 2048;
/// Records that stay free for frees: a free that is not reported leaves a block that seems to live for
/// ever.
const SPARE_FOR_ENDS: u64 = 4096;
/// Lowest level at each filling of a ring, in sixteenths: (filling, level). Sampling early enough loses no
/// event and favours no block, as losing events would.
const PRESSURE: [(u64, u32); 3] = [(14, 12), (13, 9), (11, 6)];
/// Rings searched for one whose owner has ended.
const SEARCHED: u32 = 16;

/// Uses the memory at `address` from now on; 0: none.
pub(crate) fn set_memory(address: u64) {
    MEMORY.store(address as usize, Ordering::Release);
}

/// The shared memory in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    base: usize,
}

/// An event, without its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) tsc: u64,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) chain: u32,
    pub(crate) function: u8,
    pub(crate) kind: AllocationKind,
    pub(crate) level: u32,
}

/// The ring that a thread writes to.
#[derive(Clone, Copy, Debug)]
struct TargetRing {
    /// Address of the ring.
    ring: usize,
    shared: bool,
}

impl Shared {
    pub(crate) fn get() -> Option<Self> {
        let base = MEMORY.load(Ordering::Acquire);
        (base != 0).then_some(Self { base })
    }

    /// The 8 bytes at an offset of [`Allocations`].
    pub(crate) fn word(self, offset: usize) -> &'static AtomicU64 {
        word64(self.base + offset)
    }

    /// The 4 bytes at an offset of [`Allocations`].
    pub(crate) fn half(self, offset: usize) -> &'static AtomicU32 {
        word32(self.base + offset)
    }

    /// Address of the part whose offset is stored at `offset`.
    pub(crate) fn place(self, offset: usize) -> usize {
        self.base + self.word(offset).load(Ordering::Relaxed) as usize
    }

    fn ring(self, index: u32) -> usize {
        let rings = self.place(offset_of!(Allocations, rings_offset));
        rings + index as usize * size_of::<AllocationRing>()
    }

    /// Writes the event, or counts it as lost; returns whether it was written.
    pub(crate) fn report(self, thread: &Thread, event: &Event) -> bool {
        let Some(place) = self.place_of(thread) else {
            self.word(offset_of!(Allocations, homeless))
                .fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let step = if place.shared { 2 } else { 1 };
        let spare = match event.kind {
            AllocationKind::Allocated => SPARE_FOR_ENDS,
            AllocationKind::Freed | AllocationKind::Thread => 0,
        };
        let Some(index) = reserve(place, step, spare) else {
            word32(place.ring + offset_of!(AllocationRing, lost)).fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if place.shared {
            let marker = marker(thread.number.load(Ordering::Relaxed));
            write(place.ring, index, &marker);
        }
        write(place.ring, index.wrapping_add(step - 1), event);
        true
    }

    /// The level that the launcher has set.
    pub(crate) fn set_level(self) -> u32 {
        self.half(offset_of!(Allocations, level))
            .load(Ordering::Relaxed)
    }

    /// The level for the thread now: the launcher's, or a higher one if the ring or the set of blocks fills
    /// up faster than it is emptied.
    pub(crate) fn level(self, thread: &Thread) -> u32 {
        let level = self.set_level();
        let ring = self.place_of(thread).map_or(0, |place| {
            used(place).saturating_mul(16) / ALLOCATION_RECORDS as u64
        });
        let fullest = ring.max(u64::from(reported_blocks::sixteenths()));
        let least = PRESSURE
            .iter()
            .find(|(sixteenths, _)| fullest >= *sixteenths)
            .map_or(0, |(_, level)| *level);
        level.max(least)
    }

    /// Number of rings, and how many of them, the last ones, threads share.
    fn ring_counts(self) -> (u32, u32) {
        let count = |offset: usize| self.half(offset).load(Ordering::Relaxed);
        (
            count(offset_of!(Allocations, rings)),
            count(offset_of!(Allocations, shared_rings)),
        )
    }

    /// The thread's ring, or one that it shares; `None` when there are none.
    fn place_of(self, thread: &Thread) -> Option<TargetRing> {
        let index = match thread.ring.load(Ordering::Relaxed) {
            0 => self.claim(thread)?,
            index => index - 1,
        };
        let (rings, shared) = self.ring_counts();
        Some(TargetRing {
            ring: self.ring(index),
            shared: index >= rings.saturating_sub(shared),
        })
    }

    /// Claims a ring for a thread that has none, if possible a ring of its own; returns its index.
    #[cold]
    fn claim(self, thread: &Thread) -> Option<u32> {
        let number = thread.number.load(Ordering::Relaxed);
        let (rings, shared) = self.ring_counts();
        let own = rings.checked_sub(shared)?;
        let owner = |index: u32| word32(self.ring(index) + offset_of!(AllocationRing, owner));
        let take = |index: u32, found: u32| membound_sync::ring::claim(owner(index), found, number);
        let [ring, owner_before] = &thread.inherited;
        let inherited = ring.swap(0, Ordering::Relaxed).checked_sub(1);
        let inherited = inherited
            .filter(|&index| index < own && take(index, owner_before.load(Ordering::Relaxed)));
        // Numbers of threads are mostly consecutive, so the first ring tried is often free.
        let start = number.checked_rem(own).unwrap_or(0);
        let order = || (start..own).chain(0..start);
        let free = inherited.or_else(|| {
            order().find(|&index| owner(index).load(Ordering::Relaxed) == 0 && take(index, 0))
        });
        let process = sys::process();
        let found = free.or_else(|| {
            // A ring of a thread that has ended; the launcher finds those of children that have ended.
            order().take(SEARCHED as usize).find(|&index| {
                let found = owner(index).load(Ordering::Relaxed);
                !sys::thread_exists_anywhere(process, found) && take(index, found)
            })
        });
        let index = match found {
            Some(index) => index,
            None => own + number.checked_rem(shared)?,
        };
        thread.ring.store(index + 1, Ordering::Relaxed);
        if found.is_some() {
            let place = TargetRing {
                ring: self.ring(index),
                shared: false,
            };
            let marker = marker(number);
            // If there is no room for it, events are attributed to the ring's last owner.
            if let Some(at) = reserve(place, 1, 0) {
                write(place.ring, at, &marker);
            }
        }
        Some(index)
    }
}

/// Event that names the thread of the events that follow.
fn marker(number: u32) -> Event {
    Event {
        tsc: assembly::time_stamp(),
        address: u64::from(number),
        size: u64::from(sys::process()),
        chain: 0,
        function: 0,
        kind: AllocationKind::Thread,
        level: 0,
    }
}

/// Records of the ring that the launcher has not read yet.
fn used(place: TargetRing) -> u64 {
    record::used(Positions {
        head: word64(place.ring + offset_of!(AllocationRing, head)),
        tail: word64(place.ring + offset_of!(AllocationRing, tail)),
    })
}

/// Reserves `step` records of the ring, if that many are free beside `spare`.
fn reserve(place: TargetRing, step: u64, spare: u64) -> Option<u64> {
    let spare = spare + if place.shared { SPARE_SHARED } else { SPARE };
    if used(place).saturating_add(step + spare) > ALLOCATION_RECORDS as u64 {
        return None;
    }
    let head_at = place.ring + offset_of!(AllocationRing, head);
    Some(if place.shared {
        record::reserve(word64(head_at), step)
    } else {
        // SAFETY: the ring is mapped, and only this thread reserves in it.
        unsafe { assembly::take(head_at, step) }
    })
}

fn write(ring: usize, index: u64, event: &Event) {
    let slot = (index % ALLOCATION_RECORDS as u64) as usize;
    let at = ring + offset_of!(AllocationRing, records) + slot * size_of::<AllocationRecord>();
    let long = |offset: usize, value: u64| word64(at + offset).store(value, Ordering::Relaxed);
    long(offset_of!(AllocationRecord, tsc), event.tsc);
    long(offset_of!(AllocationRecord, address), event.address);
    long(offset_of!(AllocationRecord, size), event.size);
    word32(at + offset_of!(AllocationRecord, chain)).store(event.chain, Ordering::Relaxed);
    let what = AllocationWhat {
        function: event.function,
        kind: event.kind as u8,
        level: event.level as u8,
        lap: AllocationWhat::lap_of(index),
    };
    record::complete(
        word32(at + offset_of!(AllocationRecord, what)),
        what.packed(),
    );
}
