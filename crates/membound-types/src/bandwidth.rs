//! `measure bandwidth`: bytes a second by kernel, working set and number of threads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{NodePolicy, PageKind, Samples};

named! {
    /// What a bandwidth kernel does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum BandwidthKernel {
        /// Loads only.
        Read = "read",
        /// Stores only, through the caches (each line is read before it is written).
        Write = "write",
        /// Non-temporal stores.
        NtWrite = "nt-write",
        /// One load and one store per element.
        Copy = "copy",
        /// a = b + s·c: two loads and one store per element.
        Triad = "triad",
    }
}

named! {
    /// Width of the vectors that a kernel uses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum VectorWidth {
        /// 128 bits.
        V128 = "128",
        /// 256 bits.
        V256 = "256",
        /// 512 bits.
        V512 = "512",
    }
}

/// One point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthPoint {
    /// Kernel.
    pub kernel: BandwidthKernel,
    /// Vectors it uses.
    pub vector: VectorWidth,
    /// Bytes that each thread works on, all arrays together.
    pub size_bytes: u64,
    /// Level that `size_bytes` fits into, where levels are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Threads, each pinned, each with its own arrays.
    pub threads: u32,
    /// Pages behind the arrays.
    pub page: PageKind,
    /// Where the arrays lie.
    pub node: NodePolicy,
    /// Bytes that the program asked for per second, all threads together, in 10⁹ bytes.
    pub gb_s: f64,
    /// Lower end of the 95 % interval.
    pub gb_s_low: f64,
    /// Upper end of the 95 % interval.
    pub gb_s_high: f64,
    /// The same with the read that a store through the caches causes (write-allocate).
    pub gb_s_with_allocate: f64,
    /// The batches, in 10⁹ bytes a second.
    pub batches: Samples,
}

/// The part `bandwidth`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bandwidth {
    /// All points.
    pub points: Vec<BandwidthPoint>,
    /// What counts as a byte, in a sentence.
    pub counting: String,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
