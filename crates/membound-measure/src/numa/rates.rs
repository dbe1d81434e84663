//! Rates of all CPUs of a node together to the memory of another: the maximum that a program there
//! can get from that memory, or from what connects the two.

use membound_types::{CpuId, NodePolicy, NumaPair};

use super::config::NumaConfig;
use crate::Session;
use crate::bandwidth::{self, BandwidthConfig};

/// Measures every pair of a machine with several nodes, with all kernels.
pub(super) fn measure(
    session: &Session<'_>,
    config: &NumaConfig,
    pairs: &mut [NumaPair],
    skipped: &mut Vec<String>,
) {
    if session.topology.nodes.len() <= 1 {
        return;
    }
    // Twice the time of the chases for all pairs: kernels move more in less time.
    let budget = 2 * config.budget / u32::try_from(pairs.len().max(1)).unwrap_or(u32::MAX);
    for pair in pairs {
        if session.cancelled() {
            return;
        }
        let node = session.topology.nodes.iter();
        let of_node = node
            .filter(|node| node.id == pair.cpu_node)
            .flat_map(|node| &node.cpus);
        let cpus: Vec<CpuId> = of_node
            .copied()
            .filter(|cpu| session.cpus.contains(cpu))
            .collect();
        if cpus.is_empty() {
            continue;
        }
        let threads = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
        let rates = BandwidthConfig {
            threads: vec![threads],
            nodes: vec![NodePolicy::Node(pair.memory_node)],
            cpus: Some(cpus),
            budget,
            ..BandwidthConfig::new(session.effort, config.page, threads)
        };
        let room_bytes = bandwidth::largest_set_bytes(session, &rates);
        let beyond_bytes = bandwidth::beyond_caches_bytes(session);
        let rates = BandwidthConfig {
            sizes: Some(vec![beyond_bytes.min(room_bytes)]),
            ..rates
        };
        match bandwidth::measure(session, &rates) {
            Ok(measured) => {
                pair.rates = measured.points;
                skipped.extend(measured.skipped);
            }
            Err(error) => skipped.push(format!(
                "bandwidth of node {} from node {}: {error}",
                pair.memory_node, pair.cpu_node
            )),
        }
    }
}
