//! Timer samples from perf events: the kernel's cpu-clock on every thread of a process and of its children,
//! with registers and a part of the stack.
//!
//! An inherited event can be mapped only if it is bound to a CPU. So there is one event for each thread and
//! CPU, and one ring for each CPU, into which all events of that CPU write.
//!
//! **Time in the kernel.** Where it is permitted (root, `CAP_PERFMON`, or `kernel.perf_event_paranoid` below
//! 2), timers also take samples in the kernel, with the registers with which the program entered it
//! ([`Mode::Kernel`]): such a sample belongs to the system call, or to the instruction that caused the page
//! fault. Where it is not permitted ([`Kernel::Unseen`]), a timer that expires in the kernel gives no sample.
//! The missing time is known all the same, since the events count all of a thread's CPU time:
//! [`PerfEvent::Counted`] reports it when a thread ends, and [`Sampler::counted_ns`] in sum.
//!
//! Times are of `CLOCK_MONOTONIC_RAW` ([`now_ns`]): like the time stamp counter it is not adjusted, so that
//! the ratio of the two is constant.

mod attr;
mod error;
mod open;
mod parse;
mod registers;
mod ring;
mod sampler;

use membound_launch::Registers;

pub(crate) use attr::{Attr, Breakpoint};
pub use error::Error;
pub(crate) use open::{Event, Target, refused, refused_of};
pub(crate) use parse::{Layout, Record};
pub(crate) use registers::RegisterSet;
pub(crate) use ring::Ring;
pub use sampler::{Bell, Kernel, Sampler, Waited, sample_cost_ns};

/// What the events are to sample, and their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CPU time of a thread between two samples, in nanoseconds.
    pub period_ns: u64,
    /// Bytes of stack that are copied with a sample: a multiple of 8, below 65528.
    pub stack_bytes: u32,
    /// Bytes of the ring of one CPU; less where the limit on locked memory does not permit it.
    pub ring_bytes: usize,
}

impl Config {
    /// Time of a busy processor between two samples, in nanoseconds, where processors are sampled.
    pub(crate) fn cpus_period_ns(&self) -> u64 {
        // Samples of processors are told from others by their period.
        const SHORTEST_NS: u64 = 3_970_001;
        SHORTEST_NS.max(self.period_ns.saturating_add(self.period_ns / 4 + 1))
    }

    /// CPU time of a thread between two samples, in nanoseconds, where threads are sampled rarely: far beyond
    /// the interval of the kernel's clock ticks.
    pub(crate) fn rare_period_ns(&self) -> u64 {
        // No multiple of the usual periods or of a round number.
        const SHORTEST_NS: u64 = 39_910_000;
        SHORTEST_NS.max(self.period_ns.saturating_mul(8))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            period_ns: 1_000_000,
            // Enough for most chains. It is copied at each sample, and the ring needs the room even where the
            // stack is shallower.
            stack_bytes: 8192,
            // Some 500 samples, which a processor takes in half a second. The reader may be delayed for that
            // long by a large file's call frame information, or by programs that use all processors. Without
            // privileges the kernel permits 512 KiB.
            ring_bytes: 4 << 20,
        }
    }
}

/// An event from the kernel's rings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are samples, and each is handed on at once and never kept"
)]
pub enum PerfEvent<'a> {
    /// A thread used up its period.
    Sample(RawSample<'a>),
    /// A thread or process was started by a sampled one, and is sampled too.
    Fork {
        /// Process of the new thread.
        pid: u32,
        /// Number of the new thread; equal to `pid` for a process's first thread.
        tid: u32,
        /// Process of the thread that started it.
        parent_pid: u32,
        /// The thread that started it.
        parent_tid: u32,
        /// Time of the start.
        t_ns: u64,
    },
    /// A thread ended.
    Exit {
        /// Process of the thread.
        pid: u32,
        /// Number of the thread.
        tid: u32,
        /// Time of the end.
        t_ns: u64,
    },
    /// A thread has a new name.
    Comm {
        /// Process of the thread.
        pid: u32,
        /// Number of the thread.
        tid: u32,
        /// The name, at most 15 bytes.
        name: &'a [u8],
        /// What changed the name.
        cause: Named,
        /// Time of the change.
        t_ns: u64,
    },
    /// Executable memory was mapped.
    Mmap(Mmap<'a>),
    /// CPU time of a thread that has ended, on one CPU, time in the kernel included. There may be one such
    /// event for each CPU that the thread ran on.
    ///
    /// For each attached thread, it or one of the threads that inherited its events gets no such event,
    /// mostly the attached one itself: the kernel lets related threads exchange their events, and does not
    /// report those that this process opened. [`Sampler::counted_ns`] has that thread's time.
    Counted {
        /// Process of the thread.
        pid: u32,
        /// Number of the thread.
        tid: u32,
        /// CPU time in nanoseconds.
        cpu_ns: u64,
        /// Time of the end.
        t_ns: u64,
    },
    /// This many records were lost for lack of room.
    Lost(u64),
}

impl PerfEvent<'_> {
    /// The process that the event is about; `None` for lost records.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        match self {
            Self::Sample(sample) => Some(sample.pid),
            Self::Mmap(map) => Some(map.pid),
            Self::Fork { pid, .. }
            | Self::Exit { pid, .. }
            | Self::Comm { pid, .. }
            | Self::Counted { pid, .. } => Some(*pid),
            Self::Lost(_) => None,
        }
    }
}

/// What changed a thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The process executed another program.
    Exec,
    /// The name was set, as by `prctl`.
    Set,
}

/// Where a timer expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the program.
    User,
    /// In the kernel, on the program's behalf.
    Kernel,
}

/// A timer sample or a watchpoint hit, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSample<'a> {
    /// Address of the instruction, in the program or in the kernel.
    pub ip: u64,
    /// Number of the process.
    pub pid: u32,
    /// Number of the thread.
    pub tid: u32,
    /// Time of the sample.
    pub t_ns: u64,
    /// The CPU that the thread ran on.
    pub cpu: u32,
    /// CPU time that it represents, in nanoseconds; 0 for a watchpoint hit.
    pub period_ns: u64,
    /// First watched address, for a watchpoint hit; 0 for a timer sample.
    pub(crate) address: u64,
    /// Whether `registers` are those at the expiry, or those with which the kernel was entered.
    pub mode: Mode,
    /// Registers of the program; `None` for 32-bit programs, and for threads that have no program (any more).
    pub registers: Option<Registers>,
    /// Bytes of the stack from the stack pointer on, as far as they could be read.
    pub stack: &'a [u8],
}

/// An executable mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap<'a> {
    /// Number of the process.
    pub pid: u32,
    /// Thread that mapped it.
    pub tid: u32,
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Path, `[vdso]`, `//anon`, …
    pub path: &'a [u8],
    /// The file's build-id, where it has one and the kernel reports it.
    pub build_id: Option<&'a [u8]>,
    /// Time of the mapping.
    pub t_ns: u64,
}

/// Current time of the clock of perf events, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    // Neither is negative: the clock begins when the machine does.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
