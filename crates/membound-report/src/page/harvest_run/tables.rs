//! Tables of a harvest: latencies, distances, scavengers, yields.

use maud::{Markup, html};
use membound_types::{HarvestRun, Scavenger, ScavengerState, SiteState};

use crate::facts::harvest_run as facts;
use crate::facts::run::NONE;
use crate::units;

/// Most rows of a table; the JSON has all.
const MAX_ROWS: usize = 300;

pub(super) fn latency(run: &HarvestRun) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="latency of requests" {
            table {
                thead { tr {
                    th scope="col" { "" } th scope="col" { "requests" }
                    @for column in facts::LATENCY_COLUMNS { th scope="col" { (column) } }
                } }
                tbody {
                    @for (name, latencies) in facts::latency_rows(run) {
                        tr {
                            th scope="row" { (name) }
                            td { (units::count(latencies.requests)) }
                            @for value in facts::latency_values(latencies) { td { (units::duration_ns(value)) } }
                        }
                    }
                    @if let Some(changes) = facts::latency_changes(run) {
                        tr {
                            th scope="row" { "change" }
                            td {}
                            @for change in &changes { td { (change) } }
                        }
                    }
                }
            }
        }
        @if let Some(latency) = &run.primary.latency {
            p.note {
                "Requests: " (facts::latency_source(latency)) "."
                @for note in facts::latency_notes(run) { " " (note) }
            }
        }
    }
}

pub(super) fn classes(run: &HarvestRun) -> Markup {
    html! {
        div.scroll tabindex="0" role="group" aria-label="classes of time that can be harvested" {
            table {
                thead { tr { @for title in facts::CLASS_COLUMNS { th scope="col" { (title) } } } }
                tbody {
                    @for it in facts::classes(run) {
                        tr {
                            th scope="row" { (it.name) }
                            td { (facts::duration(it.before_s)) }
                            td { b { (facts::duration(it.harvested_s)) } }
                            td.wrap { (it.by) }
                        }
                    }
                }
            }
        }
        p.note { "Estimated, as the stall is. How long each of several threads was idle, and how much a core waits for other things than memory, is not known." }
    }
}

pub(super) fn distances(run: &HarvestRun) -> Markup {
    let distances = &run.distance_ns;
    let cell = |ns: Option<f64>| ns.map_or_else(|| NONE.to_owned(), units::duration_ns);
    html! {
        div.scroll tabindex="0" role="group" aria-label="time until the primary ran again" {
            table {
                thead { tr { @for title in ["slices timed", "median", "90 %", "99 %", "longest", "bound"] { th scope="col" { (title) } } } }
                tbody { tr {
                    th scope="row" { (units::count(distances.timed)) }
                    td { (cell(distances.p50)) }
                    td { (cell(distances.p90)) }
                    td { (cell(distances.p99)) }
                    td { (cell(distances.max)) }
                    td { (distances.bound.map_or_else(|| "none".to_owned(), units::duration_ns)) }
                } }
            }
        }
        @if let Some(exceeding) = facts::exceeding(run) { p { "Of the time slices that were timed, " (exceeding) "." } }
        @if let Some(skipped) = facts::skipped(run) { p { (skipped) "." } }
    }
}

pub(super) fn scavengers(run: &HarvestRun) -> Markup {
    let all = &run.scavengers;
    let reasons = |it: &&Scavenger| it.reason.is_some();
    let outputs: Vec<&Scavenger> = all.iter().filter(|it| it.output.is_some()).collect();
    html! {
        p.reading { (facts::scavengers(all)) ". CPU time is that in the primary's stalls, in short waits of its threads, and on the scavenger's own thread together." }
        div.scroll tabindex="0" role="group" aria-label="scavengers" {
            table {
                thead { tr {
                    @for title in ["command", "state", "ended", "CPU time", "in stalls", "in waits", "own thread", "moves", "system calls"] { th scope="col" { (title) } }
                } }
                tbody {
                    @for it in all.iter().take(MAX_ROWS) {
                        @let bad = matches!(it.state, ScavengerState::Crashed | ScavengerState::Refused);
                        tr {
                            th scope="row" { (facts::scavenger(it, all)) }
                            td class=[bad.then_some("differs")] { (it.state) }
                            td { (facts::scavenger_end(it)) }
                            td { b { (facts::duration(it.cpu_s)) } }
                            td { b { (facts::duration(it.in_stalls_s)) } }
                            td { (units::seconds(it.in_waits_s)) }
                            td { (units::seconds(it.own_thread_s)) }
                            td { (units::count(it.turns)) }
                            td { (units::count(it.calls)) }
                        }
                    }
                }
            }
        }
        (omitted_rows(all.len()))
        @if let Some(left) = facts::left_otherwise(run) { p { (left) } }
        @for it in all.iter().filter(reasons).take(MAX_ROWS) {
            p.missing { (facts::scavenger(it, all)) " " (it.state) ": " (it.reason.as_deref().unwrap_or_default()) }
        }
        @if !outputs.is_empty() {
            details.data {
                summary { "output" }
                ul.gaps {
                    @for it in outputs.iter().take(MAX_ROWS) {
                        li { (facts::scavenger(it, all)) " → " (it.output.as_deref().unwrap_or_default()) }
                    }
                }
            }
        }
    }
}

pub(super) fn sites(run: &HarvestRun) -> Markup {
    let sites = facts::by_gain(&run.sites);
    let reasons = sites.iter().any(|site| site.reason.is_some());
    html! {
        p.reading { (units::plural(sites.len(), "yield")) ": " (facts::sites(&run.sites)) ". The gain is what the plan predicts, of the CPU time of the program that contains the yield; yields that keep the bound gain nothing by themselves." }
        div.scroll tabindex="0" role="group" aria-label="yields" {
            table {
                thead { tr {
                    @for title in ["before the instruction in", "of the", "because of", "state", "predicted gain"] { th scope="col" { (title) } }
                    @if reasons { th scope="col" { "why" } }
                    th scope="col" { "file" }
                } }
                tbody {
                    @for site in sites.iter().take(MAX_ROWS) {
                        tr {
                            th scope="row" title=(site.symbol) { (facts::short_place(site)) }
                            td { (site.side) }
                            td { (facts::purpose(site.kind)) }
                            td class=[(site.state != SiteState::In).then_some("differs")] { (site.state) }
                            td { (facts::gain(site)) }
                            @if reasons { td { (site.reason.as_deref().unwrap_or_default()) } }
                            td { (site.module) }
                        }
                    }
                }
            }
        }
        (omitted_rows(sites.len()))
    }
}

fn omitted_rows(rows: usize) -> Markup {
    html! { @if rows > MAX_ROWS { p.note { (rows - MAX_ROWS) " more in the JSON." } } }
}
