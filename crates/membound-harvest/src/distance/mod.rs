//! How long a program can run between two yields, and where yields must stand so that this
//! stays under a bound.
//!
//! Input is a [`Program`]: functions of blocks of instructions, each instruction with a time,
//! whether a patch can stand at it, and whether a yield stands there already. Two rules say what
//! the distance is:
//!
//! - [`Rule::Max`]: the longest time over all paths, by dataflow to a fixpoint. A path without
//!   a yield may go around a loop any number of times, so every loop gets a yield: each time
//!   around, or each k-th time by a counter that is never reset. Functions are summarised in the
//!   order of the call graph, callees first; those that call each other in a circle are looked at
//!   as one graph, in which recursion is a loop like any other.
//! - [`Rule::Expected`]: document 003's rule, the average over the paths by how often each is
//!   taken. Two ways of 10 and 20 ns that are taken 90 % and 10 % of the time are 11 ns long. It
//!   promises nothing about a single path.
//!
//! The time of code that is not in the program is not known. A call to it ends the distance as
//! far as it can be told, a yield follows where it returns, and it is listed.
//!
//! Yields are placed greedily, one violation after the other, each where it is executed least
//! among the places that mend the violation; what turns out to be superfluous is taken out
//! again. That is cheap and good, not the optimum.
//!
//! Pure arithmetic on graphs: no file, no process. Times are nanoseconds.

mod components;
mod expected;
mod graph;
mod lasting;
mod longest;
mod nest;
mod place;
mod program;

use std::collections::BTreeMap;

pub(crate) use lasting::lasts_ns;
pub use program::{Achieved, Bounded, bound, measure};

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its address in the file.
    pub address: u64,
    /// Time that one execution takes, in nanoseconds; not the stall that a yield here hides.
    pub ns: f64,
    /// Whether a patch can stand before it.
    pub patchable: bool,
    /// Whether a yield stands before it already.
    pub yields: bool,
}

/// A way from a block to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The block that it leads to, in the same function.
    pub to: usize,
    /// Share of the executions that go this way, 0 to 1; those of a block sum to 1 at most.
    pub share: f64,
}

/// What a block ends with a call of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A function of the program.
    Function(usize),
    /// Code of which nothing is known.
    Unknown,
}

/// Instructions that follow each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The instructions.
    pub steps: Vec<Step>,
    /// Blocks that may run next. After a call: where it returns to.
    pub ways: Vec<Way>,
    /// The call that it ends with, if any.
    pub call: Option<Call>,
    /// Whether the function returns behind it (behind the call: a tail call).
    pub returns: bool,
    /// Whether control may come here from elsewhere than the blocks that lead here: landing
    /// pads, targets of jumps that are not known. How long the way was then is not known.
    pub entered: bool,
    /// Executions over the run.
    pub count: f64,
}

/// A function. It begins at its first block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Its blocks; not empty.
    pub blocks: Vec<Block>,
}

/// Functions that call each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// By position, which [`Call::Function`] names.
    pub functions: Vec<Function>,
}

/// What the distance between two yields is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The longest time over all paths.
    #[default]
    Max,
    /// The average over paths by how often each is taken (document 003).
    Expected,
}

/// What yields are to be placed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Distance that is not to be exceeded, in nanoseconds.
    pub bound_ns: f64,
    /// What the distance is.
    pub rule: Rule,
}

/// A place for a yield: before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Function of the program.
    pub function: usize,
    /// Block of the function.
    pub block: usize,
    /// Instruction of the block.
    pub step: usize,
}

/// Yields by place, with how often each is taken: 1 each time that control comes there, k each
/// k-th time by a counter of its own.
pub type Yields = BTreeMap<Place, u32>;

/// Why a distance cannot be bounded, or not by as much as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unbounded {
    /// A loop in which no patch can stand at any instruction.
    Loop,
    /// A stretch longer than the bound in which no patch can stand.
    Stretch,
    /// A single instruction takes longer than the bound.
    Instruction,
    /// A call of code that is not known.
    UnknownCall,
}

/// Somewhere that a distance cannot be bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gap {
    /// Why.
    pub why: Unbounded,
    /// The instruction.
    pub place: Place,
}

#[cfg(test)]
mod tests;
