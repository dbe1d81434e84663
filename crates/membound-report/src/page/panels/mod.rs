//! Panels of a machine profile's page, one for each part of `measure`.
//!
//! A panel begins with a sentence that explains how to read it. The panel of a part that was not measured
//! keeps its place and shows the reason and the remedy.

mod axes;
mod bandwidth;
mod calibration;
mod figure;
mod latency;
mod level_marks;
mod mlp;
pub(super) mod model;
mod notes;
mod panel;
mod strides;
mod tip;
mod tlb;
mod topology;
mod window;

use membound_types::{MachineProfile, NotMeasured};

use panel::{Panel, panel};

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
            "What it costs to find the page: one line on each of n pages, against the same lines packed together; a step is a level of the TLB used up.",
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
