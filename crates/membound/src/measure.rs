//! `membound measure`: runs the measuring parts in turn, interprets the results, and writes files and text.

pub(crate) mod calibration;
mod check;
mod parts;
mod plan;
mod pools;
mod processors;
mod show;
mod switches;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context;
use clap::ValueEnum;
use membound_measure::prefetch::SwitchedOff;
use membound_measure::{Effort, Session};
use membound_platform::Root;
use membound_platform::affinity::Pinned;
use membound_types::{Basis, Figure, MachineProfile, Outcome, PrefetchState};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::{Format, MeasureArgs, Part};
use crate::machines::Store;
use crate::output::{self, Target, Usage};
use crate::progress::Bar;
use crate::version;

/// Runs `membound measure`.
pub(crate) fn run(args: &MeasureArgs) -> anyhow::Result<ExitCode> {
    let parts = parts_of(args);
    if let Some(complaint) = usage(args, &parts) {
        return Err(Usage(complaint).into());
    }
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let mut html = args.html.as_deref().map(Target::page).transpose()?;
    let (args, left_out) = pools::check(&Root::system(), args)?;
    for why in &left_out {
        output::complain(why);
    }
    if args.cpu.len() > 1 {
        return processors::run(&args, &parts, &left_out, json, html);
    }
    let mut measured = measure(&args, &parts)?;
    pools::note(&left_out, &mut measured.profile);
    if let [_] = parts.as_slice()
        && let Some(error) = measured.failure.take()
    {
        return Err(error);
    }
    let profile = &measured.profile;
    let shown = show::stdout(profile, &parts, &args);
    let written = write_files(profile, &parts, &mut json, &mut html);
    if !json.as_ref().is_some_and(Target::is_stdout) {
        output::print(&shown?);
    }
    if let Some(store) = &measured.store {
        store.finish(profile);
    }
    written?;
    if measured.interrupted {
        output::complain("interrupted: what was measured is marked incomplete");
        return Ok(ExitCode::FAILURE);
    }
    match measured.failure {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Error: the user interrupted a measurement that another command needs.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted while the machine was measured")
    }
}

impl std::error::Error for Interrupted {}

/// Measures the machine profile that `membound profile` needs, and keeps it.
///
/// # Errors
/// If nothing can be measured, or the measurement was interrupted.
pub(crate) fn for_profiles(parts: &[Part]) -> anyhow::Result<MachineProfile> {
    let args = MeasureArgs {
        quick: true,
        parts: parts.to_vec(),
        ..MeasureArgs::default()
    };
    let measured = measure(&args, parts)?;
    if measured.interrupted {
        return Err(Interrupted.into());
    }
    if let Some(store) = &measured.store {
        store.finish(&measured.profile);
    }
    Ok(measured.profile)
}

/// Result of measuring some parts.
struct Measured {
    profile: MachineProfile,
    /// Error of the first part that failed.
    failure: Option<anyhow::Error>,
    interrupted: bool,
    store: Option<Store>,
}

fn measure(args: &MeasureArgs, parts: &[Part]) -> anyhow::Result<Measured> {
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
    let begun = Instant::now();
    let failure = measure_all(
        &session,
        &bar,
        args,
        parts,
        &prefetch,
        &mut profile,
        |profile| {
            profile.elapsed_s = begun.elapsed().as_secs_f64();
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

fn parts_of(args: &MeasureArgs) -> Vec<Part> {
    if args.parts.is_empty() {
        return Part::value_variants().to_vec();
    }
    let mut parts = args.parts.clone();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Usage errors that clap cannot detect: options for parts that are not measured, and formats of other parts.
fn usage(args: &MeasureArgs, parts: &[Part]) -> Option<String> {
    for (option, users) in args.used() {
        if !parts.iter().any(|part| users.contains(part)) {
            return Some(format!(
                "{option} means nothing to the parts that are measured"
            ));
        }
    }
    let only = |wanted: &[Part]| matches!(parts, [part] if wanted.contains(part));
    if args.cpu.len() > 1 && matches!(args.format, Some(Format::Csv | Format::LatMemRd)) {
        return Some("--format csv and lat_mem_rd show one CPU: name one with --cpu".to_owned());
    }
    match args.format {
        Some(Format::LatMemRd) if !only(&[Part::Latency]) => {
            Some("--format lat_mem_rd shows the part `latency` only".to_owned())
        }
        Some(Format::Csv) if !only(&[Part::Latency, Part::Mlp, Part::Window]) => {
            Some("--format csv shows one of the parts `latency`, `mlp` and `window`".to_owned())
        }
        _ => None,
    }
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
        let told = format!("portable, because {reason}");
        labels.entry("kernels".to_owned()).or_insert(told);
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

/// Both files are tried, so that a full disk under one does not cost the other.
fn write_files(
    profile: &MachineProfile,
    parts: &[Part],
    json: &mut Option<Target>,
    html: &mut Option<Target>,
) -> anyhow::Result<()> {
    let json = match json {
        Some(target) => show::json(profile, parts).and_then(|text| target.write(&text)),
        None => Ok(()),
    };
    let html = match html {
        Some(target) => target.write(&membound_report::page::render(profile)),
        None => Ok(()),
    };
    json.and(html)
}
