//! Programs of every kind, run as they are and with every load and store patched.
//!
//! A second integration binary beside `it`: it needs compilers, builds some dozens of
//! programs, and tests one thing, that `membound rewrite check` leaves a program what it
//! is. Each fixture checks itself against what its construction says; the tests compare
//! what it writes and how it ends, unpatched and patched, and look into the report, so that
//! a program that was not patched at all is no pass.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod build;
mod case;
mod code;
mod counts;
mod debugger;
mod exceptions;
mod foreign;
mod limits;
mod loader;
mod processes;
mod run;
mod signals;
mod terminal;
mod threads;
