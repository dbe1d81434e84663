//! Top of the page of a machine profile: the machine, its conditions, and the main figures.

use maud::{Markup, html};
use membound_types::{Figure, Level, LevelKind, MachineProfile, Outcome, ThpState};

use super::parts::{self, fact};
use crate::{facts, units};

/// Host, processor, conditions, labels, timer, and the banner of an incomplete run.
pub(super) fn header(profile: &MachineProfile) -> Markup {
    let machine = &profile.machine;
    let identity = facts::identity(machine);
    html! {
        header {
            (parts::top("memory hierarchy", &machine.host))
            @if profile.incomplete {
                (parts::incomplete("The run was cut short or a part failed. Everything shown was measured; less of it than was asked."))
            }
            dl.facts {
                @for (name, value) in identity.iter().skip(1) { (fact(name, value)) }
                @for (name, value) in conditions(profile) { (fact(name, &value)) }
            }
            @if !machine.conditions.labels.is_empty() {
                p.labels {
                    "conditions of this run: "
                    @for (name, value) in &machine.conditions.labels {
                        span.label { (name) "=" (value) }
                    }
                }
            }
        }
    }
}

fn conditions(profile: &MachineProfile) -> Vec<(&'static str, String)> {
    fn text<T>(outcome: &Outcome<T>, show: impl FnOnce(&T) -> String) -> String {
        match outcome {
            Outcome::Known(value) => show(value),
            Outcome::Missing { not_measured } => format!("unknown: {}", not_measured.reason),
        }
    }
    let machine = &profile.machine;
    let timer = &machine.timer;
    let mut out = Vec::new();
    if timer.core_clock_hz > 0.0 {
        let clock = profile.core_clock_hz.map_or_else(
            || units::hertz(timer.core_clock_hz),
            |figure| {
                format!(
                    "{} [{}, {}]",
                    units::hertz(figure.value),
                    units::number(figure.low * 1e-9),
                    units::number(figure.high * 1e-9)
                )
            },
        );
        out.push(("core clock", clock));
    }
    if let Some(steps) = facts::timer_steps(timer) {
        out.push((
            "timer",
            format!("{} at {}, {steps}", timer.name, units::hertz(timer.rate_hz)),
        ));
    }
    let conditions = &machine.conditions;
    out.push((
        "huge pages",
        text(&conditions.thp, |state: &ThpState| {
            format!("transparent: {state}")
        }),
    ));
    out.push(("governor", text(&conditions.governor, String::clone)));
    out.push((
        "turbo",
        text(&conditions.turbo, |on| {
            if *on { "on" } else { "off" }.to_owned()
        }),
    ));
    out.push((
        "prefetchers",
        text(&conditions.prefetchers, |map| {
            let off: Vec<&str> = map
                .iter()
                .filter(|(_, on)| !**on)
                .map(|(name, _)| name.as_str())
                .collect();
            if off.is_empty() {
                "all on".to_owned()
            } else {
                format!("off: {}", off.join(", "))
            }
        }),
    ));
    out
}

/// Table of levels and headline figures.
pub(super) fn answer(profile: &MachineProfile) -> Markup {
    html! {
        section.card.answer id="answer" {
            h2 { "The levels" }
            @if profile.levels.is_empty() {
                p.missing { "not measured: no levels were found, because the latency curve is missing or too short (measure the part latency)" }
            } @else {
                p.reading {
                    "Size and latency were found from the curves below; the declared size is what the machine says of itself. Brackets hold the 95 % interval of a size, and nine tenths of the points of a plateau."
                }
                div.scroll tabindex="0" role="group" aria-label="levels" { (levels(profile)) }
                @for level in &profile.levels {
                    @if let Some(note) = &level.note { p.note { b { (level.name) ":" } " " (note) } }
                }
            }
            (tiles(profile))
        }
    }
}

fn levels(profile: &MachineProfile) -> Markup {
    let bandwidth = profile.bandwidth.known();
    let reads = |level: &Level| {
        bandwidth.and_then(|bandwidth| facts::level_bandwidth(bandwidth, &level.name))
    };
    let any_read = profile.levels.iter().any(|level| reads(level).is_some());
    html! {
        table.levels {
            thead {
                tr {
                    th scope="col" { "level" }
                    th scope="col" { "effective size" }
                    th scope="col" { "latency" }
                    th scope="col" { "cycles" }
                    th scope="col" { "declared" }
                    th scope="col" { "line" }
                    @if any_read { th scope="col" { "read, 1 thread" } th scope="col" { "read, most threads" } }
                }
            }
            tbody {
                @for level in &profile.levels {
                    tr {
                        th scope="row" { (level.name) }
                        td { (size(level)) }
                        td {
                            b { (units::ns(level.latency_ns)) }
                            " " small { (units::interval(level.latency_low_ns, level.latency_high_ns)) }
                        }
                        td { (units::number(level.latency_cycles)) }
                        td { (declared(level)) }
                        td {
                            @if let Some(bytes) = level.line_bytes {
                                (bytes) " B"
                                @if let Some(basis) = level.line_basis { " " small { (basis) } }
                            } @else { "–" }
                        }
                        @if any_read {
                            @let read = reads(level);
                            td { (read.and_then(|r| r.one_gb_s).map_or_else(dash, units::gb_s)) }
                            td {
                                @if let Some((threads, gb_s)) = read.and_then(|r| r.all) {
                                    (units::gb_s(gb_s)) " " small { "by " (threads) }
                                } @else { "–" }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn dash() -> String {
    "–".to_owned()
}

fn size(level: &Level) -> Markup {
    html! {
        @match (level.size_bytes, level.kind) {
            (Some(size), _) => {
                b { (units::bytes(size)) }
                @if let (Some(low), Some(high)) = (level.size_low_bytes, level.size_high_bytes) {
                    " " small { (units::bytes_interval_after_value(size, low, high)) }
                }
            }
            (None, LevelKind::Memory) => { "the rest" }
            (None, LevelKind::Cache) => { "not seen" }
        }
    }
}

/// Declared size, marked if the effective size differs.
fn declared(level: &Level) -> Markup {
    html! {
        @match (level.declared_bytes, level.size_bytes) {
            (Some(declared), Some(size)) if size.abs_diff(declared) * 100 > declared * 15 => {
                span.differs { (units::bytes(declared)) } " "
                small { (units::percent(size as f64 / declared as f64)) " of it seen" }
            }
            (Some(declared), _) => { (units::bytes(declared)) }
            (None, _) => { "–" }
        }
    }
}

/// Headline figures beside the levels.
fn tiles(profile: &MachineProfile) -> Markup {
    let mlp = |field: fn(&membound_types::Mlp) -> &Outcome<f64>| match &profile.mlp {
        Outcome::Known(mlp) => field(mlp).clone(),
        Outcome::Missing { not_measured } => Outcome::Missing {
            not_measured: not_measured.clone(),
        },
    };
    let part = profile.mlp.known();
    let published = profile.machine.cpu.published_rob;
    let published = published.map(|entries| format!("published: {entries}"));
    let entries = part.and_then(facts::reorder_buffer_interval);
    let reorder: Vec<String> = entries.into_iter().chain(published).collect();
    let reorder = reorder.join("; ");
    let interval = |field: fn(&membound_types::Mlp) -> &Outcome<Figure>| {
        let known = part.and_then(|part| field(part).known());
        known.map_or_else(String::new, |it| units::interval(it.low, it.high))
    };
    let dram = facts::dram_bandwidth(profile);
    let detail = dram.known().map_or_else(String::new, |point| {
        format!(
            "{}, {}",
            point.kernel,
            units::plural(point.threads as usize, "thread")
        )
    });
    html! {
        div.tiles {
            (tile("reorder buffer", "entries", &mlp(|m| &m.rob_size), &reorder))
            (tile("parallel misses, by throughput", "loads", &mlp(|m| &m.mlp_throughput), &interval(|m| &m.mlp_throughput_interval)))
            (tile("parallel misses, two-load rule", "loads", &mlp(|m| &m.mlp_rule), &interval(|m| &m.mlp_rule_interval)))
            (tile("main memory, most", "GB/s", &dram.map(|point| point.gb_s), &detail))
        }
    }
}

fn tile(title: &str, unit: &str, value: &Outcome<f64>, detail: &str) -> Markup {
    html! {
        div.tile {
            span { (title) }
            @match value {
                Outcome::Known(value) => { b { (units::number(*value)) " " small { (unit) } } em { (detail) } }
                Outcome::Missing { not_measured } => { b { "–" } em { (facts::missing_text(not_measured)) } }
            }
        }
    }
}

/// Footer: program version and duration of the run.
pub(super) fn footer(profile: &MachineProfile) -> Markup {
    html! {
        footer {
            "measured in " (units::seconds(profile.elapsed_s))
            " by membound " (profile.machine.membound_version)
            ", " (profile.machine.date)
            ". Hollow points were disturbed; an interval is the 95 % interval of the median."
        }
    }
}
