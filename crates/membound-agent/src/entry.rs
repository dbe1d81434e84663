//! Entry points that trampolines call.
//!
//! A trampoline has saved no registers, so the stubs save everything that compiled code may change: the
//! caller-saved general registers, the flags (the direction flag is cleared), and the vector registers (see
//! `vectors`).

use core::arch::global_asm;
use core::mem::offset_of;

use membound_wire::{CALL_FRAME_BASE, CALL_FRAME_FLAGS, CALL_FRAME_RETURN, Entry, Event, State};

use crate::sys::number;
use crate::vectors::{restore_vectors, save_vectors};
use crate::{
    alone, areas, assembly, children, control, exec, filters, handlers, listen, loader, locked,
    masks, memory, quiesce, requests, sample, scheduler, vectors, wrap,
};

/// Registers that a stub saved, lowest address first, and what the trampoline had pushed above them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SavedRegisters {
    // The callee-saved registers are here for signal handlers only (see `interrupted`).
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
    /// Arguments of [`Entry::Sample`], [`Entry::Record`] and [`Entry::Mark`]; in other entries the words
    /// hold other data of the trampoline.
    pub(crate) arguments: [u64; 5],
}

// Launcher and agent use the same offsets.
const _: () = assert!(
    offset_of!(SavedRegisters, flags) as u64 == CALL_FRAME_FLAGS
        && offset_of!(SavedRegisters, return_address) as u64 == CALL_FRAME_RETURN
        && offset_of!(SavedRegisters, rbp) as u64 == CALL_FRAME_BASE
        && offset_of!(SavedRegisters, rcx) == 12 * 8
);

/// Number of rbp among the general registers.
const FRAME_POINTER: usize = 5;

/// Flags by which the agent answers a trampoline.
const CARRY: u64 = 1;
const ZERO: u64 = 1 << 6;

impl SavedRegisters {
    /// Tells the trampoline that the system call was made, with this result.
    fn done(&mut self, result: isize) {
        self.rax = result.cast_unsigned() as u64;
        self.flags |= CARRY;
    }

    /// Arguments of the system call that the trampoline asks about.
    pub(crate) const fn call_arguments(&self) -> [usize; 6] {
        [
            self.rdi as usize,
            self.rsi as usize,
            self.rdx as usize,
            self.r10 as usize,
            self.r8 as usize,
            self.r9 as usize,
        ]
    }

    /// The system call that the trampoline asks about.
    const fn call(&self) -> alone::Call {
        alone::Call {
            number: self.rax as usize,
            arguments: self.call_arguments(),
        }
    }

    /// Tells the trampoline the result of the system call, or that it was not made.
    fn made(&mut self, result: Option<isize>) {
        match result {
            Some(result) => self.done(result),
            None => self.not_done(),
        }
    }

    /// Tells the trampoline what to do about a call that may wait.
    pub(crate) fn waits(&mut self, answer: Wait) {
        self.flags &= !(CARRY | ZERO);
        match answer {
            Wait::Call => {}
            Wait::Done => {
                self.rax = 0;
                self.flags |= ZERO;
            }
            Wait::Yield => self.flags |= CARRY,
        }
    }

    /// Tells the trampoline to make the system call itself.
    fn not_done(&mut self) {
        self.flags &= !CARRY;
    }
}

/// What a trampoline does about a system call that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It makes the call.
    Call,
    /// The call is over, without an error.
    Done,
    /// It yields, and asks again.
    Yield,
}

/// Defines the stub `$name`, which calls `$function` with its frame. `$filter` stands behind `pushfq` and
/// may return early; its labels follow, each with the number of words on the stack from there on.
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
            save_vectors!(),
            "cld",
            "call {function}",
            restore_vectors!(),
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
    // Pairs in the order of addresses: an offset from the first mark, and the number of words on the stack
    // below the return address from there on (255: rbp is the frame pointer).
    ".pushsection .rodata.membound_zones, \"a\", @progbits",
    ".p2align 2",
    ".globl membound_zones",
    ".hidden membound_zones",
    "membound_zones:",
    ".popsection",
);

// Most system calls of a hooked instruction do not concern the agent: the stub returns at once.
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
        "cmp rax, 14",
        "je 2f",
        "cmp rax, 56",
        "je 2f",
        "cmp rax, 57",
        "je 2f",
        "cmp rax, 58",
        "je 2f",
        "cmp rax, 128",
        "je 2f",
        "cmp rax, 131",
        "je 2f",
        "cmp rax, 289",
        "je 2f",
        "cmp rax, 435",
        "je 2f",
        "cmp rax, 157",
        "je 2f",
        "cmp rax, 317",
        "je 2f",
        "cmp rax, 60",
        "je 2f",
        "cmp rax, 231",
        "je 2f",
        "cmp rax, 151",
        "je 2f",
        "cmp rax, 262",
        "je 2f",
        "cmp rax, 272",
        "je 2f",
        "cmp rax, 308",
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
stub!("membound_entry_yield", scheduler::on_yield, [], []);
stub!("membound_entry_mark", requests::on_mark, [], []);
stub!("membound_entry_wait", scheduler::wait::on_wait, [], []);

global_asm!(
    ".pushsection .text.membound_entries, \"ax\", @progbits",
    ".globl membound_entries_end",
    ".hidden membound_entries_end",
    "membound_entries_end:",
    ".popsection",
    ".pushsection .rodata.membound_zones, \"a\", @progbits",
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
    fn membound_entry_mark();
    fn membound_entry_wait();
}

/// The entry points, for `Hello::entries`.
pub(crate) fn addresses() -> [u64; 8] {
    let mut entries = [0; 8];
    entries[control::entry_index(Entry::Syscall)] = membound_entry_syscall as *const () as u64;
    entries[control::entry_index(Entry::Modules)] = membound_entry_modules as *const () as u64;
    entries[control::entry_index(Entry::Sample)] = membound_entry_sample as *const () as u64;
    entries[control::entry_index(Entry::Record)] = membound_entry_record as *const () as u64;
    entries[control::entry_index(Entry::Wrap)] = wrap::address();
    entries[control::entry_index(Entry::Yield)] = membound_entry_yield as *const () as u64;
    entries[control::entry_index(Entry::Mark)] = membound_entry_mark as *const () as u64;
    entries[control::entry_index(Entry::Wait)] = membound_entry_wait as *const () as u64;
    entries
}

/// How a thread came into the agent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inside {
    /// By a trampoline's call: the address of the stub's frame, from which the registers at the call can be
    /// read. The frame may be half built or half removed.
    Called(u64),
    /// By the entry of a wrapped function: the registers that the thread would have at the entry, or behind
    /// the call. The instruction may be in a trampoline.
    Wrapped(State),
}

/// How a thread with these registers came into the agent; `None` if no trampoline's call is in progress.
///
/// The agent is compiled with frame pointers, so its frames form a chain up to the stub's.
pub(crate) fn interrupted(found: &State) -> Option<Inside> {
    const MAX_DEPTH_BYTES: u64 = 16 << 10;
    const MAX_FRAMES: usize = 32;
    let (rip, rsp) = (found.ip, found.stack_pointer());
    let rbp = found.general[FRAME_POINTER];
    let own = assembly::own_range();
    if !(own[0]..own[1]).contains(&rip) {
        return None;
    }
    if wrap::contains(rip) {
        return wrap::in_stub(found).map(Inside::Wrapped);
    }
    let stubs =
        membound_entries_start as *const () as u64..membound_entries_end as *const () as u64;
    if stubs.contains(&rip) {
        return in_stub(rip - stubs.start, rsp, rbp).map(Inside::Called);
    }
    // Before the function that the stub calls has set up its frame, and after it has removed it, the stack
    // pointer is at the return address or one push below it.
    let just_called = |saved: u64| {
        let back_at = vectors::return_slot(saved);
        // SAFETY: the place is on the stack, at or right above the stack pointer.
        (back_at == rsp || back_at == rsp + 8).then(|| unsafe { memory::get(back_at as usize) })
    };
    if just_called(rbp.wrapping_sub(CALL_FRAME_BASE)).is_some_and(|back| stubs.contains(&back)) {
        return frame_of(rbp).map(Inside::Called);
    }
    if let Some(back) = just_called(wrap::frame_of(rbp))
        && wrap::contains(back)
    {
        return wrap::below_stub(found, back, rbp).map(Inside::Wrapped);
    }
    let mut low = rsp;
    let mut frame = rbp;
    for _ in 0..MAX_FRAMES {
        if frame < low || frame - rsp > MAX_DEPTH_BYTES || !frame.is_multiple_of(8) {
            return None;
        }
        // SAFETY: it is stack above the stack pointer, and the handler runs on the same
        // thread, or on its alternate stack.
        let outer: u64 = unsafe { memory::get(frame as usize) };
        // SAFETY: as above.
        let back: u64 = unsafe { memory::get(frame as usize + 8) };
        if stubs.contains(&back) {
            return frame_of(outer).map(Inside::Called);
        }
        if wrap::contains(back) {
            return wrap::below_stub(found, back, outer).map(Inside::Wrapped);
        }
        low = frame + 16;
        frame = outer;
    }
    None
}

/// Address of a stub's frame, complete or not, for a thread at this offset from the start of the stubs.
fn in_stub(offset: u64, rsp: u64, rbp: u64) -> Option<u64> {
    const FRAMED: u32 = 255;
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
    (rsp + 8 * u64::from(words)).checked_sub(CALL_FRAME_RETURN)
}

/// The address of the frame of the stub whose frame pointer this is.
fn frame_of(rbp: u64) -> Option<u64> {
    rbp.checked_sub(CALL_FRAME_BASE)
}

/// [`Entry::Syscall`], for the numbers that the stub does not skip.
extern "C" fn on_syscall(frame: &mut SavedRegisters) {
    if matches!(frame.rax as usize, number::PRCTL | number::SECCOMP) {
        filters::before(frame);
        return frame.not_done();
    }
    if filters::shut_in() {
        return frame.not_done();
    }
    match frame.rax as usize {
        number::RT_SIGACTION => frame.made(handlers::sigaction(frame)),
        number::EXECVE | number::EXECVEAT => frame.made(exec::execute(frame)),
        number::MPROTECT | number::PKEY_MPROTECT => {
            give_text_back(frame);
            frame.not_done();
        }
        number::RT_SIGPROCMASK => frame.made(masks::procmask(frame)),
        number::NEWFSTATAT => frame.made(listen::thread().map(|_| alone::stat(frame.call()))),
        number::UNSHARE | number::SETNS => frame.made(alone::without_control_thread(
            frame.call(),
            || listen::thread().is_some() && listen::pause(),
            // A process whose children get another process namespace cannot start a thread: its patches
            // stay.
            || {
                let _ = listen::start_again();
            },
        )),
        number::MLOCKALL => frame.made(locked::lock_all(frame.rdi)),
        number::SIGALTSTACK => frame.made(scheduler::alternate::set(frame)),
        number::RT_SIGTIMEDWAIT => frame.made(masks::timedwait(frame)),
        number::SIGNALFD4 => frame.made(masks::signalfd(frame)),
        number::EXIT_GROUP => {
            scheduler::finish::program_ends(frame.rdi);
            frame.not_done();
        }
        number::EXIT => {
            scheduler::thread_ends();
            frame.not_done();
        }
        number::CLONE | number::CLONE3 | number::FORK | number::VFORK => {
            quiesce::wait_for_change();
            frame.made(children::make(frame));
        }
        _ => frame.not_done(),
    }
}

/// Asks the launcher to remove its patches from text that is about to become writable.
fn give_text_back(frame: &SavedRegisters) {
    const PROT_WRITE: u64 = 2;
    let range = [frame.rdi, frame.rdi.saturating_add(frame.rsi)];
    if frame.rdx & PROT_WRITE != 0 && areas::patched_text_in(range[0], range[1]) {
        // Without a launcher the text stays as it is; the program goes on either way.
        let _ = control::converse(Event::Writable, range);
    }
}

/// [`Entry::Modules`].
extern "C" fn on_modules(_: &mut SavedRegisters) {
    loader::announced();
}

/// [`Entry::Sample`].
extern "C" fn on_sample(frame: &mut SavedRegisters) {
    sample::sample(frame);
}

/// [`Entry::Record`].
extern "C" fn on_record(frame: &mut SavedRegisters) {
    sample::record(frame);
}
