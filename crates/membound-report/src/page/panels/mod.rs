//! Panels of a machine profile's page, one for each part of `measure`.
//!
//! A panel begins with a sentence that explains how to read it. The panel of a part that was not measured
//! keeps its place and shows the reason and the remedy.

mod bandwidth;
mod calibration;
mod latency;
mod mlp;
pub(super) mod model;
mod notes;
mod strides;
mod tlb;
mod topology;
mod window;

use maud::{Markup, html};
use membound_types::{Disturbance, Level, MachineProfile, NotMeasured, Outcome};

use super::svg::{Axis, Mark, MarkKind, Scale};
use crate::{facts, units};

/// A section of the page.
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// True if its part was not measured.
    pub(super) missing: bool,
    reading: &'static str,
    body: Markup,
}

impl Panel {
    pub(super) fn markup(&self) -> Markup {
        html! {
            section class=(if self.missing { "card gone" } else { "card" }) id=(self.id) {
                h2 { (self.title) }
                @if !self.missing { p.reading { (self.reading) } }
                (self.body)
            }
        }
    }
}

/// All panels, in the order of the page.
pub(super) fn all(profile: &MachineProfile) -> Vec<Panel> {
    let levels = profile.levels.as_slice();
    let mut panels = vec![
        panel(
            "latency",
            "Latency",
            "Each plateau is a level of the hierarchy: a dependent chase over a buffer of the size on the x axis, so that every load waits for the one before.",
            &profile.latency,
            |part| latency::body(part, levels),
        ),
        panel(
            "strides",
            "Strides",
            "A stride below the line size finds several elements in each line; a larger one shows where the prefetchers stop helping.",
            &profile.latency,
            strides::body,
        ),
        panel(
            "mlp",
            "Memory-level parallelism",
            "How many misses the core serves at once, and how far it looks ahead: N−1 loads, K fillers, one more load between two fences; all cold misses unless said otherwise.",
            &profile.mlp,
            |part| mlp::body(part, levels),
        ),
        panel(
            "window",
            "Random windows",
            "Aligned windows at random places in an area; the curves step up where the area outgrows a level, and small windows pay most for it.",
            &profile.window,
            |part| window::body(part, levels),
        ),
        panel(
            "model",
            "Hierarchy model",
            model::READING,
            &profile.model,
            model::body,
        ),
        panel(
            "bandwidth",
            "Bandwidth",
            "Bytes a second that a program gets from each level, by what it does with them and by how many threads.",
            &profile.bandwidth,
            bandwidth::body,
        ),
        panel(
            "loaded",
            "Latency under load",
            "A chase in main memory while other threads move data: flat is good, the steep end is where the memory is saturated.",
            &profile.loaded,
            bandwidth::loaded,
        ),
        panel(
            "tlb",
            "Address translation",
            "What it costs to find the page: one line on each of so many pages, against the same lines packed together; a step is a level of the TLB used up.",
            &profile.tlb,
            tlb::body,
        ),
        panel(
            "prefetch",
            "Prefetchers",
            "Time of a pattern divided by that of random loads over the same footprint: a short bar was fetched ahead by the hardware.",
            &profile.prefetch,
            tlb::prefetch,
        ),
        panel(
            "numa",
            "Nodes",
            "CPUs of one node against the memory of another: dark is far.",
            &profile.numa,
            topology::numa,
        ),
        panel(
            "c2c",
            "Core to core",
            "How long a line takes from one CPU to another, one way: dark is far.",
            &profile.c2c,
            topology::c2c,
        ),
        panel(
            "calibration",
            "Latency sampler",
            "What the patch that times loads in programs shows of loads from each level: shares of levels are found by fitting a program's latencies with these.",
            &profile.calibration,
            calibration::body,
        ),
        notes::disturbances(profile),
        notes::gaps(profile),
    ];
    let asked = |why: Option<&NotMeasured>| why.is_none_or(|why| !why.is_not_asked());
    let model_asked = asked(profile.model.why_missing());
    let calibration_asked = asked(profile.calibration.why_missing());
    panels.retain(|panel| match panel.id {
        "model" => model_asked,
        "calibration" => calibration_asked,
        _ => true,
    });
    panels
}

fn panel<T>(
    id: &'static str,
    title: &'static str,
    reading: &'static str,
    outcome: &Outcome<T>,
    body: impl FnOnce(&T) -> Markup,
) -> Panel {
    let (body, missing) = match outcome {
        Outcome::Known(part) => (body(part), false),
        Outcome::Missing { not_measured } => (missing(not_measured), true),
    };
    Panel {
        id,
        title,
        missing,
        reading,
        body,
    }
}

fn missing(why: &NotMeasured) -> Markup {
    html! { p.missing { (facts::missing_text(why)) } }
}

/// Text of a figure, or the reason why it is missing.
fn figure_text(outcome: &Outcome<f64>, with_unit: fn(f64) -> String) -> String {
    match outcome {
        Outcome::Known(value) => with_unit(*value),
        Outcome::Missing { not_measured } => facts::missing_text(not_measured),
    }
}

/// Number of combinations that a part could not measure, with a link to their list.
fn skipped(texts: &[String]) -> Markup {
    html! {
        @if !texts.is_empty() {
            p.note {
                (units::plural(texts.len(), "combination")) " could not be had: "
                a href="#gaps" { "what and why" } "."
            }
        }
    }
}

/// Tooltip of a point: `48 KiB: 1.2 ns [1.1, 1.3]`, and the cause of a perturbation.
fn tip(
    place: &str,
    value: &str,
    interval: Option<(f64, f64)>,
    disturbance: &Disturbance,
    with_unit: fn(f64) -> String,
) -> String {
    let mut text = format!("{place}: {value}");
    if let Some((low, high)) = interval {
        text.push(' ');
        text.push_str(&units::interval(low, high));
    }
    if let Some(reason) = facts::reason(disturbance, with_unit) {
        text.push_str("; disturbed: ");
        text.push_str(&reason);
    }
    text
}

fn size_axis(title: &str) -> Axis {
    Axis {
        title: title.to_owned(),
        scale: Scale::Log2,
        format: size_text,
    }
}

fn number_axis(title: &str, scale: Scale) -> Axis {
    Axis {
        title: title.to_owned(),
        scale,
        format: units::compact,
    }
}

fn size_text(value: f64) -> String {
    units::bytes(value.max(0.0).round() as u64)
}

/// Levels as marks on an axis of sizes; with `declared`, also their declared sizes.
fn level_marks(levels: &[Level], declared: bool) -> Vec<Mark> {
    let mut marks: Vec<Mark> = levels
        .iter()
        .filter_map(|level| {
            let size = level.size_bytes?;
            Some(Mark {
                kind: MarkKind::Found,
                x: size as f64,
                interval: level
                    .size_low_bytes
                    .zip(level.size_high_bytes)
                    .map(|(low, high)| (low as f64, high as f64)),
                name: level.name.clone(),
                detail: units::bytes(size),
            })
        })
        .collect();
    if declared {
        marks.extend(levels.iter().filter_map(|level| {
            let size = level.declared_bytes?;
            Some(Mark {
                kind: MarkKind::Declared,
                x: size as f64,
                interval: None,
                name: String::new(),
                detail: format!("{} declared {}", level.name, units::bytes(size)),
            })
        }));
    }
    marks
}
