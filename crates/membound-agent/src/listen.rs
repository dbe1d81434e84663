//! The control thread of live sessions: waits for the launcher's doorbell.
//!
//! A thread of the kernel's only: no libc knows it, so it has neither thread-local storage nor a
//! place in libc's lists, takes no signals, and touches nothing but the agent's own code and
//! data. In a forked child it is simply not there.

use core::arch::global_asm;

use core::sync::atomic::{AtomicU32, Ordering};

use membound_wire::{Event, Refusal};

use crate::control::{self, Failure};
use crate::sys::{Quiet, Scratch, call, check, number};
use crate::{memory, sys};

const STACK_BYTES: usize = 256 << 10;

// The child begins with the registers of the parent, on the new stack, where the parent put
// what it needs.
global_asm!(
    ".pushsection .text.membound_listen, \"ax\", @progbits",
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
    // There is no caller: this is where unwinding ends.
    ".cfi_undefined rip",
    "xor ebp, ebp",
    "pop rdi",
    "call {listen}",
    "ud2",
    ".cfi_endproc",
    ".size membound_clone, . - membound_clone",
    ".popsection",
    listen = sym listen,
);

unsafe extern "C" {
    fn membound_clone(flags: usize, stack: usize) -> isize;
}

/// Number of the control thread, 0 without one.
static THREAD: AtomicU32 = AtomicU32::new(0);

/// Whether `thread` is the control thread.
pub(crate) fn is_own(thread: u32) -> bool {
    THREAD.load(Ordering::Acquire) == thread
}

/// Starts the thread, whose doorbell is at `doorbell`.
pub(crate) fn start(doorbell: u64) -> Result<(), Failure> {
    // CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM: a thread like any other.
    const AS_THREAD: usize = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
    let stack = Scratch::new(STACK_BYTES)?;
    // The conversation that brought the order has blocked all signals, and the thread
    // inherits that; it must hold for direct calls too.
    let quiet = Quiet::new();
    // The thread pops its argument and is then aligned for a call.
    let top = stack.address() + STACK_BYTES - 24;
    // SAFETY: the place is inside the new stack.
    unsafe { memory::put(top, doorbell) };
    // SAFETY: the new thread runs `listen` on its own stack and never returns here.
    let result = unsafe { membound_clone(AS_THREAD, top) };
    drop(quiet);
    match check(result) {
        Ok(_) => {
            stack.keep();
            Ok(())
        }
        Err(errno) => Err(Failure::new(errno, Refusal::NoThread)),
    }
}

/// The thread's life.
extern "C" fn listen(doorbell: usize) -> ! {
    const FUTEX_WAIT: usize = 0;
    THREAD.store(sys::thread(), Ordering::Release);
    const EAGAIN: u32 = 11;
    const EINTR: u32 = 4;
    // The launcher counts up from 0; a ring before the thread came up must not be missed.
    let mut heard = 0_u32;
    loop {
        // SAFETY: the doorbell stays mapped for the session.
        let result = unsafe {
            call(
                number::FUTEX,
                [doorbell, FUTEX_WAIT, heard as usize, 0, 0, 0],
            )
        };
        match check(result) {
            Ok(_) => {}
            Err(error) if error.0 == EAGAIN || error.0 == EINTR => {}
            Err(_) => exit(),
        }
        // SAFETY: as above; the launcher writes it from another process.
        let now = unsafe { core::ptr::read_volatile(doorbell as *const u32) };
        if now != heard {
            heard = now;
            if control::converse(Event::Doorbell, [0; 2]).is_err() {
                // The launcher is gone, and nobody will ring again.
                exit();
            }
        }
    }
}

fn exit() -> ! {
    loop {
        // SAFETY: it ends this thread, whose stack stays mapped.
        let _ = unsafe { call(number::EXIT, [0; 6]) };
    }
}
