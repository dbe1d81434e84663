//! `cargo xtask campaign`: large programs with every load and store patched, compared with the
//! unpatched programs.
//!
//! Each program runs by itself first, and then under `membound rewrite check` with every requested
//! body. Output, exit code and the files that it makes must be the same, and it must have been
//! patched. The table shows this for each program, and the times; the raw results are kept with
//! those of the benches. The exit code is 1 if anything differs. `campaign harvest` is a campaign
//! of another kind (`harvest`).

mod generate;
mod harvest;
pub(crate) mod outcome;
mod programs;
mod task;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use membound_types::{Doctor, PatchBody};
use serde_json::{Value, json};

use crate::bench::{build, document};
use crate::results::{Kept, Store};
use crate::run::{note, program, say};
use programs::{PROGRAMS, Program};
use task::{Compared, Scratch, Task};

/// Arguments of `campaign`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// Programs to run, by the names that --list shows; all of them when none is named. A
    /// part of a program's work is chosen by NAME:PART, for example python:test_json.
    names: Vec<String>,
    /// Show the programs and end.
    #[arg(long)]
    list: bool,
    /// What the patches do: count, rubbish, or another body.
    #[arg(long = "body", value_parser = body, default_values = ["count", "rubbish"])]
    bodies: Vec<PatchBody>,
    /// Seconds after which a run is held to hang.
    #[arg(long, default_value_t = 1800)]
    patience: u64,
    /// Write both outputs of everything that differs into this directory.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The membound to use, instead of a release build of this checkout.
    #[arg(long)]
    membound: Option<PathBuf>,
    /// Keep no result; without this the checkout must be a clean commit.
    #[arg(long)]
    dry: bool,
}

/// Campaigns of another kind.
#[derive(clap::Subcommand)]
enum Other {
    /// Run programs with random scavengers in them, under random signals, and compare.
    Harvest(harvest::Args),
}

/// The body with this name.
fn body(name: &str) -> Result<PatchBody, String> {
    PatchBody::ALL
        .into_iter()
        .find(|body| body.name() == name)
        .ok_or_else(|| format!("no body is called `{name}`"))
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(Other::Harvest(args)) = &args.other {
        return harvest::run(args);
    }
    if args.list {
        for program in &PROGRAMS {
            say(format_args!("{:<10} {}", program.name, program.what));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = wanted(&args.names)?;
    let store = Store::open(args.dry)?;
    let membound = match &args.membound {
        Some(path) => std::path::absolute(path)?,
        None => build()?,
    };
    let doctor: Doctor = document(program(&membound).args(["doctor", "--json", "-"]))?;
    if let Some(directory) = &args.keep {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let mut rows = Vec::new();
    let mut different = 0;
    say(HEADING);
    for (chosen, part) in wanted {
        let scratch = Scratch::new(Duration::from_secs(args.patience))?;
        let tasks = match (chosen.prepare)(&scratch)? {
            Ok(tasks) => tasks,
            Err(missing) => {
                say(format_args!("{:<26} skipped: {missing}", chosen.name));
                rows.push(json!({ "program": chosen.name, "skipped": missing }));
                continue;
            }
        };
        let tasks: Vec<Task> = tasks
            .into_iter()
            .filter(|task| part.is_none_or(|part| task.name == part))
            .collect();
        if tasks.is_empty() {
            bail!("{} has no part of this name", chosen.name);
        }
        for task in &tasks {
            let plain = task.plain(&scratch)?;
            for &body in &args.bodies {
                let compared = task.patched(&scratch, &membound, body, &plain)?;
                let name = full_name(chosen, task);
                say(row(&name, body, &compared));
                for difference in &compared.differences {
                    note(format_args!("  {difference}"));
                }
                if !compared.differences.is_empty() {
                    different += 1;
                    if let Some(directory) = &args.keep {
                        keep_outputs(directory, &name, body, &compared, &plain)?;
                    }
                }
                rows.push(compared.raw(&name, body));
            }
        }
    }
    let summary: Vec<Value> = rows.iter().map(without_modules).collect();
    store.keep(&Kept {
        bench: "campaign",
        machine: doctor.machine,
        summary: summary.into(),
        raw: rows.into(),
    })?;
    if different > 0 {
        say(format_args!("{different} runs differ"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The programs with these names, each with the requested part.
fn wanted(names: &[String]) -> Result<Vec<(&'static Program, Option<&str>)>> {
    if names.is_empty() {
        return Ok(PROGRAMS.iter().map(|program| (program, None)).collect());
    }
    names
        .iter()
        .map(|name| {
            let (name, part) = match name.split_once(':') {
                Some((name, part)) => (name, Some(part)),
                None => (name.as_str(), None),
            };
            let program = PROGRAMS
                .iter()
                .find(|program| program.name == name)
                .with_context(|| format!("no program is called `{name}`: see --list"))?;
            Ok((program, part))
        })
        .collect()
}

const HEADING: &str = "program                    body     same    exit       sites    executions   \
                       unpatched    patched";

/// One line of the table.
fn row(name: &str, body: PatchBody, compared: &Compared) -> String {
    format!(
        "{name:<26} {:<8} {:<7} {:<6} {:>9} {:>13}  {:>8.2} s {:>8.2} s",
        body.name(),
        if compared.differences.is_empty() {
            "yes"
        } else {
            "NO"
        },
        compared.ending,
        compared.sites,
        compared.executions,
        compared.unpatched_s,
        compared.patched_s,
    )
}

/// `program:part`, or the program when it has one part of its own name.
fn full_name(program: &Program, task: &Task) -> String {
    if task.name == program.name {
        task.name.clone()
    } else {
        format!("{}:{}", program.name, task.name)
    }
}

/// A raw row without the modules, which only the raw results contain.
fn without_modules(row: &Value) -> Value {
    let mut row = row.clone();
    if let Some(fields) = row.as_object_mut() {
        fields.remove("modules");
    }
    row
}

/// Writes the outputs of a patched run and of the unpatched one.
fn keep_outputs(
    directory: &Path,
    name: &str,
    body: PatchBody,
    compared: &Compared,
    plain: &outcome::Outcome,
) -> Result<()> {
    for (which, outcome) in [("unpatched", plain), ("patched", &compared.outcome)] {
        for (stream, bytes) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
            let file = format!(
                "{}-{}-{which}.{stream}",
                name.replace(':', "-"),
                body.name()
            );
            let path = directory.join(file);
            std::fs::write(&path, bytes)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
