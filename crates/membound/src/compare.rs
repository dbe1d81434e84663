//! `membound compare`: compares profiles or runs, and shows differences and outliers; its exit code can guard
//! a fleet.
//!
//! A directory is a fleet: its files are read on all CPUs, and only the figures of each file are kept, so
//! that thousands of profiles need little memory. Files named beside a directory are compared with the
//! fleet's median. The documents' kinds decide what is compared ([`read`]); a new kind needs a reader there
//! and a view in the model crate.

mod profiles;
mod read;
mod runs;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(crate) use self::profiles::run;

/// Help text about gates.
const GATES: &str = "\
Gates for runs (--fail-on EXPR):
  'memory-bound +3pt'   stalled share of CPU time: 3 percentage points more
  'memory-bound +10%'   stalled seconds: 10 % more
  'line x.c:40 +10%'    the same of a source line
  'function NAME +2pt'  of a function
  'object NAME +5%'     of an object, by the name that reports give it
  'false-sharing new'   false sharing of an object that had none before

The mean of the new runs is compared with the mean of the base runs. The change has a 98 % \
interval, from the spread between the runs of each side, or from the run's own interval if a side \
has only one run. A gate fails if the whole interval lies above the limit, and passes if it lies \
below; otherwise it is undecided, and membound says how many runs per side would decide it. Start \
with ten runs per side, recorded alternately.

Exit codes: 0 all gates passed, 1 a gate failed, 2 an expression cannot be read, or names \
something that no run has or that a run did not record.";

/// How the comparison is shown on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompareFormat {
    /// Summary to read.
    #[default]
    Text,
    /// The document that `--json` writes.
    Json,
}

/// What becomes of a gate that is neither failed nor passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum UndecidedArg {
    /// It passes, with a line on stderr.
    #[default]
    Pass,
    /// It fails.
    Fail,
}

/// Arguments of `compare`.
#[derive(Args, Debug)]
#[command(after_help = GATES)]
pub(crate) struct CompareArgs {
    /// Files to compare, the reference first: profiles, documents of one part, saved output of other
    /// tools, or runs; or a directory of profiles.
    #[arg(required_unless_present = "base", value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// Runs of the program before the change; they are merged.
    #[arg(long, num_args = 1.., value_name = "RUN", requires = "new", conflicts_with = "paths")]
    base: Vec<PathBuf>,
    /// Runs of the program after the change.
    #[arg(long, num_args = 1.., value_name = "RUN", requires = "base", conflicts_with = "paths")]
    new: Vec<PathBuf>,
    /// Write the document to FILE (`-`: stdout).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Exit with code 1 if a figure of a machine is worse by more than P percent and by more than
    /// noise, or if runs fail EXPR (see below). May be repeated for runs.
    #[arg(long, value_name = "P%|EXPR", allow_hyphen_values = true)]
    fail_on: Vec<String>,
    /// Result of an undecided gate: pass, fail.
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        requires = "fail_on"
    )]
    undecided: UndecidedArg,
    /// Write the comparison of runs as Markdown to FILE, for a pull request or a job summary.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write each gate to FILE as a test case of JUnit XML.
    #[arg(long, value_name = "FILE", requires = "fail_on")]
    junit: Option<PathBuf>,
    /// Format of the comparison on stdout.
    #[arg(long, value_enum, default_value_t)]
    format: CompareFormat,
    /// Show all figures, not only those that differ.
    #[arg(long)]
    all: bool,
}
