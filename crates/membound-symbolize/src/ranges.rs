//! Which of many overlapping things holds an address.

use std::ops::Range;

/// A thing with addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item<T> {
    pub(crate) start: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    pub(crate) what: T,
}

/// Things by the addresses at which they are on top.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T> {
    items: Vec<Item<T>>,
    /// First address of each piece, and whose it is; `None`: nobody's. Sorted.
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
    /// Lays things over each other: of those that hold an address, the one that begins last
    /// is on top, and of those that begin there too the first in `items`.
    pub(crate) fn new(mut items: Vec<Item<T>>) -> Self {
        items.retain(|item| item.start < item.end);
        // Positions are kept in 32 bits; no file has as many symbols.
        items.truncate(u32::MAX as usize);
        items.sort_by_key(|item| item.start);
        items.dedup_by_key(|item| item.start);
        let mut ranges = Self {
            items,
            pieces: Vec::new(),
        };
        // Those that began and have not ended, the innermost last.
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

    /// What is on top at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Item<T>> {
        let behind = self.pieces.partition_point(|(start, _)| *start <= address);
        let (_, item) = self.pieces.get(behind.checked_sub(1)?)?;
        self.items.get((*item)? as usize)
    }

    /// Where the next thing behind `address` begins.
    pub(crate) fn next(&self, address: u64) -> Option<u64> {
        let behind = self.items.partition_point(|item| item.start <= address);
        self.items.get(behind).map(|item| item.start)
    }

    /// All things, by their starts.
    pub(crate) fn into_items(self) -> Vec<Item<T>> {
        self.items
    }

    /// Ends those that end no later than `until`.
    fn close(&mut self, open: &mut Vec<u32>, until: u64) {
        while let Some(last) = open.last() {
            let end = self.items[*last as usize].end;
            if end > until {
                break;
            }
            open.pop();
            // What ended while it was covered does not come back.
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
/// `address`, if it holds it.
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
