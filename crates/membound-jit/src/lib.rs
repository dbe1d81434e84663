//! Executable memory and emission into it.
//!
//! A [`CodeBuffer`] holds one piece of machine code at a time. Its pages are either
//! writable or executable, never both: [`CodeBuffer::load`] makes them writable, copies,
//! makes them executable and hands out a [`Code`] that borrows the buffer, so that the
//! code cannot be replaced while somebody may still call it.
//!
//! What is emitted is the caller's business. On x86-64 `assemble` wraps the assembler of
//! `iced-x86` so that every caller reports errors alike; [`a64`] encodes instructions for
//! aarch64, on every machine. This crate knows nothing of kernels or patches.

pub mod a64;
mod buffer;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use buffer::{Code, CodeBuffer, OwnedCode};
#[cfg(target_arch = "x86_64")]
pub use x86::{assemble, assemble_owned};

/// Why there is no code to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel would not map, or not change the protection of, the code pages.
    #[error(
        "cannot {action} {bytes} bytes of code memory: {errno} (a policy that forbids executable anonymous memory must be lifted)"
    )]
    Memory {
        /// What was being done.
        action: &'static str,
        /// Size of the mapping.
        bytes: usize,
        /// The kernel's answer; part of the message, so that it is no source beside it.
        errno: rustix::io::Errno,
    },
    /// The code does not fit the buffer.
    #[error("{code_bytes} bytes of code do not fit a buffer of {buffer_bytes}")]
    TooLarge {
        /// Size of the code.
        code_bytes: usize,
        /// Size of the buffer.
        buffer_bytes: usize,
    },
    /// The assembler refused an instruction.
    #[error("cannot assemble: {0}")]
    Assemble(String),
}
