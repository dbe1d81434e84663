//! The top of the page: which machine, under which conditions, and the answer in ten
//! seconds.

use maud::{Markup, html};
use membound_types::{Level, MachineProfile};

use crate::{facts, units};

/// Host, processor, conditions, labels, timer, and the banner of an incomplete run.
pub(super) fn header(profile: &MachineProfile) -> Markup {
    html! {
        header {
            h1 { (profile.machine.host) }
            dl.facts {
                @for (name, value) in facts::identity(&profile.machine) {
                    div { dt { (name) } dd { (value) } }
                }
            }
        }
    }
}

/// The table of levels.
pub(super) fn levels(profile: &MachineProfile) -> Markup {
    html! {
        table.levels {
            thead { tr { th { "level" } th { "effective size" } th { "latency" } } }
            tbody { @for level in &profile.levels { (row(level)) } }
        }
    }
}

fn row(level: &Level) -> Markup {
    html! {
        tr {
            th scope="row" { (level.name) }
            td { @if let Some(size) = level.size_bytes { (units::bytes(size)) } }
            td { (units::ns(level.latency_ns)) }
        }
    }
}
