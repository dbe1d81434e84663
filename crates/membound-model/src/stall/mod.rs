//! How long a program stalled on memory, from samples, counts and timed accesses.
//!
//! What counts as stalled is the time in which the oldest unretired instruction waits for
//! memory beyond the cost of a hit in the innermost cache. Three kinds of evidence bound it
//! for one instruction:
//!
//! - timer samples say how much time went there, whatever for ([`Evidence::time_ns`]);
//! - its executions say how much of that hits would have cost;
//! - its latency histogram, a [`Mixture`] of those that calibration measured for each level,
//!   says how much its misses can have cost.
//!
//! [`Stall::of`] puts these together for an instruction and [`combine`] for a program.
//! [`advance`] tells streams, whose latencies are hidden by prefetchers while their
//! bandwidth is not.

mod advance;
mod bins;
mod combine;
mod estimate;
mod mixture;
mod resample;
mod served;
mod site;
mod timing;

pub use advance::{Advance, advance};
pub use bins::{collected, on_steps};
pub use combine::combine;
pub use estimate::Estimate;
pub use mixture::{LevelShare, Mixer, Mixture, NoMixture};
pub use served::{ByLevel, Served};
pub use site::{Contended, Costs, Evidence, Executed, Stall, Stream, Touch, Work};
pub use timing::Timing;
