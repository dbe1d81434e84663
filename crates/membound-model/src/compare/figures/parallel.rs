//! Figures of the core's windows and of parallel loads.

use membound_types::{ComparedValue, Filler, NodePolicy, Outcome};

use super::figure::{Figures, Label, around, relative_error};
use crate::compare::noise::Noise;
use crate::compare::table::Cells;
use crate::compare::view::ProfileView;

pub(super) fn mlp(profile: &ProfileView, out: &mut Figures) {
    for part in profile.mlp.conditions() {
        let (page, node) = (part.page, part.node);
        let label = |what: &str, title: &str, unit, noise| Label {
            name: format!("mlp.{page}.{node}.{what}"),
            part: "mlp",
            title: if node == NodePolicy::LOCAL {
                format!("{title}, {page}")
            } else {
                format!("{title}, {page}, node {node}")
            },
            unit,
            noise,
        };
        let fused = part
            .windows
            .iter()
            .any(|window| window.filler == Filler::Nop && window.fillers_per_entry > 1.0);
        for window in &part.windows {
            // If the nops are fused, they do not show the reorder buffer, but the mixed fillers do.
            let what = match window.filler {
                Filler::Nop if !fused => "rob_entries".to_owned(),
                Filler::Mixed if fused => "rob_entries".to_owned(),
                other => format!("{other}_entries"),
            };
            out.add(
                label(&what, &window.limited_by, "", Noise::Window),
                window.entries.value,
                Some((window.entries.low, window.entries.high)),
            );
        }
        let cells = Cells::of(part);
        if let Some(one) = cells.one {
            out.add(
                label("one_load_cycles", "one load", "cycles", Noise::ColdLoads),
                one.value,
                interval(one),
            );
        }
        if let Some(pair) = cells.pair {
            out.add(
                label(
                    "pair_cycles",
                    "two loads in sequence",
                    "cycles",
                    Noise::ColdLoads,
                ),
                pair.value,
                interval(pair),
            );
        }
        if let Outcome::Known(rule) = cells.rule {
            out.add(
                label("rule", "parallel loads by rule", "", Noise::Parallelism),
                rule.value,
                interval(rule),
            );
        }
        if let Some(throughput) = part.mlp_throughput.known() {
            let best = part
                .throughput
                .iter()
                .filter(|point| point.parallelism.is_finite())
                .min_by(|a, b| {
                    let off = |value: f64| (value - throughput).abs();
                    off(a.parallelism).total_cmp(&off(b.parallelism))
                });
            let error = best.and_then(|point| relative_error(&point.batches.raw));
            out.add(
                label(
                    "throughput",
                    "parallel loads by throughput",
                    "",
                    Noise::Parallelism,
                ),
                *throughput,
                error.map(|error| around(*throughput, error)),
            );
        }
    }
}

const fn interval(value: ComparedValue) -> Option<(f64, f64)> {
    match (value.low, value.high) {
        (Some(low), Some(high)) => Some((low, high)),
        _ => None,
    }
}
