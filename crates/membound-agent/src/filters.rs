//! What the program forbids itself that the agent needs: filters on system calls (seccomp), the dispatch of system
//! calls to a handler of its own, and reading the time stamp counter.
//!
//! Nobody knows what a filter permits, and one that kills would kill the program for a call of
//! ours, be it only the return from a handler. A call of ours that is dispatched comes to a handler that does not
//! know it, or, from inside that handler, ends the process; a time stamp that may not be read ends it too, since
//! handlers are entered through code of ours. Before the program's own call is made, the
//! process is therefore left as it would be without the agent: guests end, the launcher takes everything
//! out of its text, the control thread ends, timers are deleted, and handlers are the program's
//! again. From then on whatever still comes here is let through untouched.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use membound_wire::Event;

use crate::entry::Frame;
use crate::masks::BlockedForExec;
use crate::sys::{self, call, number};
use crate::{assembly, control, handlers, lanes, listen, quiesce, sample, threads, timers};

/// Who is behind a filter; 0: nobody. [`ALL`] who have this memory, or a copy of it: a forked child has its
/// parent's filters. A child of `vfork` has filters of its own: its number.
static SHUT_IN: AtomicU32 = AtomicU32::new(0);
const ALL: u32 = u32::MAX;
/// Set while a thread is about to put itself behind a filter.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether there may be filters on this process's calls, which is known without one but for children of
/// `vfork`.
pub(crate) fn shut_in() -> bool {
    match SHUT_IN.load(Ordering::Acquire) {
        0 => false,
        ALL => true,
        child => child == sys::process(),
    }
}

/// `prctl` and `seccomp`, before they are made as the program has them.
pub(crate) fn before(frame: &Frame) {
    let Some(event) = forbids(frame) else {
        return;
    };
    if BEGUN.swap(true, Ordering::AcqRel) {
        await_first();
        return;
    }
    if !shut_in() {
        leave(event);
    }
    BEGUN.store(false, Ordering::Release);
}

/// Leaves the process as it would be without the agent, because of `event`.
fn leave(event: Event) {
    // While guests can still be taken out of the threads that they are in.
    lanes::ending::end_guests();
    // Before all others, so that nothing is put into the text any more that would have to be taken out.
    listen::end();
    quiesce::wait_until_idle();
    // Without a launcher, text stays as it is; nothing of it is recorded any more.
    let _ = control::converse(event, [0, u64::MAX]);
    // Whoever comes here from now on goes back without a call; those who came before are waited for.
    let who = if shares_memory() { sys::process() } else { ALL };
    SHUT_IN.store(who, Ordering::SeqCst);
    let_others_leave();
    sample::use_rings(0);
    timers::end();
    handlers::hand_back();
    // What the thread only believed to block it blocks from now on.
    core::mem::forget(BlockedForExec::new());
}

/// Whether this process has its parent's memory, as a child of `vfork` has; no where the kernel does not say.
fn shares_memory() -> bool {
    const GETPPID: usize = 110;
    const KCMP: usize = 312;
    const OF_MEMORY: usize = 1;
    // SAFETY: neither touches memory.
    let parent = unsafe { call(GETPPID, [0; 6]) };
    let compared = [
        sys::process() as usize,
        parent.cast_unsigned(),
        OF_MEMORY,
        0,
        0,
        0,
    ];
    // SAFETY: as above.
    (unsafe { call(KCMP, compared) }) == 0
}

/// Waits until another thread has done what is to be done before its filter comes, which may be one for this
/// thread too: without any call. Not for ever, since the thread may be a handler's, or have been forked from.
fn await_first() {
    const PATIENCE_TICKS: u64 = 1 << 34;
    let begun = assembly::time_stamp();
    while BEGUN.load(Ordering::Acquire)
        && assembly::time_stamp().wrapping_sub(begun) < PATIENCE_TICKS
    {
        core::hint::spin_loop();
    }
}

/// Waits until no other thread has a call of ours before it: those that stood still for the launcher return
/// from a handler, and others may just have come to the agent from text that is no longer there.
fn let_others_leave() {
    const LOOK_NS: u64 = 200_000;
    /// Looks, for all threads together.
    const PATIENCE: u32 = 2500;
    let Ok(mut room) = threads::room_for_threads() else {
        return;
    };
    let own = sys::thread();
    let mut looks = PATIENCE;
    // Of a directory that cannot be read nobody was called.
    let _ = threads::each(&mut room, |thread| {
        let begun_ns = sys::cpu_ns(thread).unwrap_or(0);
        while thread != own && looks > 0 && !threads::has_moved_on(thread, begun_ns) {
            looks -= 1;
            sys::nap(LOOK_NS);
        }
        Ok(())
    });
}

/// What the call would forbid the calling thread, or all, that the agent needs.
fn forbids(frame: &Frame) -> Option<Event> {
    const PR_SET_SECCOMP: u64 = 22;
    const PR_SET_TSC: u64 = 26;
    const PR_TSC_SIGSEGV: u64 = 2;
    const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
    const OFF: u64 = 0;
    const STRICT_AND_FILTER: [u64; 2] = [0, 1];
    let filters = match frame.rax as usize {
        number::PRCTL => frame.rdi == PR_SET_SECCOMP,
        number::SECCOMP => STRICT_AND_FILTER.contains(&frame.rdi),
        _ => return None,
    };
    if filters {
        return Some(Event::Filtered);
    }
    match (frame.rax as usize, frame.rdi) {
        (number::PRCTL, PR_SET_SYSCALL_USER_DISPATCH) if frame.rsi != OFF => {
            Some(Event::Dispatched)
        }
        (number::PRCTL, PR_SET_TSC) if frame.rsi == PR_TSC_SIGSEGV => Some(Event::Untimed),
        _ => None,
    }
}
