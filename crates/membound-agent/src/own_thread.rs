//! The agent's kernel threads: no libc knows them, so they have neither thread-local storage nor an entry
//! in libc's lists.

use core::arch::global_asm;
use core::ffi::CStr;

use crate::sys::{Errno, Protection, Quiet, Scratch, call, check, number};
use crate::{assembly, memory};

/// CLONE_VM, SIGHAND, THREAD, SYSVSEM: a thread of this process, with copies of everything else.
pub(crate) const THREAD: usize = 0x100 | 0x800 | 0x1_0000 | 0x4_0000;
/// CLONE_FS: with the process's directory.
pub(crate) const SAME_DIRECTORY: usize = 0x200;
/// CLONE_FILES: with the process's descriptors.
pub(crate) const SAME_DESCRIPTORS: usize = 0x400;

// The child starts with the parent's registers on the new stack, where the parent has put the address of
// its main function and the argument.
global_asm!(
    ".pushsection .text.membound_clone, \"ax\", @progbits",
    ".globl membound_clone",
    ".hidden membound_clone",
    ".type membound_clone, @function",
    "membound_clone:",
    ".cfi_startproc",
    "mov eax, 56",
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    // There is no caller: unwinding ends here.
    ".cfi_undefined rip",
    "xor ebp, ebp",
    "pop rdi",
    "pop rax",
    "call rax",
    "ud2",
    ".cfi_endproc",
    ".size membound_clone, . - membound_clone",
    ".popsection",
);

unsafe extern "C" {
    fn membound_clone(flags: usize, stack: usize) -> isize;
}

/// Starts a thread that runs `life(argument)` with all signals blocked, on a stack that stays mapped.
/// Returns the thread's number.
pub(crate) fn start(
    flags: usize,
    stack_bytes: usize,
    life: extern "C" fn(usize) -> !,
    argument: usize,
) -> Result<u32, Errno> {
    let stack = Scratch::new(stack_bytes)?;
    // The thread pops both and is then aligned for a call.
    let top = stack.address() + stack_bytes - 32;
    // SAFETY: the place is inside the new stack.
    unsafe { memory::put(top, [argument, life as usize]) };
    // The thread inherits the mask.
    let quiet = Quiet::new();
    // SAFETY: the new thread runs `life` on its own stack and never returns here.
    let result = unsafe { membound_clone(flags, top) };
    drop(quiet);
    let thread = check(result)?;
    stack.keep();
    Ok(thread as u32)
}

/// Names the calling thread, so that people and profiles can tell it from the program's threads.
pub(crate) fn name(name: &CStr) {
    const SET_NAME: usize = 15;
    // SAFETY: the kernel reads the name up to its end. Without it nothing else is lost.
    let _ = unsafe {
        call(
            number::PRCTL,
            [SET_NAME, name.as_ptr() as usize, 0, 0, 0, 0],
        )
    };
}

/// The `prctl` option `PR_SET_SYSCALL_USER_DISPATCH`.
const SET_DISPATCH: usize = 59;

/// Dispatches every system call of the calling thread, except those in the agent's text, to the agent while
/// the byte at `selector` is 1. The byte must stay mapped.
pub(crate) fn dispatch_calls(selector: usize) -> Result<(), Errno> {
    const ON: usize = 1;
    let [start, end] = assembly::own_range();
    let length = (end - start) as usize;
    // SAFETY: the kernel reads a byte of the selector at each call.
    let set = unsafe {
        call(
            number::PRCTL,
            [SET_DISPATCH, ON, start as usize, length, selector, 0],
        )
    };
    check(set).map(drop)
}

/// Ends the dispatching of the calling thread's system calls.
pub(crate) fn keep_calls() {
    const OFF: usize = 0;
    // SAFETY: the kernel does not read the selector any more.
    let _ = unsafe { call(number::PRCTL, [SET_DISPATCH, OFF, 0, 0, 0, 0]) };
}

/// Gives the calling thread an alternate signal stack, which stays mapped; returns its address.
pub(crate) fn set_alternate_stack(bytes: usize) -> Result<usize, Errno> {
    let stack = Scratch::untouched(bytes, Protection::ReadWrite)?.keep();
    use_alternate_stack([stack, 0, bytes]).map(|()| stack)
}

/// Makes the calling thread use this alternate stack: address, flags and bytes of a `stack_t`.
pub(crate) fn use_alternate_stack(stack: [usize; 3]) -> Result<(), Errno> {
    // SAFETY: the kernel reads the structure; the memory stays.
    let set = unsafe {
        call(
            number::SIGALTSTACK,
            [(&raw const stack) as usize, 0, 0, 0, 0, 0],
        )
    };
    check(set).map(drop)
}

/// Closes all of the calling thread's descriptors from `first` on.
pub(crate) fn close_from(first: usize) -> Result<(), Errno> {
    // SAFETY: it touches no memory; the caller knows whose descriptors these are.
    let result = unsafe { call(number::CLOSE_RANGE, [first, usize::MAX >> 32, 0, 0, 0, 0]) };
    check(result).map(drop)
}

/// Ends the calling thread. If it is the last one, newer kernels use its code as the exit code of the
/// process.
pub(crate) fn exit(code: u32) -> ! {
    loop {
        // SAFETY: it ends this thread, whose stack stays mapped.
        let _ = unsafe { call(number::EXIT, [code as usize, 0, 0, 0, 0, 0]) };
    }
}
