//! Figures held to what programs know of themselves, as users' builds of the command give them:
//! `cargo test --release -p membound --test profile figures:: -- --test-threads 1`, which is a
//! part of `cargo xtask test`.

mod attached;
mod executions;
mod kernels;
mod languages;
mod objects;
mod problems;
mod shares;
mod sharing;
