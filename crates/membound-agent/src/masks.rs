//! Keeps the agent's signals unblocked in the program's threads: those of the timers, so that a thread that
//! blocks all signals is sampled all the same, and those of changes of text ([`trap::OF_CHANGES`]), so that
//! a thread that sleeps with all signals blocked (an allocator's background thread, one in `sigwait`) does
//! not keep text from being changed.
//!
//! This module remembers which signals a thread believes to block, so that it reads back the mask that it
//! has set. A program that names such a signal alone, not among all others, wants the number for itself,
//! and gets it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::handlers::MASK_OFFSET;
use crate::saved_registers::SavedRegisters;
use crate::sys::{self, call, number};
use crate::timers::{self, Use};
use crate::{children, memory, quiesce, scheduler, tick, trap};

/// Most threads whose beliefs can be kept.
const MAX_THREADS: usize = 4096;
/// Entries searched, from the one that the thread's number selects.
const REACH: usize = 64;
const BLOCK: u64 = 0;
const UNBLOCK: u64 = 1;
const SETMASK: u64 = 2;
const EFAULT: isize = -14;
/// The signals of changes of text, as a mask.
const OF_CHANGES: u64 = trap::mask(&trap::OF_CHANGES);
/// SIGTRAP as a mask.
const TRAP: u64 = 1 << 4;

/// Signals that a thread believes to block, though it does not.
struct Belief {
    thread: AtomicU32,
    signals: AtomicU64,
}

static BELIEFS: [Belief; MAX_THREADS] = [const {
    Belief {
        thread: AtomicU32::new(0),
        signals: AtomicU64::new(0),
    }
}; MAX_THREADS];
/// Number of entries in use: while it is 0, no entry is searched for.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn choices(thread: u32) -> impl Iterator<Item = &'static Belief> {
    let first = thread as usize % MAX_THREADS;
    BELIEFS.iter().cycle().skip(first).take(REACH)
}

fn belief(thread: u32) -> Option<&'static Belief> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    choices(thread).find(|belief| belief.thread.load(Ordering::Relaxed) == thread)
}

/// Signals that `thread` believes to block, as a mask.
pub(crate) fn believed(thread: u32) -> u64 {
    belief(thread).map_or(0, |belief| belief.signals.load(Ordering::Relaxed))
}

/// Stores that belief; `false` if no entry is free.
fn believe(thread: u32, signals: u64) -> bool {
    if let Some(belief) = belief(thread) {
        belief.signals.store(signals, Ordering::Relaxed);
        if signals == 0 {
            belief.thread.store(0, Ordering::Release);
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
        return true;
    }
    if signals == 0 {
        return true;
    }
    let take = |belief: &&Belief, from: u32| {
        let taken =
            belief
                .thread
                .compare_exchange(from, thread, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    let mut taken = choices(thread).find(|belief| take(belief, 0));
    if taken.is_some() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    } else {
        // A thread ends with all signals blocked, and no system call of its own removes its entry
        // afterwards.
        let process = sys::process();
        taken = choices(thread).find(|belief| {
            let owner = belief.thread.load(Ordering::Relaxed);
            !sys::thread_exists(process, owner) && take(belief, owner)
        });
    }
    if let Some(belief) = taken {
        belief.signals.store(signals, Ordering::Relaxed);
    }
    taken.is_some()
}

/// The calling thread was started with these signals blocked, and from now on only believes so.
pub(crate) fn note_blocked(signals: u64) -> bool {
    believe(sys::thread(), signals)
}

/// Forgets the belief of a thread that has ended: its number may be used again.
pub(crate) fn forget(thread: u32) {
    believe(thread, 0);
}

/// In a forked child, its one thread blocks the signals that the parent's thread believed to block, except
/// the timers' signal, for which it only inherits the belief.
pub(crate) fn after_fork(parent: u32) {
    let signals = believed(parent);
    let of_timers = signals & timers::signal_bit();
    if of_timers != 0 {
        believe(sys::thread(), of_timers);
    }
    change(BLOCK, signals & !of_timers);
}

/// True if a set contains all signals or nearly all, not a few that are meant individually.
fn is_broad(set: u64) -> bool {
    const REAL_TIME: u64 = u64::MAX << 33;
    const MIN_SIGNALS_OF_BROAD_SET: u32 = 16;
    (set & REAL_TIME).count_ones() >= MIN_SIGNALS_OF_BROAD_SET
}

/// Changes the calling thread's mask by the kernel's call.
fn change(how: u64, set: u64) {
    // SAFETY: the kernel reads one mask, which outlives the call.
    let _ = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [how as usize, (&raw const set) as usize, 0, 8, 0, 0],
        )
    };
}

/// Signals that the calling thread must not block among all others.
fn needed() -> u64 {
    let of_timers = if timers::own_process() {
        timers::signal_bit()
    } else {
        0
    };
    // A child that shares this memory has a mask of its own, and its text is not changed.
    let of_changes = if quiesce::is_own_process() {
        OF_CHANGES
    } else {
        0
    };
    of_timers | of_changes
}

/// Makes `rt_sigprocmask` with the program's arguments.
fn as_asked(frame: &SavedRegisters) -> isize {
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10].map(|it| it as usize);
    let [how, set, old, size] = arguments;
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program
    // asked for.
    unsafe { call(number::RT_SIGPROCMASK, [how, set, old, size, 0, 0]) }
}

/// `rt_sigprocmask` as the program calls it. `None`: the program only reads its mask, and gets the
/// kernel's.
///
/// The agent makes every call that may change the mask: after the check for changes of text the thread must
/// not return to the trampoline before the call.
pub(crate) fn procmask(frame: &SavedRegisters) -> Option<isize> {
    if frame.rsi == 0 && COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    quiesce::wait_for_change();
    let result = as_asked(frame);
    if result == 0 {
        keep_needed(frame);
    }
    if frame.rsi != 0
        && let Some(slot) = scheduler::ThreadSlot::own()
    {
        slot.on_mask(now());
    }
    Some(result)
}

/// After `rt_sigprocmask` as the program called it: unblocks the needed signals, and reports and stores
/// what the thread believes.
fn keep_needed(frame: &SavedRegisters) {
    let needed = needed();
    let (how, set, old, size) = (frame.rdi, frame.rsi, frame.rdx, frame.r10);
    if needed == 0 || size != 8 {
        return;
    }
    let mut wanted = 0_u64;
    if set != 0 && set != old {
        // SAFETY: the kernel could read it a moment ago.
        wanted = unsafe { memory::get(set as usize) };
    } else if set != 0 {
        // The kernel has written the old mask over the new one; the thread's mask is the new one.
        wanted = now();
    }
    if how == SETMASK && timers::signal_bit() != 0 {
        // A thread that creates another one blocks all signals meanwhile.
        children::look();
    }
    let named = wanted & needed;
    if named == 0 && COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let thread = sys::thread();
    let before = believed(thread);
    if old != 0 && before != 0 {
        // SAFETY: the kernel has just written the mask there.
        let shown: u64 = unsafe { memory::get(old as usize) };
        // SAFETY: as above.
        unsafe { memory::put(old as usize, shown | before) };
    }
    if set == 0 {
        return;
    }
    if how == UNBLOCK {
        believe(thread, before & !wanted);
        return;
    }
    // A signal named alone is the program's own, unless the thread believed to block it before.
    let meant = if is_broad(wanted) { 0 } else { named & !before };
    let of_timers = timers::signal_bit() & meant;
    if of_timers != 0 {
        timers::give_up(u64::from(of_timers.trailing_zeros()) + 1, Use::Waits);
    }
    let mut kept = named & !meant;
    // A signal that arrives meanwhile must stay pending; the handler sees to that (see `make_true`).
    if kept & OF_CHANGES != 0 && trap::install_once(&trap::OF_CHANGES).is_err() {
        kept &= !OF_CHANGES;
    }
    let belief = if how == SETMASK { kept } else { before | kept };
    // If the belief cannot be stored, the signal stays blocked.
    if believe(thread, belief) && kept != 0 {
        change(UNBLOCK, kept);
    }
}

/// A signal has arrived that the calling thread believes to block: blocks it now and sends it again, so
/// that it stays pending. Returns whether the thread believed so.
pub(crate) fn make_true(signal: u64, information: usize, context: usize) -> bool {
    const RT_TGSIGQUEUEINFO: usize = 297;
    let bit = 1_u64 << (signal - 1);
    let thread = sys::thread();
    let before = believed(thread);
    if before & bit == 0 {
        return false;
    }
    believe(thread, before & !bit);
    let place = context + MASK_OFFSET;
    // SAFETY: the mask lies behind the registers and what belongs to them.
    let mask: u64 = unsafe { memory::get(place) };
    // SAFETY: as above.
    unsafe { memory::put(place, mask | bit) };
    // SAFETY: the kernel reads the siginfo that it has written.
    let _ = unsafe {
        call(
            RT_TGSIGQUEUEINFO,
            [
                sys::process() as usize,
                thread as usize,
                signal as usize,
                information,
                0,
                0,
            ],
        )
    };
    true
}

/// The calling thread's mask, as the kernel has it.
pub(crate) fn now() -> u64 {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes one mask.
    let _ = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [BLOCK as usize, 0, (&raw mut mask) as usize, 8, 0, 0],
        )
    };
    mask
}

/// The set at `address` without the agent's signals, for which no thread of the program may wait, if the
/// set names them among all others. `None`: the set can be used as it is.
///
/// SIGTRAP stays: the kernel sends the agent's SIGTRAP to running threads only, and the program may wait
/// for its own.
fn without_ours(address: u64, size: u64) -> Option<Result<u64, isize>> {
    let needed = needed() & !TRAP;
    if needed == 0 || size != 8 {
        return None;
    }
    if !sys::readable(address) {
        return Some(Err(EFAULT));
    }
    // SAFETY: the kernel could read it.
    let set: u64 = unsafe { memory::get(address as usize) };
    if set & needed == 0 {
        return None;
    }
    if !is_broad(set) {
        let of_timers = set & needed & timers::signal_bit();
        if of_timers != 0 {
            timers::give_up(u64::from(of_timers.trailing_zeros()) + 1, Use::Waits);
        }
        return None;
    }
    Some(Ok(set & !needed))
}

/// `rt_sigtimedwait` as the program calls it, without the agent's signals in the set.
pub(crate) fn timedwait(frame: &SavedRegisters) -> Option<isize> {
    let set = match without_ours(frame.rdi, frame.r10)? {
        Ok(set) => set,
        Err(error) => return Some(error),
    };
    let arguments = [(&raw const set) as u64, frame.rsi, frame.rdx, frame.r10];
    Some(tick::wait_for_signals(arguments))
}

/// `signalfd4` as the program calls it, without the agent's signals in the set.
pub(crate) fn signalfd(frame: &SavedRegisters) -> Option<isize> {
    let set = match without_ours(frame.rsi, frame.rdx)? {
        Ok(set) => set,
        Err(error) => return Some(error),
    };
    // SAFETY: the set outlives the call; the rest is as the program has it.
    Some(unsafe {
        call(
            frame.rax as usize,
            [
                frame.rdi as usize,
                (&raw const set) as usize,
                frame.rdx as usize,
                frame.r10 as usize,
                0,
                0,
            ],
        )
    })
}

/// Blocks the signals that the calling thread believes to block, for the next program image; dropped if
/// there is none, it unblocks them.
#[derive(Debug)]
pub(crate) struct BlockedForExec(u64);

impl BlockedForExec {
    pub(crate) fn new() -> Self {
        let signals = if COUNT.load(Ordering::Relaxed) == 0 {
            0
        } else {
            believed(sys::thread())
        };
        if signals != 0 {
            change(BLOCK, signals);
        }
        Self(signals)
    }
}

impl Drop for BlockedForExec {
    fn drop(&mut self) {
        if self.0 != 0 {
            change(UNBLOCK, self.0);
        }
    }
}
