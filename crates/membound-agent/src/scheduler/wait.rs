//! Short waits of the program's threads: instead of waiting in the kernel for some microseconds, a thread
//! yields.
//!
//! To the program, a thread that has not made its call yet looks like one that was slow to make it; the
//! kernel may delay any thread like that at any time. So it is correct to check between time slices whether
//! the call would return at once, and to make the call only then or after a while. Meanwhile the thread
//! keeps its processor: if other threads want that, waits are left to the kernel.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use membound_wire::{CREDIT_UNITS_PER_NS, ControlPage, Idle};

use super::page::{add_to_counter, control_page, idle, ns_of, ticks_of};
use super::thread_slot::ThreadSlot;
use super::waits::Waits;
use super::{admission, ending, finish};
use crate::saved_registers::{SavedRegisters, Wait};
use crate::sys::{self, call, number};
use crate::{assembly, memory, syscall_filter, threads, words};

/// How long, in nanoseconds, a thread yields that does not know how long it waits. A wait that is known to
/// be longer is left to the kernel.
const MAX_YIELDED_WAIT_NS: u64 = 100_000;
/// Least credit of a slice in a wait, and so how late the end of the wait may be noticed. The kernel takes
/// longer to wake a thread.
const WAIT_SLICE_CREDIT: i32 = 400 * CREDIT_UNITS_PER_NS;
/// Nanoseconds since the last entry below which an entry with the same arguments continues the same wait.
const SAME_WAIT_GAP_NS: u64 = 50_000;
/// Every how many entries descriptors are polled, which costs a system call.
const CALLS_PER_DESCRIPTOR_POLL: u32 = 4;
/// Most descriptors that are polled at one time.
const MAX_DESCRIPTORS: u64 = 16;
/// After waits that were too long, the next waits are left to the kernel: 1 at first, then twice as many
/// each time, 2 to this power at most.
const MAX_PAUSE_DOUBLINGS: u32 = 6;
/// Share of the time, in 1024, that a thread may spend waiting for a processor before other threads count
/// as wanting it.
const MAX_DELAY_SHARE: u64 = 50;
/// Judgements for which its waits are then left to the kernel, at first.
const FIRST_PAUSE_JUDGEMENTS: u32 = 10;
/// The same at most.
const MAX_PAUSE_JUDGEMENTS: u32 = 640;
/// Policies of threads that the kernel schedules before all others: `SCHED_FIFO`, `SCHED_RR`,
/// `SCHED_DEADLINE`. Other threads would never get the processor.
const REALTIME_POLICIES: [isize; 3] = [1, 2, 6];

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// A duration, in nanoseconds.
    Time(u64),
    /// A time in nanoseconds, and the kernel's clock for it.
    Until(u64, u32),
    /// The word at an address to differ from a value.
    Word(u64, u32),
    /// Descriptors: address and number of the `pollfd` entries.
    Descriptors(u64, u64),
    /// One descriptor to become readable.
    Input(u64),
}

/// The end of a wait.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Time stamp at which it is checked.
    at: u64,
    /// As [`Waits::until_ns`].
    until_ns: u64,
    clock: u32,
}

/// [`membound_wire::Entry::Wait`]: answers whether the thread yields, makes its call, or need not make it.
pub(crate) extern "C" fn on_wait(frame: &mut SavedRegisters) {
    if syscall_filter::may_apply() {
        return frame.waits(Wait::Call);
    }
    // As at a yield, which the thread may never reach: it gets a run queue, or looks for ready scavengers.
    if own_slot().is_none_or(|slot| slot.owner.load(Ordering::Relaxed) == 0) {
        super::on_yield(frame);
    }
    let answer = own_slot().map_or(Wait::Call, |slot| slot.wait(frame));
    frame.waits(answer);
}

/// The slot of the calling thread, if it has one of its own. Unlike [`ThreadSlot::own`] it makes no system
/// call.
fn own_slot() -> Option<&'static ThreadSlot> {
    let slot = ThreadSlot::of_thread()?;
    (slot.base.load(Ordering::Relaxed) == assembly::thread_pointer()).then_some(slot)
}

impl ThreadSlot {
    fn wait(&self, frame: &SavedRegisters) -> Wait {
        let waits = &self.waits;
        let now = assembly::time_stamp();
        let key = key_of(frame);
        let last_entry = waits.asked.swap(now, Ordering::Relaxed);
        let present_key = waits.key.load(Ordering::Relaxed);
        let same_wait =
            present_key == key && now.saturating_sub(last_entry) < ticks_of(SAME_WAIT_GAP_NS);
        if present_key != 0 && !same_wait {
            // For example a handler has left it, or other threads had the processor for long.
            self.end_wait(last_entry, true);
        }
        if !same_wait {
            let Some(end) = self
                .next_scavenger()
                .and_then(|_| waits.begin_wait(frame, now))
            else {
                return Wait::Call;
            };
            // The key first: a handler that interrupts here and waits itself clears it, so this wait starts
            // anew at its next entry, whatever it finds of the handler's values.
            waits.key.store(key, Ordering::SeqCst);
            waits.begun.store(now, Ordering::Relaxed);
            waits.end.store(end.at, Ordering::Relaxed);
            waits.until_ns.store(end.until_ns, Ordering::Relaxed);
            waits.clock.store(end.clock, Ordering::Relaxed);
            waits.polls.store(0, Ordering::Relaxed);
        }
        let is_sleep = is_sleep(frame);
        if is_sleep && now >= waits.end.load(Ordering::Relaxed) {
            let until_ns = waits.until_ns.load(Ordering::Relaxed);
            let left_ns = left_ns(until_ns, waits.clock.load(Ordering::Relaxed));
            if waits.key.load(Ordering::SeqCst) != key {
                return Wait::Call;
            }
            if left_ns == 0 {
                self.end_wait(now, true);
                // The sleep is over without a system call.
                return Wait::Done;
            }
            waits.end.store(now + ticks_of(left_ns), Ordering::Relaxed);
        }
        let over = now >= waits.end.load(Ordering::Relaxed);
        let ready = !is_sleep && waits.is_ready(frame);
        if over || ready || !self.claim_slice() {
            self.end_wait(now, ready || is_sleep);
            return Wait::Call;
        }
        waits.turns.fetch_add(1, Ordering::Relaxed);
        Wait::Yield
    }

    /// The context that may have a slice now, behind the slot's own contexts: phases measure what slices in
    /// stalls cost the program, and timing measures stalls. `None` if no context may have one; in phases
    /// without scavengers that includes waits where requests are compared.
    fn next_scavenger(&self) -> Option<u64> {
        if idle() != Idle::Harvest || finish::has_program_ended() || ending::is_requested() {
            return None;
        }
        let compared = control_page().is_some_and(|control_page| control_page.phase_looks != 0);
        if compared && !admission::are_admitted() {
            return None;
        }
        let next = self.next.load(Ordering::Relaxed);
        let before = [&self.stopwatch, &self.empty_slice];
        let before = before.into_iter().find(|own| own.address() == next);
        let next = before.map_or(next, |own| own.next.load(Ordering::Relaxed));
        self.is_member(next).then_some(next)
    }

    /// Makes the next slice one of a wait, if a context may have it.
    fn claim_slice(&self) -> bool {
        let mut claimed = false;
        self.change_next(|| {
            if let Some(next) = self.next_scavenger() {
                self.next.store(next, Ordering::Relaxed);
                claimed = true;
            }
        });
        if claimed {
            let span = control_page().map_or(WAIT_SLICE_CREDIT, |control_page| {
                control_page.span.max(WAIT_SLICE_CREDIT)
            });
            self.span.store(span, Ordering::Relaxed);
            // The thread itself waits, so a scavenger need not be skipped for the sake of its own miss.
            self.skips.store(0, Ordering::Relaxed);
        }
        claimed
    }

    /// Ends the wait; the thread continues here or makes its call.
    fn end_wait(&self, now: u64, was_short: bool) {
        let waits = &self.waits;
        waits.key.store(0, Ordering::Relaxed);
        let lasted = now.saturating_sub(waits.begun.load(Ordering::Relaxed));
        waits.waited_ns.fetch_add(ns_of(lasted), Ordering::Relaxed);
        self.set_stall_slices();
        self.change_next(|| {
            let next = self.next.load(Ordering::Relaxed);
            if !admission::are_admitted() && self.is_member(next) {
                self.begin_with(&self.empty_slice, next);
            }
        });
        if was_short {
            waits.long.store(0, Ordering::Relaxed);
        } else {
            let long = waits.long.load(Ordering::Relaxed).min(MAX_PAUSE_DOUBLINGS);
            waits.pause.store(1 << long, Ordering::Relaxed);
            waits.long.store(long + 1, Ordering::Relaxed);
        }
    }

    /// Reports the waits since the last call: returns the number of their slices and their duration in
    /// nanoseconds.
    pub(super) fn account_for_waits(&self) -> (u64, u64) {
        let waits = &self.waits;
        let since = |now: &AtomicU64, reported: &AtomicU64| {
            let now = now.load(Ordering::Relaxed);
            now.saturating_sub(reported.swap(now, Ordering::Relaxed))
        };
        let slices = since(&waits.turns, &waits.reported_slices);
        let waited_ns = since(&waits.waited_ns, &waits.reported_ns);
        if slices > 0 {
            add_to_counter(offset_of!(ControlPage, wait_turns), slices);
            add_to_counter(offset_of!(ControlPage, waited_ns), waited_ns);
        }
        (slices, waited_ns)
    }

    /// Checks whether other threads want the processor that its thread keeps in waits.
    pub(super) fn judge_waits(&self, thread: u32, since_ns: u64) {
        let waits = &self.waits;
        // SAFETY: it touches no memory.
        let policy = unsafe { call(number::SCHED_GETSCHEDULER, [thread as usize, 0, 0, 0, 0, 0]) };
        if REALTIME_POLICIES.contains(&policy) {
            waits
                .paused_judgements
                .store(MAX_PAUSE_JUDGEMENTS, Ordering::Relaxed);
            return;
        }
        let judgements_left = waits.paused_judgements.load(Ordering::Relaxed);
        let Some(delay_ns) = threads::delay_ns(thread) else {
            return;
        };
        let before = waits.delay_ns.swap(delay_ns, Ordering::Relaxed);
        if judgements_left > 0 {
            waits
                .paused_judgements
                .store(judgements_left - 1, Ordering::Relaxed);
            return;
        }
        let delayed_ns = delay_ns.saturating_sub(before);
        if before != 0 && delayed_ns.saturating_mul(1024) / since_ns.max(1) > MAX_DELAY_SHARE {
            let pause = waits
                .next_paused_judgements
                .load(Ordering::Relaxed)
                .max(FIRST_PAUSE_JUDGEMENTS);
            waits.paused_judgements.store(pause, Ordering::Relaxed);
            let next = (2 * pause).min(MAX_PAUSE_JUDGEMENTS);
            waits.next_paused_judgements.store(next, Ordering::Relaxed);
        }
    }
}

impl Waits {
    /// End of a wait that begins now; `None` if it is left to the kernel.
    fn begin_wait(&self, frame: &SavedRegisters, now: u64) -> Option<End> {
        if self.paused_judgements.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let (sleeps_ns, until_ns, clock) = match awaited(frame)? {
            // A sleep of no time lets other threads run.
            Awaited::Time(0) => return None,
            // The kernel's clocks may run faster than the counter, by one part in two thousand.
            Awaited::Time(ns) => (Some(ns.saturating_add(ns / 1024 + 30)), u64::MAX, 0),
            // Also one whose time has passed: the kernel would set a timer for it.
            Awaited::Until(until_ns, clock) => (Some(left_ns(until_ns, clock)), until_ns, clock),
            Awaited::Word(..) | Awaited::Descriptors(..) | Awaited::Input(_) => (None, u64::MAX, 0),
        };
        let end = |ns| End {
            at: now + ticks_of(ns),
            until_ns,
            clock,
        };
        if let Some(ns) = sleeps_ns {
            return (ns <= MAX_YIELDED_WAIT_NS).then(|| end(ns));
        }
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
            return None;
        }
        Some(end(MAX_YIELDED_WAIT_NS))
    }

    /// True if the call would return at once.
    fn is_ready(&self, frame: &SavedRegisters) -> bool {
        match awaited(frame) {
            Some(Awaited::Word(address, value)) => {
                // The kernel reports a wrong address to the program.
                !sys::readable(address)
                    || words::word32(address as usize).load(Ordering::Acquire) != value
            }
            Some(Awaited::Descriptors(address, count)) => {
                self.is_descriptor_poll_due() && any_ready(address, count)
            }
            Some(Awaited::Input(descriptor)) => {
                const POLLIN: u64 = 1;
                let request = (descriptor & 0xffff_ffff) | POLLIN << 32;
                self.is_descriptor_poll_due() && any_ready((&raw const request) as u64, 1)
            }
            Some(Awaited::Time(_) | Awaited::Until(..)) | None => true,
        }
    }

    fn is_descriptor_poll_due(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        polls.is_multiple_of(CALLS_PER_DESCRIPTOR_POLL)
    }
}

/// Nanoseconds left of a sleep until a time; a sleep for a duration ends by the time stamp counter.
fn left_ns(until_ns: u64, clock: u32) -> u64 {
    match until_ns {
        u64::MAX => 0,
        until_ns => until_ns.saturating_sub(sys::clock_ns(clock as usize)),
    }
}

/// True if a descriptor is ready, or `poll` fails, which the program's own call will report.
fn any_ready(address: u64, count: u64) -> bool {
    // SAFETY: the kernel reads and writes the `pollfd` entries of the program or of the caller.
    let ready = unsafe { call(number::POLL, [address as usize, count as usize, 0, 0, 0, 0]) };
    ready != 0
}

fn is_sleep(frame: &SavedRegisters) -> bool {
    matches!(
        frame.rax as usize,
        number::NANOSLEEP | number::CLOCK_NANOSLEEP
    )
}

/// What the call in `frame` is about to wait for; `None` if only the kernel knows.
fn awaited(frame: &SavedRegisters) -> Option<Awaited> {
    const FUTEX_WAIT: u64 = 0;
    const FUTEX_WAIT_BITSET: u64 = 9;
    const PRIVATE_AND_CLOCK: u64 = 128 | 256;
    const REALTIME_OR_MONOTONIC: [u64; 2] = [0, 1];
    const ABSOLUTE: u64 = 1;
    match frame.rax as usize {
        number::NANOSLEEP => Some(Awaited::Time(time_at(frame.rdi)?)),
        number::CLOCK_NANOSLEEP if REALTIME_OR_MONOTONIC.contains(&frame.rdi) => {
            let time = time_at(frame.rdx)?;
            let is_until = frame.rsi & ABSOLUTE != 0;
            Some(if is_until {
                Awaited::Until(time, frame.rdi as u32)
            } else {
                Awaited::Time(time)
            })
        }
        number::FUTEX if frame.r10 == 0 => {
            let command = frame.rsi & 0xffff_ffff & !PRIVATE_AND_CLOCK;
            let waits = [FUTEX_WAIT, FUTEX_WAIT_BITSET].contains(&command);
            let aligned = frame.rdi != 0 && frame.rdi.is_multiple_of(4);
            (waits && aligned).then_some(Awaited::Word(frame.rdi, frame.rdx as u32))
        }
        number::POLL => {
            let valid_count = (1..=MAX_DESCRIPTORS).contains(&frame.rsi);
            (valid_count && frame.rdx as u32 != 0)
                .then_some(Awaited::Descriptors(frame.rdi, frame.rsi))
        }
        number::EPOLL_WAIT if frame.r10 as u32 != 0 => Some(Awaited::Input(frame.rdi)),
        number::EPOLL_PWAIT if frame.r10 as u32 != 0 && frame.r8 == 0 => {
            Some(Awaited::Input(frame.rdi))
        }
        _ => None,
    }
}

/// Nanoseconds of the `struct timespec` at `address`; `None` if it is not readable or not valid.
fn time_at(address: u64) -> Option<u64> {
    if !sys::readable(address) || !sys::readable(address.wrapping_add(8)) {
        return None;
    }
    // SAFETY: it can be read.
    let [seconds, nanoseconds]: [u64; 2] = unsafe { memory::get(address as usize) };
    (nanoseconds < 1_000_000_000).then(|| {
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds)
    })
}

/// Distinguishes a thread's waits from each other; never 0.
fn key_of(frame: &SavedRegisters) -> u64 {
    let at = (&raw const *frame) as u64;
    let key = at ^ frame.rax << 56 ^ frame.rdi.rotate_left(16) ^ frame.rdx.rotate_left(32);
    key | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call of this number with these arguments waits for.
    fn awaited_by(number: usize, [rdi, rsi, rdx, r10, r8]: [u64; 5]) -> Option<Awaited> {
        // SAFETY: it has numbers only.
        let mut frame: SavedRegisters = unsafe { core::mem::zeroed() };
        frame.rax = number as u64;
        (frame.rdi, frame.rsi, frame.rdx) = (rdi, rsi, rdx);
        (frame.r10, frame.r8) = (r10, r8);
        awaited(&frame)
    }

    #[test]
    fn a_sleep_is_for_a_time_or_until_one() {
        let time = [2_u64, 5];
        let wrong = [0, 1_000_000_000_u64];
        let at = time.as_ptr() as u64;
        let ns = 2_000_000_005;
        assert_eq!(
            awaited_by(number::NANOSLEEP, [at, 0, 0, 0, 0]),
            Some(Awaited::Time(ns))
        );
        let sleep =
            |clock, flags, at| awaited_by(number::CLOCK_NANOSLEEP, [clock, flags, at, 0, 0]);
        assert_eq!(sleep(1, 0, at), Some(Awaited::Time(ns)));
        assert_eq!(sleep(0, 1, at), Some(Awaited::Until(ns, 0)));
        // A clock of CPU time; an invalid time; an unreadable address.
        assert_eq!(sleep(2, 0, at), None);
        assert_eq!(sleep(1, 0, wrong.as_ptr() as u64), None);
        assert_eq!(sleep(1, 0, 16), None);
    }

    #[test]
    fn only_waits_without_time_limit_and_mask_are_known() {
        let futex = |operation, limit| awaited_by(number::FUTEX, [64, operation, 7, limit, 0]);
        let word = Some(Awaited::Word(64, 7));
        assert_eq!([futex(128, 0), futex(9 | 128 | 256, 0)], [word, word]);
        // With a limit; waking; locking with priority inheritance.
        assert_eq!([futex(128, 64), futex(129, 0), futex(6, 0)], [None; 3]);
        let poll = |count, limit| awaited_by(number::POLL, [64, count, limit, 0, 0]);
        assert_eq!(
            poll(2, u64::from(u32::MAX)),
            Some(Awaited::Descriptors(64, 2))
        );
        assert_eq!([poll(2, 0), poll(0, 5), poll(1000, 5)], [None; 3]);
        let epoll = |limit, mask| awaited_by(number::EPOLL_PWAIT, [4, 64, 1, limit, mask]);
        assert_eq!(epoll(5, 0), Some(Awaited::Input(4)));
        assert_eq!([epoll(0, 0), epoll(5, 64)], [None; 2]);
    }
}
