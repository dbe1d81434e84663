//! The program's signal handlers, which must never see a trampoline.
//!
//! The kernel is given, in place of each handler, one of a pool of stubs that belongs to this
//! handler for ever. So the kernel's table stays the only truth about what is installed:
//! nothing is to be kept in step, also not with children of `vfork`, which share our memory
//! but not that table. Flags, mask and restorer stay the program's.
//!
//! A stub lets [`enter`] put the original program's state into the context, calls the
//! handler, and lets [`leave`] find where the thread really goes on.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use membound_wire::{Undo, UndoKind};

use crate::entry::{self, Frame, Interrupted};
use crate::sys::{call, check, number};
use crate::{areas, memory, trap};

/// Stubs; the assembly below has the same number.
const STUBS: usize = 1024;
const STUB_BYTES: u64 = 16;

// The stubs differ in their address only, which rax carries. Unwinders pass through: the
// frame's return address is the kernel's restorer, as the handler's own would be.
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

unsafe extern "C" {
    fn membound_signal_stubs();
}

/// The handler of each stub; 0 where the stub is free. Written once.
static HANDLERS: [AtomicU64; STUBS] = [const { AtomicU64::new(0) }; STUBS];
/// Set by the launcher's order, once the hook is in place.
static ADOPTED: AtomicBool = AtomicBool::new(false);

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Disposition {
    pub(crate) handler: u64,
    pub(crate) flags: u64,
    pub(crate) restorer: u64,
    pub(crate) mask: u64,
}

impl Disposition {
    pub(crate) const DEFAULT: Self = Self {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
}

fn stub_address(index: usize) -> u64 {
    membound_signal_stubs as *const () as u64 + index as u64 * STUB_BYTES
}

/// The handler behind the stub at `address`, if it is one.
fn handler_of(address: u64) -> Option<u64> {
    let offset = address.checked_sub(stub_address(0))?;
    let handler = HANDLERS
        .get((offset / STUB_BYTES) as usize)?
        .load(Ordering::Acquire);
    (handler != 0 && offset.is_multiple_of(STUB_BYTES)).then_some(handler)
}

/// The stub of `handler`. `None` when the pool is used up: then the handler gets what the
/// kernel saw.
pub(crate) fn stub_of(handler: u64) -> Option<u64> {
    const DEFAULT_AND_IGNORE: u64 = 1;
    let ours = handler == trap::address() || handler_of(handler).is_some();
    if handler <= DEFAULT_AND_IGNORE || ours {
        return None;
    }
    for (index, slot) in HANDLERS.iter().enumerate() {
        let taken = slot
            .compare_exchange(0, handler, Ordering::AcqRel, Ordering::Acquire)
            .err();
        if taken.is_none_or(|owner| owner == handler) {
            return Some(stub_address(index));
        }
    }
    None
}

/// The program's handler that the kernel's `handler` stands for.
pub(crate) fn unwrapped(handler: u64) -> u64 {
    handler_of(handler).unwrap_or(handler)
}

/// Reads or replaces what the kernel does on `signal`.
pub(crate) fn disposition(signal: u64, new: Option<&Disposition>) -> Option<Disposition> {
    let mut old = Disposition::DEFAULT;
    let new = new.map_or(0, |new| (&raw const *new) as usize);
    // SAFETY: both structures have the kernel's layout and outlive the call.
    let result = unsafe {
        call(
            number::RT_SIGACTION,
            [signal as usize, new, (&raw mut old) as usize, 8, 0, 0],
        )
    };
    check(result).ok().map(|_| old)
}

/// Wraps the handlers that are installed, and from now on every new one. Returns how many
/// there were.
pub(crate) fn adopt() -> u64 {
    let mut adopted = 0;
    ADOPTED.store(true, Ordering::Release);
    for signal in 1..=64 {
        let Some(mut found) = disposition(signal, None) else {
            continue;
        };
        if let Some(stub) = stub_of(found.handler) {
            found.handler = stub;
            if disposition(signal, Some(&found)).is_some() {
                adopted += 1;
            }
        }
    }
    adopted
}

const EFAULT: isize = -14;

/// `rt_sigaction` as the program calls it. `None`: nothing in it concerns the agent.
pub(crate) fn sigaction(frame: &Frame) -> Option<isize> {
    if !ADOPTED.load(Ordering::Acquire) {
        return None;
    }
    let new = frame.rsi as usize;
    let old = frame.rdx as usize;
    let mut wrapped = Disposition::DEFAULT;
    let mut passed = new;
    if new != 0 {
        // A signal that does not exist: the kernel reads the structure and does nothing.
        if kernel_sigaction(0, new, 0, frame.r10) == EFAULT {
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
    if new != 0
        && let Some(stub) = stub_of(wrapped.handler)
    {
        wrapped.handler = stub;
        passed = (&raw const wrapped) as usize;
    }
    let result = kernel_sigaction(frame.rdi, passed, old, frame.r10);
    if result == 0 && old != 0 {
        // SAFETY: the kernel has just written the structure there.
        let mut before: Disposition = unsafe { memory::get(old) };
        if before.handler == trap::address() {
            // In a child, whose table is a copy of ours.
            before = trap::exchange(frame.rdi, None);
        }
        before.handler = unwrapped(before.handler);
        // SAFETY: as above.
        unsafe { memory::put(old, before) };
    }
    Some(result)
}

/// The system call itself, with the program's pointers.
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

/// The general registers in a signal frame's `ucontext`, as the kernel orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Registers {
    /// r8 to r15.
    high: [u64; 8],
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    pub(crate) rip: u64,
    flags: u64,
}

/// Bytes before the registers in a `ucontext`.
pub(crate) const REGISTERS_OFFSET: usize = 40;

impl Registers {
    /// What a trampoline had when it called the agent, as if it had just returned, from the
    /// registers of the thread inside.
    fn of_call(self, call: &Interrupted) -> Self {
        macro_rules! saved {
            ($name:ident, $found:expr) => {
                call.saved(offset_of!(Frame, $name), $found)
            };
        }
        let [r8, r9, r10, r11, r12, r13, r14, r15] = self.high;
        Self {
            high: [
                saved!(r8, r8),
                saved!(r9, r9),
                saved!(r10, r10),
                saved!(r11, r11),
                saved!(r12, r12),
                saved!(r13, r13),
                saved!(r14, r14),
                saved!(r15, r15),
            ],
            rdi: saved!(rdi, self.rdi),
            rsi: saved!(rsi, self.rsi),
            rbp: saved!(rbp, self.rbp),
            rbx: saved!(rbx, self.rbx),
            rdx: saved!(rdx, self.rdx),
            rax: saved!(rax, self.rax),
            rcx: saved!(rcx, self.rcx),
            rsp: call.stack_pointer(),
            rip: saved!(return_address, self.rip),
            flags: saved!(flags, self.flags),
        }
    }

    /// The register by its number in the instruction set.
    fn general(&mut self, register: u8) -> Option<&mut u64> {
        Some(match register {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8..=15 => self.high.get_mut(usize::from(register) - 8)?,
            _ => return None,
        })
    }

    fn set_arithmetic_flags(&mut self, image: u64) {
        // CF, PF, AF, ZF, SF, OF.
        const ARITHMETIC: u64 = 0x8d5;
        self.flags = self.flags & !ARITHMETIC | image & ARITHMETIC;
    }

    /// Flags as `lahf` and `seto al` left them in `image`.
    fn set_flags_from_halves(&mut self, image: u64) {
        const OVERFLOW: u64 = 0x800;
        let overflow = if image & 1 != 0 { OVERFLOW } else { 0 };
        self.set_arithmetic_flags(image >> 8 & 0xff | overflow);
    }

    /// Applies `undo`; `found` is the state before the first one, `load` reads the stack.
    fn undo(&mut self, undo: Undo, found: &mut Self, load: impl Fn(u64) -> u64) {
        let place = self.rsp.wrapping_add_signed(i64::from(undo.value));
        let kind = |wanted: UndoKind| undo.kind == wanted as u8;
        if kind(UndoKind::Load) {
            let value = load(place);
            if let Some(register) = self.general(undo.register) {
                *register = value;
            }
        } else if kind(UndoKind::LoadFlags) {
            self.set_arithmetic_flags(load(place));
        } else if kind(UndoKind::FlagsFromRegister) {
            // The register as it was found: an earlier undo may have given rax back.
            if let Some(&mut image) = found.general(undo.register) {
                self.set_flags_from_halves(image);
            }
        } else if kind(UndoKind::FlagsFromStack) {
            self.set_flags_from_halves(load(place));
        } else if kind(UndoKind::Copy) {
            let copy = found.general(undo.value as u8).map(|register| *register);
            if let (Some(copy), Some(register)) = (copy, self.general(undo.register)) {
                *register = copy;
            }
        } else if kind(UndoKind::Stack) {
            self.rsp = place;
        }
    }
}

/// What a stub keeps between the two calls.
#[derive(Debug)]
#[repr(C)]
struct Kept {
    /// The address that the handler was shown; 0 if the thread was not in a trampoline.
    shown: u64,
    /// Where it goes on if the handler leaves that as it is; 0: where it was found, with
    /// the registers that it had.
    resume: u64,
    /// The registers as they were found, for that case.
    found: Registers,
}

const _: () = assert!(
    size_of::<Kept>() <= 208 - 24,
    "the stub's frame has no room for it"
);

/// Puts the original program's state into the context and returns the handler to call.
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
    let place = context + REGISTERS_OFFSET;
    // SAFETY: the kernel put the registers there.
    let found: Registers = unsafe { memory::get(place) };
    // Inside the agent, what the trampoline had when it called; the call goes on afterwards.
    let inside = entry::interrupted(found.rip, found.rsp, found.rbp);
    let state = inside.map_or(found, |call| found.of_call(&call));
    let place_of = |ip: u64| areas::find(ip).and_then(|area| area.at(ip));
    let at = place_of(state.rip).or_else(|| place_of(island_target(signal, state.rip)?));
    if let Some(at) = at {
        let mut original = state;
        let mut copy = state;
        for undo in at.undos() {
            original.undo(undo, &mut copy, |address| {
                // SAFETY: the table names stack that the trampoline has written.
                unsafe { memory::get(address as usize) }
            });
        }
        original.rip = at.original();
        kept.shown = original.rip;
        if inside.is_none() {
            kept.resume = at.resume();
        } else {
            kept.found = found;
        }
        // SAFETY: the frame is the handler's to change, hence ours.
        unsafe { memory::put(place, original) };
        show_original_fault(signal, information, found.rip, original.rip);
    }
    handler_of(stub).unwrap_or(0)
}

/// Where the jump at `ip` leads: on an island, on the way from the text to a trampoline,
/// nothing has changed yet.
fn island_target(signal: u64, ip: u64) -> Option<u64> {
    const BUS: u64 = 7;
    const SEGV: u64 = 11;
    const JUMP: u8 = 0xe9;
    // A thread may have jumped to where no memory is.
    if matches!(signal, BUS | SEGV) {
        return None;
    }
    // SAFETY: the thread executes the instruction at this address.
    let code: u8 = unsafe { memory::get(ip as usize) };
    if code != JUMP {
        return None;
    }
    // SAFETY: the instruction has these four bytes more.
    let displacement: i32 = unsafe { memory::get(ip as usize + 1) };
    Some(
        ip.wrapping_add(5)
            .wrapping_add_signed(i64::from(displacement)),
    )
}

/// Signals of which the information names the instruction get the original one.
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

/// Sends the thread back to where it goes on.
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
    }
    if registers.rip != rip {
        // SAFETY: as above.
        unsafe { memory::put(place, registers) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: Registers = Registers {
        high: [0; 8],
        rdi: 0,
        rsi: 0,
        rbp: 0,
        rbx: 0,
        rdx: 0,
        rax: 0,
        rcx: 0,
        rsp: 0x1000,
        rip: 0,
        flags: 0x202,
    };

    fn undone(kind: UndoKind, register: u8, value: i32, from: &Registers) -> Registers {
        let mut registers = *from;
        let undo = Undo {
            kind: kind as u8,
            register,
            reserved: 0,
            value,
        };
        registers.undo(undo, &mut from.clone(), |address| address + 1);
        registers
    }

    #[test]
    fn undos_give_registers_back() {
        assert_eq!(undone(UndoKind::Load, 3, 8, &EMPTY).rbx, 0x1009);
        assert_eq!(undone(UndoKind::Load, 13, -8, &EMPTY).high[5], 0xff9);
        assert_eq!(undone(UndoKind::Stack, 0, 128, &EMPTY).rsp, 0x1080);
        let copied = Registers { rsi: 77, ..EMPTY };
        assert_eq!(undone(UndoKind::Copy, 8, 6, &copied).high[0], 77);
    }

    #[test]
    fn flags_come_back_in_all_forms() {
        // SF, ZF and CF by lahf, OF by seto.
        let halves = Registers {
            rax: 0xc301,
            ..EMPTY
        };
        let flags = undone(UndoKind::FlagsFromRegister, 0, 0, &halves).flags;
        assert_eq!(flags, 0x202 | 0xc1 | 0x800);
        // The image at 0x1000 is 0x1001: CF and a bit that is not arithmetic.
        assert_eq!(undone(UndoKind::LoadFlags, 0, 0, &EMPTY).flags, 0x203);
    }
}
