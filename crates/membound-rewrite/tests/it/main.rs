//! Everything that needs a machine, a compiler or a whole file.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod code;
mod flow;
mod generate;
mod machine;
mod patch;
mod stall;
