//! What stands in the text of live processes, as far as it is known.
//!
//! A program may have a thousand areas, and an exchange of patches changes a few of them. Asking the program about all
//! of them takes longer than the exchange. The launcher therefore remembers what it changed, and sends all changes of an
//! exchange in one command.

use std::sync::Arc;

use membound_wire::{TextEdit, TextMode};
use rustc_hash::FxHashMap;

use crate::area::Area;
use crate::conversation::{Conversation, Failure};
use crate::ledger::ProcessKey;

/// How an area's edits stand in a text. Where neither is known, it is asked for again each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edits {
    /// All that may stand do.
    In,
    /// None does.
    Out,
}

/// What became of an area's edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// All were made.
    All,
    /// None was, since the text was not what they were planned for: most likely it is so already. Another area's edits
    /// may stand in the way as well.
    None,
    /// Some were, or might be the next time.
    Some,
}

/// What became of a change.
#[derive(Debug)]
pub(crate) struct Made {
    key: ProcessKey,
    wanted: Edits,
    areas: Vec<(Arc<Area>, Done)>,
    /// Nothing is left that may be possible a moment later.
    pub(crate) is_final: bool,
}

/// By process and by the inode of each area: how its edits stand, and how often the agent found them so. An agent that
/// left edits out because the text differs may mean that they are made already; [`SURE`] such answers count as knowledge.
#[derive(Debug, Default)]
pub(crate) struct Texts(FxHashMap<ProcessKey, FxHashMap<u64, (Edits, u32)>>);

/// Times that edits must be found as wanted.
const SURE: u32 = 2;

impl Texts {
    /// The text of `key` is another one now, or may have been changed by others.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.0.remove(&key);
    }

    /// Forgets programs that do not run any more.
    pub(crate) fn retain(&mut self, runs: impl Fn(ProcessKey) -> bool) {
        self.0.retain(|key, _| runs(*key));
    }

    fn known(&self, key: ProcessKey, area: &Area) -> Option<Edits> {
        let (edits, times) = *self.0.get(&key)?.get(&area.inode)?;
        (times >= SURE).then_some(edits)
    }

    /// Remembers what came of a change.
    pub(crate) fn note(&mut self, made: Made) {
        if made.areas.is_empty() {
            return;
        }
        let of_process = self.0.entry(made.key).or_default();
        for (area, done) in made.areas {
            let before = of_process.remove(&area.inode);
            let before = before.filter(|(edits, _)| *edits == made.wanted);
            let times = match done {
                Done::All => SURE,
                Done::None => before.map_or(0, |(_, times)| times) + 1,
                Done::Some => continue,
            };
            of_process.insert(area.inode, (made.wanted, times));
        }
    }
}

/// A change of the text of one process, of any number of areas.
#[derive(Debug)]
pub(crate) struct Change {
    key: ProcessKey,
    wanted: Edits,
    areas: Vec<Arc<Area>>,
    /// Edits with the indices of their areas.
    edits: Vec<(usize, TextEdit)>,
}

impl Change {
    /// Has all edits of the areas that are added `wanted` in, or out.
    pub(crate) const fn new(key: ProcessKey, wanted: Edits) -> Self {
        Self {
            key,
            wanted,
            areas: Vec::new(),
            edits: Vec::new(),
        }
    }

    /// Adds an area, unless it stands as wanted.
    pub(crate) fn add(&mut self, texts: &Texts, area: &Arc<Area>) {
        if texts.known(self.key, area) == Some(self.wanted) {
            return;
        }
        let edits = match self.wanted {
            Edits::In => area.all_in(),
            Edits::Out => area.all_out(),
        };
        let index = self.areas.len();
        self.areas.push(Arc::clone(area));
        self.edits
            .extend(edits.into_iter().map(|edit| (index, edit)));
    }

    /// Makes the change.
    pub(crate) fn make(mut self, conversation: &Conversation) -> Result<Made, Failure> {
        self.edits.sort_by_key(|(_, edit)| edit.address);
        // Of two areas that want the same bytes, the first has them.
        let late = match self.wanted {
            Edits::In => in_the_way(&self.edits),
            Edits::Out => Vec::new(),
        };
        self.edits.retain(|(area, _)| !late.contains(area));
        let edits: Vec<TextEdit> = self.edits.iter().map(|(_, edit)| *edit).collect();
        let left_out = conversation.text(&edits, TextMode::Live)?;
        // How many edits each area has, and how many of them were left out.
        let mut counts = vec![(0, 0); self.areas.len()];
        for (area, _) in &self.edits {
            counts[*area].0 += 1;
        }
        for index in left_out.indices() {
            counts[self.edits[index as usize].0].1 += 1;
        }
        let done = |(all, left): (usize, usize)| match left {
            0 if all > 0 => Done::All,
            left if left == all && left_out.is_final() => Done::None,
            _ => Done::Some,
        };
        let areas = self.areas.into_iter().zip(counts).enumerate();
        let areas = areas.map(|(index, (area, counts))| match late.contains(&index) {
            true => (area, Done::Some),
            false => (area, done(counts)),
        });
        Ok(Made {
            key: self.key,
            wanted: self.wanted,
            areas: areas.collect(),
            is_final: left_out.is_final(),
        })
    }
}

/// Areas that are to be left out since their edits, sorted by address, want bytes that those of another area want, which
/// was added before.
fn in_the_way(edits: &[(usize, TextEdit)]) -> Vec<usize> {
    let mut late = Vec::new();
    loop {
        let mut end = (0, 0);
        let kept = edits.iter().filter(|(area, _)| !late.contains(area));
        let crossing = kept.into_iter().find_map(|(area, edit)| {
            let (before, end_before) = end;
            if edit.address < end_before && *area != before {
                return Some(*area.max(&before));
            }
            end = (*area, end_before.max(edit.address + u64::from(edit.group)));
            None
        });
        match crossing {
            Some(area) => late.push(area),
            None => return late,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::edit;

    #[test]
    fn of_two_areas_that_want_the_same_bytes_one_is_left_out() {
        let apart = [(0, edit(0, 5)), (1, edit(5, 5)), (0, edit(10, 7))];
        assert_eq!(in_the_way(&apart), [0_usize; 0]);
        // Those of one area may share bytes.
        let one = [(0, edit(0, 7)), (0, edit(5, 7)), (1, edit(12, 5))];
        assert_eq!(in_the_way(&one), [0_usize; 0]);
        let crossing = [(1, edit(0, 7)), (0, edit(5, 7)), (1, edit(20, 5))];
        assert_eq!(in_the_way(&crossing), [1]);
        // What is left is looked at again.
        let three = [(1, edit(0, 7)), (0, edit(5, 7)), (2, edit(10, 5))];
        assert_eq!(in_the_way(&three), [1, 2]);
    }
}
