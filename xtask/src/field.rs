//! `cargo xtask field`: foreign programs under membound: what it costs them, and whether its
//! figures are true.
//!
//! The programs are data, `field/*.toml`. Every entry is run alone and under membound in
//! turn; results are kept in `bench/results`, and `docs/field.md` is written from them. A
//! program that this machine does not have is reported as `skipped: reason`.

mod batches;
mod elsewhere;
mod entry;
mod figures;
mod kept;
mod obtain;
mod page;
mod place;
mod process;
mod recorded;
mod session;
mod statistics;
mod truth;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use membound_types::Doctor;
use serde_json::{Value, json};

use self::entry::{Entry, Kind};
use self::kept::Skipped;
use self::page::{costs, percent};
use self::place::EntryPaths;
use self::session::{Mode, Plan, Row};
use crate::bench::{build, document, machine_profile};
use crate::results::{Kept, Store};
use crate::run::{note, program, root, say, stdout_of};

/// Arguments of `field`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Entries to run; all of them without.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only entries of this kind.
    #[arg(long)]
    kind: Option<Kind>,
    /// Only entries that the files changed since this revision may touch.
    #[arg(long, value_name = "REVISION", num_args = 0..=1, default_missing_value = "HEAD~1")]
    changed: Option<String>,
    /// Pairs of a run alone and one under membound, for each entry and mode.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// What membound records.
    #[arg(long, value_delimiter = ',', default_values = ["samples", "all"])]
    modes: Vec<Mode>,
    /// One pair, to see that everything works.
    #[arg(long)]
    quick: bool,
    /// Install what entries need: Debian's packages as root, the rest into target/field.
    #[arg(long)]
    install: bool,
    /// Prepare the entries and run nothing.
    #[arg(long)]
    prepare: bool,
    /// List the entries and run nothing.
    #[arg(long)]
    list: bool,
    /// Instead draw this number of batches of entries, and run each under the kernel's scheduler and as a harvest.
    #[arg(long, value_name = "N")]
    batches: Option<usize>,
    /// Start no further batch after this many minutes.
    #[arg(long, value_name = "N", requires = "batches", default_value_t = 240)]
    minutes: u64,
    /// Seed of the random draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure no truths.
    #[arg(long)]
    no_truth: bool,
    /// Exit code 1 where a figure is missed.
    #[arg(long)]
    check: bool,
    /// Write docs/field.md again from the kept results and run nothing.
    #[arg(long)]
    page: bool,
    /// Keep no result and leave docs/field.md as it is; without this the checkout must be a clean commit.
    #[arg(long)]
    dry: bool,
    /// The membound to run, instead of a release build of this checkout.
    #[arg(long)]
    membound: Option<PathBuf>,
    /// Profile of this machine; measured once and kept in target/field without.
    #[arg(long)]
    machine: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let every = entry::all()?;
    let results = root().join("bench/results");
    let page = root().join("docs/field.md");
    if args.page {
        page::write(&every, &results, &page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = choose(&every, args)?;
    if args.list {
        for entry in &chosen {
            say(format_args!(
                "{:<22}{:<16}{}",
                entry.name,
                entry.truth.as_ref().map_or("-", |truth| truth.name()),
                entry.about
            ));
        }
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(args.pairs > 0, "no pair was asked for");
    let store = Store::open(args.dry || args.prepare)?;
    let plan = if args.prepare {
        None
    } else {
        Some(plan(args)?)
    };
    if let (Some(count), Some(plan)) = (args.batches, &plan) {
        return run_batches(&chosen, plan, count, args, &store);
    }
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    let mut skipped = Vec::new();
    for (index, entry) in chosen.iter().enumerate() {
        let place = EntryPaths::of(&entry.name, index);
        if args.install {
            obtain::install(entry, &place);
        }
        let reason = if let Some(name) = obtain::missing(entry, &place) {
            Some(format!("no {name} (cargo xtask field --install)"))
        } else {
            note(format_args!("{}", entry.name));
            let found = match &plan {
                None => session::prepare(entry, &place).map(|()| None),
                Some(plan) => session::measure(entry, &place, plan).map(Some),
            };
            match found {
                Ok(None) => None,
                Ok(Some(found)) => {
                    found.rows.iter().for_each(show);
                    rows.extend(found.rows);
                    raw.push(found.raw);
                    None
                }
                Err(error) => Some(format!("{error:#}")),
            }
        };
        if let Some(reason) = reason {
            say(format_args!("{:<22}skipped: {reason}", entry.name));
            skipped.push(Skipped {
                entry: entry.name.clone(),
                reason: reason.replace(&*root().to_string_lossy(), "."),
            });
        }
    }
    let Some(plan) = plan else {
        return Ok(ExitCode::SUCCESS);
    };
    let figures = figures::judge(&every, &rows);
    say(format_args!(
        "\n{} entries run, {} skipped\n\n{}",
        chosen.len() - skipped.len(),
        skipped.len(),
        page::figures(&figures)
    ));
    let met = figures.iter().all(|figure| figure.met);
    if !args.dry && !rows.is_empty() {
        let doctor: Doctor = document(program(&plan.membound).args(["doctor", "--json", "-"]))?;
        store.keep(&Kept {
            bench: "field",
            machine: doctor.machine,
            summary: json!({ "rows": rows, "skipped": skipped, "figures": figures }),
            raw: anonymous(raw.into()),
        })?;
        page::write(&every, &results, &page)?;
    }
    Ok(if met || !args.check {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs batches of the entries instead of each by itself.
fn run_batches(
    entries: &[&Entry],
    plan: &Plan,
    count: usize,
    args: &Args,
    store: &Store,
) -> Result<ExitCode> {
    let rows = batches::run(
        entries,
        &batches::Setting {
            membound: &plan.membound,
            machine: plan.machine.as_deref().context("there is no profile")?,
            count,
            limit: Duration::from_secs(60 * args.minutes),
            seed: args.seed,
            rounds: plan.pairs,
        },
    )?;
    let doctor: Doctor = document(program(&plan.membound).args(["doctor", "--json", "-"]))?;
    store.keep(&Kept {
        bench: "batches",
        machine: doctor.machine,
        summary: json!(rows),
        raw: json!({ "seed": args.seed, "rounds": plan.pairs }),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The requested entries.
fn choose<'a>(every: &'a [Entry], args: &Args) -> Result<Vec<&'a Entry>> {
    for name in &args.only {
        ensure!(
            every.iter().any(|entry| entry.name == *name),
            "no entry `{name}` in field/; `cargo xtask field --list` shows them"
        );
    }
    let concerned = match &args.changed {
        None => every.iter().collect(),
        Some(revision) => {
            let changed = stdout_of(program("git").args(["diff", "--name-only", revision]))?;
            let changed: Vec<String> = changed.lines().map(str::to_owned).collect();
            entry::areas()?.concerned(every, &changed)
        }
    };
    Ok(concerned
        .into_iter()
        .filter(|entry| args.only.is_empty() || args.only.contains(&entry.name))
        .filter(|entry| args.kind.is_none_or(|kind| kind == entry.kind))
        .collect())
}

fn plan(args: &Args) -> Result<Plan> {
    let membound = match &args.membound {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("no membound at {}", path.display()))?,
        None => build()?,
    };
    let machine = match &args.machine {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("no profile at {}", path.display()))?,
        None => {
            let path = root().join("target/field/machine.json");
            if !path.exists() {
                note("measuring the machine");
                std::fs::create_dir_all(root().join("target/field"))?;
                machine_profile(&membound, &path)?;
            }
            path
        }
    };
    Ok(Plan {
        membound,
        machine: Some(machine),
        pairs: if args.quick { 1 } else { args.pairs },
        modes: args.modes.clone(),
        truths: !args.no_truth,
    })
}

/// A row as a line.
fn show(row: &Row) {
    let [cost, interval] = costs(row.cost);
    let mut line = format!(
        "{:<22}{:<8}{:>7.2} s {cost:>9} {interval:<18}",
        row.entry,
        row.mode.name(),
        row.alone_s
    );
    let mut add = |text: String| {
        line.push(' ');
        line.push_str(&text);
    };
    if row.p99_cost.is_some() {
        add(format!("p99 {}", costs(row.p99_cost)[0]));
    }
    if let Some(ms) = row.process_ms {
        add(format!("{ms:.2} ms a process"));
    }
    if let Some(ms) = row.longest_stop_ms {
        add(format!("stop {ms:.2} ms"));
    }
    if !row.same_output {
        add("OTHER OUTPUT".to_owned());
    }
    if !row.same_ending {
        add("OTHER EXIT CODE".to_owned());
    }
    if let Some([share, low, high]) = row.recorded.as_ref().and_then(|it| it.share)
        && row.mode == Mode::All
    {
        add(format!(
            "share {} [{:.0}, {:.0}]",
            percent(share),
            low * 100.0,
            high * 100.0
        ));
    }
    if let (Some(truth), Some(held)) = (row.truth, row.held) {
        add(format!(
            "truth {:.0}–{:.0} % {}",
            truth.low * 100.0,
            truth.high * 100.0,
            if held { "held" } else { "NOT HELD" }
        ));
    }
    if row.expected == Some(false) {
        add("OTHER TOP".to_owned());
    }
    if let Some(trouble) = &row.trouble {
        add(format!("({trouble})"));
    }
    say(line);
}

/// The document without the path of the repository on this machine.
fn anonymous(value: Value) -> Value {
    let home = root().to_string_lossy().into_owned();
    match value {
        Value::String(text) => Value::String(text.replace(&home, ".")),
        Value::Array(values) => values.into_iter().map(anonymous).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, anonymous(value)))
            .collect(),
        other => other,
    }
}
