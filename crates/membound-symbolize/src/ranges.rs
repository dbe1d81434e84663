//! Finds which of many overlapping ranges contains an address.

use std::ops::Range;

/// A range of addresses with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<T> {
    pub(crate) start: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    pub(crate) what: T,
}

/// Overlapping ranges, flattened to the topmost range of each address.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T> {
    items: Vec<Item<T>>,
    /// First address of each piece, and the index of its topmost item; `None`: no item. Sorted.
    pieces: Vec<(u64, Option<u32>)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            pieces: Vec::new(),
        }
    }
}

impl<T> Ranges<T> {
    /// Flattens overlapping items: of the items that contain an address, the one that begins last is on top;
    /// of items with the same start, only the first in `items` is kept.
    pub(crate) fn new(mut items: Vec<Item<T>>) -> Self {
        items.retain(|item| item.start < item.end);
        // Indices have 32 bits; no file has as many symbols.
        items.truncate(u32::MAX as usize);
        items.sort_by_key(|item| item.start);
        items.dedup_by_key(|item| item.start);
        let mut ranges = Self {
            items,
            pieces: Vec::new(),
        };
        // Items that contain the current address, the innermost last.
        let mut open: Vec<u32> = Vec::new();
        for index in (0..).take(ranges.items.len()) {
            let start = ranges.items[index as usize].start;
            ranges.close(&mut open, start);
            ranges.push(start, Some(index));
            open.push(index);
        }
        ranges.close(&mut open, u64::MAX);
        ranges
    }

    /// The topmost item at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Item<T>> {
        let behind = self.pieces.partition_point(|(start, _)| *start <= address);
        let (_, item) = self.pieces.get(behind.checked_sub(1)?)?;
        self.items.get((*item)? as usize)
    }

    /// First address of the next item that begins after `address`.
    pub(crate) fn next(&self, address: u64) -> Option<u64> {
        let behind = self.items.partition_point(|item| item.start <= address);
        self.items.get(behind).map(|item| item.start)
    }

    /// All items, sorted by their starts.
    pub(crate) fn into_items(self) -> Vec<Item<T>> {
        self.items
    }

    /// Closes items that end no later than `until`.
    fn close(&mut self, open: &mut Vec<u32>, until: u64) {
        while let Some(last) = open.last() {
            let end = self.items[*last as usize].end;
            if end > until {
                break;
            }
            open.pop();
            // Items that ended while they were covered do not continue.
            while open
                .last()
                .is_some_and(|below| self.items[*below as usize].end <= end)
            {
                open.pop();
            }
            self.push(end, open.last().copied());
        }
    }

    fn push(&mut self, start: u64, item: Option<u32>) {
        match self.pieces.last_mut() {
            Some(last) if last.0 == start => last.1 = item,
            _ => self.pieces.push((start, item)),
        }
    }
}

/// The last of `ranges`, which are sorted by their starts, that begins at or before
/// `address`, if it contains it.
pub(crate) fn holding(ranges: &[Range<u64>], address: u64) -> Option<&Range<u64>> {
    let behind = ranges.partition_point(|range| range.start <= address);
    ranges
        .get(behind.checked_sub(1)?)
        .filter(|range| range.contains(&address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_one_that_begins_last_is_on_top(
            spans in prop::collection::vec((0_u64..60, 1_u64..20), 0..30)
        ) {
            let items: Vec<Item<usize>> = spans
                .iter()
                .enumerate()
                .map(|(what, (start, size))| Item { start: *start, end: start + size, what })
                .collect();
            let ranges = Ranges::new(items.clone());
            for address in 0..90 {
                // Of several that begin together only the first is kept.
                let expected = items
                    .iter()
                    .filter(|item| items.iter().find(|first| first.start == item.start) == Some(item))
                    .filter(|item| (item.start..item.end).contains(&address))
                    .max_by_key(|item| item.start);
                prop_assert_eq!(ranges.find(address), expected, "at {}", address);
            }
        }
    }
}
