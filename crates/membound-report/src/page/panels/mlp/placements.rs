//! Placement noise: the same loads, each time on new pages.

use maud::{Markup, html};
use membound_types::{Mlp, MlpMode};

use crate::page::svg::{Axis, Chart, Look, Point, Series};
use crate::{facts, units};

/// A chart and a table for each condition with placements; empty if there are none.
pub(super) fn body(mlp: &Mlp) -> Markup {
    html! {
        @for (index, run) in facts::runs(mlp).enumerate() {
            @if run.placements.is_some() { (of_run(index, run)) }
        }
    }
}

fn of_run(index: usize, run: &Mlp) -> Markup {
    let Some(placements) = &run.placements else {
        return html! {};
    };
    let parallel = || {
        let points = placements.points.iter();
        points.filter(|point| point.mode == MlpMode::Parallel)
    };
    // One curve per placement: what the curves have in common is a property of the machine.
    let series = (0..placements.times as usize).map(|time| Series {
        label: format!("placement {}", time + 1),
        look: Look::Dots(index),
        shown: true,
        points: parallel()
            .filter_map(|point| {
                let cycles = *point.cycles.get(time)?;
                Some(Point {
                    x: f64::from(point.loads),
                    y: cycles,
                    tip: format!("N={}: {}", point.loads, units::cycles(cycles)),
                    ..Point::default()
                })
            })
            .collect(),
    });
    let chart = Chart {
        id: format!("mlp-placements-{index}"),
        title: "T(N) on new pages each time.".into(),
        reading: format!(
            "{} times the same measurement; what the dots of one N are apart is what two runs \
             differ by although nothing was changed.",
            placements.times
        ),
        x: Axis::linear("N: loads"),
        y: Axis::linear("core cycles"),
        series: series.collect(),
        ..Chart::default()
    };
    html! {
        h3 { "Placement noise, " (facts::mlp_title(run)) }
        p.reading { (placements.times) " times on new pages, in " (facts::PLACEMENTS) "." }
        div.pair { (chart.markup()) }
        div.scroll tabindex="0" role="group" aria-label="placement noise" {
            table {
                thead { tr {
                    th scope="col" { "loads" } th scope="col" { "median" } th scope="col" { "least" }
                    th scope="col" { "most" } th scope="col" { "between" } th scope="col" { "within" }
                } }
                tbody {
                    @for point in &placements.points {
                        tr {
                            th scope="row" { (facts::placement_title(point)) }
                            td { (units::number(point.median_cycles)) }
                            td { (units::number(point.low_cycles)) } td { (units::number(point.high_cycles)) }
                            td { (units::percent(point.between)) } td { (units::percent(point.within)) }
                        }
                    }
                }
            }
        }
        @for outlier in &placements.outliers { p.note { (facts::placement_outlier(outlier)) "." } }
    }
}
