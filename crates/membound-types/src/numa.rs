//! `measure numa`: node by node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BandwidthPoint, CpuId, NodeId, Outcome, PageKind, Samples};

/// CPUs of one node against the memory of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaPair {
    /// Node of the measuring CPU.
    pub cpu_node: NodeId,
    /// The measuring CPU.
    pub cpu: CpuId,
    /// Node of the memory.
    pub memory_node: NodeId,
    /// Distance that the firmware declares (10 is local).
    pub distance: Option<u32>,
    /// Share of the pages that were verified to lie on `memory_node`, 0 to 1.
    pub placed_share: Outcome<f64>,
    /// Latency of a random chase in nanoseconds.
    pub latency_ns: Outcome<f64>,
    /// The batches behind `latency_ns`.
    #[serde(default)]
    pub latency_batches: Samples,
    /// Read bandwidth of one thread in 10⁹ bytes a second.
    pub read_gb_s: Outcome<f64>,
    /// The batches behind `read_gb_s`.
    #[serde(default)]
    pub read_batches: Samples,
    /// What all CPUs of `cpu_node` together move from and to this memory, by kernel. Empty on a machine of one
    /// node, where the part `bandwidth` has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<BandwidthPoint>,
}

/// The part `numa`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Numa {
    /// Nodes online.
    pub nodes: Vec<NodeId>,
    /// `one node` where there is only one, else a summary.
    pub summary: String,
    /// Every pair.
    pub pairs: Vec<NumaPair>,
    /// Page kind of the buffers.
    pub page: PageKind,
    /// What could not be had, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
