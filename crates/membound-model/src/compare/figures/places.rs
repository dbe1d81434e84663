//! Figures of nodes, and of lines moved from core to core.

use super::figure::{Figures, Label, around, relative_error};
use crate::compare::noise::Noise;
use crate::compare::view::ProfileView;

pub(super) fn numa(profile: &ProfileView, out: &mut Figures) {
    if profile.numa.nodes.is_empty() {
        return;
    }
    out.add(
        Label {
            name: "numa.nodes".to_owned(),
            part: "numa",
            title: "nodes".to_owned(),
            unit: "",
            noise: Noise::Exact,
        },
        profile.numa.nodes.len() as f64,
        None,
    );
    for pair in &profile.numa.pairs {
        let (cpu, memory) = (pair.cpu_node, pair.memory_node);
        let label = |what: &str, title: &str, unit, noise| Label {
            name: format!("numa.{cpu}.{memory}.{what}"),
            part: "numa",
            title: format!("node {cpu} to memory of {memory}, {title}"),
            unit,
            noise,
        };
        if let Some(ns) = pair.latency_ns.known() {
            out.add(
                label("latency_ns", "latency", "ns", Noise::MemoryLatency),
                *ns,
                relative_error(&pair.latency_batches.raw).map(|error| around(*ns, error)),
            );
        }
        if let Some(gb_s) = pair.read_gb_s.known() {
            out.add(
                label("read_gb_s", "read", "GB/s", Noise::MemoryBandwidth),
                *gb_s,
                relative_error(&pair.read_batches.raw).map(|error| around(*gb_s, error)),
            );
        }
    }
}

pub(super) fn c2c(profile: &ProfileView, out: &mut Figures) {
    let mut pairs: Vec<_> = profile
        .c2c
        .pairs
        .iter()
        .filter(|pair| pair.one_way_ns.is_finite())
        .collect();
    pairs.sort_by(|a, b| a.one_way_ns.total_cmp(&b.one_way_ns));
    let Some(farthest) = pairs.last() else {
        return;
    };
    let middle = pairs[pairs.len() / 2];
    for (what, title, pair) in [
        ("median_ns", "core to core, median pair", middle),
        ("max_ns", "core to core, farthest pair", farthest),
    ] {
        out.add(
            Label {
                name: format!("c2c.{what}"),
                part: "c2c",
                title: title.to_owned(),
                unit: "ns",
                noise: Noise::CoreToCore,
            },
            pair.one_way_ns,
            Some((pair.one_way_low_ns, pair.one_way_high_ns)),
        );
        if pairs.len() == 1 {
            break;
        }
    }
}
