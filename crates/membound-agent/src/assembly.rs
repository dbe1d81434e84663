//! Code that needs assembly: symbols of the loader, and the memory functions that compiled code expects
//! from a libc.

use core::arch::global_asm;

// Compiled code calls these by name. The program's own functions may be patched, and a patched one would
// call back into the agent. Hidden, so that the program never uses the agent's.
#[cfg(not(panic = "unwind"))]
global_asm!(
    ".pushsection .text.membound_memory, \"ax\", @progbits",
    ".globl memcpy",
    ".hidden memcpy",
    ".type memcpy, @function",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".size memcpy, . - memcpy",
    ".globl memmove",
    ".hidden memmove",
    ".type memmove, @function",
    "memmove:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 2f",
    "rep movsb",
    "ret",
    "2:",
    "lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".size memmove, . - memmove",
    ".globl memset",
    ".hidden memset",
    ".type memset, @function",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".size memset, . - memset",
    ".globl memcmp",
    ".hidden memcmp",
    ".type memcmp, @function",
    ".globl bcmp",
    ".hidden bcmp",
    ".type bcmp, @function",
    "memcmp:",
    "bcmp:",
    "mov rcx, rdx",
    "xor eax, eax",
    "cmp rcx, rcx",
    "repe cmpsb",
    "je 2f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub eax, ecx",
    "2:",
    "ret",
    ".size memcmp, . - memcmp",
    ".size bcmp, . - bcmp",
    ".popsection",
);

// Weak, since each symbol belongs to only one libc. Each has a getter, since weak symbols are not stable in
// Rust.
global_asm!(
    ".pushsection .text.membound_symbols, \"ax\", @progbits",
    ".weak __environ",
    ".weak __libc_stack_end",
    ".weak _r_debug",
    ".hidden __ehdr_start",
    ".hidden _end",
    ".globl membound_environ",
    ".hidden membound_environ",
    "membound_environ:",
    "mov rax, [rip + __environ@GOTPCREL]",
    "ret",
    ".globl membound_stack_end",
    ".hidden membound_stack_end",
    "membound_stack_end:",
    "mov rax, [rip + __libc_stack_end@GOTPCREL]",
    "ret",
    ".globl membound_r_debug",
    ".hidden membound_r_debug",
    "membound_r_debug:",
    "mov rax, [rip + _r_debug@GOTPCREL]",
    "ret",
    ".globl membound_own_start",
    ".hidden membound_own_start",
    "membound_own_start:",
    "lea rax, [rip + __ehdr_start]",
    "ret",
    ".globl membound_own_end",
    ".hidden membound_own_end",
    "membound_own_end:",
    "lea rax, [rip + _end]",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    safe fn membound_environ() -> usize;
    safe fn membound_stack_end() -> usize;
    safe fn membound_r_debug() -> usize;
    safe fn membound_own_start() -> usize;
    safe fn membound_own_end() -> usize;
}

/// Address of libc's `__environ`, 0 without one.
pub(crate) fn environ() -> usize {
    membound_environ()
}

/// Address of glibc's `__libc_stack_end`, 0 without one.
pub(crate) fn stack_end() -> usize {
    membound_stack_end()
}

/// Address of the loader's `_r_debug`, 0 without one.
pub(crate) fn r_debug() -> usize {
    membound_r_debug()
}

/// Addresses of the agent's own file in memory: start and end. Empty under Miri, which loads no file.
pub(crate) fn own_range() -> [u64; 2] {
    if cfg!(miri) {
        return [0; 2];
    }
    [membound_own_start() as u64, membound_own_end() as u64]
}

/// Ends the process at once, by SIGILL.
#[cfg(not(panic = "unwind"))]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction raises a signal and touches nothing.
    unsafe { core::arch::asm!("ud2", options(noreturn, nostack)) }
}

/// The thread pointer: by the ABI, the word at `fs:0` holds its own address.
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: every thread that runs code of a libc has one.
    unsafe {
        core::arch::asm!(
            "mov {}, fs:[0]",
            out(reg) pointer,
            options(nostack, preserves_flags, readonly)
        );
    }
    pointer
}

/// Adds `step` to the word at `address`, which only this thread and its handlers change, and
/// returns what it was.
///
/// # Safety
///
/// The word must be mapped and writable.
#[inline(always)]
pub(crate) unsafe fn take(address: usize, step: u64) -> u64 {
    let mut word = step;
    // SAFETY: the caller vouches for the word. A single instruction: a handler runs either before or after
    // it.
    unsafe {
        core::arch::asm!(
            "xadd [{}], {}",
            in(reg) address,
            inout(reg) word,
            options(nostack)
        );
    }
    word
}

/// The time stamp counter. The processor may read it before it has completed earlier loads.
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The time stamp counter after all earlier loads have completed.
pub(crate) fn time_stamp_after_loads() -> u64 {
    // SAFETY: the instruction changes nothing. The compiler moves no access to memory across it.
    unsafe { core::arch::asm!("lfence", options(nostack, preserves_flags)) };
    time_stamp()
}
