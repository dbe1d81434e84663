//! Page of a harvest exploration: the main result, and for each varied setting plots, a table, and a
//! sentence about the result on this machine.

mod charts;

use maud::{Markup, html};
use membound_types::{ExploredSweep, HarvestExplore};

use super::parts::{self, Panel, fact};
use super::shell::{navigation, shell};
use crate::facts::harvest_explore as facts;
use crate::units;

/// Page for a harvest exploration: plots and a table for each varied setting.
#[must_use]
pub fn harvest_explore(explore: &HarvestExplore) -> String {
    document(explore).into_string()
}

fn document(explore: &HarvestExplore) -> Markup {
    let panels: Vec<Panel> = explore
        .sweeps
        .iter()
        .map(|sweep| panel(explore, sweep))
        .chain(notes(explore))
        .collect();
    let links = explore.sweeps.iter().map(|sweep| {
        let is_gone = sweep.missing.is_some() || facts::is_empty(sweep);
        (sweep.sweep.name(), facts::short_title(sweep.sweep), is_gone)
    });
    let body = html! {
        (header(explore))
        (answer(explore))
        (navigation([("answer", "Answer", false)].into_iter().chain(links)))
        @for panel in &panels { (panel.markup()) }
        footer { "explored by membound " (explore.membound_version) ", " (explore.date) "." }
    };
    shell(
        &format!(
            "{} · exploration of a harvest · membound",
            facts::words(&explore.options.command)
        ),
        &explore.membound_version,
        &body,
        &html! {},
    )
}

fn header(explore: &HarvestExplore) -> Markup {
    let options = &explore.options;
    let seconds = |figure: Option<_>| {
        figure.map_or_else(String::new, |it| facts::with_interval(it, units::seconds))
    };
    html! {
        header {
            (parts::top("exploration of a harvest", &facts::words(&options.command)))
            @if explore.incomplete {
                (parts::incomplete("The exploration was interrupted: rows have fewer rounds than asked for, or none. What is shown is true of the rounds that were finished."))
            }
            dl.facts {
                (fact("together with", &facts::corunners(explore)))
                (fact("rounds", &options.pairs.to_string()))
                (fact("all on CPU", &options.on_cpu.0.to_string()))
                (fact("primary by itself", &seconds(explore.alone.primary_s)))
                (fact("all scavengers by themselves", &seconds(explore.alone.scavengers_s)))
                (fact("requests", options.requests.as_deref().unwrap_or_default()))
                (fact("elapsed", &units::seconds(explore.wall_s)))
                (fact("host", &explore.host))
                (fact("processor", &explore.cpu))
                (fact("date", &explore.date))
            }
        }
    }
}

fn answer(explore: &HarvestExplore) -> Markup {
    html! {
        section.card.answer id="answer" {
            h2 { "What it comes to" }
            @if let Some(summary) = facts::summary(explore) { p { (kept_together(&summary)) } }
            ul.gaps { @for line in facts::legend(explore) { li { (line) "." } } }
        }
    }
}

/// Keeps percent signs on the line of their numbers.
fn kept_together(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

fn panel(explore: &HarvestExplore, sweep: &ExploredSweep) -> Panel {
    let (id, title) = (sweep.sweep.name(), facts::title(sweep.sweep));
    if let Some(missing) = &sweep.missing {
        return Panel::missing(id, title, &missing.reason);
    }
    let body = html! {
        p { (kept_together(&facts::sentence(explore, sweep))) }
        (charts::all(explore, sweep))
        (table(explore, sweep))
        @for failure in facts::failures(sweep) { p.missing { (failure) } }
    };
    if facts::is_empty(sweep) {
        Panel::empty(id, title, body)
    } else {
        Panel::new(id, title, body)
    }
}

fn table(explore: &HarvestExplore, sweep: &ExploredSweep) -> Markup {
    let columns = facts::columns(explore, sweep.sweep);
    let rows = || sweep.rows.iter().filter(|row| facts::has_figures(row));
    html! {
        @if rows().next().is_some() {
            div.scroll tabindex="0" role="group" aria-label=(facts::title(sweep.sweep)) {
                table {
                    thead { tr {
                        th scope="col" { (facts::setting_title(sweep.sweep)) }
                        @for column in &columns { th scope="col" { (column.title) } }
                    } }
                    tbody {
                        @for row in rows() {
                            tr {
                                th scope="row" { (row.setting) }
                                @for column in &columns { td { (column.cell(row, facts::Intervals::All)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn notes(explore: &HarvestExplore) -> Option<Panel> {
    (!explore.notes.is_empty()).then(|| {
        let body = html! { ul.gaps { @for note in &explore.notes { li { (note) } } } };
        Panel::new("notes", "Notes", body)
    })
}
