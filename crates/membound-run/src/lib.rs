//! The run file: the data that `membound profile` recorded.
//!
//! [`RunData`] is a run as plain data; its readers compute from that and nothing else. On disk a run is an
//! SQLite database (`docs/formats/run.md`), which stays readable when the writer or a reader is killed at any
//! time. This crate interprets nothing, except whether samples lack CPU time ([`is_time_missing`]), which the recorder and
//! its readers must judge alike.
//!
//! Units: times are nanoseconds since the run began (`t_ns`), unless a name says otherwise; addresses of code
//! are those of the file (`Frame::address`), addresses of data are those of the process. Identifiers
//! ([`ThreadId`] and the like) are positions in the vectors of [`RunData`].

#![forbid(unsafe_code)]

mod burst;
mod check;
mod coverage;
mod data;
mod error;
mod read;
mod record;
mod table;
mod value;
mod write;

pub use coverage::is_time_missing;
pub use data::*;
pub use error::Error;
pub use read::is_complete;
pub use table::{APPLICATION, LAYOUT};
pub use write::{Writer, write};
