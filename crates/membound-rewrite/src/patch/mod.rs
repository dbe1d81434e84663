//! From a function and its facts to displaced groups, trampolines, tables and a plan.
//!
//! [`Plan::make`] plans a whole image: every function is planned by itself (`function`:
//! instructions that move together in `group`, what stands before them in `body`, their
//! code and tables in `trampoline`); `planner` puts the pieces together and `pun`
//! finds places for jumps that are short of bytes. The result does not depend on where the
//! module lies and can be kept ([`Plan::as_bytes`]); [`Plan::place`] adds the addresses.

mod blocks;
mod body;
mod calls;
mod companions;
mod cycle;
mod describe;
mod emit;
mod entry;
mod format;
mod function;
mod groundwork;
mod group;
mod lane;
mod loop_saves;
mod operand;
mod options;
mod place;
mod plan;
mod planner;
mod pun;
mod relocate;
mod rubbish;
mod standalone;
mod surroundings;
mod syscalls;
mod table;
mod trampoline;
mod vectors;
mod wraps;
mod writer;
mod yields;

use std::fmt;

pub use calls::{Calls, CallsRefusal};
pub use describe::{
    AccessReport, Detail, FunctionReport, GroupReport, InstructionReport, describe,
};
pub use entry::entry_hook;
pub use groundwork::Groundwork;
pub use membound_wire::Mark;
pub use options::{Accesses, Hooks, Options, Sites, VectorLevel, YieldPart};
pub use place::{ISLAND_BYTES, IslandPage, PlaceError, Placed, Placement};
pub use plan::{
    FunctionView, HookState, HookView, Layout, MOST_COLOUR, Plan, PlanBytes, PlanError, SiteView,
};
pub use standalone::sampler_identity;
pub use wraps::{WrapView, Wrapped};

/// Bytes of a jump with a 32-bit displacement, the most that is overwritten.
const EDIT: usize = membound_wire::EDIT_BYTES;

/// What a patch does before the instruction it stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Nothing: the instruction is displaced and executed.
    Displace,
    /// Counts executions in a word of the site's own.
    Count {
        /// By locked increments: true counts under any number of threads, at the cost of a
        /// locked operation. Otherwise increments of threads that race may be lost.
        exact: bool,
    },
    /// Counts exactly, in one of several words that lie apart ([`membound_wire::COUNT_WORDS`]),
    /// chosen by where the stack is: threads that count at the same time do not take the line from
    /// each other, which would cost more than what is counted.
    CountByStack,
    /// Writes rubbish into everything that is held to be dead.
    Rubbish,
    /// Counts, and about once in a period fences, times the load and records it.
    Sample,
    /// Records address and site while a burst is on.
    Record,
    /// Prefetches the operand and calls the agent's yield.
    PrefetchYield,
    /// Lets another context run, by the thread's [`membound_wire::Lane`].
    Yield(Yield),
    /// Tells the agent that a request begins or ends.
    Mark(Mark),
}

/// Who yields, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Yield {
    /// The thread that a lane belongs to, before a load that is likely to miss: its operand is
    /// prefetched, and the ring's next context runs, if there is one.
    Primary,
    /// A context, before a load that is likely to miss: prefetches, and goes on as the next of its
    /// ring, or as the thread when its time has come or all had their turn.
    Miss {
        /// Time since its last yield and for this one, in
        /// [`membound_wire::CREDIT_UNITS_PER_NS`].
        cost: u16,
        /// Whether the context has its own base of `fs` as soon as it comes back, as
        /// [`Self::Base`] would give it.
        own_base: bool,
    },
    /// A context that is about to use what lies at `fs`, after a yield that may have left the
    /// thread's own base there.
    Base,
    /// A context that may have run for long: goes on as the thread when its time has come.
    Bound {
        /// As for a miss.
        cost: u16,
        /// As for a miss; where the context does not leave, its base stays what it is.
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

    /// Whether the context has its own base of `fs` as soon as it comes back.
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
    /// The block offers no five bytes, and no punned jump fits.
    NoRoom,
    /// Branches into its neighbours cannot be excluded, and no punned jump fits.
    UnresolvedFlow,
    /// A call's own operand with no instruction before it in its block.
    CallAtBlockStart,
    /// It cannot be executed elsewhere (`xbegin`, far branches, …).
    NotRelocatable,
    /// It lies in an rseq critical section or the signature before an abort handler.
    Rseq,
    /// The body needs the stack, and rsp is no stack pointer here.
    NoStack,
    /// The body cannot handle this operand (segment-relative, vector-indexed, too wide).
    Operand,
    /// What would have to be saved costs more than it is worth (x87 state, a set direction flag).
    DearState,
    /// The function's bytes cannot all be decoded.
    Undecodable,
    /// Found only when placed: no free page where a punned jump must lead.
    NoIsland,
    /// Found only when placed: the text in memory is not the file's.
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
