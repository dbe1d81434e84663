//! Why a file is rejected as a whole.

/// Why a file is rejected as a whole; none of its functions are analysed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file's headers or tables contradict its contents.
    #[error("malformed ELF file: {0}")]
    Malformed(String),
    /// The file is of a kind that is not patched.
    #[error("{0}")]
    Unsupported(Unsupported),
}

/// Kinds of files that are not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// The file has no ELF magic.
    #[error("not an ELF file")]
    NotElf,
    /// The file has another instruction set, word size or byte order.
    #[error("not x86-64 code")]
    Machine,
    /// The file is neither an executable nor a shared object.
    #[error("neither an executable nor a shared object")]
    Kind,
    /// The text is relocated when it is loaded, or lies in a writable segment.
    #[error("its text is writable or is relocated when it is loaded")]
    WritableText,
    /// The file was made by Go, whose runtime moves stacks and unwinds by its own tables.
    #[error("a Go program: its runtime moves stacks and unwinds by its own tables")]
    Go,
    /// The file was made by Mono ahead of time. Its runtime reads the stubs in it, and aborts if they differ.
    #[error("Mono's ahead-of-time code, which its runtime reads and changes")]
    Mono,
    /// The file spans more addresses than jumps can reach.
    #[error("it spans more than 1 GiB")]
    TooLarge,
}
