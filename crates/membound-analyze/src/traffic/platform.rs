//! The machine's nodes: CPUs kept busy by the program, and traffic between nodes.

use membound_types::{BandwidthDomain, Platform, PlatformLink, PlatformNode};

use super::node_or_link::NodeOrLink;
use crate::context::Context;
use crate::{info, numa};

/// Builds the view of the known nodes, with the average traffic of `domains`.
pub(crate) fn platform(context: &Context<'_>, domains: &[BandwidthDomain]) -> Platform {
    let run = context.run;
    let count = if run.meta.cpu_nodes.is_empty() {
        1
    } else {
        numa::nodes(run)
    };
    let mut nodes: Vec<PlatformNode> = (0..count as u16)
        .map(|node| PlatformNode {
            node,
            ..PlatformNode::default()
        })
        .collect();
    for (cpu, node) in (0_u32..).zip(&run.meta.cpu_nodes) {
        if let Some(node) = nodes.get_mut(usize::from(*node)) {
            node.cpus.push(cpu);
        }
    }
    if run.meta.cpu_nodes.is_empty() {
        nodes[0].cpus = (0..run.meta.cpus).collect();
    }
    // Summed as integers, so that the order of samples does not matter.
    let mut busy_ns = vec![0_u64; count];
    for sample in &run.samples {
        let own = info::is_own(run, run.stacks[sample.stack.index()].frame);
        if own || !context.is_selected(sample.thread) {
            continue;
        }
        let node = match numa::node_of_cpu(run, sample.cpu) {
            Some(node) => Some(usize::from(node)),
            // On a machine with one node, that node is the thread's.
            None => (count == 1).then_some(0),
        };
        if let Some(busy_ns) = node.and_then(|node| busy_ns.get_mut(node)) {
            *busy_ns = busy_ns.saturating_add(sample.weight_ns);
        }
    }
    let elapsed_ns = run.meta.elapsed_ns.max(1) as f64;
    for (node, busy_ns) in nodes.iter_mut().zip(busy_ns) {
        node.busy_cpus = busy_ns as f64 / elapsed_ns;
    }
    let mut links = Vec::new();
    for domain in domains {
        let (gb_s, most) = (
            domain.average_gb_s,
            domain.machine_max_gb_s.known().copied(),
        );
        let place = match NodeOrLink::of(&domain.domain) {
            None if count == 1 && domain.domain == "DRAM" => Some(NodeOrLink::Dram(0)),
            place => place,
        };
        match place {
            Some(NodeOrLink::Dram(node)) => {
                if let Some(node) = nodes.get_mut(usize::from(node)) {
                    (node.dram_gb_s, node.dram_max_gb_s) = (Some(gb_s), most);
                }
            }
            Some(NodeOrLink::Link { from, to }) => links.push(PlatformLink {
                from,
                to,
                gb_s,
                max_gb_s: most,
            }),
            None => {}
        }
    }
    Platform { nodes, links }
}
