//! `cargo xtask bench`: membound against its targets, on an otherwise idle machine.
//!
//! No test asserts time; benches do, on demand. Every bench prints a table against its targets and
//! keeps its raw results, with machine and date, under `bench/results/`. The table shows a missed
//! target, but the exit code does not: the machine may be the cause, which the raw results can
//! show. Only `accuracy`, whose probes detect such a machine, fails for a missed figure.

mod accuracy;
mod common;
mod coverage;
mod gate;
mod harvest;
pub(crate) mod harvest_programs;
mod import;
mod latency;
mod model;
mod plan;
mod profile;
mod quick;
mod repeat;
mod rewrite;
mod windows;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

pub(crate) use self::common::{build, document, machine_profile, verdict};
use crate::results::Store;

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
    /// Figures of profiles against what the programs know of themselves.
    Accuracy(accuracy::Args),
    /// Share of the executed loads that can be patched, and decoded control flow against
    /// execution.
    Coverage(coverage::Args),
    /// False alarms of `compare --fail-on` and changes that it sees.
    Gate(gate::Args),
    /// What a harvest gives and costs, beside switches by hand and the kernel's scheduling.
    Harvest(harvest::Args),
    /// Time and memory of importing a recording of perf's.
    Import(import::Args),
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
    if let Bench::Accuracy(args) = &args.bench
        && args.page
    {
        accuracy::write_page()?;
        return Ok(ExitCode::SUCCESS);
    }
    let store = Store::open(args.dry)?;
    let membound = match &args.membound {
        Some(path) => std::path::absolute(path)?,
        None => build()?,
    };
    let mut code = ExitCode::SUCCESS;
    let kept = match &args.bench {
        Bench::Accuracy(args) => {
            let (kept, judged) = accuracy::run(&membound, args)?;
            code = judged;
            kept
        }
        Bench::Coverage(args) => coverage::run(&membound, args)?,
        Bench::Gate(args) => gate::run(&membound, args)?,
        Bench::Harvest(args) => harvest::run(&membound, args)?,
        Bench::Import(args) => import::run(&membound, args)?,
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
    Ok(code)
}
