//! Why nothing can be recorded.

use std::io;
use std::path::PathBuf;

/// Why a recording cannot begin or be ended in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run file.
    #[error("cannot write the run file {}: {reason}", path.display())]
    Output {
        /// Where it was to be.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The command cannot be started.
    #[error(transparent)]
    Launch(#[from] membound_launch::Error),
    /// The process to attach to is not there, or not ours.
    #[error("cannot attach to process {pid}: {reason}")]
    Attach {
        /// Its number.
        pid: u32,
        /// Why not, with the remedy if there is one.
        reason: String,
    },
    /// What was asked for to sample with cannot be had, or nothing can.
    #[error("cannot sample: {reason}")]
    Timer {
        /// Why not, with the remedy if there is one.
        reason: String,
    },
    /// A thread of membound's own.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
