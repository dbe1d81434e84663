//! Panel of the latency curve, with the levels marked.

use maud::{Markup, html};
use membound_types::{Latency, LatencyPoint, Level};

use super::axes::{number_axis, size_axis};
use super::level_marks::level_marks;
use super::notes::skipped;
use super::tip::tip;
use crate::facts::{self, SettingFamily};
use crate::page::svg::{Chart, Extent, Look, Point, Scale, Series};
use crate::units;

const DEFAULT_LINE: u64 = 64;

pub(super) fn body(latency: &Latency, levels: &[Level]) -> Markup {
    let line = levels
        .iter()
        .find_map(|level| level.line_bytes)
        .map_or(DEFAULT_LINE, u64::from);
    let series: Vec<Series> = facts::latency_curves(latency, line)
        .into_iter()
        .enumerate()
        .map(|(index, curve)| Series {
            look: Look::category(index),
            shown: curve.main,
            points: curve.points.iter().map(|p| point(p)).collect(),
            label: curve.label,
        })
        .collect();
    let chart = Chart {
        id: "latency-curve".into(),
        title: "Latency over size.".into(),
        reading: "Solid lines with a band are the sizes found, dashed lines the declared ones; hollow points were disturbed.".into(),
        extent: Extent::Full,
        x: size_axis("bytes of the buffer"),
        y: number_axis("ns per load", Scale::Log10),
        marks: level_marks(levels, true),
        series,
        ..Chart::default()
    };
    html! {
        @if latency.points.is_empty() { p.missing { "not measured: the part holds no points" } }
        (chart.markup())
        @for (index, family) in facts::setting_families(latency).iter().enumerate() {
            (settings(index, family))
        }
        @for crowd in &latency.crowding {
            p.note {
                b { (crowd.threads) " copies at once: " }
                (crowd.meaning) " (" (units::bytes(crowd.alone_bytes)) " alone, "
                (units::bytes(crowd.crowded_bytes)) " each together)."
            }
        }
        (tainted(latency))
        (skipped(&latency.skipped))
    }
}

/// Curves of all prefetch settings over size, in one plot.
fn settings(index: usize, family: &SettingFamily<'_>) -> Markup {
    let reading = family.reading();
    let series = family.settings.iter().enumerate();
    let chart = Chart {
        id: format!("latency-settings-{index}"),
        title: format!("Prefetch settings over size ({}).", family.label),
        reading: format!(
            "The distance to the first curve is the effect of the setting; {reading}."
        ),
        extent: Extent::Full,
        x: size_axis("bytes of the buffer"),
        y: number_axis("ns per load", Scale::Log10),
        series: series
            .map(|(rank, (title, points))| Series {
                label: title.clone(),
                look: Look::category(rank),
                shown: true,
                points: points.iter().map(|p| point(p)).collect(),
            })
            .collect(),
        ..Chart::default()
    };
    chart.markup()
}

/// Point of the latency curve, at its size.
pub(super) fn point(p: &LatencyPoint) -> Point {
    let interval = Some((p.ns_low, p.ns_high));
    let mut text = tip(
        &units::bytes(p.size_bytes),
        &units::ns(p.ns),
        interval,
        &p.batches.disturbed,
        units::ns,
    );
    text.push_str(&format!("; {}", units::cycles(p.cycles)));
    if let Some(taint) = &p.prefetch_taint {
        text.push_str(&format!(
            "; prefetched: {} of {}",
            units::percent(taint.ratio),
            taint.against
        ));
    }
    if let Some(share) = p.page_share {
        text.push_str(&format!(
            "; only {} on {} pages",
            units::percent(share),
            p.page
        ));
    }
    Point {
        x: p.size_bytes as f64,
        y: p.ns,
        interval,
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}

fn tainted(latency: &Latency) -> Markup {
    let points: Vec<&LatencyPoint> = latency
        .points
        .iter()
        .filter(|p| p.prefetch_taint.is_some())
        .collect();
    let mut patterns: Vec<&str> = points.iter().map(|p| p.pattern.name()).collect();
    patterns.sort_unstable();
    patterns.dedup();
    html! {
        @if !points.is_empty() {
            p.note {
                b { "Prefetched: " }
                (units::plural(points.len(), "point")) " (" (patterns.join(", "))
                ") came out faster than loads that cannot be predicted, so the hardware fetched ahead; the hover text says by how much."
            }
        }
    }
}
