//! Interprets measured curves: cache levels, sizes, line sizes, parallelism and TLB reach.
//!
//! The functions take measured points and return interpretations. Nothing here measures, reads a
//! file or contains figures of particular machines. [`interpret()`] fills a whole machine profile;
//! the modules:
//!
//! - [`levels`]: how many levels a latency curve has, their effective sizes and latencies,
//!   and which sizes are worth measuring next;
//! - [`declared`]: compares the levels found with those that sysfs and CPUID declare;
//! - [`line`](mod@line): the line size from stride curves;
//! - [`taint`]: which measured latencies a prefetcher shortened;
//! - [`crowding`]: the effective size of a cache for one copy and for several at once;
//! - [`mlp`], [`area`]: the rules of document 000; [`mod@bend`]: a test for one bend in a line;
//! - [`walks`]: page walks, their cost and how many overlap;
//! - [`tlb`]: entries, reach and cost of a miss; [`reach`](mod@reach): the caches within TLB reach;
//! - [`hierarchy`]: the model of document 002, fitted to windows and to latency curves;
//! - [`mod@stall`]: how long a program stalled, from samples, counts and timed accesses;
//! - [`traffic`]: which accesses miss a cache of any size, and what memory moves for them;
//! - [`compare`]: machine profiles side by side, and a fleet's outliers.

#![forbid(unsafe_code)]

pub mod area;
pub mod bend;
pub mod compare;
pub mod crowding;
pub mod declared;
pub mod hierarchy;
pub mod hits;
pub mod interpret;
pub mod levels;
pub mod line;
pub mod mlp;
pub mod reach;
pub mod stall;
pub mod stats;
pub mod taint;
#[cfg(test)]
mod testing;
pub mod tlb;
pub mod traffic;
pub mod walks;

pub use interpret::{Interpretation, interpret, interpret_latency, interpret_mlp};
pub use levels::{CurvePoint, LevelOptions, Levels, find_levels, suggest_refinement};
