//! Profiles for other programs: CSV, folded stacks, pprof, Firefox Profiler, speedscope, Perfetto,
//! OTLP, Arrow and Parquet.
//!
//! Samples with equal properties are added up; nothing else is lost. Names come from binaries and are kept
//! as they are, except for characters with a special meaning in a format.

mod chains;
mod csv;
mod firefox;
mod folded;
mod otlp;
mod perfetto;
mod pprof;
mod proto;
mod speedscope;
mod table;

pub use csv::csv;
pub use firefox::firefox;
pub use folded::{Weight, folded};
pub use otlp::otlp;
pub use perfetto::perfetto;
pub use pprof::pprof;
pub use speedscope::speedscope;
pub use table::{TableError, arrow, parquet};
