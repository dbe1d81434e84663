//! Short waits of the program's threads: while one would wait in the kernel for some microseconds, it yields.
//!
//! To the program a thread that is not yet in its call is as one that was slow to make it, which the kernel
//! may make of any thread at any time. So nothing is lost by looking, between turns, whether the call would
//! return at once, and only then, or after a while, making it. For as long the thread keeps its processor:
//! where others want that, it waits as it would without.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use membound_wire::{Board, CREDIT_UNITS_PER_NS, Idle};

use super::block::Block;
use super::{board, ending, finish, idle, ns_of, tell as tell_board, ticks_of, warden};
use crate::entry::{Frame, Wait};
use crate::sys::{self, call, number};
use crate::{assembly, filters, memory, tell, threads};

/// How long a thread that does not know how long it is to wait yields instead; a wait that is known to be
/// longer is left to the kernel.
const WINDOW_NS: u64 = 100_000;
/// Credit of a turn in a wait: what the end of the wait may be seen late by. The kernel takes longer to wake
/// a thread.
const TURN: i32 = 400 * CREDIT_UNITS_PER_NS;
/// Asked less than so long after the last time, it is the same wait.
const SAME_NS: u64 = 50_000;
/// Of so many looks at descriptors, which costs a system call, one is made.
const LOOKS: u32 = 4;
/// Descriptors that are looked at at one time.
const MOST_DESCRIPTORS: u64 = 16;
/// Waits that are left to the kernel after some in a row that were too long: two to the power of their
/// number, at most.
const MOST_DOUBLINGS: u32 = 6;
/// Part of the time, in 1024, for which a thread may wait for a processor before others are taken to want it.
const WANTED: u64 = 50;
/// Judgements for which its waits are the kernel's then, at first, and at most.
const PAUSE: u32 = 10;
const LONGEST_PAUSE: u32 = 640;
/// Policies of threads that the kernel schedules before all others, whatever these want: `SCHED_FIFO`,
/// `SCHED_RR`, `SCHED_DEADLINE`.
const BEFORE_OTHERS: [isize; 3] = [1, 2, 6];

/// What a thread's lane knows of its waits. Times are time stamps.
#[derive(Debug)]
pub(super) struct Waits {
    /// Which wait it is; 0: none.
    key: AtomicU64,
    begun: AtomicU64,
    /// When it was asked for last.
    asked: AtomicU64,
    /// When it ends, or is left to the kernel.
    end: AtomicU64,
    looks: AtomicU32,
    /// A sleep until a time: that time, in nanoseconds, and the number of the kernel's clock; `u64::MAX`: none.
    until_ns: AtomicU64,
    clock: AtomicU32,
    /// Waits in a row that were too long, and those until one is looked at again.
    long: AtomicU32,
    pause: AtomicU32,
    /// Judgements for which others want the processor, the next number of them, and how long the thread had
    /// waited for one by the last.
    wanted: AtomicU32,
    next_wanted: AtomicU32,
    delay_ns: AtomicU64,
    /// Turns in waits, and how long those were, so far.
    turns: AtomicU64,
    waited_ns: AtomicU64,
    /// What the warden has told of.
    told_turns: AtomicU64,
    told_ns: AtomicU64,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// A length of time, in nanoseconds.
    Time(u64),
    /// A time in nanoseconds, on a clock of the kernel's.
    Until(u64, u32),
    /// A word at an address to be another one.
    Word(u64, u32),
    /// Descriptors: address and number of what `poll` is told.
    Descriptors(u64, u64),
    /// One descriptor to have something to read.
    Input(u64),
}

/// When a wait is to end.
#[derive(Clone, Copy, Debug)]
struct End {
    /// Time stamp.
    at: u64,
    /// As [`Waits`] has them.
    until_ns: u64,
    clock: u32,
}

/// [`membound_wire::Entry::Wait`].
pub(crate) extern "C" fn on_wait(frame: &mut Frame) {
    if filters::shut_in() {
        return frame.waits(Wait::Call);
    }
    // As at a yield, which it may never come to: it is given a lane, or looks who is ready.
    if own_block().is_none_or(|block| block.owner.load(Ordering::Relaxed) == 0) {
        super::on_yield(frame);
    }
    let answer = own_block().map_or(Wait::Call, |block| block.wait(frame));
    frame.waits(answer);
}

/// The block of the calling thread, if it has one of its own.
fn own_block() -> Option<&'static Block> {
    let block = Block::of_thread()?;
    (block.base.load(Ordering::Relaxed) == assembly::thread_pointer()).then_some(block)
}

impl Block {
    fn wait(&self, frame: &Frame) -> Wait {
        let waits = &self.waits;
        let now = assembly::time_stamp();
        let key = key_of(frame);
        let asked = waits.asked.swap(now, Ordering::Relaxed);
        let going_on = waits.key.load(Ordering::Relaxed);
        let same = going_on == key && now.saturating_sub(asked) < ticks_of(SAME_NS);
        if going_on != 0 && !same {
            // It was left by a handler, say, or others had the processor.
            self.ends(asked, true);
        }
        if !same {
            let Some(end) = self.somebody().and_then(|_| waits.begins(frame, now)) else {
                return Wait::Call;
            };
            // First: a handler that comes now and waits itself leaves no key behind, and this wait is begun
            // anew, whatever it finds of the other.
            waits.key.store(key, Ordering::SeqCst);
            waits.begun.store(now, Ordering::Relaxed);
            waits.end.store(end.at, Ordering::Relaxed);
            waits.until_ns.store(end.until_ns, Ordering::Relaxed);
            waits.clock.store(end.clock, Ordering::Relaxed);
            waits.looks.store(0, Ordering::Relaxed);
        }
        let is_sleep = is_sleep(frame);
        if is_sleep && now >= waits.end.load(Ordering::Relaxed) {
            let until_ns = waits.until_ns.load(Ordering::Relaxed);
            let left_ns = left_ns(until_ns, waits.clock.load(Ordering::Relaxed));
            if waits.key.load(Ordering::SeqCst) != key {
                return Wait::Call;
            }
            if left_ns == 0 {
                self.ends(now, true);
                // It has no need of the kernel.
                return Wait::Done;
            }
            waits.end.store(now + ticks_of(left_ns), Ordering::Relaxed);
        }
        let over = now >= waits.end.load(Ordering::Relaxed);
        let ready = !is_sleep && waits.is_ready(frame);
        if over || ready || !self.gives_way() {
            self.ends(now, ready || is_sleep);
            return Wait::Call;
        }
        waits.turns.fetch_add(1, Ordering::Relaxed);
        Wait::Yield
    }

    /// The context that may have a turn now, and what stands before it: phases are for what turns cost the
    /// program, and what is timed is how long stalls last. `None` where nobody may, also for the sake
    /// of the requests that are compared.
    fn somebody(&self) -> Option<u64> {
        if idle() != Idle::Harvest || finish::is_over() || ending::is_near() {
            return None;
        }
        let compared = board().is_some_and(|board| board.phase_looks != 0);
        if compared && !warden::lets_in() {
            return None;
        }
        let next = self.next.load(Ordering::Relaxed);
        let before = [&self.stopwatch, &self.nobody];
        let before = before.into_iter().find(|own| own.address() == next);
        let next = before.map_or(next, |own| own.next.load(Ordering::Relaxed));
        self.is_member(next).then_some(next)
    }

    /// Has the next turn be one of a wait, if somebody may have it.
    fn gives_way(&self) -> bool {
        let mut gives_way = false;
        self.change_next(|| {
            if let Some(next) = self.somebody() {
                self.next.store(next, Ordering::Relaxed);
                gives_way = true;
            }
        });
        if gives_way {
            let span = board().map_or(TURN, |board| board.span.max(TURN));
            self.span.store(span, Ordering::Relaxed);
            // It waits itself: nobody's own misses are in its way.
            self.skips.store(0, Ordering::Relaxed);
        }
        gives_way
    }

    /// The wait ends here, or in the kernel.
    fn ends(&self, now: u64, was_short: bool) {
        let waits = &self.waits;
        waits.key.store(0, Ordering::Relaxed);
        let lasted = now.saturating_sub(waits.begun.load(Ordering::Relaxed));
        waits.waited_ns.fetch_add(ns_of(lasted), Ordering::Relaxed);
        self.set_turns();
        self.change_next(|| {
            let next = self.next.load(Ordering::Relaxed);
            if !warden::lets_in() && self.is_member(next) {
                self.begin_with(&self.nobody, next);
            }
        });
        if was_short {
            waits.long.store(0, Ordering::Relaxed);
        } else {
            let long = waits.long.load(Ordering::Relaxed).min(MOST_DOUBLINGS);
            waits.pause.store(1 << long, Ordering::Relaxed);
            waits.long.store(long + 1, Ordering::Relaxed);
        }
    }

    /// Tells of its waits since the last time, and returns how many turns they had and how long they were.
    pub(super) fn account_for_waits(&self) -> (u64, u64) {
        let waits = &self.waits;
        let since = |now: &AtomicU64, told: &AtomicU64| {
            let now = now.load(Ordering::Relaxed);
            now.saturating_sub(told.swap(now, Ordering::Relaxed))
        };
        let turns = since(&waits.turns, &waits.told_turns);
        let waited_ns = since(&waits.waited_ns, &waits.told_ns);
        if turns > 0 {
            tell_board(offset_of!(Board, wait_turns), turns);
            tell_board(offset_of!(Board, waited_ns), waited_ns);
        }
        (turns, waited_ns)
    }

    /// Looks whether others want the processor on which its thread waits.
    pub(super) fn judge_waits(&self, thread: u32, since_ns: u64) {
        let waits = &self.waits;
        // SAFETY: it touches no memory.
        let policy = unsafe { call(number::SCHED_GETSCHEDULER, [thread as usize, 0, 0, 0, 0, 0]) };
        if BEFORE_OTHERS.contains(&policy) {
            waits.wanted.store(LONGEST_PAUSE, Ordering::Relaxed);
            return;
        }
        let left = waits.wanted.load(Ordering::Relaxed);
        let Some(delay_ns) = threads::delay_ns(thread) else {
            return;
        };
        let before = waits.delay_ns.swap(delay_ns, Ordering::Relaxed);
        if left > 0 {
            waits.wanted.store(left - 1, Ordering::Relaxed);
            return;
        }
        let delayed_ns = delay_ns.saturating_sub(before);
        if before != 0 && delayed_ns.saturating_mul(1024) / since_ns.max(1) > WANTED {
            let pause = waits.next_wanted.load(Ordering::Relaxed).max(PAUSE);
            waits.wanted.store(pause, Ordering::Relaxed);
            let next = (2 * pause).min(LONGEST_PAUSE);
            waits.next_wanted.store(next, Ordering::Relaxed);
        }
    }
}

impl Waits {
    /// The block is another thread's.
    pub(super) fn forget(&self) {
        for word in [
            &self.key,
            &self.delay_ns,
            &self.turns,
            &self.waited_ns,
            &self.told_turns,
            &self.told_ns,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.long, &self.pause, &self.wanted, &self.next_wanted] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// When a wait that begins now is to end, if the thread is to yield instead.
    fn begins(&self, frame: &Frame, now: u64) -> Option<End> {
        if self.wanted.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let (sleeps_ns, until_ns, clock) = match what(frame)? {
            // To sleep for no time is to let others run.
            For::Time(0) => return None,
            // The kernel's clocks may go faster than the counter, by one part in two thousand.
            For::Time(ns) => (Some(ns.saturating_add(ns / 1024 + 30)), u64::MAX, 0),
            // Also one that is over: the kernel would set a timer for it.
            For::Until(until_ns, clock) => (Some(left_ns(until_ns, clock)), until_ns, clock),
            For::Word(..) | For::Descriptors(..) | For::Input(_) => (None, u64::MAX, 0),
        };
        let end = |ns| End {
            at: now + ticks_of(ns),
            until_ns,
            clock,
        };
        if let Some(ns) = sleeps_ns {
            return (ns <= WINDOW_NS).then(|| end(ns));
        }
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
            return None;
        }
        Some(end(WINDOW_NS))
    }

    /// Whether the call would return at once.
    fn is_ready(&self, frame: &Frame) -> bool {
        match what(frame) {
            Some(For::Word(address, value)) => {
                // Of a wrong address the kernel tells the program.
                !sys::readable(address)
                    || tell::word32(address as usize).load(Ordering::Acquire) != value
            }
            Some(For::Descriptors(address, count)) => self.looks_at() && any_ready(address, count),
            Some(For::Input(descriptor)) => {
                const POLLIN: u64 = 1;
                let asked = (descriptor & 0xffff_ffff) | POLLIN << 32;
                self.looks_at() && any_ready((&raw const asked) as u64, 1)
            }
            Some(For::Time(_) | For::Until(..)) | None => true,
        }
    }

    fn looks_at(&self) -> bool {
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        looks.is_multiple_of(LOOKS)
    }
}

/// What is left of a sleep until a time; one of a length of time is over when the counter says so.
fn left_ns(until_ns: u64, clock: u32) -> u64 {
    match until_ns {
        u64::MAX => 0,
        until_ns => until_ns.saturating_sub(sys::clock_ns(clock as usize)),
    }
}

/// Whether a descriptor is ready, or something is wrong with them.
fn any_ready(address: u64, count: u64) -> bool {
    // SAFETY: the kernel reads and writes what the program, or the caller, has for it.
    let ready = unsafe { call(number::POLL, [address as usize, count as usize, 0, 0, 0, 0]) };
    ready != 0
}

fn is_sleep(frame: &Frame) -> bool {
    matches!(
        frame.rax as usize,
        number::NANOSLEEP | number::CLOCK_NANOSLEEP
    )
}

/// What a thread is about to wait for; `None` where only the kernel knows.
fn what(frame: &Frame) -> Option<For> {
    const FUTEX_WAIT: u64 = 0;
    const FUTEX_WAIT_BITSET: u64 = 9;
    const PRIVATE_AND_CLOCK: u64 = 128 | 256;
    const REALTIME_OR_MONOTONIC: [u64; 2] = [0, 1];
    const ABSOLUTE: u64 = 1;
    match frame.rax as usize {
        number::NANOSLEEP => Some(For::Time(time_at(frame.rdi)?)),
        number::CLOCK_NANOSLEEP if REALTIME_OR_MONOTONIC.contains(&frame.rdi) => {
            let time = time_at(frame.rdx)?;
            let is_until = frame.rsi & ABSOLUTE != 0;
            Some(if is_until {
                For::Until(time, frame.rdi as u32)
            } else {
                For::Time(time)
            })
        }
        number::FUTEX if frame.r10 == 0 => {
            let command = frame.rsi & 0xffff_ffff & !PRIVATE_AND_CLOCK;
            let waits = [FUTEX_WAIT, FUTEX_WAIT_BITSET].contains(&command);
            let aligned = frame.rdi != 0 && frame.rdi.is_multiple_of(4);
            (waits && aligned).then_some(For::Word(frame.rdi, frame.rdx as u32))
        }
        number::POLL => {
            let some = (1..=MOST_DESCRIPTORS).contains(&frame.rsi);
            (some && frame.rdx as u32 != 0).then_some(For::Descriptors(frame.rdi, frame.rsi))
        }
        number::EPOLL_WAIT if frame.r10 as u32 != 0 => Some(For::Input(frame.rdi)),
        number::EPOLL_PWAIT if frame.r10 as u32 != 0 && frame.r8 == 0 => {
            Some(For::Input(frame.rdi))
        }
        _ => None,
    }
}

/// The nanoseconds of a `struct timespec`; `None` where there is no right one.
fn time_at(address: u64) -> Option<u64> {
    if !sys::readable(address) || !sys::readable(address.wrapping_add(8)) {
        return None;
    }
    // SAFETY: it can be read.
    let [seconds, rest]: [u64; 2] = unsafe { memory::get(address as usize) };
    (rest < 1_000_000_000).then(|| seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// Tells one wait of a thread's from another.
fn key_of(frame: &Frame) -> u64 {
    let at = (&raw const *frame) as u64;
    let key = at ^ frame.rax << 56 ^ frame.rdi.rotate_left(16) ^ frame.rdx.rotate_left(32);
    key | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a call of this number with these arguments waits for.
    fn asked(number: usize, [rdi, rsi, rdx, r10, r8]: [u64; 5]) -> Option<For> {
        // SAFETY: it has numbers only.
        let mut frame: Frame = unsafe { core::mem::zeroed() };
        frame.rax = number as u64;
        (frame.rdi, frame.rsi, frame.rdx) = (rdi, rsi, rdx);
        (frame.r10, frame.r8) = (r10, r8);
        what(&frame)
    }

    #[test]
    fn a_sleep_is_for_a_time_or_until_one() {
        let time = [2_u64, 5];
        let wrong = [0, 1_000_000_000_u64];
        let at = time.as_ptr() as u64;
        let ns = 2_000_000_005;
        assert_eq!(
            asked(number::NANOSLEEP, [at, 0, 0, 0, 0]),
            Some(For::Time(ns))
        );
        let sleep = |clock, flags, at| asked(number::CLOCK_NANOSLEEP, [clock, flags, at, 0, 0]);
        assert_eq!(sleep(1, 0, at), Some(For::Time(ns)));
        assert_eq!(sleep(0, 1, at), Some(For::Until(ns, 0)));
        // A clock of CPU time, no time, and nothing to read.
        assert_eq!(sleep(2, 0, at), None);
        assert_eq!(sleep(1, 0, wrong.as_ptr() as u64), None);
        assert_eq!(sleep(1, 0, 16), None);
    }

    #[test]
    fn only_waits_without_a_limit_of_time_and_a_mask_are_known() {
        let futex = |operation, limit| asked(number::FUTEX, [64, operation, 7, limit, 0]);
        let word = Some(For::Word(64, 7));
        assert_eq!([futex(128, 0), futex(9 | 128 | 256, 0)], [word, word]);
        // With a limit; waking; another thread's lock.
        assert_eq!([futex(128, 64), futex(129, 0), futex(6, 0)], [None; 3]);
        let poll = |count, limit| asked(number::POLL, [64, count, limit, 0, 0]);
        assert_eq!(poll(2, u64::from(u32::MAX)), Some(For::Descriptors(64, 2)));
        assert_eq!([poll(2, 0), poll(0, 5), poll(1000, 5)], [None; 3]);
        let epoll = |limit, mask| asked(number::EPOLL_PWAIT, [4, 64, 1, limit, mask]);
        assert_eq!(epoll(5, 0), Some(For::Input(4)));
        assert_eq!([epoll(0, 0), epoll(5, 64)], [None; 2]);
    }
}
