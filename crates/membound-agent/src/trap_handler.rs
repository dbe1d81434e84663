//! The handler of the signals that the agent handles itself (see `own_signals`).

use core::arch::global_asm;

use crate::control::report_text;
use crate::disposition::{Disposition, IGNORE, disposition};
use crate::own_signals::{CALL, OF_SCAVENGERS, SIGTRAP, SYS, mask};
use crate::scavenger::{self, Heard, table};
use crate::signal_frame::{Arrived, MASK_OFFSET, REGISTERS_OFFSET, Registers};
use crate::trap::users;
use crate::{
    areas, beliefs, memory, original_state, quiesce, scheduler, signal_stubs, sys, threads, tick,
    trial,
};

const NODEFER: u64 = 0x4000_0000;
const RESETHAND: u64 = 0x8000_0000;

// The handler continues in the program's own handler, through its stub, with all registers as the kernel
// set them. The restorer has the bytes of a libc's, by which unwinders recognise it.
global_asm!(
    ".pushsection .text.membound_trap, \"ax\", @progbits",
    ".globl membound_trap",
    ".hidden membound_trap",
    ".type membound_trap, @function",
    "membound_trap:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "call {on_trap}",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "test rax, rax",
    "jz 2f",
    "jmp rax",
    "2:",
    "ret",
    ".cfi_endproc",
    ".size membound_trap, . - membound_trap",
    ".p2align 4",
    ".globl membound_restorer",
    ".hidden membound_restorer",
    ".type membound_restorer, @function",
    "nop",
    "membound_restorer:",
    "mov rax, 15",
    "syscall",
    ".size membound_restorer, . - membound_restorer",
    ".popsection",
    on_trap = sym on_trap,
);

/// Returns the address at which the handler continues: the stub of the program's handler, or 0 to return.
///
/// # Safety
///
/// Called by the handler with what the kernel passed to it.
unsafe extern "C" fn on_trap(signal: u64, information: usize, context: usize) -> u64 {
    // SAFETY: the caller's condition.
    let go_on = unsafe { respond(signal, information, context) };
    if go_on == 0 {
        // SAFETY: as above.
        unsafe { original_state::leave_overwritten_text(context) };
    }
    go_on
}

/// Handles the signal. Returns what [`on_trap`] does.
///
/// # Safety
///
/// As of [`on_trap`].
unsafe fn respond(signal: u64, information: usize, context: usize) -> u64 {
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: the handler is installed with SA_SIGINFO; these are a siginfo's fields.
    let code: i32 = unsafe { memory::get(information + 8) };
    // SAFETY: as above.
    let process: u32 = unsafe { memory::get(information + 16) };
    // SAFETY: as above.
    let value: u64 = unsafe { memory::get(information + 24) };
    let place = context + REGISTERS_OFFSET;
    // SAFETY: the kernel put the registers there.
    let mut registers: Registers = unsafe { memory::get(place) };
    let arrived = Arrived {
        signal,
        information,
        context,
    };
    if signal == SYS && scheduler::end_scavengers::is_call(code, process, value) {
        scavenger::on_end();
        return 0;
    }
    if OF_SCAVENGERS.contains(&signal) {
        match scavenger::on_signal(arrived, code, &mut registers, report_text) {
            Heard::No => {}
            Heard::Yes => {
                // SAFETY: as above; the kernel takes them back from there.
                unsafe { memory::put(place, registers) };
                return 0;
            }
            Heard::Left(go_on) => return go_on,
        }
    }
    if signal == CALL && scheduler::finish::has_program_ended() {
        // First the scavenger returns to its home thread; the program's thread is then called once more.
        match scheduler::leave::on_signal(arrived) {
            Some(go_on) => return go_on,
            // A home thread that did not count as one yet when the program ended: it goes on.
            None if scheduler::is_agents(sys::thread()) => return 0,
            None => {
                // The first thread of a process stays as a zombie, from which no thread takes contexts.
                scheduler::thread_ends();
                crate::own_thread::exit(0)
            }
        }
    }
    if signal == CALL && scheduler::overdue::is_call(code, process, value) {
        if let Some(go_on) = scheduler::leave::on_overdue(arrived) {
            return go_on;
        }
        // The slice has ended meanwhile, and the program may be in a system call that the signal has
        // interrupted.
        tick::again(place, registers);
        return 0;
    }
    // SAFETY: the mask lies behind the registers and what belongs to them.
    let blocked: u64 = unsafe { memory::get(context + MASK_OFFSET) };
    let go_on = if signal == CALL && sys::is_information_lost(code, process) {
        // Of a trial or of a change: where the thread is not called it does nothing.
        trial::report_and_wait(&registers.state());
        quiesce::answer(blocked, registers.rip);
        Some(registers.rip)
    } else if signal == CALL && quiesce::is_call(code, process, value) {
        quiesce::answer(blocked, registers.rip);
        Some(registers.rip)
    } else if signal == CALL && trial::is_call(code, process, value) {
        trial::report_and_wait(&registers.state());
        Some(registers.rip)
    } else if signal == SIGTRAP && code == SI_KERNEL {
        after_int3(registers.rip.wrapping_sub(1))
    } else {
        None
    };
    let Some(rip) = go_on else {
        let before = registers.rip.wrapping_sub(1);
        if signal == SIGTRAP && areas::entrance(before).is_some() && areas::holds_int3(before) {
            // Another sender's SIGTRAP was pending when the thread met the `int3`, so the kernel dropped
            // the signal of the `int3`. The thread executes it again.
            registers.rip = before;
            // SAFETY: as above; the kernel takes them back from there.
            unsafe { memory::put(place, registers) };
        }
        if signal == SIGTRAP
            && code > 0
            && let Heard::Left(go_on) =
                scavenger::on_signal(arrived, code, &mut registers, report_text)
        {
            // The scavenger's own trap.
            return go_on;
        }
        return hand_over(arrived, code);
    };
    registers.rip = rip;
    // SAFETY: as above; the kernel takes them back from there.
    unsafe { memory::put(place, registers) };
    if signal == CALL {
        // The thread was about to wait in the kernel, and the signal has ended that wait too early.
        tick::again(place, registers);
    }
    0
}

/// Address at which a thread continues that met an `int3` at `ip`; `None` if the `int3` is the program's own.
fn after_int3(ip: u64) -> Option<u64> {
    if let Some(trampoline) = areas::entrance(ip) {
        return Some(trampoline);
    }
    // The change is over: the instruction is there again.
    (!areas::holds_int3(ip)).then_some(ip)
}

/// Gives the signal to the program as the kernel would have. Returns the address of the handler or its
/// stub, or 0.
fn hand_over(arrived: Arrived, code: i32) -> u64 {
    const DEFAULT: u64 = 0;
    let Arrived {
        signal, context, ..
    } = arrived;
    let Some(kept) = users(signal) else {
        return 0;
    };
    if code <= 0 && beliefs::make_true(signal, arrived.information, context) {
        return 0;
    }
    let users = kept.get();
    // The kernel ends a program whose thread blocks the signal of its own fault.
    let blocks = code > 0 && beliefs::believed(sys::thread()) & mask(&[signal]) != 0;
    let handler = if blocks { DEFAULT } else { users.handler };
    match handler {
        IGNORE if code <= 0 => 0,
        DEFAULT | IGNORE => {
            // The default action ends the process by this signal, which arrives as soon as the handler's
            // mask is gone.
            disposition(signal, Some(&Disposition::DEFAULT));
            sys::send_signal(sys::process(), sys::thread(), signal as u32);
            0
        }
        _ if table::is_own_thread(sys::thread()) => {
            // Handlers of the program run only on threads of the program.
            threads::pass_on(signal as u32, arrived.information, scheduler::is_agents);
            0
        }
        handler => {
            if users.flags & RESETHAND != 0 {
                kept.set(&Disposition::DEFAULT);
            }
            // SAFETY: the mask lies behind the registers and what belongs to them.
            let before: u64 = unsafe { memory::get(context + MASK_OFFSET) };
            let own = if users.flags & NODEFER != 0 {
                0
            } else {
                1 << (signal - 1)
            };
            sys::set_mask(before | users.mask | own);
            // Without a stub left, the handler itself: it sees the trampoline's registers as the kernel
            // saved them.
            signal_stubs::stub_of(handler).unwrap_or(handler)
        }
    }
}
