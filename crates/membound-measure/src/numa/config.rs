//! What `measure numa` measures, and how long.

use std::time::Duration;

use membound_types::PageKind;

use crate::Effort;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct NumaConfig {
    /// Bytes under the chase on each node; fewer where a node has fewer to give.
    pub bytes: u64,
    /// Page kind of the buffers.
    pub page: PageKind,
    /// Time for the part; every pair is visited at least twice, even if that takes longer.
    pub budget: Duration,
}

impl NumaConfig {
    /// Buffers of `page` pages and the time that `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, page: PageKind) -> Self {
        Self {
            bytes: effort.pick(128 << 20, 256 << 20, 512 << 20),
            page,
            budget: Duration::from_millis(effort.pick(1_500, 6_000, 30_000)),
        }
    }
}
