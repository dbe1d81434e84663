//! Facts about a whole image that the decoder of each of its functions needs.

mod gather;
mod references;

pub(crate) use gather::Outline;

use std::collections::HashSet;
use std::ops::Range;

use iced_x86::Instruction;
use serde::{Deserialize, Serialize};

use super::landing::LandingPad;
use super::rseq;

/// Whether jump tables are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tables {
    /// They are read, and their entries become successors.
    Resolve,
    /// They are not read: every indirect jump that is not a tail call is unresolved.
    Ignore,
}

/// How certain it is that an instruction begins at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum EntryCertainty {
    /// Certain: code jumps there, or the kernel or an exception may continue there.
    Jumped,
    /// The address is taken; it may be that of a label or of data.
    Taken,
    /// A number equals this address, perhaps by chance.
    Guessed,
}

/// What the jump tables of one function show about the rest of an image.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundTables {
    /// Targets in other functions.
    pub(super) outside: Vec<u64>,
    /// Start addresses of the tables.
    pub(super) starts: Vec<u64>,
}

/// Facts about an image that its functions need of each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImageFacts {
    tables: Tables,
    /// Addresses inside functions that control reaches from outside, sorted.
    entries: Vec<(u64, EntryCertainty)>,
    /// Targets of calls that never return.
    never_returns: HashSet<u64>,
    /// Addresses of words that contain the address of such a function.
    never_returning_slots: HashSet<u64>,
    /// Landing pads, sorted by the addresses of their calls.
    landing_pads: Vec<LandingPad>,
    /// Ranges of text that must not be changed, sorted by start.
    untouchable: Vec<Range<u64>>,
    /// Addresses inside functions that occur in data, sorted.
    code_pointers: Vec<CodePointer>,
    /// Start addresses of jump tables, sorted.
    tables_at: Vec<u64>,
}

/// A word of data that contains an address inside a function other than its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CodePointer {
    pub(super) value: u64,
    /// The address of the word.
    pub(super) at: u64,
}

impl ImageFacts {
    /// For a function without an image: nothing is known.
    pub(crate) fn nothing(tables: Tables) -> Self {
        Self {
            tables,
            entries: Vec::new(),
            never_returns: HashSet::new(),
            never_returning_slots: HashSet::new(),
            landing_pads: Vec::new(),
            untouchable: Vec::new(),
            code_pointers: Vec::new(),
            tables_at: Vec::new(),
        }
    }

    /// The first address after `address` at which a jump table begins.
    pub(super) fn next_table(&self, address: u64) -> Option<u64> {
        let after = self.tables_at.partition_point(|&start| start <= address);
        self.tables_at.get(after).copied()
    }

    /// Whether jump tables are read.
    #[must_use]
    pub const fn tables(&self) -> Tables {
        self.tables
    }

    /// True if a direct call of this address never returns.
    #[must_use]
    pub fn never_returns(&self, target: u64) -> bool {
        self.never_returns.contains(&target)
    }

    /// True if a call through the word at this address never returns.
    #[must_use]
    pub fn slot_never_returns(&self, slot: u64) -> bool {
        self.never_returning_slots.contains(&slot)
    }

    /// Addresses in `range` that control reaches from outside.
    pub(super) fn entries(&self, range: &Range<u64>) -> &[(u64, EntryCertainty)] {
        let first = self.entries.partition_point(|(at, _)| *at < range.start);
        let end = self.entries.partition_point(|(at, _)| *at < range.end);
        &self.entries[first..end]
    }

    /// Addresses in `range` that occur in data.
    pub(super) fn code_pointers(&self, range: &Range<u64>) -> &[CodePointer] {
        let pointers = &self.code_pointers;
        let first = pointers.partition_point(|pointer| pointer.value < range.start);
        let end = pointers.partition_point(|pointer| pointer.value < range.end);
        &self.code_pointers[first..end]
    }

    /// Where an exception thrown by a call continues, in its function or in another.
    pub(super) fn landing_pad(&self, call: &Instruction) -> Option<u64> {
        let after = self
            .landing_pads
            .partition_point(|pad| pad.start <= call.ip());
        let pad = self.landing_pads[..after].last()?;
        (call.ip() < pad.end).then_some(pad.pad)
    }

    /// The parts of `range` that must not be changed.
    pub(super) fn untouchable(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let nearest = range.start.saturating_sub(rseq::MAX_SEQUENCE_BYTES);
        let first = self
            .untouchable
            .partition_point(|part| part.start < nearest);
        self.untouchable[first..]
            .iter()
            .take_while(|part| part.start < range.end)
            .filter(|part| range.start < part.end)
            .map(|part| part.start.max(range.start)..part.end.min(range.end))
            .collect()
    }
}
