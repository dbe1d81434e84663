//! The program's signal handlers, which must never see a trampoline.
//!
//! In place of each handler the kernel gets a stub from a pool; a stub belongs to its handler for ever. So
//! the kernel's table stays the only record of installed handlers, and there is no second one to keep
//! consistent, not even with children of `vfork`, which share this memory but not that table. Flags, mask
//! and restorer stay the program's.
//!
//! A stub calls [`enter`], which puts the original program's state into the context, then the handler, then
//! [`leave`], which sets where the thread continues.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::disposition::{Disposition, IGNORE, disposition};
use crate::original_state;
use crate::saved_registers::SavedRegisters;
use crate::signal_frame::{Arrived, MASK_OFFSET, REGISTERS_OFFSET, Registers};
use crate::signal_stubs::{MARKS, ONCE, handler_of};
use crate::sys::{call, number};
use crate::timers::{self, Use};
use crate::{alternate, areas, beliefs, memory, own_signals, quiesce, scheduler, tick, trap};

pub(crate) mod vectors;

// The stubs differ only in their address, which they load into rax. Unwinders pass through them: the
// frame's return address is the kernel's restorer, as it would be for the handler itself.
global_asm!(
    ".pushsection .text.membound_handlers, \"ax\", @progbits",
    ".p2align 4",
    ".globl membound_signal_stubs",
    ".hidden membound_signal_stubs",
    ".type membound_signal_stubs, @function",
    "membound_signal_stubs:",
    ".cfi_startproc",
    ".rept 1024",
    ".p2align 4",
    "lea rax, [rip - 7]",
    "jmp 2f",
    ".endr",
    "2:",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 208",
    "mov [rbp - 8], rdi",
    "mov [rbp - 16], rsi",
    "mov [rbp - 24], rdx",
    "lea rcx, [rbp - 208]",
    "mov r8, rax",
    "call {enter}",
    "mov rdi, [rbp - 8]",
    "mov rsi, [rbp - 16]",
    "mov rdx, [rbp - 24]",
    "mov r11, rax",
    "xor eax, eax",
    "test r11, r11",
    "jz 3f",
    "call r11",
    "3:",
    "mov rdi, [rbp - 24]",
    "lea rsi, [rbp - 208]",
    "call {leave}",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size membound_signal_stubs, . - membound_signal_stubs",
    ".popsection",
    enter = sym enter,
    leave = sym leave,
);

/// Set by an order of the launcher, once its hook on system calls is in place.
static ADOPTED: AtomicBool = AtomicBool::new(false);

/// Wraps the handlers that are installed, and every new one from now on. Returns the number of the former.
pub(crate) fn adopt() -> u64 {
    let mut adopted = 0;
    ADOPTED.store(true, Ordering::Release);
    alternate::provide_at_start();
    for signal in 1..=64 {
        let Some(mut found) = disposition(signal, None) else {
            continue;
        };
        if found.wrap() && disposition(signal, Some(&found)).is_some() {
            adopted += 1;
        }
    }
    adopted
}

/// Installs the program's own handlers again, and wraps none from now on.
pub(crate) fn hand_back() {
    ADOPTED.store(false, Ordering::Release);
    for signal in 1..=64 {
        let Some(mut found) = disposition(signal, None) else {
            continue;
        };
        if found.handler == own_signals::address() {
            found = trap::exchange(signal, None);
        } else if found.handler == tick::address() {
            // Ignoring the signal discards pending ticks, which would end the program without a handler.
            let ignored = Disposition {
                handler: IGNORE,
                ..Disposition::DEFAULT
            };
            disposition(signal, Some(&ignored));
            found = Disposition::DEFAULT;
        } else if !found.unwrap() {
            continue;
        }
        disposition(signal, Some(&found));
    }
}

const EFAULT: isize = -14;

/// `rt_sigaction` as the program calls it. `None`: the agent has nothing to do in it.
pub(crate) fn sigaction(frame: &SavedRegisters) -> Option<isize> {
    if !ADOPTED.load(Ordering::Acquire) {
        return None;
    }
    let new = frame.rsi as usize;
    let old = frame.rdx as usize;
    let mut wrapped = Disposition::DEFAULT;
    let mut passed = new;
    if new != 0 {
        // With a signal that does not exist, the kernel reads the structure and does nothing else: a check
        // of the pointer.
        let readable = frame.r10 == 8 && frame.is_beside(new, size_of::<Disposition>());
        if !readable && kernel_sigaction(0, new, 0, frame.r10) == EFAULT {
            return Some(EFAULT);
        }
        // SAFETY: the kernel could read it.
        wrapped = unsafe { memory::get(new) };
    }
    if frame.r10 == 8 && trap::owns(frame.rdi) {
        if old != 0 && kernel_sigaction(frame.rdi, 0, old, 8) != 0 {
            return Some(EFAULT);
        }
        let before = trap::exchange(frame.rdi, (new != 0).then_some(&wrapped));
        if old != 0 {
            // SAFETY: the kernel could write there.
            unsafe { memory::put(old, before) };
        }
        return Some(0);
    }
    if timers::owns(frame.rdi) {
        if new == 0 || wrapped.handler == Disposition::DEFAULT.handler {
            return Some(pretend_default(frame, old));
        }
        timers::give_up(frame.rdi, Use::Handles, tick::address());
    }
    if new != 0 && wrapped.wrap() {
        passed = (&raw const wrapped) as usize;
    }
    let result = kernel_sigaction(frame.rdi, passed, old, frame.r10);
    if result == 0 && old != 0 {
        // SAFETY: the kernel has just written the structure there.
        let mut before: Disposition = unsafe { memory::get(old) };
        if before.handler == own_signals::address() {
            // In a child of `vfork`, whose table is a copy that holds the agent's handler.
            before = trap::exchange(frame.rdi, None);
        }
        if before.handler == tick::address() {
            before = Disposition::DEFAULT;
        }
        before.unwrap();
        // SAFETY: as above.
        unsafe { memory::put(old, before) };
    }
    Some(result)
}

/// Answers `rt_sigaction` for a signal that the timers use: the program sees the default disposition.
fn pretend_default(frame: &SavedRegisters, old: usize) -> isize {
    let result = kernel_sigaction(frame.rdi, 0, old, frame.r10);
    if result == 0 && old != 0 {
        // SAFETY: the kernel has just written the structure there.
        unsafe { memory::put(old, Disposition::DEFAULT) };
    }
    result
}

/// Makes the system call with the program's pointers.
fn kernel_sigaction(signal: u64, new: usize, old: usize, size: u64) -> isize {
    // SAFETY: the kernel refuses pointers that it cannot use; what it writes to `old` the
    // program asked for.
    unsafe {
        call(
            number::RT_SIGACTION,
            [signal as usize, new, old, size as usize, 0, 0],
        )
    }
}

/// State that a stub keeps from [`enter`] to [`leave`].
#[derive(Debug)]
#[repr(C)]
struct Kept {
    /// The instruction pointer shown to the handler; 0 if the thread was not in a trampoline.
    shown: u64,
    /// Where the thread continues if the handler does not change that; 0: where it was interrupted, with
    /// `found`.
    resume: u64,
    /// The registers at the interruption.
    found: Registers,
}

const _: () = assert!(
    size_of::<Kept>() <= 208 - 24,
    "the stub's frame has no room for it"
);

/// Puts the original program's state into the context and returns the handler to call, or 0.
///
/// # Safety
///
/// Called by a stub with what the kernel passed to it.
unsafe extern "C" fn enter(
    signal: u64,
    information: usize,
    context: usize,
    kept: &mut Kept,
    stub: u64,
) -> u64 {
    kept.shown = 0;
    kept.resume = 0;
    let arrived = Arrived {
        signal,
        information,
        context,
    };
    if let Some(go_on) = scheduler::leave::on_signal(arrived) {
        return go_on;
    }
    scheduler::on_handler(context, beliefs::now);
    // The kernel has blocked the handler's signals, perhaps those of a change of text: wait until none is
    // closed.
    quiesce::wait_for_change();
    let place = context + REGISTERS_OFFSET;
    if tick::is_late(signal, information) {
        return 0;
    }
    // SAFETY: the kernel put the registers there.
    let found: Registers = unsafe { memory::get(place) };
    if let Some(interrupted) = original_state::find(signal, &found.state()) {
        let original = Registers::of_state(&interrupted.original);
        kept.shown = original.rip;
        match interrupted.resume {
            Some(resume) => {
                kept.resume = resume;
                interrupted.put_vectors(context);
            }
            // The thread continues with its own registers, unless the handler sends it elsewhere.
            None => kept.found = found,
        }
        // SAFETY: a handler may change its frame, and the agent acts before the handler.
        unsafe { memory::put(place, original) };
        show_original_fault(signal, information, found.rip, original.rip);
    }
    let marked = handler_of(stub).unwrap_or(0);
    if marked & ONCE != 0 {
        forget(signal, stub);
    }
    marked & !MARKS
}

/// Resets the disposition of `signal` to the default, for a handler with `SA_RESETHAND`.
fn forget(signal: u64, stub: u64) {
    if let Some(mut found) = disposition(signal, None)
        && found.handler == stub
    {
        found.unwrap();
        found.handler = Disposition::DEFAULT.handler;
        disposition(signal, Some(&found));
    }
}

/// Puts the original instruction's address into the information of signals that name one.
fn show_original_fault(signal: u64, information: usize, found: u64, original: u64) {
    const ILL: u64 = 4;
    const TRAP: u64 = 5;
    const FPE: u64 = 8;
    const CODE: usize = 8;
    const ADDRESS: usize = 16;
    if !matches!(signal, ILL | TRAP | FPE) {
        return;
    }
    // SAFETY: the frame has room for a siginfo, filled or not.
    let code: i32 = unsafe { memory::get(information + CODE) };
    // SAFETY: as above.
    let address: u64 = unsafe { memory::get(information + ADDRESS) };
    if code > 0 && address == found {
        // SAFETY: as above; the kernel does not read it back.
        unsafe { memory::put(information + ADDRESS, original) };
    }
}

/// Sets where the thread continues after the handler.
///
/// # Safety
///
/// Called by a stub with the context that the kernel passed to it.
unsafe extern "C" fn leave(context: usize, kept: &Kept) {
    let place = context + REGISTERS_OFFSET;
    // SAFETY: the kernel put the registers there, and takes them back from there.
    let mut registers: Registers = unsafe { memory::get(place) };
    let rip = registers.rip;
    // The handler may have sent the thread elsewhere, also into text that is overwritten.
    let unchanged = kept.shown != 0 && rip == kept.shown;
    if unchanged && kept.resume == 0 {
        registers = kept.found;
    } else if unchanged {
        registers.rip = kept.resume;
    } else {
        registers.rip = areas::inside(rip).unwrap_or(rip);
        if kept.shown != 0 && kept.resume == 0 {
            // The signal matters only on islands; this thread was in a trampoline or in the agent.
            if let Some(interrupted) = original_state::find(0, &kept.found.state()) {
                interrupted.put_vectors(context);
            }
        }
    }
    if registers.rip != rip {
        // SAFETY: as above.
        unsafe { memory::put(place, registers) };
    }
    // SAFETY: the mask lies behind the registers and what belongs to them.
    scheduler::on_handler(context, || unsafe { memory::get(context + MASK_OFFSET) });
    tick::returned(&registers.state());
}
