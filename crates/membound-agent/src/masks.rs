//! Signal masks and sets of the program, in which the agent's signals must not stand: those of the timers,
//! so that a thread that blocks all signals is sampled all the same, and those of changes of text
//! ([`trap::OF_CHANGES`]), so that a thread that sleeps with all signals blocked (an allocator's background
//! thread, one in `sigwait`) does not keep text from being changed.
//!
//! What a thread believes to block is kept here, so that it reads back what it wrote. A
//! program that names such a signal alone, not among all others, means the number for itself, and
//! gets it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::entry::Frame;
use crate::handlers::MASK_OFFSET;
use crate::sys::{self, call, number};
use crate::timers::{self, Use};
use crate::{children, lanes, memory, quiesce, tick, trap};

/// Threads whose beliefs can be kept.
const MOST: usize = 4096;
/// Entries looked at, from a thread's first choice on.
const REACH: usize = 64;
const BLOCK: u64 = 0;
const UNBLOCK: u64 = 1;
const SETMASK: u64 = 2;
const EFAULT: isize = -14;
/// The signals of changes of text, as a mask; SIGTRAP of them.
const OF_CHANGES: u64 = trap::mask(&trap::OF_CHANGES);
const TRAP: u64 = 1 << 4;

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
        // Threads end with all signals blocked, which no system call of theirs takes back.
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

/// The calling thread was started with these signals blocked, and is to block them no more.
pub(crate) fn note_blocked(signals: u64) -> bool {
    believe(sys::thread(), signals)
}

/// The thread has ended; another may be given its number.
pub(crate) fn forget(thread: u32) {
    believe(thread, 0);
}

/// The one thread of a forked child blocks what its parent's believed to, but for the timers' signal, of
/// which it believes the same.
pub(crate) fn after_fork(parent: u32) {
    let signals = believed(parent);
    let of_timers = signals & timers::signal_bit();
    if of_timers != 0 {
        believe(sys::thread(), of_timers);
    }
    change(BLOCK, signals & !of_timers);
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

/// The signals that the calling thread is not to block among all others.
fn needed() -> u64 {
    let of_timers = if timers::own_process() {
        timers::signal_bit()
    } else {
        0
    };
    // A child that shares our memory has a mask of its own, and its text is not changed.
    let of_changes = if quiesce::is_own_process() {
        OF_CHANGES
    } else {
        0
    };
    of_timers | of_changes
}

/// The kernel's `rt_sigprocmask`, with what the program gives it.
fn as_asked(frame: &Frame) -> isize {
    let arguments = [frame.rdi, frame.rsi, frame.rdx, frame.r10].map(|it| it as usize);
    let [how, set, old, size] = arguments;
    // SAFETY: the kernel refuses pointers that it cannot use; what it changes the program
    // asked for.
    unsafe { call(number::RT_SIGPROCMASK, [how, set, old, size, 0, 0]) }
}

/// `rt_sigprocmask` as the program calls it. `None`: the program asks only, and reads what holds.
///
/// The call is made here wherever it may change the mask: after its check for changes of text the thread
/// must not return to the trampoline first.
pub(crate) fn procmask(frame: &Frame) -> Option<isize> {
    if frame.rsi == 0 && COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    quiesce::wait_for_change();
    let result = as_asked(frame);
    if result == 0 {
        keep_needed(frame);
    }
    if frame.rsi != 0
        && let Some(lane) = lanes::Block::own()
    {
        lane.on_mask(now());
    }
    Some(result)
}

/// After `rt_sigprocmask` as the program called it: unblocks what is needed, and shows and keeps what the
/// thread believes.
fn keep_needed(frame: &Frame) {
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
        // The kernel has written the old mask over the new one; what holds now is the new.
        wanted = now();
    }
    if how == SETMASK && timers::signal_bit() != 0 {
        // Who makes a thread blocks all signals meanwhile.
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
    // Named alone, a signal is the program's own, unless the thread believed so before.
    let meant = if is_broad(wanted) { 0 } else { named & !before };
    let of_timers = timers::signal_bit() & meant;
    if of_timers != 0 {
        timers::give_up(u64::from(of_timers.trailing_zeros()) + 1, Use::Waits);
    }
    let mut kept = named & !meant;
    // One that comes meanwhile must wait, which the handler sees to.
    if kept & OF_CHANGES != 0 && trap::install_once(&trap::OF_CHANGES).is_err() {
        kept &= !OF_CHANGES;
    }
    let belief = if how == SETMASK { kept } else { before | kept };
    // Without room to keep it, it is blocked indeed.
    if believe(thread, belief) && kept != 0 {
        change(UNBLOCK, kept);
    }
}

/// A signal has come that the calling thread believes to block: from now on it does, and the signal waits.
/// Returns whether the thread believed so.
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

/// The set at `address` without the signals of ours that no thread of the program may wait for, where it has
/// those among all others; `None`: nothing is to be done.
///
/// SIGTRAP stays: the kernel sends ours to running threads only, and the program may wait for its own.
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
