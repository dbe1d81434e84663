//! Entry of wrapped functions: runs code before and after the original.
//!
//! Most calls of allocating and freeing functions pass after a few instructions, with two registers saved:
//! allocations below a certain size whose bytes do not use up the thread's [`countdown`], and frees of
//! blocks that were not reported, according to the filter of [`reported_blocks`]. The rest of this text is
//! about the other calls.
//!
//! A trampoline jumps here with all registers as the caller left them except r11, which is on the stack.
//! The stub saves all that compiled code may change, although this is a function's entry: a caller in the
//! same module may know which registers the original preserves, and rely on it. Before the original runs,
//! all registers are restored; it runs on the stack as its caller left it, or below the stub's frame, at
//! the same alignment. Only the flags are lost, which no code keeps across a call. Unwind information
//! describes the frames, so that exceptions pass through them.
//!
//! A signal handler that interrupts the stub, or code that it calls, is shown the program's own place: the
//! function's entry before the original, the instruction behind the call after it. `Zone` says where the
//! registers are then.

use core::arch::global_asm;

use membound_wire::{ALLOCATION_EXTRA_BYTES, WrapKind};

pub(crate) mod frame;
pub(crate) mod zones;

use frame::{Course, WrapFrame};

use crate::vectors::{restore_vectors, save_vectors};
use crate::{allocations, countdown, memory, reported_blocks, requests};

/// Label at which a zone begins.
macro_rules! zone {
    ($number:literal) => {
        concat!(
            ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits\n",
            ".long 777f - membound_wrap_start, ",
            $number,
            "\n",
            ".popsection\n",
            "777:\n",
        )
    };
}

/// Restores the caller's registers, except rbp and the stack pointer.
macro_rules! restore_registers {
    () => {
        concat!(
            restore_vectors!(),
            "mov r10, [rbp - 72]\n",
            "mov r9, [rbp - 64]\n",
            "mov r8, [rbp - 56]\n",
            "mov rcx, [rbp - 48]\n",
            "mov rdx, [rbp - 40]\n",
            "mov rsi, [rbp - 32]\n",
            "mov rdi, [rbp - 24]\n",
            "mov rax, [rbp - 16]\n",
            "mov r11, [rbp + 16]\n",
        )
    };
}

global_asm!(
    ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits",
    ".p2align 2",
    ".globl membound_wrap_zones",
    ".hidden membound_wrap_zones",
    // Pairs in the order of addresses: start of a zone, from the stub's start, and its number.
    "membound_wrap_zones:",
    ".popsection",
    ".pushsection .text.membound_wrap, \"ax\", @progbits",
    ".globl membound_wrap_start",
    ".hidden membound_wrap_start",
    "membound_wrap_start:",
    ".globl membound_entry_wrap",
    ".hidden membound_entry_wrap",
    ".type membound_entry_wrap, @function",
    "membound_entry_wrap:",
    ".cfi_startproc",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset r11, -16",
    zone!(0),
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rax, -24",
    zone!(12),
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rcx, -32",
    zone!(13),
    // Allocation: the size into rcx.
    "movzx eax, byte ptr [r11 - 4]",
    "mov rcx, rdi",
    "cmp eax, {sized}",
    "je 3f",
    "cmp eax, {free}",
    "je 4f",
    "cmp eax, {free_outer}",
    "je 4f",
    "mov rcx, rsi",
    "cmp eax, {resized}",
    "je 3f",
    "cmp eax, {counted}",
    "jne 6f",
    "imul rcx, rdi",
    "jo 6f",
    "3:",
    "cmp rcx, [rip + {stub_below_bytes}]",
    "jae 6f",
    "add rcx, {extra_bytes}",
    "mov rax, fs:[0]",
    "imul rax, rax, {spread}",
    "shr rax, {spread_shift}",
    "shl rax, 6",
    "add rax, [rip + {countdowns_at}]",
    "sub [rax], rcx",
    "jle 6f",
    "mov [rax + 8], rsp",
    "mov rcx, [rsp + 24]",
    "mov [rax + 16], rcx",
    "cmp byte ptr [r11 - 4], {resized}",
    "jne 5f",
    // Free: whether the block may have been reported.
    "4:",
    "mov rax, rdi",
    "shr rax, {summary_shift}",
    "mov ecx, eax",
    "shr ecx, 5",
    "and ecx, {summary_mask}",
    "shl ecx, 2",
    "add rcx, [rip + {summary_at}]",
    "mov ecx, [rcx]",
    "bt ecx, eax",
    "jnc 5f",
    "mov rax, rdi",
    "shr rax, {filter_shift}",
    "and eax, {filter_mask}",
    "add rax, [rip + {filter_at}]",
    "cmp byte ptr [rax], 0",
    "jne 6f",
    "5:",
    ".cfi_remember_state",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rcx",
    zone!(12),
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rax",
    zone!(0),
    "mov [rsp - 8], r11",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value r11",
    zone!(14),
    // Below the stack pointer, where signal frames spare 128 bytes (the red zone).
    "jmp [rsp - 16]",
    zone!(13),
    "6:",
    ".cfi_restore_state",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rcx",
    zone!(12),
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rax",
    zone!(0),
    // Code that follows frame pointers finds the caller behind these words.
    "push [rsp + 8]",
    ".cfi_adjust_cfa_offset 8",
    zone!(1),
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbp, -32",
    zone!(2),
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    zone!(3),
    "push r11",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 64",
    save_vectors!(),
    "lea rdi, [rbp - 176]",
    "call {before}",
    "test eax, eax",
    restore_registers!(),
    "jnz 2f",
    "lea rsp, [rbp + 24]",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    zone!(4),
    "mov rbp, [rbp]",
    ".cfi_same_value rbp",
    ".cfi_same_value r11",
    zone!(5),
    // Below the stack pointer, where signal frames spare 128 bytes (the red zone).
    "jmp [rsp - 32]",
    zone!(3),
    "2:",
    ".cfi_restore_state",
    "lea rsp, [rbp - 176]",
    ".cfi_def_cfa rsp, 208",
    "mov rbp, [rbp]",
    zone!(6),
    "call [rsp + 168]",
    ".globl membound_wrap_back",
    ".hidden membound_wrap_back",
    "membound_wrap_back:",
    zone!(7),
    "lea rbp, [rsp + 176]",
    ".cfi_def_cfa rbp, 32",
    zone!(8),
    "mov [rbp - 16], rax",
    "mov [rbp - 24], rdi",
    "mov [rbp - 32], rsi",
    "mov [rbp - 40], rdx",
    "mov [rbp - 48], rcx",
    "mov [rbp - 56], r8",
    "mov [rbp - 64], r9",
    "mov [rbp - 72], r10",
    "mov [rbp + 16], r11",
    zone!(9),
    save_vectors!(),
    "lea rdi, [rbp - 176]",
    "call {after}",
    restore_registers!(),
    "lea rsp, [rbp + 24]",
    ".cfi_def_cfa rsp, 8",
    zone!(10),
    "mov rbp, [rbp]",
    ".cfi_same_value rbp",
    ".cfi_same_value r11",
    zone!(11),
    "ret",
    ".cfi_endproc",
    ".size membound_entry_wrap, . - membound_entry_wrap",
    ".globl membound_wrap_end",
    ".hidden membound_wrap_end",
    "membound_wrap_end:",
    ".popsection",
    ".pushsection .rodata.membound_wrap_zones, \"a\", @progbits",
    ".long -1, 0",
    ".popsection",
    before = sym before,
    after = sym after,
    sized = const WrapKind::Sized as u8,
    counted = const WrapKind::Counted as u8,
    resized = const WrapKind::Resized as u8,
    free = const WrapKind::Free as u8,
    free_outer = const WrapKind::FreeOuter as u8,
    stub_below_bytes = sym countdown::STUB_BELOW_BYTES,
    extra_bytes = const ALLOCATION_EXTRA_BYTES,
    spread = const countdown::SPREAD,
    spread_shift = const countdown::SPREAD_SHIFT,
    countdowns_at = sym countdown::COUNTDOWNS_AT,
    filter_shift = const reported_blocks::FILTER_SHIFT,
    filter_mask = const reported_blocks::FILTER_BYTES - 1,
    filter_at = sym reported_blocks::FILTER_AT,
    summary_shift = const reported_blocks::SUMMARY_SHIFT,
    summary_mask = const reported_blocks::SUMMARY_WORDS - 1,
    summary_at = sym reported_blocks::SUMMARY_AT,
);

/// Runs before the original.
///
/// # Safety
///
/// Called by the stub with its frame.
unsafe extern "C" fn before(frame: &mut WrapFrame) -> Course {
    // SAFETY: the trampoline has the number before the displaced instructions.
    let number: u32 = unsafe { memory::get(frame.original as usize - 4) };
    if WrapKind::is_of_requests(number) {
        requests::before(frame, number)
    } else {
        // SAFETY: the frame is the stub's.
        unsafe { allocations::before(frame, number) }
    }
}

/// Runs after the original, whose result is in rax.
///
/// # Safety
///
/// Called by the stub with the frame that [`before`] has filled in.
unsafe extern "C" fn after(frame: &mut WrapFrame) {
    if WrapKind::is_of_requests(frame.kept.number) {
        requests::after(frame);
    } else {
        // SAFETY: the frame was filled in by the same module.
        unsafe { allocations::after(frame) }
    }
}
