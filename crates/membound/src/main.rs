//! The `membound` command: turns arguments into documents and text.
//!
//! The libraries measure, interpret and show; this crate puts them together, writes files, and turns errors
//! into one line and an exit code.

mod args;
mod command_line;
mod compare;
mod completions;
mod doctor;
mod documents;
mod harvest;
mod import;
mod job;
mod lat_mem_rd;
mod launching;
mod machines;
mod manual;
mod measure;
mod model;
mod option_values;
mod output;
mod profile;
mod progress;
mod report;
mod restore;
mod rewrite;
mod tour;
mod version;

use std::process::ExitCode;

use clap::CommandFactory as _;
use command_line::{Cli, Command};

/// Allocator of the static binary: that of musl is slow.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match command_line::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return output::settled(code),
    };
    let done = match cli.command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Measure(args) => measure::run(&args),
        Command::LatMemRd(args) => lat_mem_rd::run(&args),
        Command::Model(command) => model::run(&command),
        Command::Compare(args) => compare::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Rewrite(command) => rewrite::run(&command),
        Command::Harvest(command) => harvest::run(&command),
        Command::Tour(args) => tour::run(&args),
        Command::Completions(args) => completions::run(&args, &Cli::command()),
        Command::Man(args) => manual::run(&args, Cli::command()),
        Command::Restore => Ok(restore::run()),
        Command::Chase(args) => measure::calibration::chase(&args),
        Command::HarvestHost { threads } => {
            membound_launch::host(threads);
            Ok(ExitCode::SUCCESS)
        }
        Command::RunObject { words } => membound_launch::run_object(words)
            .map(|never| match never {})
            .map_err(Into::into),
        Command::Contend { layout } => Ok(tour::contention::run(layout)),
    };
    output::settled(done.unwrap_or_else(|error| output::fail(&error)))
}
