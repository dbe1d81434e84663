//! An ELF file as the bytes that a process would see.

use std::ops::Range;

/// Why a file is left alone as a whole. Its functions are not looked at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be read as what it says it is.
    #[error("malformed ELF file: {0}")]
    Malformed(String),
    /// Something that is not patched, by kind.
    #[error("{0}")]
    Unsupported(Unsupported),
}

/// Files that are not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// No ELF magic.
    #[error("not an ELF file")]
    NotElf,
    /// Another instruction set, word size or byte order.
    #[error("not x86-64 code")]
    Machine,
    /// Neither an executable nor a shared object.
    #[error("neither an executable nor a shared object")]
    Kind,
    /// Text is to be relocated, or lies in a writable segment.
    #[error("its text is writable or is relocated when it is loaded")]
    WritableText,
    /// Made by Go: its stacks move, and its runtime unwinds by tables of its own.
    #[error("a Go program: its runtime moves stacks and unwinds by its own tables")]
    Go,
    /// It spans more than a jump reaches.
    #[error("it spans more than 1 GiB")]
    TooLarge,
}

/// What an image is called in caches: the same bytes have the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The linker's build-id.
    BuildId(Vec<u8>),
    /// SHA-256 of program headers and executable segments, where there is no build-id.
    TextHash([u8; 32]),
}

/// What may be assumed at calls and returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Made by compilers that follow the System V ABI (gcc, clang, rustc; by the file's
    /// `.comment` or DWARF producers).
    SystemV,
    /// Unknown: everything is alive at calls and returns.
    Unknown,
}

/// A function's extent in the file's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionBounds {
    /// First byte and one past the last.
    pub range: Range<u64>,
    /// Name, mangled as it stands in the symbol table, when there is one.
    pub name: Option<Box<str>>,
    /// Whether anybody outside the module may call it (a dynamic symbol).
    pub exported: bool,
    /// Hand-written assembly, as far as known (no `STT_FUNC` type, or no unwind
    /// information): no convention is assumed of it.
    pub assembly: bool,
}
