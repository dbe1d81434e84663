//! Errors of a recording.

use std::io;
use std::path::PathBuf;

/// Why a recording cannot begin, or cannot be ended properly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run file cannot be written.
    #[error("cannot write the run file {}: {reason}", path.display())]
    Output {
        /// Path of the run file.
        path: PathBuf,
        /// Why it cannot be written.
        reason: String,
    },
    /// The command cannot be started.
    #[error(transparent)]
    Launch(#[from] membound_launch::Error),
    /// The process to attach to does not exist, or may not be sampled.
    #[error("cannot attach to process {pid}: {reason}")]
    Attach {
        /// The process number.
        pid: u32,
        /// The reason, with the remedy if there is one.
        reason: String,
    },
    /// The requested source of samples is not available, or none is.
    #[error("cannot sample: {reason}")]
    Timer {
        /// The reason, with the remedy if there is one.
        reason: String,
    },
    /// A thread of membound's own cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
