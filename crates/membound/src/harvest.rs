//! `membound harvest`: runs scavengers in the time that a program waits for memory.
//!
//! This is the command line of `membound-coschedule`: each file holds the arguments of a subcommand, and what it
//! shows and writes.

mod batch;
mod explore;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use membound_coschedule::planning::{self, PlanConfig};
use membound_coschedule::{Error, harvest_stop};
use membound_types::{DistanceRule, HarvestRole};

use crate::option_values::{bound, percent};
use crate::output::{self, Target};
use crate::profile::machine;
use batch::BatchArgs;
use explore::ExploreArgs;
use run::RunArgs;

/// What to do about stall time.
#[derive(Debug, Subcommand)]
pub(crate) enum HarvestCommand {
    /// Show where a profiled program would yield, what that gains, and why other loads would not yield.
    Plan(PlanArgs),
    /// Run a program, and other programs while it waits for memory.
    Run(Box<RunArgs>),
    /// Compare settings of a harvest with each other and with the kernel's scheduling, on your own program.
    Explore(Box<ExploreArgs>),
    /// Run a list of commands, several at a time. Commands that wait for memory share a CPU if that was measured to
    /// pay.
    Batch(Box<BatchArgs>),
    /// Switch off a running harvest: its command goes on without yields, and its scavengers wait.
    Stop(StopArgs),
}

/// Arguments of `harvest plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Run file from `membound profile`.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Role of the program: primary (its stall time is harvested), scavenger (it runs in the stall time of others)
    /// [default: primary].
    #[arg(long, value_name = "ROLE", default_value_t, hide_default_value = true)]
    role: HarvestRole,
    /// Machine profile with levels and latencies [default: the run's own].
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    max_overhead: f64,
    /// Longest time between two yields of a scavenger, in nanoseconds [default: 200].
    #[arg(long, value_name = "D", value_parser = bound)]
    bound_ns: Option<f64>,
    /// How the time between yields is estimated: max (the longest path), expected (the average over paths) [default:
    /// max].
    #[arg(long, value_name = "RULE")]
    distance: Option<DistanceRule>,
    /// Earlier plan; its decisions are kept where the figures allow both.
    #[arg(long, value_name = "FILE")]
    previous: Option<PathBuf>,
    /// Write the plan as JSON to FILE; without FILE or with `-`, to stdout instead of the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Arguments of `harvest stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// Process of the `membound harvest run`, or of its command [default: the only harvest that runs].
    #[arg(value_name = "PID")]
    pid: Option<u32>,
}

/// Runs the subcommand of `membound harvest` that was given.
pub(crate) fn run(command: &HarvestCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        HarvestCommand::Plan(args) => plan(args),
        HarvestCommand::Run(args) => run::run(args),
        HarvestCommand::Batch(args) => batch::run(args),
        HarvestCommand::Stop(args) => stop(args),
        HarvestCommand::Explore(args) => explore::run(args),
    };
    done.or_else(settled)
}

/// Plans a run and prints the plan.
fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let plan = planning::plan(&PlanConfig {
        run: args.run.clone(),
        role: args.role,
        machine: args.machine.as_deref().map(machine::read).transpose()?,
        max_overhead: args.max_overhead,
        bound_ns: args.bound_ns,
        distance: args.distance,
        previous: args.previous.clone(),
    })?;
    if !json.as_ref().is_some_and(Target::is_stdout) {
        output::print(&membound_report::text::harvest_plan(&plan, output::style()));
    }
    if let Some(target) = &mut json {
        target.write(&output::json(&plan)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn stop(args: &StopArgs) -> anyhow::Result<ExitCode> {
    let pid = harvest_stop::switch_off(args.pid)?;
    output::write_stderr(&format!("harvest {pid} is switched off\n"));
    Ok(ExitCode::SUCCESS)
}

/// Reports an error that has an exit code of its own.
fn settled(error: anyhow::Error) -> anyhow::Result<ExitCode> {
    let code = match error.downcast_ref::<Error>() {
        Some(Error::Usage(_)) => 2,
        Some(Error::CannotRun(refused)) => refused.code(),
        Some(Error::FailsAlone { code, .. }) => code.unwrap_or(1),
        Some(Error::Interrupted) => output::ENDED_BY_USER,
        _ => return Err(error),
    };
    output::complain(&output::one_line(&error));
    Ok(ExitCode::from(code))
}
