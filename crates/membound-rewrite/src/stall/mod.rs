//! Which access to memory a sampled instruction waited for, and what that accessed.
//!
//! A [`Code`] answers for one file, function by function as they are asked for.

mod address;
mod code;
mod function;
mod laps;
mod waits;

pub use address::{Bases, Effective};
pub use code::{Code, CodeBlock};
pub use function::{CodeFunction, SiteInfo, SiteKind};
pub use laps::{CodeLoop, LapRegister};
pub use waits::Wait;
