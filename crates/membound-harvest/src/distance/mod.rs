//! How long a program can run between two yields, and where bound yields must stand to keep this time under a
//! bound.
//!
//! The input is a [`Program`]: functions made of blocks of instructions; each instruction has a time, and is
//! marked if a patch can stand at it or if it yields already. Two rules define the distance between yields:
//!
//! - [`Rule::Max`]: the longest time over all paths, by dataflow to a fixpoint. A path without a yield may go
//!   around a loop any number of times, so every loop gets a yield: at each iteration, or at each k-th by a
//!   counter that is never reset. Functions are summarised in the order of the call graph, callees first;
//!   functions that call each other recursively are solved as one graph, in which recursion is a loop like
//!   any other.
//! - [`Rule::Expected`]: document 003's rule, the average over the paths, weighted by how often each is
//!   taken. Two paths of 10 and 20 ns that are taken 90 % and 10 % of the time are 11 ns long. It guarantees
//!   nothing about a single path.
//!
//! The time of code outside the program is unknown. A call of such code ends the known distance, a yield
//! follows where it returns, and the call is listed as a gap.
//!
//! Yields are placed greedily, one violation of the bound after the other, each at the least executed of the
//! places that mend the violation; superfluous yields are removed afterwards. This is fast and near the
//! optimum, but does not reach it in general.
//!
//! The module computes on graphs only: no file, no process. Times are nanoseconds.

mod components;
mod expected;
mod graph;
mod improve;
mod longest;
mod loop_duration;
mod nest;
mod place;
mod program;
mod task;

use std::collections::BTreeMap;

pub(crate) use loop_duration::lasts_ns;
pub use program::{Achieved, Bounded, bound, measure};

/// An instruction, as far as distances depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its address in the file.
    pub address: u64,
    /// Time of one execution, in nanoseconds, without the stall that a yield here hides.
    pub ns: f64,
    /// Whether a patch can stand before it.
    pub patchable: bool,
    /// Whether a yield stands before it already.
    pub yields: bool,
}

/// An edge from a block to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// The target block in the same function.
    pub to: usize,
    /// Share of the block's executions that take this edge, 0 to 1; the shares of a block sum to 1 at most.
    pub share: f64,
}

/// Callee of a call at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Index of a function of the program.
    Function(usize),
    /// Code outside the program.
    Unknown,
}

/// Instructions that follow each other without a branch in between.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BasicBlock {
    /// The instructions, in order.
    pub steps: Vec<Step>,
    /// Edges to the blocks that may run next; after a call, to the block where it returns.
    pub edges: Vec<Edge>,
    /// The call at its end, if any.
    pub call: Option<Call>,
    /// Whether the function returns at its end; together with a call, that is a tail call.
    pub returns: bool,
    /// Whether control may also come from elsewhere than the known edges, as to landing pads and targets of
    /// unknown jumps. The time since the last yield is unknown then.
    pub entered: bool,
    /// Executions over the run.
    pub count: f64,
}

/// A function, which begins at its first block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Its blocks; not empty.
    pub blocks: Vec<BasicBlock>,
}

/// Functions that call each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The functions; [`Call::Function`] holds an index into them.
    pub functions: Vec<Function>,
}

/// Definition of the distance between two yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The longest time over all paths.
    #[default]
    Max,
    /// The average over paths by how often each is taken (document 003).
    Expected,
}

/// The bound for which yields are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum distance in nanoseconds.
    pub bound_ns: f64,
    /// Definition of the distance.
    pub rule: Rule,
}

/// A place for a yield: before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct YieldPosition {
    /// Index of the function in the program.
    pub function: usize,
    /// Index of the block in the function.
    pub block: usize,
    /// Index of the instruction in the block.
    pub step: usize,
}

/// Yields by place, each with its k: it is taken at every k-th execution, by a counter of its own if k > 1.
pub type Yields = BTreeMap<YieldPosition, u32>;

/// Why a distance is not bounded, or not by as much as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unbounded {
    /// A loop in which no patch can stand at any instruction.
    Loop,
    /// Consecutive instructions that take longer than the bound, at which no patch can stand.
    Stretch,
    /// A single instruction takes longer than the bound.
    Instruction,
    /// A call of code outside the program.
    UnknownCall,
}

/// An instruction at which a distance is not bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gap {
    /// Why the distance is not bounded there.
    pub why: Unbounded,
    /// Place of the instruction.
    pub place: YieldPosition,
}

#[cfg(test)]
mod tests;
