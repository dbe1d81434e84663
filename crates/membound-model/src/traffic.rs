//! Estimates how many lines a program moves between caches and memory, from a recorded piece of its
//! accesses.
//!
//! This is a statistical cache model. The number of touches between two touches of the same line
//! ([`Stream`]) gives the expected number of distinct lines among them (the expectation on which
//! StatStack by Eklöv and Hagersten, ISPASS 2010, is based), and which shows whether a cache of any
//! size still holds the line. The modules add and derive two things:
//!
//! - a recorded piece is short and most reuse happens after its end. Such touches are treated as
//!   censored observations ([`Survival`]), and the program's footprint determines the part beyond
//!   the end, since the mean reuse time over all touches of a stationary stream
//!   is the number of its lines ([`Stream::misses`]);
//! - the number of lines written back follows from the probability that a line was still dirty
//!   when it was stored to again ([`Stream::written_back`]).
//!
//! Latencies are not used: prefetching changes them, but not the lines moved.

mod distinct;
mod footprint;
mod stream;
mod survival;

pub use distinct::Distinct;
pub use footprint::used_cells;
pub use stream::{Capacity, LineAccess, Order, ProgramContext, Stream};
pub use survival::{Observed, Survival};
