//! `measure window`: Seidl's random aligned windows in an area.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, NodePolicy, PageKind, Samples};

named! {
    /// What is done with a window.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum WindowKernel {
        /// Sign change of every double, one at a time.
        Scalar = "scalar",
        /// The same, with software prefetch ahead of the loads.
        ScalarPrefetch = "scalar-prefetch",
        /// Sign change with the widest vectors.
        Vector = "vector",
        /// The same, with software prefetch ahead of the loads.
        VectorPrefetch = "vector-prefetch",
    }
}

/// One point: windows of one size drawn from an area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowPoint {
    /// Window size in bytes; windows are aligned to it.
    pub window_bytes: u64,
    /// Area the windows are drawn from, in bytes.
    pub area_bytes: u64,
    /// User and system time per window in seconds, median over the batches.
    pub seconds_per_window: f64,
    /// Lower end of the 95 % interval.
    pub seconds_low: f64,
    /// Upper end of the 95 % interval.
    pub seconds_high: f64,
    /// Kernel.
    pub kernel: WindowKernel,
    /// Pages behind the area, as verified.
    pub page: PageKind,
    /// Where the area lies.
    pub node: NodePolicy,
    /// CPU that accesses.
    pub cpu: CpuId,
    /// CPU that allocated and initialised, where it was another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_cpu: Option<CpuId>,
    /// The batches, in seconds per window.
    pub batches: Samples,
}

/// The part `window`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// All points.
    pub points: Vec<WindowPoint>,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
