//! Page of a comparison: differences, overlaid curves, document 000's summary table, the fleet and its
//! outliers.

use maud::{Markup, html};
use membound_types::{
    ComparedCurve, ComparedFigure, ComparedProfile, Comparison, ComparisonSummary, ConditionRow,
    CurveVerdict, FleetFigure, FleetGroup, OddProfile, Outlier, Overlay,
};

use super::parts;
use super::shell::{navigation, shell};
use super::svg::{Axis, Chart, Look, Point, Scale, Series};
use crate::facts::comparison as facts;
use crate::units;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Most charts of curves; the table names all curves.
const MAX_CHARTS: usize = 8;
/// Most odd profiles that are shown in full; the others are in the JSON.
const MAX_OUTLYING_PROFILES: usize = 100;
/// Longest name that is used as the heading of a column.
const MAX_HEADING_CHARS: usize = 28;
/// Most outliers of one profile that are shown without unfolding.
const MAX_OUTLIERS: usize = 12;

/// Page for a `comparison`: differences, overlaid curves, parallel loads by condition, and a fleet's
/// outliers.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    document(comparison).into_string()
}

fn document(comparison: &Comparison) -> Markup {
    let title = title(comparison);
    let several = comparison.profiles.len() > 1;
    let fleets = !comparison.fleets.is_empty();
    let parts = [
        ("figures", "What differs", several),
        ("curves", "Curves", !comparison.curves.is_empty()),
        (
            "conditions",
            "Parallel loads by condition",
            !comparison.conditions.is_empty(),
        ),
        (
            "overlays",
            "Conditions over each other",
            !comparison.overlays.is_empty(),
        ),
        ("fleet", "Fleet", fleets),
        ("method", "How it was judged", true),
    ];
    let body = html! {
        (header(comparison, &title))
        (navigation(parts.iter().filter(|part| part.2).map(|part| (part.0, part.1, false))))
        @if several { (section("figures", "What differs", &figures(comparison))) }
        @if !comparison.curves.is_empty() { (section("curves", "Curves", &curves(comparison))) }
        @if !comparison.conditions.is_empty() {
            (section("conditions", "Parallel loads by condition", &conditions(comparison)))
        }
        @if !comparison.overlays.is_empty() {
            (section("overlays", "Conditions over each other", &overlays(comparison)))
        }
        @if fleets {
            section.card id="fleet" {
                h2 { "Fleet" }
                @for group in &comparison.fleets { (fleet(group)) }
            }
        }
        (section("method", "How it was judged", &method(comparison)))
        footer { "compared by membound " (VERSION) ". Brackets hold the 95 % interval, scatter between runs included." }
    };
    shell(
        &format!("{title} · comparison · membound"),
        VERSION,
        &body,
        &html! {},
    )
}

fn section(id: &str, title: &str, body: &Markup) -> Markup {
    html! { section.card id=(id) { h2 { (title) } (body) } }
}

fn title(comparison: &Comparison) -> String {
    let profiles: usize = comparison.fleets.iter().map(|group| group.profiles).sum();
    match comparison.profiles.as_slice() {
        [] => units::plural(profiles, "profile"),
        [only] => only.name.clone(),
        [first, second] => format!("{} and {}", first.name, second.name),
        [first, others @ ..] => format!("{} and {} more", first.name, others.len()),
    }
}

fn header(comparison: &Comparison, title: &str) -> Markup {
    html! {
        header {
            (parts::top("comparison", title))
            @for note in &comparison.notes { p.banner { (note) } }
            @if let Some(guard) = &comparison.guard {
                @if guard.exceeded {
                    p.banner role="alert" {
                        b { (units::plural(guard.worst.len(), "figure")) }
                        " worse by more than " (units::compact(guard.limit_percent)) " % and by more than noise."
                    }
                } @else {
                    p.note { "No figure is worse by more than " (units::compact(guard.limit_percent)) " % and by more than noise." }
                }
            }
            @if !comparison.profiles.is_empty() {
                div.scroll tabindex="0" role="group" aria-label="profiles" {
                    table {
                        thead { tr { th scope="col" { "" } th scope="col" { "profile" } th scope="col" { "host" } th scope="col" { "processor" } th scope="col" { "kernel" } th scope="col" { "date" } th scope="col" { "file" } } }
                        tbody {
                            @for (index, profile) in comparison.profiles.iter().enumerate() { (profile_row(index, profile)) }
                        }
                    }
                }
            }
            @if !comparison.skipped.is_empty() {
                details.data {
                    summary { (units::plural(comparison.skipped.len(), "file")) " skipped" }
                    ul { @for file in &comparison.skipped { li { b { (file.file) } " " (file.reason) } } }
                }
            }
        }
    }
}

fn profile_row(index: usize, profile: &ComparedProfile) -> Markup {
    html! {
        tr {
            th scope="row" { (facts::letter(index)) }
            td { (profile.name) @if profile.incomplete { " " span.differs { "incomplete" } } }
            td { (profile.host) }
            td { (profile.cpu) @if let Some(machine) = &profile.hypervisor { " " small { (machine) } } }
            td { (profile.kernel) }
            td { (profile.date) }
            td { (profile.file) }
        }
    }
}

fn figures(comparison: &Comparison) -> Markup {
    html! {
        p.reading { "A figure differs when the difference is more than its intervals and the scatter between runs explain, corrected for the number of figures. All are listed below the ones that differ." }
        @for (index, summary) in comparison.summaries.iter().enumerate() {
            @let column = index + 1;
            @let (first, later) = (facts::title(comparison, 0, MAX_HEADING_CHARS), facts::title(comparison, column, MAX_HEADING_CHARS));
            h3 {
                (later) " against " (first)
                @if later != summary.profile { ": " (summary.profile) }
            }
            (tiles(summary))
            @let found = facts::differing(comparison, column);
            @if !found.is_empty() { (figure_table(&found, [&first, &later], column, "figures that differ")) }
            details.data {
                summary { "all figures of both" }
                @let all: Vec<&ComparedFigure> = comparison.figures.iter()
                    .filter(|figure| facts::in_either(figure, column))
                    .collect();
                (figure_table(&all, [&first, &later], column, "all figures"))
            }
        }
    }
}

fn tiles(summary: &ComparisonSummary) -> Markup {
    let tile = |title: &str, number: usize| {
        html! { div.tile { span { (title) } b { (number) } } }
    };
    html! {
        div.tiles {
            div.tile {
                span { "same within noise" }
                b { (summary.same) " " small { "of " (summary.compared) } }
            }
            (tile("worse", summary.worse))
            (tile("better", summary.better))
            @if summary.neither > 0 { (tile("neither worse nor better", summary.neither)) }
            @if summary.unknown > 0 { (tile("undecided", summary.unknown)) }
            @if summary.missing > 0 { (tile("in one of the two only", summary.missing)) }
        }
    }
}

fn figure_table(
    found: &[&ComparedFigure],
    [first, later]: [&str; 2],
    column: usize,
    label: &str,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "part" } th scope="col" { "figure" }
                    th scope="col" { (first) } th scope="col" { (later) }
                    th scope="col" { "change" } th scope="col" { "verdict" }
                } }
                tbody { @for figure in found { (figure_row(figure, column)) } }
            }
        }
    }
}

fn figure_row(figure: &ComparedFigure, column: usize) -> Markup {
    html! {
        tr title=(figure.name) {
            td { (figure.part) }
            th scope="row" { (figure.title) }
            @for profile in [0, column] {
                td {
                    (facts::value_at(figure, profile))
                    @if let Some(interval) = facts::wide_interval(figure, profile) { " " small { (interval) } }
                }
            }
            @if let Some(difference) = facts::at(&figure.differences, column) {
                td {
                    (facts::difference(&difference, &figure.unit))
                    @if let (Some(low), Some(high)) = (difference.relative_low, difference.relative_high) {
                        " " small { "[" (facts::change(low)) ", " (facts::change(high)) "]" }
                    }
                }
                @let verdict = facts::verdict(figure, &difference);
                td { @if verdict == "worse" { span.differs { (verdict) } } @else { (verdict) } }
            } @else { td { } td { } }
        }
    }
}

fn curves(comparison: &Comparison) -> Markup {
    html! {
        p.reading { "Each curve of a later profile as a line of the first's: later = slope · first + shift. A shift is a cost that every execution has once; a slope is a cost of every access; another shape is a change at some places only." }
        @let several = comparison.summaries.len() > 1;
        @let differing: Vec<&ComparedCurve> = comparison.curves.iter()
            .filter(|curve| curve.verdict.is_some_and(|it| it != CurveVerdict::Same))
            .collect();
        @if differing.is_empty() {
            p { "No curve differs by more than noise." }
        } @else {
            (curve_table(&differing, several, "curves that differ"))
        }
        details.data {
            summary { "all curves" }
            @let all: Vec<&ComparedCurve> = comparison.curves.iter().collect();
            (curve_table(&all, several, "all curves"))
        }
        div.pair {
            @for (index, curve) in charted(&comparison.curves).into_iter().enumerate() {
                (chart(index, curve, comparison))
            }
        }
    }
}

fn curve_table(curves: &[&ComparedCurve], several: bool, label: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "curve" }
                    @if several { th scope="col" { "profile" } }
                    th scope="col" { "verdict" } th scope="col" { "shift" } th scope="col" { "slope" }
                    th scope="col" { "differs at" } th scope="col" { "change" }
                } }
                tbody { @for curve in curves { (curve_row(curve, several)) } }
            }
        }
    }
}

fn curve_row(curve: &ComparedCurve, several: bool) -> Markup {
    let (shift, slope) = facts::parameters(curve);
    html! {
        tr title=(curve.name) {
            th scope="row" { (curve.part) ": " (curve.title) }
            @if several { td { (curve.profile) } }
            td {
                @match curve.verdict {
                    None => { "too few places" }
                    Some(CurveVerdict::Same) => { "same" }
                    Some(other) => { span.differs { (facts::curve_verdict(other)) } }
                }
            }
            @for found in [shift, slope] {
                td { @if let Some(found) = found { (found.value) " " small { (found.interval) } } @else { "–" } }
            }
            td { (facts::places(curve)) }
            td { (curve.median_relative.map_or_else(String::new, units::percent)) }
        }
    }
}

/// Curves that are drawn: differing ones first, and always the first latency curve and the first curves of
/// parallel and sequential loads.
fn charted(curves: &[ComparedCurve]) -> Vec<&ComparedCurve> {
    let usable = || curves.iter().filter(|curve| curve.points.len() > 1);
    let starts = |name: &str, end: &str| {
        usable().find(|curve| curve.name.starts_with(name) && curve.name.ends_with(end))
    };
    let always = [
        starts("latency.", ""),
        starts("mlp.", ".parallel"),
        starts("mlp.", ".sequential"),
    ];
    let differing = usable().filter(|curve| {
        curve
            .verdict
            .is_some_and(|verdict| verdict != CurveVerdict::Same)
    });
    let mut out: Vec<&ComparedCurve> = Vec::new();
    for curve in always.into_iter().flatten().chain(differing) {
        let drawn =
            |other: &&ComparedCurve| other.name == curve.name && other.profile == curve.profile;
        if out.len() < MAX_CHARTS && !out.iter().any(drawn) {
            out.push(curve);
        }
    }
    out
}

fn chart(index: usize, curve: &ComparedCurve, comparison: &Comparison) -> Markup {
    let sizes = curve.x_unit == "bytes";
    let first = comparison
        .profiles
        .first()
        .map_or("first", |profile| profile.name.as_str());
    let series = |place: usize, name: &str, read: fn(&membound_types::CurvePair) -> f64| Series {
        label: name.to_owned(),
        look: Look::category(place),
        shown: true,
        points: curve
            .points
            .iter()
            .map(|pair| Point {
                x: pair.x,
                y: read(pair),
                tip: format!(
                    "{}: {} {}",
                    if sizes {
                        units::bytes(pair.x.max(0.0).round() as u64)
                    } else {
                        units::compact(pair.x)
                    },
                    units::number(read(pair)),
                    curve.y_unit
                ),
                ..Point::default()
            })
            .collect(),
    };
    let verdict = curve
        .verdict
        .map_or("too few common places", facts::curve_verdict);
    let chart = Chart {
        id: format!("curve-{index}"),
        title: format!("{}: {}.", curve.part, curve.title),
        reading: format!("Verdict: {verdict}."),
        x: Axis {
            title: curve.x_unit.clone(),
            scale: if sizes { Scale::Log2 } else { Scale::Linear },
            format: if sizes { size } else { units::compact },
        },
        y: Axis {
            title: curve.y_unit.clone(),
            scale: if sizes { Scale::Log10 } else { Scale::Linear },
            format: units::compact,
        },
        series: vec![
            series(0, first, |pair| pair.first),
            series(1, &curve.profile, |pair| pair.later),
        ],
        ..Chart::default()
    };
    chart.markup()
}

fn size(value: f64) -> String {
    units::bytes(value.max(0.0).round() as u64)
}

fn conditions(comparison: &Comparison) -> Markup {
    html! {
        p.reading { "Effective memory-level parallelism is one less than the number of loads at once that take as long as two in sequence. Times are core cycles; a range is the middle half of the batches; the overhead is that of one load over the first row." }
        div.scroll.wide tabindex="0" role="group" aria-label="conditions" {
            table {
                thead { tr {
                    th scope="col" { "profile" } th scope="col" { "condition" } th scope="col" { "effective MLP" }
                    th scope="col" { "by throughput" } th scope="col" { "one load" } th scope="col" { "two in sequence" }
                    th scope="col" { "MLP + 1 loads" } th scope="col" { "their time" } th scope="col" { "overhead" }
                } }
                tbody {
                    @for (index, row) in comparison.conditions.iter().enumerate() {
                        @let text = facts::condition(row, index == 0);
                        tr {
                            td { (row.profile) }
                            th scope="row" { (facts::condition_within(row)) }
                            td.wraps { b { (text.mlp) } " " small { (text.interval) } }
                            td { (text.throughput) }
                            td { (text.one) } td { (text.pair) } td { (text.loads) } td.wraps { (text.time) } td.wraps { (text.overhead) }
                        }
                    }
                }
            }
        }
        @if let Some(noise) = facts::placement_noise(comparison, condition_name) { p.note { (noise) "." } }
    }
}

/// A condition with its profile, unless it is named after it.
fn condition_name(row: &ConditionRow) -> String {
    match row.condition.starts_with(&row.profile) {
        true => row.condition.clone(),
        false => format!("{} {}", row.profile, row.condition),
    }
}

/// Each curve under all conditions in one chart, like document 000's figures 3.1 to 4.1.
fn overlays(comparison: &Comparison) -> Markup {
    html! {
        p.reading { "The same curve under every condition of all profiles. A shift of one against another is a cost that every execution has once; another slope is a cost of every access." }
        div.pair { @for overlay in &comparison.overlays { (overlaid(overlay)) } }
    }
}

fn overlaid(overlay: &Overlay) -> Markup {
    let sizes = overlay.x_unit == "bytes";
    let place = |x: f64| {
        if sizes { size(x) } else { units::compact(x) }
    };
    let series = overlay
        .curves
        .iter()
        .enumerate()
        .map(|(index, curve)| Series {
            label: curve.label.clone(),
            look: Look::category(index),
            shown: true,
            points: curve
                .points
                .iter()
                .map(|point| Point {
                    x: point.x,
                    y: point.y,
                    interval: point.low.zip(point.high),
                    tip: format!(
                        "{}, {}: {} {}",
                        curve.label,
                        place(point.x),
                        units::number(point.y),
                        overlay.y_unit
                    ),
                    hollow: false,
                })
                .collect(),
        });
    let chart = Chart {
        id: format!("overlay-{}", overlay.name),
        title: format!("{}.", overlay.title),
        reading: format!("{}.", facts::overlay_remark(overlay)),
        x: Axis {
            title: overlay.x_unit.clone(),
            scale: if sizes { Scale::Log2 } else { Scale::Linear },
            format: if sizes { size } else { units::compact },
        },
        y: Axis {
            title: overlay.y_unit.clone(),
            scale: if sizes { Scale::Log10 } else { Scale::Linear },
            format: units::compact,
        },
        series: series.collect(),
        ..Chart::default()
    };
    chart.markup()
}

fn fleet(group: &FleetGroup) -> Markup {
    html! {
        h3 { (group.cpu) ": " (units::plural(group.profiles, "profile")) }
        @match group.limit_sigmas {
            Some(limit) => {
                p.reading {
                    "Standing out: " (group.odd.len()) ", with a figure farther from the median than " (units::compact(limit))
                    " robust standard deviations and " (units::percent(group.limit_relative)) ", or missing."
                }
            }
            None => { p.reading { "Too few profiles to say that one stands out." } }
        }
        @for profile in group.odd.iter().take(MAX_OUTLYING_PROFILES) { (odd(profile)) }
        @if group.odd.len() > MAX_OUTLYING_PROFILES { p.note { (group.odd.len() - MAX_OUTLYING_PROFILES) " more stand out; the JSON has them." } }
        @let headline: Vec<&FleetFigure> = group.figures.iter().filter(|it| facts::is_headline(&it.name)).collect();
        @if !headline.is_empty() {
            h3 { "What is usual" }
            (distribution(&headline, "usual figures"))
        }
        details.data {
            summary { "distribution of every figure" }
            @let all: Vec<&FleetFigure> = group.figures.iter().collect();
            (distribution(&all, "distribution of figures"))
        }
    }
}

fn distribution(figures: &[&FleetFigure], label: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "part" } th scope="col" { "figure" } th scope="col" { "median" } th scope="col" { "robust σ" }
                    th scope="col" { "5 % to 95 %" } th scope="col" { "profiles" }
                } }
                tbody {
                    @for figure in figures {
                        tr title=(figure.name) {
                            td { (figure.part) } th scope="row" { (figure.title) }
                            td { (facts::value(figure.median, &figure.unit)) }
                            td { (facts::scatter(figure)) }
                            td { (facts::middle(figure)) }
                            td { (units::count(figure.count as u64)) }
                        }
                    }
                }
            }
        }
    }
}

fn odd(profile: &OddProfile) -> Markup {
    let count = facts::outlier_count(profile);
    html! {
        h3 { (profile.host) " " small { (profile.file) } }
        @for hint in &profile.hints { p.missing { (hint) } }
        p.note {
            @if !count.is_empty() { (count) "." }
            @for condition in &profile.conditions {
                " " b { (condition.name) } " " (condition.value) " (usual: " (condition.usual) ")."
            }
            @if !profile.missing.is_empty() { " Not measured: " (profile.missing.join(", ")) "." }
        }
        @let (shown, others) = profile.outliers.split_at(profile.outliers.len().min(MAX_OUTLIERS));
        @if !shown.is_empty() { (outliers(shown, &format!("outliers of {}", profile.host))) }
        @if !others.is_empty() {
            details.data {
                summary { (units::plural(others.len(), "more outlier")) }
                (outliers(others, &format!("more outliers of {}", profile.host)))
            }
        }
    }
}

fn outliers(outliers: &[Outlier], label: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "figure" } th scope="col" { "here" } th scope="col" { "median" }
                    th scope="col" { "change" } th scope="col" { "robust σ" } th scope="col" { "verdict" }
                } }
                tbody {
                    @for outlier in outliers {
                        tr title=(outlier.name) {
                            th scope="row" { (outlier.title) }
                            td { (facts::value(outlier.value, &outlier.unit)) }
                            td { (facts::value(outlier.median, &outlier.unit)) }
                            td { (facts::change(outlier.relative)) }
                            td { (units::number(outlier.sigmas.abs())) }
                            @let verdict = facts::outlier_verdict(outlier);
                            td { @if outlier.worse { span.differs { (verdict) } } @else { (verdict) } }
                        }
                    }
                }
            }
        }
    }
}

fn method(comparison: &Comparison) -> Markup {
    let method = &comparison.method;
    html! {
        p { "Figures: " (method.test) "." }
        p { "Number of figures: " (method.correction) ", false discovery rate " (units::percent(method.false_discovery_rate)) "." }
        p { "Curves: " (method.curves) "." }
        details.data {
            summary { "assumed scatter between runs" }
            table {
                thead { tr { th scope="col" { "figures" } th scope="col" { "standard deviation" } } }
                tbody {
                    @for floor in &method.floors {
                        tr {
                            th scope="row" { (floor.figures) }
                            td { (units::percent(floor.relative)) @if floor.absolute > 0.0 { " and " (units::compact(floor.absolute)) } }
                        }
                    }
                }
            }
        }
    }
}
