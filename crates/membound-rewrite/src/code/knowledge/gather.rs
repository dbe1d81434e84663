//! Examines every function of an image for the facts that its functions need of each other.

use rayon::prelude::*;

use super::references;
use super::{CodePointer, EntryCertainty, FoundTables, ImageFacts, Tables};
use crate::code::landing::landing_pads;
use crate::code::noreturn::{self, Callee, NeverReturns};
use crate::code::{Function, rseq, sweep};
use crate::image::Image;

impl ImageFacts {
    /// Examines every function of an image once.
    #[must_use]
    pub fn gather(image: &Image<'_>, tables: Tables) -> Self {
        let sweeps = image
            .functions()
            .par_iter()
            .map(|function| sweep::sweep(image, function))
            .collect();
        Self::of_sweeps(image, tables, sweeps)
    }

    /// Examines what the functions with these indices in [`Image::functions`], sorted, need to be decoded as
    /// after [`Self::gather`].
    ///
    /// All text is searched for references to these functions, which takes a hundredth of the time that it
    /// takes to decode it. Jump tables are read only in functions that refer to these or that these jump to,
    /// so the function whose table leads into the cold part of another, without any jump of the one to the
    /// other, is missed.
    #[must_use]
    pub(crate) fn gather_for(image: &Image<'_>, tables: Tables, selected: &[usize]) -> Self {
        let functions = image.functions();
        let sweep = |index: &usize| (*index, sweep::sweep(image, &functions[*index]));
        let found = references::to(image, selected);
        let is_selected = |address: u64| {
            let index = image.function_at(address);
            index.is_some_and(|index| selected.binary_search(&index).is_ok())
        };
        let mut sweeps = vec![sweep::LinearScan::unknown(); functions.len()];
        let mut is_examined = vec![false; functions.len()];
        let mut next = selected.to_vec();
        next.extend(found.from);
        while !next.is_empty() {
            next.sort_unstable();
            next.dedup();
            next.retain(|index| !std::mem::replace(&mut is_examined[*index], true));
            let new: Vec<(usize, sweep::LinearScan)> = next.par_iter().map(sweep).collect();
            next.clear();
            for (index, sweep) in new {
                let is_chosen = selected.binary_search(&index).is_ok();
                let leads_here = || sweep.entries.iter().any(|(at, _)| is_selected(*at));
                // Whether the last function of a chain of jumps and calls returns decides what the others do.
                if is_chosen || !sweep.exits.may_return {
                    let targets = sweep.exits.targets();
                    next.extend(targets.filter_map(|target| image.function_at(target)));
                } else if !leads_here() {
                    continue;
                }
                sweeps[index] = sweep;
            }
        }
        let mut knowledge = Self::of_sweeps(image, tables, sweeps);
        let entries = found.elsewhere.into_iter();
        knowledge
            .entries
            .extend(entries.map(|address| (address, EntryCertainty::Guessed)));
        knowledge.sort();
        knowledge
    }

    fn of_sweeps(image: &Image<'_>, tables: Tables, sweeps: Vec<sweep::LinearScan>) -> Self {
        let functions = image.functions();
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
        let mut never_returns: Vec<bool> = functions
            .iter()
            .map(|function| {
                let name = function.name.as_deref().unwrap_or_default();
                noreturn::by_name(name.as_bytes())
            })
            .collect();
        let exits: Vec<_> = sweeps.iter().map(|sweep| sweep.exits.clone()).collect();
        noreturn::derive(&exits, &mut never_returns, leads_to);
        let never = |callee| match leads_to(callee) {
            Err(NeverReturns) => true,
            Ok(Some(function)) => never_returns[function],
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
}
