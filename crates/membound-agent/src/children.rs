//! The making of threads and processes, where those are sampled by timers or the parent believes to block
//! signals that it does not ([`masks`]).
//!
//! A child of a fork has neither timers nor a control thread: it is given a timer as soon as it is
//! born, and a control thread when it begins to make threads. For the former, and to have it block what
//! its parent believes in, the agent makes the call itself; the child comes back from it on its copy of the
//! stack.

use crate::entry::Frame;
use crate::sys::{self, call, number};
use crate::{lanes, listen, masks, memory, timers};

const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x1_0000;

/// `clone`, `clone3`, `fork` and `vfork` as the program calls them. `None`: the trampoline is to
/// make the call as it stands.
pub(crate) fn make(frame: &Frame) -> Option<isize> {
    lanes::before_child();
    let parent = sys::thread();
    if !timers::active() && masks::believed(parent) == 0 {
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
    // A child that shares our memory, or begins on another stack, cannot come back here.
    if flags & CLONE_VM != 0 || stack != 0 {
        return None;
    }
    // SAFETY: the program asked for this call; the child has its own copy of all memory.
    let result = unsafe { call(frame.rax as usize, frame.call_arguments()) };
    if result == 0 {
        if timers::active() {
            listen::after_fork();
        }
        masks::after_fork(parent);
        if timers::active() {
            timers::after_fork();
        }
    }
    Some(result)
}

/// Whether there are threads that nobody looks after: not every libc's call for them is seen.
pub(crate) fn look() {
    if !listen::is_here() && sys::threads() > 1 {
        start_control_thread();
    }
}

fn start_control_thread() {
    if timers::active() && timers::own_process() && !listen::is_here() {
        // Without one only the first thread is sampled, which is told by the time that is
        // missing.
        let _ = listen::start_again();
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
