//! Figures of bandwidth, latency under traffic, and the effect of prefetchers.

use std::collections::BTreeMap;

use membound_types::{BandwidthKernel, LevelKind, PrefetchPattern, PrefetchState, TrafficMix};

use super::figure::{Figures, Label, around, relative_error};
use crate::compare::noise::Noise;
use crate::compare::view::{BandwidthPointView, ProfileView};

pub(super) fn bandwidth(profile: &ProfileView, out: &mut Figures) {
    let levels = &profile.levels;
    let outer: Vec<&str> = levels
        .iter()
        .enumerate()
        .filter(|(index, _)| index + 2 >= levels.len())
        .map(|(_, level)| level.name.as_str())
        .collect();
    // Several page kinds or nodes may have been measured: the best one counts.
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
    let mut most: Option<&BandwidthPointView> = None;
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
        // Non-temporal stores go to memory, regardless of the level that holds their source.
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
                noise: Noise::MemoryBandwidth,
            },
            point.gb_s,
            Some((point.gb_s_low, point.gb_s_high)),
        );
    }
}

pub(super) fn loaded(profile: &ProfileView, out: &mut Figures) {
    let mut mixes = Vec::new();
    for point in &profile.loaded.points {
        if !mixes.contains(&&point.mix) {
            mixes.push(&point.mix);
        }
    }
    for mix in mixes {
        let points = || {
            profile
                .loaded
                .points
                .iter()
                .filter(move |point| point.mix == *mix && point.gb_s.is_finite())
        };
        let idle = points().min_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
        let full = points().max_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
        let (Some(idle), Some(full)) = (idle, full) else {
            continue;
        };
        let label = |what: &str, title: &str, unit, noise| Label {
            name: format!("loaded.{}.{what}", mix.replace(' ', "-")),
            part: "loaded",
            title: format!("{title}, {}", mix_description(mix)),
            unit,
            noise,
        };
        out.add(
            label(
                "idle_ns",
                "latency beside least traffic",
                "ns",
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
                Noise::LoadedLatency,
            ),
            full.ns,
            Some((full.ns_low, full.ns_high)),
        );
        out.add(
            label("max_gb_s", "most traffic", "GB/s", Noise::MemoryBandwidth),
            full.gb_s,
            // The document states no interval of the traffic, so only the scatter between runs applies.
            Some((full.gb_s, full.gb_s)),
        );
    }
}

/// Description of a mix for a title.
fn mix_description(mix: &str) -> String {
    if mix.parse::<TrafficMix>().is_ok() {
        format!("{mix} reads to writes")
    } else {
        mix.to_owned()
    }
}

pub(super) fn prefetch(profile: &ProfileView, out: &mut Figures) {
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
            // Random loads are the reference of the ratio.
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
                noise: Noise::PrefetchRatio,
            },
            point.ratio,
            relative_error(&point.batches.raw).map(|error| around(point.ratio, error)),
        );
    }
}
