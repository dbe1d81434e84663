//! `cargo xtask ci`: the checks, then the tests, each step named and timed.
//!
//! A step that fails does not keep the later ones from running: one run shows everything
//! that is wrong.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use membound_platform::date::now_utc;

use crate::run::{cargo, note, say, succeed};
use crate::{
    architecture, book, circles, deny, fuzz, machines, model_check, package, schema, tests,
};

/// Arguments of `ci`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the checks.
    #[arg(long)]
    no_tests: bool,
    /// Also fuzz each parser for a minute, which takes four minutes besides building the fuzzers.
    #[arg(long)]
    fuzz: bool,
    /// Name missing Debian packages instead of installing them.
    #[arg(long)]
    no_install: bool,
}

/// A step: its name, and what it does.
type Step<'a> = (&'static str, Box<dyn Fn() -> Result<()> + 'a>);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut steps: Vec<Step<'_>> = vec![
        (
            "fmt",
            Box::new(|| succeed(&mut cargo(["fmt", "--all", "--check"]))),
        ),
        ("clippy", Box::new(clippy)),
        ("rustdoc", Box::new(rustdoc)),
        ("schemas", Box::new(schema::check)),
        ("architecture", Box::new(architecture::check)),
        ("circles", Box::new(circles::check)),
        ("book", Box::new(book::check)),
        ("package", Box::new(package::check)),
        ("cargo-deny", Box::new(deny::check)),
        ("model-check", Box::new(model_check::check)),
        ("machines", Box::new(machines::check)),
        ("quarantine", Box::new(quarantine)),
    ];
    if args.fuzz {
        steps.push(("fuzz", Box::new(fuzz::check)));
    }
    if !args.no_tests {
        steps.push((
            "tests",
            Box::new(|| {
                let report = tests::run_all(!args.no_install)?;
                if report.succeeded() {
                    Ok(())
                } else {
                    bail!("{report}")
                }
            }),
        ));
    }

    let mut rows = Vec::new();
    for (name, work) in &steps {
        note(format_args!("── {name}"));
        let began = Instant::now();
        let outcome = work();
        if let Err(error) = &outcome {
            note(format_args!("{name}: {error:#}"));
        }
        rows.push((*name, began.elapsed(), outcome.is_ok()));
    }
    say(summary(&rows));
    Ok(if rows.iter().all(|(_, _, good)| *good) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints the quarantined tests; an expired entry is an error.
fn quarantine() -> Result<()> {
    let list = tests::Quarantine::read()?;
    list.lines().iter().for_each(say);
    let expired = list.expired(&now_utc());
    if !expired.is_empty() {
        bail!("{}", expired.join("\n"));
    }
    Ok(())
}

fn clippy() -> Result<()> {
    succeed(&mut cargo(
        "clippy --workspace --all-targets --locked -- -D warnings".split(' '),
    ))
}

fn rustdoc() -> Result<()> {
    let mut doc = cargo(["doc", "--workspace", "--no-deps", "--locked"]);
    succeed(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// One line per step: name, seconds, and whether it passed.
fn summary(rows: &[(&str, Duration, bool)]) -> String {
    let mut lines = vec![String::new()];
    for (name, time, good) in rows {
        let state = if *good { "ok" } else { "FAILED" };
        lines.push(format!("{name:<14}{:>8.1} s  {state}", time.as_secs_f64()));
    }
    let failed = rows.iter().filter(|(_, _, good)| !good).count();
    lines.push(format!(
        "ci: {} steps passed, {failed} failed",
        rows.len() - failed
    ));
    lines.join("\n")
}

#[cfg(test)]
mod tests_of_summary {
    use super::*;

    #[test]
    fn summary_names_every_step_and_counts_failures() {
        let text = summary(&[
            ("fmt", Duration::from_millis(500), true),
            ("clippy", Duration::from_secs(61), false),
        ]);
        assert_eq!(
            text,
            "\nfmt                0.5 s  ok\nclippy            61.0 s  FAILED\n\
             ci: 1 steps passed, 1 failed"
        );
    }
}
