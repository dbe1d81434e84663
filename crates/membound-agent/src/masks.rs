//! Signal masks and sets of the program, in which the timers' signal must not stand: a thread
//! that blocks all signals is to be sampled all the same, and nobody is to wait for ours.
//!
//! What a thread believes to block is kept here, so that it reads back what it wrote. A
//! program that names our signal alone, not among all others, means the number for itself, and
//! gets it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::entry::Frame;
use crate::sys::{self, call, number};
use crate::timers::{self, Use};
use crate::{children, lanes, memory, tick};

/// Threads whose beliefs can be kept.
const MOST: usize = 4096;
/// Entries looked at, from a thread's first choice on.
const REACH: usize = 64;
const BLOCK: u64 = 0;
const UNBLOCK: u64 = 1;
const SETMASK: u64 = 2;
const EFAULT: isize = -14;

/// What a thread believes to block, though it does not.
struct Belief {
    thread: AtomicU32,
    signals: AtomicU64,
}

static BELIEFS: [Belief; MOST] = [const {
    Belief {
        thread: AtomicU32::new(0),
        signals: AtomicU64::new(0),
    }
}; MOST];
/// How many there may be: with none, nothing needs to be looked up.
static COUNT: AtomicU32 = AtomicU32::new(0);

fn choices(thread: u32) -> impl Iterator<Item = &'static Belief> {
    let first = thread as usize % MOST;
    BELIEFS.iter().cycle().skip(first).take(REACH)
}

fn belief(thread: u32) -> Option<&'static Belief> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    choices(thread).find(|belief| belief.thread.load(Ordering::Relaxed) == thread)
}

/// What `thread` believes to block.
pub(crate) fn believed(thread: u32) -> u64 {
    belief(thread).map_or(0, |belief| belief.signals.load(Ordering::Relaxed))
}

/// Keeps that; `false` when there is no room for it.
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
    let taken = choices(thread).find(|belief| {
        belief
            .thread
            .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    });
    if let Some(belief) = taken {
        belief.signals.store(signals, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    taken.is_some()
}

/// The calling thread was started with these signals blocked, and is to block them no more.
pub(crate) fn note_blocked(signals: u64) -> bool {
    believe(sys::thread(), signals)
}

/// The thread has ended; another may be given its number.
pub(crate) fn forget(thread: u32) {
    believe(thread, 0);
}

/// The one thread of a forked child believes what its parent's did.
pub(crate) fn after_fork(parent: u32) {
    let signals = believed(parent);
    if signals != 0 {
        believe(sys::thread(), signals);
    }
}

/// Whether a set is one of all signals or nearly so, rather than of a few that are meant.
fn is_broad(set: u64) -> bool {
    const REAL_TIME: u64 = u64::MAX << 33;
    const MANY: u32 = 16;
    (set & REAL_TIME).count_ones() >= MANY
}

/// Changes the calling thread's mask as the program would.
fn change(how: u64, set: u64) {
    // SAFETY: the kernel reads one mask, which outlives the call.
    let _ = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [how as usize, (&raw const set) as usize, 0, 8, 0, 0],
        )
    };
}

/// The kernel's `rt_sigprocmask`, with what the program gives it.
fn as_asked(frame: &Frame) -> isize {
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10].map(|it| it as usize);
    let [how, set, old, size] = arguments;
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program
    // asked for.
    unsafe { call(number::RT_SIGPROCMASK, [how, set, old, size, 0, 0]) }
}

/// `rt_sigprocmask` as the program calls it. `None`: nothing in it concerns the agent.
pub(crate) fn procmask(frame: &Frame) -> Option<isize> {
    let made = procmask_beside_timers(frame);
    // Who only asks changes nothing.
    if frame.rsi == 0 {
        return made;
    }
    let Some(lane) = lanes::Block::own() else {
        return made;
    };
    let made = made.unwrap_or_else(|| as_asked(frame));
    lane.on_mask(now());
    Some(made)
}

/// The same as far as the timers' signal is concerned.
fn procmask_beside_timers(frame: &Frame) -> Option<isize> {
    let ours = timers::signal_bit();
    let (how, set, old, size) = (frame.rdi, frame.rsi, frame.rdx, frame.r10);
    if ours == 0 || size != 8 {
        return None;
    }
    if set == 0 && COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let result = as_asked(frame);
    if result != 0 {
        return Some(result);
    }
    let mut wanted = 0_u64;
    if set != 0 && set != old {
        // SAFETY: the kernel could read it a moment ago.
        wanted = unsafe { memory::get(set as usize) };
    } else if set != 0 {
        // The kernel has written the old mask over the new one; what holds now is the new.
        wanted = now();
    }
    if how == SETMASK {
        // Who makes a thread blocks all signals meanwhile.
        children::look();
    }
    let named = set != 0 && wanted & ours != 0;
    if !named && COUNT.load(Ordering::Relaxed) == 0 {
        return Some(result);
    }
    if !timers::own_process() {
        // A child that shares our memory has a mask of its own, and no timers.
        return Some(result);
    }
    let thread = sys::thread();
    let before = believed(thread);
    if old != 0 && before != 0 {
        // SAFETY: the kernel has just written the mask there.
        let shown: u64 = unsafe { memory::get(old as usize) };
        // SAFETY: as above.
        unsafe { memory::put(old as usize, shown | before) };
    }
    match how {
        _ if set == 0 => {}
        BLOCK | SETMASK if named && !is_broad(wanted) && before & ours == 0 => {
            timers::give_up(u64::from(ours.trailing_zeros()) + 1, Use::Waits);
        }
        // Without room to keep it, it is blocked indeed.
        BLOCK | SETMASK if named && !believe(thread, before | ours) => {}
        BLOCK | SETMASK if named => change(UNBLOCK, ours),
        UNBLOCK => {
            believe(thread, before & !wanted);
        }
        SETMASK => {
            believe(thread, before & wanted);
        }
        _ => {}
    }
    Some(result)
}

/// The mask as the kernel has it.
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

/// The set at `address` without our signal, where it has that among all others; `None`:
/// nothing is to be done.
fn without_ours(address: u64, size: u64) -> Option<Result<u64, isize>> {
    let ours = timers::signal_bit();
    if ours == 0 || size != 8 {
        return None;
    }
    if !sys::readable(address) {
        return Some(Err(EFAULT));
    }
    // SAFETY: the kernel could read it.
    let set: u64 = unsafe { memory::get(address as usize) };
    if set & ours == 0 {
        return None;
    }
    if !is_broad(set) {
        timers::give_up(u64::from(ours.trailing_zeros()) + 1, Use::Waits);
        return None;
    }
    Some(Ok(set & !ours))
}

/// `rt_sigtimedwait` as the program calls it: our signal is not to be what it waits for.
pub(crate) fn timedwait(frame: &Frame) -> Option<isize> {
    let set = match without_ours(frame.rdi, frame.r10)? {
        Ok(set) => set,
        Err(error) => return Some(error),
    };
    let arguments = [(&raw const set) as u64, frame.rsi, frame.rdx, frame.r10];
    Some(tick::wait_for_signals(arguments))
}

/// `signalfd4` as the program calls it.
pub(crate) fn signalfd(frame: &Frame) -> Option<isize> {
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

/// Makes what the calling thread believes to block true for the next program image, until it
/// is dropped because there is none.
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
