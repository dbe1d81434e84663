//! The parts `numa` and `c2c` on a terminal: matrices.

use membound_types::{CorePair, CoreToCore, Numa, NumaPair, Outcome};

use super::detail::Detail;
use super::latency::skipped;
use super::out::Out;
use super::table::Table;
use crate::{facts, units};

/// Most CPUs in a matrix of 80 columns.
const MAX_MATRIX_CPUS: usize = 12;
const MISSING: &str = "–";

pub(super) fn write_numa(out: &mut Out, numa: &Numa, detail: Detail) {
    out.heading("NUMA", &numa.summary);
    if numa.nodes.len() > 1 || detail == Detail::Full {
        matrix(out, numa, "latency, ns", |pair| &pair.latency_ns);
        matrix(out, numa, "read by one thread, GB/s", |pair| {
            &pair.read_gb_s
        });
    }
    for pair in &numa.pairs {
        if let Outcome::Known(share) = pair.placed_share
            && share < 0.995
        {
            out.warning(&format!(
                "only {} of the pages for CPUs of node {} came to node {}",
                units::percent(share),
                pair.cpu_node,
                pair.memory_node
            ));
        }
    }
    if detail == Detail::Full {
        skipped(out, &numa.skipped);
    }
}

fn matrix(out: &mut Out, numa: &Numa, title: &str, value: impl Fn(&NumaPair) -> &Outcome<f64>) {
    out.line(title);
    let mut table = Table::new().words("CPUs of \\ memory of");
    for node in numa.nodes.iter().take(MAX_MATRIX_CPUS) {
        table = table.figures(&format!("node {node}"));
    }
    let mut reasons: Vec<String> = Vec::new();
    for from in numa.nodes.iter().take(MAX_MATRIX_CPUS) {
        let mut row = vec![format!("node {from}")];
        for to in numa.nodes.iter().take(MAX_MATRIX_CPUS) {
            let pair = numa
                .pairs
                .iter()
                .find(|pair| pair.cpu_node == *from && pair.memory_node == *to);
            row.push(match pair.map(&value) {
                Some(Outcome::Known(value)) => units::number(*value),
                Some(Outcome::Missing { not_measured }) => {
                    let reason = facts::missing_text(not_measured);
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                    MISSING.to_owned()
                }
                None => MISSING.to_owned(),
            });
        }
        table.row(row);
    }
    out.table(&table);
    for reason in reasons {
        out.note(&reason);
    }
    if numa.nodes.len() > MAX_MATRIX_CPUS {
        out.note(&format!(
            "{} nodes in all; --json has them",
            numa.nodes.len()
        ));
    }
}

pub(super) fn write_c2c(out: &mut Out, c2c: &CoreToCore, detail: Detail) {
    out.heading(
        "core to core",
        &format!(
            "one way, {} in {}",
            units::plural(c2c.pairs.len(), "pair"),
            units::seconds(c2c.elapsed_s)
        ),
    );
    let order = |a: &&CorePair, b: &&CorePair| a.one_way_ns.total_cmp(&b.one_way_ns);
    if let (Some(nearest), Some(farthest)) = (
        c2c.pairs.iter().min_by(order),
        c2c.pairs.iter().max_by(order),
    ) {
        let text = |pair: &CorePair| {
            format!(
                "CPU {} to {}: {} {}",
                pair.from,
                pair.to,
                units::ns(pair.one_way_ns),
                units::interval(pair.one_way_low_ns, pair.one_way_high_ns)
            )
        };
        if c2c.pairs.len() == 1 {
            out.line(&text(nearest));
        } else {
            out.line(&format!(
                "nearest {}; farthest {}",
                text(nearest),
                text(farthest)
            ));
        }
    }
    if detail == Detail::Full && c2c.pairs.len() > 1 {
        let mut table = Table::new().words("ns");
        for cpu in c2c.cpus.iter().take(MAX_MATRIX_CPUS) {
            table = table.figures(&cpu.to_string());
        }
        for from in c2c.cpus.iter().take(MAX_MATRIX_CPUS) {
            let mut row = vec![format!("CPU {from}")];
            row.extend(c2c.cpus.iter().take(MAX_MATRIX_CPUS).map(|to| {
                c2c.pairs
                    .iter()
                    .find(|p| (p.from, p.to) == (*from, *to) || (p.to, p.from) == (*from, *to))
                    .map(|p| units::number(p.one_way_ns))
                    .unwrap_or_default()
            }));
            table.row(row);
        }
        out.table(&table);
        if c2c.cpus.len() > MAX_MATRIX_CPUS {
            out.note(&format!(
                "the first {MAX_MATRIX_CPUS} of {} CPUs; --json and --html have all",
                c2c.cpus.len()
            ));
        }
    }
    if detail == Detail::Full {
        skipped(out, &c2c.skipped);
    }
}
