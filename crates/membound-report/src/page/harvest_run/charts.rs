//! Histograms of a harvest: distances with their bound, and latencies with scavengers over latencies
//! without.

use maud::Markup;
use membound_types::{DurationBin, HarvestRun, PrimaryLatency};

use crate::facts::durations::{self, Span};
use crate::facts::harvest_run as facts;
use crate::page::svg::{Axis, Chart, Extent, Look, Mark, MarkKind, Point, Scale, Series};
use crate::units;

/// Colours: within the bound or without scavengers; beyond the bound or with scavengers.
const WITHIN_BOUND_COLOUR: usize = 0;
const BEYOND_BOUND_COLOUR: usize = 1;

/// Histogram of the measured distances; `None` if there are none.
pub(super) fn distances(run: &HarvestRun) -> Option<Chart> {
    let distances = &run.distance_ns;
    let (low, high) = durations::range([distances.histogram.as_slice()])?;
    // Include the bound in the chart even if all distances are far below it.
    let bound = distances.bound.filter(|bound| *bound > 0.0);
    let high = bound.map_or(high, |bound| high.max(bound * 1.2));
    let edges = durations::even_edges(low, high, bound);
    let spans = durations::spread(&distances.histogram, &edges);
    let total: f64 = spans.iter().map(|span| span.count).sum();
    // Edges are computed as powers of a ratio, so the one at the bound may be off by rounding.
    let is_beyond = |span: &Span| bound.is_some_and(|bound| span.from_ns >= bound * 0.9999);
    let split = spans.iter().position(is_beyond).unwrap_or(spans.len());
    let (kept, beyond) = spans.split_at(split);
    let label = if bound.is_some() {
        "within the bound"
    } else {
        "time slices"
    };
    let mut series = vec![steps(
        label,
        WITHIN_BOUND_COLOUR,
        kept,
        total,
        "of the slices",
    )];
    if beyond.iter().any(|span| span.count > 0.0) {
        series.push(steps(
            "beyond the bound",
            BEYOND_BOUND_COLOUR,
            beyond,
            total,
            "of the slices",
        ));
    }
    Some(Chart {
        id: "distance-histogram".to_owned(),
        title: format!("Time {}.", facts::distance_title(run)),
        reading: format!("{}.", reading(&edges, distances.timed, "timed slice")),
        extent: Extent::Full,
        x: duration_axis("time from the yield"),
        y: Axis::linear("% of the slices"),
        series,
        marks: bound
            .map(|bound| Mark {
                kind: MarkKind::Limit,
                x: bound,
                interval: None,
                name: "bound".to_owned(),
                detail: units::duration_ns(bound),
            })
            .into_iter()
            .collect(),
        ..Chart::default()
    })
}

/// Histogram of latencies with scavengers over latencies without.
pub(super) fn latency(latency: &PrimaryLatency) -> Markup {
    let [with, without] = [&latency.with, &latency.without].map(Option::as_ref);
    let histograms: Vec<(&str, usize, &[DurationBin])> = [
        ("without scavengers", WITHIN_BOUND_COLOUR, without),
        ("with scavengers", BEYOND_BOUND_COLOUR, with),
    ]
    .into_iter()
    .filter_map(|(name, color, of)| Some((name, color, of?.histogram.as_slice())))
    .collect();
    let Some((low, high)) = durations::range(histograms.iter().map(|it| it.2)) else {
        return Markup::default();
    };
    let edges = durations::even_edges(low, high, None);
    let requests = [with, without]
        .into_iter()
        .flatten()
        .map(|it| it.requests)
        .sum();
    Chart {
        id: "latency-histogram".to_owned(),
        title: "How long requests took.".to_owned(),
        reading: format!(
            "{}{}.",
            reading(&edges, requests, "request"),
            if with.is_some() && without.is_some() {
                "; each curve is in shares of its own requests"
            } else {
                ""
            }
        ),
        extent: Extent::Full,
        x: duration_axis("duration of a request"),
        y: Axis::linear("% of the requests"),
        series: histograms
            .into_iter()
            .map(|(label, color, bins)| {
                let spans = durations::spread(bins, &edges);
                let total: f64 = spans.iter().map(|span| span.count).sum();
                steps(label, color, &spans, total, "of the requests")
            })
            .collect(),
        ..Chart::default()
    }
    .markup()
}

/// Sentence with the number of durations and the width of a bin.
fn reading(edges: &[f64], count: u64, noun: &str) -> String {
    let ratio = edges.get(1).zip(edges.first()).map_or(1.0, |(a, b)| a / b);
    format!(
        "{}; a step ends {} above where it begins",
        units::plural(count as usize, noun),
        units::percent(ratio - 1.0)
    )
}

fn steps(label: &str, color: usize, spans: &[Span], total: f64, whole: &str) -> Series {
    let share = |span: &Span| {
        if total > 0.0 { span.count / total } else { 0.0 }
    };
    let mut points: Vec<Point> = spans
        .iter()
        .map(|span| Point {
            x: span.from_ns,
            y: 100.0 * share(span),
            tip: format!(
                "{} to {}: {} {whole}",
                units::duration_ns(span.from_ns),
                units::duration_ns(span.to_ns),
                facts::some_percent(share(span))
            ),
            ..Point::default()
        })
        .collect();
    if let Some(last) = spans.last() {
        points.push(Point {
            x: last.to_ns,
            y: 0.0,
            tip: String::new(),
            ..Point::default()
        });
    }
    Series {
        label: label.to_owned(),
        look: Look::Steps(color),
        shown: true,
        points,
    }
}

fn duration_axis(title: &str) -> Axis {
    Axis {
        title: title.to_owned(),
        scale: Scale::Log10,
        format: units::short_duration_ns,
    }
}
