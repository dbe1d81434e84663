//! Feedback control of a harvest: from what was observed of it to what is changed in it.
//!
//! [`Controller::step`] takes an [`Observation`] at each poll and returns [`Action`]s. It holds the command's
//! slowdown and its requests to their [`Limits`], time slices to their bound, and, where there is no command, lets
//! scavengers interleave where trials measure that this pays. [`Spans`] estimates the slowdown of the whole run
//! for the report.
//!
//! Everything is pure: times come with the observations, and the caller applies the actions. The constants stand
//! in `tuning.rs`.

#![forbid(unsafe_code)]

mod controller;
pub mod durations;
mod guard;
mod interleaving;
mod observation;
mod siblings;
mod slice_control;
mod slowdown;
mod tuning;
mod yield_ranking;

pub use controller::{Action, Controller};
pub use guard::Limits;
pub use interleaving::{Interleaving, InterleavingReport};
pub use observation::{Counters, Observation, Slices};
pub use siblings::{ExceededBound, SiblingControl};
pub use slice_control::{SliceControl, SliceLimits};
pub use slowdown::{Slowdown, Spans};
pub use tuning::{FIRST_SPAN_NS, MAX_ADMITTED_SHARE, MAX_SKIPS};
pub use yield_ranking::YieldFigures;
