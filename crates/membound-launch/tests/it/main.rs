//! Programs with known accesses under a session: what is recorded of them, and what changes
//! while they run.

mod exchange;
mod fixture;
mod loader;
mod records;
mod start;
