//! Reads recordings of other profilers: bytes in, plain data out.
//!
//! [`PerfData`] is a perf.data file, written by `perf record`, `perf mem record` or
//! `perf c2c record`, to a file or into a pipe, in either byte order. [`Script`] is what
//! `perf script` prints of one. What a recording means for a run, and which files its
//! addresses belong to, is left to `membound-record`.
//!
//! Nothing in a file is trusted: every count is compared with the bytes that are there before
//! anything is allocated for it. A file is read whole or refused, with an [`Error`] that says
//! where; what is left out of a file that is read is told in [`PerfData::skipped`].
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

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// perf.data, as a file or out of a pipe.
    PerfData,
    /// What `perf script` printed.
    Script,
}

impl Format {
    /// What `bytes` are the beginning of.
    ///
    /// # Errors
    /// [`Error::Version`] of perf.data in a version that nothing is known of, [`Error::Unknown`] of
    /// anything else.
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
