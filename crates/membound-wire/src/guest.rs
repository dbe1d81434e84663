//! A program that runs inside another one's process.
//!
//! A guest has its own loader and C library, its own thread of the kernel's with its own table of
//! descriptors, directory and thread pointer, and no signals. Every system call of its own comes to
//! the agent first (`PR_SET_SYSCALL_USER_DISPATCH`), which makes it on the guest's thread, or refuses
//! what would touch the program that it is a guest of.

/// What launcher and agent know of a guest, in memory that both have mapped; behind it lie the
/// [`GuestRequest::strings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GuestRequest {
    /// A [`GuestState`] as its number; the agent's.
    pub state: u32,
    /// Exit code, signal or error number, as the state says; the agent's.
    pub code: u32,
    /// Its thread in the program's namespace; the agent's.
    pub thread: u32,
    /// Number of arguments, the program's name included.
    pub arguments: u32,
    /// Number of variables in its environment.
    pub variables: u32,
    /// Bytes of strings behind this: the path of the executable, the paths that standard output and
    /// standard error are written to (empty: nowhere), arguments and variables, each with a zero
    /// byte behind it.
    pub strings: u32,
    /// Bytes that it may map beside its files and its stack.
    pub memory: u64,
    /// Bytes of its stack.
    pub stack: u64,
    /// Bytes that it has mapped; the agent's.
    pub mapped: u64,
    /// System calls that it has made; the agent's.
    pub calls: u64,
    /// CPU time of its own thread when it ended, in nanoseconds; the agent's.
    pub cpu_ns: u64,
    /// Yields at which it left its own thread; the agent's.
    pub parks: u64,
    /// Time that lanes have had it, in nanoseconds; the agent's.
    pub away_ns: u64,
    /// A [`GuestPlace`] as its number; the launcher's.
    pub place: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Memory that it has mapped to be written, in bytes; the agent's.
    pub held: u64,
    /// Executions of loads with a yield, in lanes and on its own thread, up to the agent's last look; the
    /// agent's.
    pub progress: u64,
}

/// Where a guest is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum GuestPlace {
    /// In a lane where one has room, else on its own thread as [`crate::Idle`] says.
    #[default]
    Lanes = 0,
    /// On its own thread, and in no lane.
    Own = 1,
    /// It waits, from its next yield on; one that has not begun does not begin.
    Held = 2,
}

/// How far a guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GuestState {
    /// Its thread is being started.
    Starting = 0,
    /// Its first instruction was reached.
    Runs = 1,
    /// It ended, with this exit code.
    Exited = 2,
    /// It died of this signal: its own, or a fault.
    Killed = 3,
    /// It never ran: the error number says why.
    Failed = 4,
}

impl GuestState {
    /// The state with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Starting,
            1 => Self::Runs,
            2 => Self::Exited,
            3 => Self::Killed,
            4 => Self::Failed,
            _ => return None,
        })
    }
}
