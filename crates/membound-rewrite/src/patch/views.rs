//! Read access to a plan: its functions, sites, system calls and wrapped entries.

use std::ops::Range;

use super::Refusal;
use crate::code::{Function, Unresolved};
use crate::flow::Direction;

/// A function that was analysed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionView {
    /// Start and end in the file's addresses.
    pub range: Range<u64>,
    /// Number of basic blocks.
    pub blocks: u32,
    /// Why not all branches into the function are known; `None` if they are.
    pub unresolved: Option<Unresolved>,
}

impl FunctionView {
    pub(super) fn of(function: &Function) -> Self {
        Self {
            range: function.bounds.range.clone(),
            blocks: u32::try_from(function.blocks.len()).unwrap_or(u32::MAX),
            unresolved: function.unresolved,
        }
    }
}

/// An instruction that was to be patched, or that was chosen for its basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteView {
    /// The instruction's address in the file, or that of its block.
    pub address: u64,
    /// The start of its function, as an address of the file.
    pub function: u64,
    /// Whether the access loads or stores; for a block's site, what the chosen instruction happens to do.
    pub direction: Direction,
    /// The site's number among the sites with a body, or why it has none.
    pub number: Result<u32, Refusal>,
}

/// A `syscall` instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookView {
    /// The instruction's address in the file.
    pub address: u64,
    /// The system call's number, if it is known.
    pub number: Option<u32>,
    /// Whether the agent sees the call.
    pub state: HookState,
}

impl HookView {
    /// True if the agent sees the call.
    #[must_use]
    pub fn is_hooked(&self) -> bool {
        self.state == HookState::Hooked
    }
}

/// Whether the agent sees a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    /// The call is patched.
    Hooked,
    /// The call need not be patched.
    NotNeeded,
    /// The call should be patched but cannot be.
    Refused(Refusal),
}

/// The entry of a wrapped function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapView {
    /// Address in the file of the instruction that is patched.
    pub address: u64,
    /// [`Wrapped::number`](super::Wrapped::number).
    pub number: u32,
    /// Whether the entry is wrapped.
    pub state: HookState,
}
