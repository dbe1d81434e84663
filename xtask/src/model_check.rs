//! `cargo xtask model-check`: every order in which the steps of lock-free protocols can happen.
//!
//! The tests of `membound-sync` run under loom, which tries each interleaving of a scenario's threads and
//! each value that the memory model permits a load to return. The code is the one that the agent and the
//! launcher use; only its atomics are loom's.

use std::process::ExitCode;

use anyhow::Result;

use crate::run::{cargo, root, succeed};

/// Arguments of `model-check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the scenarios whose names contain this.
    scenario: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    check_scenarios(args.scenario.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Step of `cargo xtask ci`.
pub(crate) fn check() -> Result<()> {
    check_scenarios(None)
}

fn check_scenarios(name: Option<&str>) -> Result<()> {
    let mut command = cargo(["test", "--package=membound-sync", "--lib", "--locked"]);
    command
        // Unoptimised, loom takes ten times as long.
        .args(["--release", "--target-dir"])
        // The cfg would have cargo build everything else again.
        .arg(root().join("target/model"))
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", "--cfg=loom")
        .args(name);
    succeed(&mut command)
}
