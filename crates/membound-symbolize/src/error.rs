//! Why a file cannot be used: the error of reading an ELF file, for the callers of the crate.

use std::io;
use std::path::PathBuf;

/// Why a file cannot be used as a module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not an ELF file, or is damaged.
    #[error("{name} is not a readable ELF file: {reason}")]
    Malformed {
        /// Path or name of the file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}
