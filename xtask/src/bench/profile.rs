//! What profiling costs a program, compared with cachegrind on the same program; and how long a
//! report of a million samples takes.
//!
//! Each program does a fixed amount of work and times it itself. A pair is one run alone and one
//! profiled, in turn; the figure is the median of the pairs' ratios, with the minimum and the
//! maximum.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use membound_types::{Doctor, Profile};
use serde_json::{Value, json};

use super::common::{document, machine_profile, median, verdict};
use crate::results::Kept;
use crate::run::{cargo, note, on_path, program, root, say, stdout_of, succeed};

/// Arguments of `bench profile`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pairs of a run alone and a profiled one, for each program and way.
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Leave cachegrind out, which takes minutes.
    #[arg(long)]
    no_cachegrind: bool,
}

/// Programs, with the amount of work for some seconds, and for cachegrind.
const PROGRAMS: [(&str, u64, u64); 5] = [
    ("chase", 15_000, 2_000),
    ("threads", 40_000, 4_000),
    ("hits", 4_000_000, 100_000),
    ("triad", 300, 6),
    ("blocks", 300, 6),
];

/// Methods of profiling, and the maximum slowdown of each.
const WAYS: [(&str, &[&str], f64); 3] = [
    ("sampling", &["--no-latencies", "--no-objects"], 1.02),
    (
        "agent",
        &["--sampler", "agent", "--no-latencies", "--no-objects"],
        1.02,
    ),
    ("everything", &[], 1.08),
];

const REPORT_LIMIT_S: f64 = 2.0;
/// Additional resident memory that a program may need, besides that for its live blocks.
const MEMORY_LIMIT_KB: f64 = 40.0 * 1024.0;
/// Memory for the live blocks of `blocks`: 10 000 blocks of 32 bytes.
const LIVE_BLOCKS_KB: f64 = 10_000.0 * 32.0 / 1024.0;

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(args.pairs > 0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let built = scratch.path().join("profiled");
    let mut compiler = program("gcc");
    compiler.args(["-O2", "-g", "-pthread", "-o"]).arg(&built);
    succeed(compiler.arg(root().join("bench/profiled.c")))?;
    // The machine is measured before anything is timed.
    let machine = scratch.path().join("machine.json");
    machine_profile(membound, &machine)?;

    let mut summary = Vec::new();
    let mut raw = Vec::new();
    say("program   way            alone   profiled    ratio  of pairs           memory  limit");
    for (name, amount, small) in PROGRAMS {
        for (way, options, limit) in WAYS {
            note(format_args!("{name} {way}"));
            let mut pairs = Vec::new();
            for _ in 0..args.pairs {
                let alone = times(program(&built).args([name, &amount.to_string()]))?;
                let run = scratch.path().join("program.run");
                let mut command = program(membound);
                command
                    .args(["profile", "--quiet", "--machine"])
                    .arg(&machine);
                command.arg("-o").arg(&run).args(options).arg("--");
                let profiled = times(command.arg(&built).args([name, &amount.to_string()]))?;
                really_profiled(membound, &run)?;
                pairs.push((alone, profiled));
            }
            let row = Row::of(&pairs)?;
            say(format_args!(
                "{name:<10}{way:<11}{:>7.3} s{:>8.3} s{:>9.4}  {:.4} … {:.4}{:>7.1} MB  {limit} {}",
                row.alone_s,
                row.profiled_s,
                row.ratio,
                row.least,
                row.largest,
                row.memory_kb / 1024.0,
                verdict(row.ratio <= limit && row.memory_kb <= MEMORY_LIMIT_KB + LIVE_BLOCKS_KB),
            ));
            summary.push(row.summary(name, way, limit));
            raw.push(json!({ "program": name, "way": way, "pairs": pairs }));
        }
        if !args.no_cachegrind && on_path("valgrind").is_some() {
            let words = [name, &small.to_string()];
            let alone = times(program(&built).args(words))?;
            let mut valgrind = program("valgrind");
            valgrind
                .current_dir(scratch.path())
                .args(["-q", "--tool=cachegrind", "--cache-sim=yes"])
                .args(["--cachegrind-out-file=/dev/null", "--log-file=/dev/null"]);
            let simulated = times(valgrind.arg(&built).args(words))?;
            let ratio = simulated.wall_s / alone.wall_s;
            say(format_args!("{name:<10}cachegrind {ratio:>28.1}"));
            summary.push(json!({ "program": name, "way": "cachegrind", "ratio": ratio }));
        }
    }
    let report = report(membound, scratch.path(), &machine)?;
    summary.extend(report);
    Ok(Kept {
        bench: "profile",
        machine: doctor.machine,
        summary: summary.into(),
        raw: raw.into(),
    })
}

/// Figures that a program prints of its own run.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct Times {
    wall_s: f64,
    peak_kb: f64,
}

fn times(command: &mut Command) -> Result<Times> {
    let text = stdout_of(command)?;
    let number = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let word = line.and_then(|line| line.split_whitespace().next());
        let word = word.with_context(|| format!("the program did not say {name}"))?;
        word.parse().with_context(|| format!("{name} is no number"))
    };
    Ok(Times {
        wall_s: number("wall_ns")? / 1e9,
        peak_kb: number("peak_kb")?,
    })
}

/// Checks that samples were taken: a run without samples would be cheap for the wrong reason.
fn really_profiled(membound: &Path, run: &Path) -> Result<()> {
    let mut report = program(membound);
    report.arg("report").arg(run).args(["--format", "json"]);
    let profile: Profile = document(&mut report)?;
    ensure!(!profile.incomplete, "the run is incomplete");
    let expected = profile.time.cpu_s * 1000.0 * 0.5;
    ensure!(
        profile.run.effective_samples >= expected.min(1000.0) * 0.2,
        "{} samples of {} s",
        profile.run.samples,
        profile.time.cpu_s
    );
    Ok(())
}

struct Row {
    alone_s: f64,
    profiled_s: f64,
    ratio: f64,
    least: f64,
    largest: f64,
    memory_kb: f64,
}

impl Row {
    fn of(pairs: &[(Times, Times)]) -> Result<Self> {
        let of = |value: &dyn Fn(&(Times, Times)) -> f64| {
            let values: Vec<f64> = pairs.iter().map(value).collect();
            median(&values).context("no run was asked for")
        };
        let ratios = pairs
            .iter()
            .map(|(alone, profiled)| profiled.wall_s / alone.wall_s);
        Ok(Self {
            alone_s: of(&|pair| pair.0.wall_s)?,
            profiled_s: of(&|pair| pair.1.wall_s)?,
            ratio: of(&|pair| pair.1.wall_s / pair.0.wall_s)?,
            least: ratios.clone().fold(f64::INFINITY, f64::min),
            largest: ratios.fold(f64::NEG_INFINITY, f64::max),
            memory_kb: of(&|pair| pair.1.peak_kb - pair.0.peak_kb)?,
        })
    }

    fn summary(&self, program: &str, way: &str, limit: f64) -> Value {
        json!({
            "program": program, "way": way, "ratio": self.ratio, "least": self.least,
            "largest": self.largest, "alone_s": self.alone_s, "profiled_s": self.profiled_s,
            "memory_kb": self.memory_kb, "limit": limit,
        })
    }
}

/// Times `membound report` on a generated run of a million samples, as text and as a page.
fn report(membound: &Path, scratch: &Path, machine: &Path) -> Result<Vec<Value>> {
    let run = scratch.join("million.run");
    let mut make = cargo("run --release --quiet --package membound-analyze".split(' '));
    make.args(["--example", "analyze_a_million", "--"]);
    stdout_of(make.arg(&run).arg(machine))?;
    let page = scratch.join("page.html");
    let mut rows = Vec::new();
    for (way, page) in [("text", None), ("page", Some(&page))] {
        let mut took = Vec::new();
        for _ in 0..5 {
            let mut command = program(membound);
            command.arg("report").arg(&run);
            if let Some(page) = page {
                command.arg("--html").arg(page);
            }
            let begun = Instant::now();
            stdout_of(&mut command)?;
            took.push(begun.elapsed().as_secs_f64());
        }
        let seconds = median(&took).context("it was run")?;
        let bytes = page
            .and_then(|page| std::fs::metadata(page).ok())
            .map(|it| it.len());
        say(format_args!(
            "report of 1 000 000 samples, {way}: {seconds:.2} s, limit {REPORT_LIMIT_S} s {}{}",
            verdict(seconds <= REPORT_LIMIT_S),
            bytes.map_or_else(String::new, |bytes| format!(
                ", {:.1} MB",
                bytes as f64 / 1e6
            )),
        ));
        rows.push(json!({ "report": way, "seconds": took, "bytes": bytes }));
    }
    Ok(rows)
}
