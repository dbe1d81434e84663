//! Why a recording cannot be read.

/// Why a recording cannot be read: a lower-case fragment for behind the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither perf.data nor text of `perf script`.
    #[error(
        "it is neither a perf.data file nor the text of `perf script` (`membound compare` takes \
         what MLC, Mess, lat_mem_rd and multichase print)"
    )]
    Unknown,
    /// perf.data of another version.
    #[error(
        "it is perf.data of version `{magic}`, and only PERFILE2 is read: print it with \
         `perf script` of the perf that wrote it, and import that text"
    )]
    Version {
        /// The first eight bytes, as far as they can be shown.
        magic: String,
    },
    /// The recording was not ended in order.
    #[error("it holds no records: `perf record` was killed before it ended the file")]
    NotEnded,
    /// It ends too soon.
    #[error("{what} at byte {at} goes beyond the end of the file: it is cut off or damaged")]
    Cut {
        /// What does not fit.
        what: &'static str,
        /// Where it begins.
        at: u64,
    },
    /// Something in it cannot be.
    #[error("{what} at byte {at} {problem}")]
    Damaged {
        /// What.
        what: &'static str,
        /// Where it begins.
        at: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It holds no event.
    #[error("it names no event that was recorded")]
    NoEvents,
    /// Samples hold something that nothing is known of.
    #[error(
        "samples of event `{event}` have fields that this membound does not know (bits \
         {bits:#x} of sample_type): print it with `perf script` of the perf that wrote it, and \
         import that text"
    )]
    UnknownFields {
        /// The event.
        event: String,
        /// Bits of `sample_type` without a meaning.
        bits: u64,
    },
    /// Records cannot be told apart.
    #[error(
        "its events have samples of different layouts and no identifier in the same place: \
         record them in separate files"
    )]
    Ambiguous,
    /// Records are compressed.
    #[error("its records are compressed: record again without `-z`")]
    Compressed,
    /// Records lie in other files.
    #[error(
        "its records lie in other files of its directory: record again without `--threads`, or \
         import what `perf script` prints"
    )]
    InDirectory,
    /// Nothing in it was sampled.
    #[error("no sample is in it")]
    NoSamples,
    /// Text that is no line of `perf script`.
    #[error("line {line} {problem}")]
    Line {
        /// From 1.
        line: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
}
