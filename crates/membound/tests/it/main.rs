//! Tests of the command from outside.

mod bad_input;
mod calibration;
mod command;
mod compare;
mod completions;
#[cfg(target_arch = "x86_64")]
mod documents;
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

#[path = "../guest/mod.rs"]
mod guest;
