//! What `measure latency` measures, and the sizes of its grid.

use std::collections::BTreeSet;
use std::time::Duration;

use membound_types::{Access, NodePolicy, PageKind, Pattern};

use crate::session::Spread;
use crate::{ChaseConfig, Effort};

/// What to measure: the product of all lists.
#[derive(Clone, Debug)]
pub struct LatencyConfig {
    /// Sizes in bytes; `None` for a grid up to [`LatencyConfig::max_bytes`].
    pub sizes: Option<Vec<u64>>,
    /// Smallest size of the grid in bytes.
    pub min_bytes: u64,
    /// Largest size of the grid in bytes; it shrinks to what memory allows.
    pub max_bytes: u64,
    /// Points per octave of the grid, before sizes are added at bends.
    pub points_per_octave: u32,
    /// Distances between elements in bytes.
    pub strides: Vec<u64>,
    /// Orders in which the elements are visited.
    pub patterns: Vec<Pattern>,
    /// Whether the chase is clean, dirty or measured both ways.
    pub accesses: Vec<Access>,
    /// Page kinds of the buffers.
    pub pages: Vec<PageKind>,
    /// NUMA policies of the buffers; `local` is local to each copy.
    pub nodes: Vec<NodePolicy>,
    /// Numbers of copies that run at the same time.
    pub threads: Vec<u32>,
    /// How several copies are spread over CPUs.
    pub spread: Spread,
    /// Time for one series (one page, node, number of copies, pattern, access and stride).
    pub series_budget: Duration,
    /// Maximum number of sizes added between rounds, per series.
    pub refinements: usize,
    /// Exact number of visits to each size; `None`: until its interval is narrow or the time is
    /// spent.
    pub repetitions: Option<u32>,
    /// Time of the work that raises the core clock before each series.
    pub warm_up: Duration,
}

impl LatencyConfig {
    /// A point is done when its interval reaches this far to each side, relative to the figure.
    pub const TARGET: f64 = crate::sampling::TARGET_RELATIVE_HALF_WIDTH;

    /// One random clean chase over `page` pages, with the time that `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        Self {
            sizes: None,
            min_bytes: 1 << 10,
            max_bytes: 1 << 30,
            points_per_octave: effort.pick(3, 4, 6),
            strides: vec![64],
            patterns: vec![Pattern::Random],
            accesses: vec![Access::Clean],
            pages: vec![page],
            nodes: vec![NodePolicy::LOCAL],
            threads: vec![1],
            spread: Spread::Cores,
            series_budget: Duration::from_millis(effort.pick(3_000, 9_500, 40_000)),
            refinements: effort.pick(12, 24, 48),
            repetitions: None,
            warm_up: Duration::ZERO,
        }
    }

    pub(super) fn grid(&self, stride: u64) -> Vec<u64> {
        let per_octave = f64::from(self.points_per_octave.max(1));
        let octaves = (self.max_bytes as f64 / self.min_bytes as f64)
            .log2()
            .max(0.0);
        let steps = (octaves * per_octave + 1e-9).floor() as u32;
        (0..=steps)
            .map(|step| self.min_bytes as f64 * (f64::from(step) / per_octave).exp2())
            .map(|size| align(size as u64, stride))
            .chain([align(self.max_bytes, stride)])
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

/// `size` rounded to 64 bytes and, from 16 pages on, to whole pages, so that sizes look tidy and
/// every pattern can have them; rounded to the stride where that does not divide them.
pub(super) fn align(size: u64, stride: u64) -> u64 {
    let unit = if size >= 16 * ChaseConfig::PAGE_BYTES {
        ChaseConfig::PAGE_BYTES
    } else {
        64
    };
    let unit = if unit % stride == 0 { unit } else { stride };
    ((size + unit / 2) / unit * unit).max(stride)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_even_in_octaves_and_ends_at_the_maximum() {
        let mut config = LatencyConfig::new(Effort::Normal, PageKind::Base);
        config.max_bytes = 1 << 30;
        let grid = config.grid(64);
        assert_eq!(grid[0], 1 << 10);
        assert_eq!(*grid.last().unwrap(), 1 << 30);
        assert_eq!(grid.len(), 81);
        assert!(grid.iter().filter(|size| **size >= 4096).count() >= 48);
        assert!(grid.windows(2).all(|pair| pair[1] > pair[0]));
    }

    #[test]
    fn sizes_are_whole_elements() {
        for stride in [8, 64, 192, 4096, 1 << 16] {
            for size in [100, 5000, 70_000, 1 << 20] {
                assert_eq!(align(size, stride) % stride, 0);
                assert!(align(size, stride) >= stride);
            }
        }
    }
}
