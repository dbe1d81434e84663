//! The kernel's events on real programs.

mod fixture;
mod perf;
mod record;
mod refused;
mod watch;
