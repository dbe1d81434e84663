//! Top of a run's page: the program, its memory-bound share, and advice.

use maud::{Markup, html};
use membound_types::{Outcome, Profile};

use crate::facts::run;
use crate::page::parts::{self, ShareBar, fact};
use crate::{facts, units};

/// Header: command, host, and the banner of an incomplete run.
pub(super) fn header(profile: &Profile) -> Markup {
    let info = &profile.run;
    let ending = run::ending(info);
    html! {
        header {
            (parts::top("memory profile", &run::command(info)))
            @if let Some(selection) = run::selection(profile) {
                p.banner { "Only " (selection) ": everything on this page is of this part of the run." }
            }
            @if profile.incomplete {
                (parts::incomplete("The run was cut short. What is shown is true of the part that was recorded."))
            }
            dl.facts {
                (fact("elapsed", &units::seconds(profile.elapsed_s)))
                (fact("host", &info.host))
                (fact("processor", &info.cpu))
                (fact("date", &info.date))
                (fact("ran", &format!(
                    "{}, {}",
                    units::plural_of(info.processes, "process", "processes"),
                    units::plural_of(info.threads, "thread", "threads")
                )))
                @if let Some(ending) = ending { (fact("ended", &ending)) }
            }
        }
    }
}

/// Memory-bound share, a bar by level, tiles and findings.
pub(super) fn answer(profile: &Profile) -> Markup {
    html! {
        section.card.answer id="answer" {
            @if profile.run.samples == 0 {
                h2 { "Nothing was sampled" }
                p.missing { "no sample was taken, so the time cannot be attributed" }
            } @else {
                h2 {
                    "Memory bound " (run::bound_share(&profile.memory_bound)) " "
                    small { "of " (units::seconds(profile.time.cpu_s)) " CPU" }
                }
                (level_bar(profile))
                @if let Some(unattributed) = run::unattributed(profile) { p.note { (unattributed) } }
                (tiles(profile))
            }
            @if !profile.findings.is_empty() {
                h3 { "What to do" }
                ol.findings {
                    @for finding in &profile.findings {
                        li {
                            @if !begins_with_title(&finding.text, run::insight_title(finding.kind)) { b { (run::insight_title(finding.kind)) } " " }
                            (finding.text)
                            @if !finding.advice.is_empty() { p { (finding.advice) } }
                            p.note {
                                @if let Some(gain) = &finding.predicted_gain { b { (run::gain(gain)) } " · " }
                                "based on: " (finding.threshold)
                            }
                        }
                    }
                }
            }
        }
    }
}

/// True if `text` begins with `title`, ignoring case.
fn begins_with_title(text: &str, title: &str) -> bool {
    text.get(..title.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(title))
}

fn level_bar(profile: &Profile) -> Markup {
    let bound = &profile.memory_bound;
    let parts: Vec<(&str, usize, f64)> = run::level_parts(bound)
        .into_iter()
        .chain((bound.unseen > 0.0).then_some((run::UNATTRIBUTED, bound.unseen)))
        .map(|(name, share)| (name, run::level_color(name), share))
        .collect();
    ShareBar {
        label: "stalled by level",
        parts: &parts,
        rest: ("computing", (1.0 - bound.fraction - bound.unseen).max(0.0)),
    }
    .markup()
}

fn tiles(profile: &Profile) -> Markup {
    let time = &profile.time;
    html! {
        div.tiles {
            div.tile { span { "stalled on memory" } b { (units::seconds(time.memory_stall_s)) } em { "of " (units::seconds(time.cpu_s)) " CPU time" } }
            div.tile { span { "idle" } b { (units::seconds(time.idle_s)) } em { "of all threads, on no CPU" } }
            div.tile {
                span { "average latency" }
                @match &profile.latency {
                    Outcome::Known(latency) => {
                        b class=[latency.flagged.then_some("differs")] { (units::ns(latency.ns)) }
                        em { (units::cycles(latency.cycles)) ", of the accesses that were timed" }
                    }
                    Outcome::Missing { not_measured } => { b { "–" } em { (facts::missing_text(not_measured)) } }
                }
            }
            @for domain in profile.bandwidth.iter().take(1) {
                div.tile {
                    span { (domain.domain) " traffic, " (domain.basis) }
                    b { @if domain.average_gb_s < run::MIN_GB_S { "< " (units::gb_s(run::MIN_GB_S)) } @else { (units::gb_s(domain.average_gb_s)) } }
                    @if let Outcome::Known(most) = &domain.machine_max_gb_s {
                        em { "of " (units::gb_s(*most)) " that the machine can do" }
                    }
                }
            }
        }
    }
}
