//! `cargo xtask campaign harvest`: programs with random scavengers in them, under random signals.
//!
//! For the requested time, runs are drawn from a seed (`draw`): a primary of `bench/harvest/` or a
//! fixture of the tests, scavengers that work, crash, loop, interfere or never end, options, yields
//! at random loads, and signals from outside. Each primary runs alone and with its scavengers
//! (`trial`): output and exit must be the same, scavengers must end as they do alone, nothing may
//! hang and no process may be left. If the primary is killed, only the last two are checked. The
//! exit code is 1 if anything differs, and `--case SEED` repeats one run.

mod disturb;
mod draw;
mod field;
mod trial;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use membound_types::{Doctor, ScavengerMoves, ScavengerState};
use serde_json::{Value, json};

use self::draw::Case;
use self::field::Field;
use self::trial::Trial;
use crate::bench::{build, document};
use crate::results::{Kept, Store};
use crate::run::{note, program, say};
use membound_testkit::Random;

/// Arguments of `campaign harvest`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long, in hours.
    #[arg(long, conflicts_with = "minutes")]
    hours: Option<f64>,
    /// How long, in minutes [default: 10].
    #[arg(long)]
    minutes: Option<f64>,
    /// What runs are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One run, by the seed that a failure names.
    #[arg(long)]
    case: Option<u64>,
    /// Seconds after which a run is held to hang.
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// Write what failed runs wrote, and where what hung was, into this directory.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// The membound to use, instead of a release build of this checkout.
    #[arg(long)]
    membound: Option<PathBuf>,
    /// Keep no result; without this the checkout must be a clean commit.
    #[arg(long)]
    dry: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // A single case is repeated to see it fail; its result is not kept.
    let store = Store::open(args.dry || args.case.is_some())?;
    let membound = match &args.membound {
        Some(path) => std::path::absolute(path)?,
        None => build()?,
    };
    if let Some(directory) = &args.keep {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let doctor: Doctor = document(program(&membound).args(["doctor", "--json", "-"]))?;
    let field = Field::new(membound, Duration::from_secs(args.patience))?;
    adopt_orphans();
    let minutes = args.hours.map(|hours| hours * 60.0).or(args.minutes);
    let lasts = Duration::from_secs_f64(minutes.unwrap_or(10.0) * 60.0);
    let begun = Instant::now();
    let mut seeds = Random::new(args.seed);
    let mut sums = BTreeMap::<&str, Sum>::new();
    let mut raw = Vec::new();
    loop {
        let case = Case::of(args.case.unwrap_or_else(|| seeds.next()));
        let room = field.room(case.seed)?;
        let trial = Trial::run(&field, &case, &room)?;
        if !trial.failures.is_empty() {
            tell(&case, &trial);
            if let Some(directory) = &args.keep {
                keep_run(directory, &case, &trial, &room)?;
            }
        }
        sums.entry(case.primary.name).or_default().add(&trial);
        raw.push(trial.raw(&case));
        std::fs::remove_dir_all(&room)?;
        if args.case.is_some() || begun.elapsed() >= lasts {
            break;
        }
    }
    let mut all = Sum::default();
    say(HEADING);
    for (name, sum) in &sums {
        say(sum.row(name));
        all.join(sum);
    }
    say(all.row("all"));
    let rows: Vec<Value> = sums.iter().map(|(name, sum)| sum.raw(name)).collect();
    if args.case.is_none() {
        store.keep(&Kept {
            bench: "campaign-harvest",
            machine: doctor.machine,
            summary: json!({ "seed": args.seed, "seconds": begun.elapsed().as_secs_f64(), "rows": rows, "all": all.raw("all") }),
            raw: raw.into(),
        })?;
    }
    if all.failures > 0 {
        say(format_args!("{} runs failed", all.failures));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes processes that lose their parent children of this process, so that none is lost.
fn adopt_orphans() {
    // SAFETY: it touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

fn tell(case: &Case, trial: &Trial) {
    note(format_args!(
        "failed: {} of seed {}",
        case.primary.name, case.seed
    ));
    for failure in &trial.failures {
        note(format_args!("  {failure}"));
    }
    note(format_args!(
        "  cargo xtask campaign harvest --case {}",
        case.seed
    ));
    note(format_args!("  {}", trial.command));
}

/// Keeps the files of a run, its failures, and the stacks of what hung.
fn keep_run(directory: &Path, case: &Case, trial: &Trial, room: &Path) -> Result<()> {
    let kept = directory.join(case.seed.to_string());
    copy(room, &kept)?;
    let text = format!("{case:#?}\n{}\n{:#?}\n", trial.command, trial.failures);
    std::fs::write(kept.join("case"), text)?;
    if let Some(stacks) = &trial.stacks {
        std::fs::write(kept.join("stacks"), stacks)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

const HEADING: &str = "primary         runs killed signals  threads       turns   steals reclaimed interrupted \
                       overdue finished crashed unfinished failures";

/// Totals of the runs of one primary, or of all.
#[derive(Debug, Default)]
struct Sum {
    runs: u64,
    killed: u64,
    signals: u64,
    threads: u64,
    turns: u64,
    moves: ScavengerMoves,
    /// Numbers of scavengers that finished, that crashed, and that did neither.
    scavengers: [u64; 3],
    failures: u64,
}

impl Sum {
    fn add(&mut self, trial: &Trial) {
        let mut one = Self {
            runs: 1,
            killed: u64::from(trial.sent.is_killed),
            signals: trial.sent.signals,
            failures: u64::from(!trial.failures.is_empty()),
            ..Self::default()
        };
        if let Some(document) = &trial.document {
            one.threads = document.primary.threads;
            one.turns = document.primary.yields;
            one.moves = document.moves;
            for scavenger in &document.scavengers {
                match scavenger.state {
                    ScavengerState::Finished => one.scavengers[0] += 1,
                    ScavengerState::Crashed => one.scavengers[1] += 1,
                    _ => one.scavengers[2] += 1,
                }
            }
        }
        self.join(&one);
    }

    fn join(&mut self, other: &Self) {
        self.runs += other.runs;
        self.killed += other.killed;
        self.signals += other.signals;
        self.threads += other.threads;
        self.turns += other.turns;
        self.moves.steals += other.moves.steals;
        self.moves.reclaimed += other.moves.reclaimed;
        self.moves.calls += other.moves.calls;
        self.moves.interrupted += other.moves.interrupted;
        self.moves.overdue += other.moves.overdue;
        for (sum, more) in self.scavengers.iter_mut().zip(other.scavengers) {
            *sum += more;
        }
        self.failures += other.failures;
    }

    fn row(&self, name: &str) -> String {
        let [finished, crashed, unfinished] = self.scavengers;
        format!(
            "{name:<14} {:>5} {:>6} {:>7} {:>8} {:>11} {:>8} {:>9} {:>11} {:>7} {finished:>8} {crashed:>7} \
             {unfinished:>10} {:>8}",
            self.runs,
            self.killed,
            self.signals,
            self.threads,
            self.turns,
            self.moves.steals,
            self.moves.reclaimed,
            self.moves.interrupted,
            self.moves.overdue,
            self.failures,
        )
    }

    fn raw(&self, name: &str) -> Value {
        let [finished, crashed, unfinished] = self.scavengers;
        json!({
            "primary": name,
            "runs": self.runs,
            "killed": self.killed,
            "signals": self.signals,
            "threads": self.threads,
            "turns": self.turns,
            "moves": self.moves,
            "finished": finished,
            "crashed": crashed,
            "unfinished": unfinished,
            "failures": self.failures,
        })
    }
}
