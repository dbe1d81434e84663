//! Page of a comparison of runs: what changed, appeared or vanished.

use maud::{Markup, html};
use membound_types::{ComparedRun, GateVerdict, Outcome, RunChange, RunComparison, RunSide};

use super::parts;
use super::shell::{navigation, shell};
use crate::facts::comparison::letter;
use crate::facts::{gate, run};
use crate::gates::columns;
use crate::{facts, units};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Most changes within noise that are listed; the JSON has all.
const MAX_CHANGES_WITHIN_NOISE: usize = 200;

/// Page for a comparison of runs.
#[must_use]
pub fn run_comparison(comparison: &RunComparison) -> String {
    document(comparison).into_string()
}

fn document(comparison: &RunComparison) -> Markup {
    let title = match comparison.runs.as_slice() {
        [] => "no runs".to_owned(),
        [only] => only.file.clone(),
        [first, second] => format!("{} and {}", first.file, second.file),
        [first, others @ ..] => format!("{} and {} more", first.file, others.len()),
    };
    let mut parts = vec![
        ("runs", "Runs"),
        ("changes", "What changed"),
        ("findings", "What came and went"),
    ];
    if !comparison.gates.is_empty() {
        parts.insert(0, ("gates", "Gates"));
    }
    let body = html! {
        header {
            (parts::top("runs side by side", &title))
            @for sentence in &comparison.summary { p { b { (sentence) } } }
            @for (index, it) in comparison.runs.iter().enumerate() {
                @if it.incomplete { p.banner { (letter(index)) " is incomplete: it was cut short. What it says is true of the part that was recorded." } }
            }
        }
        (navigation(parts.iter().map(|(id, title)| (*id, *title, false))))
        @if !comparison.gates.is_empty() {
            section.card id="gates" { h2 { "Gates" } (gates(comparison)) }
        }
        section.card id="runs" { h2 { "Runs" } (sides(&comparison.sides)) (runs(&comparison.runs)) }
        section.card id="changes" { h2 { "What changed" } (changes(comparison)) }
        section.card id="findings" { h2 { "What came and went" } (findings(comparison)) }
        footer { "compared by membound " (VERSION) ". Brackets hold the 95 % interval." }
    };
    shell(
        &format!("{title} · runs · membound"),
        VERSION,
        &body,
        &html! {},
    )
}

fn gates(comparison: &RunComparison) -> Markup {
    html! {
        p.reading { (gate::remark(comparison)) "." }
        div.scroll tabindex="0" role="group" aria-label="gates" {
            table {
                thead { tr { @for title in ["verdict", "gate", "base", "new", "change", "in words"] { th scope="col" { (title) } } } }
                tbody {
                    @for it in &comparison.gates {
                        tr {
                            td class=[(it.verdict == GateVerdict::Failed).then_some("differs")] { b { (it.verdict) } }
                            th scope="row" { (it.expression) }
                            td { (gate::figure(it, it.base)) }
                            td { (gate::figure(it, it.new)) }
                            td { b { (gate::change(it)) } " " small { (gate::interval(it)) } }
                            td { (it.text) }
                        }
                    }
                }
            }
        }
    }
}

/// Table of the sides with their pooled runs; empty if there are no sides.
fn sides(sides: &[RunSide]) -> Markup {
    html! {
        @if !sides.is_empty() {
            div.scroll tabindex="0" role="group" aria-label="sides" {
                table {
                    thead { tr { @for title in ["side", "runs", "elapsed", "CPU", "memory bound", "stalled"] { th scope="col" { (title) } } } }
                    tbody {
                        @for side in sides {
                            tr {
                                th scope="row" { (side.name) }
                                td { (side.runs.len()) }
                                td { (units::seconds(side.elapsed_s)) }
                                td { (units::seconds(side.cpu_s)) }
                                td { b { (units::percent(side.memory_bound.value)) } " " small { (units::percent_interval(side.memory_bound.low, side.memory_bound.high)) } }
                                td { (units::seconds(side.memory_stall_s.value)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn runs(runs: &[ComparedRun]) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="runs" {
            table {
                thead { tr { @for title in ["", "elapsed", "CPU", "memory bound", "stalled", "idle", "average latency", "file", "command", "date"] { th scope="col" { (title) } } } }
                tbody {
                    @for (index, it) in runs.iter().enumerate() {
                        tr {
                            th scope="row" { (letter(index)) }
                            td { b { (units::seconds(it.elapsed_s)) } }
                            td { (units::seconds(it.time.cpu_s)) }
                            td { b { (units::percent(it.memory_bound.fraction)) } " " small { (units::percent_interval(it.memory_bound.low, it.memory_bound.high)) } }
                            td { (units::seconds(it.time.memory_stall_s)) }
                            td { (units::seconds(it.time.idle_s)) }
                            td {
                                @match &it.latency {
                                    Outcome::Known(latency) => { (units::ns(latency.ns)) }
                                    Outcome::Missing { not_measured } => { small { (facts::missing_text(not_measured)) } }
                                }
                            }
                            td { (it.file) }
                            td { (it.command) }
                            td { (it.date) }
                        }
                    }
                }
            }
        }
    }
}

fn changes(comparison: &RunComparison) -> Markup {
    let (real, quiet): (Vec<&RunChange>, Vec<&RunChange>) =
        comparison.changes.iter().partition(|it| it.significant);
    html! {
        p.reading { "Stalled time of functions, lines and objects; a dash where a run did not have it." }
        @if real.is_empty() {
            p { "The stall of no function, line or object changed by more than its interval." }
        } @else {
            (table(&real, &columns(comparison), "stalls that changed"))
        }
        @if !quiet.is_empty() {
            details.data {
                summary { (units::plural(quiet.len(), "group")) " the same within noise" }
                (table(&quiet[..quiet.len().min(MAX_CHANGES_WITHIN_NOISE)], &columns(comparison), "stalls that stayed"))
            }
        }
    }
}

fn table(changes: &[&RunChange], columns: &[String], label: &str) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label=(label) {
            table {
                thead { tr {
                    th scope="col" { "change" }
                    @for title in columns { th scope="col" { (title) } }
                    th scope="col" { "" } th scope="col" { "what" }
                } }
                tbody {
                    @for change in changes {
                        tr {
                            td class=[(change.significant && change.change_s > 0.0).then_some("differs")] { b { (run::signed_seconds(change.change_s)) } }
                            @for index in 0..columns.len() {
                                td {
                                    @if let Some(stall) = change.stall_s.get(index).copied().flatten() {
                                        (units::seconds(stall.value)) " "
                                        small { "[" (units::seconds(stall.low)) ", " (units::seconds(stall.high)) "]" }
                                    } @else { "–" }
                                }
                            }
                            td { (change.group) }
                            th scope="row" { (change.name) }
                        }
                    }
                }
            }
        }
    }
}

fn findings(comparison: &RunComparison) -> Markup {
    html! {
        @if comparison.findings.is_empty() {
            p { "No finding came or went." }
        } @else {
            ul {
                @for finding in &comparison.findings {
                    li {
                        b { (run::presence_change(&finding.present)) ": " (run::insight_title(finding.kind)) }
                        " " (finding.text)
                    }
                }
            }
        }
    }
}
