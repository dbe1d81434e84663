//! Keeps the agent's signals unblocked in the program's threads: those of the timers, so that a thread that
//! blocks all signals is sampled all the same, and those of changes of text ([`own_signals::OF_CHANGES`]),
//! so that a thread that sleeps with all signals blocked (an allocator's background thread, one in
//! `sigwait`) does not keep text from being changed.
//!
//! The module `beliefs` remembers which signals a thread believes to block, so that it reads back the mask
//! that it has set. A program that names such a signal alone, not among all others, wants the number for
//! itself, and gets it.

use core::sync::atomic::Ordering;

use crate::beliefs::{BLOCK, COUNT, believe, believed, change, now};
use crate::saved_registers::SavedRegisters;
use crate::sys::{self, call, number};
use crate::timers::{self, Use};
use crate::{alternate, children, memory, own_signals, quiesce, scheduler, tick, trap};

const UNBLOCK: u64 = 1;
const SETMASK: u64 = 2;
const EFAULT: isize = -14;
/// The signals of changes of text, as a mask.
const OF_CHANGES: u64 = own_signals::mask(&own_signals::OF_CHANGES);
/// SIGTRAP as a mask.
const TRAP: u64 = 1 << 4;

/// True if a set contains all signals or nearly all, not a few that are meant individually.
fn is_broad(set: u64) -> bool {
    const REAL_TIME: u64 = u64::MAX << 33;
    const MIN_SIGNALS_OF_BROAD_SET: u32 = 16;
    (set & REAL_TIME).count_ones() >= MIN_SIGNALS_OF_BROAD_SET
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
fn call_unchanged(frame: &SavedRegisters) -> isize {
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10].map(|it| it as usize);
    let [how, set, old, size] = arguments;
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program
    // asked for.
    unsafe { call(number::RT_SIGPROCMASK, [how, set, old, size, 0, 0]) }
}

/// True if this may be how the C libraries let signals come to a thread that starts.
fn is_at_start(frame: &SavedRegisters) -> bool {
    frame.rdi == SETMASK && frame.rsi != 0 && frame.rdx == 0
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
    if is_at_start(frame) && quiesce::is_own_process() {
        alternate::provide_at_start();
    }
    quiesce::wait_for_change();
    let result = call_unchanged(frame);
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
    let (how, set, old, size) = (frame.rdi, frame.rsi, frame.rdx, frame.r10);
    if size != 8 {
        return;
    }
    let mut new_mask = 0_u64;
    if set != 0 && set != old {
        // SAFETY: the kernel could read it a moment ago.
        new_mask = unsafe { memory::get(set as usize) };
    } else if set != 0 {
        // The kernel has written the old mask over the new one; the thread's mask is the new one.
        new_mask = now();
    }
    if how == SETMASK && timers::signal_bit() != 0 {
        children::look();
    }
    if is_broad(new_mask) && how != UNBLOCK {
        // The C libraries block all signals before they make a thread. Their call that makes it is not always
        // patched.
        alternate::before_thread();
    }
    let believes = COUNT.load(Ordering::Relaxed) != 0;
    // Asked last: it takes system calls, and few masks name these signals.
    if new_mask & (timers::signal_bit() | OF_CHANGES) == 0 && !believes {
        return;
    }
    let needed = needed();
    let named = new_mask & needed;
    if needed == 0 || named == 0 && !believes {
        return;
    }
    let thread = sys::thread();
    let before = believed(thread);
    if old != 0 && before != 0 {
        // SAFETY: the kernel has just written the mask there.
        let reported_mask: u64 = unsafe { memory::get(old as usize) };
        // SAFETY: as above.
        unsafe { memory::put(old as usize, reported_mask | before) };
    }
    if set == 0 {
        return;
    }
    if how == UNBLOCK {
        believe(thread, before & !new_mask);
        return;
    }
    // A signal named alone is the program's own, unless the thread believed to block it before.
    let programs_own = if is_broad(new_mask) {
        0
    } else {
        named & !before
    };
    let of_timers = timers::signal_bit() & programs_own;
    if of_timers != 0 {
        timers::give_up(
            u64::from(of_timers.trailing_zeros()) + 1,
            Use::Waits,
            tick::address(),
        );
    }
    let mut unblocked = named & !programs_own;
    // A signal that arrives meanwhile must stay pending; the handler sees to that (see `make_true`).
    if unblocked & OF_CHANGES != 0 && trap::install_once(&own_signals::OF_CHANGES).is_err() {
        unblocked &= !OF_CHANGES;
    }
    let belief = if how == SETMASK {
        unblocked
    } else {
        before | unblocked
    };
    // If the belief cannot be stored, the signal stays blocked.
    if believe(thread, belief) && unblocked != 0 {
        change(UNBLOCK, unblocked);
    }
}

/// The set at `address` without the agent's signals, for which no thread of the program may wait, if the
/// set names them among all others. `None`: the set can be used as it is.
///
/// SIGTRAP stays: the kernel sends the agent's SIGTRAP to running threads only, and the program may wait
/// for its own.
fn without_own_signals(address: u64, size: u64) -> Option<Result<u64, isize>> {
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
            timers::give_up(
                u64::from(of_timers.trailing_zeros()) + 1,
                Use::Waits,
                tick::address(),
            );
        }
        return None;
    }
    Some(Ok(set & !needed))
}

/// `rt_sigtimedwait` as the program calls it, without the agent's signals in the set.
pub(crate) fn timedwait(frame: &SavedRegisters) -> Option<isize> {
    let set = match without_own_signals(frame.rdi, frame.r10)? {
        Ok(set) => set,
        Err(error) => return Some(error),
    };
    let arguments = [(&raw const set) as u64, frame.rsi, frame.rdx, frame.r10];
    Some(tick::wait_for_signals(arguments))
}

/// `signalfd4` as the program calls it, without the agent's signals in the set.
pub(crate) fn signalfd(frame: &SavedRegisters) -> Option<isize> {
    let set = match without_own_signals(frame.rsi, frame.rdx)? {
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
