//! Chores of the workspace: `cargo xtask ci|test|bench|schema`.

fn main() {}
