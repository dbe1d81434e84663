//! Ends the agent's work before the program forbids itself what the agent needs: by filters on system calls
//! (seccomp), by dispatching system calls to a handler of its own, or by disabling the time stamp counter.
//!
//! What a filter permits is unknown, and one that kills would kill the program for a system call of the
//! agent, be it only the return from a handler. A dispatched call of the agent would come to a handler that
//! does not expect it or, from inside that handler, end the process. A forbidden time stamp would end it
//! too, since handlers are entered through code of the agent. So before the program's own call is made, the
//! process is left as it would be without the agent: scavengers end, the launcher removes all patches, the
//! control thread ends, timers are deleted, and handlers are the program's again. From then on every entry
//! into the agent returns at once.

use core::sync::atomic::{AtomicBool, Ordering};

use membound_wire::Event;

use crate::masks::BlockedForExec;
use crate::saved_registers::SavedRegisters;
use crate::sys::{self, call, number};
use crate::syscall_filter::{ALL, FILTERED_PROCESS, may_apply};
use crate::{
    alternate, assembly, control, handlers, listen, quiesce, sample_rings, scheduler, threads,
    timers,
};

/// Set while a thread is about to put itself behind a filter.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Runs before the program's `prctl` or `seccomp` is made.
pub(crate) fn before(frame: &SavedRegisters) {
    let Some(event) = forbids(frame) else {
        return;
    };
    if BEGUN.swap(true, Ordering::AcqRel) {
        await_first();
        return;
    }
    if !may_apply() {
        end_agent(event);
    }
    BEGUN.store(false, Ordering::Release);
}

/// Leaves the process as it would be without the agent, because of `event`.
fn end_agent(event: Event) {
    // While scavengers can still be taken out of the threads that run them.
    scheduler::end_scavengers::end_scavengers();
    // Before the conversation, so that no patch is installed any more after it.
    listen::end();
    quiesce::wait_until_idle();
    // Without a launcher, text stays as it is; nothing of it is recorded any more.
    let _ = control::converse(event, [0, u64::MAX]);
    // Threads that enter the agent from now on return without a system call; earlier ones are waited for.
    let filtered = if shares_memory() { sys::process() } else { ALL };
    FILTERED_PROCESS.store(filtered, Ordering::SeqCst);
    wait_for_threads_in_agent();
    sample_rings::use_rings(0);
    timers::end();
    handlers::hand_back();
    alternate::take_back();
    // From now on the thread really blocks the signals that it believed to block.
    core::mem::forget(BlockedForExec::new());
}

/// True if this process shares its parent's memory, as a child of `vfork` does; false if the kernel does
/// not report it.
pub(crate) fn shares_memory() -> bool {
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

/// Waits, without any system call, until another thread has left the agent: its filter may apply to this
/// thread too. Not for ever, since that thread may be interrupted by this one, or may be the parent's.
fn await_first() {
    const TIMEOUT_TICKS: u64 = 1 << 34;
    let begun = assembly::time_stamp();
    while BEGUN.load(Ordering::Acquire)
        && assembly::time_stamp().wrapping_sub(begun) < TIMEOUT_TICKS
    {
        core::hint::spin_loop();
    }
}

/// Waits until no other thread is about to make a system call of the agent: threads that the launcher
/// stopped return from a handler, and others may just have entered the agent from a trampoline that is no
/// longer in use.
fn wait_for_threads_in_agent() {
    const POLL_INTERVAL_NS: u64 = 200_000;
    /// Polls, for all threads together.
    const MAX_POLLS: u32 = 2500;
    let Ok(mut room) = threads::room_for_threads() else {
        return;
    };
    let own = sys::thread();
    let mut polls_left = MAX_POLLS;
    // If the directory cannot be read, no thread is waited for.
    let _ = threads::each(&mut room, |thread| {
        let begun_ns = sys::cpu_ns(thread).unwrap_or(0);
        while thread != own && polls_left > 0 && !threads::has_moved_on(thread, begun_ns) {
            polls_left -= 1;
            sys::nap(POLL_INTERVAL_NS);
        }
        Ok(())
    });
}

/// What the call is about to forbid to the calling thread, or to all threads.
fn forbids(frame: &SavedRegisters) -> Option<Event> {
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
