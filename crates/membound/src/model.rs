//! `membound model`: values from files in; a fitted model, its tables or its predictions
//! out.

pub(crate) mod args;
mod data;
mod fit;
mod predict;
mod show;

use std::process::ExitCode;

use args::ModelCommand;

/// Runs what was asked for.
pub(crate) fn run(command: &ModelCommand) -> anyhow::Result<ExitCode> {
    match command {
        ModelCommand::Fit(args) => fit::run(args),
        ModelCommand::Show(args) => show::run(args),
        ModelCommand::Predict(args) => predict::run(args),
    }
}
