//! Why a run cannot be written or read.

use std::io;
use std::path::PathBuf;

/// Why a run cannot be written or read. Every text is one line that names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be created.
    #[error("cannot create the run file {}: {error}", path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The path is not a regular file.
    #[error("cannot create the run file {}: it is not a regular file", path.display())]
    NotAFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another recording is writing the file.
    #[error("cannot create the run file {}: another recording is writing it", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The disk is full, or the limit on file sizes is reached.
    #[error(
        "no room is left for the run file {}: what was recorded until then is kept",
        path.display()
    )]
    Full {
        /// Path of the file.
        path: PathBuf,
    },
    /// SQLite cannot write the file.
    #[error("cannot write the run file {}: {reason}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// SQLite's error.
        reason: String,
    },
    /// An earlier write failed, and nothing is written any more.
    #[error("the run file {} is not written any more since it failed", path.display())]
    Stopped {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot read {}: {error}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is empty.
    #[error("{} is empty: the recording that was to write it has not begun", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is a JSON document, such as a machine profile.
    #[error(
        "{} is a JSON document ({kind}), not a run: a run is what `membound profile -o` writes",
        path.display()
    )]
    Document {
        /// Path of the file.
        path: PathBuf,
        /// The document's `kind`, if it has one.
        kind: String,
    },
    /// The file is neither a database nor a document.
    #[error("{} is not a run: a run is what `membound profile -o` writes", path.display())]
    NotARun {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is another program's database.
    #[error(
        "{} is an SQLite database of another program, not a run that `membound profile -o` wrote",
        path.display()
    )]
    OtherDatabase {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was written by a version with another layout.
    #[error(
        "{} has layout {found}, and this membound reads layout {}: record it again, or read it \
         with the version that wrote it",
        path.display(),
        crate::LAYOUT
    )]
    OtherLayout {
        /// Path of the file.
        path: PathBuf,
        /// The file's layout.
        found: i64,
    },
    /// membound was killed during a write, and its journal cannot be applied here.
    #[error(
        "{} was left in the middle of a write, and its journal beside it cannot be applied \
         ({reason}): copy both files to where you may write",
        path.display()
    )]
    Unfinished {
        /// Path of the file.
        path: PathBuf,
        /// SQLite's error.
        reason: String,
    },
    /// Another process held the file's lock for longer than the timeout.
    #[error("{} is being written: try again when the recording has ended", path.display())]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
    /// Not even the run's metadata can be read.
    #[error("{} is damaged beyond reading: {reason}", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// SQLite's error.
        reason: String,
    },
}
