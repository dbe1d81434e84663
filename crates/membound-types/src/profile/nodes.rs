//! NUMA nodes: which node's pages a program accessed, and what moved between nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// On which nodes pages lie, and from which nodes they are accessed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaView {
    /// Nodes of the machine.
    pub nodes: u32,
    /// Share of the accesses to pages of the accessing thread's node.
    pub local_fraction: f64,
    /// Ends of its 95 % interval; `None` in documents of versions that did not find it.
    #[serde(default)]
    pub local_interval: Option<[f64; 2]>,
    /// Share of all accesses by node of the thread (first index) and of the page (second index).
    pub matrix: Vec<Vec<f64>>,
    /// By object: name, local share, share of all accesses to other nodes.
    pub objects: Vec<NumaRow>,
    /// By source line.
    pub lines: Vec<NumaRow>,
}

/// Local and remote accesses of something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NumaRow {
    /// Object or source line.
    pub name: String,
    /// Share of its accesses that are local.
    pub local_fraction: f64,
    /// Ends of its 95 % interval; `None` in documents of versions that did not find it.
    #[serde(default)]
    pub local_interval: Option<[f64; 2]>,
    /// Its share of all accesses to other nodes.
    pub remote_share: f64,
    /// Node that most of its pages lie on.
    pub node: Option<u16>,
    /// What to do; empty if nothing.
    pub advice: String,
}

/// The nodes of a machine, their memories and what connects them, with average traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Platform {
    /// By number.
    pub nodes: Vec<PlatformNode>,
    /// From every node to every other one, where traffic is known by node.
    pub links: Vec<PlatformLink>,
}

/// A node: CPUs and memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformNode {
    /// Its number.
    pub node: u16,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// How many of them the program kept busy on average.
    pub busy_cpus: f64,
    /// Average traffic of its memory, in 10⁹ bytes a second, where it is known.
    pub dram_gb_s: Option<f64>,
    /// The most that its memory was measured to move with the same part of writes.
    pub dram_max_gb_s: Option<f64>,
}

/// What goes from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlatformLink {
    /// Where bytes come from.
    pub from: u16,
    /// Where they go.
    pub to: u16,
    /// Average traffic, in 10⁹ bytes a second.
    pub gb_s: f64,
    /// The most that was measured in this direction.
    pub max_gb_s: Option<f64>,
}
