//! Which signals the program's threads believe to block, though they do not (see `masks`).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory;
use crate::signal_frame::MASK_OFFSET;
use crate::sys::{self, call, number};

/// Most threads whose beliefs can be kept.
const MAX_THREADS: usize = 4096;
/// Entries searched, from the one that the thread's number selects.
const REACH: usize = 64;
pub(crate) const BLOCK: u64 = 0;

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
pub(crate) static COUNT: AtomicU32 = AtomicU32::new(0);

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
pub(crate) fn believe(thread: u32, signals: u64) -> bool {
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
        let claimed =
            belief
                .thread
                .compare_exchange(from, thread, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok()
    };
    let mut claimed = choices(thread).find(|belief| take(belief, 0));
    if claimed.is_some() {
        COUNT.fetch_add(1, Ordering::Relaxed);
    } else {
        // A thread ends with all signals blocked, and no system call of its own removes its entry
        // afterwards.
        let process = sys::process();
        claimed = choices(thread).find(|belief| {
            let owner = belief.thread.load(Ordering::Relaxed);
            !sys::thread_exists(process, owner) && take(belief, owner)
        });
    }
    if let Some(belief) = claimed {
        belief.signals.store(signals, Ordering::Relaxed);
    }
    claimed.is_some()
}

/// The calling thread was started with these signals blocked, and from now on only believes so.
pub(crate) fn note_blocked(signals: u64) -> bool {
    believe(sys::thread(), signals)
}

/// Forgets the belief of a thread that has ended: its number may be used again.
pub(crate) fn forget(thread: u32) {
    believe(thread, 0);
}

/// Changes the calling thread's mask by the kernel's call.
pub(crate) fn change(how: u64, set: u64) {
    // SAFETY: the kernel reads one mask, which outlives the call.
    let _ = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [how as usize, (&raw const set) as usize, 0, 8, 0, 0],
        )
    };
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
