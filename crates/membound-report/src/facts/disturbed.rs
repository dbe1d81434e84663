//! Perturbed points of a machine profile: cause, and points with two modes.

use membound_types::{Disturbance, Kind, MachineProfile, Samples};

use super::titles::{mix_title, prefetch_pattern_title};
use crate::units;

/// A perturbed point.
#[derive(Clone, Debug)]
pub(crate) struct Disturbed {
    /// Part of `measure` that contains the point.
    pub(crate) part: Kind,
    /// Description of the point for the reader.
    pub(crate) point: String,
    /// Cause of the perturbation.
    pub(crate) disturbance: Disturbance,
    /// The point's figure and the slower mode's, both formatted with their unit; `None` without two modes.
    pub(crate) modes: Option<(String, String)>,
}

/// All perturbed points, in the order of the parts.
pub(crate) fn disturbed_points(profile: &MachineProfile) -> Vec<Disturbed> {
    let mut found = Vec::new();
    if let Some(latency) = profile.latency.known() {
        for p in &latency.points {
            let point = || {
                format!(
                    "{}, {} {} on {} pages, stride {}{}",
                    units::bytes(p.size_bytes),
                    p.access,
                    p.pattern,
                    p.page,
                    units::bytes(p.stride_bytes),
                    if p.threads > 1 {
                        format!(", {} copies", p.threads)
                    } else {
                        String::new()
                    }
                )
            };
            push(
                &mut found,
                Kind::Latency,
                &p.batches,
                p.ns,
                point,
                units::ns,
            );
        }
    }
    for mlp in profile
        .mlp
        .known()
        .into_iter()
        .flat_map(|m| std::iter::once(m).chain(&m.others))
    {
        for p in &mlp.throughput {
            push(
                &mut found,
                Kind::Mlp,
                &p.batches,
                p.cycles_per_load,
                || format!("{} chains on {} pages", p.chains, mlp.page),
                units::cycles,
            );
        }
    }
    if let Some(window) = profile.window.known() {
        for p in &window.points {
            let point = || {
                format!(
                    "{} windows in {}, {}",
                    units::bytes(p.window_bytes),
                    units::bytes(p.area_bytes),
                    p.kernel
                )
            };
            push(
                &mut found,
                Kind::Window,
                &p.batches,
                p.seconds_per_window,
                point,
                units::seconds,
            );
        }
    }
    if let Some(bandwidth) = profile.bandwidth.known() {
        for p in &bandwidth.points {
            let point = || {
                format!(
                    "{} of {}, {}",
                    p.kernel,
                    units::bytes(p.size_bytes),
                    units::plural(p.threads as usize, "thread")
                )
            };
            push(
                &mut found,
                Kind::Bandwidth,
                &p.batches,
                p.gb_s,
                point,
                units::gb_s,
            );
        }
    }
    if let Some(loaded) = profile.loaded.known() {
        for p in &loaded.points {
            let point = || format!("{} at {}", mix_title(p.mix), units::gb_s(p.gb_s));
            push(&mut found, Kind::Loaded, &p.batches, p.ns, point, units::ns);
        }
    }
    if let Some(tlb) = profile.tlb.known() {
        for p in &tlb.points {
            let point = || format!("{} pages of kind {}", units::count(p.pages), p.page);
            push(&mut found, Kind::Tlb, &p.batches, p.ns, point, units::ns);
        }
    }
    if let Some(prefetch) = profile.prefetch.known() {
        for p in &prefetch.points {
            let point = || prefetch_pattern_title(p.pattern);
            push(
                &mut found,
                Kind::Prefetch,
                &p.batches,
                p.ns,
                point,
                units::ns,
            );
        }
    }
    if let Some(c2c) = profile.c2c.known() {
        for p in &c2c.pairs {
            let point = || format!("CPU {} to CPU {}", p.from, p.to);
            push(
                &mut found,
                Kind::C2c,
                &p.batches,
                p.one_way_ns,
                point,
                units::ns,
            );
        }
    }
    found
}

fn push(
    found: &mut Vec<Disturbed>,
    part: Kind,
    samples: &Samples,
    figure: f64,
    point: impl FnOnce() -> String,
    with_unit: fn(f64) -> String,
) {
    if !samples.disturbed.any() {
        return;
    }
    found.push(Disturbed {
        part,
        point: point(),
        disturbance: samples.disturbed,
        modes: samples
            .disturbed
            .slow_mode
            .map(|slow| (with_unit(figure), with_unit(slow))),
    });
}

/// Cause of a point's perturbation in one phrase; `None` if it was not perturbed. `with_unit` formats the
/// slower mode in the unit of the point's figure.
pub(crate) fn reason(disturbance: &Disturbance, with_unit: fn(f64) -> String) -> Option<String> {
    if !disturbance.any() {
        return None;
    }
    let mut words = Vec::new();
    if let Some(slow) = disturbance.slow_mode {
        words.push(match disturbance.slow_share {
            Some(share) => format!(
                "two modes: {} of the samples near {}",
                units::percent(share),
                with_unit(slow)
            ),
            None => format!("two modes: the slower near {}", with_unit(slow)),
        });
    }
    if disturbance.steal_ms > 0.0 {
        words.push(format!("{} ms stolen", units::number(disturbance.steal_ms)));
    }
    for (number, noun) in [
        (disturbance.migrations, "migration"),
        (disturbance.involuntary_switches, "involuntary switch"),
        (disturbance.clock_changes, "clock change"),
    ] {
        if number > 0 {
            words.push(if noun == "involuntary switch" && number > 1 {
                format!("{number} involuntary switches")
            } else {
                units::plural(number as usize, noun)
            });
        }
    }
    if disturbance.kept_batches > 0 {
        let kept = units::plural(disturbance.kept_batches as usize, "disturbed sample");
        words.push(format!("{kept} kept"));
    }
    if disturbance.repeated_batches > 0 {
        let noun = if disturbance.repeated_batches == 1 {
            "batch"
        } else {
            "batches"
        };
        words.push(format!("{} {noun} repeated", disturbance.repeated_batches));
    }
    Some(words.join(", "))
}

/// Points whose samples form two groups: slow phases, given by name.
pub(crate) fn two_modes(found: &[Disturbed]) -> impl Iterator<Item = &Disturbed> {
    found.iter().filter(|point| point.modes.is_some())
}
