//! The loop whose load is patched.
//!
//! Unlike the other kernels, it is not emitted at run time: patches are planned from files, so the
//! loop must be in the executable.

#[cfg(target_arch = "x86_64")]
mod native {
    // A function in its own section, with the size and the unwind information that mark its
    // beginning and end even without a symbol table. The load is its first instruction.
    std::arch::global_asm!(
        ".pushsection .text.membound_calibrated_load,\"ax\",@progbits",
        ".p2align 6",
        ".globl membound_calibrated_load",
        ".hidden membound_calibrated_load",
        ".type membound_calibrated_load,@function",
        "membound_calibrated_load:",
        ".cfi_startproc",
        "2:",
        "mov rdi, qword ptr [rdi]",
        "dec rsi",
        "jnz 2b",
        "mov rax, rdi",
        "ret",
        ".cfi_endproc",
        ".size membound_calibrated_load, . - membound_calibrated_load",
        ".popsection",
    );

    unsafe extern "C" {
        /// Follows `loads` pointers, at least one, from `at`; returns the element reached.
        pub(super) fn membound_calibrated_load(at: *const u8, loads: u64) -> *const u8;
        /// The ELF header in memory, defined by the linker.
        static __ehdr_start: u8;
    }

    pub(super) fn offset() -> u64 {
        let load = membound_calibrated_load as *const () as u64;
        load - std::ptr::addr_of!(__ehdr_start) as u64
    }
}

/// Where the load lies that [`super::follow()`] uses: bytes from the beginning of the
/// executable's first segment, in which its header is. `None` where nothing is patched.
#[must_use]
pub fn load() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        Some(native::offset())
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}

/// Follows `loads` pointers of a closed chain, with the load that is patched.
#[cfg(target_arch = "x86_64")]
pub(super) fn walk(at: *const u8, loads: u64) -> *const u8 {
    // SAFETY: callers pass an element of a closed chain through memory that is alive.
    unsafe { native::membound_calibrated_load(at, loads.max(1)) }
}

/// Follows `loads` pointers of a closed chain.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn walk(mut at: *const u8, loads: u64) -> *const u8 {
    for _ in 0..loads {
        // SAFETY: callers pass an element of a closed chain through memory that is alive.
        at = unsafe { at.cast::<*const u8>().read() };
    }
    at
}

/// Reads the counter that records carry: the time stamp counter, or 0 where programs are not
/// patched.
#[must_use]
pub fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and where it is forbidden programs
        // are not patched.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_follows_the_given_number_of_pointers() {
        let mut chain = [0_u64; 5];
        let base = chain.as_mut_ptr();
        for (from, to) in [(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)] {
            chain[from] = base.wrapping_add(to) as u64;
        }
        let at = base.cast::<u8>().cast_const();
        assert_eq!(walk(at, 3), base.wrapping_add(1).cast());
        assert_eq!(walk(at, 5 * 1000 + 1), base.wrapping_add(2).cast());
    }
}
