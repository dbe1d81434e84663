//! Bandwidth as grouped bars, and latency under load.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use membound_types::{Bandwidth, BandwidthKernel, BandwidthPoint, Loaded, LoadedPoint};

use super::notes::skipped;
use super::tip::tip;
use crate::page::svg::{Axis, Bar, BarGroup, Bars, Chart, DataTable, Extent, Look, Point, Series};
use crate::{facts, units};

/// Most numbers of threads with a chart of their own; the table has all.
const MAX_CHARTS: usize = 4;

pub(super) fn body(bandwidth: &Bandwidth) -> Markup {
    let threads: BTreeSet<u32> = bandwidth.points.iter().map(|p| p.threads).collect();
    let threads: Vec<u32> = threads.into_iter().collect();
    html! {
        @if bandwidth.points.is_empty() { p.missing { "not measured: the part holds no points" } }
        div.pair {
            @for threads in spread(&threads) { (bars(bandwidth, threads).markup()) }
        }
        @if threads.len() > MAX_CHARTS { p.note { "Other numbers of threads are in the table." } }
        p.note { b { "What counts: " } (bandwidth.counting) }
        (table(bandwidth))
        (skipped(&bandwidth.skipped))
    }
}

/// First and last number of threads, and some between.
fn spread(threads: &[u32]) -> Vec<u32> {
    if threads.len() <= MAX_CHARTS {
        return threads.to_vec();
    }
    let last = threads.len() - 1;
    (0..MAX_CHARTS)
        .map(|index| threads[index * last / (MAX_CHARTS - 1)])
        .collect()
}

fn bars(bandwidth: &Bandwidth, threads: u32) -> Bars {
    // If several vector widths were measured, show the best one of each kernel.
    let mut best: BTreeMap<u64, BTreeMap<usize, &BandwidthPoint>> = BTreeMap::new();
    for point in bandwidth
        .points
        .iter()
        .filter(|p| p.threads == threads && p.gb_s.is_finite())
    {
        let kind = BandwidthKernel::ALL
            .iter()
            .position(|k| *k == point.kernel)
            .unwrap_or(0);
        let slot = best
            .entry(point.size_bytes)
            .or_default()
            .entry(kind)
            .or_insert(point);
        if point.gb_s > slot.gb_s {
            *slot = point;
        }
    }
    let groups: Vec<BarGroup> = best
        .iter()
        .map(|(size, kinds)| BarGroup {
            label: kinds
                .values()
                .find_map(|p| p.level.clone())
                .unwrap_or_else(|| units::bytes(*size)),
            detail: format!("{} each", units::bytes(*size)),
            bars: kinds.iter().map(|(kind, p)| bar(*kind, p)).collect(),
        })
        .collect();
    let table = DataTable {
        head: std::iter::once("level".to_owned())
            .chain(BandwidthKernel::ALL.map(|k| k.to_string()))
            .collect(),
        rows: groups
            .iter()
            .map(|group| {
                let mut row = vec![String::new(); BandwidthKernel::ALL.len() + 1];
                row[0].clone_from(&group.label);
                for bar in &group.bars {
                    row[bar.kind + 1] = units::number(bar.value);
                }
                row
            })
            .collect(),
    };
    Bars {
        id: format!("bandwidth-{threads}"),
        title: format!("{}.", units::plural(threads as usize, "thread")),
        reading: "The best vector width of each kernel.".into(),
        extent: Extent::Half,
        y: Axis::linear("GB/s"),
        kinds: BandwidthKernel::ALL.map(|k| k.to_string()).to_vec(),
        groups,
        table,
    }
}

fn bar(kind: usize, p: &BandwidthPoint) -> Bar {
    let interval = Some((p.gb_s_low, p.gb_s_high));
    let mut text = tip(
        &units::bytes(p.size_bytes),
        &units::gb_s(p.gb_s),
        interval,
        &p.batches.disturbed,
        units::gb_s,
    );
    text.push_str(&format!("; {} vectors", facts::vector_title(p.vector)));
    if p.gb_s_with_allocate > p.gb_s * 1.01 {
        text.push_str(&format!(
            "; {} with the reads that its stores cause",
            units::gb_s(p.gb_s_with_allocate)
        ));
    }
    Bar {
        kind,
        value: p.gb_s,
        interval,
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}

fn table(bandwidth: &Bandwidth) -> Markup {
    html! {
        details.data {
            summary { "all points" }
            div.scroll tabindex="0" role="group" aria-label="bandwidth" {
                table {
                    thead { tr {
                        th scope="col" { "level" } th scope="col" { "bytes a thread" } th scope="col" { "kernel" }
                        th scope="col" { "vectors" } th scope="col" { "threads" } th scope="col" { "GB/s" } th scope="col" { "with write-allocate" }
                    } }
                    tbody {
                        @for p in bandwidth.points.iter().take(1000) {
                            tr {
                                th scope="row" { (p.level.as_deref().unwrap_or("–")) }
                                td { (units::bytes(p.size_bytes)) }
                                td { (p.kernel) }
                                td { (facts::vector_title(p.vector)) }
                                td { (p.threads) }
                                td { (units::number(p.gb_s)) " " small { (units::interval(p.gb_s_low, p.gb_s_high)) } }
                                td { (units::number(p.gb_s_with_allocate)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn loaded(loaded: &Loaded) -> Markup {
    let mut curves: BTreeMap<(u32, u32, u32), Vec<&LoadedPoint>> = BTreeMap::new();
    for point in loaded.points.iter().filter(|p| p.injectors > 0) {
        curves
            .entry((point.mix.writes, point.mix.reads, point.injectors))
            .or_default()
            .push(point);
    }
    // The idle point of a mix is the start of each of its curves.
    for point in loaded.points.iter().filter(|p| p.injectors == 0) {
        let mix = (point.mix.writes, point.mix.reads);
        let mut alone = true;
        for (key, points) in &mut curves {
            if (key.0, key.1) == mix && key.2 > 0 {
                points.push(point);
                alone = false;
            }
        }
        if alone {
            curves.entry((mix.0, mix.1, 0)).or_default().push(point);
        }
    }
    let several = curves
        .keys()
        .map(|key| key.2)
        .collect::<BTreeSet<_>>()
        .len()
        > 1;
    let series = curves
        .into_iter()
        .enumerate()
        .map(|(index, ((_, _, injectors), mut points))| {
            // Sort by decreasing pause rather than by traffic, because a curve may bend back.
            points.sort_by_key(|p| std::cmp::Reverse(p.delay_steps.unwrap_or(u32::MAX)));
            let mix = points
                .first()
                .map_or_else(String::new, |p| facts::mix_title(p.mix));
            Series {
                label: if several {
                    format!("{mix}, {}", units::plural(injectors as usize, "injector"))
                } else {
                    mix
                },
                look: Look::category(index),
                shown: true,
                points: points.into_iter().map(loaded_point).collect(),
            }
        })
        .collect();
    let chart = Chart {
        id: "loaded-curves".into(),
        title: "Latency against traffic.".into(),
        reading: format!(
            "A chase over {} on {} pages, node {}; each curve is one mix of reads and writes.",
            units::bytes(loaded.chase_bytes),
            loaded.page,
            loaded.node
        ),
        extent: Extent::Full,
        x: Axis::linear("traffic of the other threads, GB/s"),
        y: Axis::linear("ns per load"),
        series,
        ..Chart::default()
    };
    html! {
        @if loaded.points.is_empty() { p.missing { "not measured: the part holds no points" } }
        (chart.markup())
        (skipped(&loaded.skipped))
    }
}

fn loaded_point(p: &LoadedPoint) -> Point {
    let interval = Some((p.ns_low, p.ns_high));
    let mut text = tip(
        &units::gb_s(p.gb_s),
        &units::ns(p.ns),
        interval,
        &p.batches.disturbed,
        units::ns,
    );
    text.push_str(&match p.delay_steps {
        None => "; no traffic".to_owned(),
        Some(0) => "; no pause between rounds".to_owned(),
        Some(steps) => format!("; pause of {steps} steps"),
    });
    Point {
        x: p.gb_s,
        y: p.ns,
        interval,
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}
