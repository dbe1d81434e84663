//! Which signals a process ignores and catches. A mask has bit n - 1 for signal n.

/// Mask of the signals that this process ignores.
#[must_use]
pub fn ignored() -> u64 {
    mask(std::process::id(), "SigIgn:")
}

/// Mask of the signals that a process has handlers for; 0 if it is gone.
#[must_use]
pub fn caught(pid: u32) -> u64 {
    mask(pid, "SigCgt:")
}

/// The signal mask that the line `name` of a process's status shows; 0 where it cannot be read.
fn mask(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signals_of_a_rust_program_are_found() {
        // The standard library ignores SIGPIPE, and catches SIGSEGV to report a stack overflow.
        assert_ne!(ignored() & 1 << (libc::SIGPIPE - 1), 0);
        assert_ne!(caught(std::process::id()) & 1 << (libc::SIGSEGV - 1), 0);
        assert_eq!(caught(0), 0);
    }
}
