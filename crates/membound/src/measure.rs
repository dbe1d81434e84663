//! `membound measure`: runs the measuring parts in turn, interprets the results, and writes files and text.

pub(crate) mod calibration;
mod check;
mod one_cpu;
mod parts;
mod plan;
mod pools;
mod processors;
mod show;
mod switches;

use std::process::ExitCode;

use clap::ValueEnum;
use membound_platform::Root;
use membound_types::MachineProfile;

pub(crate) use self::one_cpu::interruptible;
use self::one_cpu::measure;
use crate::args::{Format, MeasureArgs, Part};
use crate::output::{self, Target, Usage};

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
