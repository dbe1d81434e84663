//! `membound compare RUN1 RUN2` on a terminal: what changed, appeared or vanished.

use membound_types::{GateVerdict, Outcome, RunComparison};

use super::Style;
use super::out::Out;
use super::table::{Align, Table};
use crate::facts::comparison::letter;
use crate::facts::{gate, run};
use crate::gates::columns;
use crate::units;

/// Most changes that are shown; the JSON has all.
const MAX_ROWS: usize = 20;

/// Formats a comparison of runs; the first is the reference.
#[must_use]
pub fn run_comparison(comparison: &RunComparison, style: Style) -> String {
    let mut out = Out::new(style);
    for sentence in &comparison.summary {
        out.line(sentence);
    }
    gates(&mut out, comparison);
    if comparison.sides.is_empty() {
        runs(&mut out, comparison);
    } else {
        sides(&mut out, comparison);
    }
    changes(&mut out, comparison);
    findings(&mut out, comparison);
    out.finish()
}

fn gates(out: &mut Out, comparison: &RunComparison) {
    if comparison.gates.is_empty() {
        return;
    }
    out.blank();
    out.heading("Gates", &gate::remark(comparison));
    let mut table = Table::new()
        .words("verdict")
        .middle("gate")
        .figures("limit")
        .figures("base")
        .figures("new")
        .figures("change")
        .column("", Align::Left, 1);
    for it in &comparison.gates {
        table.row([
            it.verdict.name().to_owned(),
            gate::subject(it),
            gate::limit(it),
            gate::figure(it, it.base),
            gate::figure(it, it.new),
            gate::change(it),
            gate::interval(it),
        ]);
    }
    out.table(&table);
    for it in &comparison.gates {
        let sentence = format!("{} {}: {}", it.expression, it.verdict, it.text);
        match it.verdict {
            GateVerdict::Passed => {}
            GateVerdict::Failed => out.warning(&sentence),
            GateVerdict::Undecided => out.note(&sentence),
        }
    }
}

/// Table of the sides, each with its runs pooled.
fn sides(out: &mut Out, comparison: &RunComparison) {
    out.blank();
    let mut table = Table::new()
        .words("side")
        .figures("runs")
        .figures("elapsed")
        .figures("CPU")
        .figures("memory bound")
        .column("interval", Align::Right, 1)
        .column("± between runs", Align::Right, 2)
        .figures("stalled");
    for side in &comparison.sides {
        let bound = side.memory_bound;
        table.row([
            side.name.clone(),
            side.runs.len().to_string(),
            units::seconds(side.elapsed_s),
            units::seconds(side.cpu_s),
            units::percent(bound.value),
            units::percent_interval(bound.low, bound.high),
            side.memory_bound_deviation
                .map_or_else(String::new, |deviation| {
                    format!("{:.1} pt", deviation * 100.0)
                }),
            units::seconds(side.memory_stall_s.value),
        ]);
    }
    out.table(&table);
    for side in &comparison.sides {
        let of_side = || side.runs.iter().filter_map(|run| comparison.runs.get(*run));
        let files: Vec<&str> = of_side().map(|run| run.file.as_str()).collect();
        out.note(&format!("{}  {}", side.name, files.join(" ")));
        for run in of_side().filter(|run| run.incomplete) {
            out.warning(&format!("{} is incomplete: it was cut short", run.file));
        }
    }
}

fn runs(out: &mut Out, comparison: &RunComparison) {
    out.blank();
    let mut table = Table::new()
        .words("run")
        .figures("elapsed")
        .figures("CPU")
        .figures("memory bound")
        .column("interval", Align::Right, 3)
        .figures("stalled")
        .column("latency", Align::Right, 2)
        .column("idle", Align::Right, 4);
    for (index, it) in comparison.runs.iter().enumerate() {
        table.row([
            letter(index),
            units::seconds(it.elapsed_s),
            units::seconds(it.time.cpu_s),
            units::percent(it.memory_bound.fraction),
            units::percent_interval(it.memory_bound.low, it.memory_bound.high),
            units::seconds(it.time.memory_stall_s),
            match &it.latency {
                Outcome::Known(latency) => units::ns(latency.ns),
                Outcome::Missing { .. } => String::new(),
            },
            units::seconds(it.time.idle_s),
        ]);
    }
    if !table.is_empty() {
        out.table(&table);
    }
    for (index, it) in comparison.runs.iter().enumerate() {
        out.note(&format!(
            "{}  {} · {} · {}",
            letter(index),
            it.file,
            it.command,
            it.date
        ));
        if it.incomplete {
            out.warning(&format!(
                "{} is incomplete: it was cut short",
                letter(index)
            ));
        }
    }
}

fn changes(out: &mut Out, comparison: &RunComparison) {
    let (real, noise): (Vec<_>, Vec<_>) = comparison.changes.iter().partition(|it| it.significant);
    if real.is_empty() {
        out.blank();
        out.line(&match noise.len() {
            0 => "No function, line or object was found in both.".to_owned(),
            many => format!(
                "The stall of no function, line or object changed by more than its interval ({} compared).",
                many
            ),
        });
        return;
    }
    out.blank();
    out.heading("What changed", "stalled seconds");
    let mut table = Table::new().figures("change");
    let columns = columns(comparison);
    for title in &columns {
        table = table.figures(title);
    }
    table = table.column("", Align::Left, 1).middle("what");
    for change in real.iter().take(MAX_ROWS) {
        let mut cells = vec![run::signed_seconds(change.change_s)];
        cells.extend((0..columns.len()).map(|index| {
            change
                .stall_s
                .get(index)
                .copied()
                .flatten()
                .map_or_else(|| "–".to_owned(), |stall| units::seconds(stall.value))
        }));
        cells.push(change.group.clone());
        cells.push(change.name.clone());
        table.row(cells);
    }
    out.table(&table);
    if real.len() > MAX_ROWS {
        out.note(&format!("{} more in the JSON", real.len() - MAX_ROWS));
    }
    if !noise.is_empty() {
        out.note(&format!(
            "{} the same within noise",
            units::plural(noise.len(), "group")
        ));
    }
}

fn findings(out: &mut Out, comparison: &RunComparison) {
    if comparison.findings.is_empty() {
        return;
    }
    out.blank();
    out.heading("What came and went", "");
    for finding in &comparison.findings {
        out.line(&format!(
            "{}: {} {}",
            run::presence_change(&finding.present),
            run::insight_title(finding.kind),
            finding.text
        ));
    }
}
