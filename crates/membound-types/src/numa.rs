//! `measure numa`: latency and bandwidth by node of the CPU and node of the memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{BandwidthPoint, CpuId, NodeId, Outcome, PageKind, Samples};

/// CPUs of one node with the memory of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaPair {
    /// Node of the measuring CPU.
    pub cpu_node: NodeId,
    /// CPU that measured.
    pub cpu: CpuId,
    /// Node of the memory.
    pub memory_node: NodeId,
    /// Distance declared by the firmware (10 is local).
    pub distance: Option<u32>,
    /// Share of the pages verified to be on `memory_node`, 0 to 1.
    pub placed_share: Outcome<f64>,
    /// Latency of a random chase in nanoseconds.
    pub latency_ns: Outcome<f64>,
    /// Raw batches of `latency_ns`.
    #[serde(default)]
    pub latency_batches: Samples,
    /// Read bandwidth of one thread in 10⁹ bytes per second.
    pub read_gb_s: Outcome<f64>,
    /// Raw batches of `read_gb_s`.
    #[serde(default)]
    pub read_batches: Samples,
    /// Bandwidth of all CPUs of `cpu_node` together with this memory, by kernel. Empty on a machine with
    /// one node, where the part `bandwidth` has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<BandwidthPoint>,
}

/// Result of `measure numa`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Numa {
    /// Online nodes.
    pub nodes: Vec<NodeId>,
    /// `one node` if there is only one, else a summary.
    pub summary: String,
    /// All pairs of nodes.
    pub pairs: Vec<NumaPair>,
    /// Page kind of the buffers.
    pub page: PageKind,
    /// Pairs or values that could not be measured, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Wall time of this part in seconds.
    pub elapsed_s: f64,
}
