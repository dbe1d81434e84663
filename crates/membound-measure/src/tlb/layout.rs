//! Where the lines of a chase lie: one on each page, or the same number packed together.
//!
//! The two must differ in translation only, so they have to fill the caches' sets alike.
//! The first cache is indexed by bits inside a base page, which offsets here decide. On
//! huge pages the same holds for the second; on base pages its sets depend on which
//! frames the kernel gave, which is as good as random, so the packed lines are drawn at
//! random too. All offsets are in bytes.

use crate::chain::shuffle;

/// Bytes of a line, and of the smallest page.
const LINE_BYTES: u64 = 64;
const FRAME_BYTES: u64 = 4096;
const LINES_PER_FRAME: u64 = FRAME_BYTES / LINE_BYTES;

/// One line on each of `pages` pages, in order of address. Each is a base page and a line further
/// into its page than the one before. A line, which is an odd number of lines, so that every power
/// of two of sets is filled evenly; and a base page, because a hypervisor may back a huge page with
/// base pages, whose translations would all fall into one set of the TLB if they were a huge page
/// apart.
pub(super) fn spread(pages: u64, page_bytes: u64) -> Vec<u64> {
    (0..pages)
        .map(|page| page * page_bytes + page * (FRAME_BYTES + LINE_BYTES) % page_bytes)
        .collect()
}

/// `lines` lines side by side, which fill sets as evenly as [`spread`] on huge pages does.
pub(super) fn contiguous(lines: u64) -> Vec<u64> {
    (0..lines).map(|line| line * LINE_BYTES).collect()
}

/// How many times sparser than contiguous [`scattered`] is: enough that the number of
/// lines in a set of the second cache is nearly that of random frames (its variance is
/// ¾ of theirs), and little enough to stay within a few huge pages.
const SPARSENESS: u64 = 4;

/// Bytes that [`scattered`] needs for `lines` lines.
pub(super) fn scattered_bytes(lines: u64) -> u64 {
    lines.div_ceil(LINES_PER_FRAME) * SPARSENESS * FRAME_BYTES
}

/// `lines` lines, as many at each offset inside a base page as [`spread`] has, in random
/// frames of [`scattered_bytes`] bytes.
pub(super) fn scattered(lines: u64, seed: u64) -> Vec<u64> {
    let count = scattered_bytes(lines) / FRAME_BYTES;
    let mut frames: Vec<u64> = (0..count).collect();
    shuffle(&mut frames, seed);
    (0..lines)
        .map(|line| {
            let (turn, offset) = (line / LINES_PER_FRAME, line % LINES_PER_FRAME);
            // Another part of the list for every offset, so that frames are not either full or
            // empty.
            let frame = frames[((turn + offset * 31) % count) as usize];
            frame * FRAME_BYTES + offset * LINE_BYTES
        })
        .collect()
}

/// `lines` lines side by side in an order that stays on a page until it is done with it:
/// one TLB miss in 64 loads, where there are no huge pages to pack lines into.
pub(super) fn page_local(lines: u64, seed: u64) -> Vec<u64> {
    let mut pages: Vec<Vec<u64>> = contiguous(lines)
        .chunks(LINES_PER_FRAME as usize)
        .map(<[u64]>::to_vec)
        .collect();
    for (at, page) in pages.iter_mut().enumerate() {
        shuffle(page, seed ^ (at as u64) << 20);
    }
    shuffle(&mut pages, seed);
    pages.concat()
}

/// Numbers of pages from 4 to `most`, `per_octave` per octave.
pub(super) fn grid(most: u64, per_octave: u32) -> Vec<u64> {
    const MIN_PAGES: f64 = 4.0;
    let per_octave = f64::from(per_octave.max(1));
    let steps = ((most as f64 / MIN_PAGES).log2().max(0.0) * per_octave + 1e-9).floor() as u32;
    let mut grid: Vec<u64> = (0..=steps)
        .map(|step| (MIN_PAGES * (f64::from(step) / per_octave).exp2()).round() as u64)
        .chain([most])
        .filter(|pages| *pages <= most)
        .collect();
    grid.dedup();
    grid
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    fn per_set(offsets: &[u64], sets: u64) -> HashMap<u64, u64> {
        let mut count = HashMap::new();
        for offset in offsets {
            *count.entry(offset / LINE_BYTES % sets).or_insert(0) += 1;
        }
        count
    }

    #[test]
    fn spread_lines_are_one_a_page_and_fill_the_first_caches_sets_alike() {
        for (page_bytes, sets) in [(4096, 64), (2 << 20, 2048)] {
            for pages in [4, 100, 4096] {
                let offsets = spread(pages, page_bytes);
                let distinct: HashSet<u64> = offsets.iter().map(|at| at / page_bytes).collect();
                assert_eq!(distinct.len() as u64, pages);
                assert!(distinct.iter().all(|page| *page < pages));
                let counts = per_set(&offsets, sets);
                let most = counts.values().max().unwrap();
                assert_eq!(*most, pages.div_ceil(sets));
            }
        }
    }

    #[test]
    fn packed_lines_are_as_many_and_lie_on_few_pages() {
        for lines in [4, 63, 64, 1000, 5000, 65_536] {
            for offsets in [contiguous(lines), scattered(lines, 7), page_local(lines, 7)] {
                let distinct: HashSet<u64> = offsets.iter().copied().collect();
                assert_eq!(distinct.len() as u64, lines);
                assert!(offsets.iter().all(|offset| offset % LINE_BYTES == 0));
                assert_eq!(
                    per_set(&offsets, 64),
                    per_set(&spread(lines, 4096), 64),
                    "{lines}"
                );
                let end = offsets.iter().max().unwrap() + LINE_BYTES;
                assert!(end <= scattered_bytes(lines), "{lines}");
            }
        }
    }

    #[test]
    fn scattered_lines_are_as_uneven_over_the_second_caches_sets_as_random_frames() {
        // 16384 lines over 1024 sets: a binomial count has a variance of 16.
        let offsets = scattered(16_384, 5);
        let counts = per_set(&offsets, 1024);
        let variance = (0..1024)
            .map(|set| {
                let count = counts.get(&set).copied().unwrap_or(0) as f64;
                (count - 16.0).powi(2)
            })
            .sum::<f64>()
            / 1024.0;
        assert!((8.0..18.0).contains(&variance), "{variance}");
    }

    #[test]
    fn page_local_order_leaves_a_page_only_when_it_is_done_with_it() {
        let order = page_local(640, 3);
        let changes = order
            .windows(2)
            .filter(|pair| pair[0] / FRAME_BYTES != pair[1] / FRAME_BYTES)
            .count();
        assert_eq!(changes, 9);
        assert!(
            order
                .windows(2)
                .filter(|pair| pair[1] == pair[0] + LINE_BYTES)
                .count()
                < 60
        );
    }

    #[test]
    fn the_grid_begins_at_four_and_ends_at_the_most() {
        let grid = grid(1000, 4);
        assert_eq!((grid[0], *grid.last().unwrap()), (4, 1000));
        assert!(grid.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(super::grid(3, 4), [3]);
        assert_eq!(super::grid(4, 4), [4]);
    }
}
