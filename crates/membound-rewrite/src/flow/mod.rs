//! Facts about a function that hold in every execution.
//!
//! - [`Effects`]: the state that one instruction reads, may write and certainly overwrites; an [`Analyst`]
//!   computes them. [`access()`] is the instruction's explicit access to memory, [`addition()`] the
//!   constant that it adds to a register.
//! - [`Summary`]: the effect of a whole function on state. [`Conventions`]: what may be assumed of calls and
//!   returns, given the summaries of a module's functions.
//! - [`Liveness`]: the state that may still be read, at each instruction.
//! - [`Dominators`] and [`Loops`]: the structure of the control-flow graph.
//! - [`Reaching`]: the instructions from which a register's value may come.
//!
//! Every analysis errs on the safe side: state is dead only where that is certain.

mod access;
mod addition;
mod backward;
mod convention;
mod dominators;
mod effects;
mod graph;
mod liveness;
mod loops;
mod reaching;
mod stack;
mod state;
mod summary;
mod traits;

pub use access::{Access, Addressing, Direction, Segment, access};
pub use addition::{Addition, addition};
pub(crate) use convention::is_kept_by_calls;
pub use dominators::Dominators;
pub use effects::{Analyst, Effects};
pub(crate) use graph::Graph;
pub use liveness::Liveness;
pub use loops::{Edge, Loop, LoopId, Loops};
pub use reaching::{Definition, Reaching};
pub use summary::{Conventions, Summaries, Summary};
