//! Profiles for other programs: CSV, folded stacks, pprof and Firefox Profiler.
//!
//! Samples that say the same are added up; nothing else is lost. Names come from binaries
//! and are kept as they are, except for what a format gives another meaning.

mod chains;
mod csv;
mod firefox;
mod folded;
mod pprof;
mod proto;

pub use csv::csv;
pub use firefox::firefox;
pub use folded::{Weight, folded};
pub use pprof::pprof;
