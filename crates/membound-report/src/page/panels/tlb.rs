//! Panels of address translation and of the prefetchers.

use std::collections::BTreeMap;

use maud::{Markup, html};
use membound_types::{Outcome, PageKind, Prefetch, PrefetchPoint, PrefetchState, Tlb, TlbPoint};

use super::figure::figure_text;
use super::notes::skipped;
use super::tip::tip;
use crate::page::svg::{
    Axis, Chart, Extent, Look, Mark, MarkKind, Point, Scale, Series, coordinate,
};
use crate::{facts, units};

pub(super) fn body(tlb: &Tlb) -> Markup {
    let mut curves: BTreeMap<PageKind, Vec<&TlbPoint>> = BTreeMap::new();
    for point in &tlb.points {
        curves.entry(point.page).or_default().push(point);
    }
    let chart = Chart {
        id: "tlb-curves".into(),
        title: "Cost of translation over the number of pages.".into(),
        reading: "Marks are the entries that were found for each level.".into(),
        extent: Extent::Full,
        x: Axis {
            title: "pages visited".into(),
            scale: Scale::Log2,
            format: pages,
        },
        y: Axis::linear("core cycles of translation per load"),
        series: curves
            .into_iter()
            .enumerate()
            .map(|(index, (page, mut points))| {
                points.sort_by_key(|p| p.pages);
                Series {
                    label: format!("{page} pages"),
                    look: Look::category(index),
                    shown: true,
                    points: points.into_iter().map(point).collect(),
                }
            })
            .collect(),
        marks: tlb
            .levels
            .iter()
            .map(|level| Mark {
                kind: MarkKind::Found,
                x: level.entries.value,
                interval: Some((level.entries.low, level.entries.high)),
                name: format!("L{}", level.level),
                detail: format!("{}: {}", level.page, units::compact(level.entries.value)),
            })
            .collect(),
        ..Chart::default()
    };
    html! {
        (levels(tlb))
        (reach(tlb))
        (chart.markup())
        (overlap(tlb))
        (skipped(&tlb.skipped))
    }
}

fn pages(value: f64) -> String {
    units::count(value.max(0.0).round() as u64)
}

fn point(p: &TlbPoint) -> Point {
    let place = format!("{} pages", units::count(p.pages));
    let mut text = tip(
        &place,
        &units::cycles(p.translation_cycles),
        None,
        &p.batches.disturbed,
        units::ns,
    );
    text.push_str(&format!(
        "; {} apart, {} packed",
        units::ns(p.ns),
        units::ns(p.packed_ns)
    ));
    Point {
        x: p.pages as f64,
        y: p.translation_cycles,
        interval: None,
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}

fn levels(tlb: &Tlb) -> Markup {
    html! {
        @if tlb.levels.is_empty() {
            p.missing { "not measured: no level of the TLB was found in these points (measure tlb --thorough)" }
        } @else {
            div.scroll tabindex="0" role="group" aria-label="levels of the TLB" {
                table {
                    thead { tr { th scope="col" { "pages" } th scope="col" { "level" } th scope="col" { "entries reached" } th scope="col" { "reach" } th scope="col" { "cost of a miss, cycles" } } }
                    tbody {
                        @for level in &tlb.levels {
                            tr {
                                th scope="row" { (level.page) }
                                td { "L" (level.level) }
                                td { b { (units::compact(level.entries.value)) } " " small { (units::interval(level.entries.low, level.entries.high)) } }
                                td { (units::bytes(level.reach_bytes)) }
                                td { b { (units::compact(level.miss_cycles.value)) } " " small { (units::interval(level.miss_cycles.low, level.miss_cycles.high)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Memory reached without a page walk, compared with the size of each cache.
fn reach(tlb: &Tlb) -> Markup {
    let rows = facts::reach_rows(tlb);
    html! {
        @if let Some((_, kinds)) = rows.first() {
            h3 { "Reach and cache sizes" }
            p.reading { "Bytes that are reached without a page walk; where that is less than a cache holds, loads that hit the cache still wait for walks." }
            div.scroll tabindex="0" role="group" aria-label="reach and cache sizes" {
                table {
                    thead { tr {
                        th scope="col" { "cache" } th scope="col" { "size" }
                        @for kind in kinds { th scope="col" { (kind.page) " reach" } }
                    } }
                    tbody {
                        @for (cache, row) in &rows {
                            tr {
                                th scope="row" { (cache.level) }
                                td { (facts::cache_size(cache)) }
                                @for reach in row {
                                    td {
                                        @match reach.covered {
                                            Some(true) => { (facts::reach_text(reach)) }
                                            Some(false) => { b { "less: " (facts::reach_text(reach)) } }
                                            None => { "unknown: " (facts::reach_text(reach)) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @for advice in tlb.reach.iter().filter_map(|reach| reach.advice.as_deref()) {
                p.note { b { "Advice: " } (advice) "." }
            }
        }
    }
}

fn overlap(tlb: &Tlb) -> Markup {
    html! {
        @if !tlb.overlap.is_empty() {
            h3 { "Do misses overlap?" }
            p.reading { "Translation cost of one chain divided by that of several: 1 is none, the number of chains is full overlap. Page walks at once, by these independent chases: " (figure_text(&tlb.parallel_walks, units::compact)) "." }
            div.scroll tabindex="0" role="group" aria-label="overlap of misses" {
                table {
                    thead { tr { th scope="col" { "pages" } th scope="col" { "chains" } th scope="col" { "cycles per load" } th scope="col" { "overlap" } } }
                    tbody {
                        @for point in &tlb.overlap {
                            tr {
                                th scope="row" { (point.page) } td { (point.chains) }
                                td { (units::number(point.translation_cycles)) } td { (units::number(point.overlap)) }
                            }
                        }
                    }
                }
            }
        } @else {
            p.note { "Overlap of misses: " (figure_text(&tlb.parallel_walks, units::compact)) "." }
        }
    }
}

pub(super) fn prefetch(prefetch: &Prefetch) -> Markup {
    // States in the order of their appearance, the machine's own first.
    let mut states: Vec<&PrefetchState> = Vec::new();
    for point in &prefetch.points {
        if !states.contains(&&point.prefetch) {
            states.push(&point.prefetch);
        }
    }
    html! {
        @if prefetch.points.is_empty() { p.missing { "not measured: the part holds no points" } }
        @for state in &states {
            @if states.len() > 1 { h3 { "Prefetchers " (facts::prefetch_state_title(state)) } }
            div.scroll tabindex="0" role="group" aria-label="patterns" {
                table.bars {
                    thead { tr { th scope="col" { "pattern" } th scope="col" { "fetched ahead" } th scope="col" { "ratio" } th scope="col" { "time against random" } th scope="col" { "ns" } } }
                    tbody {
                        @for point in prefetch.points.iter().filter(|p| p.prefetch == **state) { (pattern(point)) }
                    }
                }
            }
        }
        p.note {
            "Patterns over " (units::bytes(prefetch.area_bytes)) ". "
            @match &prefetch.controls {
                Outcome::Known(names) if names.is_empty() => { "None of the prefetchers can be switched here." }
                Outcome::Known(names) => { "Can be switched: " (names.join(", ")) "." }
                Outcome::Missing { not_measured } => { "Switching prefetchers off: " (facts::missing_text(not_measured)) "." }
            }
        }
        (skipped(&prefetch.skipped))
    }
}

fn pattern(p: &PrefetchPoint) -> Markup {
    // 100 is the time of random loads; a longer bar is cut at one and a half times that.
    let share = if p.ratio.is_finite() {
        (p.ratio / 1.5).clamp(0.0, 1.0) * 150.0
    } else {
        0.0
    };
    let disturbed = facts::reason(&p.batches.disturbed, units::ns);
    html! {
        tr {
            th scope="row" { (facts::prefetch_pattern_title(p.pattern)) }
            td { @if p.prefetched { b { "yes" } } @else { "no" } }
            td { (units::number(p.ratio)) @if let Some(reason) = disturbed { " " span.disturbed title=(reason) { "*" } } }
            td.bar {
                svg viewBox="0 0 152 14" role="img" aria-label=(units::number(p.ratio)) {
                    rect class=(if p.prefetched { "ahead" } else { "not" }) x="0" y="2" width=(coordinate(share)) height="10" {}
                    path d="M100 0V14" {}
                }
            }
            td { (units::number(p.ns)) " " small { "of " (units::number(p.random_ns)) } }
        }
    }
}
