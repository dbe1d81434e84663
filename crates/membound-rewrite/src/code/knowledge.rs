//! Facts about a whole image that the decoder of each of its functions needs.

use std::collections::HashSet;
use std::ops::Range;

use iced_x86::Instruction;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::landing::{LandingPad, landing_pads};
use super::noreturn::{self, Callee, NeverReturns};
use super::{Function, rseq, sweep};
use crate::image::Image;

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
    /// Examines every function of an image once.
    #[must_use]
    pub fn gather(image: &Image<'_>, tables: Tables) -> Self {
        let functions = image.functions();
        let sweeps: Vec<sweep::LinearScan> = functions
            .par_iter()
            .map(|function| sweep::sweep(image, function))
            .collect();
        let mut knowledge = Self::nothing(tables);
        knowledge.learn_what_never_returns(image, &sweeps);
        knowledge.learn_pointers(image);
        for sweep in &sweeps {
            knowledge.entries.extend_from_slice(&sweep.entries);
        }
        let jumping: Vec<usize> = (0..functions.len())
            .filter(|&index| sweeps[index].jumps_indirectly)
            .collect();
        drop(sweeps);
        for &address in image.inner_symbols() {
            knowledge.entries.push((address, EntryCertainty::Taken));
        }
        knowledge.learn_landing_pads(image);
        for sequence in rseq::sequences(image) {
            knowledge
                .entries
                .push((sequence.abort, EntryCertainty::Jumped));
            knowledge.untouchable.push(sequence.signature());
            knowledge.untouchable.push(sequence.range);
        }
        knowledge
            .untouchable
            .sort_unstable_by_key(|range| range.start);
        knowledge.sort();
        if tables == Tables::Resolve {
            knowledge.learn_tables(image, &jumping);
        }
        knowledge
    }

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

    fn sort(&mut self) {
        self.entries.sort_unstable();
        // For each address keep the most certain entry, which sorts first.
        self.entries.dedup_by_key(|(address, _)| *address);
    }

    fn learn_what_never_returns(&mut self, image: &Image<'_>, sweeps: &[sweep::LinearScan]) {
        let functions = image.functions();
        let stubs: std::collections::HashMap<u64, u64> = sweeps
            .iter()
            .flat_map(|sweep| sweep.stubs.iter().copied())
            .collect();
        let start = |address: u64| {
            functions
                .binary_search_by(|function| function.range.start.cmp(&address))
                .ok()
        };
        let through = |slot: u64| match image.import_at(slot) {
            Some(name) if noreturn::by_name(name) => Err(NeverReturns),
            // Another module may define the symbol differently, so its definition here proves nothing.
            Some(_) => Ok(None),
            None => Ok(image.pointer_at(slot).and_then(start)),
        };
        let leads_to = |callee| match callee {
            Callee::Direct(target) => match stubs.get(&target) {
                Some(&slot) => through(slot),
                None => Ok(start(target)),
            },
            Callee::Slot(slot) => through(slot),
        };
        let mut known: Vec<bool> = functions
            .iter()
            .map(|function| {
                let name = function.name.as_deref().unwrap_or_default();
                noreturn::by_name(name.as_bytes())
            })
            .collect();
        let exits: Vec<_> = sweeps.iter().map(|sweep| sweep.exits.clone()).collect();
        noreturn::derive(&exits, &mut known, leads_to);
        let never = |callee| match leads_to(callee) {
            Err(NeverReturns) => true,
            Ok(Some(function)) => known[function],
            Ok(None) => false,
        };
        let starts = functions.iter().map(|function| function.range.start);
        self.never_returns = starts
            .chain(stubs.keys().copied())
            .filter(|&address| never(Callee::Direct(address)))
            .collect();
        self.never_returning_slots = sweeps
            .iter()
            .flat_map(|sweep| sweep.slots.iter().copied())
            .filter(|&slot| never(Callee::Slot(slot)))
            .collect();
    }

    /// Collects addresses inside functions that occur in data. In position-dependent code any word may be an
    /// address.
    fn learn_pointers(&mut self, image: &Image<'_>) {
        let mut take = |at: u64, value: u64| {
            if image.is_text(value) && !image.is_function_start(value) {
                self.code_pointers.push(CodePointer { value, at });
            }
        };
        for &(at, value) in image.relative_relocations() {
            take(at, value);
        }
        if image.position_dependent() {
            for (start, bytes) in image.data_segments() {
                // Only aligned words are examined.
                let skip = usize::try_from(start.wrapping_neg() % 8).unwrap_or(0);
                let words = bytes.get(skip..).unwrap_or_default().chunks_exact(8);
                for (index, word) in words.enumerate() {
                    if let Ok(word) = word.try_into() {
                        let at = start + (skip + 8 * index) as u64;
                        take(at, u64::from_le_bytes(word));
                    }
                }
            }
        }
        self.code_pointers.sort_unstable();
        self.code_pointers.dedup();
        let certainty = if image.position_dependent() {
            EntryCertainty::Guessed
        } else {
            EntryCertainty::Taken
        };
        self.entries.extend(
            self.code_pointers
                .iter()
                .map(|pointer| (pointer.value, certainty)),
        );
    }

    fn learn_landing_pads(&mut self, image: &Image<'_>) {
        self.landing_pads = image
            .functions()
            .par_iter()
            .flat_map_iter(|function| landing_pads(image, function.range.clone()))
            .collect();
        self.landing_pads.sort_unstable();
        self.entries.extend(
            self.landing_pads
                .iter()
                .map(|pad| (pad.pad, EntryCertainty::Jumped)),
        );
    }

    /// Reads all jump tables: those of one function may lead into another (its cold part), and a table ends
    /// where another function's table begins.
    fn learn_tables(&mut self, image: &Image<'_>, jumping: &[usize]) {
        let found: Vec<FoundTables> = jumping
            .par_iter()
            .map(|&index| Function::tables(image, self, index))
            .collect();
        for tables in found {
            let outside = tables.outside.into_iter();
            self.entries
                .extend(outside.map(|target| (target, EntryCertainty::Jumped)));
            self.tables_at.extend(tables.starts);
        }
        self.tables_at.sort_unstable();
        self.tables_at.dedup();
        self.sort();
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
