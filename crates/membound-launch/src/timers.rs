//! Timer samples that the agent takes, where perf events are not permitted.

use std::sync::Arc;
use std::time::Duration;

/// Whether and how the agent samples.
#[derive(Clone, Debug)]
pub struct Timers {
    /// CPU time of a thread between two samples, as asked for. The kernel may be coarser:
    /// [`TimerSample::weight_ns`] says what a sample stands for.
    pub period: Duration,
    /// Is told.
    pub receiver: Arc<dyn TimerReceiver>,
}

/// A sample of one thread.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerSample {
    /// Thread.
    pub thread: u32,
    /// Time stamp counter when it was taken.
    pub tsc: u64,
    /// CPU that it ran on, where it is known.
    pub cpu: Option<u16>,
    /// CPU time that it stands for, in nanoseconds.
    pub weight_ns: u64,
    /// Registers as the original program has them: out of trampolines, and not the agent's.
    pub registers: Registers,
    /// Return addresses in the process, innermost first, without the sampled instruction.
    pub callers: Vec<u64>,
    /// Whether it lay in membound's own code; then `registers.ip` is what called that.
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
    /// As many as any machine has whose registers are read.
    pub const COUNT: usize = 32;
    /// Position of the stack pointer on this machine.
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
    /// Those of an x86-64 processor.
    fn from(sixteen: [u64; 16]) -> Self {
        let mut registers = Self::default();
        registers.general[..16].copy_from_slice(&sixteen);
        registers
    }
}

/// Is told of timer samples, from one thread at a time.
pub trait TimerReceiver: Send + Sync + std::fmt::Debug {
    /// Samples of one process.
    fn receive(&self, pid: u32, samples: &[TimerSample]);

    /// Samples that were lost since the last call.
    fn lost(&self, pid: u32, samples: u64);

    /// The CPU time that a process has used, as far as that was seen, and that its samples
    /// stand for: what threads used that were gone before they were found, or since their last
    /// sample, is the difference. Told about once a second while it changes.
    fn covered(&self, _pid: u32, _cpu_ns: u64, _sampled_ns: u64) {}

    /// Timers cannot be had in a process, or not in one of its threads.
    fn refused(&self, pid: u32, thread: Option<u32>, reason: &str);
}

/// Where a thread stands in terms of the original program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the program's own code: the registers are as they were given.
    Program,
    /// In a trampoline: the registers were put back to what the original program has.
    Trampoline,
    /// The same, in what was put before the program's instructions there: the time is not the
    /// program's.
    Body,
    /// In the agent, called by a trampoline: the registers were put back to what the original
    /// program has there.
    Called,
    /// In membound's own code, on whose behalf is not known: the registers are as they were
    /// given.
    Agent,
}
