//! Evidence of lines that threads share: watchpoints and trials in which threads were held.

use crate::{FrameId, ThreadId};

/// A hit of a watchpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Time of the hit.
    pub t_ns: u64,
    /// Thread that hit the watchpoint.
    pub thread: ThreadId,
    /// First address watched.
    pub address: u64,
    /// Bytes watched.
    pub bytes: u8,
    /// The instruction behind the one that hit.
    pub frame: FrameId,
}

/// How far a thread got in a span in which all others that use a line were held, or in one in which
/// none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// When it ended.
    pub t_ns: u64,
    /// Number of the trial that it belongs to.
    pub trial: u32,
    /// The thread.
    pub thread: ThreadId,
    /// First address of the line that is the reason of the trial.
    pub line: u64,
    /// Whether the others were held.
    pub alone: bool,
    /// Length in nanoseconds.
    pub wall_ns: u64,
    /// CPU time of the thread.
    pub cpu_ns: u64,
    /// By how much a word grew that tells how far the thread is. Its unit is the same for a thread
    /// in one trial, and in no other. 0: no such word is known, or the thread got nowhere.
    pub progress: u64,
}
