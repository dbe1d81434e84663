//! Tests of the command from outside.

mod bad_input;
mod calibration;
mod command;
mod compare;
mod interrupted;
mod latency;
mod machines;
mod mlp;
mod model;
mod rewrite;

#[path = "../guest/mod.rs"]
mod guest;
