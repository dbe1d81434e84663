//! `membound harvest`: runs scavengers in the time that a program waits for memory.

pub(crate) mod args;
mod cast;
mod choices;
mod copies;
mod document;
mod ended;
mod follow;
mod harvest_batch;
mod harvest_explore;
mod harvest_run;
mod harvest_stop;
mod idle_processors;
mod in_place;
mod learning;
mod off_switch;
mod option_values;
mod ordinary;
mod planning;
mod plans;
mod programs;
mod requests;
mod roles;
mod running;
mod sibling_binding;
mod slots;
mod stage;
mod timing;

use std::process::ExitCode;

use anyhow::ensure;
use args::HarvestCommand;
use membound_types::BatchHarvest;

use crate::output::Usage;

/// Runs the subcommand of `membound harvest` that was given.
pub(crate) fn run(command: &HarvestCommand) -> anyhow::Result<ExitCode> {
    match command {
        HarvestCommand::Plan(args) => planning::run(args),
        HarvestCommand::Run(args) => {
            check_agent()?;
            harvest_run::run(args)
        }
        HarvestCommand::Batch(args) => {
            if args.harvest == BatchHarvest::On {
                // Exit codes of `batch` other than the usage code count failed jobs, so this error takes the
                // usage code.
                check_agent().map_err(|error| Usage(error.to_string()))?;
            }
            harvest_batch::run(args)
        }
        HarvestCommand::Stop(args) => harvest_stop::run(args),
        HarvestCommand::Explore(args) => {
            check_agent()?;
            harvest_explore::run(args)
        }
    }
}

/// Fails where this build of membound has no agent; called before anything is profiled or started.
fn check_agent() -> anyhow::Result<()> {
    ensure!(
        !membound_launch::AGENT.is_empty(),
        "nothing can be harvested here: {}",
        membound_launch::Unpatched::NoAgent
    );
    Ok(())
}
