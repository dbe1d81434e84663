//! Panel of the calibration: ticks of timed loads by level.

use maud::{Markup, html};
use membound_types::{CalibratedLevel, Calibration};

use super::notes::skipped;
use crate::page::svg::{Axis, Chart, Extent, Look, Point, Scale, Series};
use crate::{facts, units};

pub(super) fn body(calibration: &Calibration) -> Markup {
    let longest = facts::longest(&calibration.levels);
    let chart = Chart {
        id: "calibration-ticks".into(),
        title: "Share of the loads that took at most this many ticks.".into(),
        reading: "Levels with coincident curves cannot be distinguished by single loads.".into(),
        extent: Extent::Full,
        x: Axis {
            title: "ticks, the timing's own cost included".into(),
            scale: Scale::Log2,
            format: units::compact,
        },
        y: Axis::linear("share of the loads"),
        series: calibration
            .levels
            .iter()
            .enumerate()
            .map(|(index, level)| Series {
                label: level.name.clone(),
                look: Look::category(index),
                shown: true,
                points: cumulative(level, 2 * longest),
            })
            .collect(),
        ..Chart::default()
    };
    html! {
        div.scroll tabindex="0" role="group" aria-label="calibrated levels" {
            table {
                thead { tr {
                    th scope="col" { "level" } th scope="col" { "area" } th scope="col" { "latency" }
                    th scope="col" { "median ticks" } th scope="col" { "from 10 to 90 %" } th scope="col" { "timed loads" }
                } }
                tbody { @for level in &calibration.levels { (row(level)) } }
            }
        }
        (chart.markup())
        (skipped(&calibration.skipped))
    }
}

fn row(level: &CalibratedLevel) -> Markup {
    let found = facts::deciles(level);
    html! {
        tr {
            th scope="row" { (level.name) }
            td { (units::bytes(level.area_bytes)) }
            td { b { (units::ns(level.latency_ns)) } }
            td { @if let Some(found) = found { (found.median) } }
            td { @if let Some(found) = found { (found.tenth) "–" (found.nine_tenths) } }
            td { (units::count(level.count)) }
        }
    }
}

/// Cumulative share of the loads over ticks, up to `longest`.
fn cumulative(level: &CalibratedLevel, longest: u32) -> Vec<Point> {
    let total: u64 = level.ticks.iter().map(|bin| bin.count).sum();
    let mut counted = 0;
    level
        .ticks
        .iter()
        .take_while(|bin| bin.ticks <= longest)
        .map(|bin| {
            counted += bin.count;
            let share = counted as f64 / total.max(1) as f64;
            Point {
                x: f64::from(bin.ticks),
                y: share,
                tip: format!(
                    "{}: {} of the loads took at most {} ticks",
                    level.name,
                    units::percent(share),
                    bin.ticks
                ),
                ..Point::default()
            }
        })
        .collect()
}
