//! `profile --repeat N` and `--until ±Ppt`: records a command repeatedly.
//!
//! Each run has a file of its own, as `compare --base` and `--new` take them. Runs are not merged into one
//! file, because the interval comes from the differences between them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use membound_analyze::pool_runs;
use membound_record::Options;
use membound_report::units;
use membound_types::{Profile, RunSide};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::args::ProfileArgs;
use super::once::{self, Printed, Recorded};
use crate::job::{self, End};
use crate::output::{self, Target};
use crate::report;

/// Default maximum number of runs for `--until`.
const DEFAULT_MAX_RUNS: u32 = 20;

/// Minimum number of runs for `--until`: two may agree by chance.
const MIN_RUNS: usize = 3;

/// Records the command as often as requested; returns the exit code of its last run.
pub(super) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let most = args.repeat.unwrap_or(DEFAULT_MAX_RUNS);
    let (name, arguments) = args
        .command
        .split_first()
        .context("a command is run again, and there is none")?;
    let interrupted = listen()?;
    let options = once::options(args)?;
    let mut runs: Vec<(String, Profile)> = Vec::new();
    for number in 1..=most {
        let path = numbered(&args.output, number);
        Target::open(&path)?;
        let options = Options {
            output: path.clone(),
            ..options.clone()
        };
        let begun = Instant::now();
        let end = match once::record(name, arguments, options, Printed::Nothing)? {
            Recorded::Whole(end @ End::Exited(0)) => end,
            Recorded::NotStarted(code) | Recorded::Failed(End::Exited(0), code) => {
                return Ok(code);
            }
            Recorded::Whole(end) | Recorded::Failed(end, _) => {
                output::complain(&format!(
                    "run {number} of the command failed: no other follows"
                ));
                return Ok(job::end_like(end));
            }
        };
        membound_launch::finish_plans(begun.elapsed());
        runs.push((path.display().to_string(), report::profile_of(&path)?));
        if !args.quiet {
            output::complain(&progress(number, &runs));
        }
        if interrupted.load(Ordering::Relaxed) {
            output::complain("interrupted: no other run follows");
            return Ok(job::end_like(end));
        }
        if args.until.is_some_and(|half| is_narrow(&runs, half)) {
            break;
        }
    }
    print_combined(args, &runs);
    Ok(ExitCode::SUCCESS)
}

/// A flag that signals of the user set, to stop after the present run; the program may survive its own
/// signal.
fn listen() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("cannot listen for signals")?;
    }
    Ok(interrupted)
}

/// `a/b.run` with a number: `a/b-3.run`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = match path.extension() {
        Some(ending) => format!("{stem}-{number}.{}", ending.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    path.with_file_name(name)
}

fn combined(runs: &[(String, Profile)]) -> Option<RunSide> {
    let runs: Vec<(&str, &Profile)> = runs
        .iter()
        .map(|(file, profile)| (file.as_str(), profile))
        .collect();
    pool_runs(&runs)
}

/// Half the width of the interval of the stalled share.
fn half_width(side: &RunSide) -> f64 {
    let bound = side.memory_bound;
    (bound.high - bound.value).max(bound.value - bound.low)
}

fn is_narrow(runs: &[(String, Profile)], asked: f64) -> bool {
    runs.len() >= MIN_RUNS && combined(runs).is_some_and(|side| half_width(&side) <= asked)
}

fn progress(number: u32, runs: &[(String, Profile)]) -> String {
    let alone = runs
        .last()
        .map_or(0.0, |(_, run)| run.memory_bound.fraction);
    let all = combined(runs).map_or_else(String::new, |side| format!(", {} so far", share(&side)));
    format!(
        "run {number}: waits for memory in {} of CPU time{all}",
        units::percent(alone)
    )
}

/// Formats a share with its interval, as in `31 % [29, 33]`.
fn share(side: &RunSide) -> String {
    let bound = side.memory_bound;
    format!(
        "{} {}",
        units::percent(bound.value),
        units::percent_interval(bound.low, bound.high)
    )
}

/// Prints the result of all runs together, and their files.
fn print_combined(args: &ProfileArgs, runs: &[(String, Profile)]) {
    let Some(side) = combined(runs) else {
        return;
    };
    if let Some(asked) = args.until
        && !is_narrow(runs, asked)
    {
        output::complain(&format!(
            "the interval is ±{:.1} pt after {}, not ±{:.1} pt: {}",
            half_width(&side) * 100.0,
            units::plural(runs.len(), "run"),
            asked * 100.0,
            why_wide(&side, asked)
        ));
    }
    if args.quiet {
        return;
    }
    let between = side
        .memory_bound_deviation
        .map_or_else(String::new, |deviation| {
            format!(", ±{:.1} pt from run to run", deviation * 100.0)
        });
    output::complain(&format!(
        "{} together wait for memory in {} of CPU time{between}; {} elapsed, {} CPU time on average",
        units::plural(runs.len(), "run"),
        share(&side),
        units::seconds(side.elapsed_s),
        units::seconds(side.cpu_s)
    ));
    let (first, last) = (&runs[0].0, &runs[runs.len() - 1].0);
    output::complain(&format!(
        "they are in {first} to {last}: `membound compare --base RUN… --new RUN…` holds them to others"
    ));
    if let Ok(number) = u32::try_from(runs.len() + 1) {
        let next = numbered(&args.output, number);
        if next.exists() {
            output::complain(&format!("{} is of an earlier recording", next.display()));
        }
    }
}

/// Why the interval is still too wide.
fn why_wide(side: &RunSide, asked: f64) -> &'static str {
    let spread = side.memory_bound_deviation.unwrap_or(f64::INFINITY);
    if spread < asked {
        "each run by itself leaves as much open, which more runs do not change"
    } else {
        "its runs differ by more; --repeat N allows more of them"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_goes_before_the_ending() {
        for (path, expected) in [
            ("membound.run", "membound-3.run"),
            ("a/b.run", "a/b-3.run"),
            ("a.b/c", "a.b/c-3"),
            ("x.y.run", "x.y-3.run"),
        ] {
            assert_eq!(numbered(Path::new(path), 3), Path::new(expected));
        }
    }
}
