//! `measure prefetch`: which access patterns the hardware prefetches.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Outcome, PrefetchState, Samples};

/// An access pattern that a prefetcher might know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "name")]
pub enum PrefetchPattern {
    /// Every `stride_bytes`-th byte, upwards.
    Forward {
        /// Distance in bytes.
        stride_bytes: u64,
    },
    /// Every `stride_bytes`-th byte, downwards.
    Backward {
        /// Distance in bytes.
        stride_bytes: u64,
    },
    /// `streams` forward streams, line by line, taking turns.
    Interleaved {
        /// Number of streams.
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
    /// Nothing to predict: the reference.
    Random,
}

/// One pattern with one state of the prefetchers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrefetchPoint {
    /// Pattern.
    pub pattern: PrefetchPattern,
    /// State of the prefetchers.
    pub prefetch: PrefetchState,
    /// Time per load in nanoseconds; where only one of several loads is timed, of that one.
    pub ns: f64,
    /// Random loads of the same footprint, page kind and TLB locality, in nanoseconds.
    pub random_ns: f64,
    /// `ns ÷ random_ns`.
    pub ratio: f64,
    /// Whether the ratio is beyond what noise explains: the hardware fetched ahead.
    pub prefetched: bool,
    /// The batches.
    pub batches: Samples,
}

/// The part `prefetch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Prefetch {
    /// All points.
    pub points: Vec<PrefetchPoint>,
    /// Prefetchers that could be switched, or why none could.
    pub controls: Outcome<Vec<String>>,
    /// Bytes under the patterns.
    pub area_bytes: u64,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
