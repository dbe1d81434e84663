//! Probes whose countdown ran out, and recording bursts: writes records into the thread's ring.
//!
//! A thread finds its ring by its number and keeps it; the launcher takes back the rings of threads that
//! have ended. The program never waits: if the ring is full, or none is free, the record is lost and
//! counted.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_sync::ring::{self, Positions};
use membound_wire::{Entry, LEAD_IN, Probe, RECORDS, Record, Ring, RingSet, SLOTS_BYTES, Slots};

use crate::sample_rings::RINGS;
use crate::saved_registers::SavedRegisters;
use crate::{assembly, control, memory, sys};

const OWNER: usize = core::mem::offset_of!(Ring, owner);
const LOST: usize = core::mem::offset_of!(Ring, lost);
const HEAD: usize = core::mem::offset_of!(Ring, head);
const TAIL: usize = core::mem::offset_of!(Ring, tail);
/// The stack pointer of the call that is writing; 0: none is.
const WRITER: usize = core::mem::offset_of!(Ring, rest);
/// Not 0 if a record was lost since the last one written.
const GAP: usize = WRITER + size_of::<u64>();
/// Lost records that belong to bursts.
const LOST_OF_BURSTS: usize = GAP + size_of::<u64>();
const FIRST_RECORD: usize = core::mem::offset_of!(Ring, records);

const STORE_BIT: u32 = 1 << 31;
const STORE: u16 = 1;
const TIMED: u16 = 2;
const AFTER_GAP: u16 = 4;
const BURST: u16 = 8;

/// [`Entry::Sample`]: records the timed load and restarts the countdown.
pub(crate) fn sample(frame: &SavedRegisters) {
    let slots = slots_of(frame, Entry::Sample);
    let site = frame.arguments[0] as u32;
    rearm(slots, site & !STORE_BIT);
    control::start_in_forked_child();
    let timed = if frame.arguments[2] == 0 { 0 } else { TIMED };
    write(frame, slots, site, timed);
}

/// [`Entry::Record`]: records the access.
pub(crate) fn record(frame: &SavedRegisters) {
    let slots = slots_of(frame, Entry::Record);
    let burst = word32(slots + core::mem::offset_of!(Slots, burst));
    let accesses_left = burst.load(Ordering::Relaxed);
    if accesses_left != 0 && accesses_left != u32::MAX {
        burst.store(accesses_left - 1, Ordering::Relaxed);
    }
    control::start_in_forked_child();
    write(frame, slots, frame.arguments[0] as u32, BURST);
}

/// The slots of the calling area: the call was `call [rip + slot]`, so the four bytes before the return
/// address give the slot's address.
fn slots_of(frame: &SavedRegisters, entry: Entry) -> usize {
    let after = frame.return_address as usize;
    // SAFETY: the trampoline's call instruction ends there.
    let displacement: i32 = unsafe { memory::get(after - 4) };
    after
        .wrapping_add_signed(displacement as isize)
        .wrapping_sub(core::mem::offset_of!(Slots, entries) + entry as usize * 8)
}

fn rearm(slots: usize, site: u32) {
    let place = slots + SLOTS_BYTES + site as usize * size_of::<Probe>();
    // SAFETY: the trampoline has just counted in this probe.
    let probe: Probe = unsafe { memory::get(place) };
    // SAFETY: the slots lie before the probes.
    let usual: u32 = unsafe { memory::get(slots + core::mem::offset_of!(Slots, period)) };
    let counted = i64::from(probe.armed) - i64::from(probe.countdown);
    let counted = probe.done.wrapping_add_signed(counted);
    let samples_left = probe.left.saturating_sub(1);
    let armed = match (probe.period, samples_left) {
        (0, _) => interval(usual, assembly::time_stamp() ^ place as u64),
        // Enough samples were taken: the probe only counts from now on.
        (_, 0) => i32::MAX,
        (period, _) => interval(period, assembly::time_stamp() ^ place as u64),
    };
    // The launcher's word is not written. A count that another thread makes meanwhile may be lost, which
    // the format permits.
    // SAFETY: as above.
    unsafe { memory::put(place + core::mem::offset_of!(Probe, left), samples_left) };
    // SAFETY: as above.
    unsafe { memory::put(place + core::mem::offset_of!(Probe, done), counted) };
    // In one store: a reader between two stores would compute a wrong count.
    let pair = u64::from(armed as u32) << 32 | u64::from(armed as u32);
    // SAFETY: as above; `countdown` and `armed` are the first eight bytes.
    unsafe { memory::put(place, pair) };
}

/// Countdown to the next sample, after a number of executions that is drawn uniformly from 1 to twice
/// `period`, so that sampling does not lock onto a period of the program.
fn interval(period: u32, seed: u64) -> i32 {
    let mut state = seed | 1;
    // One round of xorshift64* (Vigna 2016): the low bits of the counter alone come in steps.
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    let drawn = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
    let span = (u64::from(period) * 2).clamp(1, i32::MAX as u64);
    ((drawn * span) >> 32) as i32 + 1 - LEAD_IN
}

/// A word of the shared rings.
fn word32(address: usize) -> &'static AtomicU32 {
    // SAFETY: the rings stay mapped for the session, and both sides use atomics.
    unsafe { &*(address as *const AtomicU32) }
}

fn word64(address: usize) -> &'static AtomicU64 {
    // SAFETY: as for 32 bits.
    unsafe { &*(address as *const AtomicU64) }
}

/// The calling thread's ring.
fn ring() -> Option<usize> {
    let set = RINGS.load(Ordering::Acquire);
    if set == 0 {
        return None;
    }
    let count = word32(set + core::mem::offset_of!(RingSet, rings)).load(Ordering::Relaxed);
    let thread = sys::thread();
    let place = |index: u32| set + size_of::<RingSet>() + index as usize * size_of::<Ring>();
    // Numbers of threads are mostly consecutive, so the first ring tried is nearly always the right one.
    let start = thread.checked_rem(count)?;
    let order = (start..count).chain(0..start);
    for index in order {
        let owner = word32(place(index) + OWNER);
        let found = owner.load(Ordering::Relaxed);
        let taken = found == thread || (found == 0 && ring::claim(owner, 0, thread));
        if taken {
            return Some(place(index));
        }
    }
    word64(set + core::mem::offset_of!(RingSet, homeless)).fetch_add(1, Ordering::Relaxed);
    None
}

/// Ticks in the width of a record's field, saturated.
fn short(ticks: u64) -> u16 {
    u16::try_from(ticks).unwrap_or(u16::MAX)
}

/// Counts a record with these flags as lost.
fn lose(ring: usize, flags: u16) {
    if flags & BURST != 0 {
        word64(ring + LOST_OF_BURSTS).fetch_add(1, Ordering::Relaxed);
    }
    word32(ring + LOST).fetch_add(1, Ordering::Relaxed);
    word64(ring + GAP).store(1, Ordering::Relaxed);
}

fn write(frame: &SavedRegisters, slots: usize, site: u32, flags: u16) {
    let Some(ring) = ring() else {
        return;
    };
    let stack = (&raw const *frame) as u64;
    let writer = word64(ring + WRITER);
    let outer = writer.load(Ordering::Relaxed);
    // A handler that interrupts a writing call of its own thread, deeper in the stack, must not mix its
    // record with that one. A writer that is deeper than this call was left by a long jump.
    if outer != 0 && outer > stack {
        lose(ring, flags);
        return;
    }
    writer.store(stack, Ordering::Relaxed);
    let positions = Positions {
        head: word64(ring + HEAD),
        tail: word64(ring + TAIL),
    };
    let (head, used) = positions.to_write();
    if used >= RECORDS as u64 {
        lose(ring, flags);
    } else {
        // SAFETY: the slots are where the trampoline's call found its target.
        let module: u32 = unsafe { memory::get(slots + core::mem::offset_of!(Slots, module)) };
        let store = if site & STORE_BIT != 0 { STORE } else { 0 };
        let gap = word64(ring + GAP);
        let gap = if gap.load(Ordering::Relaxed) != 0 {
            gap.store(0, Ordering::Relaxed);
            AFTER_GAP
        } else {
            0
        };
        let record = Record {
            tsc: assembly::time_stamp(),
            address: frame.arguments[1],
            site: site & !STORE_BIT,
            module: module as u16,
            flags: flags | store | gap,
            ticks: if flags & TIMED != 0 {
                u32::try_from(frame.arguments[2]).unwrap_or(u32::MAX)
            } else {
                0
            },
            hit: if flags & TIMED != 0 {
                short(frame.arguments[3])
            } else {
                0
            },
            drain: if flags & BURST == 0 {
                short(frame.arguments[4])
            } else {
                0
            },
        };
        let index = (head % RECORDS as u64) as usize;
        let place = ring + FIRST_RECORD + index * size_of::<Record>();
        // SAFETY: the index is inside the ring, which this thread owns, and the launcher
        // does not read it before `head` has passed it.
        unsafe { memory::put(place, record) };
        positions.publish(head.wrapping_add(1));
    }
    writer.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_even_from_one_to_twice_the_period() {
        let period = 1000;
        let mut sum = 0_i64;
        let rounds = 100_000;
        for turn in 0..rounds {
            // Time stamps come in quanta; 26 ticks on the machine that this was written on.
            let drawn = interval(period, 0x1234_5678_9abc + turn * 26 * 37);
            let executions = drawn + LEAD_IN;
            assert!((1..=2000).contains(&executions), "{executions}");
            sum += i64::from(executions);
        }
        let mean = sum as f64 / rounds as f64;
        // Six standard errors of a uniform distribution's mean.
        assert!((mean - 1000.5).abs() < 11.0, "{mean}");
        assert_eq!(interval(0, 99), 1 - LEAD_IN);
    }
}
