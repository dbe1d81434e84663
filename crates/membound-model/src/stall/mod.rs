//! Estimates how long a program stalled on memory, from samples, counts and timed accesses.
//!
//! Stall time is the time in which the oldest unretired instruction waits for
//! memory beyond the cost of a hit in the innermost cache. Three kinds of evidence bound it
//! for one instruction:
//!
//! - timer samples give the time spent there, for any reason ([`Evidence::time_ns`]);
//! - the number of executions gives the part of it that hits would have cost;
//! - the latency histogram, a [`Mixture`] of the histograms that calibration measured for each
//!   level, gives the most that its misses can have cost.
//!
//! [`Stall::of`] combines these for an instruction and [`combine()`] for a program.
//! [`advance()`] detects streams: prefetchers hide their latencies, but not their use of bandwidth.

mod advance;
mod around;
mod bins;
mod combine;
mod estimate;
mod executed;
mod mixture;
mod resample;
mod served;
mod site;
mod stream;
mod timing;

pub use advance::{Advance, advance};
pub use around::{CACHED_LOOP_ERROR, CachedLoop, Work};
pub use bins::{collected, on_steps};
pub use combine::combine;
pub use estimate::Estimate;
pub use executed::Executed;
pub use mixture::{LevelShare, Mixer, Mixture, NoMixture};
pub use served::{ByLevel, Served};
pub use site::{AccessKind, Contended, Costs, Evidence, Stall};
pub use stream::Stream;
pub use timing::Timing;
