//! Accesses that the processor sampled: levels, functions, and lines that other cores changed.

use membound_types::{HardwareView, Profile};

use crate::facts::hardware as facts;
use crate::text::out::Out;
use crate::text::table::{Align, Table};
use crate::units;

/// Most rows of each table in the summary; the document has more.
const MAX_ROWS: usize = 5;
/// Smallest share that is shown.
const MIN_SHARE: f64 = 0.0005;

pub(super) fn write(out: &mut Out, profile: &Profile) {
    let Some(view) = &profile.hardware else {
        return;
    };
    out.blank();
    out.heading(
        &format!("Sampled by {}", view.samplers.join(" and ")),
        &facts::about(view),
    );
    let mut levels = Table::new()
        .figures("accesses")
        .column("latency", Align::Right, 1)
        .middle("line from");
    let shown = view.levels.iter().filter(|row| row.fraction > MIN_SHARE);
    for row in shown {
        levels.row([
            units::percent(row.fraction),
            facts::latency(row.latency_cycles),
            row.name.clone(),
        ]);
    }
    out.table(&levels);
    let mut functions = Table::new()
        .figures("cycles")
        .column("accesses", Align::Right, 2)
        .column("latency", Align::Right, 1)
        .column("mostly", Align::Left, 3)
        .middle("function")
        .column("module", Align::Middle, 4);
    for row in view.functions.iter().take(MAX_ROWS) {
        functions.row([
            row.cycles_fraction.map(units::percent).unwrap_or_default(),
            units::percent(row.fraction),
            facts::latency(row.latency_cycles),
            row.level.clone(),
            row.name.clone(),
            row.module.clone(),
        ]);
    }
    out.table(&functions);
    changed(out, view);
    out.note(facts::READING);
}

fn changed(out: &mut Out, view: &HardwareView) {
    for row in view.changed_lines.iter().take(MAX_ROWS) {
        out.note(&facts::changed(row));
    }
    if view.changed_lines.len() > MAX_ROWS {
        out.note(&format!(
            "{} more such lines; --format json has them",
            view.changed_lines.len() - MAX_ROWS
        ));
    }
}
