//! One function, decoded: instructions, basic blocks and their edges.

use std::fmt;

use iced_x86::Instruction;

use crate::image::FunctionBounds;

/// Index of a block in [`Function::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// For indexing.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How control leaves a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEnd {
    /// The next instruction begins another block.
    FallsThrough,
    /// A direct jump inside the function, conditional or not.
    Jump,
    /// A direct jump to another function (tail call, cold part): `target`. When
    /// `conditional`, the block after it is a successor.
    Leaves {
        /// Where to.
        target: u64,
        /// Whether control may stay.
        conditional: bool,
    },
    /// A call. The return site, if it returns, is the successor.
    Call {
        /// A direct call's target.
        target: Option<u64>,
        /// Whether the callee is known never to return.
        returns: bool,
    },
    /// An indirect jump whose targets are all known and inside the function.
    Table,
    /// An indirect jump that is a tail call by its form (through a GOT or PLT slot, or
    /// after the frame was taken down, with the stack pointer as at entry).
    TailCall,
    /// An indirect jump whose targets are not known.
    Unresolved,
    /// A return.
    Return,
    /// An instruction after which nothing runs (`ud2`, `hlt`, `int3`), or bytes that are no
    /// instruction.
    Stops,
}

/// A basic block. Its instructions follow each other; only the first is ever branched to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Index of its first instruction in [`Function::instructions`].
    pub first: u32,
    /// One past its last.
    pub end: u32,
    /// How control leaves it.
    pub leaves_by: BlockEnd,
    /// Blocks that may run next inside the function, landing pad excluded.
    pub successors: Vec<BlockId>,
    /// Where an exception thrown by the call at its end is caught, cleaned up or filtered.
    pub landing_pad: Option<BlockId>,
    /// Entered from outside the function: its entry, a landing pad, an address that is
    /// taken, an rseq abort handler.
    pub entered_from_outside: bool,
}

/// Why not every branch into a function is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unresolved {
    /// An indirect jump at this address.
    IndirectJump(u64),
    /// Its bytes cannot be decoded from this address on, or data lie among them.
    Undecodable(u64),
    /// Something outside jumps into its middle, to this address, and its own blocks are not
    /// known to begin there.
    EnteredInside(u64),
}

impl fmt::Display for Unresolved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndirectJump(at) => write!(out, "an indirect jump at {at:#x}"),
            Self::Undecodable(at) => write!(out, "bytes at {at:#x} that are no instruction"),
            Self::EnteredInside(at) => write!(out, "a jump from outside to {at:#x}"),
        }
    }
}

/// A decoded function.
///
/// Invariants: instructions are sorted by address and do not overlap; blocks are sorted and
/// disjoint; every instruction of a block lies inside [`FunctionBounds::range`]. Bytes that
/// no block holds (padding, tables in text) are not decoded.
#[derive(Clone, Debug)]
pub struct Function {
    /// Where it lies.
    pub bounds: FunctionBounds,
    /// Its instructions (`ip()` is the file's address).
    pub instructions: Vec<Instruction>,
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// `None` when every branch into its instructions is known.
    pub unresolved: Option<Unresolved>,
    /// Address ranges that must stay as they are: rseq critical sections and the
    /// signatures before their abort handlers.
    pub untouchable: Vec<std::ops::Range<u64>>,
}

impl Function {
    /// The instructions of a block.
    #[must_use]
    pub fn block_instructions(&self, block: &Block) -> &[Instruction] {
        &self.instructions[block.first as usize..block.end as usize]
    }
}
