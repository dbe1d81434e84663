//! Programs with known accesses under a session: what is recorded of them, and what changes
//! while they run.

mod allocations;
mod blocks;
mod exchange;
mod fixture;
mod loader;
mod records;
mod standing;
mod start;
mod timers;
