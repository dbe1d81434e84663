//! How many lines a program moves between caches and memory, from a piece of its accesses.
//!
//! A statistical cache model: from how many touches lie between two of the same line
//! ([`Stream`]) follows how many distinct lines those are (the expectation that StatStack by
//! Eklöv and Hagersten, ISPASS 2010, rests on), and from that whether a cache of any size still
//! holds the line. Two things are added here, derived in the modules that hold them:
//!
//! - a recorded piece is short and most reuse lies beyond its end. Such touches are treated as
//!   what they are, observations cut off ([`Survival`]), and what lies beyond is pinned down
//!   by the program's footprint, since the reuse times of all touches of a stationary stream
//!   have the number of its lines as their mean ([`Stream::misses`]);
//! - lines written back are told from the probability that a line was still dirty when it
//!   was stored to again ([`Stream::written_back`]).
//!
//! Latencies play no part: prefetching changes them, and not what is moved.

mod distinct;
mod footprint;
mod stream;
mod survival;

pub use distinct::Distinct;
pub use footprint::used_cells;
pub use stream::{Around, Capacity, Order, Stream, Touch};
pub use survival::{Observed, Survival};
