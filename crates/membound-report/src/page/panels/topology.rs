//! Panels with matrices: nodes by nodes, cores by cores.

use std::collections::HashMap;

use maud::{Markup, html};
use membound_types::{CoreToCore, CpuId, Numa, NumaPair, Outcome};

use super::figure::figure_text;
use super::notes::skipped;
use crate::page::svg::{Cell, HeatMap};
use crate::{facts, units};

pub(super) fn numa(numa: &Numa) -> Markup {
    html! {
        p { b { (numa.summary) } " · " (numa.page) " pages" }
        @if let [only] = numa.pairs.as_slice() {
            p {
                "Random chase " (figure_text(&only.latency_ns, units::ns))
                "; read by one thread " (figure_text(&only.read_gb_s, units::gb_s)) "."
            }
        } @else { div.pair {
            (matrix(numa, "numa-latency", "Latency, ns.", "Random chase.", units::ns, |p| &p.latency_ns))
            (matrix(numa, "numa-bandwidth", "Read bandwidth, GB/s.", "One thread; here dark is fast.", units::gb_s, |p| &p.read_gb_s))
        } }
        @for pair in &numa.pairs {
            @if let Outcome::Known(share) = pair.placed_share {
                @if share < 0.995 {
                    p.note {
                        b { "Placement: " } "only " (units::percent(share)) " of the pages for CPUs of node "
                        (pair.cpu_node) " came to node " (pair.memory_node) "."
                    }
                }
            }
        }
        (unknown_nodes(numa))
        (skipped(&numa.skipped))
    }
}

fn matrix(
    numa: &Numa,
    id: &str,
    title: &str,
    reading: &str,
    format: fn(f64) -> String,
    value: impl Fn(&NumaPair) -> &Outcome<f64>,
) -> Markup {
    let index = |node| numa.nodes.iter().position(|n| *n == node);
    let cells = numa
        .pairs
        .iter()
        .filter_map(|pair| {
            let known = *value(pair).known()?;
            let distance = pair
                .distance
                .map_or_else(String::new, |d| format!("; declared distance {d}"));
            Some(Cell {
                row: index(pair.cpu_node)?,
                column: index(pair.memory_node)?,
                value: known,
                tip: format!(
                    "CPU {} of node {}, memory of node {}: {}{distance}",
                    pair.cpu,
                    pair.cpu_node,
                    pair.memory_node,
                    format(known)
                ),
            })
        })
        .collect();
    let names: Vec<String> = numa
        .nodes
        .iter()
        .map(|node| format!("node {node}"))
        .collect();
    let map = HeatMap {
        id: id.into(),
        title: title.into(),
        reading: reading.into(),
        rows: names.clone(),
        columns: names,
        row_title: "CPUs of".into(),
        column_title: "memory of".into(),
        cells,
        format,
    };
    map.markup()
}

/// Pairs without a figure, and the reasons.
fn unknown_nodes(numa: &Numa) -> Markup {
    let texts: Vec<String> = numa
        .pairs
        .iter()
        .flat_map(|pair| {
            let place = format!(
                "CPUs of node {}, memory of node {}",
                pair.cpu_node, pair.memory_node
            );
            [
                ("latency", pair.latency_ns.why_missing()),
                ("read bandwidth", pair.read_gb_s.why_missing()),
                ("placement", pair.placed_share.why_missing()),
            ]
            .into_iter()
            .filter_map(move |(what, why)| {
                Some(format!("{what} of {place}: {}", facts::missing_text(why?)))
            })
        })
        .collect();
    html! { @for text in texts { p.missing { (text) } } }
}

pub(super) fn c2c(c2c: &CoreToCore) -> Markup {
    let place: HashMap<CpuId, usize> = c2c
        .cpus
        .iter()
        .enumerate()
        .map(|(index, cpu)| (*cpu, index))
        .collect();
    let mut cells = Vec::with_capacity(2 * c2c.pairs.len());
    for pair in &c2c.pairs {
        let (Some(&from), Some(&to)) = (place.get(&pair.from), place.get(&pair.to)) else {
            continue;
        };
        let disturbed = facts::reason(&pair.batches.disturbed, units::ns)
            .map_or_else(String::new, |reason| format!("; disturbed: {reason}"));
        let tip = format!(
            "CPU {} to CPU {}: {} {}{disturbed}",
            pair.from,
            pair.to,
            units::ns(pair.one_way_ns),
            units::interval(pair.one_way_low_ns, pair.one_way_high_ns),
        );
        for (row, column) in [(from, to), (to, from)] {
            cells.push(Cell {
                row,
                column,
                value: pair.one_way_ns,
                tip: tip.clone(),
            });
        }
    }
    let names: Vec<String> = c2c.cpus.iter().map(ToString::to_string).collect();
    let map = HeatMap {
        id: "c2c-matrix".into(),
        title: "One way, ns.".into(),
        reading: "Half a round trip of one line; pairs were measured in one direction.".into(),
        rows: names.clone(),
        columns: names,
        row_title: "CPU".into(),
        column_title: "CPU".into(),
        cells,
        format: units::ns,
    };
    html! {
        @if c2c.pairs.is_empty() { p.missing { "not measured: there is one CPU only, so there is no pair" } }
        div.pair { (map.markup()) }
        (skipped(&c2c.skipped))
    }
}
