//! `measure numa`: every node with CPUs against every node with memory.
//!
//! One buffer at a time is bound to a node and verified to lie there; then a CPU of each node
//! chases through it at random and streams over it. If something fails for a pair (a node that is
//! full, a filter that denies `mbind` or `move_pages`), the pair carries the reason, and the other
//! pairs are still measured.

mod buffer;
mod config;
mod rates;

use std::time::{Duration, Instant};

use membound_types::{CpuId, NodeId, Numa, NumaPair, Outcome, Samples};

pub use config::NumaConfig;

use crate::sampling::{Slot, run_rounds};
use crate::{Error, Session};
use buffer::Buffer;

/// One of the two figures of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairFigure {
    Latency,
    ReadBandwidth,
}

/// Measures every pair. A cancelled run returns the pairs that have samples.
///
/// # Errors
/// [`Error::Invalid`] for a buffer too small to be chased through.
pub fn measure(session: &Session<'_>, config: &NumaConfig) -> Result<Numa, Error> {
    let started = Instant::now();
    if config.bytes < Buffer::MIN_BYTES {
        return Err(Error::Invalid(format!(
            "a buffer of {} bytes is too small for node latencies: use {} or more",
            config.bytes,
            Buffer::MIN_BYTES
        )));
    }
    let topology = &session.topology;
    let mut skipped = Vec::new();
    let from = measuring_cpus(session, &mut skipped);
    let memory = topology.memory_nodes();
    for node in topology.ids() {
        if !memory.contains(&node) {
            skipped.push(format!("node {node} has no memory"));
        }
    }
    let mut pairs = Vec::new();
    for (at, node) in memory.iter().enumerate() {
        if session.cancelled() {
            break;
        }
        let share = |within: f64| (at as f64 + within) / memory.len() as f64;
        let budget = config.budget / u32::try_from(memory.len()).unwrap_or(u32::MAX);
        pairs.extend(against(
            session,
            config,
            *node,
            &from,
            budget,
            &share,
            &mut skipped,
        ));
    }
    pairs.sort_by_key(|pair| (pair.cpu_node, pair.memory_node));
    rates::measure(session, config, &mut pairs, &mut skipped);
    Ok(Numa {
        nodes: topology.ids(),
        summary: summary(topology.nodes.len(), &pairs),
        pairs,
        page: config.page,
        skipped,
        elapsed_s: started.elapsed().as_secs_f64(),
    })
}

/// A usable CPU of every node that has one: the session's own on its node, else the node's last,
/// because the first serves most interrupts.
fn measuring_cpus(session: &Session<'_>, skipped: &mut Vec<String>) -> Vec<(NodeId, CpuId)> {
    let mut from = Vec::new();
    for node in &session.topology.nodes {
        if node.cpus.is_empty() {
            continue;
        }
        let usable = |cpu: &&CpuId| session.cpus.contains(*cpu);
        let own = node.cpus.iter().find(|cpu| **cpu == session.cpu);
        match own.or_else(|| node.cpus.iter().rev().find(usable)) {
            Some(cpu) => from.push((node.id, *cpu)),
            None => skipped.push(format!(
                "from node {}: this process may use none of its CPUs (taskset or the cpuset of the container widens that)",
                node.id
            )),
        }
    }
    if from.is_empty() {
        // A tree without CPU lists: the calling process still runs somewhere.
        from.push((session.topology.node_of(session.cpu), session.cpu));
    }
    from
}

/// Measures all CPUs of `from` against the memory of `node`.
fn against(
    session: &Session<'_>,
    config: &NumaConfig,
    node: NodeId,
    from: &[(NodeId, CpuId)],
    budget: Duration,
    share: &dyn Fn(f64) -> f64,
    skipped: &mut Vec<String>,
) -> Vec<NumaPair> {
    session.progress.at(
        share(0.0),
        &format!("numa: placing {} pages on node {node}", config.page),
    );
    let mut buffer = match Buffer::on(session, config, node, from[0].1) {
        Ok(buffer) => buffer,
        Err(error) => return unplaced(session, from, node, &error),
    };
    skipped.extend(buffer.note());
    let placed = buffer.placed_share(session);
    let mut slots: Vec<Slot<(usize, PairFigure)>> = (0..from.len())
        .flat_map(|at| {
            [
                Slot::time((at, PairFigure::Latency)),
                Slot::rate((at, PairFigure::ReadBandwidth)),
            ]
        })
        .collect();
    let mut failed: Vec<Option<Error>> = from.iter().map(|_| None).collect();
    let ran = run_rounds(
        session,
        budget,
        &mut slots,
        |&(at, what), progress| {
            let (cpu_node, cpu) = from[at];
            session.progress.at(
                share(progress.done),
                &format!("numa: node {cpu_node} to memory of node {node}"),
            );
            let visit = match what {
                _ if failed[at].is_some() => return Ok(Vec::new()),
                PairFigure::Latency => buffer.latency(session, cpu),
                PairFigure::ReadBandwidth => buffer.read(session, cpu),
            };
            // An error, such as a CPU that went offline, concerns this pair only.
            Ok(match visit {
                Ok(visit) => vec![visit],
                Err(error) => {
                    failed[at] = Some(error);
                    Vec::new()
                }
            })
        },
        |_, _| (),
    );
    debug_assert!(ran.is_ok(), "a visit keeps its error for its own pair");
    from.iter()
        .enumerate()
        .map(|(at, (cpu_node, cpu))| {
            let figure = |what| figure(sampled(session, &slots, at, what), failed[at].as_ref());
            let (latency_ns, latency_batches) = figure(PairFigure::Latency);
            let (read_gb_s, read_batches) = figure(PairFigure::ReadBandwidth);
            NumaPair {
                placed_share: placed.clone(),
                latency_ns,
                latency_batches,
                read_gb_s,
                read_batches,
                ..unmeasured(session, *cpu_node, *cpu, node)
            }
        })
        .collect()
}

/// The pairs of a node on which no memory could be placed.
fn unplaced(
    session: &Session<'_>,
    from: &[(NodeId, CpuId)],
    node: NodeId,
    error: &Error,
) -> Vec<NumaPair> {
    let placed = match error {
        Error::Placement { percent, .. } => Outcome::Known(percent / 100.0),
        _ => missing(error),
    };
    from.iter()
        .map(|(cpu_node, cpu)| NumaPair {
            placed_share: placed.clone(),
            latency_ns: missing(error),
            read_gb_s: missing(error),
            ..unmeasured(session, *cpu_node, *cpu, node)
        })
        .collect()
}

/// A figure with its batches, or the reason why there is none.
fn figure(sampled: Option<(f64, Samples)>, failed: Option<&Error>) -> (Outcome<f64>, Samples) {
    match (sampled, failed) {
        (Some((figure, samples)), _) => (Outcome::Known(figure), samples),
        (None, Some(error)) => (missing(error), Samples::default()),
        (None, None) => (
            Outcome::missing("the run ended before this pair was measured"),
            Samples::default(),
        ),
    }
}

fn sampled(
    session: &Session<'_>,
    slots: &[Slot<(usize, PairFigure)>],
    at: usize,
    what: PairFigure,
) -> Option<(f64, Samples)> {
    let slot = slots.iter().find(|slot| slot.key == (at, what))?;
    let sampled = slot.sampled(session)?;
    Some((sampled.summary.median, sampled.samples))
}

/// A pair without measurements.
fn unmeasured(session: &Session<'_>, cpu_node: NodeId, cpu: CpuId, node: NodeId) -> NumaPair {
    NumaPair {
        cpu_node,
        cpu,
        memory_node: node,
        distance: session.topology.distance(cpu_node, node),
        placed_share: Outcome::missing("not looked at"),
        latency_ns: Outcome::missing("not measured"),
        latency_batches: Samples::default(),
        read_gb_s: Outcome::missing("not measured"),
        read_batches: Samples::default(),
        rates: Vec::new(),
    }
}

/// The error as the reason for a missing value; the platform's errors keep their remedy separate.
fn missing<T>(error: &Error) -> Outcome<T> {
    match error {
        Error::Platform(error) => Outcome::Missing {
            not_measured: error.not_measured(),
        },
        _ => Outcome::missing(error.to_string()),
    }
}

/// `one node`, or the local latency and the range of remote ones, with the largest ratio.
fn summary(nodes: usize, pairs: &[NumaPair]) -> String {
    if nodes <= 1 {
        return "one node".to_owned();
    }
    let latency = |local: bool| -> Vec<f64> {
        pairs
            .iter()
            .filter(|pair| (pair.cpu_node == pair.memory_node) == local)
            .filter_map(|pair| pair.latency_ns.known().copied())
            .collect()
    };
    let (local, remote) = (latency(true), latency(false));
    let Some(near) = crate::stats::median(&local) else {
        return format!("{nodes} nodes, no local latency measured");
    };
    if remote.is_empty() {
        return format!("{nodes} nodes, {near:.0} ns local, no remote latency measured");
    }
    let least = remote.iter().copied().fold(f64::INFINITY, f64::min);
    let most = remote.iter().copied().fold(0.0, f64::max);
    let range = if (most - least) < 0.02 * most {
        format!("{most:.0} ns")
    } else {
        format!("{least:.0} to {most:.0} ns")
    };
    format!(
        "{nodes} nodes, {near:.0} ns local, {range} remote ({:.2} times local at the most)",
        most / near
    )
}

#[cfg(test)]
mod tests;
