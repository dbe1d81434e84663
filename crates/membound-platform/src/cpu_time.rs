//! CPU time by the kernel's clocks, in nanoseconds.

use std::mem::MaybeUninit;

/// CPU time of all threads of a process, ended ones too, in nanoseconds; `None` when the process is
/// gone.
#[must_use]
pub fn of_process(pid: u32) -> Option<u64> {
    // The kernel's encoding of "the CPU clock of this process": its complement in the upper
    // bits, and 2 for the scheduler's clock.
    let pid = i32::try_from(pid).ok()?;
    read((!pid << 3) | 2)
}

/// CPU time of this process, in nanoseconds.
#[must_use]
pub fn of_this_process() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn of_this_thread() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Reads a clock of the kernel, in nanoseconds; `None` when there is no such clock.
fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills the struct in, or leaves it.
    let result = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    // SAFETY: a struct of integers, zeroed and perhaps filled in.
    let time = unsafe { time.assume_init() };
    if result != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clocks_advance_with_the_work_of_a_thread() {
        let own = std::process::id();
        let read = || {
            [
                of_process(own).unwrap(),
                of_this_process(),
                of_this_thread(),
            ]
        };
        let before = read();
        while of_this_thread() < before[2] + 1_000_000 {
            std::hint::spin_loop();
        }
        let after = read();
        assert!(
            after[0] > before[0] && after[1] > before[1],
            "{before:?} {after:?}"
        );
    }

    #[test]
    fn a_process_that_there_is_not_has_no_time() {
        // Above the largest number that the kernel gives.
        assert_eq!(of_process(5_000_000), None);
    }
}
