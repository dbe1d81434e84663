//! Executable memory and emission into it.
//!
//! A [`CodeBuffer`] holds one piece of machine code at a time. Its pages are either writable or executable,
//! never both: [`CodeBuffer::load`] makes them writable, copies the code, makes them executable and returns a
//! [`Code`] that borrows the buffer. The borrow prevents a replacement of the code while it may still be
//! called.
//!
//! The caller decides what is emitted. On x86-64 `assemble` wraps the assembler of `iced-x86` so that all
//! callers report errors in the same way; [`a64`] encodes aarch64 instructions and works on every machine.
//! This crate knows nothing of kernels or patches.

pub mod a64;
mod buffer;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use buffer::{Code, CodeBuffer, OwnedCode};
#[cfg(target_arch = "x86_64")]
pub use x86::{assemble, assemble_owned};

/// Why code could not be made executable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel would not map, or not change the protection of, the code pages.
    #[error(
        "cannot {action} {bytes} bytes of code memory: {errno} (a policy that forbids executable anonymous memory must be lifted)"
    )]
    Memory {
        /// The operation that failed, as a verb.
        action: &'static str,
        /// Size of the mapping in bytes.
        bytes: usize,
        /// The kernel's error code; it is part of the message and therefore not also its source.
        errno: rustix::io::Errno,
    },
    /// The code does not fit the buffer.
    #[error("{code_bytes} bytes of code do not fit a buffer of {buffer_bytes}")]
    TooLarge {
        /// Size of the code in bytes.
        code_bytes: usize,
        /// Size of the buffer in bytes.
        buffer_bytes: usize,
    },
    /// The assembler refused an instruction.
    #[error("cannot assemble: {0}")]
    Assemble(String),
}
