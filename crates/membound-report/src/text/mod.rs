//! Text for a terminal: every part of `measure`, and the whole profile.
//!
//! A reader should understand a report in ten seconds: the answer comes first, tables are thinned to fit a
//! screen, and no line is wider than [`Style::width`]. The caller decides whether to colour. Text from the
//! machine (host names, labels) is stripped of control characters.

mod bandwidth;
mod bar;
mod braille;
mod calibration;
mod clean;
mod compare;
mod detail;
mod harvest;
mod harvest_batch;
mod harvest_explore;
mod harvest_run;
mod latency;
mod listing;
mod machine;
mod mlp;
mod model;
mod out;
mod plane;
mod plot;
mod prediction;
mod profile;
mod rewrite;
mod run_comparison;
mod sequence;
mod style;
mod table;
mod tlb;
mod topology;
mod window;

use membound_types::{
    Bandwidth, Calibration, CoreToCore, Document, Latency, Level, Loaded, MachineInfo,
    MachineProfile, Mlp, Model, ModelLevel, Numa, Parameter, Prediction, Prefetch, Tlb, Topology,
    Window,
};

use detail::Detail;
use out::Out;

pub use compare::{Shown, comparison};
pub use harvest::harvest_plan;
pub use harvest_batch::harvest_batch;
pub use harvest_explore::harvest_explore;
pub use harvest_run::harvest_run;
pub use listing::listing;
pub use profile::profile;
pub use rewrite::{rewrite_check, rewrite_plan};
pub use run_comparison::run_comparison;
pub use style::Style;

/// Formats a whole machine profile: the machine, the levels, the headline figures, each part in brief, then
/// missing and perturbed data.
#[must_use]
pub fn machine(profile: &MachineProfile, style: Style) -> String {
    let mut out = Out::new(style);
    machine::write(&mut out, profile);
    out.finish()
}

/// Formats the part `latency`; `levels` are the levels found from it, possibly none.
#[must_use]
pub fn latency(document: &Document<Latency>, levels: &[Level], style: Style) -> String {
    part(document, style, |out, machine, part| {
        if !levels.is_empty() {
            machine::write_levels(out, levels, None);
            out.blank();
        }
        latency::write(out, part, machine, levels, Detail::Full);
    })
}

/// Formats the part `mlp`.
#[must_use]
pub fn mlp(document: &Document<Mlp>, style: Style) -> String {
    part(document, style, |out, machine, part| {
        mlp::write(out, part, machine, Detail::Full);
    })
}

/// Formats the part `window`.
#[must_use]
pub fn window(document: &Document<Window>, style: Style) -> String {
    part(document, style, |out, _, part| {
        window::write(out, part, Detail::Full);
    })
}

/// Formats the part `bandwidth`.
#[must_use]
pub fn bandwidth(document: &Document<Bandwidth>, style: Style) -> String {
    part(document, style, |out, _, part| {
        bandwidth::write(out, part, Detail::Full);
    })
}

/// Formats the part `loaded`.
#[must_use]
pub fn loaded(document: &Document<Loaded>, style: Style) -> String {
    part(document, style, |out, _, part| {
        bandwidth::write_loaded(out, part, Detail::Full);
    })
}

/// Formats the part `tlb`.
#[must_use]
pub fn tlb(document: &Document<Tlb>, style: Style) -> String {
    part(document, style, |out, _, part| {
        tlb::write(out, part, Detail::Full);
    })
}

/// Formats the part `prefetch`.
#[must_use]
pub fn prefetch(document: &Document<Prefetch>, style: Style) -> String {
    part(document, style, |out, _, part| {
        tlb::write_prefetch(out, part, Detail::Full);
    })
}

/// Formats the part `numa`.
#[must_use]
pub fn numa(document: &Document<Numa>, style: Style) -> String {
    part(document, style, |out, _, part| {
        topology::write_numa(out, part, Detail::Full);
    })
}

/// Formats the part `c2c`.
#[must_use]
pub fn c2c(document: &Document<CoreToCore>, style: Style) -> String {
    part(document, style, |out, _, part| {
        topology::write_c2c(out, part, Detail::Full);
    })
}

/// Formats the part `calibration`.
#[must_use]
pub fn calibration(document: &Document<Calibration>, style: Style) -> String {
    part(document, style, |out, _, part| {
        calibration::write(out, part, Detail::Full);
    })
}

/// Formats `model show`: a topology under `title` with its known values (the paper's Table 1), and the rate
/// that each level can reach (its Table 2).
///
/// Without `parameters`, shows the components of the topology and where values come from.
#[must_use]
pub fn model_show(
    title: &str,
    topology: &Topology,
    parameters: &[Parameter],
    levels: &[ModelLevel],
    style: Style,
) -> String {
    let mut out = Out::new(style);
    model::write_show(&mut out, title, topology, parameters, levels);
    out.finish()
}

/// Formats `model fit`: source and method, quality of the fit, parameters and levels, and the points with
/// the largest deviations.
#[must_use]
pub fn model(model: &Model, style: Style) -> String {
    let mut out = Out::new(style);
    model::write(&mut out, model);
    out.finish()
}

/// Formats `model predict`: each point with its interval and the levels that serve it.
#[must_use]
pub fn prediction(prediction: &Prediction, style: Style) -> String {
    let mut out = Out::new(style);
    prediction::write(&mut out, prediction);
    out.finish()
}

fn part<P>(
    document: &Document<P>,
    style: Style,
    body: impl FnOnce(&mut Out, &MachineInfo, &P),
) -> String {
    let mut out = Out::new(style);
    machine::write_machine(&mut out, &document.machine);
    if document.incomplete {
        machine::write_incomplete(&mut out);
    }
    out.blank();
    body(&mut out, &document.machine, &document.part);
    out.finish()
}
