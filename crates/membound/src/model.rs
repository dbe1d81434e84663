//! `membound model`: fits a model to values from files, and shows its tables or its predictions.

pub(crate) mod args;
mod data;
mod fit;
mod predict;
mod show;

use std::process::ExitCode;

use args::ModelCommand;

/// Runs the subcommand of `membound model` that was given.
pub(crate) fn run(command: &ModelCommand) -> anyhow::Result<ExitCode> {
    match command {
        ModelCommand::Fit(args) => fit::run(args),
        ModelCommand::Show(args) => show::run(args),
        ModelCommand::Predict(args) => predict::run(args),
    }
}
