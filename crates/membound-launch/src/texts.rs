//! What stands in the text of live processes, as far as it is known.
//!
//! A program may have had a thousand areas, of which one exchange concerns a few. To ask it about each of them takes it
//! longer than the exchange does, so what was done is remembered, and all that is to be changed is changed at once.

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

/// What is known of areas after a change.
pub(crate) type Known = Vec<(Arc<Area>, Option<Edits>)>;

/// By process, and by the inode of each area.
#[derive(Debug, Default)]
pub(crate) struct Texts(FxHashMap<ProcessKey, FxHashMap<u64, Edits>>);

impl Texts {
    /// The text of `key` is another one now, or nobody's.
    pub(crate) fn forget(&mut self, key: ProcessKey) {
        self.0.remove(&key);
    }

    fn known(&self, key: ProcessKey, area: &Area) -> Option<Edits> {
        self.0.get(&key)?.get(&area.inode).copied()
    }

    /// Remembers what came of a change in `key`.
    pub(crate) fn note(&mut self, key: ProcessKey, areas: Known) {
        let of_process = self.0.entry(key).or_default();
        for (area, edits) in areas {
            match edits {
                Some(edits) => of_process.insert(area.inode, edits),
                None => of_process.remove(&area.inode),
            };
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

    /// Makes the change, and returns what is known then of each area.
    pub(crate) fn make(mut self, conversation: &Conversation) -> Result<Known, Failure> {
        self.edits.sort_by_key(|(_, edit)| edit.address);
        // Of two areas that want the same bytes, the first has them.
        let late = match self.wanted {
            Edits::In => in_the_way(&self.edits),
            Edits::Out => Vec::new(),
        };
        self.edits.retain(|(area, _)| !late.contains(area));
        let edits: Vec<TextEdit> = self.edits.iter().map(|(_, edit)| *edit).collect();
        let left_out = conversation.text(&edits, TextMode::Live)?;
        // What was not as planned is so already, or will be no other the next time.
        let known = |area: &usize| left_out.is_final && !late.contains(area);
        let areas = self.areas.into_iter().enumerate();
        Ok(areas
            .map(|(index, area)| (area, known(&index).then_some(self.wanted)))
            .collect())
    }

    pub(crate) const fn key(&self) -> ProcessKey {
        self.key
    }
}

/// Areas whose edits, sorted by address, want bytes that one before them wants.
fn in_the_way(edits: &[(usize, TextEdit)]) -> Vec<usize> {
    let mut end = (0, 0);
    let mut late = Vec::new();
    for (area, edit) in edits {
        if late.contains(area) {
            continue;
        }
        if edit.address < end.1 && *area != end.0 {
            late.push(*area.max(&end.0));
            continue;
        }
        end = (*area, end.1.max(edit.address + u64::from(edit.group)));
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(address: u64, group: u16) -> TextEdit {
        TextEdit {
            address,
            target: 0,
            fingerprint: 0,
            group,
            length: 5,
            starts: 1,
            old: [0; 8],
            new: [0; 8],
        }
    }

    #[test]
    fn of_two_areas_that_want_the_same_bytes_one_is_left_out() {
        let apart = [(0, edit(0, 5)), (1, edit(5, 5)), (0, edit(10, 7))];
        assert_eq!(in_the_way(&apart), [0_usize; 0]);
        // Those of one area may share bytes.
        let one = [(0, edit(0, 7)), (0, edit(5, 7)), (1, edit(12, 5))];
        assert_eq!(in_the_way(&one), [0_usize; 0]);
        let crossing = [(1, edit(0, 7)), (0, edit(5, 7)), (1, edit(20, 5))];
        assert_eq!(in_the_way(&crossing), [1]);
    }
}
