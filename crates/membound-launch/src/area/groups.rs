//! Groups of instructions that edits displace, and edits whose groups share bytes.

use std::ops::Range;

use membound_wire::TextEdit;

/// First address and end of the group that `edit` displaces.
pub(super) fn group(edit: &TextEdit) -> (u64, u64) {
    (edit.address, edit.address + u64::from(edit.group))
}

/// Groups of edits, sorted by address, that share bytes directly or through others: ranges of their
/// indices.
pub(super) fn clusters(edits: &[TextEdit]) -> impl Iterator<Item = Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let begin = next;
        let (_, mut end) = group(edits.get(begin)?);
        next += 1;
        while let Some(edit) = edits.get(next).filter(|edit| edit.address < end) {
            end = end.max(group(edit).1);
            next += 1;
        }
        Some(begin..next)
    })
}

#[cfg(test)]
mod tests {
    use super::super::edit;
    use super::*;

    #[test]
    fn edits_that_share_bytes_directly_or_by_others_are_together() {
        let edits = [
            edit(0, 7),
            edit(7, 5),
            edit(10, 9),
            edit(15, 8),
            edit(40, 5),
        ];
        let found: Vec<Range<usize>> = clusters(&edits).collect();
        assert_eq!(found, [0..1, 1..4, 4..5]);
        assert_eq!(clusters(&[]).count(), 0);
    }
}
