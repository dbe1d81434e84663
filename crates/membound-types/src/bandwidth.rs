//! `measure bandwidth`: bytes per second by kernel, working set and number of threads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{NodePolicy, PageKind, Samples};

named! {
    /// Memory operations of a bandwidth kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum BandwidthKernel {
        /// Loads only.
        Read = "read",
        /// Stores only, through the caches (each line is read before it is written).
        Write = "write",
        /// Non-temporal stores, which bypass the caches.
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
        /// 128-bit vectors.
        V128 = "128",
        /// 256-bit vectors.
        V256 = "256",
        /// 512-bit vectors.
        V512 = "512",
    }
}

/// Bandwidth of one kernel under one set of conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthPoint {
    /// Kernel that was run.
    pub kernel: BandwidthKernel,
    /// Width of its vectors.
    pub vector: VectorWidth,
    /// Working set of each thread in bytes, all arrays together.
    pub size_bytes: u64,
    /// Name of the level that `size_bytes` fits into; absent if levels are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Number of threads, each pinned and with its own arrays.
    pub threads: u32,
    /// Page kind of the arrays.
    pub page: PageKind,
    /// Node of the arrays.
    pub node: NodePolicy,
    /// Bytes that the kernel reads and writes, in 10⁹ bytes per second, all threads together.
    pub gb_s: f64,
    /// Lower end of the 95 % interval of `gb_s`.
    pub gb_s_low: f64,
    /// Upper end of the 95 % interval of `gb_s`.
    pub gb_s_high: f64,
    /// Like `gb_s`, including the read that a store through the caches causes (write-allocate).
    pub gb_s_with_allocate: f64,
    /// Raw batches, in 10⁹ bytes per second.
    pub batches: Samples,
}

/// Result of `measure bandwidth`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bandwidth {
    /// All measured points.
    pub points: Vec<BandwidthPoint>,
    /// Which bytes are counted, in a sentence.
    pub counting: String,
    /// Combinations that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
