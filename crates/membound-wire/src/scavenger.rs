//! A scavenger: a program that runs inside another one's process.
//!
//! It has its own loader and C library, its own kernel thread with its own table of descriptors, directory
//! and thread pointer, and no signals. Every system call of a scavenger goes to the agent first
//! (`PR_SET_SYSCALL_USER_DISPATCH`), which makes it on the scavenger's thread, or refuses calls that would
//! affect the other program.

/// What launcher and agent share about a scavenger, in memory that both have mapped; the
/// [`ScavengerRequest::strings`] follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ScavengerRequest {
    /// A [`ScavengerProcessState`] as its number; written by the agent.
    pub state: u32,
    /// Exit code, signal or error number, depending on the state; written by the agent.
    pub code: u32,
    /// Number of its home thread in the program's namespace; written by the agent.
    pub thread: u32,
    /// Number of arguments, the program's name included.
    pub arguments: u32,
    /// Number of variables in its environment.
    pub variables: u32,
    /// Bytes of strings behind this structure: the path of the executable, the paths for standard output
    /// and standard error (empty: discarded), arguments and variables, each with a zero byte at its end.
    pub strings: u32,
    /// Bytes that it may map beside its files and its stack.
    pub memory: u64,
    /// Bytes of its stack.
    pub stack: u64,
    /// Bytes of addresses that it has mapped; written by the agent.
    pub mapped: u64,
    /// System calls that it has made; written by the agent.
    pub calls: u64,
    /// CPU time of its home thread when it ended, in nanoseconds; written by the agent.
    pub cpu_ns: u64,
    /// Times that it yielded on its home thread; written by the agent.
    pub parks: u64,
    /// Time for which run queues have had it, in nanoseconds; written by the agent.
    pub away_ns: u64,
    /// A [`ScavengerPlacement`] as its number; written by the launcher.
    pub place: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Writable memory that it has mapped, in bytes; written by the agent.
    pub held: u64,
    /// Executions of loads with a yield, in run queues and on its home thread, up to the agent's last poll;
    /// written by the agent.
    pub progress: u64,
}

/// Where a scavenger is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ScavengerPlacement {
    /// In a run queue that has room, else on its home thread according to [`crate::Idle`].
    #[default]
    RunQueues = 0,
    /// On its home thread only.
    Own = 1,
    /// Nowhere: it waits from its next yield on, or does not begin.
    Held = 2,
}

numbered! {
    /// Progress of a scavenger.
    pub enum ScavengerProcessState {
        /// Its thread is being started.
        Starting = 0,
        /// It has begun to run.
        Runs = 1,
        /// It ended, with this exit code.
        Exited = 2,
        /// It died of this signal, which it sent itself or which a fault raised.
        Killed = 3,
        /// It never ran; the code is an error number.
        Failed = 4,
    }
}
