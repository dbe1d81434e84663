//! Why a file cannot be used. A [`Fault`] knows the place, an [`InputError`] also the file.

use crate::text::one_line;

/// Why a file cannot be used; names file, place and remedy in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Nothing in it, or blanks only.
    #[error("{name}: is empty")]
    Empty {
        /// File as it was named.
        name: String,
    },
    /// Bytes that are no text.
    #[error("{name}: byte {offset}: {what}")]
    NotText {
        /// File as it was named.
        name: String,
        /// Offset of the first byte that is no text, from 0.
        offset: usize,
        /// What stands there, and what would be right.
        what: String,
    },
    /// Text in no format that is known here.
    #[error(
        "{name}: not a format that is known here; accepted are membound's JSON (machine, latency, \
         window, model), CSV with a header (`size_bytes,ns` or \
         `window_bytes,area_bytes,seconds_per_window`), and saved output of lat_mem_rd, \
         multichase, Intel MLC and Mess"
    )]
    Unknown {
        /// File as it was named.
        name: String,
    },
    /// A line that cannot be used.
    #[error("{name}: line {line}: {what}")]
    Line {
        /// File as it was named.
        name: String,
        /// Line, from 1.
        line: usize,
        /// Column and value, and what would be right.
        what: String,
    },
    /// A field of a JSON document that cannot be used.
    #[error("{name}: {path}: {what}")]
    Field {
        /// File as it was named.
        name: String,
        /// Path to the field, as in `latency.points[3].ns`.
        path: String,
        /// Value, and what would be right.
        what: String,
    },
    /// A known format, but nothing in it that could be used.
    #[error("{name}: {what}")]
    Broken {
        /// File as it was named.
        name: String,
        /// Reason, and what would be right.
        what: String,
    },
}

/// An [`InputError`] that does not know yet how its file is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Empty,
    NotText { offset: usize, what: String },
    Unknown,
    Line { line: usize, what: String },
    Field { path: String, what: String },
    File(String),
}

impl Fault {
    pub(crate) fn line(line: usize, what: impl Into<String>) -> Self {
        Self::Line {
            line,
            what: what.into(),
        }
    }

    /// The error for the file that is called `name`, in one line whatever the name holds.
    pub(crate) fn of(self, name: &str) -> InputError {
        let name = one_line(name);
        match self {
            Self::Empty => InputError::Empty { name },
            Self::NotText { offset, what } => InputError::NotText { name, offset, what },
            Self::Unknown => InputError::Unknown { name },
            Self::Line { line, what } => InputError::Line { name, line, what },
            Self::Field { path, what } => InputError::Field { name, path, what },
            Self::File(what) => InputError::Broken { name, what },
        }
    }
}
