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
use membound_types::{MachineInfo, MachineProfile};
use serde_json::{Value, json};

use crate::run::{cargo, note, program, root, say, stdout_of, succeed};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// The membound to measure, instead of a release build of this checkout.
    #[arg(long, global = true)]
    membound: Option<PathBuf>,
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
    let path = keep(&kept)?;
    say(format_args!("raw results: {}", path.display()));
    Ok(ExitCode::SUCCESS)
}

/// What a bench found.
pub(crate) struct Kept {
    /// The bench's name.
    pub(crate) bench: &'static str,
    /// The machine, from the first document of membound.
    pub(crate) machine: MachineInfo,
    /// The rows of the table.
    pub(crate) summary: Value,
    /// Everything they were computed from.
    pub(crate) raw: Value,
}

impl Kept {
    /// What runs of everything found: one profile a run.
    fn of_profiles(
        bench: &'static str,
        summary: Vec<Value>,
        raw: &[MachineProfile],
    ) -> Result<Self> {
        Ok(Self {
            bench,
            machine: raw.first().context("no run was asked for")?.machine.clone(),
            summary: summary.into(),
            raw: json!(raw),
        })
    }
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

/// Writes the results to `bench/results/DATE-CPU-BENCH.json`.
pub(crate) fn keep(kept: &Kept) -> Result<PathBuf> {
    let directory = root().join("bench/results");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join(format!(
        "{}-{}-{}.json",
        slug(&kept.machine.date),
        slug(&kept.machine.cpu.model_name),
        kept.bench
    ));
    let mut machine = kept.machine.clone();
    // Whose machine it was is nobody's business.
    machine.host = String::new();
    let commit = stdout_of(program("git").args(["describe", "--always", "--dirty"])).ok();
    let text = json!({
        "bench": kept.bench,
        "commit": commit.as_deref().map(str::trim),
        "machine": machine,
        "summary": kept.summary,
        "raw": kept.raw,
    })
    .to_string();
    let home = std::env::var("HOME").unwrap_or_default();
    let text = without_paths(&text, &root().to_string_lossy(), &home);
    std::fs::write(&path, text + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// `text` with paths relative to the checkout, and to the home directory as `~`.
fn without_paths(text: &str, checkout: &str, home: &str) -> String {
    let text = text.replace(&format!("{checkout}/"), "");
    match home {
        "" | "/" => text,
        home => text.replace(&format!("{home}/"), "~/"),
    }
}

/// `text` as a part of a file's name: lower-case letters and digits, single hyphens.
fn slug(text: &str) -> String {
    text.split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect::<Vec<_>>()
        .join("-")
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
    fn kept_results_name_no_directory_of_the_machine() {
        let text = "a /src/checkout/x/y, b /home/me/.cache/z, c ./w";
        let kept = without_paths(text, "/src/checkout", "/home/me");
        assert_eq!(kept, "a x/y, b ~/.cache/z, c ./w");
        assert_eq!(without_paths("/a", "/src", "/"), "/a");
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn names_of_results_are_plain() {
        assert_eq!(slug("AMD EPYC 9B45 (Turin)"), "amd-epyc-9b45-turin");
        assert_eq!(slug("2026-01-02T03:04:05Z"), "2026-01-02t03-04-05z");
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size(1 << 30), "1 GiB");
        assert_eq!(size(48 << 10), "48 KiB");
        assert_eq!(size(1000), "1000 B");
    }
}
