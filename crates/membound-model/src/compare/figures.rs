//! Every figure of a profile that can be set against another profile's, by name.
//!
//! Names are stable: a part, what tells the figure apart inside it, and the quantity with
//! its unit, with dots between, as in `levels.L3.latency_ns`.

use std::collections::BTreeMap;

use membound_types::{
    Access, BandwidthKernel, Filler, Level, LevelKind, NodePolicy, Outcome, PageKind, Pattern,
    PrefetchPattern, PrefetchState, Worse,
};

use super::noise::{Noise, Uncertain, Z95};
use super::table;
use super::view::{LatencyPointView, ParameterView, ProfileView};
use crate::stats::{median, median_error};

/// Buffer that memory latency is read at, page kind by page kind.
const MEMORY_BUFFER_BYTES: u64 = 256 << 20;
/// Neighbouring points of a plateau share what disturbs them, so more of them do not make
/// its median as certain as their number says.
const MOST_PLATEAU_POINTS: usize = 12;
const LEAST_PLATEAU_POINTS: usize = 3;

/// A named figure of one profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFigure {
    /// Stable name.
    pub name: String,
    /// Part of the profile.
    pub part: &'static str,
    /// Name for people.
    pub title: String,
    /// `ns`, `cycles`, `bytes`, `GB/s`, `Hz`; empty for a pure number.
    pub unit: &'static str,
    /// Which change is for the worse.
    pub worse: Worse,
    /// Value, interval and kind.
    pub uncertain: Uncertain,
}

/// Collects figures; what is no finite number is left out.
struct Figures(Vec<ProfileFigure>);

/// What tells a figure from others.
struct Label {
    name: String,
    part: &'static str,
    title: String,
    unit: &'static str,
    worse: Worse,
    noise: Noise,
}

impl Figures {
    fn add(&mut self, label: Label, value: f64, interval: Option<(f64, f64)>) {
        if value.is_finite() {
            self.0.push(ProfileFigure {
                name: label.name,
                part: label.part,
                title: label.title,
                unit: label.unit,
                worse: label.worse,
                uncertain: Uncertain {
                    value,
                    interval: interval.filter(|(low, high)| low.is_finite() && high.is_finite()),
                    noise: label.noise,
                },
            });
        }
    }
}

/// All figures of a profile, part by part in the order of the profile.
#[must_use]
pub fn figures(profile: &ProfileView) -> Vec<ProfileFigure> {
    let mut out = Figures(Vec::new());
    clock(profile, &mut out);
    levels(profile, &mut out);
    latency(profile, &mut out);
    mlp(profile, &mut out);
    bandwidth(profile, &mut out);
    loaded(profile, &mut out);
    tlb(profile, &mut out);
    prefetch(profile, &mut out);
    numa(profile, &mut out);
    c2c(profile, &mut out);
    model(profile, &mut out);
    out.0
}

fn clock(profile: &ProfileView, out: &mut Figures) {
    if let Some(clock) = profile.core_clock_hz {
        out.add(
            Label {
                name: "clock.core_hz".to_owned(),
                part: "clock",
                title: "core clock".to_owned(),
                unit: "Hz",
                worse: Worse::Lower,
                noise: Noise::Clock,
            },
            clock.value,
            Some((clock.low, clock.high)),
        );
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

fn levels(profile: &ProfileView, out: &mut Figures) {
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

/// Memory latency at one size for each page kind: levels are found on one kind only, and
/// what differs between them is what tells a host's page size.
fn latency(profile: &ProfileView, out: &mut Figures) {
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

fn mlp(profile: &ProfileView, out: &mut Figures) {
    for part in profile.mlp.conditions() {
        let (page, node) = (part.page, part.node);
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("mlp.{page}.{node}.{what}"),
            part: "mlp",
            title: if node == NodePolicy::LOCAL {
                format!("{title}, {page}")
            } else {
                format!("{title}, {page}, node {node}")
            },
            unit,
            worse,
            noise,
        };
        for window in &part.windows {
            let what = match window.filler {
                Filler::Nop => "rob_entries",
                Filler::Integer => "integer_entries",
                Filler::Vector => "vector_entries",
            };
            out.add(
                label(what, &window.limited_by, "", Worse::Any, Noise::Window),
                window.entries.value,
                Some((window.entries.low, window.entries.high)),
            );
        }
        let cells = table::Cells::of(part);
        if let Some(one) = cells.one {
            out.add(
                label(
                    "one_load_cycles",
                    "one load",
                    "cycles",
                    Worse::Higher,
                    Noise::ColdLoads,
                ),
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
                    Worse::Higher,
                    Noise::ColdLoads,
                ),
                pair.value,
                interval(pair),
            );
        }
        if let Outcome::Known(rule) = cells.rule {
            out.add(
                label(
                    "rule",
                    "parallel loads by rule",
                    "",
                    Worse::Lower,
                    Noise::Parallelism,
                ),
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
                    Worse::Lower,
                    Noise::Parallelism,
                ),
                *throughput,
                error.map(|error| around(*throughput, error)),
            );
        }
    }
}

const fn interval(value: membound_types::ComparedValue) -> Option<(f64, f64)> {
    match (value.low, value.high) {
        (Some(low), Some(high)) => Some((low, high)),
        _ => None,
    }
}

/// Relative standard error of the median of a few batches.
fn relative_error(raw: &[f64]) -> Option<f64> {
    let middle = median(raw)?;
    let error = median_error(raw)?;
    (middle > 0.0).then_some(error / middle)
}

fn around(value: f64, error: f64) -> (f64, f64) {
    (
        value * (1.0 - Z95 * error).max(0.0),
        value * (1.0 + Z95 * error),
    )
}

fn bandwidth(profile: &ProfileView, out: &mut Figures) {
    let levels = &profile.levels;
    let outer: Vec<&str> = levels
        .iter()
        .enumerate()
        .filter(|(index, _)| index + 2 >= levels.len())
        .map(|(_, level)| level.name.as_str())
        .collect();
    // Several pages or nodes may have been measured: the best one counts.
    let mut best = BTreeMap::new();
    let mut order = Vec::new();
    for point in &profile.bandwidth.points {
        let level = point
            .level
            .clone()
            .unwrap_or_else(|| format!("{}B", point.size_bytes));
        let key = (level, point.kernel.name(), point.threads);
        let kept = best.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            point
        });
        if point.gb_s > kept.gb_s {
            *kept = point;
        }
    }
    let mut most: Option<&super::view::BandwidthPointView> = None;
    let memory = levels
        .iter()
        .find(|level| level.kind == LevelKind::Memory)
        .map_or("DRAM", |level| level.name.as_str());
    for key in order {
        let point = best[&key];
        let (level, kernel, threads) = key;
        if level == memory && most.is_none_or(|most| point.gb_s > most.gb_s) {
            most = Some(point);
        }
        // Non-temporal stores go to memory from wherever their source lies.
        let to_memory = point.kernel == BandwidthKernel::NtWrite;
        let noise = if to_memory || levels.is_empty() || outer.contains(&level.as_str()) {
            Noise::MemoryBandwidth
        } else {
            Noise::CacheBandwidth
        };
        let each = if threads == 1 {
            "1 thread".to_owned()
        } else {
            format!("{threads} threads")
        };
        out.add(
            Label {
                name: format!("bandwidth.{level}.{kernel}.{threads}.gb_s"),
                part: "bandwidth",
                title: format!("{level} {kernel}, {each}"),
                unit: "GB/s",
                worse: Worse::Lower,
                noise,
            },
            point.gb_s,
            Some((point.gb_s_low, point.gb_s_high)),
        );
    }
    if let Some(point) = most {
        out.add(
            Label {
                name: "bandwidth.memory_max_gb_s".to_owned(),
                part: "bandwidth",
                title: "main memory, most".to_owned(),
                unit: "GB/s",
                worse: Worse::Lower,
                noise: Noise::MemoryBandwidth,
            },
            point.gb_s,
            Some((point.gb_s_low, point.gb_s_high)),
        );
    }
}

fn loaded(profile: &ProfileView, out: &mut Figures) {
    let mut mixes = Vec::new();
    for point in &profile.loaded.points {
        if !mixes.contains(&point.mix) {
            mixes.push(point.mix);
        }
    }
    for mix in mixes {
        let points = || {
            profile
                .loaded
                .points
                .iter()
                .filter(move |point| point.mix == mix && point.gb_s.is_finite())
        };
        let idle = points().min_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
        let full = points().max_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
        let (Some(idle), Some(full)) = (idle, full) else {
            continue;
        };
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("loaded.{mix}.{what}"),
            part: "loaded",
            title: format!("{title}, {mix}"),
            unit,
            worse,
            noise,
        };
        out.add(
            label(
                "idle_ns",
                "latency beside no traffic",
                "ns",
                Worse::Higher,
                Noise::MemoryLatency,
            ),
            idle.ns,
            Some((idle.ns_low, idle.ns_high)),
        );
        out.add(
            label(
                "full_ns",
                "latency beside most traffic",
                "ns",
                Worse::Higher,
                Noise::LoadedLatency,
            ),
            full.ns,
            Some((full.ns_low, full.ns_high)),
        );
        out.add(
            label(
                "max_gb_s",
                "most traffic",
                "GB/s",
                Worse::Lower,
                Noise::MemoryBandwidth,
            ),
            full.gb_s,
            // The document states no interval of the traffic: the kind's scatter has to do.
            Some((full.gb_s, full.gb_s)),
        );
    }
}

fn tlb(profile: &ProfileView, out: &mut Figures) {
    for level in &profile.tlb.levels {
        let (page, number) = (level.page, level.level);
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("tlb.{page}.L{number}.{what}"),
            part: "tlb",
            title: format!("L{number} TLB {title}, {page}"),
            unit,
            worse,
            noise,
        };
        out.add(
            label("entries", "entries", "", Worse::Lower, Noise::TlbEntries),
            level.entries.value,
            Some((level.entries.low, level.entries.high)),
        );
        out.add(
            label(
                "miss_cycles",
                "miss",
                "cycles",
                Worse::Higher,
                Noise::TlbCost,
            ),
            level.miss_cycles.value,
            Some((level.miss_cycles.low, level.miss_cycles.high)),
        );
    }
    if let Some(walks) = profile.tlb.parallel_walks.known() {
        out.add(
            Label {
                name: "tlb.parallel_walks".to_owned(),
                part: "tlb",
                title: "page walks at once".to_owned(),
                unit: "",
                worse: Worse::Lower,
                noise: Noise::Parallelism,
            },
            *walks,
            None,
        );
    }
}

fn prefetch(profile: &ProfileView, out: &mut Figures) {
    for point in &profile.prefetch.points {
        let (name, title) = match point.pattern {
            PrefetchPattern::Forward { stride_bytes } => (
                format!("forward-{stride_bytes}"),
                format!("forward, stride {stride_bytes} B"),
            ),
            PrefetchPattern::Backward { stride_bytes } => (
                format!("backward-{stride_bytes}"),
                format!("backward, stride {stride_bytes} B"),
            ),
            PrefetchPattern::Interleaved { streams } => (
                format!("streams-{streams}"),
                format!("{streams} streams in turns"),
            ),
            PrefetchPattern::AdjacentLine => ("adjacent-line".into(), "adjacent line".into()),
            PrefetchPattern::PageRandom => ("page-random".into(), "random inside a page".into()),
            PrefetchPattern::PointerArray => ("pointer-array".into(), "array of pointers".into()),
            PrefetchPattern::NextPage => ("next-page".into(), "into the next page".into()),
            // Divided by itself.
            PrefetchPattern::Random => continue,
        };
        let (state, remark) = match &point.prefetch {
            PrefetchState::Default => (String::new(), String::new()),
            other => (format!(".{other}"), format!(", prefetchers {other}")),
        };
        out.add(
            Label {
                name: format!("prefetch.{name}{state}.ratio"),
                part: "prefetch",
                title: format!("{title}{remark}"),
                unit: "",
                worse: Worse::Higher,
                noise: Noise::PrefetchRatio,
            },
            point.ratio,
            relative_error(&point.batches.raw).map(|error| around(point.ratio, error)),
        );
    }
}

fn numa(profile: &ProfileView, out: &mut Figures) {
    if profile.numa.nodes.is_empty() {
        return;
    }
    out.add(
        Label {
            name: "numa.nodes".to_owned(),
            part: "numa",
            title: "nodes".to_owned(),
            unit: "",
            worse: Worse::Any,
            noise: Noise::Exact,
        },
        profile.numa.nodes.len() as f64,
        None,
    );
    for pair in &profile.numa.pairs {
        let (cpu, memory) = (pair.cpu_node, pair.memory_node);
        let label = |what: &str, title: &str, unit, worse, noise| Label {
            name: format!("numa.{cpu}.{memory}.{what}"),
            part: "numa",
            title: format!("node {cpu} to memory of {memory}, {title}"),
            unit,
            worse,
            noise,
        };
        if let Some(ns) = pair.latency_ns.known() {
            out.add(
                label(
                    "latency_ns",
                    "latency",
                    "ns",
                    Worse::Higher,
                    Noise::MemoryLatency,
                ),
                *ns,
                relative_error(&pair.latency_batches.raw).map(|error| around(*ns, error)),
            );
        }
        if let Some(gb_s) = pair.read_gb_s.known() {
            out.add(
                label(
                    "read_gb_s",
                    "read",
                    "GB/s",
                    Worse::Lower,
                    Noise::MemoryBandwidth,
                ),
                *gb_s,
                relative_error(&pair.read_batches.raw).map(|error| around(*gb_s, error)),
            );
        }
    }
}

fn c2c(profile: &ProfileView, out: &mut Figures) {
    let mut pairs: Vec<_> = profile
        .c2c
        .pairs
        .iter()
        .filter(|pair| pair.one_way_ns.is_finite())
        .collect();
    pairs.sort_by(|a, b| a.one_way_ns.total_cmp(&b.one_way_ns));
    let Some(farthest) = pairs.last() else {
        return;
    };
    let middle = pairs[pairs.len() / 2];
    for (what, title, pair) in [
        ("median_ns", "core to core, median pair", middle),
        ("max_ns", "core to core, farthest pair", farthest),
    ] {
        out.add(
            Label {
                name: format!("c2c.{what}"),
                part: "c2c",
                title: title.to_owned(),
                unit: "ns",
                worse: Worse::Higher,
                noise: Noise::CoreToCore,
            },
            pair.one_way_ns,
            Some((pair.one_way_low_ns, pair.one_way_high_ns)),
        );
        if pairs.len() == 1 {
            break;
        }
    }
}

fn model(profile: &ProfileView, out: &mut Figures) {
    let unit = |text: &str| match text {
        "ns" => "ns",
        "bytes" => "bytes",
        _ => "",
    };
    let worse = |text: &str| match text {
        "ns" => Worse::Higher,
        "bytes" => Worse::Lower,
        _ => Worse::Any,
    };
    let determined = |parameter: &&ParameterView| parameter.identifiable && !parameter.fixed;
    for parameter in profile.model.parameters.iter().filter(determined) {
        let symbol = &parameter.symbol;
        out.add(
            Label {
                name: format!("model.{symbol}"),
                part: "model",
                title: if parameter.name.is_empty() {
                    format!("model {symbol}")
                } else {
                    format!("{}, {symbol}", parameter.name)
                },
                unit: unit(&parameter.unit),
                worse: worse(&parameter.unit),
                noise: Noise::Parameter,
            },
            parameter.value,
            parameter.low.zip(parameter.high),
        );
    }
    for sum in &profile.model.combinations {
        let terms: Vec<String> = sum
            .symbols
            .iter()
            .zip(&sum.coefficients)
            .map(|(symbol, factor)| {
                if *factor == 1.0 {
                    symbol.clone()
                } else {
                    format!("{factor}{symbol}")
                }
            })
            .collect();
        let name = terms.join("+");
        out.add(
            Label {
                name: format!("model.{name}"),
                part: "model",
                title: format!("model {name}"),
                unit: unit(&sum.unit),
                worse: worse(&sum.unit),
                noise: Noise::Parameter,
            },
            sum.value,
            Some((sum.low, sum.high)),
        );
    }
}
