//! Why perf events are not available.

use std::io;

/// Why perf events are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The setting `kernel.perf_event_paranoid` forbids them.
    #[error(
        "the kernel does not permit perf events (kernel.perf_event_paranoid is {}): set it to 2 \
         or less, or give CAP_PERFMON",
        level.map_or_else(|| "unknown".to_owned(), |level| level.to_string())
    )]
    NotPermitted {
        /// `kernel.perf_event_paranoid`.
        level: Option<i32>,
    },
    /// A filter of system calls forbids them, as in containers.
    #[error(
        "a filter forbids perf_event_open, as containers have one: allow that system call in the \
         container's seccomp profile, or give CAP_PERFMON"
    )]
    Filtered,
    /// The kernel or the architecture does not support them.
    #[error("this system has no perf events that can be used: {reason}")]
    Unsupported {
        /// What is missing.
        reason: String,
    },
    /// The process has ended.
    #[error("process {pid} has ended")]
    Gone {
        /// The process number.
        pid: u32,
    },
    /// The process belongs to another user, or is protected like one of another user.
    #[error(
        "process {pid} belongs to another user or is protected (setuid, not dumpable): run as \
         its user or as root"
    )]
    OtherUser {
        /// The process number.
        pid: u32,
    },
    /// The limit on open files is too low for every thread on every CPU.
    #[error(
        "{needed} descriptors are needed, one for each thread and CPU: raise the limit on open \
         files (ulimit -n)"
    )]
    TooManyFiles {
        /// How many, all in all.
        needed: usize,
    },
    /// Rings cannot be locked into memory.
    #[error(
        "no memory may be locked for perf events: raise kernel.perf_event_mlock_kb or the limit \
         on locked memory (ulimit -l), or end other programs that use them"
    )]
    Locked,
    /// All debug registers are taken.
    #[error(
        "no hardware watchpoint is free: a debugger or another profiler uses those of thread {tid}"
    )]
    NoWatchpoint {
        /// Number of the thread.
        tid: u32,
    },
    /// The processor cannot watch these bytes.
    #[error("{bytes} bytes at {address:#x} cannot be watched: {reason}")]
    Unwatchable {
        /// First address.
        address: u64,
        /// Number of bytes.
        bytes: u64,
        /// The reason.
        reason: &'static str,
    },
    /// Any other system error.
    #[error("{call} failed: {error}")]
    System {
        /// Name of the system call.
        call: &'static str,
        /// The system's error.
        error: io::Error,
    },
}
