//! Errors of input files. A [`Fault`] has the position, an [`InputError`] also the file's name.

use crate::text::one_line;

/// Reason why a file cannot be used; its text names file, position and remedy in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file is empty or contains only blanks.
    #[error("{name}: is empty")]
    Empty {
        /// File name as the caller gave it.
        name: String,
    },
    /// The file contains bytes that are not text.
    #[error("{name}: byte {offset}: {what}")]
    NotText {
        /// File name as the caller gave it.
        name: String,
        /// Offset of the first byte that is not text, from 0.
        offset: usize,
        /// The unexpected byte, and the expected form.
        what: String,
    },
    /// The text is in no known format.
    #[error(
        "{name}: not a format that is known here; accepted are membound's JSON (machine, latency, \
         window, model), CSV with a header (`size_bytes,ns` or \
         `window_bytes,area_bytes,seconds_per_window`), and saved output of lat_mem_rd, \
         multichase, Intel MLC and Mess"
    )]
    Unknown {
        /// File name as the caller gave it.
        name: String,
    },
    /// A line cannot be used.
    #[error("{name}: line {line}: {what}")]
    Line {
        /// File name as the caller gave it.
        name: String,
        /// Number of the line, from 1.
        line: usize,
        /// Column and value, and the expected form.
        what: String,
    },
    /// A field of a JSON document cannot be used.
    #[error("{name}: {path}: {what}")]
    Field {
        /// File name as the caller gave it.
        name: String,
        /// Path to the field, such as `latency.points[3].ns`.
        path: String,
        /// The value, and the expected form.
        what: String,
    },
    /// The format is known, but the file contains nothing usable.
    #[error("{name}: {what}")]
    Broken {
        /// File name as the caller gave it.
        name: String,
        /// The reason, and the expected form.
        what: String,
    },
}

/// An [`InputError`] without the file's name.
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

    /// The error for the file called `name`; control characters in the name are escaped.
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
