//! The handler of the signals that the agent handles itself (see `own_signals`).

use core::arch::global_asm;

use crate::control::report_text;
use crate::disposition::{Disposition, IGNORE, disposition};
use crate::own_signals::{CALL, OF_SCAVENGERS, SIGTRAP, SYS, mask};
use crate::scavenger::{self, Heard, table};
use crate::signal_frame::{Arrived, MASK_OFFSET};
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
    let go_on = respond(Arrived {
        signal,
        information,
        context,
    });
    if go_on == 0 {
        // SAFETY: the caller's condition.
        unsafe { original_state::leave_overwritten_text(context) };
    }
    go_on
}

/// Handles the signal. Returns what [`on_trap`] does.
fn respond(arrived: Arrived) -> u64 {
    let (signal, code) = (arrived.signal, arrived.code());
    if signal == SYS && scheduler::end_scavengers::is_call(code, arrived.process(), arrived.value())
    {
        scavenger::on_end();
        return 0;
    }
    if OF_SCAVENGERS.contains(&signal) {
        let mut registers = arrived.registers();
        match scavenger::on_signal(arrived, code, &mut registers, report_text) {
            Heard::No => {}
            Heard::Yes => {
                arrived.go_on_with(registers);
                return 0;
            }
            Heard::Left(go_on) => return go_on,
        }
    }
    match signal {
        CALL => on_call(arrived),
        SIGTRAP => on_sigtrap(arrived),
        _ => hand_over(arrived, code),
    }
}

/// Handles the signal by which the agent calls threads.
fn on_call(arrived: Arrived) -> u64 {
    let (code, process, value) = (arrived.code(), arrived.process(), arrived.value());
    if scheduler::finish::has_program_ended() {
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
    let registers = arrived.registers();
    if scheduler::overdue::is_call(code, process, value) {
        if let Some(go_on) = scheduler::leave::on_overdue(arrived) {
            return go_on;
        }
        // Else the slice has ended meanwhile.
    } else if sys::is_information_lost(code, process) {
        // Of a trial or of a change: where the thread is not called it does nothing.
        trial::report_and_wait(&registers.state());
        quiesce::answer(arrived.mask(), registers.rip);
    } else if quiesce::is_call(code, process, value) {
        quiesce::answer(arrived.mask(), registers.rip);
    } else if trial::is_call(code, process, value) {
        trial::report_and_wait(&registers.state());
    } else {
        return hand_over(arrived, code);
    }
    // The thread was about to wait in the kernel, and the signal has ended that wait too early.
    tick::again(arrived.registers_place(), registers);
    0
}

/// Handles traps of `int3` instructions.
fn on_sigtrap(arrived: Arrived) -> u64 {
    const SI_KERNEL: i32 = 0x80;
    let code = arrived.code();
    let mut registers = arrived.registers();
    let before = registers.rip.wrapping_sub(1);
    if code == SI_KERNEL
        && let Some(rip) = after_int3(before)
    {
        registers.rip = rip;
        arrived.go_on_with(registers);
        return 0;
    }
    if areas::entrance(before).is_some() && areas::holds_int3(before) {
        // Another sender's SIGTRAP was pending when the thread met the `int3`, so the kernel dropped the signal of
        // the `int3`. The thread executes it again.
        registers.rip = before;
        arrived.go_on_with(registers);
    }
    if code > 0
        && let Heard::Left(go_on) = scavenger::on_signal(arrived, code, &mut registers, report_text)
    {
        // The scavenger's own trap.
        return go_on;
    }
    hand_over(arrived, code)
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
