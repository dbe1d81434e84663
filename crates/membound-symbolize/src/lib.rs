//! Names, lines and call chains: from ELF, DWARF, the vdso and maps of JIT compilers.
//!
//! - [`Symbols`]: one module (executable, library, vdso): maps addresses to functions, source lines and
//!   inlined functions; addresses of data to variables.
//! - [`Unwinder`]: one process: computes return addresses from registers and stack, with the modules' call
//!   frame information.
//! - [`JitMap`]: names of code made at run time, as compilers write them for perf.
//! - [`demangle()`]: readable names of Rust and C++ functions.
//!
//! The crate reads files and bytes, never a live process: the caller provides the process's memory and
//! mappings. Addresses of modules are those of the file, before the load bias is added; only the unwinder and
//! JIT maps use addresses of the process.
//!
//! All input is untrusted: work and memory are bounded by the sizes of the files, nothing recurses as deep as
//! a file says, and what cannot be read is left out with a note.

#![forbid(unsafe_code)]

mod cfi;
mod debug_files;
mod demangle;
mod dwarf;
mod elf;
mod error;
mod jit;
mod machine;
mod plt;
mod ranges;
mod symbols;
mod symtab;
mod table;
mod unwind;

pub use debug_files::DebugPaths;
pub use demangle::demangle;
pub use error::Error;
pub use jit::{JitEntry, JitMap};
pub use symbols::{Function, SourceLine, Symbols, Variable};
pub use unwind::{Chain, End, Frames, Registers, Unwinder};
