//! `membound rewrite`: shows what can be patched in a binary, or runs a program with every access patched.

pub(crate) mod args;
mod check;
mod checked;
mod names;
mod plan;
mod settings;

use std::process::ExitCode;

use args::RewriteCommand;

use crate::output;

/// Runs the subcommand of `membound rewrite` that was given.
pub(crate) fn run(command: &RewriteCommand) -> anyhow::Result<ExitCode> {
    match command {
        RewriteCommand::Plan(args) => plan::run(args),
        RewriteCommand::Check(args) => check::run(args),
        RewriteCommand::GdbScript => {
            output::print(membound_launch::GDB_SCRIPT);
            Ok(ExitCode::SUCCESS)
        }
    }
}
