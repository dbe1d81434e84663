//! Panel of stride curves, like those in the article on lat_mem_rd: latency over size for each stride, and
//! latency over stride in each level.

use std::collections::BTreeSet;

use maud::{Markup, html};
use membound_types::{Latency, LatencyPoint};

use super::axes::{number_axis, size_axis};
use super::latency::point;
use super::tip::tip;
use crate::facts::{self, StrideFamily};
use crate::page::svg::{Chart, Look, Point, Scale, Series};
use crate::units;

/// Most families that are drawn: further pictures repeat the same shapes.
const MAX_FAMILIES: usize = 4;
/// Most sizes for which latency is shown over stride.
const MAX_SIZES: usize = 5;

pub(super) fn body(latency: &Latency) -> Markup {
    let families = facts::stride_families(latency);
    html! {
        @if families.is_empty() {
            p.missing { "not measured: every curve has one stride only (measure latency --strides 16,32,64,128,256)" }
        }
        div.pair {
            @for (index, family) in families.iter().take(MAX_FAMILIES).enumerate() {
                @if family.strides.iter().filter(|(_, points)| points.len() > 2).count() > 1 { (over_size(index, family)) }
                (over_stride(index, family))
            }
        }
        @if families.len() > MAX_FAMILIES {
            p.note { (units::plural(families.len() - MAX_FAMILIES, "more combination")) " of strides in the JSON." }
        }
    }
}

fn over_size(index: usize, family: &StrideFamily<'_>) -> Markup {
    let last = family.strides.len().saturating_sub(1).max(1) as f64;
    let chart = Chart {
        id: format!("stride-size-{index}"),
        title: format!("Each stride over size ({}).", family.label),
        reading: "Lines that lie together cost the same; the first that leaves them upwards touches a new line each time.".into(),
        x: size_axis("bytes of the buffer"),
        y: number_axis("ns per load", Scale::Log10),
        series: family
            .strides
            .iter()
            .enumerate()
            .map(|(rank, (stride, points))| Series {
                label: units::bytes(*stride),
                look: Look::Ordinal(rank as f64 / last),
                shown: true,
                points: points.iter().map(|p| point(p)).collect(),
            })
            .collect(),
        ..Chart::default()
    };
    chart.markup()
}

fn over_stride(index: usize, family: &StrideFamily<'_>) -> Markup {
    let sizes: BTreeSet<u64> = family
        .strides
        .iter()
        .flat_map(|(_, points)| points.iter().map(|p| p.size_bytes))
        .collect();
    // Sizes that most strides share, spread over the range.
    let common: Vec<u64> = sizes
        .into_iter()
        .filter(|size| {
            let having = family
                .strides
                .iter()
                .filter(|(_, points)| points.iter().any(|p| p.size_bytes == *size))
                .count();
            having * 3 >= family.strides.len() * 2
        })
        .collect();
    let step = common.len().div_ceil(MAX_SIZES).max(1);
    let chosen: Vec<u64> = common.iter().rev().step_by(step).rev().copied().collect();
    let chart = Chart {
        id: format!("stride-stride-{index}"),
        title: format!("Some sizes over stride ({}).", family.label),
        reading: "Latency rises with the stride up to the line size (with its neighbour, where that is fetched along) and then stays.".into(),
        x: size_axis("stride in bytes"),
        y: number_axis("ns per load", Scale::Log10),
        series: chosen
            .iter()
            .enumerate()
            .map(|(rank, size)| Series {
                label: units::bytes(*size),
                look: Look::category(rank),
                shown: true,
                points: family
                    .strides
                    .iter()
                    .filter_map(|(stride, points)| {
                        let found = points.iter().find(|p| p.size_bytes == *size)?;
                        Some(by_stride(*stride, found))
                    })
                    .collect(),
            })
            .collect(),
        ..Chart::default()
    };
    html! { @if !chosen.is_empty() { (chart.markup()) } }
}

fn by_stride(stride: u64, p: &LatencyPoint) -> Point {
    let interval = Some((p.ns_low, p.ns_high));
    Point {
        x: stride as f64,
        y: p.ns,
        interval,
        tip: tip(
            &format!("stride {}", units::bytes(stride)),
            &units::ns(p.ns),
            interval,
            &p.batches.disturbed,
            units::ns,
        ),
        hollow: p.batches.disturbed.unresolved(),
    }
}
