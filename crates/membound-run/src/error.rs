//! Why a run cannot be written or read.

use std::io;
use std::path::PathBuf;

/// Why a run cannot be written or read. Every text is one line that names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be made.
    #[error("cannot create the run file {}: {error}", path.display())]
    Create {
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What stands there is no file.
    #[error("cannot create the run file {}: it is not a regular file", path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
    },
    /// Another recording writes it.
    #[error("cannot create the run file {}: another recording is writing it", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// There is no room left, or not for a file of this size.
    #[error(
        "no room is left for the run file {}: what was recorded until then is kept",
        path.display()
    )]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write the run file {}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        reason: String,
    },
    /// Writing has failed before, and nothing is written any more.
    #[error("the run file {} is not written any more since it failed", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened.
    #[error("cannot read {}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Nothing stands in it.
    #[error("{} is empty: the recording that was to write it has not begun", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is a document, such as a machine profile.
    #[error(
        "{} is a JSON document ({kind}), not a run: a run is what `membound profile -o` writes",
        path.display()
    )]
    Document {
        /// The file.
        path: PathBuf,
        /// Its kind, as far as it says one.
        kind: String,
    },
    /// It is something else.
    #[error("{} is not a run: a run is what `membound profile -o` writes", path.display())]
    NotARun {
        /// The file.
        path: PathBuf,
    },
    /// It is another program's database.
    #[error(
        "{} is an SQLite database of another program, not a run that `membound profile -o` wrote",
        path.display()
    )]
    OtherDatabase {
        /// The file.
        path: PathBuf,
    },
    /// It was written by a version with another layout.
    #[error(
        "{} has layout {found}, and this membound reads layout {}: record it again, or read it \
         with the version that wrote it",
        path.display(),
        crate::LAYOUT
    )]
    OtherLayout {
        /// The file.
        path: PathBuf,
        /// Its layout.
        found: i64,
    },
    /// Membound was killed while it wrote, and what it left cannot be put in order here.
    #[error(
        "{} was left in the middle of a write, and its journal beside it cannot be applied \
         ({reason}): copy both files to where you may write",
        path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        reason: String,
    },
    /// Another process holds the file's lock for longer than we wait.
    #[error("{} is being written: try again when the recording has ended", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// Not even what the run was can be read.
    #[error("{} is damaged beyond reading: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        reason: String,
    },
}
