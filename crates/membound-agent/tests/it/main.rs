//! The agent inside real programs; the test acts as the launcher.
//!
//! Programs are built from `programs/` here, for glibc and for musl, without position independence, so that
//! the addresses of their symbols are known before they run.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod calls;
mod changes;
mod environment;
mod harness;
mod live_text;
mod object_file;
mod obstacles;
mod scavengers;
mod signals;
mod texts;
