//! Remembers which edits are in the text of live processes.
//!
//! A program may have a thousand areas, and an exchange of patches changes a few of them. Asking the
//! program about all of them would take longer than the exchange. So the launcher remembers its changes,
//! and sends all changes of an exchange in one command.

use std::sync::Arc;

use membound_wire::{TextEdit, TextMode};
use rustc_hash::FxHashMap;

use crate::area::Area;
use crate::conversation::{Conversation, Failure};
use crate::process_key::ProcessKey;

/// State of an area's edits in a text. An unknown state is requested again each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edits {
    /// All edits that may be installed are.
    In,
    /// None is installed.
    Out,
}

/// Result of an area's edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// All were made.
    All,
    /// None was made, since the text was not as planned: most likely they are made already. Another area's
    /// edits may also be in the way.
    None,
    /// Some were made, or may be possible the next time.
    Some,
}

/// Result of a change.
#[derive(Debug)]
pub(crate) struct Made {
    key: ProcessKey,
    wanted: Edits,
    areas: Vec<(Arc<Area>, Done)>,
    /// True if a retry cannot achieve more.
    pub(crate) is_final: bool,
}

/// By process and by the inode of each area: the state of its edits, and how often the agent found them so.
/// If an agent leaves edits out because the text differs, they may have been made already; after [`SURE`]
/// such answers that is assumed.
#[derive(Debug, Default)]
pub(crate) struct Texts(FxHashMap<ProcessKey, FxHashMap<u64, (Edits, u32)>>);

/// Times that edits must be found in the wanted state.
const SURE: u32 = 2;

impl Texts {
    /// Forgets the text of `key`: it is another program's, or may have been changed by one.
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

    /// Records that all edits of `area` that may be installed were when the area was made.
    pub(crate) fn note_installed(&mut self, key: ProcessKey, area: &Area) {
        let of_process = self.0.entry(key).or_default();
        of_process.insert(area.inode, (Edits::In, SURE));
    }

    /// Records the result of a change.
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

/// A change of the text of one process, in any number of areas.
#[derive(Debug)]
pub(crate) struct Change {
    key: ProcessKey,
    wanted: Edits,
    areas: Vec<Arc<Area>>,
    /// Edits with the indices of their areas.
    edits: Vec<(usize, TextEdit)>,
}

impl Change {
    /// A change after which all edits of the added areas are in the state `wanted`.
    pub(crate) const fn new(key: ProcessKey, wanted: Edits) -> Self {
        Self {
            key,
            wanted,
            areas: Vec::new(),
            edits: Vec::new(),
        }
    }

    /// Adds an area, unless its edits are in the wanted state.
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
        // If two areas want the same bytes, the first one gets them.
        let late = match self.wanted {
            Edits::In => in_the_way(&self.edits),
            Edits::Out => Vec::new(),
        };
        self.edits.retain(|(area, _)| !late.contains(area));
        let edits: Vec<TextEdit> = self.edits.iter().map(|(_, edit)| *edit).collect();
        let left_out = conversation.text(&edits, TextMode::Live)?;
        // Number of edits of each area, and how many of them were left out.
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

/// Areas to leave out: their edits want bytes that edits of an area added earlier want. `edits` is sorted
/// by address.
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
        // Edits of one area may share bytes.
        let one = [(0, edit(0, 7)), (0, edit(5, 7)), (1, edit(12, 5))];
        assert_eq!(in_the_way(&one), [0_usize; 0]);
        let crossing = [(1, edit(0, 7)), (0, edit(5, 7)), (1, edit(20, 5))];
        assert_eq!(in_the_way(&crossing), [1]);
        // The remaining areas are checked again.
        let three = [(1, edit(0, 7)), (0, edit(5, 7)), (2, edit(10, 5))];
        assert_eq!(in_the_way(&three), [1, 2]);
    }
}
