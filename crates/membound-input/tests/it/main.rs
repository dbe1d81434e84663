//! Files of every format, good and bad, through the one function that reads them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad;
mod documents;
mod formats;
mod invariants;
mod never_panics;
mod round_trip;
mod samples;
