//! Figures of the core's windows and of parallel loads.

use membound_types::{ComparedValue, Filler, Outcome, WindowLimit};

use super::figure::{Figures, Label, around, relative_error};
use crate::compare::noise::Noise;
use crate::compare::table::{Cells, conditional_title};
use crate::compare::view::{MlpView, ProfileView};

pub(super) fn mlp(profile: &ProfileView, out: &mut Figures) {
    for part in profile.mlp.conditions() {
        windows(part, out);
        loads(part, out);
        if let Some(throughput) = part.mlp_throughput.known() {
            by_throughput(part, *throughput, out);
        }
    }
}

fn label(part: &MlpView, what: &str, title: &str, unit: &'static str, noise: Noise) -> Label {
    let (page, node) = (part.page, part.node);
    Label {
        name: format!("mlp.{page}.{node}.{what}"),
        part: "mlp",
        title: conditional_title(title, page, node),
        unit,
        noise,
    }
}

fn windows(part: &MlpView, out: &mut Figures) {
    let fused = part
        .windows
        .iter()
        .any(|window| window.filler == Filler::Nop && window.fillers_per_entry > 1.0);
    for window in &part.windows {
        let resource = resource(window);
        // If the nops are fused, they do not show the reorder buffer, but the mixed fillers do.
        let (what, title) = match window.filler {
            Filler::Nop if !fused => ("rob_entries".to_owned(), resource.to_owned()),
            Filler::Mixed if fused => ("rob_entries".to_owned(), resource.to_owned()),
            // One filler can end at different resources on two machines, whose entries are no
            // values of one figure.
            other => (
                format!("{other}.{}_entries", resource.replace(' ', "_")),
                format!("{other} fillers: {resource}"),
            ),
        };
        out.add(
            label(part, &what, &title, "", Noise::Window),
            window.entries.value,
            Some((window.entries.low, window.entries.high)),
        );
    }
}

/// The times of one load and of two, and the parallelism that follows from them.
fn loads(part: &MlpView, out: &mut Figures) {
    let cells = Cells::of(part);
    if let Some(one) = cells.one {
        out.add(
            label(
                part,
                "one_load_cycles",
                "one load",
                "cycles",
                Noise::ColdLoads,
            ),
            one.value,
            interval(one),
        );
    }
    if let Some(pair) = cells.pair {
        out.add(
            label(
                part,
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
            label(
                part,
                "rule",
                "parallel loads by rule",
                "",
                Noise::Parallelism,
            ),
            rule.value,
            interval(rule),
        );
    }
}

fn by_throughput(part: &MlpView, throughput: f64, out: &mut Figures) {
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
            part,
            "throughput",
            "parallel loads by throughput",
            "",
            Noise::Parallelism,
        ),
        throughput,
        error.map(|error| around(throughput, error)),
    );
}

/// The exhausted resource, without the number of fillers that share an entry.
fn resource(window: &WindowLimit) -> &str {
    let limit = window.limited_by.as_str();
    limit
        .split_once(" (")
        .map_or(limit, |(resource, _)| resource)
}

const fn interval(value: ComparedValue) -> Option<(f64, f64)> {
    match (value.low, value.high) {
        (Some(low), Some(high)) => Some((low, high)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use membound_types::{Basis, ComparedFigure, Figure, Samples, ThroughputPoint};

    use super::*;
    use crate::compare::compare;
    use crate::compare::guard;
    use crate::compare::view::NamedProfile;

    fn window(filler: Filler, limited_by: &str, fillers: u32, each: f64) -> WindowLimit {
        let entries = f64::from(fillers) / each;
        WindowLimit {
            filler,
            pattern: Vec::new(),
            limited_by: limited_by.to_owned(),
            cliff_fillers: fillers,
            fillers_per_entry: each,
            entries: Figure {
                value: entries,
                low: entries - 1.0,
                high: entries + 1.0,
                basis: Basis::Measured,
            },
            inside_cycles: 400.0,
            outside_cycles: 700.0,
        }
    }

    fn profile(file: &str, windows: Vec<WindowLimit>) -> NamedProfile {
        NamedProfile {
            file: file.to_owned(),
            view: ProfileView {
                mlp: MlpView {
                    // A condition counts only if loads were timed in it.
                    throughput: vec![ThroughputPoint {
                        chains: 1,
                        cycles_per_load: 300.0,
                        parallelism: 1.0,
                        batches: Samples::default(),
                    }],
                    windows,
                    ..MlpView::default()
                },
                ..ProfileView::default()
            },
        }
    }

    #[test]
    fn a_window_of_another_size_is_neither_worse_nor_better() {
        for (first, later) in [(138, 200), (200, 138)] {
            let of = |file, fillers| {
                profile(
                    file,
                    vec![window(Filler::Mask, "mask registers", fillers, 1.0)],
                )
            };
            let found = compare(&[of("a.json", first), of("b.json", later)], None);
            let summary = &found.summaries[0];
            assert_eq!(
                (summary.worse, summary.better, summary.neither),
                (0, 0, 1),
                "{first} to {later}"
            );
            assert!(!guard::judge(&found, 5.0).exceeded);
        }
    }

    #[test]
    fn windows_of_different_fillers_never_share_a_title() {
        let whole = profile(
            "whole.json",
            vec![
                window(
                    Filler::Nop,
                    "reorder buffer (nop fusion: 2 share an entry)",
                    480,
                    2.0,
                ),
                window(Filler::Integer, "integer registers", 178, 1.0),
                window(Filler::Load, "integer registers", 179, 1.0),
                window(Filler::Zero, "reorder buffer", 241, 1.0),
                window(Filler::Store, "store queue", 56, 1.0),
                window(Filler::Mixed, "reorder buffer", 240, 1.0),
            ],
        );
        let half = profile(
            "half.json",
            vec![
                window(
                    Filler::Nop,
                    "reorder buffer (nop fusion: 4 share an entry)",
                    504,
                    4.0,
                ),
                window(
                    Filler::Integer,
                    "reorder buffer (1.7 share an entry)",
                    214,
                    1.7,
                ),
                window(
                    Filler::Load,
                    "reorder buffer (1.5 share an entry)",
                    190,
                    1.5,
                ),
                window(Filler::Zero, "reorder buffer (4 share an entry)", 504, 4.0),
                window(Filler::Store, "store queue", 112, 1.0),
                window(Filler::Mixed, "reorder buffer", 128, 1.0),
            ],
        );
        let comparison = compare(&[whole, half], None);
        let titles: HashSet<&str> = comparison
            .figures
            .iter()
            .map(|figure| figure.title.as_str())
            .collect();
        assert_eq!(titles.len(), comparison.figures.len(), "{titles:?}");
        let compared: Vec<&str> = comparison
            .figures
            .iter()
            .filter(|figure: &&ComparedFigure| figure.differences[1].is_some())
            .map(|figure| figure.title.as_str())
            .collect();
        assert_eq!(
            compared,
            [
                "nop fillers: reorder buffer, 4k",
                "zero fillers: reorder buffer, 4k",
                "store fillers: store queue, 4k",
                "reorder buffer, 4k",
            ]
        );
    }
}
