//! Creation of threads and processes, in programs that timers sample or whose threads believe to block
//! signals that they do not (`masks`).
//!
//! A forked child has neither timers nor a control thread: it gets a timer as soon as it starts, and a
//! control thread when it makes its first thread. For the timer, and to make the child block what its
//! parent believes to block, the agent makes the system call itself; the child returns from it on its copy
//! of the stack.

use crate::beliefs::{BLOCK, believe, believed, change};
use crate::saved_registers::SavedRegisters;
use crate::sys::{self, call, number};
use crate::{control, listen, memory, scheduler, timers};

const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x1_0000;

/// `clone`, `clone3`, `fork` and `vfork` as the program calls them. `None`: the trampoline is to make the
/// call itself.
pub(crate) fn make(frame: &SavedRegisters) -> Option<isize> {
    scheduler::before_child();
    let parent = sys::thread();
    if !timers::active() && believed(parent) == 0 {
        return None;
    }
    let (flags, stack) = match frame.rax as usize {
        number::FORK => (0, 0),
        number::VFORK => return None,
        number::CLONE => (frame.rdi, frame.rsi),
        _ => described(frame.rdi)?,
    };
    if flags & CLONE_THREAD != 0 {
        start_control_thread();
        return None;
    }
    // A child that shares this memory, or starts on another stack, cannot return to this function.
    if flags & CLONE_VM != 0 || stack != 0 {
        return None;
    }
    // SAFETY: the program asked for this call; the child has its own copy of all memory.
    let result = unsafe { call(frame.rax as usize, frame.call_arguments()) };
    if result == 0 {
        if timers::active() {
            listen::after_fork();
        }
        after_fork(parent);
        if timers::active() {
            timers::after_fork();
        }
    }
    Some(result)
}

/// Starts the control thread if there are threads without one: not every libc's call that makes them is
/// hooked.
pub(crate) fn look() {
    if !listen::has_control_thread() && sys::threads() > 1 {
        start_control_thread();
    }
}

fn start_control_thread() {
    if timers::active() && timers::own_process() && !listen::has_control_thread() {
        // Without it only the first thread is sampled, and the report shows the missing time.
        let _ = control::start_again();
    }
}

/// Flags and stack of a `struct clone_args`.
fn described(address: u64) -> Option<(u64, u64)> {
    const STACK: u64 = 40;
    let stack = address.checked_add(STACK)?;
    if !sys::readable(address) || !sys::readable(stack) {
        return None;
    }
    // SAFETY: the kernel could read it.
    let flags: u64 = unsafe { memory::get(address as usize) };
    // SAFETY: as above.
    let stack: u64 = unsafe { memory::get(stack as usize) };
    Some((flags, stack))
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
