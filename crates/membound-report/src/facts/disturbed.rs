//! Perturbed points of a machine profile: cause, and points with two modes.

use membound_types::{Disturbance, Kind, MachineProfile, Outcome, Samples};

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
    let mut found = Found(Vec::new());
    for p in points(&profile.latency, |part| &part.points) {
        let copies = if p.threads > 1 {
            format!(", {} copies", p.threads)
        } else {
            String::new()
        };
        let point = || {
            format!(
                "{}, {} {} on {} pages, stride {}{copies}",
                units::bytes(p.size_bytes),
                p.access,
                p.pattern,
                p.page,
                units::bytes(p.stride_bytes),
            )
        };
        found.push(Kind::Latency, &p.batches, p.ns, units::ns, point);
    }
    let mlp = profile.mlp.known().into_iter();
    for mlp in mlp.flat_map(|mlp| std::iter::once(mlp).chain(&mlp.others)) {
        for p in &mlp.throughput {
            let point = || format!("{} chains on {} pages", p.chains, mlp.page);
            found.push(
                Kind::Mlp,
                &p.batches,
                p.cycles_per_load,
                units::cycles,
                point,
            );
        }
    }
    for p in points(&profile.window, |part| &part.points) {
        let (window, area) = (units::bytes(p.window_bytes), units::bytes(p.area_bytes));
        let point = || format!("{window} windows in {area}, {}", p.kernel);
        let window_s = p.seconds_per_window;
        found.push(Kind::Window, &p.batches, window_s, units::seconds, point);
    }
    for p in points(&profile.bandwidth, |part| &part.points) {
        let threads = units::plural(p.threads as usize, "thread");
        let point = || format!("{} of {}, {threads}", p.kernel, units::bytes(p.size_bytes));
        found.push(Kind::Bandwidth, &p.batches, p.gb_s, units::gb_s, point);
    }
    for p in points(&profile.loaded, |part| &part.points) {
        let point = || format!("{} at {}", mix_title(p.mix), units::gb_s(p.gb_s));
        found.push(Kind::Loaded, &p.batches, p.ns, units::ns, point);
    }
    for p in points(&profile.tlb, |part| &part.points) {
        let point = || format!("{} pages of kind {}", units::count(p.pages), p.page);
        found.push(Kind::Tlb, &p.batches, p.ns, units::ns, point);
    }
    for p in points(&profile.prefetch, |part| &part.points) {
        let point = || prefetch_pattern_title(p.pattern);
        found.push(Kind::Prefetch, &p.batches, p.ns, units::ns, point);
    }
    for p in points(&profile.c2c, |part| &part.pairs) {
        let point = || format!("CPU {} to CPU {}", p.from, p.to);
        found.push(Kind::C2c, &p.batches, p.one_way_ns, units::ns, point);
    }
    found.0
}

/// The points of a part; none if it was not measured.
fn points<T, P>(part: &Outcome<T>, of: fn(&T) -> &Vec<P>) -> &[P] {
    part.known().map_or(&[], |part| of(part).as_slice())
}

struct Found(Vec<Disturbed>);

impl Found {
    /// Adds a point if `samples` were perturbed.
    fn push(
        &mut self,
        part: Kind,
        samples: &Samples,
        figure: f64,
        with_unit: fn(f64) -> String,
        point: impl FnOnce() -> String,
    ) {
        let disturbance = samples.disturbed;
        if disturbance.any() {
            self.0.push(Disturbed {
                part,
                point: point(),
                disturbance,
                modes: disturbance
                    .slow_mode
                    .map(|slow| (with_unit(figure), with_unit(slow))),
            });
        }
    }
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
