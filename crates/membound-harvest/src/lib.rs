//! Which loads of a program yield, and what that is predicted to give.
//!
//! - [`plan()`]: from a profiled run, the loads before which a program yields to others, each that
//!   was considered with its reason; and where a bound is asked for, the further yields that keep
//!   the time between two of them under it. [`check()`] holds a binary to a plan.
//! - [`yields()`]: from a plan and one of its files, what is to be patched there.
//! - [`by_hand()`]: a plan of loads that somebody names, where nothing was profiled.
//! - [`distance`]: how long a program runs between two yields, and where yields must stand so
//!   that this stays under a bound.
//!
//! Pure: a run and the bytes of binaries in, a plan out. Latencies come from machine profiles.

#![forbid(unsafe_code)]

mod binaries;
mod by_hand;
mod choose;
mod code;
pub mod distance;
mod edges;
mod error;
mod former;
mod options;
mod plan;
#[cfg(test)]
mod testing;
mod times;
mod yields;

pub use binaries::{Binaries, check, identify};
pub use by_hand::{by_hand, loads};
pub use error::Error;
pub use options::{Costs, Options};
pub use plan::plan;
pub use yields::{Jumps, LeftOut, Obstacle, Yields, groundwork_options, is_wanted, yields};
