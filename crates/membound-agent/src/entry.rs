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
use crate::{areas, assembly, control, exec, handlers, memory, sample, start};

/// What a stub saved, lowest address first, and what the trampoline left above it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Frame {
    // The callee-saved ones are here for signal handlers only (see `interrupted`).
    pub(crate) r15: u64,
    pub(crate) r14: u64,
    pub(crate) r13: u64,
    pub(crate) r12: u64,
    pub(crate) rbx: u64,
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
/// behind `pushfq` and may return early; its labels with the words that lie on the stack
/// from there on follow it.
macro_rules! stub {
    ($name:literal, $function:path, [$($filter:literal),*], [$($zone:literal: $depth:literal),*]) => {
        global_asm!(
            ".pushsection .text.membound_entries, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "pushfq",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_offset 49, -16",
            concat!($name, "_flags:"),
            $($filter,)*
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            concat!($name, "_base:"),
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            concat!($name, "_framed:"),
            "push rax",
            ".cfi_offset rax, -32",
            "push rcx",
            ".cfi_offset rcx, -40",
            "push rdx",
            ".cfi_offset rdx, -48",
            "push rsi",
            ".cfi_offset rsi, -56",
            "push rdi",
            ".cfi_offset rdi, -64",
            "push r8",
            ".cfi_offset r8, -72",
            "push r9",
            ".cfi_offset r9, -80",
            "push r10",
            ".cfi_offset r10, -88",
            "push r11",
            ".cfi_offset r11, -96",
            "push rbx",
            ".cfi_offset rbx, -104",
            "push r12",
            ".cfi_offset r12, -112",
            "push r13",
            ".cfi_offset r13, -120",
            "push r14",
            ".cfi_offset r14, -128",
            "push r15",
            ".cfi_offset r15, -136",
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
            "lea rsp, [rbp - 112]",
            "pop r15",
            ".cfi_restore r15",
            "pop r14",
            ".cfi_restore r14",
            "pop r13",
            ".cfi_restore r13",
            "pop r12",
            ".cfi_restore r12",
            "pop rbx",
            ".cfi_restore rbx",
            "pop r11",
            ".cfi_restore r11",
            "pop r10",
            ".cfi_restore r10",
            "pop r9",
            ".cfi_restore r9",
            "pop r8",
            ".cfi_restore r8",
            "pop rdi",
            ".cfi_restore rdi",
            "pop rsi",
            ".cfi_restore rsi",
            "pop rdx",
            ".cfi_restore rdx",
            "pop rcx",
            ".cfi_restore rcx",
            "pop rax",
            ".cfi_restore rax",
            "pop rbp",
            ".cfi_def_cfa rsp, 16",
            ".cfi_restore rbp",
            concat!($name, "_unframed:"),
            "popfq",
            ".cfi_adjust_cfa_offset -8",
            ".cfi_restore 49",
            concat!($name, "_done:"),
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            ".pushsection .rodata.membound_zones, \"a\", @progbits",
            concat!(".long ", $name, " - membound_entries_start, 0"),
            concat!(".long ", $name, "_flags - membound_entries_start, 1"),
            $(concat!(".long ", $zone, " - membound_entries_start, ", $depth),)*
            concat!(".long ", $name, "_base - membound_entries_start, 2"),
            concat!(".long ", $name, "_framed - membound_entries_start, 255"),
            concat!(".long ", $name, "_unframed - membound_entries_start, 1"),
            concat!(".long ", $name, "_done - membound_entries_start, 0"),
            ".popsection",
            function = sym $function,
        );
    };
}

// All stubs lie between these two marks.
global_asm!(
    ".pushsection .text.membound_entries, \"ax\", @progbits",
    ".globl membound_entries_start",
    ".hidden membound_entries_start",
    "membound_entries_start:",
    ".popsection",
    // Pairs in the order of addresses: an offset from the first mark, and how many words
    // lie on the stack below the return address from there on (255: rbp tells).
    ".pushsection .rodata.membound_zones, \"a\", @progbits",
    ".p2align 2",
    ".globl membound_zones",
    ".hidden membound_zones",
    "membound_zones:",
    ".popsection",
);

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
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore 49",
        "membound_entry_syscall_left:",
        "clc",
        "ret",
        ".cfi_restore_state",
        "membound_entry_syscall_ours:",
        "2:"
    ],
    ["membound_entry_syscall_left": 0, "membound_entry_syscall_ours": 1]
);
stub!("membound_entry_modules", on_modules, [], []);
stub!("membound_entry_sample", on_sample, [], []);
stub!("membound_entry_record", on_record, [], []);

global_asm!(
    ".pushsection .text.membound_entries, \"ax\", @progbits",
    ".globl membound_entry_yield",
    ".hidden membound_entry_yield",
    "membound_entry_yield:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".globl membound_entries_end",
    ".hidden membound_entries_end",
    "membound_entries_end:",
    ".popsection",
    ".pushsection .rodata.membound_zones, \"a\", @progbits",
    ".long membound_entry_yield - membound_entries_start, 0",
    ".long -1, 0",
    ".popsection",
);

unsafe extern "C" {
    static membound_zones: u32;
    fn membound_entries_start();
    fn membound_entries_end();
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

/// The call in which a thread was interrupted inside the agent, by which the registers are
/// had that the trampoline called with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted {
    /// Address of the stub's [`Frame`], which may be half made or half taken down.
    frame: u64,
    /// The thread's stack pointer: below it nothing is saved yet, or any more.
    rsp: u64,
}

impl Interrupted {
    /// What the stub has saved at this offset in its [`Frame`]; `found` is what the thread has
    /// there now, which is the same where nothing is saved.
    pub(crate) fn saved(&self, offset: usize, found: u64) -> u64 {
        let place = self.frame + offset as u64;
        if place < self.rsp {
            return found;
        }
        // SAFETY: it is stack at or above the stack pointer of a thread that goes on only
        // when its handler, which is running now, has returned.
        unsafe { memory::get(place as usize) }
    }

    /// The stack pointer when the call has returned.
    pub(crate) const fn stack_pointer(&self) -> u64 {
        self.frame + core::mem::offset_of!(Frame, arguments) as u64
    }
}

/// Finds that out for a thread with these registers. `None` if it is in no call from a
/// trampoline.
///
/// The agent is compiled with frame pointers, so the frames form a chain up to the stub's.
pub(crate) fn interrupted(rip: u64, rsp: u64, rbp: u64) -> Option<Interrupted> {
    const DEEPEST: u64 = 16 << 10;
    const MOST: usize = 32;
    let own = assembly::own_range();
    if !(own[0]..own[1]).contains(&rip) {
        return None;
    }
    let stubs =
        membound_entries_start as *const () as u64..membound_entries_end as *const () as u64;
    if stubs.contains(&rip) {
        let frame = in_stub(rip - stubs.start, rsp, rbp)?;
        return Some(Interrupted { frame, rsp });
    }
    let of_stub = |rbp| frame_of(rbp).map(|frame| Interrupted { frame, rsp });
    // Before the function that a stub calls has made its frame, and after it has left it:
    // the stack pointer is at the return address, or one push below it.
    let back_at = return_slot(rbp);
    if back_at == rsp || back_at == rsp + 8 {
        // SAFETY: the place is on the stack, at or right above the stack pointer.
        let back: u64 = unsafe { memory::get(back_at as usize) };
        if stubs.contains(&back) {
            return of_stub(rbp);
        }
    }
    let mut low = rsp;
    let mut frame = rbp;
    for _ in 0..MOST {
        if frame < low || frame - rsp > DEEPEST || !frame.is_multiple_of(8) {
            return None;
        }
        // SAFETY: it is stack above the stack pointer, and the handler runs on the same
        // thread, or on its alternate stack.
        let outer: u64 = unsafe { memory::get(frame as usize) };
        // SAFETY: as above.
        let back: u64 = unsafe { memory::get(frame as usize + 8) };
        if stubs.contains(&back) {
            return of_stub(outer);
        }
        low = frame + 16;
        frame = outer;
    }
    None
}

/// Where the frame of a stub is, or will be or was, for a thread at this offset from the
/// stubs' start.
fn in_stub(offset: u64, rsp: u64, rbp: u64) -> Option<u64> {
    const FRAMED: u32 = 255;
    const RETURN_ADDRESS: u64 = core::mem::offset_of!(Frame, return_address) as u64;
    let mut at = (&raw const membound_zones) as usize;
    let mut words = 0;
    loop {
        // SAFETY: the table ends with an offset that none is above.
        let [start, depth]: [u32; 2] = unsafe { memory::get(at) };
        if u64::from(start) > offset {
            break;
        }
        words = depth;
        at += 8;
    }
    if words == FRAMED {
        return frame_of(rbp);
    }
    (rsp + 8 * u64::from(words)).checked_sub(RETURN_ADDRESS)
}

/// Where the return address of a stub's call lies, by its frame pointer: below the saved
/// registers, the alignment and the vector registers.
fn return_slot(rbp: u64) -> u64 {
    const VECTORS: u64 = 256;
    let saved = rbp.wrapping_sub(core::mem::offset_of!(Frame, rbp) as u64);
    (saved & !15).wrapping_sub(VECTORS + 8)
}

/// The address of the frame of the stub whose frame pointer this is.
fn frame_of(rbp: u64) -> Option<u64> {
    rbp.checked_sub(core::mem::offset_of!(Frame, rbp) as u64)
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
