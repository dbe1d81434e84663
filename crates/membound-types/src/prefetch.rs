//! `measure prefetch`: access patterns that the hardware prefetches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Outcome, PrefetchState, Samples};

/// Access pattern that a prefetcher may recognise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum PrefetchPattern {
    /// Every `stride_bytes`-th byte, upwards.
    Forward {
        /// Distance between accesses in bytes.
        stride_bytes: u64,
    },
    /// Every `stride_bytes`-th byte, downwards.
    Backward {
        /// Distance between accesses in bytes.
        stride_bytes: u64,
    },
    /// `streams` forward streams, one line of each in turn.
    Interleaved {
        /// Number of streams that take turns.
        streams: u32,
    },
    /// Random pairs: a random line, then its neighbour in the same aligned 128 bytes; only
    /// the neighbour is timed.
    AdjacentLine,
    /// All lines of a page in random order, page after page at random.
    PageRandom,
    /// An array of pointers read in order, each followed to a random line; only the line is
    /// timed.
    PointerArray,
    /// A forward stream that crosses into the next page: only the first line of each page
    /// is timed.
    NextPage,
    /// Unpredictable: the reference.
    Random,
}

/// One pattern with one state of the prefetchers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefetchPoint {
    /// Access pattern.
    pub pattern: PrefetchPattern,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Time per load in nanoseconds; if only one of several loads is timed, of that load.
    pub ns: f64,
    /// Time of random loads with the same footprint, page kind and TLB locality, in nanoseconds.
    pub random_ns: f64,
    /// `ns ÷ random_ns`.
    pub ratio: f64,
    /// True if the ratio is lower than noise explains, so the hardware prefetched.
    pub prefetched: bool,
    /// Raw batches.
    pub batches: Samples,
}

/// Result of `measure prefetch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prefetch {
    /// All measured points.
    pub points: Vec<PrefetchPoint>,
    /// Prefetchers that could be switched, or why none could.
    pub controls: Outcome<Vec<String>>,
    /// Size of the area of the patterns, in bytes.
    pub area_bytes: u64,
    /// Combinations that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
