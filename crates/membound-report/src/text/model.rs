//! The hierarchy model on a terminal: a topology with its values (`model show`) and a fit
//! (`model fit`). Tables 1 and 2 are those of document 002.

use std::collections::BTreeSet;

use membound_types::{
    Combination, Component, FitData, FittedPoint, Model, ModelLevel, Outcome, Parameter,
    ParameterRole, Topology, TopologyLevel,
};

use textwrap::core::display_width;

use super::out::Out;
use super::plot::{self, Look};
use super::table::{Align, Table};
use crate::facts::model as facts;
use crate::units;

/// Most points in the list of the worst.
const MAX_WORST_POINTS: usize = 5;
/// Most curves in the picture; more would hide each other.
const MAX_CURVES: usize = 4;
/// Fewest columns for the name of a component.
const MIN_NAME: usize = 16;
/// Approximate width of a column title, and the gap after a column, in columns.
const TITLE: usize = 5;
const GAP: usize = 2;
/// Text for a level without a rate.
const DASH: &str = "–";

/// Writes a topology with its parameters and rates, or what a fit would find.
pub(super) fn write_show(
    out: &mut Out,
    title: &str,
    topology: &Topology,
    known: &[Parameter],
    levels: &[ModelLevel],
) {
    out.heading(title, topology.description.as_deref().unwrap_or_default());
    out.blank();
    if !known.is_empty() {
        parameters(out, known);
    }
    components(out, topology, known);
    if !known.is_empty() {
        out.blank();
        table_of_levels(out, levels);
    }
    out.blank();
    paths(out, topology, levels);
    terms(out, topology);
    if known.is_empty() {
        out.blank();
        out.line(
            "This topology holds no values: they come from `membound model fit`, which finds \
             them from measured windows or a latency curve.",
        );
    }
}

/// Writes a fit: source, method, result and quality.
pub(super) fn write(out: &mut Out, model: &Model) {
    let source = facts::source_words(&model.source);
    if !source.is_empty() {
        out.line(&source.join(" · "));
    }
    let free = facts::free_parameters(&model.parameters);
    out.note(&facts::method_words(&model.topology.name, &model.method, free).join(" · "));
    let Some(residual) = model.residual.known() else {
        for note in &model.notes {
            out.warning(note);
        }
        return;
    };
    let left_out = residual
        .left_out_median_relative
        .map_or_else(String::new, |share| {
            format!(", of points left out {}", units::percent(share))
        });
    out.heading(
        "fit",
        &format!(
            "median residual {}{left_out}; largest {}, sigma {}",
            units::percent(residual.median_relative),
            units::percent(residual.max_relative),
            units::percent(residual.sigma),
        ),
    );
    picture(out, model);
    out.blank();
    parameters(out, &model.parameters);
    combinations(out, &model.combinations);
    out.blank();
    table_of_levels(out, &model.levels);
    if let Some(test) = &model.vanishing {
        out.blank();
        out.line(&format!("constants: {}", facts::vanishing_verdict(test)));
    }
    worst_points(out, &model.points);
    for note in &model.notes {
        out.warning(note);
    }
}

/// Table 1: one row per parameter.
fn parameters(out: &mut Out, known: &[Parameter]) {
    let marked = known.iter().any(facts::is_marked);
    let rows: Vec<[String; 6]> = known.iter().map(|p| parameter(p, marked)).collect();
    // The name is cut in favour of the interval, which says more about a value than the name's last words.
    let other_columns: usize = [0, 1, 2, 3, 5]
        .map(|column| {
            let widths = rows.iter().map(|row| display_width(&row[column]));
            match widths.max().unwrap_or(0) {
                0 => 0,
                widest => widest.max(TITLE) + GAP,
            }
        })
        .iter()
        .sum();
    let room = out.width().saturating_sub(other_columns).max(MIN_NAME);
    let mut table = Table::new()
        .words("symbol")
        .figures("value")
        .words("unit")
        .column("interval", Align::Right, 1)
        .column("error", Align::Right, 2)
        .words("related to")
        .words("mnemonic");
    for (cells, parameter) in rows.into_iter().zip(known) {
        let name = facts::shortened(&parameter.name, room);
        table.row(cells.into_iter().chain([name]));
    }
    out.table(&table);
    if known.iter().any(|p| p.role == ParameterRole::Steepness) {
        out.note(
            "steepness: accesses hit a level in (size ÷ area)^g of the cases; 1 for independent \
             draws, more for a chase that visits its buffer in a cycle",
        );
    }
    for (reason, symbols) in facts::undetermined(known) {
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(" ({reason})")
        };
        out.note(&format!(
            "* {}: the data do not determine each by itself{reason}; the values with the \
             smallest norm are shown",
            symbols.join(", ")
        ));
    }
}

/// Cells of a parameter, without its name.
fn parameter(parameter: &Parameter, marked: bool) -> [String; 6] {
    let (value, unit) = facts::quantity(parameter.value, &parameter.unit);
    let mark = match (marked, facts::is_marked(parameter)) {
        (false, _) => "",
        (true, true) => " *",
        (true, false) => "  ",
    };
    // An error in bytes is already part of the interval.
    let error = parameter
        .std_error
        .filter(|_| parameter.unit == "ns")
        .map(facts::fine)
        .unwrap_or_default();
    [
        parameter.symbol.clone(),
        format!("{value}{mark}"),
        unit,
        facts::parameter_interval(parameter),
        error,
        parameter.related_to.clone(),
    ]
}

fn combinations(out: &mut Out, found: &[Combination]) {
    if found.is_empty() {
        return;
    }
    let mut table = Table::new()
        .words("determined together")
        .figures("value")
        .column("unit", Align::Left, 0)
        .column("interval", Align::Right, 2)
        .column("error", Align::Right, 3);
    for sum in found {
        let (value, unit) = facts::quantity(sum.value, &sum.unit);
        let error = if sum.unit == "ns" {
            facts::fine(sum.std_error)
        } else {
            String::new()
        };
        table.row([
            facts::combination_title(sum),
            value,
            unit,
            facts::interval(sum.value, Some(sum.low), Some(sum.high), &sum.unit),
            error,
        ]);
    }
    out.blank();
    out.table(&table);
}

/// Table 2: one row per level.
fn table_of_levels(out: &mut Out, levels: &[ModelLevel]) {
    if levels.is_empty() {
        return;
    }
    let figure = |outcome: &Outcome<membound_types::Figure>, wanted: bool| match outcome {
        Outcome::Known(figure) => facts::fine(figure.value),
        Outcome::Missing { .. } if wanted => DASH.to_owned(),
        Outcome::Missing { .. } => String::new(),
    };
    let rated = levels.iter().any(|l| l.rate_mops.known().is_some());
    let loads = levels.iter().any(|l| l.latency_ns.is_some());
    let mut table = Table::new()
        .words("mnemonic")
        .figures("level")
        .figures("MFLOPS")
        .figures("GB/s")
        .column("ns", Align::Right, 1)
        .column("interval", Align::Right, 5)
        .column("of", Align::Left, 1)
        .column("size", Align::Right, 2)
        .column("interval", Align::Right, 4)
        .column("reach", Align::Right, 3);
    for (index, level) in levels.iter().enumerate() {
        let (size, interval) = facts::level_size(level);
        let of = if loads {
            "1 load".to_owned()
        } else {
            format!("{} B", level.line_bytes)
        };
        let time = match &level.ns_per_line {
            Outcome::Known(time) if loads => {
                facts::interval(time.value, Some(time.low), Some(time.high), "ns")
            }
            _ => String::new(),
        };
        // If the level's size includes all inner levels, its reach says nothing more.
        let reach = level
            .reach_bytes
            .filter(|reach| Some(*reach) != level.size_bytes)
            .map(units::bytes)
            .unwrap_or_default();
        table.row([
            level.name.clone(),
            (index + 1).to_string(),
            figure(&level.rate_mops, rated),
            figure(&level.rate_gb_s, rated),
            figure(&level.ns_per_line, true),
            time,
            of,
            size,
            interval,
            reach,
        ]);
    }
    out.table(&table);
    if rated {
        out.note(
            "MFLOPS: 10^6 operations a second on data of the level, for a processor that \
             does nothing but wait for them",
        );
    }
    for (reason, names) in facts::level_gaps(levels) {
        out.note(&format!("{DASH} {}: {reason}", names.join(", ")));
    }
    for level in levels {
        if let Some(note) = &level.tlb_note {
            out.warning(&format!("{}: {note}", level.name));
        }
    }
}

/// Components of a topology without a known value.
fn components(out: &mut Out, topology: &Topology, known: &[Parameter]) {
    let mut table = Table::new()
        .words(if known.is_empty() {
            "symbol"
        } else {
            "no value"
        })
        .words("related to")
        .words("component");
    let known: BTreeSet<&str> = known.iter().map(|p| p.symbol.as_str()).collect();
    let is_open = |component: &&Component| !known.contains(component.symbol.as_str());
    for component in topology.components.iter().filter(is_open) {
        let owner = if component.application {
            " (the measuring program)"
        } else {
            ""
        };
        table.row([
            component.symbol.clone(),
            format!("{} Bytes", component.line_bytes),
            format!("{}{owner}", component.name),
        ]);
    }
    if !table.is_empty() {
        out.blank();
        out.table(&table);
    }
}

/// Components on the way to each level, and its size if no table above has it.
fn paths(out: &mut Out, topology: &Topology, shown: &[ModelLevel]) {
    let last = topology.levels.len().saturating_sub(1);
    let open = |(index, level): (usize, &TopologyLevel)| index < last && level.size_bytes.is_none();
    let sized = shown.is_empty() || topology.levels.iter().enumerate().any(open);
    let mut table = Table::new()
        .figures("level")
        .words("mnemonic")
        .column("kind", Align::Left, 2)
        .column("size", Align::Right, 1)
        .words("way");
    for (index, level) in topology.levels.iter().enumerate() {
        let size = match level.size_bytes {
            _ if !sized => String::new(),
            Some(bytes) => units::bytes(bytes),
            None if index == last => "the rest".to_owned(),
            None => "to be given".to_owned(),
        };
        table.row([
            (index + 1).to_string(),
            level.name.clone(),
            level.kind.to_string(),
            size,
            facts::path_title(topology, index),
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
}

/// Terms in addition to the levels, if a topology has any.
fn terms(out: &mut Out, topology: &Topology) {
    for term in &topology.tlb {
        out.note(&format!(
            "{}: a miss of a TLB of {} entries for pages of {}, which reaches {}",
            term.symbol,
            units::count(term.entries),
            units::bytes(term.page_bytes),
            units::bytes(term.entries.saturating_mul(term.page_bytes)),
        ));
    }
    if let Some(term) = &topology.page_table {
        out.note(&format!(
            "{}: page tables, from areas of {} on, relative to {}",
            term.symbol,
            units::bytes(term.start_bytes),
            units::bytes(term.reference_bytes),
        ));
    }
}

/// Draws fitted curves as lines, measured values as dots.
fn picture(out: &mut Out, model: &Model) {
    let curves = facts::fitted_curves(&model.points);
    // Of many window sizes show the smallest, the largest and some between.
    let step = curves.len().div_ceil(MAX_CURVES).max(1);
    let shown: Vec<_> = curves.iter().step_by(step).collect();
    let mut drawn = Vec::new();
    for (ink, curve) in shown.iter().enumerate() {
        let values = |of: fn(&FittedPoint) -> f64| {
            let points = curve.points.iter();
            points
                .map(|p| (p.measured.area_bytes as f64, of(p)))
                .collect()
        };
        let name = curve.window_bytes.map(units::bytes).unwrap_or_default();
        drawn.push(plot::Curve::line(name, values(|p| p.model_ns), ink));
        drawn.push(plot::Curve {
            name: String::new(),
            points: values(|p| p.measured.ns),
            look: Look::Dots,
            ink,
        });
    }
    let ends: Vec<(u64, &str)> = model
        .levels
        .iter()
        .filter_map(|level| Some((level.reach_bytes?, level.name.as_str())))
        .collect();
    let remark = match model.method.data {
        FitData::Window => "per window of a size; lines are the model, dots are measured",
        FitData::Latency => "per load; the line is the model, dots are measured",
    };
    plot::over_sizes(out, "ns", remark, &drawn, &ends);
}

/// Points with the largest deviations from the model.
fn worst_points(out: &mut Out, points: &[FittedPoint]) {
    let found = facts::worst_points(points, MAX_WORST_POINTS);
    if found.is_empty() {
        return;
    }
    out.heading("worst points", "model against measured value");
    let mut table = Table::new()
        .figures("window")
        .figures("area")
        .figures("measured ns")
        .figures("model ns")
        .figures("off by");
    for (point, share) in found {
        table.row([
            point
                .measured
                .window_bytes
                .map(units::bytes)
                .unwrap_or_default(),
            units::bytes(point.measured.area_bytes),
            units::number(point.measured.ns),
            units::number(point.model_ns),
            facts::signed_percent(share),
        ]);
    }
    out.table(&table);
}
