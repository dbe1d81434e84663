//! Tests of the command from outside.

mod action;
mod bad_input;
mod batch;
mod calibration;
mod command;
mod compare;
mod completions;
#[cfg(target_arch = "x86_64")]
mod documents;
mod gates;
mod import;
mod interrupted;
mod lat_mem_rd;
mod latency;
mod machines;
mod manual;
mod mlp;
mod model;
mod processors;
mod rewrite;
mod runs;
mod version;

/// Synthetic runs, which the analyze crate's tests define.
#[path = "../../../membound-analyze/tests/it/synthetic/mod.rs"]
#[allow(dead_code, unused_imports, reason = "other tests need more of it")]
mod synthetic;

#[path = "../guest/mod.rs"]
mod guest;
