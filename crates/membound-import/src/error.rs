//! Why a recording cannot be read.

/// Why a recording cannot be read: a lower-case fragment that follows the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is neither perf.data nor text of `perf script`.
    #[error(
        "it is neither a perf.data file nor the text of `perf script` (`membound compare` takes \
         what MLC, Mess, lat_mem_rd and multichase print)"
    )]
    Unknown,
    /// The file is perf.data of an unsupported version.
    #[error(
        "it is perf.data of version `{magic}`, and only PERFILE2 is read: print it with \
         `perf script` of the perf that wrote it, and import that text"
    )]
    Version {
        /// The first eight bytes, with control characters escaped.
        magic: String,
    },
    /// The recording was not ended properly.
    #[error("it holds no records: `perf record` was killed before it ended the file")]
    NotEnded,
    /// The file ends too early.
    #[error("{what} at byte {at} goes beyond the end of the file: it is cut off or damaged")]
    Cut {
        /// The part that is incomplete.
        what: &'static str,
        /// Its offset in the file.
        at: u64,
    },
    /// A part of the file is invalid.
    #[error("{what} at byte {at} {problem}")]
    Damaged {
        /// The part that is invalid.
        what: &'static str,
        /// Its offset in the file.
        at: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The file declares no event.
    #[error("it names no event that was recorded")]
    NoEvents,
    /// Samples have fields that this version does not know.
    #[error(
        "samples of event `{event}` have fields that this membound does not know (bits \
         {bits:#x} of sample_type): print it with `perf script` of the perf that wrote it, and \
         import that text"
    )]
    UnknownFields {
        /// Name of the event.
        event: String,
        /// Unknown bits of `sample_type`.
        bits: u64,
    },
    /// It cannot be determined which event a record belongs to.
    #[error(
        "its events have samples of different layouts and no identifier in the same place: \
         record them in separate files"
    )]
    Ambiguous,
    /// The records are compressed.
    #[error("its records are compressed: record again without `-z`")]
    Compressed,
    /// The records are in other files.
    #[error(
        "its records lie in other files of its directory: record again without `--threads`, or \
         import what `perf script` prints"
    )]
    InDirectory,
    /// The file has no samples.
    #[error("no sample is in it")]
    NoSamples,
    /// A line is not one of `perf script`.
    #[error("line {line} {problem}")]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
}
