//! What is known of the targets of an indirect jump.

use std::ops::Range;

use super::knowledge::EntryCertainty;

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
    /// The jump leads to one of these addresses in the function, sorted: all that occur in data. Nothing is known
    /// of how it chooses.
    Labels { inside: Vec<u64> },
    /// The jump leaves the function for good.
    TailCall,
    /// The jump may lead anywhere.
    Unresolved,
}

impl Resolution {
    /// Known targets in other functions.
    pub(super) fn outside(&self) -> &[u64] {
        match self {
            Self::Table { outside, .. } => outside,
            _ => &[],
        }
    }

    /// Targets in the function that certainly are some; empty if each has to be decoded before the next counts.
    pub(super) fn certain(&self) -> &[u64] {
        match self {
            Self::Table {
                inside, guessed, ..
            } if guessed.is_empty() => inside,
            Self::Labels { inside } => inside,
            _ => &[],
        }
    }

    pub(super) const fn is_labels(&self) -> bool {
        matches!(self, Self::Labels { .. })
    }

    /// True if the targets are labels, and addresses of code are taken that are none of them.
    pub(super) fn misses_any(&self, entries: &[(u64, EntryCertainty)]) -> bool {
        let Self::Labels { inside } = self else {
            return false;
        };
        let mut taken = entries
            .iter()
            .filter(|(_, certainty)| *certainty == EntryCertainty::Taken);
        taken.any(|(address, _)| !inside.contains(address))
    }

    /// True if the jump stays among targets that data show.
    pub(super) const fn has_targets(&self) -> bool {
        matches!(self, Self::Table { .. } | Self::Labels { .. })
    }
}
