//! Removes some sites of an area from the text while the others stay installed.

use std::collections::{BTreeMap, BTreeSet};

use membound_rewrite::patch::Plan;
use membound_wire::{TextEdit, TextMode};

use super::groups::clusters;
use super::{Area, NotInstalled};
use crate::conversation::Conversation;

impl Area {
    /// Removes the sites at the addresses `out` (in the file) from the text, and installs all others that
    /// are not barred; returns the addresses of those that are removed.
    ///
    /// A site stays installed if it shares bytes, directly or through others, with one that is not to be
    /// removed: of such edits either all are installed or none, so that each finds the text that it was
    /// planned for. Edits that are already as wanted are skipped, and no thread is stopped for them.
    pub(crate) fn hold_out(
        &self,
        conversation: &Conversation,
        plan: &Plan,
        out: &BTreeSet<u64>,
        mode: TextMode,
    ) -> Result<Vec<u64>, NotInstalled> {
        let placed = self.place(plan)?;
        let addresses: BTreeMap<u32, u64> = plan
            .sites()
            .filter_map(|site| Some((site.number.ok()?, site.address)))
            .collect();
        let sites_of = |index: usize| {
            let numbers = placed.sites.get(index).cloned().unwrap_or_default();
            numbers.filter_map(|number| addresses.get(&number).copied())
        };
        let mut edits: Vec<TextEdit> = Vec::new();
        let mut gone = Vec::new();
        let standing = |index: &usize| self.was_led(&placed.edits[*index]);
        let withdrawn = self.withdrawn().clone();
        for cluster in clusters(&placed.edits) {
            let members: Vec<usize> = cluster.filter(standing).collect();
            let goes = all_go(members.iter().map(|index| sites_of(*index)), out);
            if goes {
                gone.extend(members.iter().flat_map(|index| sites_of(*index)));
            }
            edits.extend(members.iter().filter_map(|index| match goes {
                true => self.reverse(&placed.edits, *index, &standing),
                false => {
                    Some(placed.edits[*index]).filter(|edit| !withdrawn.contains_key(&edit.address))
                }
            }));
        }
        conversation.text(&edits, mode)?;
        Ok(gone)
    }
}

/// True if edits with these sites may be removed together: each has some, and all of them are in `out`.
fn all_go(edits: impl Iterator<Item = impl Iterator<Item = u64>>, out: &BTreeSet<u64>) -> bool {
    edits
        .map(|mut sites| {
            let first = sites.next();
            first.is_some_and(|first| out.contains(&first)) && sites.all(|site| out.contains(&site))
        })
        .reduce(|all, goes| all && goes)
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_bytes_with_one_that_stays_stays_too() {
        let out = BTreeSet::from([1, 2, 3]);
        let go = |edits: &[&[u64]]| all_go(edits.iter().map(|sites| sites.iter().copied()), &out);
        assert!(go(&[&[1]]));
        assert!(go(&[&[1, 2], &[3]]));
        assert!(!go(&[&[1, 4]]));
        assert!(!go(&[&[1], &[4]]));
        // An edit without sites is not removed with sites.
        assert!(!go(&[&[1], &[]]));
        assert!(!go(&[]));
    }
}
