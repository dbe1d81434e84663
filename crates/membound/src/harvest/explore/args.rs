//! Arguments of `harvest explore`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use membound_launch::RequestsBy;
use membound_types::{ExploreSweep, IdlePolicy};

use crate::harvest::args::{bound, percent, requests};
use crate::profile::args::seconds;

/// Arguments of `harvest explore`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each round runs the program by itself and then once under each setting, forwards and \
                  backwards in turn; figures are medians over rounds, with the smallest and largest value \
                  (from six rounds on the 95 % interval) in brackets. All programs share one CPU, except \
                  while they are profiled. The first run of the program by itself writes to stdout and \
                  stderr, where `harvest run` has it write, and all other runs to /dev/null; tables go to \
                  stderr. A program that fails by itself is not explored: its exit code is passed on. A \
                  setting that fails is a row with the reason. A regular file as stdin is read from its beginning by each run; \
                  anything else is replaced by /dev/null. Ctrl-C ends the runs and shows what was measured \
                  up to then."
)]
pub(crate) struct ExploreArgs {
    /// A program to run in the command's stalls, as a shell would read it. May be repeated [default: the
    /// command itself].
    #[arg(long, value_name = "CMD")]
    pub(crate) scavenger: Vec<String>,
    /// Copies of each scavenger.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) copies: u32,
    /// What to vary, as a list: bound (time until the command runs again), distance (between a scavenger's
    /// yields), overhead (CPU time that yields may cost where loads hit, which decides how many yield), parts (of a yield, each left out), periods (of the profile), chases (1, 2, 4, 6, 8 programs
    /// at once), kernel (who schedules), slo (objectives of latency; needs --requests) [default: all that
    /// apply].
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub(crate) sweep: Vec<ExploreSweep>,
    /// Bounds and distances, in nanoseconds or `none` [default: 50,100,200,500,1000,none].
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = bound_or_none)]
    pub(crate) bounds: Vec<BoundNs>,
    /// Bounds on the overhead of yields, as shares of the CPU time [default: 0.2%,1%,2%,5%,10%,20%].
    #[arg(long, value_name = "P%", value_delimiter = ',', value_parser = percent)]
    pub(crate) overheads: Vec<f64>,
    /// Rounds: how often each setting is run.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pairs: u32,
    /// The CPU that all programs share [default: the last one that may be used].
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,
    /// A plan that `harvest plan` wrote, of the command or of a scavenger, which stays the same in all
    /// settings. May be repeated; a program without one is profiled first.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Vec<PathBuf>,
    /// How long each program is run to profile it where there is no plan.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) profile_s: Duration,
    /// Tell requests of the command, whose latency is compared instead of its time: as in `harvest run`.
    #[arg(long, value_name = "HOW", value_parser = requests)]
    pub(crate) requests: Option<RequestsBy>,
    /// What scavengers do that have no thread to run on, as in `harvest run`; programs at once take turns
    /// only.
    #[arg(
        long,
        value_name = "WHAT",
        default_value_t,
        hide_default_value = true,
        help = "What scavengers do that have no thread to run on, as in `harvest run`; where programs at \
                once are counted, they stop [default: harvest]"
    )]
    pub(crate) idle: IdlePolicy,
    /// Machine profile to take latencies from [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Write the document to FILE (`-` or nothing: stdout).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with tables and plots to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Say nothing but what goes wrong.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

/// A bound in nanoseconds; `None`: no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BoundNs(pub(crate) Option<f64>);

fn bound_or_none(text: &str) -> Result<BoundNs, String> {
    match text.trim() {
        "none" => Ok(BoundNs(None)),
        text => bound(text)
            .map(|ns| BoundNs(Some(ns)))
            .map_err(|error| format!("{error}, nor `none`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_a_number_or_none() {
        assert_eq!(bound_or_none("200"), Ok(BoundNs(Some(200.0))));
        assert_eq!(bound_or_none(" none"), Ok(BoundNs(None)));
        for text in ["", "0", "-1", "all", "nan"] {
            assert!(bound_or_none(text).is_err(), "{text}");
        }
    }
}
