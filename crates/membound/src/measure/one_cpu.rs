//! Measures the parts in turn on one CPU, for `measure` and for commands that need a machine profile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context;
use membound_measure::prefetch::SwitchedOff;
use membound_measure::{Effort, Session};
use membound_model::compare::table::lacks_thp;
use membound_platform::Root;
use membound_platform::affinity::Pinned;
use membound_types::{Basis, Figure, MachineProfile, Outcome, PageKind, PrefetchState};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{check, parts, plan, switches};
use crate::args::{MeasureArgs, Part};
use crate::machines::Store;
use crate::output;
use crate::progress::Bar;
use crate::version;

/// Result of measuring some parts.
pub(super) struct Measured {
    pub(super) profile: MachineProfile,
    /// Error of the first part that failed.
    pub(super) failure: Option<anyhow::Error>,
    pub(super) interrupted: bool,
    pub(super) store: Option<Store>,
}

pub(super) fn measure(args: &MeasureArgs, parts: &[Part]) -> anyhow::Result<Measured> {
    let cancel = interruptible()?;
    let root = Root::system();
    let bar = Bar::new();
    let effort = effort(args);
    let session = Session::new(&root, args.cpu.first().copied(), effort, &cancel, &bar)?;
    let mut profile = empty_profile(&session, args);
    check::everything(&session, args, parts, &profile)?;
    let (prefetch, held) = switches::hold(&session, args, &profile.machine.cpu)?;
    // Only a run of several parts is kept as the machine profile for later commands.
    let store = (parts.len() > 1).then(|| Store::open(&profile.machine.host));
    let started = Instant::now();
    let failure = measure_all(
        &session,
        &bar,
        args,
        parts,
        &prefetch,
        &mut profile,
        |profile| {
            profile.elapsed_s = started.elapsed().as_secs_f64();
            if let Some(store) = &store {
                store.keep(profile);
            }
        },
    );
    if let Some(Err(not_measured)) = held.map(SwitchedOff::restore) {
        output::complain(&format!("prefetchers: {}", not_measured.reason));
    }
    bar.finish();
    profile.incomplete = failure.is_some() || session.cancelled();
    membound_model::interpret(&mut profile);
    profile.model = membound_model::hierarchy::fit_profile(&profile);
    finish(&mut profile, &session);
    Ok(Measured {
        profile,
        failure,
        interrupted: session.cancelled(),
        store,
    })
}

const fn effort(args: &MeasureArgs) -> Effort {
    match (args.quick, args.thorough) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Thorough,
        _ => Effort::Normal,
    }
}

/// A flag that SIGINT, SIGTERM and SIGHUP set; a second signal ends the process at once.
pub(crate) fn interruptible() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&cancel))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancel)))
            .context("cannot listen for signals")?;
    }
    Ok(cancel)
}

fn empty_profile(session: &Session<'_>, args: &MeasureArgs) -> MachineProfile {
    let mut labels: BTreeMap<String, String> = args.cond.iter().cloned().collect();
    if let Some(reason) = &session.portable_because {
        output::complain(&format!("portable kernels, which are less tight: {reason}"));
        let label = format!("portable, because {reason}");
        labels.entry("kernels".to_owned()).or_insert(label);
    }
    if lacks_thp(&labels) && plan::pages(session, args).contains(&PageKind::Thp) {
        output::complain(
            "--cond guest-thp=off only labels the run: thp pages are measured as well, since the \
             kernel gives them (--page 4k leaves them out)",
        );
    }
    let timer = session.clock.describe(session.core_hz);
    MachineProfile {
        incomplete: true,
        model: Outcome::missing("no windows and no latency curve"),
        line: Outcome::missing_with("no latency curves of several strides", "membound measure"),
        ..MachineProfile::unmeasured(version::machine(session.root, timer, labels))
    }
}

/// Runs the parts in turn, and calls `keep` with the profile so far after each. A part that fails is noted in
/// the profile, and the others are still measured; returns the first failure.
fn measure_all(
    session: &Session<'_>,
    bar: &Bar,
    args: &MeasureArgs,
    parts: &[Part],
    prefetch: &PrefetchState,
    profile: &mut MachineProfile,
    keep: impl Fn(&mut MachineProfile),
) -> Option<anyhow::Error> {
    let mut failure = None;
    for part in parts {
        parts::note_missing(
            *part,
            "interrupted before it was measured".to_owned(),
            profile,
        );
    }
    let weights: Vec<f64> = parts.iter().map(|part| plan::weight(*part)).collect();
    let total: f64 = weights.iter().sum();
    let mut before = 0.0;
    for (part, weight) in parts.iter().zip(weights) {
        if session.cancelled() {
            break;
        }
        bar.part(before / total, weight / total);
        before += weight;
        let everything = args.parts.is_empty();
        if let Err(error) = parts::measure(session, args, *part, everything, prefetch, profile) {
            parts::note_missing(*part, format!("{error:#}"), profile);
            failure.get_or_insert(error);
        }
        keep(profile);
    }
    failure
}

fn finish(profile: &mut MachineProfile, session: &Session<'_>) {
    // Pinned to the CPU that measured, since another kind of core may have another clock.
    let _pinned = Pinned::to(session.cpu);
    let now = session.core.measure(&session.clock, 20);
    let (low, high) = (now.min(session.core_hz), now.max(session.core_hz));
    profile.core_clock_hz = Some(Figure {
        value: f64::midpoint(low, high),
        low,
        high,
        basis: Basis::Measured,
    });
}
