//! The orders in which the patterns visit lines, as offsets in bytes.
//!
//! An order visits no line twice and, except for patterns inside a page, no page twice, so that no
//! earlier visit can have fetched what it visits. It is walked once from its beginning after the
//! caches were emptied.

use std::ops::Range;

use membound_types::PrefetchPattern;

use crate::chain::shuffle;
use crate::random::hashed_below;

const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
const LINES_PER_PAGE: u64 = PAGE_BYTES / LINE_BYTES;
/// Bytes that a random order completes before it goes on: the TLB misses of a huge page are then
/// one in hundreds of loads, as they are for the patterns.
pub(super) const GROUP_BYTES: u64 = 2 << 20;

/// What is walked: a pattern, or one of the two chases with which a pattern's time is compared
/// besides the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// The pattern itself.
    Pattern(PrefetchPattern),
    /// The array of [`PrefetchPattern::PointerArray`] without the lines to which it points.
    ArrayAlone,
    /// [`PrefetchPattern::NextPage`] with the first line of another page each time.
    OtherPage,
}

/// Page whose first line is visited after the end of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageAfter {
    NextPage,
    OtherPage,
}

/// Memory that orders may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Bytes of the lines, from offset 0 on; whole groups.
    pub(super) area: u64,
    /// Bytes of the array of pointers, which follows the area.
    pub(super) array: u64,
    /// Maximum number of loads of an order.
    pub(super) loads: u64,
}

impl Field {
    /// Lines at the end of a page that are walked before the first line of the next: enough to show
    /// a prefetcher where the walk goes, few enough that the one load that differs is a good part
    /// of the time.
    const TAIL_LINES: u64 = 8;
    /// Loads of [`PrefetchPattern::NextPage`] for one first line of a page.
    pub(super) const LOADS_PER_PAGE: u64 = Self::TAIL_LINES + 1;

    /// The offsets of a walk in bytes; random choices depend on `seed`.
    pub(super) fn order(&self, walk: Walk, seed: u64) -> Vec<u64> {
        match walk {
            Walk::Pattern(pattern) => self.pattern(pattern, seed),
            Walk::ArrayAlone => self.array(self.pages()).collect(),
            Walk::OtherPage => self.page_ends(seed, PageAfter::OtherPage),
        }
    }

    fn pattern(&self, pattern: PrefetchPattern, seed: u64) -> Vec<u64> {
        match pattern {
            PrefetchPattern::Forward { stride_bytes } => self.forward(stride_bytes),
            PrefetchPattern::Backward { stride_bytes } => {
                let mut order = self.forward(stride_bytes);
                order.reverse();
                order
            }
            PrefetchPattern::Interleaved { streams } => self.interleaved(u64::from(streams)),
            PrefetchPattern::AdjacentLine => self
                .random(seed)
                .into_iter()
                .flat_map(|offset| [offset, offset ^ LINE_BYTES])
                .collect(),
            PrefetchPattern::PageRandom => self.page_random(seed),
            PrefetchPattern::PointerArray => self
                .array(self.pages())
                .zip(self.random(seed))
                .flat_map(|(slot, line)| [slot, line])
                .collect(),
            PrefetchPattern::NextPage => self.page_ends(seed, PageAfter::NextPage),
            PrefetchPattern::Random => self.random(seed),
        }
    }

    fn pages(&self) -> u64 {
        self.area / PAGE_BYTES
    }

    fn forward(&self, stride: u64) -> Vec<u64> {
        let stride = stride.max(LINE_BYTES);
        (0..self.loads.min(self.area / stride))
            .map(|step| step * stride)
            .collect()
    }

    /// Streams are far apart and begin at different lines of their pages, so that they do
    /// not compete for the same sets.
    fn interleaved(&self, streams: u64) -> Vec<u64> {
        let streams = streams.max(1);
        let apart = self.area / streams / PAGE_BYTES * PAGE_BYTES;
        let shift = |stream: u64| stream * 5 % LINES_PER_PAGE * LINE_BYTES;
        let each = (self.loads / streams).min((apart - PAGE_BYTES) / LINE_BYTES);
        (0..each)
            .flat_map(|step| {
                (0..streams).map(move |stream| stream * apart + shift(stream) + step * LINE_BYTES)
            })
            .collect()
    }

    /// Pages in random order, group by group, groups in random order.
    fn random_pages(&self, seed: u64) -> Vec<u64> {
        let mut groups: Vec<u64> = (0..self.area / GROUP_BYTES).collect();
        shuffle(&mut groups, seed);
        let per_group = GROUP_BYTES / PAGE_BYTES;
        groups
            .into_iter()
            .flat_map(|group| {
                let mut pages: Vec<u64> = (group * per_group..(group + 1) * per_group).collect();
                shuffle(&mut pages, seed ^ group << 16);
                pages
            })
            .collect()
    }

    /// One random line on each page, pages as in [`Field::random_pages`].
    fn random(&self, seed: u64) -> Vec<u64> {
        let mut order: Vec<u64> = self
            .random_pages(seed)
            .into_iter()
            .map(|page| page * PAGE_BYTES + hashed_below(seed, page, LINES_PER_PAGE) * LINE_BYTES)
            .collect();
        order.truncate(self.loads as usize);
        order
    }

    fn page_random(&self, seed: u64) -> Vec<u64> {
        let pages = (self.loads / LINES_PER_PAGE) as usize;
        self.random_pages(seed)
            .into_iter()
            .take(pages)
            .flat_map(|page| {
                let mut lines: Vec<u64> = (0..LINES_PER_PAGE)
                    .map(|line| page * PAGE_BYTES + line * LINE_BYTES)
                    .collect();
                shuffle(&mut lines, seed ^ page);
                lines
            })
            .collect()
    }

    /// The last few lines of a random page, then the first line of the page `beyond`, and so on. Of
    /// eight pages the first is the one that ends, the second is the next page, and one of the last
    /// five the other: near enough that its translation lies in the same line of the page table,
    /// and not predictable.
    fn page_ends(&self, seed: u64, beyond: PageAfter) -> Vec<u64> {
        let tail = LINES_PER_PAGE - Self::TAIL_LINES..LINES_PER_PAGE;
        let most = (self.loads / Self::LOADS_PER_PAGE) as usize;
        self.random_pages(seed)
            .into_iter()
            .filter(|page| page % 8 == 0)
            .take(most)
            .flat_map(|end| {
                let first = end
                    + match beyond {
                        PageAfter::NextPage => 1,
                        PageAfter::OtherPage => 3 + hashed_below(seed, end, 5),
                    };
                tail.clone()
                    .map(move |line| end * PAGE_BYTES + line * LINE_BYTES)
                    .chain([first * PAGE_BYTES])
            })
            .collect()
    }

    /// The first `slots` slots of the array.
    fn array(&self, slots: u64) -> impl Iterator<Item = u64> {
        let slots: Range<u64> = 0..slots.min(self.array / 8).min(self.loads);
        let begin = self.area;
        slots.map(move |slot| begin + slot * 8)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const FIELD: Field = Field {
        area: 16 * GROUP_BYTES,
        array: GROUP_BYTES,
        loads: 1 << 16,
    };

    fn order(pattern: PrefetchPattern) -> Vec<u64> {
        FIELD.order(Walk::Pattern(pattern), 7)
    }

    fn all() -> Vec<Walk> {
        let mut walks: Vec<Walk> = super::super::patterns()
            .into_iter()
            .map(Walk::Pattern)
            .collect();
        walks.extend([Walk::ArrayAlone, Walk::OtherPage]);
        walks
    }

    #[test]
    fn no_order_visits_anything_twice_or_leaves_the_field() {
        for walk in all() {
            let order = FIELD.order(walk, 7);
            let distinct: HashSet<u64> = order.iter().copied().collect();
            assert_eq!(distinct.len(), order.len(), "{walk:?}");
            assert!(order.len() as u64 <= 2 * FIELD.loads, "{walk:?}");
            assert!(order.len() > 1000, "{walk:?}");
            let end = FIELD.area + FIELD.array;
            assert!(order.iter().all(|at| at % 8 == 0 && *at < end), "{walk:?}");
        }
    }

    #[test]
    fn strides_have_their_nominal_value() {
        for stride_bytes in [64, 128, 4096] {
            let forward = order(PrefetchPattern::Forward { stride_bytes });
            assert!(
                forward
                    .windows(2)
                    .all(|pair| pair[1] == pair[0] + stride_bytes)
            );
            let mut backward = order(PrefetchPattern::Backward { stride_bytes });
            backward.reverse();
            assert_eq!(forward, backward);
        }
    }

    #[test]
    fn streams_alternate_and_each_goes_forward() {
        for streams in [2_u32, 4, 8, 16] {
            let order = order(PrefetchPattern::Interleaved { streams });
            let streams = streams as usize;
            for stream in 0..streams {
                let mine: Vec<u64> = order
                    .iter()
                    .skip(stream)
                    .step_by(streams)
                    .copied()
                    .collect();
                assert!(mine.windows(2).all(|pair| pair[1] == pair[0] + LINE_BYTES));
            }
            let first: HashSet<u64> = order[..streams]
                .iter()
                .map(|at| at / LINE_BYTES % 64)
                .collect();
            assert_eq!(first.len(), streams);
        }
    }

    #[test]
    fn the_reference_sees_every_page_once_and_stays_in_a_group() {
        let order = order(PrefetchPattern::Random);
        let pages: HashSet<u64> = order.iter().map(|at| at / PAGE_BYTES).collect();
        assert_eq!(pages.len() as u64, FIELD.area / PAGE_BYTES);
        assert_eq!(pages.len(), order.len());
        let changes = order
            .windows(2)
            .filter(|pair| pair[0] / GROUP_BYTES != pair[1] / GROUP_BYTES)
            .count();
        assert_eq!(changes as u64, FIELD.area / GROUP_BYTES - 1);
        // No distance between two visits is frequent, so there is no stride to learn.
        let mut steps = HashMap::new();
        for pair in order.windows(2) {
            *steps.entry(pair[1].wrapping_sub(pair[0])).or_insert(0) += 1;
        }
        assert!(*steps.values().max().unwrap() < 8);
    }

    #[test]
    fn neighbours_follow_each_other_in_the_same_128_bytes() {
        let order = order(PrefetchPattern::AdjacentLine);
        for pair in order.chunks(2) {
            assert_eq!(pair[0] / 128, pair[1] / 128);
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn page_random_finishes_a_page_before_the_next() {
        let order = order(PrefetchPattern::PageRandom);
        for page in order.chunks(64) {
            assert!(
                page.iter()
                    .all(|at| at / PAGE_BYTES == page[0] / PAGE_BYTES)
            );
            assert!(!page.is_sorted());
        }
    }

    #[test]
    fn pointers_lie_in_order_and_lead_to_the_lines_of_the_reference() {
        let order = order(PrefetchPattern::PointerArray);
        let slots: Vec<u64> = order.iter().step_by(2).copied().collect();
        let lines: Vec<u64> = order.iter().skip(1).step_by(2).copied().collect();
        assert!(slots.windows(2).all(|pair| pair[1] == pair[0] + 8));
        assert_eq!(slots, FIELD.order(Walk::ArrayAlone, 7));
        assert_eq!(lines, self::order(PrefetchPattern::Random));
    }

    #[test]
    fn the_next_page_and_another_differ_only_in_the_last_line() {
        let each = Field::LOADS_PER_PAGE as usize;
        let next = order(PrefetchPattern::NextPage);
        let other = FIELD.order(Walk::OtherPage, 7);
        assert_eq!(next.len(), other.len());
        let ends: HashSet<u64> = next.chunks(each).map(|unit| unit[0] / PAGE_BYTES).collect();
        for (a, b) in next.chunks(each).zip(other.chunks(each)) {
            assert_eq!(a[..each - 1], b[..each - 1]);
            assert!(
                a[..each - 1]
                    .windows(2)
                    .all(|pair| pair[1] == pair[0] + LINE_BYTES)
            );
            assert_eq!(a[each - 1], a[each - 2] + LINE_BYTES);
            assert_eq!((a[each - 1] % PAGE_BYTES, b[each - 1] % PAGE_BYTES), (0, 0));
            assert!(!ends.contains(&(b[each - 1] / PAGE_BYTES - 1)));
            assert_eq!(b[each - 1] / (8 * PAGE_BYTES), b[0] / (8 * PAGE_BYTES));
        }
    }
}
