//! A basic block of a decoded function, and how control leaves it.

use super::block_id::BlockId;
use super::successors::Successors;

/// How control leaves a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEnd {
    /// The next instruction begins another block.
    FallsThrough,
    /// A direct jump inside the function, conditional or not.
    Jump,
    /// A direct jump to another function (tail call, cold part) at `target`. If `conditional`, the block
    /// after it is a successor. Also an indirect jump through a table with some entries that lead to another
    /// function; the other entries are successors. Also any instruction after which control runs beyond what
    /// could be decoded; `target` is the address it runs to.
    Leaves {
        /// The target, or one of several.
        target: u64,
        /// True if control may also stay in the function.
        conditional: bool,
    },
    /// A call. If it returns, the return site is the successor; hand-written code that ends with a call may
    /// have none.
    Call {
        /// The target of a direct call.
        target: Option<u64>,
        /// False if the callee is known never to return.
        returns: bool,
    },
    /// An indirect jump whose targets are all known and inside the function.
    Table,
    /// An indirect jump that has the form of a tail call: through a GOT or PLT slot, or after the frame was
    /// removed, with the stack pointer as at the function's entry.
    TailCall,
    /// An indirect jump whose targets are not known.
    Unresolved,
    /// A return.
    Return,
    /// An instruction after which nothing runs (`ud2`, `hlt`, `int3`), or bytes that are not an instruction.
    Stops,
}

impl BlockEnd {
    /// True if control continues only at the block's successors, apart from a callee that returns.
    #[must_use]
    pub const fn stays_inside(self) -> bool {
        matches!(
            self,
            Self::FallsThrough | Self::Jump | Self::Table | Self::Call { returns: true, .. }
        )
    }
}

/// A basic block: consecutive instructions. Branches lead to its first instruction only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicBlock {
    /// Index of the block's first instruction in [`Function::instructions`](super::Function::instructions).
    pub first: u32,
    /// Index after its last instruction.
    pub end: u32,
    /// How control leaves the block.
    pub leaves_by: BlockEnd,
    /// Blocks of the function that may run next, without the landing pad.
    pub successors: Successors,
    /// The block that catches, cleans up after or filters an exception thrown by the call at the block's end.
    pub landing_pad: Option<BlockId>,
    /// True if control enters the block from outside the function: at its entry, a landing pad, an address
    /// that is taken, or an rseq abort handler.
    pub entered_from_outside: bool,
}
