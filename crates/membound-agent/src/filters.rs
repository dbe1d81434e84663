//! Filters on system calls (seccomp) that the program puts itself behind.
//!
//! Nobody knows what a filter permits, and one that kills would kill the program for a call of
//! ours, be it only the return from a handler. Before the program's own call is made, the
//! process is therefore left as it would be without the agent: the launcher takes everything
//! out of its text, the control thread ends, timers are deleted, and handlers are the program's
//! again. From then on whatever still comes here is let through untouched.

use core::sync::atomic::{AtomicU32, Ordering};

use membound_wire::Event;

use crate::entry::Frame;
use crate::masks::BlockedForExec;
use crate::sys::{self, number};
use crate::{control, handlers, listen, sample, threads, timers};

/// Process that is behind a filter, 0: none. A child of `vfork` has our memory, but filters of
/// its own.
static SHUT_IN: AtomicU32 = AtomicU32::new(0);

/// Whether there may be filters on this process's calls. Only where there are any at all, a
/// call has to be made to know.
pub(crate) fn shut_in() -> bool {
    let process = SHUT_IN.load(Ordering::Acquire);
    process != 0 && process == sys::process()
}

/// `prctl` and `seccomp`, before they are made as the program has them.
pub(crate) fn before(frame: &Frame) {
    if !sets_filter(frame) || shut_in() {
        return;
    }
    // First, so that nothing is put into the text any more that would have to be taken out.
    listen::end();
    threads::wait_for_change();
    // Without a launcher, text stays as it is; nothing of it is recorded any more.
    let _ = control::converse(Event::Filtered, [0, u64::MAX]);
    sample::use_rings(0);
    timers::end();
    handlers::hand_back();
    // What the thread only believed to block it blocks from now on.
    core::mem::forget(BlockedForExec::new());
    SHUT_IN.store(sys::process(), Ordering::Release);
}

/// Whether the call would put the calling thread, or all, behind a filter.
fn sets_filter(frame: &Frame) -> bool {
    const PR_SET_SECCOMP: u64 = 22;
    const STRICT_AND_FILTER: [u64; 2] = [0, 1];
    match frame.rax as usize {
        number::PRCTL => frame.rdi == PR_SET_SECCOMP,
        number::SECCOMP => STRICT_AND_FILTER.contains(&frame.rdi),
        _ => false,
    }
}
