//! Reads perf.data: header, events, and records in time order.
//!
//! Layouts are those of `linux/perf_event.h` (attributes, records, samples) and of
//! `tools/perf/Documentation/perf.data-file-format.txt` (the surrounding file). No existing crate is used:
//! `linux-perf-data` leaves out data sources and weights, which are the purpose here, takes lengths from the
//! file without checking them against its size, and keeps every record twice.

mod about;
mod attr;
mod event;
mod file;
mod record;
mod sample;
mod stream;
mod trace;

use crate::Error;
use crate::bytes::{ByteOrder, shown, text};

pub use about::{About, Identity};
pub(crate) use event::is_cycles;
pub use event::{Event, EventKind};
pub use record::{Comm, Exit, Fork, Lost, Map, Record};
pub use sample::{Context, Mode, Registers, Sample, Step, chain};
pub use stream::PerfData;

/// True if `bytes` begin like perf.data of a supported version.
///
/// # Errors
/// [`Error::Version`] if they are perf.data of another version.
pub(crate) fn is_perf_data(bytes: &[u8]) -> Result<bool, Error> {
    if order(bytes).is_some() {
        return Ok(true);
    }
    let Some(magic) = bytes.get(..8) else {
        return Ok(false);
    };
    let reversed: Vec<u8> = magic.iter().rev().copied().collect();
    let known = |magic: &[u8]| magic.starts_with(b"PERFILE") || magic.starts_with(b"PERFFILE");
    if known(magic) || known(&reversed) {
        return Err(Error::Version {
            magic: shown(&text(magic)),
        });
    }
    Ok(false)
}

/// The byte order of perf.data, from its magic number.
fn order(bytes: &[u8]) -> Option<ByteOrder> {
    match bytes.get(..8)? {
        b"PERFILE2" => Some(ByteOrder::Little),
        b"2ELIFREP" => Some(ByteOrder::Big),
        _ => None,
    }
}
