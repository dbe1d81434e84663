//! Timer samples from perf events: the kernel's cpu-clock on every thread of a process and
//! of its children, with registers and a piece of stack.
//!
//! An inherited event can be mapped only when it is bound to a CPU, so that there is one
//! event for each thread and CPU, and one ring for each CPU into which all of its events write.
//!
//! **The kernel's share.** Where it is permitted (root, `CAP_PERFMON`, or
//! `kernel.perf_event_paranoid` below 2) samples in the kernel come too, with the registers that
//! the program entered it with ([`Mode::Kernel`]): they belong to the system call, or to the
//! instruction whose page was missing. Where it is not ([`Kernel::Unseen`]) a timer that
//! runs out in the kernel gives no sample. What is missing is known all the same, since the
//! events count all of a thread's CPU time: [`PerfEvent::Counted`] tells it at threads' ends
//! and [`Sampler::counted_ns`] in sum.
//!
//! Times are of `CLOCK_MONOTONIC_RAW` ([`now_ns`]): like the time stamp counter it is not
//! adjusted, so that the two stay a constant factor apart.

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

/// What is asked of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CPU time of a thread between two samples, in nanoseconds.
    pub period_ns: u64,
    /// Bytes of stack that come with a sample. The kernel wants a multiple of 8 below 65528.
    pub stack_bytes: u32,
    /// Bytes of a CPU's ring, as many as the limit on locked memory permits.
    pub ring_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            period_ns: 1_000_000,
            // Enough for most chains; it is copied at each sample and room is taken for it
            // even where the stack is shallower.
            stack_bytes: 8192,
            // Some 500 samples, as many as a processor takes in half a second: so long may whoever
            // reads them be kept from it by a large file's call frame information, or by programs
            // that have all processors. Without privileges the kernel permits 512 KiB.
            ring_bytes: 4 << 20,
        }
    }
}

/// What perf events tell.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are samples, and each is handed on at once and never kept"
)]
pub enum PerfEvent<'a> {
    /// A thread used up its period.
    Sample(RawSample<'a>),
    /// A thread or process was started by one that is followed, and is followed too.
    Fork {
        /// Its process.
        pid: u32,
        /// Its number; that of the process for its first thread.
        tid: u32,
        /// Process of the thread that started it.
        parent_pid: u32,
        /// That thread.
        parent_tid: u32,
        /// When.
        t_ns: u64,
    },
    /// A thread ended.
    Exit {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
        /// When.
        t_ns: u64,
    },
    /// A thread has a new name.
    Comm {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
        /// The name, at most 15 bytes.
        name: &'a [u8],
        /// Why it has it.
        cause: Named,
        /// When.
        t_ns: u64,
    },
    /// Executable memory was mapped.
    Mmap(Mmap<'a>),
    /// CPU time of a thread that has ended, on one CPU: there may be one of these for each
    /// CPU that it ran on. Time in the kernel is included.
    ///
    /// Of each thread that was attached to and all of its heirs one gets none, mostly the
    /// attached one itself: the kernel lets related threads exchange their events, and tells
    /// nothing of those that were opened by us. It is what is missing to
    /// [`Sampler::counted_ns`].
    Counted {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
        /// CPU time in nanoseconds.
        cpu_ns: u64,
        /// When it ended.
        t_ns: u64,
    },
    /// So many records found no room.
    Lost(u64),
}

impl PerfEvent<'_> {
    /// The process that it is about, where it is about one.
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

/// Why a thread has a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// It executed another program.
    Exec,
    /// It was given one.
    Set,
}

/// Where a timer ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the program.
    User,
    /// In the kernel, on the program's behalf.
    Kernel,
}

/// A timer sample as the kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawSample<'a> {
    /// The instruction, of the program or the kernel.
    pub ip: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When.
    pub t_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// CPU time that it stands for, in nanoseconds.
    pub period_ns: u64,
    /// First address that is watched, where it is a breakpoint and no timer.
    pub(crate) address: u64,
    /// Whether the registers are where the timer ran out, or where the kernel was entered.
    pub mode: Mode,
    /// Registers of the program; `None` for a program of 32 bits and for what has no
    /// program any more.
    pub registers: Option<Registers>,
    /// Memory from the stack pointer on, as far as it could be read.
    pub stack: &'a [u8],
}

impl RawSample<'_> {
    /// Address of [`Self::stack`]'s first byte.
    #[must_use]
    pub fn stack_start(&self) -> u64 {
        self.registers
            .map_or(0, |registers| registers.stack_pointer())
    }
}

/// Executable memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap<'a> {
    /// Process.
    pub pid: u32,
    /// Thread that mapped it.
    pub tid: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Path, `[vdso]`, `//anon`, …
    pub path: &'a [u8],
    /// The file's build-id, where it has one and the kernel tells it.
    pub build_id: Option<&'a [u8]>,
    /// When.
    pub t_ns: u64,
}

/// The time by the clock that perf events are stamped with, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    // Neither is negative: the clock begins when the machine does.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
