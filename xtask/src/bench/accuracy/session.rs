//! Runs cases: builds their programs, repeats each until its interval is narrow enough, and keeps
//! everything from which the verdicts are computed.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use membound_types::{Calibration, Document, MachineProfile, Profile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::case::SHARE;
use super::case::{Case, Observed, Other, ProfilingMethod, Program, latency_ns};
use super::cases::INCLUDED;
use super::probe::{Beside, Probe, Prober};
use super::statistics::{Mean, Reading, Tolerance, Verdict};
use crate::bench::{document, machine_profile};
use crate::run::{note, program, root, say, stdout_of, succeed};

/// Maximum number of attempts at a consistent machine profile.
const TRIES: usize = 3;
/// Relative difference that the latencies of the innermost cache in one machine profile may have.
const APART: f64 = 0.05;
/// Minimum number of conclusive repetitions for a verdict.
const MIN_REPETITIONS: usize = 3;

/// How often a case is repeated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) least: usize,
    pub(super) most: usize,
    /// Wanted half width of the interval, in points or percent.
    pub(super) half_width: f64,
}

/// The programs, the machine and the command of one run of the bench.
pub(super) struct Bed {
    membound: PathBuf,
    scratch: TempDir,
    share: PathBuf,
    pub(super) machine: MachineProfile,
}

/// Result of one figure of a case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) figure: String,
    pub(super) tolerance: Tolerance,
    /// Conclusive repetitions.
    pub(super) count: usize,
    /// Repetitions in which a probe found the machine perturbed.
    pub(super) inconclusive: usize,
    /// Means over the conclusive repetitions.
    pub(super) truth: Option<f64>,
    pub(super) found: Option<f64>,
    pub(super) error: Option<Mean>,
    pub(super) verdict: Verdict,
}

/// One run of a case.
#[derive(Serialize)]
struct Repetition {
    before: Probe,
    beside: Beside,
    after: Probe,
    disturbed: Option<String>,
    readings: Vec<Option<Reading>>,
}

impl Bed {
    /// Builds the program of the probes and measures the machine.
    ///
    /// # Errors
    /// When a program cannot be built or fails.
    pub(super) fn new(membound: &Path) -> Result<Self> {
        let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
        let share = built(SHARE, scratch.path())?;
        let machine = measured(membound, &scratch.path().join("machine.json"))?;
        Ok(Self {
            membound: membound.to_owned(),
            share,
            machine,
            scratch,
        })
    }

    /// Repeats a case as `plan` says; returns its rows and the raw repetitions.
    ///
    /// # Errors
    /// When a program fails.
    pub(super) fn run(&self, case: &Case, plan: Plan) -> Result<(Vec<Row>, Value)> {
        let prober = Prober::new(&self.share, &self.machine)?;
        let mut done: Vec<Repetition> = Vec::new();
        loop {
            let repetition = self.repeat(case, &prober)?;
            if let Some(why) = &repetition.disturbed {
                note(format_args!("{}: inconclusive: {why}", case.name));
            }
            done.push(repetition);
            let rows = rows(case, &done);
            let is_known = |row: &Row| {
                let error = row.error.as_ref();
                row.count >= plan.least
                    && error.is_some_and(|it| row.tolerance.is_known(it, plan.half_width))
            };
            let is_enough = done.len() >= plan.least && rows.iter().all(is_known);
            if is_enough || done.len() >= plan.most {
                return Ok((rows, json!({ "case": case.name, "repetitions": done })));
            }
        }
    }

    fn repeat(&self, case: &Case, prober: &Prober<'_>) -> Result<Repetition> {
        let undisturbed_ns = match cached_chase(case) {
            Some(area_bytes) => Some(prober.hop_ns(area_bytes)?),
            None => None,
        };
        let before = prober.probe()?;
        let begun = Instant::now();
        let observed = self.observe(case)?;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let after = prober.probe()?;
        let beside = beside(case, &observed, undisturbed_ns, elapsed_s);
        let disturbed = prober.disturbance(&before, &beside, &after);
        let figures = case.figures.iter();
        let readings = figures
            .map(|figure| (figure.read)(&observed))
            .collect::<Result<_>>();
        Ok(Repetition {
            before,
            beside,
            after,
            disturbed,
            readings: readings.with_context(|| case.name.clone())?,
        })
    }

    /// Profiles the case's program once.
    fn observe(&self, case: &Case) -> Result<Observed> {
        let built = built(case.program, self.scratch.path())?;
        let run = self.scratch.path().join("one.run");
        let mut other = None;
        let mut calibration = None;
        let said = match &case.method {
            ProfilingMethod::Started => self.start(case, &built, &case.words, &run)?,
            ProfilingMethod::Attached => self.attach(case, &built, &run)?,
            ProfilingMethod::Calibrated => {
                let mut measure = self.command();
                measure.args(["measure", "calibration", "--quick", "--json", "-"]);
                let found: Document<Calibration> = document(&mut measure)?;
                calibration = Some(found.part);
                self.start(case, &built, &case.words, &run)?
            }
            ProfilingMethod::Compared { with, words } => {
                let said = self.start(case, &built, &case.words, &run)?;
                let second = self.scratch.path().join("other.run");
                let with = self::built(*with, self.scratch.path())?;
                let other_said = self.start(case, &with, words, &second)?;
                let mut compare = self.command();
                compare.arg("compare").args([&run, &second]);
                other = Some(Other {
                    said: other_said,
                    profile: self.report(&second)?,
                    compared: stdout_of(&mut compare)?,
                });
                said
            }
        };
        Ok(Observed {
            machine: self.machine.clone(),
            said,
            profile: self.report(&run)?,
            other,
            calibration,
        })
    }

    /// The membound command, with its files under the bench's own directory.
    fn command(&self) -> Command {
        let mut command = program(&self.membound);
        command.env("XDG_DATA_HOME", self.scratch.path().join("data"));
        command.env("XDG_CACHE_HOME", self.scratch.path().join("cache"));
        command
    }

    fn profile(&self, case: &Case, run: &Path) -> Command {
        let mut command = self.command();
        command.args(["profile", "--quiet", "--machine"]);
        command.arg(self.scratch.path().join("machine.json"));
        command.arg("-o").arg(run).args(case.options);
        command
    }

    fn start(&self, case: &Case, built: &Path, words: &[String], run: &Path) -> Result<String> {
        let mut command = self.profile(case, run);
        stdout_of(command.arg("--").arg(built).args(words))
    }

    fn attach(&self, case: &Case, built: &Path, run: &Path) -> Result<String> {
        let mut started = program(built);
        started.args(&case.words).stdout(Stdio::piped());
        let mut child = started.spawn().context("cannot start the program")?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
        let read = BufReader::new(stdout).read_line(&mut line);
        let mut profile = self.profile(case, run);
        let done = succeed(profile.args(["--pid", &child.id().to_string()]));
        child.kill().context("cannot end the program")?;
        child.wait().context("cannot wait for the program")?;
        read.context("the program wrote no text")?;
        done.map(|()| line)
    }

    fn report(&self, run: &Path) -> Result<Profile> {
        let mut command = self.command();
        document(command.arg("report").arg(run).args(["--format", "json"]))
    }
}

/// The rows of a case after these repetitions, without figures that no run has a value for.
fn rows(case: &Case, done: &[Repetition]) -> Vec<Row> {
    let conclusive: Vec<&Repetition> = done.iter().filter(|it| it.disturbed.is_none()).collect();
    let inconclusive = done.len() - conclusive.len();
    let figures = case.figures.iter().enumerate();
    figures
        .filter(|(at, _)| done.iter().any(|it| it.readings[*at].is_some()))
        .map(|(at, figure)| {
            let readings: Vec<Reading> = (conclusive.iter())
                .filter_map(|it| it.readings[at])
                .collect();
            let mean = |of: &dyn Fn(&Reading) -> f64| {
                let sum: f64 = readings.iter().map(of).sum();
                (!readings.is_empty()).then(|| sum / readings.len() as f64)
            };
            let errors: Vec<f64> = (readings.iter())
                .map(|reading| figure.tolerance.error(*reading))
                .collect();
            let error = figure.tolerance.mean(&errors);
            let verdict = match &error {
                Some(error) if readings.len() >= MIN_REPETITIONS => figure.tolerance.judge(error),
                _ => Verdict::Inconclusive,
            };
            Row {
                case: case.name.clone(),
                figure: figure.name.clone(),
                tolerance: figure.tolerance,
                count: readings.len(),
                inconclusive,
                truth: mean(&|it| it.truth),
                found: mean(&|it| it.found),
                error,
                verdict,
            }
        })
        .collect()
}

/// Bytes that the case chases through, if they fit a cache.
fn cached_chase(case: &Case) -> Option<u64> {
    let level = case.name.strip_prefix("shares/")?;
    let is_cached = level.starts_with("L2/") || level.starts_with("L3/");
    (is_cached && !level.ends_with("/0")).then(|| case.words.first()?.parse().ok())?
}

/// What the program measures of its surroundings with its own clock, if it has one.
fn beside(case: &Case, observed: &Observed, hop_ns: Option<f64>, elapsed_s: f64) -> Beside {
    let mut beside = Beside {
        elapsed_s,
        ..Beside::default()
    };
    if case.program != SHARE {
        return beside;
    }
    let each = |all: &str, one: &str| {
        let (all, one) = (observed.told(all).ok()?, observed.told(one).ok()?);
        (one > 0.0).then(|| all / one)
    };
    beside.round_ns = each("alu_ns", "rounds").map(|ns| ns * (1.0 - observed.recorded()));
    beside.hop_ns = each("chase_ns", "hops").zip(hop_ns);
    beside
}

/// Builds a program unless it is built already.
fn built(source: Program, directory: &Path) -> Result<PathBuf> {
    let name: String = (source.source.chars().chain(source.flags.chars()))
        .map(|it| if it.is_ascii_alphanumeric() { it } else { '-' })
        .collect();
    let path = directory.join(name);
    if path.exists() {
        return Ok(path);
    }
    let (compiler, words): (_, &[&str]) = match source.source.rsplit('.').next() {
        Some("cc") => ("g++", &["-g", "-pthread"]),
        Some("rs") => ("rustc", &["--edition", "2024", "-g"]),
        _ => ("gcc", &["-g", "-pthread"]),
    };
    let mut command = program(compiler);
    command.args(words);
    if compiler != "rustc" {
        command.arg("-I").arg(root().join(INCLUDED));
    }
    command.args(source.flags.split_whitespace());
    succeed(command.arg("-o").arg(&path).arg(root().join(source.source)))?;
    Ok(path)
}

/// Measures the machine into a file at `path`, again if the profile is inconsistent or does not
/// reach memory.
fn measured(membound: &Path, path: &Path) -> Result<MachineProfile> {
    for _ in 0..TRIES {
        machine_profile(membound, path)?;
        let text = std::fs::read_to_string(path).context("it was just written")?;
        let profile: MachineProfile = serde_json::from_str(&text).context("it is a profile")?;
        if latency_ns(&profile, "DRAM").is_some() && contradiction(&profile) < APART {
            return Ok(profile);
        }
        note("the machine profile contradicts itself: measured again");
    }
    bail!("{TRIES} machine profiles contradict themselves: this machine is too busy")
}

/// Relative difference between the latency of the innermost cache in the calibration and in the
/// levels.
fn contradiction(profile: &MachineProfile) -> f64 {
    let calibrated = profile.calibration.known().and_then(|known| {
        let mut levels = known.levels.iter();
        levels.find(|it| it.name == "L1")
    });
    let both = calibrated.zip(latency_ns(profile, "L1"));
    both.map_or(f64::INFINITY, |(calibrated, measured)| {
        (calibrated.latency_ns / measured - 1.0).abs()
    })
}

/// Prints the head of the table that [`show`] continues.
pub(super) fn head() {
    say(format_args!(
        "{:<22}{:<36}{:>4}{:>10}{:>10}  {:<34}{:<12}verdict",
        "case", "figure", "runs", "truth", "found", "error [95 %]", "tolerance"
    ));
}

/// Prints a row of the table.
pub(super) fn show(row: &Row) {
    let number = |value: Option<f64>| value.map_or_else(String::new, |it| format!("{it:.4}"));
    let error = row
        .error
        .as_ref()
        .map_or_else(String::new, |it| row.tolerance.told_mean(it, row.count));
    say(format_args!(
        "{:<22}{:<36}{:>4}{:>10}{:>10}  {error:<34}{:<12}{}{}",
        row.case,
        row.figure,
        row.count,
        number(row.truth),
        number(row.found),
        row.tolerance.told(),
        row.verdict.name(),
        match row.inconclusive {
            0 => String::new(),
            count => format!(" ({count} inconclusive)"),
        },
    ));
}

#[cfg(test)]
mod tests {
    use membound_types::MachineInfo;

    use super::super::cases;
    use super::*;

    fn repetition(disturbed: bool, readings: &[f64]) -> Repetition {
        let probe = Probe::default();
        Repetition {
            before: probe,
            beside: Beside::default(),
            after: probe,
            disturbed: disturbed.then(|| "somebody".to_owned()),
            readings: readings
                .iter()
                .map(|found| {
                    Some(Reading {
                        truth: 0.5,
                        found: *found,
                    })
                })
                .collect(),
        }
    }

    fn case() -> Case {
        let machine = MachineProfile::unmeasured(MachineInfo::default());
        let (cases, _) = cases::all(&machine);
        let mut cases = cases.into_iter();
        cases.find(|case| case.name == "shares/L1/50").unwrap()
    }

    #[test]
    fn a_disturbed_repetition_counts_for_nothing_whatever_it_found() {
        let good = || repetition(false, &[0.51, 1.0]);
        for found in [0.5, 9.0] {
            let done = [good(), repetition(true, &[found, 0.0]), good(), good()];
            let rows = rows(&case(), &done);
            assert_eq!((rows[0].count, rows[0].inconclusive), (3, 1));
            assert!((rows[0].error.unwrap().value - 1.0).abs() < 1e-9);
            assert_eq!(rows[0].verdict, Verdict::Met);
        }
    }

    #[test]
    fn a_figure_of_too_few_quiet_runs_is_inconclusive() {
        let done = [
            repetition(false, &[0.51, 1.0]),
            repetition(true, &[0.51, 1.0]),
            repetition(false, &[0.51, 1.0]),
        ];
        let rows = rows(&case(), &done);
        assert!(rows.iter().all(|row| row.verdict == Verdict::Inconclusive));
    }

    #[test]
    fn only_chases_through_caches_are_held_to_their_undisturbed_hop() {
        let mut case = case();
        assert_eq!(cached_chase(&case), None);
        case.name = "shares/L2/50".to_owned();
        assert_eq!(cached_chase(&case), Some(16 << 10));
        case.name = "shares/L2/0".to_owned();
        assert_eq!(cached_chase(&case), None);
    }
}
