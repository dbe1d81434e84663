//! SIGTRAP, which live changes need: `int3` in text that is being changed, and the call to
//! stand still. All others are the program's.
//!
//! Once installed the handler stays, for a thread that has met an `int3` may come late. What
//! the program installs for SIGTRAP from then on is kept here.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::control::Failure;
use crate::handlers::{self, Disposition, REGISTERS_OFFSET, Registers};
use crate::sys::{self, Errno};
use crate::{areas, memory, threads};

pub(crate) const SIGTRAP: u64 = 5;
const SIGINFO: u64 = 4;
const ONSTACK: u64 = 0x0800_0000;
const RESTORER: u64 = 0x0400_0000;
const NODEFER: u64 = 0x4000_0000;
const RESETHAND: u64 = 0x8000_0000;

// The handler goes on in the program's own, by way of its stub, with all as the kernel
// left it. The restorer is what a libc's would be: unwinders know it by these bytes.
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

/// What the program wants done on SIGTRAP.
struct Users {
    handler: AtomicU64,
    flags: AtomicU64,
    restorer: AtomicU64,
    mask: AtomicU64,
}

static USERS: Users = Users {
    handler: AtomicU64::new(0),
    flags: AtomicU64::new(0),
    restorer: AtomicU64::new(0),
    mask: AtomicU64::new(0),
};
/// The process in which the handler was installed: a child of `vfork` has our memory, but
/// a table of its own.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn users() -> Disposition {
    Disposition {
        handler: USERS.handler.load(Ordering::Acquire),
        flags: USERS.flags.load(Ordering::Acquire),
        restorer: USERS.restorer.load(Ordering::Acquire),
        mask: USERS.mask.load(Ordering::Acquire),
    }
}

fn set_users(disposition: &Disposition) {
    USERS.mask.store(disposition.mask, Ordering::Release);
    USERS
        .restorer
        .store(disposition.restorer, Ordering::Release);
    USERS.flags.store(disposition.flags, Ordering::Release);
    USERS.handler.store(disposition.handler, Ordering::Release);
}

/// The handler's address.
pub(crate) fn address() -> u64 {
    membound_trap as *const () as u64
}

/// Installs the handler, if it is not there.
pub(crate) fn install() -> Result<(), Failure> {
    let missing = || Failure::from(Errno::EINVAL);
    let mut found = handlers::disposition(SIGTRAP, None).ok_or_else(missing)?;
    if found.handler != address() {
        found.handler = handlers::unwrapped(found.handler);
        set_users(&found);
        let ours = Disposition {
            handler: address(),
            flags: SIGINFO | ONSTACK | RESTORER,
            restorer: membound_restorer as *const () as u64,
            mask: u64::MAX,
        };
        handlers::disposition(SIGTRAP, Some(&ours)).ok_or_else(missing)?;
    }
    PROCESS.store(sys::process(), Ordering::Release);
    Ok(())
}

/// Whether this process has the handler, and the program's wishes are to be kept here.
pub(crate) fn installed() -> bool {
    let process = PROCESS.load(Ordering::Acquire);
    process != 0 && process == sys::process()
}

/// Keeps a wish of the program's; returns the one before.
pub(crate) fn exchange(new: Option<&Disposition>) -> Disposition {
    let old = users();
    if let Some(new) = new {
        set_users(new);
    }
    old
}

/// Returns where to go on: 0, or the stub of the program's handler.
///
/// # Safety
///
/// Called by the handler with what the kernel passed to it.
unsafe extern "C" fn on_trap(_signal: u64, information: usize, context: usize) -> u64 {
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
    let go_on = if threads::is_call(code, process, value) {
        threads::stand_still();
        areas::inside(registers.rip)
    } else if code == SI_KERNEL {
        after_int3(registers.rip.wrapping_sub(1))
    } else {
        None
    };
    if let Some(rip) = go_on {
        registers.rip = rip;
        // SAFETY: as above; the kernel takes them back from there.
        unsafe { memory::put(place, registers) };
        return 0;
    }
    if threads::is_call(code, process, value) {
        return 0;
    }
    hand_over(code, context)
}

/// Where a thread goes on that met an `int3` at `ip`; `None` if that is the program's own.
fn after_int3(ip: u64) -> Option<u64> {
    const INT3: u8 = 0xcc;
    if let Some(trampoline) = areas::entrance(ip) {
        return Some(trampoline);
    }
    // SAFETY: the thread has just executed this byte.
    let byte: u8 = unsafe { memory::get(ip as usize) };
    // The change is over: the instruction is there again.
    (byte != INT3).then_some(ip)
}

/// Gives the signal to the program, as the kernel would have.
fn hand_over(code: i32, context: usize) -> u64 {
    const DEFAULT: u64 = 0;
    const IGNORE: u64 = 1;
    const MASK_OFFSET: usize = REGISTERS_OFFSET + 256;
    let users = users();
    match users.handler {
        IGNORE if code <= 0 => 0,
        DEFAULT | IGNORE => {
            // The default is the end of the process, by this signal: it comes as soon as the
            // handler's mask is gone.
            handlers::disposition(SIGTRAP, Some(&Disposition::DEFAULT));
            sys::send_signal(sys::process(), sys::thread(), SIGTRAP as u32);
            0
        }
        handler => {
            if users.flags & RESETHAND != 0 {
                set_users(&Disposition::DEFAULT);
            }
            // SAFETY: the mask lies behind the registers and what belongs to them.
            let before: u64 = unsafe { memory::get(context + MASK_OFFSET) };
            let own = if users.flags & NODEFER != 0 {
                0
            } else {
                1 << (SIGTRAP - 1)
            };
            sys::set_mask(before | users.mask | own);
            // Without a stub left, the handler itself: it sees what the kernel saw.
            handlers::stub_of(handler).unwrap_or(handler)
        }
    }
}
