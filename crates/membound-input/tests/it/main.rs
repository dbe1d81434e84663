//! Files of every format, good and bad, through the one function that reads them.

#![allow(clippy::unwrap_used)]

mod bad;
mod documents;
mod formats;
mod invariants;
mod never_panics;
mod round_trip;
mod samples;
