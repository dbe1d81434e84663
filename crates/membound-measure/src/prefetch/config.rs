//! What `measure prefetch` measures, and how long.

use std::time::Duration;

use membound_types::{PageKind, PrefetchPattern};

use crate::Effort;

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct PrefetchConfig {
    /// Patterns; the reference is measured whether it is among them or not.
    pub patterns: Vec<PrefetchPattern>,
    /// Page kind under the patterns.
    pub page: PageKind,
    /// Maximum bytes under the patterns; less where memory is short.
    pub max_bytes: u64,
    /// Maximum number of loads of one walk.
    pub loads: u64,
    /// Time with the prefetchers as they are; each other state gets a quarter of it. Every pattern
    /// is visited at least twice, even if that takes longer.
    pub budget: Duration,
}

impl PrefetchConfig {
    /// All patterns on `page` pages with the memory and the time that `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        Self {
            patterns: patterns(),
            page,
            max_bytes: effort.pick(256 << 20, 512 << 20, 1 << 30),
            loads: effort.pick(1 << 17, 1 << 18, 1 << 19),
            budget: Duration::from_millis(effort.pick(2_500, 6_000, 30_000)),
        }
    }
}

/// Every default pattern, the reference first.
#[must_use]
pub fn patterns() -> Vec<PrefetchPattern> {
    let strides = [64, 128, 256, 512, 1024, 2048, 4096, 8192];
    let forward = strides.map(|stride_bytes| PrefetchPattern::Forward { stride_bytes });
    let backward = strides.map(|stride_bytes| PrefetchPattern::Backward { stride_bytes });
    let interleaved = [2, 4, 8, 16].map(|streams| PrefetchPattern::Interleaved { streams });
    let mut patterns = vec![PrefetchPattern::Random];
    patterns.extend(forward);
    patterns.extend(backward);
    patterns.extend(interleaved);
    patterns.extend([
        PrefetchPattern::AdjacentLine,
        PrefetchPattern::PageRandom,
        PrefetchPattern::PointerArray,
        PrefetchPattern::NextPage,
    ]);
    patterns
}
