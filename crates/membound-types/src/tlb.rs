//! `measure tlb`: reach, cost of a miss, and whether misses overlap.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Basis, Figure, Outcome, PageKind, Samples};

/// One point: a chase with one line on each of `pages` pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbPoint {
    /// Page kind.
    pub page: PageKind,
    /// Pages visited.
    pub pages: u64,
    /// Time per load with one line a page, in nanoseconds.
    pub ns: f64,
    /// Time per load over the same number of lines packed together, in nanoseconds.
    pub packed_ns: f64,
    /// The difference in core clock cycles: what translation costs.
    pub translation_cycles: f64,
    /// The batches of the spread chase.
    pub batches: Samples,
}

/// A level of the TLB, found from the points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbLevel {
    /// Page kind.
    pub page: PageKind,
    /// 1, 2, …
    pub level: u32,
    /// Entries that can be reached.
    pub entries: Figure,
    /// Bytes that these entries cover.
    pub reach_bytes: u64,
    /// Cost of a miss here that the next level answers (or a page walk), in cycles.
    pub miss_cycles: Figure,
}

/// Whether TLB misses are served in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbOverlap {
    /// Page kind.
    pub page: PageKind,
    /// Independent chains.
    pub chains: u32,
    /// Cycles that translation costs per load with so many chains.
    pub translation_cycles: f64,
    /// Translation cost of one chain ÷ of this many: 1 is none, `chains` is full overlap.
    pub overlap: f64,
}

/// What the TLB reaches with one kind of pages, beside the size of a cache.
///
/// Where the reach is smaller, loads that hit the cache still wait for page walks: the
/// advice of document 002 is to use larger pages there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TlbReach {
    /// Cache level's name.
    pub level: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// `estimated` for the effective size found, `declared` where no levels were found.
    pub size_basis: Basis,
    /// Page kind.
    pub page: PageKind,
    /// Bytes that are reached without a page walk.
    pub reach_bytes: u64,
    /// Level of the TLB beyond which walks begin; `null` where none was met, and
    /// `reach_bytes` is then the most that was visited: the reach is at least so large.
    pub tlb_level: Option<u32>,
    /// Whether the reach is at least the size of the cache; `null` where that was not met.
    pub covered: Option<bool>,
    /// What to do where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// The part `tlb`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tlb {
    /// All points.
    pub points: Vec<TlbPoint>,
    /// Levels found.
    pub levels: Vec<TlbLevel>,
    /// Reach beside the size of each cache: every cache, innermost first, with every page
    /// kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<TlbReach>,
    /// Overlap of misses.
    pub overlap: Vec<TlbOverlap>,
    /// Page walks served at once, by the largest overlap seen.
    pub parallel_walks: Outcome<f64>,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
