//! Facts about a function that hold whenever it runs.
//!
//! - [`Effects`]: the state that one instruction reads, may write and certainly overwrites;
//!   an [`Analyst`] finds them out. [`access`] is its explicit access to memory.
//! - [`Summary`]: what a function as a whole does to state; [`Conventions`] what may be
//!   assumed of calls and returns, from the summaries of a module's functions.
//! - [`Liveness`]: what may still be read, at each instruction.
//! - [`Dominators`] and [`Loops`]: the shape of the graph of blocks.
//! - [`Reaching`]: where a register's value may come from.
//! - [`SavePoints`]: where the state that a yield must keep is saved and given back.
//!
//! Everything errs to one side: state is dead only where that is certain.

mod access;
mod backward;
mod convention;
mod dominators;
mod effects;
mod graph;
mod liveness;
mod loops;
mod reaching;
mod saving;
mod stack;
mod summary;
mod traits;

pub use access::{Access, Addressing, Direction, Segment, access};
pub(crate) use convention::is_kept_by_calls;
pub use dominators::Dominators;
pub use effects::{Analyst, Effects};
pub(crate) use graph::Graph;
pub use liveness::Liveness;
pub use loops::{Edge, Loop, LoopId, Loops};
pub use reaching::{Definition, Reaching};
pub use saving::{Around, LoopUse, SavePoints};
pub use summary::{Conventions, Summaries, Summary};
