//! From a function and its facts to displaced groups, trampolines, tables and a plan.
//!
//! [`Plan::make`] plans a whole image. Every function is planned by itself: `group` finds the instructions
//! that move together, `body` writes the code before them, `trampoline` their code and tables. `planner`
//! does so for all functions, `assembly` joins them, and `pun` finds places for jumps that have fewer than five bytes. The result does not
//! depend on where the module is mapped and can be stored ([`Plan::as_bytes`]); [`Plan::place`] adds the
//! addresses.

mod assembly;
mod blocks;
mod body;
mod body_context;
mod calls;
mod companions;
mod cycle;
mod describe;
mod edit;
mod emit;
mod entry;
mod format;
mod function;
mod groundwork;
mod group;
mod loop_saves;
mod operand;
mod options;
mod place;
mod plan;
mod planner;
mod pun;
mod relocate;
mod rubbish;
mod run_queue;
mod standalone;
mod subject;
mod surroundings;
mod syscalls;
mod table;
mod trampoline;
mod vector_slot;
mod vectors;
mod views;
mod wraps;
mod writer;
mod yields;

use std::fmt;

pub use calls::{Calls, CallsRefusal};
pub use describe::{
    AccessReport, Detail, FunctionReport, GroupReport, InstructionReport, describe,
};
pub use entry::entry_hook;
pub use format::PlanError;
pub use groundwork::{Groundwork, Outline};
pub use membound_wire::Mark;
pub use options::{Accesses, Hooks, Options, Sites, VectorLevel, Wrapped, YieldPart};
pub use place::{ISLAND_BYTES, IslandPage, PlaceError, Placed, Placement};
pub use plan::{Layout, MAX_COLOUR_BYTES, Plan, PlanBytes};
pub use standalone::sampler_identity;
pub use views::{FunctionView, HookState, HookView, SiteView, WrapView};

/// Bytes of a jump with a 32-bit displacement: the most text that one patch overwrites.
const EDIT: usize = membound_wire::EDIT_BYTES;

/// What a patch does before the displaced instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Nothing: the instruction is displaced and executed.
    Displace,
    /// Increments a counter of the site at every execution.
    Count {
        /// True: locked increments, exact under any number of threads, at the cost of a locked operation.
        /// False: plain increments, of which racing threads may lose some.
        exact: bool,
    },
    /// Counts exactly, in one of several words in separate cache lines ([`membound_wire::COUNT_WORDS`]),
    /// chosen by the stack pointer. Threads that count at the same time then do not take the line from each
    /// other, which would cost more than the code that is counted.
    CountByStack,
    /// Writes arbitrary values into all state that the analysis considers dead (for tests).
    Rubbish,
    /// Counts down; about once in a period it fences, times the load and records it.
    Sample,
    /// Records address and site while a burst is on ([`membound_wire::Slots`]).
    Record,
    /// Prefetches the operand and calls the agent's yield entry point.
    PrefetchYield,
    /// Switches to another context of the thread's run queue ([`membound_wire::RunQueue`]).
    Yield(Yield),
    /// Reports to the agent that a request begins or ends.
    Mark(Mark),
}

impl Body {
    /// True if the thread may continue as another context: what is alive is then saved at each execution.
    #[must_use]
    pub const fn switches(self) -> bool {
        matches!(self, Self::PrefetchYield | Self::Yield(_))
    }
}

/// Which kind of context yields, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Yield {
    /// Yield of the primary before a load that is likely to miss: prefetches the operand and continues as the
    /// next context of the ring, if there is one.
    Primary,
    /// Miss yield of a scavenger, before a load that is likely to miss: prefetches and continues as the next
    /// context of the ring, or as the primary when the time slice is used up or every context had its turn.
    Miss {
        /// Time from its previous yield to the end of this one, in [`membound_wire::CREDIT_UNITS_PER_NS`].
        cost: u16,
        /// True if the context gets its own `fs` base as soon as it resumes, as [`Self::Base`] would give it.
        own_base: bool,
    },
    /// In a scavenger, before an access relative to `fs` that follows a yield: that yield may have left the
    /// base of the primary's thread in `fs`.
    Base,
    /// Bound yield of a scavenger that may have run for long: continues as the primary when the time slice is
    /// used up.
    Bound {
        /// As in [`Self::Miss`].
        cost: u16,
        /// As in [`Self::Miss`]; if the context does not leave, its base stays as it is.
        own_base: bool,
    },
}

impl Yield {
    const fn prefetches(self) -> bool {
        match self {
            Self::Primary | Self::Miss { .. } => true,
            Self::Bound { .. } | Self::Base => false,
        }
    }

    /// True if the context gets its own `fs` base as soon as it resumes.
    const fn gives_base(self) -> bool {
        match self {
            Self::Miss { own_base, .. } | Self::Bound { own_base, .. } => own_base,
            Self::Primary | Self::Base => false,
        }
    }
}

/// Why an instruction is not patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Refusal {
    /// The block has no five bytes for a jump, and no punned jump fits.
    NoRoom,
    /// Branches into the neighbouring instructions cannot be excluded, and no punned jump fits.
    UnresolvedFlow,
    /// The access is the memory operand of a call that is the first instruction of its block.
    CallAtBlockStart,
    /// The instruction cannot be executed elsewhere (`xbegin`, far branches, …).
    NotRelocatable,
    /// The instruction lies in an rseq critical section or in the signature before an abort handler.
    Rseq,
    /// The body needs the stack, and rsp is not used as a stack pointer here.
    NoStack,
    /// The body cannot handle this operand (segment-relative, vector-indexed, too wide).
    Operand,
    /// The body would have to save state whose saving costs more than the body gains (x87 state, a set
    /// direction flag).
    DearState,
    /// The function's bytes cannot all be decoded.
    Undecodable,
    /// Found only when placed: no free page at any address that the punned jump can reach.
    NoIsland,
    /// Found only when placed: the text in memory differs from the file's.
    TextDiffers,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NoRoom => "no-room",
            Self::UnresolvedFlow => "unresolved-flow",
            Self::CallAtBlockStart => "call-at-block-start",
            Self::NotRelocatable => "not-relocatable",
            Self::Rseq => "rseq",
            Self::NoStack => "no-stack",
            Self::Operand => "operand",
            Self::DearState => "dear-state",
            Self::Undecodable => "undecodable",
            Self::NoIsland => "no-island",
            Self::TextDiffers => "text-differs",
        })
    }
}
