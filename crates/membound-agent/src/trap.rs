//! Signals that the agent handles itself: SIGTRAP, by which a thread meets an `int3` in text that is being
//! changed; SIGSTKFLT, by which a thread is called; and the signals of scavengers' system calls and faults.
//! The kernel does not use SIGSTKFLT, and programs do not either. It cannot be SIGTRAP: while a call was
//! pending, the kernel would drop the signal of an `int3`.
//!
//! Once installed the handler stays, since a thread that has met an `int3` may arrive late. From then on
//! this module keeps what the program installs for these signals, and gives the program all signals that
//! are not membound's.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::failure::Failure;
use crate::handlers::{self, Disposition, IGNORE, MASK_OFFSET, REGISTERS_OFFSET, Registers};
use crate::scavenger::Heard;
use crate::scheduler::leave::Arrived;
use crate::sys::{self, Errno};
use crate::{areas, hold, masks, memory, quiesce, scavenger, scheduler, threads, tick};

/// The signals handled here; the index is that of [`USERS`].
const SIGNALS: [u64; 7] = [SIGTRAP, CALL, SYS, SEGV, BUS, FPE, ILL];
/// Those that changes of text need.
pub(crate) const OF_CHANGES: [u64; 2] = [SIGTRAP, CALL];
/// Those by which scavengers make system calls and fault. Other threads' are given to the program.
pub(crate) const OF_SCAVENGERS: [u64; 5] = [SYS, SEGV, BUS, FPE, ILL];
const SIGTRAP: u64 = 5;
/// SIGSYS: of a dispatched system call.
pub(crate) const SYS: u64 = 31;
/// SIGSEGV.
pub(crate) const SEGV: u64 = 11;
const BUS: u64 = 7;
const FPE: u64 = 8;
const ILL: u64 = 4;
/// SIGSTKFLT: calls a thread into the handler, to stand still, to be measured or to leave a slice.
pub(crate) const CALL: u64 = 16;
const SIGINFO: u64 = 4;
const ONSTACK: u64 = 0x0800_0000;
const RESTORER: u64 = 0x0400_0000;
const RESTART: u64 = 0x1000_0000;
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

unsafe extern "C" {
    fn membound_trap();
    fn membound_restorer();
}

/// Flags with which the agent's handlers are installed.
pub(crate) const FLAGS: u64 = SIGINFO | ONSTACK | RESTORER | RESTART;

/// Address to which they return.
pub(crate) fn restorer() -> u64 {
    membound_restorer as *const () as u64
}

/// The disposition that the program has set for a signal.
struct Users {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

impl Users {
    const fn new() -> Self {
        Self {
            handler: AtomicU64::new(0),
            flags: AtomicU64::new(0),
            restorer: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn get(&self) -> Disposition {
        Disposition {
            handler: self.handler.load(Ordering::Acquire),
            flags: self.flags.load(Ordering::Acquire),
            restorer: self.restorer.load(Ordering::Acquire),
            mask: self.mask.load(Ordering::Acquire),
        }
    }

    fn set(&self, disposition: &Disposition) {
        // The handler last, as `get` reads it first: a new handler is never paired with older values.
        self.mask.store(disposition.mask, Ordering::Release);
        self.restorer.store(disposition.restorer, Ordering::Release);
        self.flags.store(disposition.flags, Ordering::Release);
        self.handler.store(disposition.handler, Ordering::Release);
    }
}

static USERS: [Users; SIGNALS.len()] = [const { Users::new() }; SIGNALS.len()];
/// The process in which the handler was installed: a child of `vfork` shares this memory, but has
/// dispositions of its own until it executes another program.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The signals for which it was installed, as a mask.
static OWNED: AtomicU64 = AtomicU64::new(0);

fn users(signal: u64) -> Option<&'static Users> {
    let index = SIGNALS.iter().position(|&kept| kept == signal)?;
    USERS.get(index)
}

/// Address of the handler.
pub(crate) fn address() -> u64 {
    membound_trap as *const () as u64
}

/// The signal mask with these signals.
pub(crate) const fn mask(signals: &[u64]) -> u64 {
    let mut mask = 0;
    let mut rest = signals;
    while let [signal, behind @ ..] = rest {
        mask |= 1 << (*signal - 1);
        rest = behind;
    }
    mask
}

/// Installs the handler for `signals` where it is not installed yet.
pub(crate) fn install(signals: &[u64]) -> Result<(), Failure> {
    let missing = || Failure::from(Errno::EINVAL);
    for signal in signals {
        let users = users(*signal).ok_or_else(missing)?;
        let mut found = handlers::disposition(*signal, None).ok_or_else(missing)?;
        if found.handler == address() {
            continue;
        }
        found.unwrap();
        // Before the handler is installed: from then on it gives signals to the disposition kept here.
        users.set(&found);
        // A scavenger's system call must leave its frame on the scavenger's own stack, whichever thread
        // runs it.
        let flags = if *signal == SYS {
            FLAGS & !ONSTACK
        } else {
            FLAGS
        };
        let ours = Disposition {
            handler: address(),
            flags,
            restorer: restorer(),
            mask: u64::MAX,
        };
        handlers::disposition(*signal, Some(&ours)).ok_or_else(missing)?;
    }
    OWNED.fetch_or(mask(signals), Ordering::AcqRel);
    PROCESS.store(sys::process(), Ordering::Release);
    Ok(())
}

/// As [`install`], unless all of `signals` were installed in this process already.
pub(crate) fn install_once(signals: &[u64]) -> Result<(), Failure> {
    if signals.iter().all(|signal| owns(*signal)) {
        return Ok(());
    }
    install(signals)
}

/// True if the agent handles `signal` in this process, so that the program's disposition is kept here.
pub(crate) fn owns(signal: u64) -> bool {
    let process = PROCESS.load(Ordering::Acquire);
    let known = SIGNALS.contains(&signal) && OWNED.load(Ordering::Acquire) & mask(&[signal]) != 0;
    known && process != 0 && process == sys::process()
}

/// Returns the program's disposition for `signal`, and replaces it by `new` if that is given.
pub(crate) fn exchange(signal: u64, new: Option<&Disposition>) -> Disposition {
    let Some(users) = users(signal) else {
        return Disposition::DEFAULT;
    };
    let old = users.get();
    if let Some(new) = new {
        users.set(new);
    }
    old
}

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
        unsafe { handlers::leave_overwritten_text(context) };
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
    if signal == SYS && scheduler::ending::is_call(code, process, value) {
        scavenger::on_end();
        return 0;
    }
    if OF_SCAVENGERS.contains(&signal) {
        match scavenger::on_signal(arrived, code, &mut registers) {
            Heard::No => {}
            Heard::Yes => {
                // SAFETY: as above; the kernel takes them back from there.
                unsafe { memory::put(place, registers) };
                return 0;
            }
            Heard::Left(go_on) => return go_on,
        }
    }
    if signal == CALL && scheduler::finish::is_over() {
        // First the scavenger goes home; its thread is then called once more.
        match scheduler::leave::on_signal(arrived) {
            Some(go_on) => return go_on,
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
    let go_on = if signal == CALL && quiesce::is_call(code, process, value) {
        // SAFETY: the mask lies behind the registers and what belongs to them.
        let mask: u64 = unsafe { memory::get(context + MASK_OFFSET) };
        quiesce::answer(mask, registers.rip);
        Some(registers.rip)
    } else if signal == CALL && hold::is_call(code, process, value) {
        hold::stand(&registers.state());
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
            && let Heard::Left(go_on) = scavenger::on_signal(arrived, code, &mut registers)
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

/// Address at which a thread goes on that met an `int3` at `ip`; `None` if the `int3` is the program's own.
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
    if code <= 0 && masks::make_true(signal, arrived.information, context) {
        return 0;
    }
    let users = kept.get();
    // The kernel ends a program whose thread blocks the signal of its own fault.
    let blocks = code > 0 && masks::believed(sys::thread()) & mask(&[signal]) != 0;
    let handler = if blocks { DEFAULT } else { users.handler };
    match handler {
        IGNORE if code <= 0 => 0,
        DEFAULT | IGNORE => {
            // The default action ends the process by this signal, which arrives as soon as the handler's
            // mask is gone.
            handlers::disposition(signal, Some(&Disposition::DEFAULT));
            sys::send_signal(sys::process(), sys::thread(), signal as u32);
            0
        }
        _ if scavenger::is_own_thread(sys::thread()) => {
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
            handlers::stub_of(handler).unwrap_or(handler)
        }
    }
}
