//! Levels, the line and the latency of memory.

use std::collections::BTreeMap;

use membound_types::{
    Access, Level, LevelKind, NodePolicy, Outcome, PageKind, Pattern, PrefetchState, Worse,
};

use super::{Figures, Label};
use crate::compare::noise::{Noise, Z95};
use crate::compare::view::{LatencyPointView, ProfileView};

/// Buffer that memory latency is read at, page kind by page kind.
const MEMORY_BUFFER_BYTES: u64 = 256 << 20;
/// Neighbouring points of a plateau share what disturbs them, so more of them do not make
/// its median as certain as their number says.
const MOST_PLATEAU_POINTS: usize = 12;
const LEAST_PLATEAU_POINTS: usize = 3;

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
        worse: Worse::Any,
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
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("levels.{name}.{what}"),
            part: "levels",
            title: format!("{name} {title}"),
            unit,
            worse,
            noise,
        };
        let points = plateau_points(profile, inner, level.size_bytes);
        let relative = plateau_error(level, points);
        for (what, unit, value) in [
            ("latency_ns", "ns", level.latency_ns),
            ("latency_cycles", "cycles", level.latency_cycles),
        ] {
            out.add(
                label(what, "latency", unit, Worse::Higher, latency),
                value,
                relative.map(|error| (value * (-Z95 * error).exp(), value * (Z95 * error).exp())),
            );
        }
        if let Some(bytes) = level.size_bytes {
            out.add(
                label("size_bytes", "effective size", "bytes", Worse::Lower, size),
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
/// what differs between them is what tells a host's page size.
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
        // Too much of such a buffer lies in the caches.
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
                    worse: Worse::Higher,
                    noise: Noise::MemoryLatency,
                },
                ns,
                Some((low, high)),
            );
        }
    }
}

/// Whether the caches include more than one: the outermost is then shared.
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

/// Points of the curve that a level's plateau is read from: the page kind with most of them.
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
        .unwrap_or(LEAST_PLATEAU_POINTS)
        .clamp(LEAST_PLATEAU_POINTS, MOST_PLATEAU_POINTS)
}

/// Relative standard error of a plateau's latency. Its stated range holds nine tenths of
/// the points, hence 2 · 1.645 standard deviations of one of them; the median of n is
/// known 1.2533/√n as well.
fn plateau_error(level: &Level, points: usize) -> Option<f64> {
    let (low, high) = (level.latency_low_ns, level.latency_high_ns);
    (low > 0.0 && high.is_finite() && high >= low)
        .then(|| (high / low).ln() / (2.0 * 1.645) * 1.2533 / (points as f64).sqrt())
}

/// Random loads of one local copy, the prefetchers as found, over whole lines.
fn plain(point: &LatencyPointView) -> bool {
    point.pattern == Pattern::Random
        && point.access == Access::Clean
        && point.threads == 1
        && point.node == NodePolicy::LOCAL
        && point.prefetch == PrefetchState::Default
        && point.stride_bytes == 64
}
