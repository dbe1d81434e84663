//! The program's signal handlers, which must never see a trampoline.
//!
//! In place of each handler the kernel gets a stub from a pool; a stub belongs to its handler for ever. So
//! the kernel's table stays the only record of what is installed, and there is no second one to keep
//! consistent, not even with children of `vfork`, which share this memory but not that table. Flags, mask
//! and restorer stay the program's.
//!
//! A stub calls [`enter`], which puts the original program's state into the context, then the handler, then
//! [`leave`], which sets where the thread goes on.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use membound_wire::State;

use crate::inside::{self, Inside};
use crate::saved_registers::SavedRegisters;
use crate::scheduler::leave::Arrived;
use crate::sys::{call, check, number};
use crate::timers::{self, Use};
use crate::{areas, masks, memory, quiesce, scheduler, tick, trap};

pub(crate) mod vectors;

/// Handler of a signal that is ignored (`SIG_IGN`).
pub(crate) const IGNORE: u64 = 1;

/// Number of stubs; the assembly below has the same number.
const STUBS: usize = 1024;
const STUB_BYTES: u64 = 16;

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

unsafe extern "C" {
    fn membound_signal_stubs();
}

/// Mark in [`HANDLERS`]: the program did not ask for `SA_SIGINFO`. With run queues the kernel is asked for
/// the information all the same, since a signal may have to be sent again with it.
const WITHOUT_INFORMATION: u64 = 1 << 63;
/// Mark in [`HANDLERS`]: the program asked for `SA_RESETHAND`. With run queues the stub resets the handler,
/// not the kernel: a signal that is sent again must still find it.
const ONCE: u64 = 1 << 62;
const MARKS: u64 = WITHOUT_INFORMATION | ONCE;
const SIGINFO: u64 = 4;
const RESETHAND: u64 = 0x8000_0000;

/// Handler of each stub, with [`MARKS`]; 0 where the stub is free. Written once.
static HANDLERS: [AtomicU64; STUBS] = [const { AtomicU64::new(0) }; STUBS];
/// Set by an order of the launcher, once its hook on system calls is in place.
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

    pub(crate) fn is_ignored(&self) -> bool {
        self.handler == IGNORE
    }

    /// Puts a stub in the handler's place; `false` if it stays as it is.
    fn wrap(&mut self) -> bool {
        let mut marks = 0;
        if scheduler::control_page().is_some() {
            if self.flags & SIGINFO == 0 {
                marks |= WITHOUT_INFORMATION;
            }
            if self.flags & RESETHAND != 0 {
                marks |= ONCE;
            }
        }
        let Some(stub) = marked_stub_of(self.handler, marks) else {
            return false;
        };
        self.handler = stub;
        if marks & WITHOUT_INFORMATION != 0 {
            self.flags |= SIGINFO;
        }
        if marks & ONCE != 0 {
            self.flags &= !RESETHAND;
        }
        true
    }

    /// Undoes [`Self::wrap`]: puts the program's handler and flags back. Returns whether the handler was a
    /// stub.
    pub(crate) fn unwrap(&mut self) -> bool {
        let Some(marked) = handler_of(self.handler) else {
            return false;
        };
        self.handler = marked & !MARKS;
        if marked & WITHOUT_INFORMATION != 0 {
            self.flags &= !SIGINFO;
        }
        if marked & ONCE != 0 {
            self.flags |= RESETHAND;
        }
        true
    }
}

fn stub_address(index: usize) -> u64 {
    membound_signal_stubs as *const () as u64 + index as u64 * STUB_BYTES
}

/// Handler of the stub at `address`, with its marks; `None` if there is no stub.
fn handler_of(address: u64) -> Option<u64> {
    let offset = address.checked_sub(stub_address(0))?;
    let handler = HANDLERS
        .get((offset / STUB_BYTES) as usize)?
        .load(Ordering::Acquire);
    (handler != 0 && offset.is_multiple_of(STUB_BYTES)).then_some(handler)
}

/// The stub of `handler`. `None` when the pool is used up: then the handler sees the registers as the
/// kernel does.
pub(crate) fn stub_of(handler: u64) -> Option<u64> {
    marked_stub_of(handler, 0)
}

fn marked_stub_of(handler: u64, marks: u64) -> Option<u64> {
    const DEFAULT_AND_IGNORE: u64 = 1;
    let ours =
        [trap::address(), tick::address()].contains(&handler) || handler_of(handler).is_some();
    if handler <= DEFAULT_AND_IGNORE || ours {
        return None;
    }
    for (index, slot) in HANDLERS.iter().enumerate() {
        let taken = slot
            .compare_exchange(0, handler | marks, Ordering::AcqRel, Ordering::Acquire)
            .err();
        if taken.is_none_or(|owner| owner == handler | marks) {
            return Some(stub_address(index));
        }
    }
    None
}

/// Reads or replaces the kernel's disposition of `signal`; returns the previous one.
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

/// Wraps the handlers that are installed, and every new one from now on. Returns the number of the former.
pub(crate) fn adopt() -> u64 {
    let mut adopted = 0;
    ADOPTED.store(true, Ordering::Release);
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
        if found.handler == trap::address() {
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
    if timers::owns(frame.rdi) {
        if new == 0 || wrapped.handler == Disposition::DEFAULT.handler {
            return Some(pretend_default(frame, old));
        }
        timers::give_up(frame.rdi, Use::Handles);
    }
    if new != 0 && wrapped.wrap() {
        passed = (&raw const wrapped) as usize;
    }
    let result = kernel_sigaction(frame.rdi, passed, old, frame.r10);
    if result == 0 && old != 0 {
        // SAFETY: the kernel has just written the structure there.
        let mut before: Disposition = unsafe { memory::get(old) };
        if before.handler == trap::address() {
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

/// Offset of the registers in a `ucontext`, in bytes.
pub(crate) const REGISTERS_OFFSET: usize = 40;
/// Offset of the signal mask, which lies behind the registers and the fields that belong to them.
pub(crate) const MASK_OFFSET: usize = REGISTERS_OFFSET + 256;

impl Registers {
    pub(crate) fn state(&self) -> State {
        let low = [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi,
        ];
        let mut state = State {
            ip: self.rip,
            flags: self.flags,
            ..State::default()
        };
        for (register, value) in state.general.iter_mut().zip(low.iter().chain(&self.high)) {
            *register = *value;
        }
        state
    }

    /// The system call in these registers: its number and arguments.
    pub(crate) fn call(&self) -> (usize, [usize; 6]) {
        let [r8, r9, r10, ..] = self.high;
        let arguments = [self.rdi, self.rsi, self.rdx, r10, r8, r9];
        (self.rax as usize, arguments.map(|it| it as usize))
    }

    /// Stores a system call's result.
    pub(crate) fn answer(&mut self, result: isize) {
        self.rax = result.cast_unsigned() as u64;
    }

    /// Makes the thread execute the system call `number` again, with the instruction at `at`.
    pub(crate) fn call_again(&mut self, at: u64, number: u64) {
        self.rip = at;
        self.rax = number;
    }

    fn of_state(state: &State) -> Self {
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, high @ ..] = state.general;
        Self {
            high,
            rdi,
            rsi,
            rbp,
            rbx,
            rdx,
            rax,
            rcx,
            rsp,
            rip: state.ip,
            flags: state.flags,
        }
    }
}

/// A thread that was interrupted in a trampoline, or in the agent when a trampoline had called it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    /// The registers that the original program would have.
    pub(crate) original: State,
    /// Address in the trampoline at which the thread goes on with these registers; `None` inside the agent,
    /// which must finish its call first.
    resume: Option<u64>,
    /// The thread's registers in the trampoline, or when the trampoline called the agent.
    within: State,
}

impl Stand {
    /// True if a thread at `ip` executes code that the original program does not have.
    pub(crate) fn is_beside(&self, ip: u64) -> bool {
        self.resume != Some(ip)
    }

    /// Puts the original program's vector registers into the frame whose `ucontext` is at `context`, if the
    /// trampoline has saved them on the stack.
    fn put_vectors(&self, context: usize) {
        if let Some(area) = areas::find(self.within.ip) {
            // SAFETY: it is the frame of a handler that runs now, and what a trampoline has put on the
            // stack is there until the thread goes on in it.
            unsafe { vectors::put(context, area.vectors_of(&self.within)) };
        }
    }
}

/// Finds the place of a thread that `signal` interrupted with these registers. `None` in the program's own
/// code, and in the agent if no trampoline has called it.
pub(crate) fn stand(signal: u64, found: &State) -> Option<Stand> {
    let inside = inside::interrupted(found);
    let of = |state: &State| areas::find(state.ip)?.original_of(state);
    // Inside the agent: the registers that the trampoline had at its call, which goes on afterwards.
    let state = match inside {
        Some(Inside::Called(frame)) => found.of_call(frame, |address| {
            // SAFETY: it is stack at or above the stack pointer of a thread that goes on only
            // when its handler, which is running now, has returned.
            Some(unsafe { memory::get(address as usize) })
        })?,
        Some(Inside::Wrapped(state)) => {
            return Some(Stand {
                // Behind the call there is usually the caller's own code.
                original: of(&state).map_or(state, |original| original.state),
                resume: None,
                within: state,
            });
        }
        None => *found,
    };
    let mut within = state;
    let original = of(&state).or_else(|| {
        within.ip = island_target(signal, state.ip)?;
        of(&within)
    })?;
    Some(Stand {
        original: original.state,
        resume: original.resume.filter(|_| inside.is_none()),
        within,
    })
}

/// State that a stub keeps from [`enter`] to [`leave`].
#[derive(Debug)]
#[repr(C)]
struct Kept {
    /// The instruction pointer shown to the handler; 0 if the thread was not in a trampoline.
    shown: u64,
    /// Where the thread goes on if the handler does not change that; 0: where it was interrupted, with
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
    scheduler::on_handler(context, masks::now);
    // The kernel has blocked the handler's signals, perhaps those of a change of text: wait until none is
    // closed.
    quiesce::wait_for_change();
    let place = context + REGISTERS_OFFSET;
    if tick::is_late(signal, information) {
        return 0;
    }
    // SAFETY: the kernel put the registers there.
    let found: Registers = unsafe { memory::get(place) };
    if let Some(stand) = stand(signal, &found.state()) {
        let original = Registers::of_state(&stand.original);
        kept.shown = original.rip;
        match stand.resume {
            Some(resume) => {
                kept.resume = resume;
                stand.put_vectors(context);
            }
            // The thread goes on with its own registers, unless the handler sends it elsewhere.
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

/// Target of the jump at `ip`. On an island, between the text and a trampoline, the registers are still the
/// original program's.
fn island_target(signal: u64, ip: u64) -> Option<u64> {
    const BUS: u64 = 7;
    const SEGV: u64 = 11;
    const JUMP: u8 = 0xe9;
    // The thread may have jumped to unmapped memory.
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

/// Sets where the thread goes on after the handler.
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
            if let Some(stand) = stand(0, &kept.found.state()) {
                stand.put_vectors(context);
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

/// Moves a thread that would return from its handler into overwritten text to the trampoline instead.
///
/// A thread that sleeps in a handler of the agent counts as outside the text that is being changed, so
/// this is the last thing that such a handler does: no system call that may sleep comes after it.
///
/// # Safety
///
/// `context` is what the kernel passed to the handler.
pub(crate) unsafe fn leave_overwritten_text(context: usize) {
    let place = context + REGISTERS_OFFSET;
    // SAFETY: the kernel put the registers there, and takes them back from there.
    let mut registers: Registers = unsafe { memory::get(place) };
    if let Some(entrance) = areas::inside(registers.rip) {
        registers.rip = entrance;
        // SAFETY: as above.
        unsafe { memory::put(place, registers) };
    }
}

#[cfg(test)]
mod tests {
    use membound_wire::STACK_POINTER;

    use super::*;

    #[test]
    fn a_state_has_every_register_at_its_number() {
        let registers = Registers {
            high: [8, 9, 10, 11, 12, 13, 14, 15],
            rdi: 7,
            rsi: 6,
            rbp: 5,
            rbx: 3,
            rdx: 2,
            rax: 0,
            rcx: 1,
            rsp: 4,
            rip: 16,
            flags: 17,
        };
        let state = registers.state();
        assert!(state.general.iter().copied().eq(0..16));
        assert_eq!((state.ip, state.flags), (16, 17));
        assert_eq!(state.stack_pointer(), state.general[STACK_POINTER]);
        assert_eq!(Registers::of_state(&state), registers);
    }
}
