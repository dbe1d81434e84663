//! What is known of the targets of an indirect jump.

use std::ops::Range;

/// The result for one indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    /// The jump uses tables: target addresses inside the function and in others, sorted, and the address
    /// ranges of the tables' entries.
    Table {
        inside: Vec<u64>,
        outside: Vec<u64>,
        data: Vec<Range<u64>>,
        /// Targets in the order of their entries, if a table has no known end: the caller decodes each target
        /// before it accepts the next.
        guessed: Vec<u64>,
    },
    /// The jump leaves the function for good.
    TailCall,
    /// The jump may lead anywhere.
    Unresolved,
}
