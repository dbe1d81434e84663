//! Figures of levels, line size and memory latency.

use std::collections::BTreeMap;

use membound_types::{
    Access, Level, LevelKind, NodePolicy, Outcome, PageKind, Pattern, PrefetchState,
};

use super::figure::{Figures, Label};
use crate::compare::noise::Noise;
use crate::compare::view::{LatencyPointView, ProfileView};
use crate::stats::Z95;

/// Size in bytes of the buffer whose latency is compared for every page kind.
const MEMORY_BUFFER_BYTES: u64 = 256 << 20;
/// Most points that count for a plateau's error: neighbouring points have disturbances in common,
/// so more of them do not make the median proportionally more certain.
const MAX_PLATEAU_POINTS: usize = 12;
const MIN_PLATEAU_POINTS: usize = 3;

pub(super) fn levels(profile: &ProfileView, out: &mut Figures) {
    let levels = &profile.levels;
    if levels.is_empty() {
        return;
    }
    let whole = |name: &str, title: &str, unit| Label {
        name: name.to_owned(),
        part: "levels",
        title: title.to_owned(),
        unit,
        noise: Noise::Exact,
    };
    out.add(
        whole("levels.count", "levels found", ""),
        levels.len() as f64,
        None,
    );
    let mut inner = 0;
    for (index, level) in levels.iter().enumerate() {
        let name = &level.name;
        let (latency, size) = level_noise(levels, index);
        let label = |what: &str, title: &str, unit, noise| Label {
            name: format!("levels.{name}.{what}"),
            part: "levels",
            title: format!("{name} {title}"),
            unit,
            noise,
        };
        let points = plateau_points(profile, inner, level.size_bytes);
        let relative = plateau_error(level, points);
        for (what, unit, value) in [
            ("latency_ns", "ns", level.latency_ns),
            ("latency_cycles", "cycles", level.latency_cycles),
        ] {
            out.add(
                label(what, "latency", unit, latency),
                value,
                relative.map(|error| (value * (-Z95 * error).exp(), value * (Z95 * error).exp())),
            );
        }
        if let Some(bytes) = level.size_bytes {
            out.add(
                label("size_bytes", "effective size", "bytes", size),
                bytes as f64,
                level
                    .size_low_bytes
                    .zip(level.size_high_bytes)
                    .map(|(low, high)| (low as f64, high as f64)),
            );
            inner = bytes;
        }
    }
    if let Outcome::Known(line) = &profile.line {
        out.add(
            whole("line.bytes", "line size", "bytes"),
            f64::from(line.bytes),
            None,
        );
        out.add(
            whole("line.sector_bytes", "lines fetched together", "bytes"),
            f64::from(line.sector_bytes),
            None,
        );
    }
}

/// Memory latency at one size for each page kind: levels are found on one kind only, and
/// the differences between kinds show a host's page size.
pub(super) fn latency(profile: &ProfileView, out: &mut Figures) {
    let mut curves: BTreeMap<PageKind, Vec<&LatencyPointView>> = BTreeMap::new();
    for point in profile.latency.points.iter().filter(|point| plain(point)) {
        curves.entry(point.page).or_default().push(point);
    }
    let reaches = profile
        .levels
        .iter()
        .filter_map(|level| level.size_bytes)
        .max();
    if reaches.is_some_and(|bytes| bytes > MEMORY_BUFFER_BYTES / 4) {
        // The caches hold too much of such a buffer.
        return;
    }
    for (page, mut curve) in curves {
        curve.sort_by_key(|point| point.size_bytes);
        let at = |read: fn(&LatencyPointView) -> f64| {
            let above = curve
                .iter()
                .position(|point| point.size_bytes >= MEMORY_BUFFER_BYTES)?;
            let high = curve[above];
            if high.size_bytes == MEMORY_BUFFER_BYTES {
                return Some(read(high));
            }
            let low = curve[above.checked_sub(1)?];
            let place = |bytes: u64| (bytes as f64).ln();
            let share = (place(MEMORY_BUFFER_BYTES) - place(low.size_bytes))
                / (place(high.size_bytes) - place(low.size_bytes));
            Some(read(low) + share * (read(high) - read(low)))
        };
        if let (Some(ns), Some(low), Some(high)) =
            (at(|p| p.ns), at(|p| p.ns_low), at(|p| p.ns_high))
        {
            out.add(
                Label {
                    name: format!("latency.{page}.256MiB_ns"),
                    part: "latency",
                    title: format!("256 MiB on {page} pages"),
                    unit: "ns",
                    noise: Noise::MemoryLatency,
                },
                ns,
                Some((low, high)),
            );
        }
    }
}

/// Kinds of noise of a level's latency and size. The outermost cache counts as shared, unless it
/// is the only cache.
fn level_noise(levels: &[Level], index: usize) -> (Noise, Noise) {
    let outermost = levels
        .iter()
        .rposition(|level| level.kind == LevelKind::Cache);
    match levels[index].kind {
        LevelKind::Memory => (Noise::MemoryLatency, Noise::SharedSize),
        LevelKind::Cache if index == 0 => (Noise::InnerLatency, Noise::CacheSize),
        LevelKind::Cache if Some(index) == outermost => (Noise::SharedLatency, Noise::SharedSize),
        LevelKind::Cache => (Noise::CacheLatency, Noise::CacheSize),
    }
}

/// Number of points on a level's plateau, on the page kind with most of them.
fn plateau_points(profile: &ProfileView, inner: u64, size: Option<u64>) -> usize {
    let mut counts: BTreeMap<PageKind, usize> = BTreeMap::new();
    for point in profile.latency.points.iter().filter(|point| plain(point)) {
        if point.size_bytes > inner && size.is_none_or(|size| point.size_bytes <= size) {
            *counts.entry(point.page).or_default() += 1;
        }
    }
    counts
        .into_values()
        .max()
        .unwrap_or(MIN_PLATEAU_POINTS)
        .clamp(MIN_PLATEAU_POINTS, MAX_PLATEAU_POINTS)
}

/// Relative standard error of a plateau's latency. Its stated range holds nine tenths of
/// the points, which are 2 · 1.645 standard deviations of a point; the standard error of the
/// median of n points is 1.2533/√n of that.
fn plateau_error(level: &Level, points: usize) -> Option<f64> {
    let (low, high) = (level.latency_low_ns, level.latency_high_ns);
    (low > 0.0 && high.is_finite() && high >= low)
        .then(|| (high / low).ln() / (2.0 * 1.645) * 1.2533 / (points as f64).sqrt())
}

/// True for random loads of one local copy over whole lines, with default prefetchers.
fn plain(point: &LatencyPointView) -> bool {
    point.pattern == Pattern::Random
        && point.access == Access::Clean
        && point.threads == 1
        && point.node == NodePolicy::LOCAL
        && point.prefetch == PrefetchState::Default
        && point.stride_bytes == 64
}
