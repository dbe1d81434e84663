//! Cost of a patch per execution of its load, in tight loops whose loads hit the first cache.
//!
//! End to end: the same program runs by itself and under `membound rewrite check`, in turn, and
//! times its own loops (`bench/patched.c` describes what is live in which loop). A cost is the
//! difference of neighbouring runs' medians; the figure is the median of these costs, with the
//! minimum and the maximum.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use membound_types::{Doctor, PatchBody, RewriteCheck};
use serde_json::{Value, json};

use super::common::{document, median, verdict};
use crate::results::Kept;
use crate::run::{note, program, root, say, stdout_of, succeed};

/// Bodies with a target, in nanoseconds per execution.
const BODIES: [(PatchBody, f64); 3] = [
    (PatchBody::Displace, 2.5),
    (PatchBody::Count, 4.0),
    (PatchBody::Sample, 5.0),
];

/// The loop that has no load: dependent additions of one cycle each.
const CLOCK: &str = "adds";
const ADDS: f64 = 16.0;

/// Arguments of `bench rewrite`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pairs of an unpatched and a patched run, for each body.
    #[arg(long, default_value_t = 9)]
    pairs: usize,
    /// Iterations of a loop in a round.
    #[arg(long, default_value_t = 5_000_000)]
    iterations: u64,
    /// Rounds in a run.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// Nanoseconds per iteration by loop, one for each round.
type Times = BTreeMap<String, Vec<f64>>;

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(args.pairs > 0 && args.rounds > 0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
    let built = scratch.path().join("patched");
    let mut compiler = program("gcc");
    compiler.args(["-O2", "-o"]).arg(&built);
    succeed(compiler.arg(root().join("bench/patched.c")))?;

    let words = [args.iterations.to_string(), args.rounds.to_string()];
    let mut summary = Vec::new();
    let mut raw = Vec::new();
    say("body      loop       unpatched   patched      cost  of pairs          cycles  target");
    for (body, target_ns) in BODIES {
        note(format_args!("{}", body.name()));
        let mut pairs = Vec::new();
        for _ in 0..args.pairs {
            let alone = times(program(&built).args(&words))?;
            let report = scratch.path().join("check.json");
            let mut command = program(membound);
            command
                .args(["rewrite", "check", "--body", body.name(), "--json"])
                .arg(&report)
                .arg("--")
                .arg(&built)
                .args(&words);
            let patched = times(&mut command)?;
            really_patched(&report, &built, body, args)?;
            pairs.push((alone, patched));
        }
        for name in pairs[0].0.keys() {
            let cost = Cost::of(name, &pairs)?;
            // The loop of additions has nothing to patch: its row shows the noise.
            let judged = if name == CLOCK {
                String::new()
            } else {
                format!("{target_ns} ns {}", verdict(cost.ns <= target_ns))
            };
            say(format_args!(
                "{:<10}{name:<10}{:>7.3} ns{:>7.3} ns{:>7.3} ns  {:>6.3} … {:<6.3}{:>8.1}  {judged}",
                body.name(),
                cost.alone_ns,
                cost.patched_ns,
                cost.ns,
                cost.least_ns,
                cost.largest_ns,
                cost.ns / cost.cycle_ns,
            ));
            summary.push(cost.summary(body, name, target_ns));
        }
        raw.push(json!({ "body": body.name(), "pairs": pairs }));
    }
    Ok(Kept {
        bench: "rewrite",
        machine: doctor.machine,
        summary: summary.into(),
        raw: raw.into(),
    })
}

/// Cost of a patch in one loop.
struct Cost {
    alone_ns: f64,
    patched_ns: f64,
    ns: f64,
    least_ns: f64,
    largest_ns: f64,
    cycle_ns: f64,
}

impl Cost {
    fn of(name: &str, pairs: &[(Times, Times)]) -> Result<Self> {
        let middle = |times: &Times, name: &str| {
            times
                .get(name)
                .and_then(|values| median(values))
                .with_context(|| format!("a run without the loop `{name}`"))
        };
        let mut alone = Vec::new();
        let mut patched = Vec::new();
        let mut cycles = Vec::new();
        for (before, after) in pairs {
            alone.push(middle(before, name)?);
            patched.push(middle(after, name)?);
            cycles.push(middle(before, CLOCK)? / ADDS);
        }
        let costs: Vec<f64> = patched.iter().zip(&alone).map(|(a, b)| a - b).collect();
        let of = |values: &[f64]| median(values).context("no run was asked for");
        Ok(Self {
            alone_ns: of(&alone)?,
            patched_ns: of(&patched)?,
            ns: of(&costs)?,
            least_ns: costs.iter().copied().fold(f64::INFINITY, f64::min),
            largest_ns: costs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            cycle_ns: of(&cycles)?,
        })
    }

    fn summary(&self, body: PatchBody, name: &str, target_ns: f64) -> Value {
        json!({
            "body": body.name(), "loop": name, "cost_ns": self.ns,
            "least_ns": self.least_ns, "largest_ns": self.largest_ns,
            "unpatched_ns": self.alone_ns, "patched_ns": self.patched_ns,
            "cycle_ns": self.cycle_ns,
            "target_ns": (name != CLOCK).then_some(target_ns),
        })
    }
}

/// Runs the program and reads the times that it prints for its loops.
fn times(command: &mut Command) -> Result<Times> {
    let mut times = Times::new();
    for line in stdout_of(command)?.lines() {
        let (name, ns) = line
            .split_once(' ')
            .with_context(|| format!("the loops' program wrote `{line}`"))?;
        let ns: f64 = ns
            .parse()
            .with_context(|| format!("the loops' program wrote `{line}`"))?;
        times.entry(name.to_owned()).or_default().push(ns);
    }
    ensure!(!times.is_empty(), "the loops' program wrote nothing");
    Ok(times)
}

/// Checks that the loops were patched: unpatched, they would be fast for the wrong reason.
fn really_patched(report: &Path, built: &Path, body: PatchBody, args: &Args) -> Result<()> {
    let text = std::fs::read_to_string(report)
        .with_context(|| format!("cannot read {}", report.display()))?;
    let check: RewriteCheck =
        serde_json::from_str(&text).context("membound rewrite check wrote another document")?;
    if let Some(reason) = check.reason {
        bail!("the loops' program was not patched: {reason}");
    }
    let module = check
        .modules
        .iter()
        .find(|module| Path::new(&module.path) == built)
        .context("the loops' program is not among the patched modules")?;
    ensure!(
        module.counts.refused.is_empty(),
        "accesses of the loops' program were refused: {:?}",
        module.counts.refused
    );
    if body == PatchBody::Displace {
        return Ok(());
    }
    // Six loops with a load, and one round that warms up.
    let rounds = u64::try_from(args.rounds)? + 1;
    let least = args.iterations * rounds * 6;
    let counted = module
        .executions
        .known()
        .context("the loops' executions were not counted")?;
    ensure!(
        *counted >= least,
        "{counted} executions were counted, of at least {least}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(rounds: &[(&str, f64)]) -> Times {
        let mut times = Times::new();
        for (name, ns) in rounds {
            times.entry((*name).to_owned()).or_default().push(*ns);
        }
        times
    }

    #[test]
    fn a_cost_is_the_difference_of_neighbours() {
        let alone = [0.25, 1.25, 0.25];
        let patched = [1.25, 2.75, 1.5];
        let pairs: Vec<_> = alone
            .iter()
            .zip(patched)
            .map(|(&alone, patched)| {
                (
                    run_of(&[(CLOCK, 4.0), ("x", alone)]),
                    run_of(&[(CLOCK, 4.0), ("x", 9.0), ("x", patched), ("x", 0.0)]),
                )
            })
            .collect();
        let cost = Cost::of("x", &pairs).unwrap();
        let found = [cost.ns, cost.least_ns, cost.largest_ns, cost.cycle_ns];
        assert_eq!(found, [1.25, 1.0, 1.5, 0.25]);
        assert!(Cost::of("y", &pairs).is_err());
    }

    #[test]
    fn the_loops_are_read_by_name() {
        let mut echo = program("printf");
        let times = times(echo.arg("adds 4.0\nx 1.5\nx 2.5\n")).unwrap();
        assert_eq!(times["x"], [1.5, 2.5]);
        assert!(super::times(program("printf").arg("nonsense\n")).is_err());
    }
}
