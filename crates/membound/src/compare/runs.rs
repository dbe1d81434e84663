//! `compare` of runs: improvements, differences within noise, and gates.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use membound_analyze::{Expression, judge};
use membound_report::gates::{self, Undecided};
use membound_report::{page, text};
use membound_types::{GateVerdict, Profile, RunComparison};

use super::{CompareArgs, CompareFormat, UndecidedArg};
use crate::output::{self, Target, Usage};
use crate::report;

/// The beginning of every SQLite database; whether one is a run shows when it is read.
const RUN_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Whether `path` is an SQLite database and so may be a run.
pub(super) fn is_run(path: &Path) -> bool {
    let mut start = [0; RUN_MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *RUN_MAGIC
}

/// Compares runs: the two named sides, otherwise each run with the first.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let expressions = expressions(args)?;
    let sides = sides(args, &expressions)?;
    let mut outputs = Outputs::open(args)?;
    let comparison = match sides {
        None => {
            let runs = read(&args.paths)?;
            membound_analyze::compare(&named(&runs))
        }
        Some((base, new)) => {
            let (base, new) = (read(base)?, read(new)?);
            let (base, new) = (named(&base), named(&new));
            let mut comparison = membound_analyze::compare_sides(&base, &new);
            if !expressions.is_empty() {
                sampled(base.iter().chain(&new))?;
                comparison.gates =
                    judge(&base, &new, &expressions).map_err(|error| Usage(error.to_string()))?;
            }
            comparison
        }
    };
    let undecided = match args.undecided {
        UndecidedArg::Pass => Undecided::Passes,
        UndecidedArg::Fail => Undecided::Fails,
    };
    outputs.write(args, &comparison, undecided)?;
    Ok(verdict(&comparison, undecided))
}

fn expressions(args: &CompareArgs) -> anyhow::Result<Vec<Expression>> {
    let parsed = args.fail_on.iter().map(|text| text.parse());
    let expressions: Result<Vec<Expression>, _> = parsed.collect();
    expressions.map_err(|error| Usage(error.to_string()).into())
}

/// The runs of each side; `None` where each run is compared by itself.
type Sides<'a> = Option<(&'a [PathBuf], &'a [PathBuf])>;

fn sides<'a>(args: &'a CompareArgs, expressions: &[Expression]) -> anyhow::Result<Sides<'a>> {
    let all = || args.paths.iter().chain(&args.base).chain(&args.new);
    if let Some(other) = all().find(|path| !is_run(path)) {
        // A file that cannot be opened is reported as such, since it may be a run.
        File::open(other).with_context(|| format!("cannot read {}", other.display()))?;
        bail!(
            "{} is not a run: runs are compared with runs only",
            other.display()
        );
    }
    if !args.base.is_empty() {
        let mut paths = BTreeSet::new();
        if let Some(twice) = all().find(|path| !paths.insert(*path)) {
            let why = format!("{} is named twice: a run counts once", twice.display());
            return Err(Usage(why).into());
        }
        return Ok(Some((&args.base, &args.new)));
    }
    match (expressions, args.paths.as_slice()) {
        ([], _) => Ok(None),
        (_, [_, _]) => Ok(Some(args.paths.split_at(1))),
        (_, paths) => Err(Usage(format!(
            "--fail-on has two sides, and {} runs are named: say which they are with --base RUN… \
             --new RUN…",
            paths.len()
        ))
        .into()),
    }
}

fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<(String, Profile)>> {
    let runs = paths.iter();
    runs.map(|path| Ok((path.display().to_string(), report::profile_of(path)?)))
        .collect()
}

fn named(runs: &[(String, Profile)]) -> Vec<(&str, &Profile)> {
    let runs = runs.iter();
    runs.map(|(file, profile)| (file.as_str(), profile))
        .collect()
}

/// Refuses runs without samples: they are no evidence for or against a change.
fn sampled<'a>(runs: impl Iterator<Item = &'a (&'a str, &'a Profile)>) -> anyhow::Result<()> {
    for (file, profile) in runs {
        ensure!(profile.run.samples > 0, "{file}: {}", report::NO_SAMPLES);
    }
    Ok(())
}

/// The requested output files.
struct Outputs {
    json: Option<Target>,
    html: Option<Target>,
    markdown: Option<Target>,
    junit: Option<Target>,
}

impl Outputs {
    fn open(args: &CompareArgs) -> anyhow::Result<Self> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(Target::open).transpose();
        let outputs = Self {
            json: open(&args.json)?,
            html: args.html.as_deref().map(Target::page).transpose()?,
            markdown: open(&args.markdown)?,
            junit: open(&args.junit)?,
        };
        if outputs.to_stdout().count() > 1 {
            let why = "stdout takes one of --json, --markdown and --junit";
            return Err(Usage(why.to_owned()).into());
        }
        Ok(outputs)
    }

    fn to_stdout(&self) -> impl Iterator<Item = &Target> {
        let files = [&self.json, &self.markdown, &self.junit];
        let open = files.into_iter().flatten();
        open.filter(|target| target.is_stdout())
    }

    /// Writes every file, even if another one could not be written.
    fn write(
        &mut self,
        args: &CompareArgs,
        comparison: &RunComparison,
        undecided: Undecided,
    ) -> anyhow::Result<()> {
        let shown = self.to_stdout().next().is_some();
        let mut written = Vec::new();
        if let Some(target) = &mut self.json {
            written.push(output::json(comparison).and_then(|text| target.write(&text)));
        }
        if let Some(target) = &mut self.html {
            written.push(target.write(&page::run_comparison(comparison)));
        }
        if let Some(target) = &mut self.markdown {
            written.push(target.write(&gates::markdown(comparison, undecided)));
        }
        if let Some(target) = &mut self.junit {
            let xml = gates::junit(comparison, undecided).map_err(anyhow::Error::msg);
            written.push(xml.and_then(|xml| target.write(&xml)));
        }
        if !shown {
            output::print(&match args.format {
                CompareFormat::Text => text::run_comparison(comparison, output::style()),
                CompareFormat::Json => output::json(comparison)?,
            });
        }
        written.into_iter().collect()
    }
}

/// The exit code; prints a line on stderr for each gate that did not pass.
fn verdict(comparison: &RunComparison, undecided: Undecided) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for gate in &comparison.gates {
        if undecided.fails(gate.verdict) {
            code = ExitCode::FAILURE;
        }
        let word = match (gate.verdict, undecided) {
            (GateVerdict::Passed, _) => continue,
            (GateVerdict::Failed, _) => "failed",
            (GateVerdict::Undecided, Undecided::Fails) => "undecided, which fails",
            (GateVerdict::Undecided, Undecided::Passes) => "undecided, which passes",
        };
        output::complain(&format!("{} {word}: {}", gate.expression, gate.text));
    }
    code
}
