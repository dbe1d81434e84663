//! How often `compare --fail-on` raises a false alarm, and how often it detects a change of ten
//! points, on a machine whose memory others use too.
//!
//! A comparison has several runs per side, recorded in turn; all of them take about 40 minutes.
//! Half of the time a neighbour chases through memory of its own, for spans and with pauses of
//! random length.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use membound_types::{Doctor, GateVerdict, RunComparison};
use serde_json::{Value, json};

use super::common::{document, machine_profile, median, verdict};
use crate::results::Kept;
use crate::run::{note, program, root, say, stdout_of, succeed};

/// Arguments of `bench gate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Comparisons of equal programs.
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    /// Comparisons of programs that differ by ten points.
    #[arg(long, default_value_t = 20)]
    changed: usize,
    /// Runs a side.
    #[arg(long, default_value_t = 15)]
    runs: usize,
    /// Length of a run in seconds.
    #[arg(long, default_value_t = 0.8)]
    seconds: f64,
}

const EXPRESSION: &str = "memory-bound +3pt";
/// Stalled share of the base program.
const BASE_SHARE: f64 = 0.4;
/// Requested share of the changed program. Preparing its memory and stalls that the profile does
/// not know dilute both shares: this value resulted in ten points more. The summary has the actual
/// change.
const CHANGED_SHARE: f64 = 0.53;
/// Loads in each round of the program.
const HOPS: u64 = 1000;
/// Number of comparisons of equal programs per permitted false alarm.
const PAIRS_PER_ALARM: usize = 50;
/// Share of the changes that must be detected.
const SEEN: f64 = 0.95;

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(args.runs > 0 && args.seconds > 0.0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let built = scratch.path().join("gate");
    let mut compiler = program("gcc");
    compiler.args(["-O2", "-g", "-o"]).arg(&built);
    succeed(compiler.arg(root().join("bench/gate.c")))?;
    let machine = scratch.path().join("machine.json");
    machine_profile(membound, &machine)?;
    let bench = Bench {
        membound,
        machine,
        scratch: scratch.path().to_owned(),
        runs: args.runs,
        work: Work::of(&built, args.seconds)?,
        built,
    };
    let neighbour = Neighbour::start(&bench.built);
    let mut raw = Vec::new();
    let mut summary = Vec::new();
    for (name, count, rounds) in [
        ("equal", args.pairs, bench.work.base_rounds),
        ("changed", args.changed, bench.work.changed_rounds),
    ] {
        let mut outcomes = Vec::new();
        let mut changes = Vec::new();
        for number in 1..=count {
            let comparison = bench.compare(rounds)?;
            let gate = comparison.gates.first().context("there is no gate")?;
            note(format_args!(
                "{name} {number}: {} {}",
                gate.verdict, gate.text
            ));
            outcomes.push(gate.verdict);
            changes.extend(gate.change.map(|change| change.value));
            raw.push(json!({
                "pair": name, "gate": gate,
                "memory_bound": comparison.runs.iter().map(|run| run.memory_bound.fraction).collect::<Vec<_>>(),
            }));
        }
        summary.push(row(name, &outcomes, median(&changes)));
    }
    neighbour.stop();
    Ok(Kept {
        bench: "gate",
        machine: doctor.machine,
        summary: json!({
            "expression": EXPRESSION, "runs_a_side": args.runs, "run_s": args.seconds,
            "rows": summary,
        }),
        raw: raw.into(),
    })
}

fn row(name: &str, outcomes: &[GateVerdict], change: Option<f64>) -> Value {
    let count = |verdict| outcomes.iter().filter(|it| **it == verdict).count();
    let failed = count(GateVerdict::Failed);
    let met = if name == "equal" {
        failed <= outcomes.len().div_ceil(PAIRS_PER_ALARM)
    } else {
        #[expect(clippy::cast_precision_loss, reason = "a bench has some dozen pairs")]
        let seen = failed as f64 / outcomes.len() as f64;
        seen >= SEEN
    };
    let (passed, undecided) = (count(GateVerdict::Passed), count(GateVerdict::Undecided));
    say(format_args!(
        "{name:<8} {:>3} comparisons: {failed} failed, {passed} passed, {undecided} undecided, \
         median change {:+.1} pt  {}",
        outcomes.len(),
        change.unwrap_or(0.0) * 100.0,
        verdict(met)
    ));
    json!({
        "pairs": name, "comparisons": outcomes.len(), "failed": failed, "passed": passed,
        "undecided": undecided, "median_change": change, "met": met,
    })
}

/// Amounts of work of a run.
struct Work {
    times: u64,
    base_rounds: u64,
    changed_rounds: u64,
}

impl Work {
    /// Computed from the time that the program's parts take on this machine.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of rounds, which are positive and small"
    )]
    fn of(built: &Path, seconds: f64) -> Result<Self> {
        let text = stdout_of(program(built).args(["1000", "100000", "500"]))?;
        let number = |name: &str| -> Result<f64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let word = line.with_context(|| format!("the program did not say {name}"))?;
            word.trim()
                .parse()
                .with_context(|| format!("{name} is no number"))
        };
        let hops_ns = number("hop_ns")? * HOPS as f64;
        let rounds = |share: f64| -> Result<u64> {
            Ok((hops_ns * (1.0 - share) / share / number("round_ns")?) as u64)
        };
        Ok(Self {
            times: (seconds * 1e9 * BASE_SHARE / hops_ns) as u64,
            base_rounds: rounds(BASE_SHARE)?,
            changed_rounds: rounds(CHANGED_SHARE)?,
        })
    }
}

struct Bench<'a> {
    membound: &'a Path,
    machine: PathBuf,
    scratch: PathBuf,
    built: PathBuf,
    runs: usize,
    work: Work,
}

impl Bench<'_> {
    /// Records both sides in turn and compares them with the gate's expression.
    fn compare(&self, new_rounds: u64) -> Result<RunComparison> {
        let (mut base, mut new) = (Vec::new(), Vec::new());
        for number in 0..self.runs {
            base.push(self.record(&format!("base-{number}.run"), self.work.base_rounds)?);
            new.push(self.record(&format!("new-{number}.run"), new_rounds)?);
        }
        let mut command = program(self.membound);
        command.args(["compare", "--json", "-", "--fail-on", EXPRESSION, "--base"]);
        command.args(base).arg("--new").args(new);
        // If the gate fails, the exit code is 1 and there is a document all the same.
        let output = command.stderr(Stdio::null()).output()?;
        serde_json::from_slice(&output.stdout).context("compare wrote another document")
    }

    fn record(&self, name: &str, rounds: u64) -> Result<PathBuf> {
        let path = self.scratch.join(name);
        let mut command = program(self.membound);
        command
            .args(["profile", "--quiet", "--machine"])
            .arg(&self.machine);
        command.arg("-o").arg(&path).arg("--").arg(&self.built);
        let words = [HOPS, rounds, self.work.times].map(|number| number.to_string());
        stdout_of(command.args(words))?;
        Ok(path)
    }
}

/// A program that uses memory while the compared programs run.
struct Neighbour {
    over: &'static AtomicBool,
    thread: thread::JoinHandle<()>,
}

impl Neighbour {
    fn start(built: &Path) -> Self {
        static OVER: AtomicBool = AtomicBool::new(false);
        let built = built.to_owned();
        let thread = thread::spawn(move || {
            let mut state = 1_u64;
            while !OVER.load(Ordering::Relaxed) {
                // Knuth's generator: 0 to 2 s of running, and the rest of 2 s of pause.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let millis = (state >> 33) % 2000;
                // Bounded, so that it ends by itself when the bench is killed.
                let child = program(&built)
                    .args(["1000", "0", "20000"])
                    .stdout(Stdio::null())
                    .spawn();
                thread::sleep(Duration::from_millis(millis));
                if let Ok(child) = child {
                    end(child);
                }
                thread::sleep(Duration::from_millis(2000 - millis));
            }
        });
        Self {
            over: &OVER,
            thread,
        }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

/// Ends the child; its exit status does not matter.
fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}
