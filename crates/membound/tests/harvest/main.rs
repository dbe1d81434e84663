//! What could harm a program whose stalls are harvested, and what must not.
//!
//! Each test runs a program as it is and under `membound harvest run`, with scavengers that work,
//! call, crash, or never end, and holds the two to each other: output, exit code and signal are the
//! same. Plans are written here, for loads that fixtures name themselves, so that nothing is
//! profiled and every run yields.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod batch;
mod bounds;
mod changes;
mod endings;
mod explore;
mod filters;
mod guard;
mod in_place;
mod interference;
mod off;
mod plan;
mod processes;
mod refusals;
mod requests;
mod scavengers;
mod siblings;
mod signals;
mod stacks;
mod state;
mod suite;
mod threads;
mod waits;

#[path = "../machine_profile/mod.rs"]
mod machine_profile;
