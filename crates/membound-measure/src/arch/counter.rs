//! The finest counter that user code may read.

use rustix::time::{ClockId, clock_gettime};

/// A monotonic counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// x86 time-stamp counter, read between two `lfence`.
    #[cfg(target_arch = "x86_64")]
    Tsc {
        /// Whether the processor declares its rate constant.
        invariant: bool,
    },
    /// The generic timer's virtual count, read between barriers.
    #[cfg(target_arch = "aarch64")]
    Cntvct,
    /// The time base, read between barriers.
    #[cfg(target_arch = "powerpc64")]
    TimeBase,
    /// The kernel's raw monotonic clock, in nanoseconds.
    #[cfg_attr(
        all(any(target_arch = "aarch64", target_arch = "powerpc64"), not(test)),
        expect(dead_code, reason = "there is always a finer one")
    )]
    MonotonicRaw,
}

impl Counter {
    /// Chooses the time-stamp counter where the kernel uses it as its clock source or the
    /// processor declares it invariant, the generic timer or the time base on architectures that
    /// define their rate as constant, and the kernel's clock otherwise.
    pub(crate) fn best() -> Self {
        #[cfg(target_arch = "aarch64")]
        return Self::Cntvct;
        #[cfg(target_arch = "powerpc64")]
        return Self::TimeBase;
        #[cfg(target_arch = "x86_64")]
        {
            let invariant = tsc_is_invariant();
            let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let trusted = std::fs::read_to_string(source).is_ok_and(|name| {
                matches!(
                    name.trim(),
                    "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page"
                )
            });
            if invariant || trusted {
                return Self::Tsc { invariant };
            }
        }
        #[cfg(not(any(target_arch = "aarch64", target_arch = "powerpc64")))]
        Self::MonotonicRaw
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc { .. } => "tsc",
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct => "cntvct",
            #[cfg(target_arch = "powerpc64")]
            Self::TimeBase => "timebase",
            Self::MonotonicRaw => "clock_monotonic_raw",
        }
    }

    pub(crate) const fn invariant(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc { invariant } => invariant,
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct => true,
            #[cfg(target_arch = "powerpc64")]
            Self::TimeBase => true,
            Self::MonotonicRaw => true,
        }
    }

    #[inline]
    pub(crate) fn read(self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc { .. } => {
                use std::arch::x86_64::{_mm_lfence, _rdtsc};
                // SAFETY: every x86-64 processor has lfence.
                unsafe { _mm_lfence() };
                // SAFETY: rdtsc is permitted unless the kernel set CR4.TSD for this
                // process, in which case the kernel's own clock could not use it either.
                let ticks = unsafe { _rdtsc() };
                // SAFETY: as above.
                unsafe { _mm_lfence() };
                ticks
            }
            #[cfg(target_arch = "aarch64")]
            Self::Cntvct => {
                let ticks: u64;
                // SAFETY: barriers, and a register that Linux lets every process read.
                unsafe {
                    std::arch::asm!(
                        "dsb ld",
                        "isb",
                        "mrs {}, cntvct_el0",
                        "isb",
                        out(reg) ticks,
                        options(nostack, preserves_flags)
                    );
                }
                ticks
            }
            #[cfg(target_arch = "powerpc64")]
            Self::TimeBase => {
                let ticks: u64;
                // SAFETY: barriers, and the time base, which every process may read.
                unsafe {
                    std::arch::asm!(
                        "sync",
                        "isync",
                        "mfspr {}, 268",
                        "isync",
                        out(reg_nonzero) ticks,
                        options(nostack, preserves_flags)
                    );
                }
                ticks
            }
            Self::MonotonicRaw => {
                let time = clock_gettime(ClockId::MonotonicRaw);
                time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
            }
        }
    }
}

/// True if CPUID 8000_0007 EDX bit 8 (invariant time-stamp counter) is set.
#[cfg(target_arch = "x86_64")]
fn tsc_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}
