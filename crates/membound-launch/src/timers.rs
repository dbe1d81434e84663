//! Timer samples that the agent takes, for systems that do not permit perf events.

use std::sync::Arc;
use std::time::Duration;

/// Settings of timer samples.
#[derive(Clone, Debug)]
pub struct Timers {
    /// Requested CPU time of a thread between two samples. The kernel may be coarser:
    /// [`TimerSample::weight_ns`] is the time that a sample represents.
    pub period: Duration,
    /// Receives the samples.
    pub receiver: Arc<dyn TimerReceiver>,
}

/// A sample of one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerSample {
    /// Number of the thread.
    pub thread: u32,
    /// Time stamp counter when it was taken.
    pub tsc: u64,
    /// CPU that it ran on; `None`: unknown.
    pub cpu: Option<u16>,
    /// CPU time that the sample represents, in nanoseconds.
    pub weight_ns: u64,
    /// Registers of the original program: those of a trampoline or of the agent are undone.
    pub registers: Registers,
    /// Return addresses in the process, innermost first, without the sampled instruction.
    pub callers: Vec<u64>,
    /// True if the thread was in membound's own code; then `registers.ip` is the caller of that.
    pub inside: bool,
}

/// General registers by their numbers in instructions, and the instruction pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// x86-64: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 … r15, and sixteen zeroes.
    /// aarch64: x0 … x30, sp.
    pub general: [u64; Self::COUNT],
    /// rip, or pc.
    pub ip: u64,
}

impl Registers {
    /// Number of entries: as many as the machine with most registers has.
    pub const COUNT: usize = 32;
    /// Index of the stack pointer on this machine.
    pub const STACK_POINTER: usize = if cfg!(target_arch = "aarch64") { 31 } else { 4 };

    /// The stack pointer on this machine.
    #[must_use]
    pub const fn stack_pointer(&self) -> u64 {
        self.general[Self::STACK_POINTER]
    }

    /// The registers of an x86-64 processor.
    #[must_use]
    pub fn x86_64(&self) -> &[u64; 16] {
        self.general.first_chunk().expect("there are more")
    }
}

impl From<[u64; 16]> for Registers {
    /// From the registers of an x86-64 processor.
    fn from(sixteen: [u64; 16]) -> Self {
        let mut registers = Self::default();
        registers.general[..16].copy_from_slice(&sixteen);
        registers
    }
}

/// Receives timer samples, called from one thread at a time.
pub trait TimerReceiver: Send + Sync + std::fmt::Debug {
    /// Samples of one process.
    fn receive(&self, pid: u32, samples: &[TimerSample]);

    /// Samples that were lost since the last call.
    fn lost(&self, pid: u32, samples: u64);

    /// Reports the CPU time that a process has used, as last read, and the CPU time that its samples
    /// represent. The difference is time of threads that ended before they were found, and time since the
    /// last samples. Called about once a second while it changes.
    fn covered(&self, _pid: u32, _cpu_ns: u64, _sampled_ns: u64) {}

    /// Reports that timers are not possible in a process, or in one of its threads.
    fn refused(&self, pid: u32, thread: Option<u32>, reason: &str);
}

/// Where a thread is, in terms of the original program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the program's own code: the registers are as given.
    Program,
    /// In a trampoline: the registers are those of the original program.
    Trampoline,
    /// As [`Self::Trampoline`], but in the body before the program's instruction: the time is not the
    /// program's.
    Body,
    /// In the agent, called by a trampoline: the registers are those of the original program there.
    Called,
    /// In membound's own code, without a known caller: the registers are as given.
    Agent,
}
