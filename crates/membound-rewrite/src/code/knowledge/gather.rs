//! Examines every function of an image for the facts that its functions need of each other.

use std::ops::Range;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::references::References;
use super::{CodePointer, EntryCertainty, FoundTables, ImageFacts, Tables};
use crate::code::landing::landing_pads;
use crate::code::noreturn::{self, Callee, NeverReturns};
use crate::code::{Function, rseq, sweep};
use crate::image::Image;

/// A function's index, and the pass over it.
type Swept = (usize, sweep::LinearScan);

/// What is known of an image before any of its functions is examined, and where its text refers to the insides of
/// functions.
#[derive(Debug)]
pub(crate) struct Outline {
    facts: ImageFacts,
    references: References,
}

impl Outline {
    /// Searches all text once, without decoding it: takes a fiftieth of the time of [`ImageFacts::gather`].
    #[must_use]
    pub(crate) fn of(image: &Image<'_>) -> Self {
        let mut facts = ImageFacts::before_functions(image);
        facts.sort();
        Self {
            facts,
            references: References::of(image),
        }
    }
}

impl ImageFacts {
    /// Examines every function of an image once.
    #[must_use]
    pub fn gather(image: &Image<'_>, tables: Tables) -> Self {
        let sweep = |(index, function)| (index, sweep::sweep(image, function));
        let sweeps: Vec<Swept> = image
            .functions()
            .par_iter()
            .enumerate()
            .map(sweep)
            .collect();
        let mut knowledge = Self::before_functions(image);
        knowledge.learn(image, tables, &sweeps);
        knowledge
    }

    /// The facts that are needed to decode the functions with these indices in [`Image::functions`], sorted, as
    /// after [`Self::gather`]. Examines these functions, and those with a reference to an address inside them.
    ///
    /// Jump tables are read in the examined functions only. A function is missed if its table leads into the cold
    /// part of another function, and neither of them jumps to the other.
    #[must_use]
    pub(crate) fn gather_for(
        image: &Image<'_>,
        outline: &Outline,
        tables: Tables,
        selected: &[usize],
    ) -> Self {
        let functions = image.functions();
        let is_chosen = |index: &usize| selected.binary_search(index).is_ok();
        let is_selected =
            |address: u64| image.function_at(address).is_some_and(|it| is_chosen(&it));
        let found = outline.references.to(image, selected);
        let mut examined = FxHashSet::default();
        let mut sweeps: Vec<Swept> = Vec::new();
        let mut next: Vec<usize> = selected.iter().copied().chain(found.from).collect();
        while !next.is_empty() {
            next.retain(|index| examined.insert(*index));
            let sweep = |index: &usize| (*index, sweep::sweep(image, &functions[*index]));
            let new: Vec<Swept> = next.par_iter().map(sweep).collect();
            next.clear();
            for (index, sweep) in new {
                let leads_here = || sweep.entries.iter().any(|(at, _)| is_selected(*at));
                // Whether the last function of a chain of jumps and calls returns decides what the others do.
                if is_chosen(&index) || !sweep.exits.may_return {
                    let targets = sweep.exits.targets();
                    next.extend(targets.filter_map(|target| image.function_at(target)));
                } else if !leads_here() {
                    continue;
                }
                sweeps.push((index, sweep));
            }
        }
        sweeps.sort_unstable_by_key(|(index, _)| *index);
        let examined = sweeps.iter().map(|(index, _)| &functions[*index].range);
        let mut knowledge = outline.facts.of_functions(examined);
        let elsewhere = found.elsewhere.into_iter();
        knowledge
            .entries
            .extend(elsewhere.map(|address| (address, EntryCertainty::Guessed)));
        knowledge.learn(image, tables, &sweeps);
        knowledge
    }

    /// The part of these facts that decoding functions with these ranges, ascending, needs.
    fn of_functions<'a>(&self, ranges: impl Iterator<Item = &'a Range<u64>>) -> Self {
        let mut part = Self {
            never_returns: self.never_returns.clone(),
            untouchable: self.untouchable.clone(),
            ..Self::nothing(self.tables)
        };
        for range in ranges {
            part.entries.extend_from_slice(self.entries(range));
            part.code_pointers
                .extend_from_slice(self.code_pointers(range));
            let pads = &self.landing_pads;
            let first = pads.partition_point(|pad| pad.end <= range.start);
            let end = pads.partition_point(|pad| pad.start < range.end);
            let of_function = pads.get(first..end).unwrap_or_default();
            part.landing_pads.extend_from_slice(of_function);
        }
        part
    }

    /// What symbols, relocations and tables show.
    fn before_functions(image: &Image<'_>) -> Self {
        let mut knowledge = Self::nothing(Tables::Ignore);
        let named = image.functions().iter().filter(|function| {
            let name = function.name.as_deref().unwrap_or_default();
            noreturn::by_name(name.as_bytes())
        });
        knowledge.never_returns = named.map(|function| function.range.start).collect();
        knowledge.learn_pointers(image);
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
        knowledge
    }

    /// Adds what the passes over some functions show, sorted by their indices.
    fn learn(&mut self, image: &Image<'_>, tables: Tables, sweeps: &[Swept]) {
        self.tables = tables;
        self.learn_what_never_returns(image, sweeps);
        for (_, sweep) in sweeps {
            self.entries.extend_from_slice(&sweep.entries);
        }
        self.sort();
        if tables == Tables::Resolve {
            let jumping = sweeps.iter().filter(|(_, sweep)| sweep.jumps_indirectly);
            let jumping: Vec<usize> = jumping.map(|(index, _)| *index).collect();
            self.learn_tables(image, &jumping);
        }
    }

    fn sort(&mut self) {
        self.entries.sort_unstable();
        // For each address keep the most certain entry, which sorts first.
        self.entries.dedup_by_key(|(address, _)| *address);
    }

    fn learn_what_never_returns(&mut self, image: &Image<'_>, sweeps: &[Swept]) {
        let functions = image.functions();
        let stubs: FxHashMap<u64, u64> = sweeps
            .iter()
            .flat_map(|(_, sweep)| sweep.stubs.iter().copied())
            .collect();
        let is_named = |index: usize| self.never_returns.contains(&functions[index].range.start);
        // Of the functions that were not examined only names are known.
        let start = |address: u64| {
            let Ok(index) =
                functions.binary_search_by(|function| function.range.start.cmp(&address))
            else {
                return Ok(None);
            };
            match sweeps.binary_search_by_key(&index, |(index, _)| *index) {
                Ok(position) => Ok(Some(position)),
                Err(_) if is_named(index) => Err(NeverReturns),
                Err(_) => Ok(None),
            }
        };
        let through = |slot: u64| match image.import_at(slot) {
            Some(name) if noreturn::by_name(name) => Err(NeverReturns),
            // Another module may define the symbol differently, so its definition here proves nothing.
            Some(_) => Ok(None),
            None => image.pointer_at(slot).map_or(Ok(None), start),
        };
        let leads_to = |callee| match callee {
            Callee::Direct(target) => match stubs.get(&target) {
                Some(&slot) => through(slot),
                None => start(target),
            },
            Callee::Slot(slot) => through(slot),
        };
        let mut never_returns: Vec<bool> =
            sweeps.iter().map(|(index, _)| is_named(*index)).collect();
        let exits: Vec<_> = sweeps.iter().map(|(_, it)| it.exits.clone()).collect();
        noreturn::derive(&exits, &mut never_returns, leads_to);
        let never = |callee| match leads_to(callee) {
            Err(NeverReturns) => true,
            Ok(Some(position)) => never_returns[position],
            Ok(None) => false,
        };
        let starts = sweeps
            .iter()
            .map(|(index, _)| functions[*index].range.start);
        let never_returns: Vec<u64> = starts
            .chain(stubs.keys().copied())
            .filter(|&address| never(Callee::Direct(address)))
            .collect();
        self.never_returning_slots = sweeps
            .iter()
            .flat_map(|(_, sweep)| sweep.slots.iter().copied())
            .filter(|&slot| never(Callee::Slot(slot)))
            .collect();
        self.never_returns.extend(never_returns);
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
