//! `measure tlb`: reach, cost of a miss, and overlap of misses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Basis, Figure, Outcome, PageKind, Samples};

/// Chase with one line on each of `pages` pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbPoint {
    /// Kind of the pages.
    pub page: PageKind,
    /// Number of visited pages.
    pub pages: u64,
    /// Time per load with one line per page, in nanoseconds.
    pub ns: f64,
    /// Time per load with the same number of lines packed together, in nanoseconds.
    pub packed_ns: f64,
    /// Cost of translation: the difference in core clock cycles.
    pub translation_cycles: f64,
    /// Raw batches of the spread chase.
    pub batches: Samples,
}

/// A level of the TLB, found from the points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbLevel {
    /// Kind of the pages.
    pub page: PageKind,
    /// Level: 1, 2, …
    pub level: u32,
    /// Number of usable entries.
    pub entries: Figure,
    /// Bytes covered by the entries.
    pub reach_bytes: u64,
    /// Cost in core clock cycles of a miss that the next level (or a page walk) answers.
    pub miss_cycles: Figure,
}

/// Whether TLB misses are served in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbOverlap {
    /// Kind of the pages.
    pub page: PageKind,
    /// Number of independent chains.
    pub chains: u32,
    /// Cost of translation per load in core clock cycles, with this number of chains.
    pub translation_cycles: f64,
    /// Cost of translation with one chain ÷ with `chains`: 1 is no overlap, `chains` is full overlap.
    pub overlap: f64,
}

/// Reach of the TLB with one kind of pages, compared with the size of a cache.
///
/// If the reach is smaller, loads that hit the cache still wait for page walks: document 002 advises larger
/// pages then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbReach {
    /// Name of the cache level.
    pub level: String,
    /// Size of the cache in bytes.
    pub size_bytes: u64,
    /// `estimated` for the effective size, `declared` if no levels were found.
    pub size_basis: Basis,
    /// Kind of the pages.
    pub page: PageKind,
    /// Bytes reached without a page walk.
    pub reach_bytes: u64,
    /// TLB level beyond which page walks begin; `null` if none was found. `reach_bytes` is then the largest
    /// visited size, and the reach is at least that.
    pub tlb_level: Option<u32>,
    /// True if the reach is at least the size of the cache; `null` if that could not be decided.
    pub covered: Option<bool>,
    /// Advice if the reach is smaller; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// Result of `measure tlb`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tlb {
    /// All measured points.
    pub points: Vec<TlbPoint>,
    /// Levels found from the points.
    pub levels: Vec<TlbLevel>,
    /// Reach compared with each cache: every cache, innermost first, with every page kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<TlbReach>,
    /// Overlap of misses, by page kind and number of chains.
    pub overlap: Vec<TlbOverlap>,
    /// Page walks served at once, from the largest observed overlap.
    pub parallel_walks: Outcome<f64>,
    /// Points that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
