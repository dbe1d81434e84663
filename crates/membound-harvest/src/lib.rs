//! Chooses the loads at which a program yields, and predicts the gain.
//!
//! - [`plan()`]: from a profiled run, the loads at which a program yields, and every other load that was
//!   considered, with the reason; if a bound is requested, also the bound yields that keep the time between
//!   two yields under it. [`check()`] checks that a binary is the one of a plan.
//! - [`yields()`]: from a plan and one of its files, the patches of that file.
//! - [`by_hand()`]: a plan with given loads, where nothing was profiled.
//! - [`distance`]: how long a program runs between two yields, and where bound yields must stand to keep this
//!   time under a bound.
//!
//! The functions are pure: they turn a run and the bytes of binaries into a plan. Latencies come from machine
//! profiles.

#![forbid(unsafe_code)]

mod binaries;
mod by_hand;
mod choose;
mod code;
pub mod distance;
mod earlier_plan;
mod edges;
mod error;
mod options;
mod patches;
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
