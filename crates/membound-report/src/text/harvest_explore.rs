//! Exploration of a harvest on a terminal: one table per varied setting, with a sentence about the result.

use membound_types::{ExploredSweep, HarvestExplore};

use super::Style;
use super::out::Out;
use super::table::{Align, Table};
use crate::facts::harvest_explore as facts;
use crate::units;

/// Terminal widths from which on compared figures have intervals, and from which on all figures have.
const SOME_INTERVALS: usize = 76;
const ALL_INTERVALS: usize = 120;

/// Formats an exploration: its tables with a sentence each.
#[must_use]
pub fn harvest_explore(explore: &HarvestExplore, style: Style) -> String {
    let mut out = Out::new(style);
    header(&mut out, explore);
    for sweep in &explore.sweeps {
        table(&mut out, explore, sweep);
    }
    if !explore.notes.is_empty() {
        out.heading("notes", "");
        for note in &explore.notes {
            out.note(note);
        }
    }
    out.finish()
}

fn header(out: &mut Out, explore: &HarvestExplore) {
    let words = [
        format!("{} elapsed", units::seconds(explore.wall_s)),
        explore.host.clone(),
        explore.cpu.clone(),
        explore.date.clone(),
    ];
    let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let command = facts::words(&explore.options.command);
    out.heading(
        &format!("membound: exploration of a harvest, {command}"),
        &words.join(" · "),
    );
    if explore.incomplete {
        out.warning("interrupted: rows have fewer rounds than asked for, or none");
    }
    out.blank();
    if let Some(summary) = facts::summary(explore) {
        out.line(&summary);
    }
    out.blank();
    out.note(&format!(
        "together with: {}; all on CPU {}",
        facts::corunners(explore),
        explore.options.on_cpu.0
    ));
    let alone = &explore.alone;
    if let Some(primary) = alone.primary_s {
        let mut by_themselves = format!(
            "by themselves: the primary {}",
            facts::with_interval(primary, units::seconds)
        );
        if let Some(scavengers) = alone.scavengers_s {
            let scavengers = facts::with_interval(scavengers, units::seconds);
            by_themselves.push_str(&format!(", all scavengers {scavengers}"));
        }
        out.note(&by_themselves);
    }
    for line in facts::legend(explore) {
        out.note(&line);
    }
}

fn table(out: &mut Out, explore: &HarvestExplore, sweep: &ExploredSweep) {
    out.heading(facts::title(sweep.sweep), "");
    if let Some(missing) = &sweep.missing {
        out.note(&format!("not measured: {}", missing.reason));
        return;
    }
    let columns = facts::columns(explore, sweep.sweep);
    let mut table = Table::new().words(facts::setting_title(sweep.sweep));
    for column in &columns {
        table = table.column(column.title, Align::Right, column.expendable);
    }
    let shown = match out.width() {
        ALL_INTERVALS.. => facts::Intervals::All,
        SOME_INTERVALS.. => facts::Intervals::OfCompared,
        _ => facts::Intervals::None,
    };
    for row in sweep.rows.iter().filter(|row| facts::has_figures(row)) {
        let cells = columns.iter().map(|column| column.cell(row, shown));
        table.row(std::iter::once(row.setting.clone()).chain(cells));
    }
    if !table.is_empty() {
        out.table(&table);
    }
    for failure in facts::failures(sweep) {
        out.warning(&failure);
    }
    out.line(&facts::sentence(explore, sweep));
}
