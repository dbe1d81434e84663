//! Page of a harvest: its gain and cost, how soon the primary ran again, and the result of every scavenger
//! and every yield.

mod charts;
mod tables;

use maud::{Markup, html};
use membound_types::{HarvestRun, Missing};

use super::parts::{self, Panel, ShareBar, fact};
use super::shell::{navigation, shell};
use crate::facts::harvest_run as facts;
use crate::facts::run;
use crate::units;

/// Page for a harvest: stall before and after, latencies with and without scavengers, how soon the primary
/// ran again, scavengers, yields and conditions.
#[must_use]
pub fn harvest_run(run: &HarvestRun) -> String {
    document(run).into_string()
}

fn document(run: &HarvestRun) -> Markup {
    let panels = panels(run);
    let parts = panels
        .iter()
        .map(|panel| (panel.id, panel.title, panel.missing));
    let body = html! {
        (header(run))
        (answer(run))
        (navigation([("answer", "Answer", false)].into_iter().chain(parts)))
        @for panel in &panels { (panel.markup()) }
        footer { "harvested by membound " (run.membound_version) ", " (run.date) ". Brackets hold the 95 % interval." }
    };
    shell(
        &format!("{} · harvest · membound", facts::title(run)),
        &run.membound_version,
        &body,
        &html! {},
    )
}

/// Command, place and time, how the primary ended, and the banner of an incomplete run.
fn header(run: &HarvestRun) -> Markup {
    let primary = &run.primary;
    html! {
        header {
            (parts::top("harvest", &facts::title(run)))
            @if run.incomplete {
                (parts::incomplete("The run was cut short, or parts of it could not be observed. What is shown is true of the part that was seen."))
            }
            dl.facts {
                (fact("elapsed", &units::seconds(run.wall_s)))
                @if facts::has_primary(run) {
                    (fact("primary", &facts::exit(primary.exit_code, primary.signal)))
                    (fact("its CPU time", &units::seconds(primary.cpu_s)))
                    (fact("it gave way", &format!(
                        "{} on {}",
                        units::plural(primary.yields as usize, "time"),
                        units::plural(primary.threads as usize, "thread")
                    )))
                }
                (fact("host", &run.host))
                (fact("processor", &run.cpu))
                (fact("date", &run.date))
            }
        }
    }
}

/// Gain of the harvest as sentences, as a bar, and as tiles.
fn answer(run: &HarvestRun) -> Markup {
    let stall = &run.stall;
    let primary = &run.primary;
    let sentences = facts::answer(run);
    // Without a primary there is neither stall before nor stall left.
    let stalls = [
        ("stall before", stall.before_s),
        ("harvested", stall.harvested_s),
        ("left", stall.left_s),
    ]
    .into_iter()
    .filter(|(_, seconds)| seconds.is_some() || facts::has_primary(run));
    html! {
        section.card.answer id="answer" {
            h2 { "What it gave" }
            @for sentence in &sentences { p { (sentence) } }
            @if let Some(shares) = facts::stall_shares(stall) {
                h3 { "The primary's stall time" }
                (ShareBar {
                    label: "stall time",
                    parts: &[("harvested", 2, shares.harvested)],
                    rest: ("left, with what switching took", shares.left),
                }.markup())
            }
            div.tiles {
                @for (name, seconds) in stalls { (tile(name, seconds)) }
                @if facts::has_primary(run) {
                    div.tile {
                        span { "slowdown of the primary" }
                        @match primary.slowdown {
                            Some(share) => {
                                b class=[facts::exceeds_slowdown_limit(run).then_some("differs")] { (units::percent(share)) }
                                @if let Some((low, high)) = facts::slowdown_interval(primary) {
                                    " " small { (units::percent_interval(low, high)) }
                                }
                                em { (facts::BASIS) @if let Some(limit) = run.options.max_slowdown { ", allowed " (units::percent(limit)) } }
                            }
                            None => { b { (run::NONE) } em { "not known" } }
                        }
                    }
                }
            }
            (reasons(&run.missing, &["primary.slowdown", "primary.slowdown_low", "stall"]))
        }
    }
}

/// Tile with a duration and its basis.
fn tile(name: &str, seconds: Option<f64>) -> Markup {
    html! {
        div.tile {
            span { (name) }
            b { (facts::duration(seconds)) }
            em { @if seconds.is_some() { (facts::BASIS) } @else { "not known" } }
        }
    }
}

/// Reasons for missing data in `fields`.
fn reasons(missing: &[Missing], fields: &[&str]) -> Markup {
    html! { @for gap in facts::gaps_of(missing, fields) { p.missing { (facts::gap(gap)) } } }
}

/// Fields whose gaps are shown in their own section.
const SHOWN: [&str; 8] = [
    "primary.slowdown",
    "primary.slowdown_low",
    "stall",
    "primary.latency",
    "distance_ns",
    "scavengers",
    "sites",
    "guard",
];

fn panels(run: &HarvestRun) -> Vec<Panel> {
    let mut out = Vec::new();
    if facts::has_primary(run) {
        out.push(section(
            run,
            ("latency", "Latency of requests"),
            (
                "primary.latency",
                "no request of the primary was identified",
            ),
            run.primary.latency.as_ref().map(|latency| {
                html! { (charts::latency(latency)) (tables::latency(run)) }
            }),
        ));
        out.push(section(
            run,
            ("classes", "Time that can be harvested"),
            ("scavengers", "there was no scavenger"),
            (!run.scavengers.is_empty()).then(|| tables::classes(run)),
        ));
    }
    let timed = charts::distances(run);
    out.push(section(
        run,
        ("distances", "Time away"),
        ("distance_ns", "no time slice was timed"),
        (timed.is_some() || run.distance_ns.p50.is_some()).then(|| {
            html! {
                @if let Some(chart) = &timed { (chart.markup()) }
                (tables::distances(run))
            }
        }),
    ));
    out.push(section(
        run,
        ("scavengers", "Scavengers"),
        ("scavengers", "there was none"),
        (!run.scavengers.is_empty()).then(|| tables::scavengers(run)),
    ));
    out.push(section(
        run,
        ("sites", "Yields"),
        ("sites", "the plans have none"),
        (!run.sites.is_empty()).then(|| tables::sites(run)),
    ));
    out.push(section(
        run,
        ("guard", "Guard"),
        ("guard", "nothing was asked to be guarded"),
        run.guard
            .map(|guard| html! { p { (facts::guard(&guard)) "." } }),
    ));
    out.push(Panel::new(
        "conditions",
        "Conditions",
        html! {
            dl.facts {
                @for (name, value) in facts::conditions(&run.options) { (fact(name, &value)) }
            }
            p { (facts::slots(&run.slots)) "." }
        },
    ));
    out.extend(notes(run));
    out
}

/// What was not measured and has no section of its own, and the notes of the run.
fn notes(run: &HarvestRun) -> Option<Panel> {
    let rest: Vec<&Missing> = run
        .missing
        .iter()
        .filter(|gap| !facts::lies_in(gap, &SHOWN))
        .collect();
    (!rest.is_empty() || !run.notes.is_empty()).then(|| {
        Panel::new(
            "notes",
            "Notes",
            html! {
                @if !rest.is_empty() {
                    h3 { "Not measured" }
                    ul.gaps { @for gap in &rest { li { (facts::gap(gap)) } } }
                }
                @if !run.notes.is_empty() {
                    @if !rest.is_empty() { h3 { "Beside that" } }
                    ul.gaps { @for note in &run.notes { li { (note) } } }
                }
            },
        )
    })
}

/// Section with id and title, followed by the gaps of its field. Without a body it shows why there is none:
/// the reason in the document, else `otherwise`.
fn section(
    run: &HarvestRun,
    (id, title): (&'static str, &'static str),
    (field, otherwise): (&'static str, &str),
    body: Option<Markup>,
) -> Panel {
    let fields = [field];
    let gaps: Vec<&Missing> = facts::gaps_of(&run.missing, &fields).collect();
    match body {
        Some(body) => Panel::new(id, title, html! { (body) (reasons(&run.missing, &fields)) }),
        None if gaps.is_empty() => Panel::empty(id, title, html! { p.note { (otherwise) } }),
        None => Panel::missing(
            id,
            title,
            &gaps
                .iter()
                .map(|gap| facts::why(gap))
                .collect::<Vec<_>>()
                .join("; "),
        ),
    }
}
