//! Reads recordings of other profilers into plain data.
//!
//! [`PerfData`] is a perf.data file, written by `perf record`, `perf mem record` or `perf c2c record`, to a
//! file or into a pipe, in either byte order. [`Script`] is the text that `perf script` prints of one.
//! Turning a recording into a run, and finding the files that its addresses belong to, is left to
//! `membound-record`.
//!
//! No file is trusted: every count is compared with the remaining bytes before memory is allocated for it. A
//! file is read completely or refused with an [`Error`] that says where; [`PerfData::skipped`] lists what was
//! left out.
//!
//! Times are nanoseconds of the recording's own clock.

#![forbid(unsafe_code)]

mod bytes;
mod data_src;
mod error;
mod ibs;
mod memory;
mod perf;
mod script;
mod skipped;
mod spe;

pub use bytes::{ByteOrder, Words};
pub use error::Error;
pub use memory::{MemoryAccess, Operation, Sampler, Served, Snoop, Translation};
pub use perf::{
    About, Comm, Context, Event, EventKind, Exit, Fork, Identity, Lost, Map, Mode, PerfData,
    Record, Registers, Sample, Step, chain,
};
pub use script::{Script, ScriptFrame, ScriptSample};
pub use skipped::Skipped;

/// Format of a recording, recognised by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// perf.data, as a file or from a pipe.
    PerfData,
    /// Text printed by `perf script`.
    Script,
}

impl Format {
    /// Recognises the format from the first bytes of a file.
    ///
    /// # Errors
    /// [`Error::Version`] for perf.data of an unsupported version, [`Error::Unknown`] for anything else.
    pub fn of(bytes: &[u8]) -> Result<Self, Error> {
        if perf::is_perf_data(bytes)? {
            return Ok(Self::PerfData);
        }
        if script::recognises(bytes) {
            return Ok(Self::Script);
        }
        Err(Error::Unknown)
    }
}
