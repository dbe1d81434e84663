//! Page of a run: memory-bound share, advice, and then all groupings.
//!
//! When the reader selects a span of the timeline or a row of a table, the other tables follow. The script
//! does that from cells (`data.rs`); without the script the page still shows the answer, the findings, the
//! timeline, a table of lines, and the panels without time.

mod answer;
mod bounded;
mod cells;
mod data;
mod hardware;
mod numbers;
mod panels;
mod periods;
mod platform;
mod timeline;

use maud::{Markup, PreEscaped, html};
use membound_types::{Detail, Profile};

use super::shell::{Extra, navigation, shell_with};
use crate::facts::run;
use crate::units;
use cells::Grain;
use data::PageData;

const EXTRA: Extra = Extra {
    style: include_str!("run.css"),
    script: concat!(
        include_str!("script/data.js"),
        include_str!("script/timeline.js"),
        include_str!("script/tables.js"),
        include_str!("script/flame.js"),
        include_str!("script/code.js"),
    ),
};
/// Most rows of the table that is shown without the script.
const MAX_ROWS: usize = 25;

/// Page for a run's `profile`: at most 8 MB, however many samples `detail` has.
#[must_use]
pub fn profile(profile: &Profile, detail: &Detail) -> String {
    document(profile, detail).into_string()
}

fn document(profile: &Profile, detail: &Detail) -> Markup {
    let profile = &bounded::bounded(profile, Grain::FINEST.rows);
    let data = PageData::of(profile, detail);
    let panels = panels::all(profile);
    let has_objects = !profile.objects.is_empty();
    let has_code = !detail.listings.is_empty();
    let mut parts: Vec<(&str, &str, bool)> = vec![
        ("answer", "Answer", false),
        ("timeline", "Timeline", false),
        ("tables", "Tables", false),
        ("flame", "Flame graph", false),
    ];
    if has_code {
        parts.push(("code", "Code", false));
    }
    parts.push(("objects", "Objects", !has_objects));
    parts.extend(
        panels
            .iter()
            .map(|panel| (panel.id, panel.title, panel.missing)),
    );
    let body = html! {
        (answer::header(profile))
        (answer::answer(profile))
        (navigation(parts.into_iter()))
        (selection())
        section.card id="timeline" {
            h2 { "Timeline" }
            p.reading { "Drag over the lanes to select a span; everything else follows. By keyboard: arrows move, Shift and arrows select, Enter marks a beginning and an end, Escape selects all. A thread's name holds the page to that thread." }
            (timeline::markup(profile, &data.cells))
        }
        section.card id="tables" {
            h2 { "Where it waits" }
            (tables(profile))
        }
        section.card id="flame" {
            h2 { "Flame graph" }
            p.reading { "Callers stand above what they call; width is time, colour the level that most of the stall waits for, grey computes. Press a frame to zoom, Escape to go back." }
            (flame())
        }
        @if has_code { (code()) }
        section.card id="objects" {
            h2 { "Objects" }
            (objects(profile, has_objects))
        }
        @for panel in &panels { (panel.markup()) }
        (footer(profile, &data))
    };
    let json = html! {
        script type="application/json" id="membound-run" { (PreEscaped(&data.json)) }
    };
    let title = format!("{} · memory profile · membound", run::command(&profile.run));
    shell_with(EXTRA, &title, &profile.run.membound_version, &body, &json)
}

/// Current selection; stays visible while scrolling.
fn selection() -> Markup {
    html! {
        div.selection id="selection" role="region" aria-label="selection" {
            span.now id="now" aria-live="polite" {}
            span.chips id="chips" {}
        }
        noscript { p.banner { "Without its script this page shows the whole run; selecting, regrouping and flame graphs need it." } }
    }
}

fn tables(profile: &Profile) -> Markup {
    html! {
        div.controls {
            div.tabs id="groupings" role="group" aria-label="group by" {
                @for by in ["function", "line", "instruction", "object", "thread", "level"] {
                    button type="button" data-by=(by) aria-pressed=(if by == "line" { "true" } else { "false" }) { (by) }
                }
            }
            input id="find" type="search" placeholder="find" aria-label="find in the table";
        }
        div id="table" {
            div.scroll tabindex="0" role="group" aria-label="by line" {
                table.run {
                    thead { tr { th scope="col" { "stalled" } th scope="col" { "95 %" } th scope="col" { "CPU time" } th scope="col" { "latency" } th scope="col" { "line" } } }
                    tbody {
                        @for row in profile.lines.iter().take(MAX_ROWS) {
                            tr {
                                td class=[row.share.flagged.then_some("differs")] { (units::percent(row.share.stall_fraction)) }
                                td { (units::percent_interval(row.share.stall_low, row.share.stall_high)) }
                                td { (units::percent(row.share.time_fraction)) }
                                td { (row.share.avg_latency_ns.map_or_else(String::new, units::ns)) }
                                th scope="row" { (row.name) " " small { (run::of_whom(row)) } }
                            }
                        }
                    }
                }
            }
        }
        @for gap in &profile.missing {
            @if ["lines", "functions", "instructions", "threads", "levels"].contains(&gap.table.as_str()) {
                p.missing { (run::gap(gap)) }
            }
        }
    }
}

fn flame() -> Markup {
    html! {
        div.controls {
            div.tabs role="group" aria-label="frames" {
                button type="button" data-flame="code" aria-pressed="true" { "by code" }
                button type="button" data-flame="object" aria-pressed="false" { "by object, then code" }
                button type="button" data-flame="allocation" aria-pressed="false" { "by allocation" }
            }
            div.tabs role="group" aria-label="width" {
                button type="button" data-weight="stall" aria-pressed="true" { "stalled time" }
                button type="button" data-weight="time" aria-pressed="false" { "CPU time" }
            }
            input id="flame-find" type="search" placeholder="find a frame" aria-label="find a frame";
        }
        p.note id="flame-status" role="status" {}
        div.flame-graph id="flame-graph" tabindex="0" role="group" aria-label="flame graph: arrow keys move between frames, Enter zooms, Escape goes back" {}
    }
}

fn code() -> Markup {
    html! {
        section.card id="code" {
            h2 { "Code" }
            p.reading { "Source and assembly of the hottest functions, with the share of the selected CPU time that each line was stalled." }
            div.controls { label { "function " select id="pick-function" {} } }
            div.pair.listing id="listing" {}
        }
    }
}

fn objects(profile: &Profile, any: bool) -> Markup {
    html! {
        @if any {
            div.controls { label { "object " select id="pick-object" {} } }
            div id="object-inside" {}
        } @else if !profile.missing.iter().any(|gap| gap.table == "objects") {
            p.missing { "not measured: no sample could be traced to an object" }
        }
        @for gap in profile.missing.iter().filter(|gap| gap.table == "objects") {
            p.missing { (run::gap(gap)) }
        }
    }
}

fn footer(profile: &Profile, data: &PageData) -> Markup {
    html! {
        footer {
            p {
                (run::evidence_and_cost(profile).join("; ")) ". "
                "Times on this page are sums over spans of " (units::seconds(data.cells.duration_s / f64::from(data.cells.bins.max(1))))
                @if data.cells.thinned {
                    ", thinned to " (units::plural(data.cells.count(), "cell")) ": a share can be off by "
                    (units::percent(1.0 / data.cells.count().max(1) as f64))
                }
                "."
            }
            p { "recorded by membound " (profile.run.membound_version) ", " (profile.run.date) ". Brackets hold the 95 % interval." }
        }
    }
}
