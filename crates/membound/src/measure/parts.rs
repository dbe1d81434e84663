//! Runs one part: plans it, measures it, and puts the result into the profile.

use membound_measure::c2c::CoreToCoreConfig;
use membound_measure::prefetch::{self, PrefetchConfig, PrefetchControl, in_settings};
use membound_measure::{Session, bandwidth, c2c, latency, loaded, mlp, numa, tlb, window};
use membound_model::{CurvePoint, suggest_refinement};
use membound_types::{Latency, MachineProfile, Outcome, PrefetchState, Window};

use super::switches::{self, Switches};
use super::{calibration, plan};
use crate::args::{MeasureArgs, Part};

/// Measures `part` into `profile`.
pub(super) fn measure(
    session: &Session<'_>,
    args: &MeasureArgs,
    part: Part,
    everything: bool,
    state: &PrefetchState,
    profile: &mut MachineProfile,
) -> anyhow::Result<()> {
    match part {
        Part::Latency => {
            let measured = if args.prefetch_settings.is_empty() {
                let mut measured = latencies(session, args, everything)?;
                for point in &mut measured.points {
                    point.prefetch = state.clone();
                }
                measured
            } else {
                overlaid(session, args, everything, profile)?
            };
            profile.latency = Outcome::Known(measured);
            // Later parts choose their sizes from the levels.
            membound_model::interpret(profile);
        }
        Part::Mlp => {
            profile.mlp = Outcome::Known(mlp::measure(session, &plan::mlp(session, args))?);
        }
        Part::Window => profile.window = Outcome::Known(windows(session, args)?),
        Part::Bandwidth => {
            let config = plan::bandwidth(session, args, profile);
            profile.bandwidth = Outcome::Known(bandwidth::measure(session, &config)?);
        }
        Part::Loaded => {
            let config = plan::loaded(session, args, profile);
            profile.loaded = Outcome::Known(loaded::measure(session, &config)?);
        }
        Part::Tlb => {
            profile.tlb = Outcome::Known(tlb::measure(session, &plan::tlb(session, args))?);
        }
        Part::Numa => {
            profile.numa = Outcome::Known(numa::measure(session, &plan::numa(session, args))?);
        }
        Part::C2c => {
            let config = CoreToCoreConfig::new(session.effort);
            profile.c2c = Outcome::Known(c2c::measure(session, &config)?);
        }
        Part::Calibration => {
            profile.calibration = calibration::measure(session, args, profile)?;
        }
        Part::Prefetch => {
            let config = PrefetchConfig::new(session.effort, plan::page(session, args));
            let switches = Switches::detect(session, &profile.machine.cpu);
            let control = switches.as_ref().map(|it| it as &dyn PrefetchControl);
            let measured = prefetch::measure(session, &config, control.map_err(Clone::clone))?;
            profile.prefetch = Outcome::Known(measured);
        }
    }
    Ok(())
}

/// The latencies in every requested prefetch setting, as one part.
fn overlaid(
    session: &Session<'_>,
    args: &MeasureArgs,
    everything: bool,
    profile: &MachineProfile,
) -> anyhow::Result<Latency> {
    let switches = switches::required(session, &profile.machine.cpu)?;
    let settings = switches::settings(&switches, &args.prefetch_settings)?;
    let found = in_settings(session, Ok(&switches), &settings, |_, _| {
        latencies(session, args, everything)
    })?;
    let mut all = Latency {
        skipped: found.skipped,
        ..Latency::default()
    };
    for (setting, part) in found.measured {
        all.elapsed_s += part.elapsed_s;
        for text in part.skipped {
            if !all.skipped.contains(&text) {
                all.skipped.push(text);
            }
        }
        all.points.extend(part.points.into_iter().map(|mut point| {
            point.prefetch = setting.clone();
            point
        }));
    }
    Ok(all)
}

/// Measures all latency plans and merges the results.
fn latencies(
    session: &Session<'_>,
    args: &MeasureArgs,
    everything: bool,
) -> anyhow::Result<Latency> {
    let refine = |curve: &[(u64, f64, f64, f64)], at_most: usize| {
        let points: Vec<CurvePoint> = curve
            .iter()
            .map(|&(size_bytes, ns, ns_low, ns_high)| CurvePoint {
                size_bytes,
                ns,
                ns_low,
                ns_high,
            })
            .collect();
        suggest_refinement(&points, at_most)
    };
    let plans = plan::latency(session, args, everything);
    let (mut points, skipped, elapsed_s) = one_by_one(session, &plans, |plan| {
        let part = latency::measure(session, plan, &refine)?;
        Ok((part.points, part.skipped, part.elapsed_s))
    })?;
    latency::sort(&mut points);
    Ok(Latency {
        points,
        skipped,
        elapsed_s,
        ..Latency::default()
    })
}

/// Measures Seidl's windows on every requested page kind and node.
fn windows(session: &Session<'_>, args: &MeasureArgs) -> anyhow::Result<Window> {
    let plans = plan::windows(session, args);
    let (points, skipped, elapsed_s) = one_by_one(session, &plans, |plan| {
        let part = window::measure(session, plan)?;
        Ok((part.points, part.skipped, part.elapsed_s))
    })?;
    Ok(Window {
        points,
        skipped,
        elapsed_s,
    })
}

/// Points, reasons of skipped plans, and wall time in seconds.
type Measured<P> = (Vec<P>, Vec<String>, f64);

/// Measures plan by plan until cancelled. A plan that fails is skipped, with its reason; if no plan gave a
/// point, returns the first such error.
fn one_by_one<C, P>(
    session: &Session<'_>,
    plans: &[C],
    measure: impl Fn(&C) -> Result<Measured<P>, membound_measure::Error>,
) -> anyhow::Result<Measured<P>> {
    let (mut points, mut skipped, mut elapsed_s) = (Vec::new(), Vec::new(), 0.0);
    let mut first_error = None;
    for plan in plans {
        if session.cancelled() {
            break;
        }
        match measure(plan) {
            Ok(part) => {
                points.extend(part.0);
                skipped.extend(part.1);
                elapsed_s += part.2;
            }
            Err(error) => {
                skipped.push(error.to_string());
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if points.is_empty() => Err(error.into()),
        _ => Ok((points, skipped, elapsed_s)),
    }
}

/// Marks the part as missing in the profile, for this reason.
pub(super) fn note_missing(part: Part, reason: String, profile: &mut MachineProfile) {
    match part {
        Part::Latency => profile.latency = Outcome::missing(reason),
        Part::Mlp => profile.mlp = Outcome::missing(reason),
        Part::Window => profile.window = Outcome::missing(reason),
        Part::Bandwidth => profile.bandwidth = Outcome::missing(reason),
        Part::Loaded => profile.loaded = Outcome::missing(reason),
        Part::Tlb => profile.tlb = Outcome::missing(reason),
        Part::Prefetch => profile.prefetch = Outcome::missing(reason),
        Part::Numa => profile.numa = Outcome::missing(reason),
        Part::C2c => profile.c2c = Outcome::missing(reason),
        Part::Calibration => profile.calibration = Outcome::missing(reason),
    }
}
