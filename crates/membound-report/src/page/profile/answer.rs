//! The top of the page: what ran, how much of it waited, and what to do.

use maud::{Markup, html};
use membound_types::{Outcome, Profile};

use crate::facts::run;
use crate::{facts, units};

/// Command, host, and the banner of an incomplete run.
pub(super) fn header(profile: &Profile) -> Markup {
    let info = &profile.run;
    let ending = run::ending(info);
    html! {
        header {
            div.top {
                div {
                    p.eyebrow { "membound · memory profile" }
                    h1 { (run::command(info)) }
                }
                button.scheme id="scheme" type="button" hidden { "light / dark" }
            }
            @if profile.incomplete {
                p.banner role="alert" {
                    b { "Incomplete." }
                    " The run was cut short. What is shown is true of the part that was recorded."
                }
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

fn fact(name: &str, value: &str) -> Markup {
    html! { @if !value.is_empty() { div { dt { (name) } dd { (value) } } } }
}

/// The share, a bar by level, tiles and findings.
pub(super) fn answer(profile: &Profile) -> Markup {
    let bound = &profile.memory_bound;
    html! {
        section.card.answer id="answer" {
            @if profile.run.samples == 0 {
                h2 { "Nothing was sampled" }
                p.missing { "no sample was taken: nothing can be said of where the time went" }
            } @else {
                h2 {
                    "Memory bound " (units::percent(bound.fraction)) " "
                    small { (units::percent_interval(bound.low, bound.high)) " of " (units::seconds(profile.time.cpu_s)) " CPU" }
                }
                (level_bar(profile))
                (tiles(profile))
            }
            @if !profile.findings.is_empty() {
                h3 { "What to do" }
                ol.findings {
                    @for finding in &profile.findings {
                        li {
                            @if !tells(&finding.text, run::insight_title(finding.kind)) { b { (run::insight_title(finding.kind)) } " " }
                            (finding.text)
                            @if !finding.advice.is_empty() { p { (finding.advice) } }
                            p.note {
                                @if let Some(gain) = &finding.predicted_gain { b { (run::gain(gain)) } " · " }
                                "told from: " (finding.threshold)
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a sentence begins with what it is about.
fn tells(text: &str, title: &str) -> bool {
    text.get(..title.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(title))
}

/// Shares below this would be shown as nothing.
const SMALLEST: f64 = 0.0005;

fn level_bar(profile: &Profile) -> Markup {
    let parts = run::level_parts(&profile.memory_bound);
    let shown = || parts.iter().filter(|part| part.1 > SMALLEST);
    let words: Vec<String> = shown()
        .map(|(name, share)| format!("{name} {}", units::percent(*share)))
        .collect();
    let percent = |share: f64| format!("width:{:.2}%", share.clamp(0.0, 1.0) * 100.0);
    html! {
        div.levelbar.large role="img" aria-label=(format!("stalled by level: {}", words.join(", "))) {
            @for (name, share) in shown() {
                i class=(format!("lv{}", run::level_color(name))) style=(percent(*share)) {}
            }
        }
        p.levelkeys {
            @for (name, share) in shown() {
                span { i class=(format!("lv{}", run::level_color(name))) {} (name) " " b { (units::percent(*share)) } }
            }
            span { i.lv9 {} "computing " b { (units::percent(1.0 - profile.memory_bound.fraction)) } }
        }
    }
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
                    b { @if domain.average_gb_s < run::LEAST_GB_S { "< " (units::gb_s(run::LEAST_GB_S)) } @else { (units::gb_s(domain.average_gb_s)) } }
                    @if let Outcome::Known(most) = &domain.machine_max_gb_s {
                        em { "of " (units::gb_s(*most)) " that the machine can do" }
                    }
                }
            }
        }
    }
}
