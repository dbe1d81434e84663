//! Loads in sequence: T(n) = n·M + C, and where it does not hold.

use maud::{Markup, html};
use membound_types::{Mlp, MlpMode, Outcome, SequentialLine};

use super::super::figure::value_interval;
use super::curve::{cell_point, curve_of};
use crate::page::svg::{Axis, Chart, Look, Point, Series};
use crate::{facts, units};

/// T(n) of every condition with its line, or with the parts of the line.
pub(super) fn chart(mlp: &Mlp) -> Markup {
    let series = facts::runs(mlp)
        .enumerate()
        .flat_map(|(index, run)| {
            let mut points: Vec<Point> = run
                .cells
                .iter()
                .filter(|cell| {
                    cell.mode == MlpMode::Sequential
                        && cell.page == run.page
                        && cell.node == run.node
                })
                .map(|c| cell_point(c.loads, &format!("n={}", c.loads), c))
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            let fitted = run
                .sequential_line
                .known()
                .map(|line| fitted(index, run, line, &points));
            let measured = curve_of(index, run, points);
            match fitted {
                Some(fitted) => {
                    let dots = Series {
                        look: Look::Dots(index),
                        ..measured
                    };
                    std::iter::once(dots).chain(fitted).collect()
                }
                None => vec![measured],
            }
        })
        .collect();
    let chart = Chart {
        id: "mlp-sequential".into(),
        title: "T(n): loads in sequence.".into(),
        reading: "Each load outside the window of the one before, so the times add up: T(n) = n·M + C, M for each load and C whatever their number; the band is the line's 95 % interval. Where the times leave one line, two lines that meet are shown.".into(),
        x: Axis::linear("n: loads"),
        y: Axis::linear("core cycles"),
        series,
        ..Chart::default()
    };
    chart.markup()
}

/// The line through the measured points from n = 0 to the largest n, or both of its parts.
fn fitted(index: usize, run: &Mlp, line: &SequentialLine, points: &[Point]) -> Vec<Series> {
    let most = points.iter().map(|point| point.x).fold(1.0, f64::max);
    let spans = match &line.bend {
        Some(bend) => vec![(0, bend.at_loads), (bend.at_loads, bend.after.to_loads)],
        None => vec![(0, most.min(1000.0) as u32)],
    };
    facts::sequence_rows(line)
        .into_iter()
        .zip(spans)
        .map(|(row, (from, to))| {
            let (load, overhead) = (row.load.value, row.overhead.value);
            let range = if row.range.is_empty() {
                String::new()
            } else {
                format!(", {}", row.range)
            };
            // The error band is known only for one line through all times.
            let half_width = |n| line.bend.map_or_else(|| half_width(line, n), |_| None);
            Series {
                label: format!(
                    "{}{range}: n·{} {} {}",
                    run.page,
                    units::number(load),
                    if overhead < 0.0 { '−' } else { '+' },
                    units::number(overhead.abs())
                ),
                look: Look::Curve(index),
                shown: true,
                points: (from..=to)
                    .map(|n| line_point(f64::from(n), load, overhead, half_width(f64::from(n))))
                    .collect(),
            }
        })
        .collect()
}

fn line_point(n: f64, load: f64, overhead: f64, half_width: Option<f64>) -> Point {
    let y = n * load + overhead;
    let interval = half_width.map(|half| (y - half, y + half));
    let range = interval.map_or_else(String::new, |(low, high)| {
        format!(" {}", units::interval(low, high))
    });
    Point {
        x: n,
        y,
        interval,
        tip: format!("n={n}: {}{range} by the line", units::cycles(y)),
        hollow: false,
    }
}

/// Half width of the line's 95 % interval at `n`. The mean of all n follows from the two standard errors,
/// since C is the value of the line at n = 0, at the distance of the mean from 0.
fn half_width(line: &SequentialLine, n: f64) -> Option<f64> {
    let quantile = (line.load_cycles.high - line.load_cycles.value) / line.load_error;
    let centre = line.scatter_cycles.powi(2) / f64::from(line.points);
    let mean = (line.overhead_error.powi(2) - centre).max(0.0).sqrt() / line.load_error;
    let half = quantile * (centre + ((n - mean) * line.load_error).powi(2)).sqrt();
    half.is_finite().then_some(half)
}

/// Table of M and C of every condition with their intervals.
pub(super) fn lines(mlp: &Mlp) -> Markup {
    html! {
        h3 { "One load, and what every execution costs" }
        p.reading { "T(n) = n·M + C by least squares, in core cycles with 95 % intervals: two conditions with the same M differ by a constant shift alone. Where the times do not lie on one line, M and C are given for each part." }
        div.scroll tabindex="0" role="group" aria-label="loads in sequence" {
            table {
                thead { tr {
                    th scope="col" { "condition" } th scope="col" { "M, one load" } th scope="col" { "C, every execution" }
                    th scope="col" { "scatter" } th scope="col" { "times" } th scope="col" { "line" }
                } }
                tbody {
                    @for run in facts::runs(mlp) {
                        @match &run.sequential_line {
                            Outcome::Known(line) => { (rows(run, line)) }
                            Outcome::Missing { not_measured } => {
                                tr {
                                    th scope="row" { (facts::mlp_title(run)) }
                                    td colspan="5" { (facts::missing_text(not_measured)) }
                                }
                            }
                        }
                    }
                }
            }
        }
        @for run in facts::runs(mlp) {
            @if let Some(line) = run.sequential_line.known() {
                @for text in facts::sequence_readings(run, line) {
                    p.note { (text) "." }
                }
            }
        }
    }
}

/// Rows for the line of one condition, or for both of its parts.
fn rows(run: &Mlp, line: &SequentialLine) -> Markup {
    let scatter = line
        .bend
        .map_or(line.scatter_cycles, |bend| bend.scatter_cycles);
    let left_out = line.bend.map_or(line.left_out, |bend| bend.left_out);
    let times = line.points + line.left_out;
    html! {
        @for (index, row) in facts::sequence_rows(line).into_iter().enumerate() {
            tr {
                th scope="row" { (facts::mlp_title(run)) @if !row.range.is_empty() { ", " (row.range) } }
                td { (value_interval(row.load)) }
                td { (value_interval(row.overhead)) }
                @if index == 0 {
                    td { (units::number(scatter)) }
                    td { (times - left_out) @if left_out > 0 { " of " (times) } }
                    td { (facts::line_verdict(line)) }
                } @else {
                    td colspan="3" {}
                }
            }
        }
    }
}
