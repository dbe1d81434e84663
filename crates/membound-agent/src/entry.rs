//! Entry points that trampolines call.
//!
//! A trampoline has saved no registers, so the stubs save everything that compiled code may change: the
//! caller-saved general registers, the flags (the direction flag is cleared), and the vector registers (see
//! `vectors`).

use core::arch::global_asm;

use membound_wire::Event;

use crate::saved_registers::SavedRegisters;
use crate::sys::number;
use crate::vectors::{restore_vectors, save_vectors};
use crate::{
    alternate, areas, children, control, exec, filters, handlers, listen, locked, masks,
    memory_limits, modules, quiesce, requests, sample, scheduler, sigaltstack, single_thread,
    syscall_filter,
};

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
        "cmp rax, 302",
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

/// [`membound_wire::Entry::Syscall`], for the numbers that the stub does not skip.
extern "C" fn on_syscall(frame: &mut SavedRegisters) {
    if matches!(frame.rax as usize, number::PRCTL | number::SECCOMP) {
        filters::before(frame);
        return frame.not_done();
    }
    if syscall_filter::may_apply() {
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
        number::NEWFSTATAT => {
            frame.made(listen::thread().map(|_| single_thread::stat(frame.call())))
        }
        number::UNSHARE | number::SETNS => frame.made(single_thread::without_control_thread(
            frame.call(),
            || listen::thread().is_some() && listen::pause(),
            // A process whose children get another process namespace cannot start a thread: its patches
            // stay.
            || {
                let _ = control::start_again();
            },
        )),
        number::PRLIMIT64 => frame.made(memory_limits::prlimit(frame)),
        number::MLOCKALL => frame.made(locked::lock_all(frame.rdi)),
        number::SIGALTSTACK => frame.made(sigaltstack::set(frame)),
        number::RT_SIGTIMEDWAIT => frame.made(masks::timedwait(frame)),
        number::SIGNALFD4 => frame.made(masks::signalfd(frame)),
        number::EXIT_GROUP => {
            scheduler::finish::program_ends(frame.rdi);
            frame.not_done();
        }
        number::EXIT => {
            scheduler::thread_ends();
            alternate::take_back();
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
        // Without a launcher the text stays as it is; the program continues either way.
        let _ = control::converse(Event::Writable, range);
    }
}

/// [`membound_wire::Entry::Modules`].
extern "C" fn on_modules(_: &mut SavedRegisters) {
    modules::announced();
}

/// [`membound_wire::Entry::Sample`].
extern "C" fn on_sample(frame: &mut SavedRegisters) {
    sample::sample(frame);
}

/// [`membound_wire::Entry::Record`].
extern "C" fn on_record(frame: &mut SavedRegisters) {
    sample::record(frame);
}
