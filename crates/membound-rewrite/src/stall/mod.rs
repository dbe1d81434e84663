//! Attributes samples: which memory access a sampled instruction waited for, and which address that access
//! had.
//!
//! A [`Code`] answers for one file. It decodes a function when the function is first asked for.

mod address;
mod code;
mod function;
mod iterations;
mod loop_body;
mod waits;

pub use address::{Bases, Effective};
pub use code::{Code, CodeBlock};
pub use function::{CodeFunction, SiteInfo, SiteKind};
pub use iterations::{CodeLoop, IterationRegister};
pub use loop_body::LoopBody;
pub use waits::Wait;
