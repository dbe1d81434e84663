//! Names, lines and call chains: from ELF, DWARF, the vdso and maps of JIT compilers.
//!
//! - [`Symbols`]: one module (executable, library, vdso): addresses to functions, source
//!   lines and everything that is inlined there; addresses of data to variables.
//! - [`Unwinder`]: one process: registers and stack to return addresses, by the modules'
//!   call frame information.
//! - [`JitMap`]: names of code made at run time, as compilers write them for perf.
//! - [`demangle()`]: names of Rust and C++ for people.
//!
//! Files and bytes in, names out; it knows no live process, whose memory and maps are
//! brought by the caller. Addresses of modules are those of the file, before anything is
//! added when it is loaded; only the unwinder and JIT maps speak of a process's addresses.
//!
//! Everything that is read is hostile: work and memory are bounded by the sizes of the files,
//! nothing recurses by what a file says, and what cannot be read is left out with a note.

#![forbid(unsafe_code)]

mod cfi;
mod debug_files;
mod demangle;
mod dwarf;
mod elf;
mod jit;
mod machine;
mod plt;
mod ranges;
mod symbols;
mod symtab;
mod table;
mod unwind;

pub use demangle::demangle;
pub use jit::{JitEntry, JitMap};
pub use symbols::{DebugPaths, Error, Function, Place, Symbols, Variable};
pub use unwind::{Chain, End, Frames, Registers, Unwinder};
