//! Lock-free protocols of the agent's threads, and of the agent and the launcher.
//!
//! Each module is one protocol: the loads and stores of a few words, and their order. The words themselves
//! belong to the caller, since most of them lie in memory whose layout other code shares; the functions
//! take references to them. No policy, no system call: callers decide when to wait and whom to wake.
//!
//! The tests of each module are scenarios of two or three threads. `cargo test` runs them with threads;
//! `cargo xtask model-check` runs the same code under loom, which tries every order of the threads' steps
//! and every value that the memory model lets a load return.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, loom))]
extern crate std;

pub mod atomic;
pub mod crossed;
pub mod handover;
pub mod lock;
pub mod queue;
pub mod record;
pub mod ring;
pub mod rule;
#[cfg(test)]
mod scenario;
pub mod version;
