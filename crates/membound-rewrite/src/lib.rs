//! What can be patched in x86-64 code, and how: bytes in, patches out.
//!
//! - [`image`]: an ELF file as a set of mapped bytes with functions, landing pads, rseq
//!   sections, and facts about its language's calling convention.
//! - [`code`]: one function, decoded: instructions, basic blocks and their edges; what
//!   could not be resolved is marked.
//! - [`flow`]: facts about a function: liveness, dominators, loops, reaching definitions.
//! - [`stall`]: which access a sampled instruction waited for, and what that accessed.
//! - [`patch`]: displaced groups, trampolines, bodies, tables; the plan of a module.
//!
//! Nothing here knows a process: addresses are those of the file (`vaddr`). The caller knows where a module
//! is mapped and places its plan there ([`patch::Plan::place`]).
#![forbid(unsafe_code)]

mod between;
pub mod code;
pub mod flow;
pub mod image;
mod op_access;
pub mod patch;
mod registers;
pub mod stall;

pub use between::between_functions;
pub use registers::{Flag, Gpr, RegisterSet, VectorPart};
