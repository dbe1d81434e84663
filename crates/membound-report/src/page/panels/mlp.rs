//! Panel of the IIT Delhi experiments: the N × K plane, T(N), sequential loads, the area sweep, and the
//! summary by condition.

mod curve;
mod placements;
mod sequence;

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use membound_types::{AreaPoint, Filler, Level, Mlp, MlpCell, ThroughputPoint};

use super::axes::{number_axis, size_axis};
use super::figure::{figure_text, value_interval};
use super::level_marks::level_marks;
use super::notes::skipped;
use super::tip::tip;
use crate::page::svg::{Axis, Chart, Extent, Look, Mark, MarkKind, Point, Rule, Scale, Series};
use crate::{facts, units};
use curve::{cell_point, curve_of};

pub(super) fn body(mlp: &Mlp, levels: &[Level]) -> Markup {
    html! {
        (figures(mlp))
        (plane(mlp))
        div.pair {
            (fillers(mlp))
            (parallel(mlp))
            (throughput(mlp))
            (sequence::chart(mlp))
            (area_cycles(mlp, levels))
            (area_ratios(mlp, levels))
        }
        @if let Some(source) = facts::hits_source(&mlp.areas) { p.note { "Hits by level, in the points of the two plots over the area: " (source) "." } }
        (sequence::lines(mlp))
        (page_walks(mlp))
        (conditions(mlp))
        (placements::body(mlp))
        (misses(mlp))
        (skipped(&mlp.skipped))
    }
}

fn figures(mlp: &Mlp) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="windows" {
            table {
                thead { tr { th scope="col" { "window" } th scope="col" { "filler" } th scope="col" { "entries" } th scope="col" { "pair inside" } th scope="col" { "pair outside" } } }
                tbody {
                    @for window in &mlp.windows {
                        tr {
                            th scope="row" { (window.limited_by) }
                            td { (facts::window_filler(window)) }
                            td { b { (units::compact(window.entries.value)) } " " small { (units::interval(window.entries.low, window.entries.high)) " " (window.entries.basis) } }
                            td { (units::cycles(window.inside_cycles)) }
                            td { (units::cycles(window.outside_cycles)) }
                        }
                    }
                    @if mlp.windows.is_empty() { tr { td colspan="5" { "no window was found: " (figure_text(&mlp.rob_size, units::number)) } } }
                }
            }
        }
        @if let Some(evidence) = facts::reorder_evidence(mlp) { p.note { (evidence) "." } }
        p.note {
            "Two loads in sequence take "
            @match facts::pair(mlp) {
                Some(pair) => { (pair) " cycles" },
                None => { (figure_text(&mlp.sequential_pair_cycles, units::cycles)) },
            }
            @if let Some(one) = mlp.one_load_cycles.known() { ", one " (facts::with_interval(one)) }
            "; " (facts::mlp_title(mlp)) "; " (mlp.fence) " as the fence."
        }
        @if let Some(throughput) = facts::throughput(mlp) {
            p.note { "Parallel loads by throughput: " b { (throughput) } "." }
        }
        @if let Some(rule) = facts::rule(mlp) {
            p.note {
                "Parallel loads by the rule: " b { (rule) }
                @if let Some(between) = facts::rule_between(mlp) { "; " (between) }
                "."
                @if let (Some(why), true) = (mlp.mlp_rule_interval.why_missing(), mlp.mlp_rule_between.is_some()) {
                    " Interval: " (facts::missing_text(why)) "."
                }
            }
        }
    }
}

fn by_loads<'a>(cells: impl Iterator<Item = &'a MlpCell>) -> BTreeMap<u32, Vec<&'a MlpCell>> {
    let mut lines: BTreeMap<u32, Vec<&MlpCell>> = BTreeMap::new();
    for cell in cells {
        lines.entry(cell.loads).or_default().push(cell);
    }
    for line in lines.values_mut() {
        line.sort_by_key(|cell| cell.fillers);
    }
    lines
}

fn pair_rule(mlp: &Mlp) -> Vec<Rule> {
    mlp.sequential_pair_cycles
        .known()
        .map(|cycles| Rule {
            y: *cycles,
            label: format!("two in sequence: {}", units::number(*cycles)),
        })
        .into_iter()
        .collect()
}

fn plane(mlp: &Mlp) -> Markup {
    let lines = by_loads(facts::plane_cells(mlp, mlp.filler));
    let last = lines.len().saturating_sub(1).max(1) as f64;
    let chart = Chart {
        id: "mlp-plane".into(),
        title: "N loads, K fillers.".into(),
        reading: "A line jumps where its last load no longer fits into the reorder buffer beside the others; a line that is above two in sequence from the start has more loads than the core can keep in flight.".into(),
        extent: Extent::Full,
        x: Axis::linear(&format!("K: fillers ({}) before the last load", facts::plane_filler(mlp))),
        y: Axis::linear("core cycles for all N loads"),
        series: lines
            .iter()
            .enumerate()
            .map(|(rank, (loads, cells))| Series {
                label: format!("N={loads}"),
                look: Look::Ordinal(rank as f64 / last),
                shown: true,
                points: cells.iter().map(|c| cell_point(c.fillers, &format!("K={}", c.fillers), c)).collect(),
            })
            .collect(),
        marks: facts::plane_window(mlp)
            .into_iter()
            .map(|window| Mark {
                kind: MarkKind::Found,
                x: f64::from(window.cliff_fillers),
                interval: None,
                name: units::compact(window.entries.value),
                detail: window.limited_by.clone(),
            })
            .collect(),
        rules: pair_rule(mlp),
        end_labels: true,
    };
    chart.markup()
}

/// Times of two loads with each filler; the cliff shows which resource runs out.
fn fillers(mlp: &Mlp) -> Markup {
    let series: Vec<Series> = Filler::ALL
        .into_iter()
        .enumerate()
        .filter_map(|(index, filler)| {
            let cells = by_loads(facts::plane_cells(mlp, filler)).remove(&2)?;
            Some(Series {
                label: filler.to_string(),
                look: Look::category(index),
                shown: true,
                points: cells
                    .iter()
                    .map(|c| cell_point(c.fillers, &format!("K={}", c.fillers), c))
                    .collect(),
            })
        })
        .collect();
    let chart = Chart {
        id: "mlp-fillers".into(),
        title: "Two loads, each filler.".into(),
        reading: "Each filler's cliff names what runs out: the reorder buffer, a file of registers, or a queue.".into(),
        x: Axis::linear("K: fillers"),
        y: Axis::linear("core cycles"),
        marks: mlp
            .windows
            .iter()
            .map(|window| Mark {
                kind: MarkKind::Found,
                x: f64::from(window.cliff_fillers),
                interval: None,
                name: units::compact(window.entries.value),
                detail: facts::window_filler(window),
            })
            .collect(),
        rules: pair_rule(mlp),
        series,
        ..Chart::default()
    };
    html! { @if chart.series.len() > 1 { (chart.markup()) } }
}

fn parallel(mlp: &Mlp) -> Markup {
    let series = facts::runs(mlp)
        .enumerate()
        .map(|(index, run)| {
            let points = by_loads(facts::plane_cells(run, run.filler))
                .into_values()
                .filter_map(|cells| cells.first().copied())
                .map(|c| cell_point(c.loads, &format!("N={} (K={})", c.loads, c.fillers), c))
                .collect();
            curve_of(index, run, points)
        })
        .collect();
    let chart = Chart {
        id: "mlp-parallel".into(),
        title: "T(N): N loads at once.".into(),
        reading: "Inside the window; the slope is what each further load costs, and the parallelism by the rule ends where the line reaches two in sequence.".into(),
        x: Axis::linear("N: loads"),
        y: Axis::linear("core cycles"),
        marks: mlp
            .mlp_rule
            .known()
            .map(|rule| Mark {
                kind: MarkKind::Found,
                x: rule + 1.0,
                interval: mlp
                    .mlp_rule_interval
                    .known()
                    .map(|figure| (figure.low + 1.0, figure.high + 1.0)),
                name: format!("rule: {}", units::number(*rule)),
                detail: String::new(),
            })
            .into_iter()
            .collect(),
        rules: pair_rule(mlp),
        series,
        ..Chart::default()
    };
    chart.markup()
}

fn throughput(mlp: &Mlp) -> Markup {
    let series = facts::runs(mlp)
        .enumerate()
        .map(|(index, run)| {
            let points = run.throughput.iter().map(throughput_point).collect();
            curve_of(index, run, points)
        })
        .collect();
    let chart = Chart {
        id: "mlp-throughput".into(),
        title: "Parallelism by throughput.".into(),
        reading: "Interleaved independent chases: latency of one divided by the time per load of all; where it levels off, the core has no more room for misses.".into(),
        x: number_axis("independent chains", Scale::Log2),
        y: Axis::linear("loads in flight"),
        series,
        ..Chart::default()
    };
    chart.markup()
}

fn throughput_point(p: &ThroughputPoint) -> Point {
    let place = units::plural(p.chains as usize, "chain");
    let mut text = tip(
        &place,
        &format!("{} at once", units::number(p.parallelism)),
        None,
        &p.batches.disturbed,
        units::cycles,
    );
    text.push_str(&format!("; {} per load", units::cycles(p.cycles_per_load)));
    Point {
        x: f64::from(p.chains),
        y: p.parallelism,
        interval: None,
        tip: text,
        hollow: p.batches.disturbed.unresolved(),
    }
}

/// Page walks of every condition that can be compared with one of larger pages.
fn page_walks(mlp: &Mlp) -> Markup {
    let known = facts::walks(mlp);
    let why = facts::runs(mlp)
        .min_by_key(|run| run.page)
        .and_then(|run| run.page_walks.why_missing());
    html! {
        @if known.is_empty() {
            @if let Some(why) = why { p.note { "Page walks: " (facts::missing_text(why)) "." } }
        } @else {
            h3 { "Page walks" }
            @for (run, walks) in &known {
                p.reading {
                    (facts::mlp_title(run)) ", against " (walks.against) " pages: "
                    b { (facts::walks_at_once(walks)) } " walks at once by T(N)"
                    @if let Some(chases) = walks.walks_by_chases { ", " b { (units::compact(chases)) } " by independent chases" }
                    ". " (facts::walks_reading(walks))
                }
            }
            div.scroll tabindex="0" role="group" aria-label="page walks" {
                table {
                    thead { tr {
                        th scope="col" { "condition" } th scope="col" { "one walk, cycles" } th scope="col" { "each further load" }
                        th scope="col" { "with larger pages" } th scope="col" { "the difference" } th scope="col" { "walks at once" }
                    } }
                    tbody {
                        @for (run, walks) in &known {
                            tr {
                                th scope="row" { (facts::mlp_title(run)) }
                                td { (value_interval(&walks.miss_cycles)) }
                                td { (value_interval(&walks.further_cycles)) }
                                td { (value_interval(&walks.further_against_cycles)) }
                                td { (value_interval(&walks.excess_cycles)) }
                                td { (facts::walks_at_once(walks)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn area_series(
    mlp: &Mlp,
    skip_one: bool,
    value: impl Fn(&AreaPoint) -> (f64, String),
) -> Vec<Series> {
    let loads: BTreeSet<u32> = mlp
        .areas
        .iter()
        .map(|p| p.loads)
        .filter(|loads| !skip_one || *loads > 1)
        .collect();
    let last = loads.len().saturating_sub(1).max(1) as f64;
    loads
        .into_iter()
        .enumerate()
        .map(|(rank, loads)| {
            let mut points: Vec<&AreaPoint> =
                mlp.areas.iter().filter(|p| p.loads == loads).collect();
            points.sort_by_key(|p| p.area_bytes);
            Series {
                label: format!("N={loads}"),
                look: Look::Ordinal(rank as f64 / last),
                shown: true,
                points: points
                    .into_iter()
                    .map(|p| {
                        let (y, text) = value(p);
                        let expected: Vec<String> = p
                            .expected
                            .iter()
                            .filter(|hits| hits.share > 0.005)
                            .map(|hits| format!("{} {}", hits.level, units::percent(hits.share)))
                            .collect();
                        let mut hits = String::new();
                        if p.hits.known().is_some() {
                            hits.push_str(&format!("; hits: {}", facts::hits(p)));
                        }
                        if !expected.is_empty() {
                            hits.push_str(&format!("; expected hits: {}", expected.join(", ")));
                        }
                        Point {
                            x: p.area_bytes as f64,
                            y,
                            tip: format!("{}: {text}{hits}", units::bytes(p.area_bytes)),
                            ..Point::default()
                        }
                    })
                    .collect(),
            }
        })
        .collect()
}

fn area_cycles(mlp: &Mlp, levels: &[Level]) -> Markup {
    let chart = Chart {
        id: "mlp-areas".into(),
        title: "N random accesses over the area.".into(),
        reading: "Where the curves lie apart, accesses are served one after another; where they close up, they overlap.".into(),
        x: size_axis("area in bytes"),
        y: number_axis("core cycles for all N", Scale::Log10),
        series: area_series(mlp, false, |p| {
            (p.cycles, format!("{} ± {}", units::cycles(p.cycles), units::number(p.spread)))
        }),
        marks: level_marks(levels, false),
        ..Chart::default()
    };
    chart.markup()
}

fn area_ratios(mlp: &Mlp, levels: &[Level]) -> Markup {
    let chart = Chart {
        id: "mlp-ratios".into(),
        title: "T(N) ÷ T(1) over the area.".into(),
        reading: "1 would be perfect parallelism, N would be none.".into(),
        x: size_axis("area in bytes"),
        y: Axis::linear("T(N) ÷ T(1)"),
        series: area_series(mlp, true, |p| {
            (
                p.ratio.unwrap_or(f64::NAN),
                p.ratio.map_or_else(
                    || "not told apart from the empty kernel".to_owned(),
                    |ratio| format!("{} times one access", units::number(ratio)),
                ),
            )
        }),
        marks: level_marks(levels, false),
        ..Chart::default()
    };
    chart.markup()
}

fn conditions(mlp: &Mlp) -> Markup {
    html! {
        @if !mlp.others.is_empty() {
            h3 { "By condition" }
            p.reading { "What each condition does to one load and to the parallelism; overhead is the cycles that one load takes beyond the first row's." }
            div.scroll tabindex="0" role="group" aria-label="conditions" {
                table {
                    thead { tr {
                        th scope="col" { "condition" } th scope="col" { "one load, cycles" } th scope="col" { "two in sequence" }
                        th scope="col" { "MLP, rule" } th scope="col" { "MLP, throughput" } th scope="col" { "overhead, cycles" }
                    } }
                    tbody {
                        @for run in facts::mlp_conditions(mlp) {
                            tr {
                                th scope="row" { (run.label) }
                                td { (run.one) } td { (run.pair) } td { (run.rule) } td { (run.throughput) } td { (run.overhead) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn misses(mlp: &Mlp) -> Markup {
    let why = mlp.cells.iter().find_map(|cell| cell.misses.why_missing());
    html! {
        @if let Some(why) = why {
            p.note { "Misses per access: " (facts::missing_text(why)) "." }
        }
    }
}
