//! The control thread of live sessions, which waits for the launcher's doorbell: its state.
//!
//! It is a kernel thread that no libc knows, so it has neither thread-local storage nor an entry in libc's
//! lists, takes no signals, and touches only the agent's code and data. A forked child has none until it is
//! found to run in patched text (`control::start_in_forked_child`): most children execute another program
//! before that.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::sys::{Scratch, call, check, number};
use crate::{loader, sys};

/// Stands in [`THREAD`] while the control thread is being started.
pub(crate) const STARTING: u32 = u32::MAX;

/// Set when the control thread is to end.
pub(crate) static ENDING: AtomicBool = AtomicBool::new(false);
/// Number of the control thread, 0 without one.
pub(crate) static THREAD: AtomicU32 = AtomicU32::new(0);
/// True if it has its own table of descriptors.
pub(crate) static OWN_TABLE: AtomicBool = AtomicBool::new(false);
/// Address of the doorbell, 0 without one.
pub(crate) static DOORBELL: AtomicU64 = AtomicU64::new(0);
/// Address of a word that is 1, or 0 in a forked child without a control thread; 0: no such word.
static MARK: AtomicUsize = AtomicUsize::new(0);

/// True if `thread` is the control thread.
pub(crate) fn is_own(thread: u32) -> bool {
    THREAD.load(Ordering::Acquire) == thread
}

/// True if this process has a control thread, or one is being started.
pub(crate) fn has_control_thread() -> bool {
    THREAD.load(Ordering::Acquire) != 0
}

/// Number of the control thread, if it is in this process: a forked child has its parent's memory, but not
/// that thread.
pub(crate) fn thread() -> Option<u32> {
    let thread = THREAD.load(Ordering::Acquire);
    let may_be = thread != 0 && thread != STARTING;
    (may_be && sys::thread_exists(sys::process(), thread)).then_some(thread)
}

/// In a forked child: there is no control thread.
pub(crate) fn after_fork() {
    THREAD.store(0, Ordering::Release);
    loader::after_fork();
}

pub(crate) fn mark() -> Option<&'static AtomicU32> {
    let place = MARK.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped, and the word is used as an atomic only.
    (place != 0).then(|| unsafe { &*(place as *const AtomicU32) })
}

/// Makes the mark, unless there is one, and records that there is a control thread.
pub(crate) fn set_mark() {
    if MARK.load(Ordering::Acquire) == 0
        && let Ok(page) = Scratch::new(size_of::<AtomicU32>())
        && page.wipe_on_fork().is_ok()
    {
        // Threads are started one by one.
        MARK.store(page.keep(), Ordering::Release);
    }
    if let Some(mark) = mark() {
        mark.store(1, Ordering::Release);
    }
}

/// Wakes the control thread, which then looks for work. Control threads of other processes that wait on the
/// same futex wake too, and find no work.
pub(crate) fn wake() {
    const FUTEX_WAKE: usize = 1;
    let doorbell = DOORBELL.load(Ordering::Acquire) as usize;
    // SAFETY: waking touches no memory.
    let _ = unsafe {
        call(
            number::FUTEX,
            [doorbell, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0],
        )
    };
}

/// Ends the control thread until `control::start_again`; `false` if it is still there.
pub(crate) fn pause() -> bool {
    end();
    if thread().is_some() {
        return false;
    }
    ENDING.store(false, Ordering::Release);
    THREAD.store(0, Ordering::Release);
    true
}

/// Ends the control thread and waits until it has ended: behind a filter for all threads its next system
/// call might end the program.
pub(crate) fn end() {
    const LIMIT_NS: u64 = 2_000_000_000;
    const PAUSE_NS: u64 = 1_000_000;
    let thread = THREAD.load(Ordering::Acquire);
    if thread == 0 || thread == STARTING {
        return;
    }
    ENDING.store(true, Ordering::Release);
    wake();
    let begin = sys::monotonic_ns();
    while sys::thread_exists(sys::process(), thread) {
        if sys::monotonic_ns().saturating_sub(begin) > LIMIT_NS {
            return;
        }
        sys::nap(PAUSE_NS);
    }
}

/// The doorbell as the control thread of this process sees it.
#[derive(Clone, Copy)]
pub(crate) struct Doorbell {
    /// Address of its page.
    page: usize,
    /// Number of this process.
    process: u32,
}

/// Counts of rings.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heard {
    /// All rings.
    all: u32,
    /// Those for this process.
    own: u32,
}

impl Heard {
    /// True if this process was rung for between `earlier` and `self`.
    pub(crate) const fn is_for_us_since(self, earlier: Self) -> bool {
        self.own != earlier.own
    }
}

impl Doorbell {
    /// The doorbell whose page is mapped at `page`.
    pub(crate) fn at(page: usize) -> Self {
        let process = sys::process();
        Self { page, process }
    }

    /// The present counts.
    pub(crate) fn heard(self) -> Heard {
        // SAFETY: the page stays mapped for the session, and the launcher, another process, writes its
        // words with atomic stores only.
        let word = |offset: usize| unsafe { AtomicU32::from_ptr((self.page + offset) as *mut u32) };
        // The launcher writes the own word first: a ring that is counted here is counted there too.
        let all = word(0).load(Ordering::Acquire);
        let own = word(membound_wire::own_word(self.process)).load(Ordering::Relaxed);
        Heard { all, own }
    }

    /// Waits while no ring follows those `heard`, for `pause` nanoseconds at most. `false` if the page is not
    /// mapped any more.
    pub(crate) fn wait(self, heard: Heard, pause: u64) -> bool {
        const FUTEX_WAIT_BITSET: usize = 9;
        const EINTR: u32 = 4;
        const EAGAIN: u32 = 11;
        const ETIMEDOUT: u32 = 110;
        let until = sys::monotonic_ns().saturating_add(pause);
        let limit = [until / 1_000_000_000, until % 1_000_000_000];
        let limit = (&raw const limit) as usize;
        let bits = membound_wire::waking_bits(self.process) as usize;
        // SAFETY: the page stays mapped for the session, and the limit outlives the call.
        let result = unsafe {
            call(
                number::FUTEX,
                [
                    self.page,
                    FUTEX_WAIT_BITSET,
                    heard.all as usize,
                    limit,
                    0,
                    bits,
                ],
            )
        };
        match check(result) {
            Ok(_) => true,
            Err(error) => [EINTR, EAGAIN, ETIMEDOUT].contains(&error.0),
        }
    }
}

/// Asks for short scheduler slices, as the launcher's threads do: where the program's threads keep all
/// processors busy, each message of a conversation would otherwise wait for some milliseconds, while
/// patches are incomplete.
pub(crate) fn shorten_slice() {
    const MIN_SLICE_NS: u64 = 100_000;
    const SCHED_OTHER: u64 = 0;
    // The kernel's `sched_attr`: size and policy, flags, nice and priority, runtime, and two more.
    const BYTES: usize = 48;
    let mut attributes = [0_u64; BYTES / 8];
    let place = (&raw mut attributes) as usize;
    // SAFETY: the kernel writes at most that many bytes.
    let got = unsafe { call(number::SCHED_GETATTR, [0, place, BYTES, 0, 0, 0]) };
    let [lead, _, _, runtime, ..] = &mut attributes;
    if got != 0 || *lead >> 32 != SCHED_OTHER {
        return;
    }
    *lead = BYTES as u64;
    *runtime = MIN_SLICE_NS;
    let place = (&raw const attributes) as usize;
    // SAFETY: the kernel reads as many bytes as are there. A refusal changes nothing.
    let _ = unsafe { call(number::SCHED_SETATTR, [0, place, 0, 0, 0, 0]) };
}
