//! Panels of perturbed points and of missing data.

use std::collections::BTreeMap;

use maud::{Markup, html};
use membound_types::MachineProfile;

use super::panel::Panel;
use crate::facts::{self, Disturbed};
use crate::units;

/// Most slow phases that are listed by name; the hollow points show all.
const MAX_NAMED: usize = 40;

pub(super) fn disturbances(profile: &MachineProfile) -> Panel {
    let found = facts::disturbed_points(profile);
    Panel {
        id: "disturbances",
        title: "Disturbances",
        missing: false,
        reading: "Batches during which something was seen were thrown away and repeated; points whose samples fall into two groups are named, because a slow phase would otherwise look like a property of the machine.",
        body: if facts::none_measured(profile) {
            html! { p { "Nothing was measured, so nothing could be disturbed." } }
        } else if found.is_empty() {
            html! { p { "None was seen: no steal time, no migration, no second mode." } }
        } else {
            body(&found)
        },
    }
}

fn body(found: &[Disturbed]) -> Markup {
    let mut parts: BTreeMap<&str, Vec<&Disturbed>> = BTreeMap::new();
    for point in found {
        parts.entry(point.part.name()).or_default().push(point);
    }
    let slow: Vec<&Disturbed> = facts::two_modes(found).collect();
    html! {
        div.scroll tabindex="0" role="group" aria-label="disturbances" {
            table {
                thead { tr {
                    th scope="col" { "part" } th scope="col" { "points" } th scope="col" { "left disturbed" } th scope="col" { "two modes" } th scope="col" { "batches repeated" }
                    th scope="col" { "stolen" } th scope="col" { "switches" } th scope="col" { "migrations" } th scope="col" { "clock changes" }
                } }
                tbody {
                    @for (part, points) in &parts {
                        tr {
                            th scope="row" { (part) }
                            td { (points.len()) }
                            td { (points.iter().filter(|p| p.disturbance.unresolved()).count()) }
                            td { (points.iter().filter(|p| p.modes.is_some()).count()) }
                            td { (total(points, |p| p.disturbance.repeated_batches)) }
                            td { (units::number(points.iter().map(|p| p.disturbance.steal_ms).sum())) " ms" }
                            td { (total(points, |p| p.disturbance.involuntary_switches)) }
                            td { (total(points, |p| p.disturbance.migrations)) }
                            td { (total(points, |p| p.disturbance.clock_changes)) }
                        }
                    }
                }
            }
        }
        @if !slow.is_empty() {
            details.data open[slow.len() <= 8] {
                summary { "slow phases by name (" (slow.len()) ")" }
                ul {
                    @for point in slow.iter().take(MAX_NAMED) {
                        @if let Some((fast, slow)) = &point.modes {
                            li {
                                (point.part) " " (point.point) ": " (fast) ", and " (slow) " in "
                                (point.disturbance.slow_share.map_or_else(|| "some".to_owned(), units::percent)) " of the samples"
                            }
                        }
                    }
                    @if slow.len() > MAX_NAMED { li { "and " (slow.len() - MAX_NAMED) " more, in the JSON" } }
                }
            }
        }
    }
}

fn total(points: &[&Disturbed], field: impl Fn(&Disturbed) -> u32) -> u64 {
    points.iter().map(|point| u64::from(field(point))).sum()
}

pub(super) fn gaps(profile: &MachineProfile) -> Panel {
    let gaps = facts::gaps(profile);
    Panel {
        id: "gaps",
        title: "Not measured",
        missing: false,
        reading: "What was asked for and could not be had, and what would change that.",
        body: html! {
            @if gaps.is_empty() {
                p { "Nothing: everything that was asked for was measured." }
            } @else {
                ul.gaps { @for gap in &gaps { li { b { (gap.part) } " " (gap.text) } } }
            }
        },
    }
}

/// Number of combinations that a part could not measure, with a link to their list.
pub(super) fn skipped(texts: &[String]) -> Markup {
    html! {
        @if !texts.is_empty() {
            p.note {
                (units::plural(texts.len(), "combination")) " could not be had: "
                a href="#gaps" { "what and why" } "."
            }
        }
    }
}
