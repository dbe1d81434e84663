//! NUMA nodes, their memory and distances; placing pages on them is [`place`].

mod placement;

use membound_types::{CpuId, NamedPolicy, NodeId, NodePolicy};

pub use placement::{inherited, permitted, place, placed_share};

use crate::{Error, Root, affinity, list};

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of the node.
    pub id: NodeId,
    /// Online CPUs of the node, ascending; a node may have none.
    pub cpus: Vec<CpuId>,
    /// Memory in bytes; a node may have none.
    pub memory_bytes: u64,
    /// Free memory in bytes at the time of reading.
    pub free_bytes: u64,
    /// Distance to every online node as the firmware declares it (10 is local).
    pub distances: Vec<(NodeId, u32)>,
}

/// All nodes that are online.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Ascending by number, never empty.
    pub nodes: Vec<Node>,
}

impl Topology {
    /// Reads the nodes; a kernel without NUMA is one node 0 with everything.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        const NODES: &str = "sys/devices/system/node";
        let listed = root
            .attribute(format!("{NODES}/online"))
            .and_then(|text| list::numbers(&text))
            .filter(|ids| !ids.is_empty());
        let ids = listed.unwrap_or_else(|| root.numbered(NODES, "node"));
        let ids: Vec<u32> = ids
            .into_iter()
            .filter(|id| root.exists(format!("{NODES}/node{id}")))
            .collect();
        let nodes: Vec<Node> = ids
            .iter()
            .map(|id| {
                let dir = format!("{NODES}/node{id}");
                let meminfo = root.read(format!("{dir}/meminfo")).unwrap_or_default();
                let distances = root
                    .attribute(format!("{dir}/distance"))
                    .unwrap_or_default();
                Node {
                    id: NodeId(*id),
                    cpus: root
                        .attribute(format!("{dir}/cpulist"))
                        .and_then(|text| list::cpus(&text))
                        .unwrap_or_default(),
                    memory_bytes: meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(0),
                    free_bytes: meminfo_bytes(&meminfo, "MemFree:").unwrap_or(0),
                    distances: ids
                        .iter()
                        .zip(distances.split_whitespace())
                        .filter_map(|(&to, distance)| Some((NodeId(to), distance.parse().ok()?)))
                        .collect(),
                }
            })
            .collect();
        if nodes.is_empty() {
            return Self::one_node(root);
        }
        Self { nodes }
    }

    fn one_node(root: &Root) -> Self {
        let meminfo = root.read("proc/meminfo").unwrap_or_default();
        Self {
            nodes: vec![Node {
                id: NodeId(0),
                cpus: affinity::online(root),
                memory_bytes: meminfo_bytes(&meminfo, "MemTotal:").unwrap_or(0),
                free_bytes: meminfo_bytes(&meminfo, "MemFree:").unwrap_or(0),
                distances: vec![(NodeId(0), 10)],
            }],
        }
    }

    /// The node with this number.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The node that `cpu` belongs to; the first node where none lists the CPU.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.nodes
            .iter()
            .find(|node| node.cpus.contains(&cpu))
            .or(self.nodes.first())
            .map_or(NodeId(0), |node| node.id)
    }

    /// The nodes that have memory, ascending. Where sysfs gives no sizes at all, all nodes.
    #[must_use]
    pub fn memory_nodes(&self) -> Vec<NodeId> {
        let sizes_known = self.nodes.iter().any(|node| node.memory_bytes > 0);
        self.nodes
            .iter()
            .filter(|node| node.memory_bytes > 0 || !sizes_known)
            .map(|node| node.id)
            .collect()
    }

    /// The nodes that have CPUs, ascending.
    #[must_use]
    pub fn cpu_nodes(&self) -> Vec<NodeId> {
        self.nodes
            .iter()
            .filter(|node| !node.cpus.is_empty())
            .map(|node| node.id)
            .collect()
    }

    /// The declared distance from one node to another.
    #[must_use]
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let distances = &self.node(from)?.distances;
        Some(distances.iter().find(|(id, _)| *id == to)?.1)
    }

    /// The nodes on which `policy` puts pages for a CPU of node `local`.
    ///
    /// `local` means the node itself or, where that has no memory, the nearest that has
    /// some, as the kernel's own allocation does.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`], [`Error::NodeWithoutMemory`].
    pub fn wanted(&self, policy: NodePolicy, local: NodeId) -> Result<Vec<NodeId>, Error> {
        let with_memory = self.memory_nodes();
        match policy {
            NodePolicy::Named(NamedPolicy::Interleave) => Ok(with_memory),
            NodePolicy::Named(NamedPolicy::Local) => {
                let nearest = with_memory.iter().copied().min_by_key(|&id| {
                    (
                        id != local,
                        self.distance(local, id).unwrap_or(u32::MAX),
                        id,
                    )
                });
                Ok(vec![nearest.unwrap_or(local)])
            }
            NodePolicy::Node(id) => {
                if self.node(id).is_none() {
                    return Err(Error::NoSuchNode {
                        node: id,
                        present: node_range(&self.ids()),
                    });
                }
                if !with_memory.contains(&id) {
                    return Err(Error::NodeWithoutMemory {
                        node: id,
                        with_memory: list::show_nodes(&with_memory),
                    });
                }
                Ok(vec![id])
            }
        }
    }

    /// All node numbers, ascending.
    #[must_use]
    pub fn ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|node| node.id).collect()
    }
}

fn node_range(nodes: &[NodeId]) -> String {
    let noun = if nodes.len() == 1 { "node" } else { "nodes" };
    format!("{noun} {}", list::show_nodes(nodes))
}

/// A field of a meminfo file in bytes; the node files have `Node N ` before the name.
pub(crate) fn meminfo_bytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let at = line.find(field)?;
        let before = &line[..at];
        (before.is_empty() || before.starts_with("Node ")).then(|| &line[at + field.len()..])
    })?;
    let mut words = line.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => number.checked_mul(1024),
        _ => Some(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn two_nodes_and_a_bare_one() -> Tree {
        let node = |tree: Tree, id: u32, cpus: &str, kb: u64, distance: &str| {
            let dir = format!("sys/devices/system/node/node{id}");
            tree.file(&format!("{dir}/cpulist"), format!("{cpus}\n"))
                .file(&format!("{dir}/distance"), format!("{distance}\n"))
                .file(
                    &format!("{dir}/meminfo"),
                    format!(
                        "Node {id} MemTotal:       {kb} kB\nNode {id} MemFree: {} kB\n",
                        kb / 2
                    ),
                )
        };
        let tree = Tree::new().file("sys/devices/system/node/online", "0-1,4\n");
        let tree = node(tree, 0, "0-3,8-11", 1_000_000, "10 21 31");
        let tree = node(tree, 1, "4-7,12-15", 2_000_000, "21 10 17");
        node(tree, 4, "16", 0, "31 17 10")
    }

    #[test]
    fn reads_nodes_memory_and_distances() {
        let topology = Topology::read(&two_nodes_and_a_bare_one().root());
        assert_eq!(topology.ids(), [NodeId(0), NodeId(1), NodeId(4)]);
        assert_eq!(topology.nodes[1].memory_bytes, 2_000_000 * 1024);
        assert_eq!(topology.nodes[1].free_bytes, 1_000_000 * 1024);
        assert_eq!(topology.node_of(CpuId(12)), NodeId(1));
        assert_eq!(topology.node_of(CpuId(16)), NodeId(4));
        assert_eq!(topology.memory_nodes(), [NodeId(0), NodeId(1)]);
        assert_eq!(topology.distance(NodeId(0), NodeId(4)), Some(31));
        assert_eq!(topology.distance(NodeId(4), NodeId(1)), Some(17));
    }

    #[test]
    fn policies_select_nodes_with_memory() {
        let topology = Topology::read(&two_nodes_and_a_bare_one().root());
        let wanted = |policy, local| topology.wanted(policy, NodeId(local));
        assert_eq!(wanted(NodePolicy::LOCAL, 1).unwrap(), [NodeId(1)]);
        // Node 4 has no memory; node 1 is nearer than node 0.
        assert_eq!(wanted(NodePolicy::LOCAL, 4).unwrap(), [NodeId(1)]);
        assert_eq!(
            wanted(NodePolicy::INTERLEAVE, 0).unwrap(),
            [NodeId(0), NodeId(1)]
        );
        assert_eq!(
            wanted(NodePolicy::Node(NodeId(4)), 0)
                .unwrap_err()
                .to_string(),
            "node 4 has no memory: nodes with memory are 0,1"
        );
        assert_eq!(
            wanted(NodePolicy::Node(NodeId(9)), 0)
                .unwrap_err()
                .to_string(),
            "node 9 does not exist: this machine has nodes 0,1,4"
        );
    }

    #[test]
    fn a_kernel_without_numa_is_one_node() {
        let tree = Tree::new()
            .file("sys/devices/system/cpu/online", "0-3\n")
            .file("proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1024 kB\n");
        let topology = Topology::read(&tree.root());
        assert_eq!(topology.nodes.len(), 1);
        assert_eq!(topology.nodes[0].cpus.len(), 4);
        assert_eq!(topology.nodes[0].memory_bytes, 4 << 20);
        assert_eq!(topology.memory_nodes(), [NodeId(0)]);
    }

    #[test]
    fn a_field_is_not_read_from_inside_another() {
        assert_eq!(meminfo_bytes("XMemTotal: 1 kB\n", "MemTotal:"), None);
        assert_eq!(
            meminfo_bytes("HugePages_Total: 7\n", "HugePages_Total:"),
            Some(7)
        );
    }
}
