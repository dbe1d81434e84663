//! `measure window`: Seidl's random aligned windows within an area.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{CpuId, NodePolicy, PageKind, Samples};

named! {
    /// Operation on a window.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    pub enum WindowKernel {
        /// Sign change of every double, one at a time.
        Scalar = "scalar",
        /// `Scalar` with software prefetch ahead of the loads.
        ScalarPrefetch = "scalar-prefetch",
        /// Sign change of every double with the widest vectors.
        Vector = "vector",
        /// `Vector` with software prefetch ahead of the loads.
        VectorPrefetch = "vector-prefetch",
    }
}

/// Time of windows of one size within an area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WindowPoint {
    /// Window size in bytes; windows are aligned to it.
    pub window_bytes: u64,
    /// Size in bytes of the area that windows are drawn from.
    pub area_bytes: u64,
    /// User and system time per window in seconds, median over the batches.
    pub seconds_per_window: f64,
    /// Lower end of the 95 % interval of `seconds_per_window`.
    pub seconds_low: f64,
    /// Upper end of the 95 % interval of `seconds_per_window`.
    pub seconds_high: f64,
    /// Operation on the windows.
    pub kernel: WindowKernel,
    /// Page kind of the area, as verified.
    pub page: PageKind,
    /// Node of the area.
    pub node: NodePolicy,
    /// CPU that accesses the area.
    pub cpu: CpuId,
    /// CPU that allocated and initialised the area, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_cpu: Option<CpuId>,
    /// The batches, in seconds per window.
    pub batches: Samples,
}

/// Result of `measure window`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// All measured points.
    pub points: Vec<WindowPoint>,
    /// Points that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
