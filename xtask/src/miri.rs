//! `cargo xtask miri`: tests under Miri, which finds undefined behaviour, misaligned and out-of-bounds
//! accesses, and data races.
//!
//! Miri interprets the code and can make none of the agent's system calls, which are in assembly. So it
//! runs the tests of the protocol, of the lock-free protocols, and of those parts of the agent that only
//! compute.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::run::{program, root, stdout_of, succeed};

/// Arguments of `miri`.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Toolchain with the component: stable ones have none.
const TOOLCHAIN: &str = "nightly";

/// Tests of the agent without assembly and without many thousands of steps, by the beginnings of their names.
const PURE: [&str; 22] = [
    "areas::tests::",
    "countdown::tests::a_mark",
    "countdown::tests::at_level_0",
    "handlers::vectors::tests::",
    "live::tests::stages",
    "locked::tests::files_of_the_agent",
    "memory::tests::",
    "sample::tests::",
    "scheduler::idle_time::tests::",
    "scheduler::pace::tests::",
    "scheduler::ring::tests::the_next_slice",
    "scheduler::wait::tests::only_waits",
    "signal_frame::tests::",
    "single_thread::tests::",
    "stack::tests::the_mapping",
    "text::tests::",
    "threads::tests::an_exit_code",
    "threads::tests::masks",
    "threads::tests::the_",
    "unwind::tests::",
    "walked::tests::",
    "wrap::zones::tests::every_zone",
];

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let is_there = miri(&["--version"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        bail!(
            "the toolchain {TOOLCHAIN} has no Miri; install it: `rustup toolchain install \
             {TOOLCHAIN} --profile minimal --component miri,rust-src`"
        );
    }
    succeed(&mut miri(&[
        "test",
        "--package=membound-sync",
        "--package=membound-wire",
        "--lib",
    ]))?;
    run_agent_tests()?;
    Ok(ExitCode::SUCCESS)
}

fn run_agent_tests() -> Result<()> {
    const TEST: [&str; 4] = ["test", "--package=membound-agent", "--lib", "--"];
    let all = stdout_of(miri(&TEST).arg("--list"))?;
    let unknown: Vec<&str> = PURE
        .into_iter()
        .filter(|beginning| !all.lines().any(|test| test.starts_with(beginning)))
        .collect();
    if !unknown.is_empty() {
        bail!("the agent has no tests {}", unknown.join(", "));
    }
    // The agent has addresses of the program's memory as numbers: it makes pointers of them, and memory that
    // only they lead to looks leaked.
    let mut command = miri(&TEST);
    command.env(
        "MIRIFLAGS",
        "-Zmiri-permissive-provenance -Zmiri-ignore-leaks",
    );
    succeed(command.args(PURE))
}

fn miri(args: &[&str]) -> std::process::Command {
    let mut command = program("rustup");
    command
        .args(["run", TOOLCHAIN, "cargo", "miri"])
        .args(args)
        .env("CARGO_TARGET_DIR", root().join("target/miri"))
        // The variables that this cargo has set name its own toolchain.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN");
    command
}
