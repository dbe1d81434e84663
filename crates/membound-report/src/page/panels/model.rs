//! Panel of a fitted model: measured values with fitted curves, residuals, and the tables of parameters and
//! levels.

use maud::{Markup, html};
use membound_types::{Figure, FitData, FittedPoint, Model, ModelLevel, Outcome, Parameter};

use super::axes::{number_axis, size_axis};
use crate::facts::model as facts;
use crate::facts::model::FittedCurve;
use crate::page::svg::{Axis, Chart, Extent, Look, Mark, MarkKind, Point, Rule, Scale, Series};
use crate::units;

/// Most values with markers in a chart; of more, every nth is drawn.
const MAX_POINTS: usize = 1600;
/// Most window sizes that are shown at first.
const MAX_SHOWN: usize = 4;
/// Largest sigma in per cent that is drawn; a larger one says nothing and would flatten the residuals.
const MAX_SIGMA: f64 = 500.0;
/// Most characters of a level's name at its mark; the table has all.
const MAX_LETTERS: usize = 24;
/// Explains the fit, in the profile and on the model's own page.
pub(in crate::page) const READING: &str = "Dots are measured, lines are what the fitted hierarchy says: where a line leaves its dots, the model misses something that the machine does.";

/// All content, for the page of a profile.
pub(super) fn body(model: &Model) -> Markup {
    html! {
        (quality(model))
        (charts(model))
        h3 { "Levels" }
        (levels(model))
        h3 { "Parameters" }
        (parameters(model))
        (remarks(model))
    }
}

/// Quality of the fit, and how it was made.
pub(in crate::page) fn quality(model: &Model) -> Markup {
    let residual = model.residual.known();
    let free = facts::free_parameters(&model.parameters);
    let method = facts::method_words(&model.topology.name, &model.method, free);
    html! {
        @if let Some(residual) = residual {
        div.tiles {
            (tile("median residual", &units::percent(residual.median_relative), "of |model ÷ measured − 1|"))
            @if let Some(left_out) = residual.left_out_median_relative {
                (tile("points left out of the fit", &units::percent(left_out), "median, over five fits"))
            }
            (tile("largest residual", &units::percent(residual.max_relative), ""))
            (tile("noise that the fit sees", &units::percent(residual.sigma), "root mean square"))
        }
        }
        p.note { b { "Fit: " } (method.join(" · ")) "." }
    }
}

fn tile(title: &str, value: &str, detail: &str) -> Markup {
    html! {
        div.tile {
            span { (title) }
            b { (value) }
            em { (detail) }
        }
    }
}

/// Charts of measured values with fitted curves, and of the residuals.
pub(in crate::page) fn charts(model: &Model) -> Markup {
    let curves = facts::fitted_curves(&model.points);
    let step = model.points.len().div_ceil(MAX_POINTS).max(1);
    html! {
        @if model.points.is_empty() { p.missing { "not measured: the model holds no points" } }
        (fit_chart(model, &curves, step).markup())
        (residual_chart(model, &curves, step).markup())
        @if step > 1 { p.note { "One point in " (step) " is drawn; the JSON has all." } }
    }
}

fn fit_chart(model: &Model, curves: &[FittedCurve<'_>], step: usize) -> Chart {
    let lines = curves.iter().enumerate().map(|(index, curve)| Series {
        label: format!("model, {}", curve.label()),
        look: Look::Curve(index),
        shown: is_shown(index, curves.len()),
        points: drawn(curve, step)
            .map(|p| point(p, p.model_ns, None))
            .collect(),
    });
    let dots = curves.iter().enumerate().map(|(index, curve)| Series {
        label: format!("measured, {}", curve.label()),
        look: Look::Dots(index),
        shown: is_shown(index, curves.len()),
        points: drawn(curve, step)
            .map(|p| point(p, p.measured.ns, p.measured.ns_low.zip(p.measured.ns_high)))
            .collect(),
    });
    let title = match model.method.data {
        FitData::Window => "ns per window",
        FitData::Latency => "ns per load",
    };
    Chart {
        id: "model-curves".into(),
        title: "Measured values and the fitted curve.".into(),
        reading: "Vertical lines are where the levels end in the model, a band is the interval of a fitted size.".into(),
        extent: Extent::Full,
        x: area_axis(model),
        y: number_axis(title, Scale::Log10),
        series: lines.chain(dots).collect(),
        marks: marks(model),
        ..Chart::default()
    }
}

fn residual_chart(model: &Model, curves: &[FittedCurve<'_>], step: usize) -> Chart {
    let sigma = model
        .residual
        .known()
        .map(|residual| residual.sigma * 100.0)
        .filter(|s| (0.0..MAX_SIGMA).contains(s));
    let areas = || model.points.iter().map(|p| p.measured.area_bytes);
    let mut series = Vec::new();
    if let (Some(first), Some(last), Some(sigma)) = (areas().min(), areas().max(), sigma) {
        series.push(Series {
            label: "within sigma".into(),
            look: Look::Curve(7),
            shown: true,
            points: [first, last]
                .into_iter()
                .map(|area| Point {
                    x: area as f64,
                    y: 0.0,
                    interval: Some((-sigma, sigma)),
                    tip: String::new(),
                    hollow: false,
                })
                .collect(),
        });
    }
    series.extend(curves.iter().enumerate().map(|(index, curve)| {
        Series {
            label: curve.label(),
            look: Look::Dots(index),
            shown: is_shown(index, curves.len()),
            points: drawn(curve, step)
                .filter_map(|p| Some(point(p, facts::deviation(p)? * 100.0, None)))
                .collect(),
        }
    }));
    Chart {
        id: "model-residuals".into(),
        title: "What the model misses.".into(),
        reading: "Model against measured value in per cent, above zero where the model is too slow; points that leave the band side by side are no noise.".into(),
        extent: Extent::Full,
        x: area_axis(model),
        y: Axis::linear("model ÷ measured − 1, %"),
        series,
        // Without their intervals, which would look like the band of sigma.
        marks: marks(model)
            .into_iter()
            .map(|mark| Mark {
                interval: None,
                ..mark
            })
            .collect(),
        rules: sigma
            .into_iter()
            .flat_map(|sigma| [sigma, -sigma])
            .map(|y| Rule {
                y,
                label: format!(
                    "{}sigma, {}",
                    if y < 0.0 { "−" } else { "+" },
                    units::percent(y.abs() / 100.0)
                ),
            })
            .collect(),
        end_labels: false,
    }
}

/// Every `step`-th point of a curve.
fn drawn<'a>(
    curve: &'a FittedCurve<'_>,
    step: usize,
) -> impl Iterator<Item = &'a FittedPoint> + use<'a> {
    curve.points.iter().step_by(step).copied()
}

/// True for a few of many window sizes, spread over the range.
fn is_shown(index: usize, all: usize) -> bool {
    index.is_multiple_of(all.div_ceil(MAX_SHOWN).max(1))
}

fn area_axis(model: &Model) -> crate::page::svg::Axis {
    size_axis(match model.method.data {
        FitData::Window => "area in bytes",
        FitData::Latency => "bytes of the buffer",
    })
}

fn point(p: &FittedPoint, y: f64, interval: Option<(f64, f64)>) -> Point {
    let measured = &p.measured;
    let mut tip = format!(
        "{}: measured {}",
        units::bytes(measured.area_bytes),
        units::ns(measured.ns)
    );
    if let Some((low, high)) = measured.ns_low.zip(measured.ns_high) {
        tip.push(' ');
        tip.push_str(&units::interval(low, high));
    }
    tip.push_str(&format!("; model {}", units::ns(p.model_ns)));
    if let Some(share) = facts::deviation(p) {
        tip.push_str(&format!(" ({})", facts::signed_percent(share)));
    }
    Point {
        x: measured.area_bytes as f64,
        y,
        interval,
        tip,
        hollow: false,
    }
}

/// Marks where each level ends.
fn marks(model: &Model) -> Vec<Mark> {
    model
        .levels
        .iter()
        .filter_map(|level| {
            let reach = level.reach_bytes?;
            Some(Mark {
                kind: MarkKind::Found,
                x: reach as f64,
                interval: facts::reach_interval(level, model.topology.sizes),
                name: facts::shortened(&level.name, MAX_LETTERS),
                detail: units::bytes(reach),
            })
        })
        .collect()
}

/// Table 2 of document 002, with sizes.
pub(in crate::page) fn levels(model: &Model) -> Markup {
    let levels = &model.levels;
    let rated = levels.iter().any(|l| l.rate_mops.known().is_some());
    let sized = levels.iter().any(|l| l.size_bytes.is_some());
    let line = levels.first().map(|l| l.line_bytes);
    let one_line = levels.iter().all(|l| Some(l.line_bytes) == line);
    let time = match (rated, line.filter(|_| one_line)) {
        (false, _) => "time of a load".to_owned(),
        (true, Some(bytes)) => format!("time of {bytes} B"),
        (true, None) => "time of a line".to_owned(),
    };
    let apart = levels.iter().any(|l| l.reach_bytes != l.size_bytes);
    html! {
        @if levels.is_empty() {
            p.missing { "not measured: the model holds no levels" }
        } @else {
            div.scroll tabindex="0" role="group" aria-label="levels of the model" {
                table {
                    thead { tr {
                        th scope="col" { "level" } th scope="col" { "name" }
                        @if sized { th scope="col" { "size" } }
                        @if apart { th scope="col" { "with all inside it" } }
                        th scope="col" { (time) }
                        @if rated { th scope="col" { "rate" } th scope="col" { "bandwidth" } }
                        th scope="col" { "way" }
                    } }
                    tbody {
                        @for (index, level) in levels.iter().enumerate() {
                            tr {
                                td { (index + 1) }
                                th scope="row" { (level.name) }
                                @if sized { td { (size(level)) } }
                                @if apart { td { (level.reach_bytes.map_or_else(dash, units::bytes)) } }
                                td {
                                    (figure(&level.ns_per_line, "ns"))
                                    @if rated && !one_line && level.ns_per_line.known().is_some() { " " small { "of " (level.line_bytes) " B" } }
                                }
                                @if rated {
                                    td { (figure(&level.rate_mops, "MFLOPS")) }
                                    td { (level.rate_gb_s.known().map_or_else(dash, |f| format!("{} GB/s", facts::fine(f.value)))) }
                                }
                                td { (facts::path_title(&model.topology, index)) }
                            }
                        }
                    }
                }
            }
            @if rated {
                p.note { "A rate is that of a processor which does nothing but wait for data of the level: operations on " (model.topology.bytes_per_operation) " bytes each (MFLOPS in the paper's Table 2)." }
            }
            @for (reason, names) in facts::level_gaps(levels) {
                p.note { b { (names.join(", ")) ": " } (reason) "." }
            }
            @for level in levels {
                @if let Some(note) = &level.tlb_note { p.note { b { (level.name) ": " } (note) } }
            }
        }
    }
}

fn size(level: &ModelLevel) -> Markup {
    let (size, interval) = facts::level_size(level);
    html! {
        @if size.is_empty() { "the rest" } @else { b { (size) } }
        @if !interval.is_empty() { " " small { (interval) } }
    }
}

fn figure(outcome: &Outcome<Figure>, unit: &str) -> Markup {
    html! {
        @match outcome {
            Outcome::Known(figure) => {
                (facts::fine(figure.value)) " " (unit) " " small { (facts::fine_interval(figure.low, figure.high)) }
            }
            Outcome::Missing { .. } => { "–" }
        }
    }
}

fn dash() -> String {
    "–".to_owned()
}

/// Table 1 of document 002, and the sums that are determined although their terms are not.
pub(in crate::page) fn parameters(model: &Model) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="parameters" {
            table {
                thead { tr {
                    th scope="col" { "symbol" } th scope="col" { "value" }
                    th scope="col" { "related to" } th scope="col" { "what" }
                } }
                tbody { @for parameter in &model.parameters { (row(parameter)) } }
            }
        }
        @for (reason, symbols) in facts::undetermined(&model.parameters) {
            p.note {
                b { "* " (symbols.join(", ")) ": " }
                "the data do not determine each by itself"
                @if !reason.is_empty() { " (" (reason) ")" }
                "; the values with the smallest norm are shown."
            }
        }
        @if !model.combinations.is_empty() {
            h3 { "Determined together" }
            div.scroll tabindex="0" role="group" aria-label="combinations" {
                table {
                    thead { tr { th scope="col" { "sum" } th scope="col" { "value" } } }
                    tbody {
                        @for sum in &model.combinations {
                            tr {
                                th scope="row" { (facts::combination_title(sum)) }
                                td { (value(sum.value, &sum.unit, &facts::interval(sum.value, Some(sum.low), Some(sum.high), &sum.unit))) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn row(parameter: &Parameter) -> Markup {
    let interval = facts::parameter_interval(parameter);
    html! {
        tr {
            th scope="row" { (parameter.symbol) }
            td {
                (value(parameter.value, &parameter.unit, &interval))
                @if facts::is_marked(parameter) { " " span.differs title="not determined by the data" { "*" } }
            }
            td { (parameter.related_to) }
            td { (parameter.name) }
        }
    }
}

fn value(value: f64, unit: &str, interval: &str) -> Markup {
    let (number, unit) = facts::quantity(value, unit);
    html! {
        b { (number) } " " (unit)
        @if !interval.is_empty() { " " small { (interval) } }
    }
}

/// Result of the test of the constants, and notes for the reader.
pub(in crate::page) fn remarks(model: &Model) -> Markup {
    html! {
        @if let Some(test) = &model.vanishing {
            p.note { b { "Constants: " } (facts::vanishing_verdict(test)) "." }
        }
        @for note in &model.notes { p.note { b { "Note: " } (note) } }
    }
}
