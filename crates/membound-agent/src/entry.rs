//! Where trampolines call in.
//!
//! A trampoline has saved nothing, so the stubs save everything that compiled code may
//! change: the caller-saved general registers, the flags (the direction flag is cleared), and the low
//! 128 bits of the vector registers. The crate is compiled for the baseline, whose
//! instructions leave the upper parts, mask registers, MXCSR and x87 state as they are.

use core::arch::global_asm;

use membound_wire::{Entry, Event};

use crate::start::settings;
use crate::sys::number;
use crate::{areas, control, exec, handlers, sample, start};

/// What a stub saved, lowest address first, and what the trampoline left above it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rax: u64,
    pub(crate) rbp: u64,
    pub(crate) flags: u64,
    pub(crate) return_address: u64,
    /// Arguments of [`Entry::Sample`] and [`Entry::Record`]; another entry's trampoline has
    /// its own things there.
    pub(crate) arguments: [u64; 3],
}

impl Frame {
    /// Lets the trampoline know that the system call was done, with this result.
    fn done(&mut self, result: isize) {
        const CARRY: u64 = 1;
        self.rax = result.cast_unsigned() as u64;
        self.flags |= CARRY;
    }

    /// Leaves the system call to the trampoline.
    fn not_done(&mut self) {
        const CARRY: u64 = 1;
        self.flags &= !CARRY;
    }
}

/// Defines the stub `$name`, which calls `$function` with its frame. `$filter` stands
/// behind `pushfq` and may return early.
macro_rules! stub {
    ($name:literal, $function:path, [$($filter:literal),*]) => {
        global_asm!(
            ".pushsection .text.membound_entries, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "pushfq",
            ".cfi_adjust_cfa_offset 8",
            $($filter,)*
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "push rax",
            "push rcx",
            "push rdx",
            "push rsi",
            "push rdi",
            "push r8",
            "push r9",
            "push r10",
            "push r11",
            "mov rdi, rsp",
            "and rsp, -16",
            "sub rsp, 256",
            "movaps [rsp], xmm0",
            "movaps [rsp + 16], xmm1",
            "movaps [rsp + 32], xmm2",
            "movaps [rsp + 48], xmm3",
            "movaps [rsp + 64], xmm4",
            "movaps [rsp + 80], xmm5",
            "movaps [rsp + 96], xmm6",
            "movaps [rsp + 112], xmm7",
            "movaps [rsp + 128], xmm8",
            "movaps [rsp + 144], xmm9",
            "movaps [rsp + 160], xmm10",
            "movaps [rsp + 176], xmm11",
            "movaps [rsp + 192], xmm12",
            "movaps [rsp + 208], xmm13",
            "movaps [rsp + 224], xmm14",
            "movaps [rsp + 240], xmm15",
            "cld",
            "call {function}",
            "movaps xmm0, [rsp]",
            "movaps xmm1, [rsp + 16]",
            "movaps xmm2, [rsp + 32]",
            "movaps xmm3, [rsp + 48]",
            "movaps xmm4, [rsp + 64]",
            "movaps xmm5, [rsp + 80]",
            "movaps xmm6, [rsp + 96]",
            "movaps xmm7, [rsp + 112]",
            "movaps xmm8, [rsp + 128]",
            "movaps xmm9, [rsp + 144]",
            "movaps xmm10, [rsp + 160]",
            "movaps xmm11, [rsp + 176]",
            "movaps xmm12, [rsp + 192]",
            "movaps xmm13, [rsp + 208]",
            "movaps xmm14, [rsp + 224]",
            "movaps xmm15, [rsp + 240]",
            "lea rsp, [rbp - 72]",
            "pop r11",
            "pop r10",
            "pop r9",
            "pop r8",
            "pop rdi",
            "pop rsi",
            "pop rdx",
            "pop rcx",
            "pop rax",
            "pop rbp",
            ".cfi_def_cfa rsp, 16",
            ".cfi_restore rbp",
            "popfq",
            ".cfi_adjust_cfa_offset -8",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    };
}

// Most system calls that a hooked instruction makes are none of ours: they leave at once.
stub!(
    "membound_entry_syscall",
    on_syscall,
    [
        "cmp rax, 13",
        "je 2f",
        "cmp rax, 10",
        "je 2f",
        "cmp rax, 59",
        "je 2f",
        "cmp rax, 322",
        "je 2f",
        "cmp rax, 329",
        "je 2f",
        "popfq",
        ".cfi_adjust_cfa_offset -8",
        "clc",
        "ret",
        ".cfi_adjust_cfa_offset 8",
        "2:"
    ]
);
stub!("membound_entry_modules", on_modules, []);
stub!("membound_entry_sample", on_sample, []);
stub!("membound_entry_record", on_record, []);

global_asm!(
    ".pushsection .text.membound_entries, \"ax\", @progbits",
    ".globl membound_entry_yield",
    ".hidden membound_entry_yield",
    "membound_entry_yield:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn membound_entry_syscall();
    fn membound_entry_modules();
    fn membound_entry_sample();
    fn membound_entry_record();
    fn membound_entry_yield();
}

/// The entry points, for `Hello::entries`.
pub(crate) fn addresses() -> [u64; 8] {
    let mut entries = [0; 8];
    entries[control::entry_index(Entry::Syscall)] = membound_entry_syscall as *const () as u64;
    entries[control::entry_index(Entry::Modules)] = membound_entry_modules as *const () as u64;
    entries[control::entry_index(Entry::Sample)] = membound_entry_sample as *const () as u64;
    entries[control::entry_index(Entry::Record)] = membound_entry_record as *const () as u64;
    entries[control::entry_index(Entry::Yield)] = membound_entry_yield as *const () as u64;
    entries
}

/// [`Entry::Syscall`], for the numbers that the stub lets through.
extern "C" fn on_syscall(frame: &mut Frame) {
    match frame.rax as usize {
        number::RT_SIGACTION => match handlers::sigaction(frame) {
            Some(result) => frame.done(result),
            None => frame.not_done(),
        },
        number::EXECVE | number::EXECVEAT => match exec::execute(frame) {
            Some(result) => frame.done(result),
            None => frame.not_done(),
        },
        number::MPROTECT | number::PKEY_MPROTECT => {
            give_text_back(frame);
            frame.not_done();
        }
        _ => frame.not_done(),
    }
}

/// Lets the launcher take its patches out of text that is about to be made writable.
fn give_text_back(frame: &Frame) {
    const PROT_WRITE: u64 = 2;
    let range = [frame.rdi, frame.rdi.saturating_add(frame.rsi)];
    if frame.rdx & PROT_WRITE != 0 && areas::patched_text_in(range[0], range[1]) {
        // A launcher that is gone changes nothing any more; the program goes on either way.
        let _ = control::converse(Event::Writable, range);
    }
}

/// [`Entry::Modules`].
extern "C" fn on_modules(_: &mut Frame) {
    let consistent = settings().is_some_and(|settings| start::loader_state(settings).consistent);
    if consistent {
        // Without a launcher, new modules stay as they are.
        let _ = control::converse(Event::Modules, [0; 2]);
    }
}

/// [`Entry::Sample`].
extern "C" fn on_sample(frame: &mut Frame) {
    sample::sample(frame);
}

/// [`Entry::Record`].
extern "C" fn on_record(frame: &mut Frame) {
    sample::record(frame);
}
