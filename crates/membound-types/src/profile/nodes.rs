//! NUMA nodes: accesses by node of the page, and traffic between nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Nodes on which pages lie, and nodes from which threads access them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaView {
    /// Number of nodes of the machine.
    pub nodes: u32,
    /// Share of the accesses that go to pages of the accessing thread's node.
    pub local_fraction: f64,
    /// Ends of the 95 % interval of `local_fraction`; `None` in documents of older versions.
    #[serde(default)]
    pub local_interval: Option<[f64; 2]>,
    /// Share of all accesses by node of the thread (first index) and node of the page (second index).
    pub matrix: Vec<Vec<f64>>,
    /// Local and remote accesses by object.
    pub objects: Vec<NumaRow>,
    /// Local and remote accesses by source line.
    pub lines: Vec<NumaRow>,
}

/// Local and remote accesses of one object or source line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaRow {
    /// Object or source line.
    pub name: String,
    /// Share of its accesses that are local.
    pub local_fraction: f64,
    /// Ends of the 95 % interval of `local_fraction`; `None` in documents of older versions.
    #[serde(default)]
    pub local_interval: Option<[f64; 2]>,
    /// Its share of all accesses to other nodes.
    pub remote_share: f64,
    /// Node with most of its pages.
    pub node: Option<u16>,
    /// Advice; empty if there is none.
    pub advice: String,
}

/// The machine's nodes, their memories and interconnects, with average traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// Nodes, sorted by number.
    pub nodes: Vec<PlatformNode>,
    /// Links from every node to every other, if traffic by node is known.
    pub links: Vec<PlatformLink>,
}

/// A node: CPUs and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformNode {
    /// Number of the node.
    pub node: u16,
    /// Logical CPUs of the node.
    pub cpus: Vec<u32>,
    /// Average number of its CPUs that the program kept busy.
    pub busy_cpus: f64,
    /// Average traffic of its memory in 10⁹ bytes per second, if known.
    pub dram_gb_s: Option<f64>,
    /// Highest bandwidth measured for its memory with the same share of writes, in 10⁹ bytes per second.
    pub dram_max_gb_s: Option<f64>,
}

/// Traffic from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformLink {
    /// Node that sends the bytes.
    pub from: u16,
    /// Node that receives the bytes.
    pub to: u16,
    /// Average traffic, in 10⁹ bytes per second.
    pub gb_s: f64,
    /// Highest bandwidth measured in this direction, in 10⁹ bytes per second.
    pub max_gb_s: Option<f64>,
}
