use std::sync::atomic::{AtomicBool, Ordering};

use membound_platform::Root;
use membound_platform::numa::{Node, Topology};
use membound_types::PageKind;

use super::*;
use crate::{Effort, Silent};

fn with_session(check: impl FnOnce(&mut Session<'_>, &AtomicBool)) {
    let root = Root::system();
    let cancel = AtomicBool::new(false);
    let mut session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
    check(&mut session, &cancel);
}

fn small() -> NumaConfig {
    NumaConfig {
        bytes: 8 << 20,
        page: PageKind::Base,
        budget: Duration::ZERO,
    }
}

fn node(id: u32, cpus: &[u32], memory_bytes: u64) -> Node {
    Node {
        id: NodeId(id),
        cpus: cpus.iter().copied().map(CpuId).collect(),
        memory_bytes,
        free_bytes: memory_bytes,
        distances: vec![(NodeId(0), 10), (NodeId(1), 21)],
    }
}

fn pair(cpu_node: u32, memory_node: u32, latency_ns: f64) -> NumaPair {
    NumaPair {
        cpu_node: NodeId(cpu_node),
        cpu: CpuId(0),
        memory_node: NodeId(memory_node),
        distance: None,
        placed_share: Outcome::Known(1.0),
        latency_ns: Outcome::Known(latency_ns),
        latency_batches: Samples::default(),
        read_gb_s: Outcome::missing("not measured"),
        read_batches: Samples::default(),
        rates: Vec::new(),
    }
}

#[test]
fn every_pair_of_this_machine_is_measured_where_it_is_placed() {
    with_session(|session, _| {
        let numa = measure(session, &small()).unwrap();
        let topology = &session.topology;
        assert_eq!(numa.nodes, topology.ids());
        assert_eq!(numa.summary == "one node", topology.nodes.len() == 1);
        let from = topology.cpu_nodes().len().max(1);
        let without_cpu = numa
            .skipped
            .iter()
            .filter(|line| line.starts_with("from node"))
            .count();
        assert_eq!(
            numa.pairs.len(),
            (from - without_cpu) * topology.memory_nodes().len()
        );
        for pair in &numa.pairs {
            match (&pair.latency_ns, &pair.read_gb_s) {
                (Outcome::Known(ns), Outcome::Known(rate)) => {
                    assert!(*ns > 0.0 && *rate > 0.0, "{pair:?}");
                    assert!(
                        *pair.placed_share.known().unwrap_or(&1.0) >= 0.99,
                        "{pair:?}"
                    );
                    assert!(!pair.latency_batches.raw.is_empty());
                    assert!(!pair.read_batches.raw.is_empty());
                }
                (Outcome::Missing { not_measured }, _) | (_, Outcome::Missing { not_measured }) => {
                    println!("skipped: {}", not_measured.reason);
                }
            }
        }
    });
}

#[test]
fn nodes_without_memory_or_usable_cpus_are_named() {
    with_session(|session, _| {
        let own = session.cpu.0;
        session.topology = Topology {
            nodes: vec![
                node(0, &[own], 1 << 30),
                node(1, &[1_000_000], 0),
                node(2, &[], 0),
            ],
        };
        let numa = measure(session, &small()).unwrap();
        assert_eq!(numa.nodes, [NodeId(0), NodeId(1), NodeId(2)]);
        let named = |text: &str| numa.skipped.iter().any(|line| line.contains(text));
        assert!(named("from node 1:"), "{:?}", numa.skipped);
        assert!(named("node 1 has no memory"), "{:?}", numa.skipped);
        assert!(named("node 2 has no memory"), "{:?}", numa.skipped);
        // From node 0 to the memory of node 0 is all that is left.
        assert_eq!(numa.pairs.len(), 1);
        assert_eq!(numa.pairs[0].distance, Some(10));
    });
}

#[test]
fn a_node_that_cannot_be_bound_is_a_reason_and_the_others_are_measured() {
    with_session(|session, _| {
        let real = session.topology.clone();
        if real.nodes.len() > 1 {
            println!("skipped: node 1 may really be there");
            return;
        }
        // The kernel knows nothing of node 1, so binding to it fails as it would where a
        // filter denies the call.
        session.topology = Topology {
            nodes: vec![node(0, &[session.cpu.0], 1 << 30), node(1, &[], 1 << 30)],
        };
        let numa = measure(session, &small()).unwrap();
        assert_eq!(numa.pairs.len(), 2);
        let far = &numa.pairs[1];
        assert_eq!((far.memory_node, far.distance), (NodeId(1), Some(21)));
        for why in [
            far.latency_ns.why_missing(),
            far.read_gb_s.why_missing(),
            far.placed_share.why_missing(),
        ] {
            assert!(!why.expect("node 1 is made up").reason.is_empty());
        }
    });
}

#[test]
fn a_cancelled_run_ends_early() {
    with_session(|session, cancel| {
        cancel.store(true, Ordering::Relaxed);
        let numa = measure(session, &small()).unwrap();
        assert!(numa.pairs.is_empty());
    });
}

#[test]
fn a_buffer_of_nothing_is_refused() {
    with_session(|session, _| {
        let config = NumaConfig {
            bytes: 4096,
            ..small()
        };
        let error = measure(session, &config).unwrap_err();
        assert!(error.to_string().contains("4096"), "{error}");
    });
}

#[test]
fn summaries_give_the_cost_of_remote_memory() {
    assert_eq!(summary(1, &[pair(0, 0, 100.0)]), "one node");
    let pairs = [
        pair(0, 0, 100.0),
        pair(0, 1, 150.0),
        pair(1, 0, 180.0),
        pair(1, 1, 100.0),
    ];
    assert_eq!(
        summary(2, &pairs),
        "2 nodes, 100 ns local, 150 to 180 ns remote (1.80 times local at the most)"
    );
    assert_eq!(
        summary(2, &pairs[..1]),
        "2 nodes, 100 ns local, no remote latency measured"
    );
    assert_eq!(summary(2, &[]), "2 nodes, no local latency measured");
}
