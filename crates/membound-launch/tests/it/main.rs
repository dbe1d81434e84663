//! Programs with known accesses under a session: their records, and changes of their text while they run.

mod allocations;
mod blocks;
mod exchange;
mod fixture;
mod loader;
mod records;
mod standing;
mod start;
mod timers;
