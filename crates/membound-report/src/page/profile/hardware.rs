//! Panel of accesses that the processor sampled: levels, functions, and lines that other cores changed.

use maud::{Markup, html};
use membound_types::HardwareView;

use crate::facts::hardware as facts;
use crate::page::parts::Panel;
use crate::units;

/// Most rows of a table; the JSON has all.
const MAX_ROWS: usize = 25;

pub(super) fn panel(view: &HardwareView) -> Panel {
    Panel::new("sampled-accesses", "Sampled accesses", body(view))
}

fn body(view: &HardwareView) -> Markup {
    html! {
        p.reading { "Sampled by " (view.samplers.join(" and ")) ": " (facts::about(view)) ". " (facts::READING) }
        div.scroll tabindex="0" role="group" aria-label="sampled accesses by level" {
            table.run {
                thead { tr { th scope="col" { "accesses" } th scope="col" { "latency" } th scope="col" { "line from" } } }
                tbody {
                    @for row in &view.levels {
                        tr {
                            td { (units::percent(row.fraction)) }
                            td { (facts::latency(row.latency_cycles)) }
                            th scope="row" { (row.name) }
                        }
                    }
                }
            }
        }
        div.scroll tabindex="0" role="group" aria-label="sampled accesses by function" {
            table.run {
                thead { tr { th scope="col" { "cycles" } th scope="col" { "accesses" } th scope="col" { "latency" } th scope="col" { "mostly" } th scope="col" { "function" } } }
                tbody {
                    @for row in view.functions.iter().take(MAX_ROWS) {
                        tr {
                            td { (row.cycles_fraction.map(units::percent).unwrap_or_default()) }
                            td { (units::percent(row.fraction)) }
                            td { (facts::latency(row.latency_cycles)) }
                            td { (row.level) }
                            th scope="row" { (row.name) " " small { (row.module) } }
                        }
                    }
                }
            }
        }
        @if view.functions.len() > MAX_ROWS { p.note { (view.functions.len() - MAX_ROWS) " more functions in the JSON." } }
        @for row in view.changed_lines.iter().take(MAX_ROWS) { p.note { (facts::changed(row)) } }
        @if view.changed_lines.len() > MAX_ROWS { p.note { (view.changed_lines.len() - MAX_ROWS) " more such lines in the JSON." } }
    }
}
