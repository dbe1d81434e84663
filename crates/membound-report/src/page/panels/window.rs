//! Panel of document 002's windows (Seidl): time per window over the area.

use std::collections::BTreeMap;

use maud::{Markup, html};
use membound_types::{CpuId, Level, NodePolicy, PageKind, Window, WindowKernel, WindowPoint};

use super::axes::size_axis;
use super::level_marks::level_marks;
use super::notes::skipped;
use super::tip::tip;
use crate::facts::windows;
use crate::page::svg::{Axis, Chart, Extent, Look, Point, Scale, Series};
use crate::units;

/// Conditions that identify a curve, in the order of the legend.
type Key = (usize, Option<CpuId>, NodePolicy, PageKind, CpuId, u64);

pub(super) fn body(window: &Window, levels: &[Level]) -> Markup {
    let mut curves: BTreeMap<Key, Vec<&WindowPoint>> = BTreeMap::new();
    for point in &window.points {
        let kernel = WindowKernel::ALL
            .iter()
            .position(|k| *k == point.kernel)
            .unwrap_or(0);
        let key = (
            kernel,
            point.init_cpu,
            point.node,
            point.page,
            point.cpu,
            point.window_bytes,
        );
        curves.entry(key).or_default().push(point);
    }
    let keys: Vec<Key> = curves.keys().copied().collect();
    let first = keys.first().copied();
    let series = curves
        .into_iter()
        .map(|(key, mut points)| {
            points.sort_by_key(|p| p.area_bytes);
            let (color, dash) = place(&key, &keys);
            Series {
                label: label(&key, &keys),
                look: Look::Category {
                    color,
                    dash,
                    shape: color,
                },
                // Curves under other conditions than the first one's are shown on demand.
                shown: first.is_none_or(|f| (f.1, f.2, f.3, f.4) == (key.1, key.2, key.3, key.4)),
                points: points.into_iter().map(point).collect(),
            }
        })
        .collect();
    let chart = Chart {
        id: "window-curves".into(),
        title: "Time per window over the area.".into(),
        reading: "One curve for each size of window (line style) and kernel (colour); user and system time. Points name the sign changes of doubles that a time means, in 10⁶ a second (MFLOPS).".into(),
        extent: Extent::Full,
        x: size_axis("area in bytes"),
        y: Axis {
            title: "time per window".into(),
            scale: Scale::Log10,
            format: seconds,
        },
        series,
        marks: level_marks(levels, false),
        ..Chart::default()
    };
    html! {
        @if window.points.is_empty() { p.missing { "not measured: the part holds no points" } }
        (chart.markup())
        (skipped(&window.skipped))
    }
}

/// Index of the colour, by kernel and condition, and of the dash, by window size.
fn place(key: &Key, keys: &[Key]) -> (usize, usize) {
    let mut groups: Vec<_> = keys.iter().map(|k| (k.0, k.1, k.2, k.3, k.4)).collect();
    groups.dedup();
    let color = groups
        .iter()
        .position(|group| *group == (key.0, key.1, key.2, key.3, key.4))
        .unwrap_or(0);
    let mut sizes: Vec<u64> = keys.iter().map(|k| k.5).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let dash = sizes.iter().position(|size| *size == key.5).unwrap_or(0);
    (color, dash)
}

fn label(key: &Key, keys: &[Key]) -> String {
    let mut words = vec![WindowKernel::ALL[key.0].to_string(), units::bytes(key.5)];
    if keys.iter().any(|k| k.1 != key.1) {
        words.push(match key.1 {
            Some(cpu) => format!("initialised by CPU {cpu}"),
            None => "initialised here".to_owned(),
        });
    }
    if keys.iter().any(|k| k.2 != key.2) {
        words.push(format!("node {}", key.2));
    }
    if keys.iter().any(|k| k.3 != key.3) {
        words.push(format!("{} pages", key.3));
    }
    if keys.iter().any(|k| k.4 != key.4) {
        words.push(format!("CPU {}", key.4));
    }
    words.join(", ")
}

fn point(p: &WindowPoint) -> Point {
    let mut text = tip(
        &units::bytes(p.area_bytes),
        &units::seconds(p.seconds_per_window),
        None,
        &p.batches.disturbed,
        units::seconds,
    );
    text.push_str(&format!(
        " [{}, {}], {} MFLOPS",
        units::seconds(p.seconds_low),
        units::seconds(p.seconds_high),
        units::number(windows::mflops(p))
    ));
    Point {
        x: p.area_bytes as f64,
        y: p.seconds_per_window,
        interval: Some((p.seconds_low, p.seconds_high)),
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}

fn seconds(value: f64) -> String {
    let text = units::seconds(value);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            let number = number.trim_end_matches('0').trim_end_matches('.');
            format!("{number} {unit}")
        }
        _ => text,
    }
}
