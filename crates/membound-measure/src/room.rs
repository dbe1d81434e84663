//! How much memory buffers of one page kind may use.
//!
//! A measurement must not drive the machine out of memory, and a strict binding drives one node out
//! of memory while the others have plenty. The limit is therefore the minimum of what the machine,
//! its cgroups and limits, the nodes that the policy names, and (for huge pages of a pool) the pool
//! have available. All figures are bytes at the time of the call.

use std::collections::BTreeMap;

use membound_platform::numa::Topology;
use membound_platform::pages::{self, HugePool};
use membound_platform::{Root, memory};
use membound_types::{CpuId, NodeId, NodePolicy, PageKind};

use crate::Session;

/// Bytes of one page.
pub(crate) fn page_bytes(page: PageKind) -> u64 {
    match page {
        PageKind::Base => pages::base_page_bytes() as u64,
        PageKind::Thp | PageKind::Huge2M => 2 << 20,
        PageKind::Huge1G => 1 << 30,
    }
}

/// Whether the pages come from a pool that serves no other memory.
pub(crate) const fn is_pool(page: PageKind) -> bool {
    matches!(page, PageKind::Huge2M | PageKind::Huge1G)
}

/// Maximum bytes that buffers of `page` pages under the policy `node`, seen from `cpu`, can use
/// together. A sixteenth of shared memory, at most 1 GiB, stays free, because the kernel's figure
/// of available memory is an estimate.
pub(crate) fn obtainable_bytes(
    root: &Root,
    topology: &Topology,
    (page, node, cpu): (PageKind, NodePolicy, CpuId),
) -> u64 {
    let free = free_bytes(root, topology, (page, node, cpu));
    if is_pool(page) {
        return free;
    }
    free - (free / 16).min(1 << 30)
}

/// Like [`obtainable_bytes`], but without the part that stays free.
fn free_bytes(
    root: &Root,
    topology: &Topology,
    (page, node, cpu): (PageKind, NodePolicy, CpuId),
) -> u64 {
    let bound = bound_to(topology, node, cpu);
    if is_pool(page) {
        return pool_bytes(root, page, bound.as_deref());
    }
    let on_nodes = bound.and_then(|nodes| {
        let free: Option<Vec<u64>> = nodes.iter().map(|it| node_bytes(root, *it)).collect();
        let free = free?;
        // Interleaved pages are spread evenly, so the node with the least memory limits all.
        Some(free.iter().min()?.saturating_mul(free.len() as u64))
    });
    memory::available_bytes(root).min(on_nodes.unwrap_or(u64::MAX))
}

/// Bytes for each of `buffers` buffers such that a quarter of shared memory stays for other
/// programs. Pages of a pool serve nothing else, so all of them may be used.
pub(crate) fn share_bytes(
    session: &Session<'_>,
    (page, node, cpu): (PageKind, NodePolicy, CpuId),
    buffers: u64,
) -> u64 {
    let all = free_bytes(session.root, &session.topology, (page, node, cpu));
    if is_pool(page) {
        let each = all / buffers.max(1);
        return each - each % page_bytes(page);
    }
    all / 4 * 3 / buffers.max(1)
}

/// [`share_bytes`] of each buffer when each of `cpus` has one: with several nodes, local memory
/// differs between CPUs.
pub(crate) fn share_each(
    session: &Session<'_>,
    (page, node): (PageKind, NodePolicy),
    cpus: &[CpuId],
) -> u64 {
    let share = |cpu, count| share_bytes(session, (page, node, cpu), count);
    least(
        session,
        (page, node),
        cpus,
        memory::available_bytes(session.root) / 4 * 3,
        share,
    )
}

/// [`obtainable_bytes`] of each buffer when each of `cpus` has one.
pub(crate) fn obtainable_each(
    session: &Session<'_>,
    (page, node): (PageKind, NodePolicy),
    cpus: &[CpuId],
) -> u64 {
    let share =
        |cpu, count| obtainable_bytes(session.root, &session.topology, (page, node, cpu)) / count;
    let available = memory::available_bytes(session.root);
    let machine = available - (available / 16).min(1 << 30);
    least(session, (page, node), cpus, machine, share)
}

/// The minimum of what `share` gives each buffer of a node, and of `machine` divided among all.
fn least(
    session: &Session<'_>,
    (page, node): (PageKind, NodePolicy),
    cpus: &[CpuId],
    machine: u64,
    share: impl Fn(CpuId, u64) -> u64,
) -> u64 {
    let mut crowds: BTreeMap<NodeId, (CpuId, u64)> = BTreeMap::new();
    for &cpu in cpus {
        let from = match node {
            NodePolicy::LOCAL => session.topology.node_of(cpu),
            _ => NodeId(0),
        };
        crowds.entry(from).or_insert((cpu, 0)).1 += 1;
    }
    let on_nodes = crowds.into_values().map(|(cpu, count)| share(cpu, count));
    let machine = if is_pool(page) {
        u64::MAX
    } else {
        machine / (cpus.len() as u64).max(1)
    };
    on_nodes.min().unwrap_or(0).min(machine)
}

/// Nodes to which pages are bound; `None` with a single memory node or an impossible policy.
fn bound_to(topology: &Topology, node: NodePolicy, cpu: CpuId) -> Option<Vec<NodeId>> {
    if topology.memory_nodes().len() <= 1 {
        return None;
    }
    // An impossible policy is refused, with its reason, where pages are placed.
    topology.wanted(node, topology.node_of(cpu)).ok()
}

/// Free bytes of the pool, only on `nodes` if given.
fn pool_bytes(root: &Root, page: PageKind, nodes: Option<&[NodeId]>) -> u64 {
    let bytes = page_bytes(page);
    HugePool::read(root)
        .into_iter()
        .find(|pool| pool.page_bytes == bytes)
        .map_or(0, |pool| {
            let of = |node: &NodeId| {
                let found = pool.per_node.iter().find(|(id, _)| id == node);
                found.map_or(0, |(_, free)| *free)
            };
            let here = match nodes {
                Some(nodes) if !pool.per_node.is_empty() => {
                    nodes.iter().map(of).min().unwrap_or(0) * nodes.len() as u64
                }
                _ => u64::MAX,
            };
            pool.usable().min(here).saturating_mul(bytes)
        })
}

/// Bytes that a node can give now: free memory and inactive file pages. `None` where the kernel
/// does not report them.
pub(crate) fn node_bytes(root: &Root, node: NodeId) -> Option<u64> {
    let text = root
        .read(format!("sys/devices/system/node/node{node}/meminfo"))
        .ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.contains(name))?;
        let kib: u64 = line
            .rsplit_once("kB")?
            .0
            .rsplit_once(':')?
            .1
            .trim()
            .parse()
            .ok()?;
        Some(kib * 1024)
    };
    Some(field("MemFree:")? + field("Inactive(file):").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::{Effort, Silent};

    const GIB: u64 = 1 << 30;

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two nodes of 4 GiB, of which the second has 1 GiB free, and 2 MiB pages on the first.
    fn two_nodes() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        write(at, "proc/meminfo", "MemAvailable: 5242880 kB\n");
        write(at, "sys/devices/system/node/online", "0-1\n");
        for (node, free_kib) in [(0, 4 << 20), (1, 1 << 20)] {
            let node_dir = format!("sys/devices/system/node/node{node}");
            write(at, &format!("{node_dir}/cpulist"), &format!("{node}\n"));
            write(at, &format!("{node_dir}/distance"), "10 20\n");
            write(
                at,
                &format!("{node_dir}/meminfo"),
                &format!("Node {node} MemTotal: 4194304 kB\nNode {node} MemFree: {free_kib} kB\n"),
            );
            let pool = "hugepages/hugepages-2048kB/free_hugepages";
            let free = if node == 0 { "100\n" } else { "0\n" };
            write(at, &format!("{node_dir}/{pool}"), free);
        }
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        write(at, &format!("{pool}/nr_hugepages"), "128\n");
        write(at, &format!("{pool}/free_hugepages"), "100\n");
        dir
    }

    fn obtainable(page: PageKind, node: NodePolicy, cpu: u32) -> u64 {
        let dir = two_nodes();
        let root = Root::at(dir.path());
        obtainable_bytes(&root, &Topology::read(&root), (page, node, CpuId(cpu)))
    }

    #[test]
    fn a_node_gives_no_more_than_it_has_however_much_the_machine_has() {
        let kept = |bytes: u64| bytes - bytes / 16;
        let base = |node, cpu| obtainable(PageKind::Base, node, cpu);
        assert_eq!(base(NodePolicy::LOCAL, 0), kept(4 * GIB));
        assert_eq!(base(NodePolicy::LOCAL, 1), kept(GIB));
        assert_eq!(base(NodePolicy::Node(NodeId(1)), 0), kept(GIB));
        assert_eq!(base(NodePolicy::INTERLEAVE, 0), kept(2 * GIB));
    }

    #[test]
    fn copies_share_a_node_only_with_their_neighbours() {
        let dir = two_nodes();
        let (system, root) = (Root::system(), Root::at(dir.path()));
        let cancel = AtomicBool::new(false);
        let mut session = Session::new(&system, None, Effort::Quick, &cancel, &Silent).unwrap();
        session.root = &root;
        session.topology = Topology::read(&root);
        let each = |node, cpus: &[u32]| {
            let cpus: Vec<CpuId> = cpus.iter().copied().map(CpuId).collect();
            share_each(&session, (PageKind::Base, node), &cpus)
        };
        assert_eq!(each(NodePolicy::LOCAL, &[0]), 3 * GIB);
        // The machine has 5 GiB for both, the second node 1 GiB for its own.
        assert_eq!(each(NodePolicy::LOCAL, &[0, 1]), 3 * GIB / 4);
        assert_eq!(each(NodePolicy::LOCAL, &[0, 0]), 3 * GIB / 2);
        assert_eq!(each(NodePolicy::Node(NodeId(1)), &[0, 1]), 3 * GIB / 8);
        let cpus = [CpuId(0), CpuId(1)];
        let most = obtainable_each(&session, (PageKind::Base, NodePolicy::LOCAL), &cpus);
        assert_eq!(most, GIB - GIB / 16);
    }

    #[test]
    fn a_pool_gives_no_more_than_its_pages_where_they_are() {
        let of = |node, cpu| obtainable(PageKind::Huge2M, node, cpu);
        assert_eq!(of(NodePolicy::LOCAL, 0), 100 * (2 << 20));
        assert_eq!(of(NodePolicy::LOCAL, 1), 0);
        assert_eq!(obtainable(PageKind::Huge1G, NodePolicy::LOCAL, 0), 0);
    }

    #[test]
    fn available_memory_of_a_node_is_free_memory_and_idle_file_pages() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:       4000000 kB\nNode 1 MemFree:           1000 kB\n\
             Node 1 Active(file):   500 kB\nNode 1 Inactive(file):   24 kB\n",
        );
        let root = Root::at(dir.path());
        assert_eq!(node_bytes(&root, NodeId(1)), Some(1024 * 1024));
        assert_eq!(node_bytes(&root, NodeId(0)), None);
    }
}
