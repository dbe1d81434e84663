//! `cargo xtask python`: tests the Python package with each supported Python, and executes its
//! notebook.
//!
//! Each Python gets an environment of its own under `target/python`, made by uv, which comes from
//! PyPI. The tests run the release build of the command on programs that measure themselves. One
//! more environment has the oldest libraries that the package declares. A Python that is not
//! available is reported: `skipped: reason`.

mod bench;
mod interpreters;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::run::{cargo, note, root, say, succeed};
pub(crate) use bench::Notebook;
use bench::{Bench, COMMAND, Libraries};

/// The Pythons that the package is tested with.
const VERSIONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];

/// Arguments of `python`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this Python, as in 3.12. May be repeated.
    #[arg(long, value_name = "X.Y")]
    only: Vec<String>,
    /// Do not execute the notebook.
    #[arg(long)]
    no_notebook: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bench = Bench::new(command()?)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut newest: Option<PathBuf> = None;
    for version in VERSIONS {
        if !args.only.is_empty() && args.only.iter().all(|only| only != version) {
            continue;
        }
        match interpreters::find(version, &bench.uv) {
            Ok(python) => match bench.test(version, &python, Libraries::Current) {
                Ok(environment) => {
                    passed += 1;
                    newest = Some(environment);
                }
                Err(error) => {
                    failed += 1;
                    note(format_args!("Python {version}: {error:#}"));
                }
            },
            Err(error) => {
                skipped += 1;
                say(format_args!("skipped: Python {version}: {error:#}"));
            }
        }
    }
    let mut further: Vec<(&str, Result<()>)> = Vec::new();
    if args.only.is_empty() {
        further.push((
            "the oldest libraries",
            bench.test_oldest_libraries(VERSIONS[0]),
        ));
        further.push(("the oldest Python", bench.try_oldest_python()));
    }
    if let (Some(environment), false) = (&newest, args.no_notebook) {
        further.push((
            "the notebook",
            bench.execute_notebook(environment).map(drop),
        ));
    }
    for (what, outcome) in further {
        match outcome {
            Ok(()) => passed += 1,
            Err(error) if error.is::<interpreters::Absent>() => {
                skipped += 1;
                say(format_args!("skipped: {what}: {error:#}"));
            }
            Err(error) => {
                failed += 1;
                note(format_args!("{what}: {error:#}"));
            }
        }
    }
    say(format_args!(
        "python: {passed} passed, {failed} failed, {skipped} skipped"
    ));
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Executes the notebook with the newest installed Python.
pub(crate) fn execute_notebook() -> Result<Notebook> {
    let bench = Bench::new(command()?)?;
    let found = VERSIONS.iter().rev().find_map(|version| {
        let python = interpreters::find_installed(version).ok()?;
        Some((*version, python))
    });
    let (version, python) = found.context("the notebook needs a Python of 3.11 or later")?;
    let environment = bench.environment(version, &python, Libraries::Current)?;
    bench.execute_notebook(&environment)
}

/// The tested command: the binary that the package's own variable names, else the release build,
/// built if necessary.
fn command() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(COMMAND) {
        let named = PathBuf::from(named);
        return std::fs::canonicalize(&named)
            .with_context(|| format!("{COMMAND}: there is no {}", named.display()));
    }
    succeed(&mut cargo(
        "build --release --locked --package=membound".split(' '),
    ))?;
    Ok(root().join("target/release/membound"))
}
