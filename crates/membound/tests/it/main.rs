//! Tests of the command from outside.

#[path = "../guest/mod.rs"]
mod guest;
