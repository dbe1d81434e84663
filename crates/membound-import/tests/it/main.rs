//! Recordings of every kind, good and bad, through the functions that read them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad;
mod invariants;
mod memory;
mod order;
