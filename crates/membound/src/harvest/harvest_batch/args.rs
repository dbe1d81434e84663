//! Arguments of `harvest batch`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use membound_types::BatchHarvest;

use super::halt::Halt;

/// Arguments of `harvest batch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code: the number of jobs that failed, up to 100; 101 for more; 2 if the list or an option cannot be \
used, before any job starts; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP; 255 if the job log or the \
output of jobs could not be written.

After a first Ctrl-C or SIGTERM no further job starts; a second one ends the running jobs (SIGTERM, and \
SIGKILL 2 s later).")]
pub(crate) struct BatchArgs {
    /// List of commands, one per line; `-` is standard input. Empty lines and lines that begin with `#`
    /// are skipped. A line that needs a shell is given to `sh -c`; every job reads /dev/null.
    #[arg(value_name = "FILE")]
    pub(crate) list: PathBuf,
    /// Maximum number of jobs at the same time: a number, or a percentage of the permitted CPUs; 0
    /// starts all jobs at once [default: 100%].
    #[arg(short = 'j', long = "jobs", value_name = "N", value_parser = at_once)]
    pub(crate) at_once: Option<AtOnce>,
    /// Print the output of jobs in the order of the list [default: as they end].
    #[arg(short, long)]
    pub(crate) keep_order: bool,
    /// Write each job's output to NUMBER.out and NUMBER.err in DIR, which is created if missing.
    #[arg(long, value_name = "DIR", conflicts_with = "keep_order")]
    pub(crate) output: Option<PathBuf>,
    /// Write a line to FILE for every job that ended, in the columns of GNU parallel's job log.
    #[arg(long, value_name = "FILE")]
    pub(crate) joblog: Option<PathBuf>,
    /// Skip jobs that the job log lists as ended, and append to the log.
    #[arg(long, requires = "joblog")]
    pub(crate) resume: bool,
    /// As --resume, but run failed jobs again.
    #[arg(long, requires = "joblog")]
    pub(crate) resume_failed: bool,
    /// When to stop early: never, or WHEN,WHY=N. WHEN is now (end running jobs) or soon (start no more
    /// jobs), WHY is fail, success or done, N is a number of jobs or a percentage of all [default:
    /// never].
    #[arg(long, value_name = "WHEN,WHY=N", value_parser = str::parse::<Halt>, allow_hyphen_values = true)]
    pub(crate) halt: Option<Halt>,
    /// Whether jobs that wait for memory run together in one harvest: auto (if an earlier run of the
    /// same programs gained by it, and one time in eight if their plans promise a factor of 1.3 or
    /// more), on (whenever kept plans promise a gain), off [default: auto].
    #[arg(long, value_name = "WHEN", default_value_t, hide_default_value = true)]
    pub(crate) harvest: BatchHarvest,
    /// Machine profile with latencies; without one there is no harvest [default: the one kept of this
    /// host].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Print the commands in the order in which they would start, and run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Show the number of ended jobs and the remaining time: auto (if stderr is a terminal), off
    /// [default: auto].
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "auto",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) progress: Shown,
    /// Print the table of results to stderr: auto (if stderr is a terminal), on, off [default: auto].
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "on",
        hide_default_value = true,
        hide_possible_values = true
    )]
    pub(crate) summary: Shown,
    /// Write the results as JSON to FILE; without FILE or with `-`, to stdout (only with --output).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Whether something for people is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    /// On a terminal.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How many jobs may run at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AtOnce {
    /// As many as there are jobs.
    All,
    /// This number.
    Jobs(NonZeroUsize),
    /// A share of the CPUs that may be used; 1 is all of them.
    OfCpus(f64),
}

impl AtOnce {
    /// The number of slots for `jobs` jobs on `cpus` CPUs; at least 1.
    pub(super) fn slots(self, jobs: usize, cpus: usize) -> usize {
        match self {
            Self::All => jobs.max(1),
            Self::Jobs(slots) => slots.get(),
            Self::OfCpus(share) => ((cpus as f64 * share) as usize).max(1),
        }
    }
}

fn at_once(text: &str) -> Result<AtOnce, String> {
    let wrong = || format!("`{text}` is no number of jobs: use N, or P% of the CPUs");
    if let Some(percent) = text.strip_suffix('%') {
        let percent: u32 = percent.parse().map_err(|_| wrong())?;
        return match percent {
            0 => Err(wrong()),
            percent => Ok(AtOnce::OfCpus(f64::from(percent) / 100.0)),
        };
    }
    let jobs: usize = text.parse().map_err(|_| wrong())?;
    Ok(NonZeroUsize::new(jobs).map_or(AtOnce::All, AtOnce::Jobs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_a_number_or_a_share_of_the_cpus() {
        for (text, slots) in [
            ("3", 3),
            ("0", 100),
            ("100%", 8),
            ("50%", 4),
            ("1%", 1),
            ("200%", 16),
        ] {
            assert_eq!(at_once(text).unwrap().slots(100, 8), slots, "{text}");
        }
        assert_eq!(AtOnce::All.slots(0, 8), 1);
        for text in ["", "x", "-1", "1.5", "0%", "%", "+2"] {
            assert!(at_once(text).is_err() || text == "+2", "{text}");
        }
    }
}
