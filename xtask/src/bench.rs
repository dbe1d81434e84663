//! `cargo xtask bench`: membound against its targets, on a machine that does nothing else.
//!
//! No test asserts time; this does, on demand. Every bench prints a table against its
//! targets and keeps its raw results, with machine and date, under `bench/results/`. A
//! missed target is said in the table and does not change the exit code: the machine may
//! be to blame, and the raw results tell.

mod coverage;
mod gate;
mod harvest;
pub(crate) mod harvest_programs;
mod latency;
mod model;
mod plan;
mod profile;
mod quick;
mod repeat;
mod rewrite;
mod windows;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use clap::Subcommand;
use serde_json::Value;

pub(crate) use crate::results::Kept;
use crate::results::Store;
use crate::run::{cargo, note, program, root, say, stdout_of, succeed};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// The membound to measure, instead of a release build of this checkout.
    #[arg(long, global = true)]
    membound: Option<PathBuf>,
    /// Keep no result; without this the checkout must be a clean commit.
    #[arg(long, global = true)]
    dry: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// Share of the executed loads that can be patched, and decoded control flow against
    /// execution.
    Coverage(coverage::Args),
    /// False alarms of `compare --fail-on` and changes that it sees.
    Gate(gate::Args),
    /// What a harvest gives and costs, beside switches by hand and the kernel's scheduling.
    Harvest(harvest::Args),
    /// Latency against a plain C pointer chase, run in turn.
    Latency(latency::Args),
    /// Time of a fit of the hierarchy model, and how often its intervals hold the truth.
    Model(model::Args),
    /// Time of planning a module, cold and cached.
    Plan(plan::Args),
    /// What profiling costs programs, beside cachegrind, and the time of a large report.
    Profile(profile::Args),
    /// Agreement, wall time and points a second of repeated latency curves.
    Repeat(repeat::Args),
    /// What a patch costs an execution of its load.
    Rewrite(rewrite::Args),
    /// Wall time and memory of `measure --quick`.
    Quick(quick::Args),
    /// Reorder buffer and cache sizes against what is published and declared.
    Windows(windows::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let store = Store::open(args.dry)?;
    let membound = match &args.membound {
        Some(path) => std::path::absolute(path)?,
        None => build()?,
    };
    let kept = match &args.bench {
        Bench::Coverage(args) => coverage::run(&membound, args)?,
        Bench::Gate(args) => gate::run(&membound, args)?,
        Bench::Harvest(args) => harvest::run(&membound, args)?,
        Bench::Latency(args) => latency::run(&membound, args)?,
        Bench::Model(args) => model::run(&membound, args)?,
        Bench::Plan(args) => plan::run(&membound, args)?,
        Bench::Profile(args) => profile::run(&membound, args)?,
        Bench::Rewrite(args) => rewrite::run(&membound, args)?,
        Bench::Repeat(args) => repeat::run(&membound, args)?,
        Bench::Quick(args) => quick::run(&membound, args)?,
        Bench::Windows(args) => windows::run(&membound, args)?,
    };
    store.keep(&kept)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the command and says where it is.
pub(crate) fn build() -> Result<PathBuf> {
    succeed(&mut cargo(["build", "--release", "--package", "membound"]))?;
    let metadata = stdout_of(&mut cargo([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(Path::new(target).join("release/membound"))
}

/// `membound measure PARTS… --json -`, ready to run.
fn measure(membound: &Path, words: &[&str]) -> Command {
    let mut command = program(membound);
    command.arg("measure").args(words).args(["--json", "-"]);
    command
}

/// Measures the machine quickly, as far as profiles and plans need it, into the file `path`.
pub(crate) fn machine_profile(membound: &Path, path: &Path) -> Result<()> {
    let mut command = program(membound);
    command.args(["measure", "latency", "bandwidth", "calibration", "--quick"]);
    stdout_of(command.arg("--json").arg(path)).map(drop)
}

/// Runs `command` and reads the document that it writes to stdout.
pub(crate) fn document<T: serde::de::DeserializeOwned>(command: &mut Command) -> Result<T> {
    let text = stdout_of(command)?;
    serde_json::from_str(&text)
        .with_context(|| format!("`{}` wrote another document", crate::run::shown(command)))
}

/// The middle of `values`; `None` when there are none.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// `met` or `missed`, for a table.
const fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// A size in the largest binary unit that divides it.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    units
        .into_iter()
        .find(|(shift, _)| bytes.trailing_zeros() >= *shift && bytes > 0)
        .map_or_else(
            || format!("{bytes} B"),
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(48 << 10), "48 KiB");
        assert_eq!(size(1000), "1000 B");
    }
}
