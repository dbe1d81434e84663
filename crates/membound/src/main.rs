//! The `membound` command.

fn main() {}
