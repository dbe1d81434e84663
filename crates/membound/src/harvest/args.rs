//! Arguments of `harvest`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use membound_input::parse_size;
use membound_launch::RequestsBy;
use membound_types::{CpuId, DistanceRule, HarvestPart, HarvestRole, IdlePolicy, SmtPolicy};

use super::batch::args::BatchArgs;
use super::explore::args::ExploreArgs;
use crate::profile::args::seconds;

/// What to do about stall time.
#[derive(Debug, Subcommand)]
pub(crate) enum HarvestCommand {
    /// Say where a profiled program would yield, what that gives, and why it would not elsewhere.
    Plan(PlanArgs),
    /// Run a program, and others in the time that it waits for memory.
    Run(Box<RunArgs>),
    /// Run a program under one setting of a harvest after another, and under the kernel's scheduler, and
    /// lay what comes of it side by side.
    Explore(Box<ExploreArgs>),
    /// Run a list of commands, several at a time, those that wait for memory together where that was
    /// measured to gain.
    Batch(Box<BatchArgs>),
    /// Switch off a harvest that runs: its command goes on without yields, and its scavengers wait.
    Stop(StopArgs),
}

/// Arguments of `harvest stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// The `membound harvest run`, or its command [default: the only one that runs].
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Arguments of `harvest plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// The run file that `membound profile` recorded.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// primary (its stall time is harvested), scavenger (it runs in that of others).
    #[arg(
        long,
        value_name = "ROLE",
        default_value_t,
        hide_default_value = true,
        help = "primary (its stall time is harvested), scavenger (it runs in that of others) \
                [default: primary]"
    )]
    pub(crate) role: HarvestRole,
    /// Machine profile to take levels and latencies from [default: the run's own].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Share of the CPU time that yields may cost where loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    pub(crate) max_overhead: f64,
    /// Longest time between two yields of a scavenger, in nanoseconds [default: 200].
    #[arg(long, value_name = "D", value_parser = bound)]
    pub(crate) bound_ns: Option<f64>,
    /// What that time is: max (over all paths), expected (their average) [default: max].
    #[arg(long, value_name = "RULE")]
    pub(crate) distance: Option<DistanceRule>,
    /// An earlier plan, whose decisions hold where the figures permit both.
    #[arg(long, value_name = "FILE")]
    pub(crate) previous: Option<PathBuf>,
    /// Write the document to FILE (`-` or nothing: stdout, instead of text).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `harvest run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A program to run in the command's stalls, as a shell would read it: an executable, or a
    /// shared object with `main` or `entry`. May be repeated.
    #[arg(long, value_name = "CMD")]
    pub(crate) scavenger: Vec<String>,
    /// Copies of each scavenger.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) copies: u32,
    /// Scavengers that a thread of the command has at one time [default: all; all but one where
    /// idle time is harvested].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) per_thread: Option<u32>,
    /// A plan that `harvest plan` wrote, of the command or of a scavenger. May be repeated. A program
    /// without one follows the plan that is kept of it; without that it is profiled while it runs, and its
    /// plan is kept: the command follows it from then on, scavengers in the next run.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Vec<PathBuf>,
    /// Run programs without a plan once more beforehand to profile them, side effects included.
    #[arg(long)]
    pub(crate) rehearse: bool,
    /// How long a program without a plan is profiled at most; the command, by its CPU time.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) profile_s: Duration,
    /// Longest time from a yield of the command until it runs again, in nanoseconds.
    #[arg(long, value_name = "D", value_parser = bound)]
    pub(crate) bound_ns: Option<f64>,
    /// Share of the CPU time that yields may cost where loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    pub(crate) max_overhead: f64,
    /// How much slower the command may become: where it is more, yields that are worth least are
    /// taken out, and then scavengers let in less.
    #[arg(long, value_name = "P%", value_parser = percent)]
    pub(crate) max_slowdown: Option<f64>,
    /// Tell requests of the command, whose latency is measured: sockets (from a receive to the next
    /// send on it), FUNCTION (each call), BEGIN..END (from a call of one function to the thread's
    /// next call of the other). Functions by their names in symbol tables.
    #[arg(long, value_name = "HOW", value_parser = requests)]
    pub(crate) requests: Option<RequestsBy>,
    /// Duration that 95 in 100 of the command's requests are not to exceed, in nanoseconds:
    /// scavengers are let in less where more do. Needs --requests.
    #[arg(long, value_name = "NS", value_parser = bound)]
    pub(crate) slo_p95: Option<f64>,
    /// What scavengers do that have no thread to run on: harvest (run in time that nobody wants),
    /// steal (wait for another thread), stop.
    #[arg(
        long,
        value_name = "WHAT",
        default_value_t,
        hide_default_value = true,
        help = "What scavengers do that have no thread to run on: harvest (run in time that \
                nobody wants), steal (wait for another thread), stop [default: harvest]"
    )]
    pub(crate) idle: IdlePolicy,
    /// Whether scavengers may run beside the command on other hardware threads of its cores, with --idle
    /// harvest: auto (with --slo-p95, while it keeps to that and --max-slowdown; else the kernel decides),
    /// on (also without --slo-p95), off (they are kept off these, as they are where a bound is missed).
    #[arg(
        long,
        value_name = "WHEN",
        default_value_t,
        hide_default_value = true,
        help = "Whether scavengers may run beside the command on other hardware threads of its \
                cores, with --idle harvest: auto (with --slo-p95, while it keeps to that and \
                --max-slowdown; else the kernel decides), on (also without --slo-p95), off (they \
                are kept off these, as they are where a bound is missed) [default: auto]"
    )]
    pub(crate) smt: SmtPolicy,
    /// Hardware threads that share a core, where the machine does not tell (many virtual machines do
    /// not). May be repeated, once for each core [default: what the kernel says].
    #[arg(long, value_name = "CPU,CPU", value_parser = core)]
    pub(crate) siblings: Vec<Core>,
    /// Memory that all scavengers may have together, one half of it in equal parts [default: half of
    /// what there is].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Do without a part, to see what it is worth: choice (of loads that yield), distance (yields
    /// that bound the time of turns), liveness (registers that are dead are not saved), vectors
    /// (nor those that the program does not use), prefetch, companions (other
    /// lines of an object, asked for with the one that is waited for), non-temporal (which keeps lines
    /// that are lost before they are read again out of the outer caches), recency (no yield for a line
    /// that there was one for lately), loops (moved as a whole), loop-saves (what such a loop does not
    /// change, once around it), next-context (prefetched), waits (short ones, in which scavengers run on
    /// the command's thread), switch (nobody else runs). May be repeated.
    #[arg(long, value_name = "PART")]
    pub(crate) without: Vec<HarvestPart>,
    /// Let scavengers that are not done go on when the command has ended.
    #[arg(long)]
    pub(crate) finish: bool,
    /// Run the scavengers alone, in each other's stalls, on one CPU.
    #[arg(long, conflicts_with = "command")]
    pub(crate) no_primary: bool,
    /// Directory for what scavengers write, as NUMBER-COPY.out and NUMBER-COPY.err; made where
    /// it is not there [default: nowhere].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Machine profile to take latencies from [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Write the document to FILE (`-` or nothing: stdout).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = false)]
    pub(crate) json: Option<PathBuf>,
    /// Write a page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Say nothing but what goes wrong.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The command and its arguments.
    #[arg(
        required_unless_present = "no_primary",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

/// CPUs that share a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Core(pub(crate) Vec<CpuId>);

fn core(text: &str) -> Result<Core, String> {
    let cpus = text.split(',').map(|cpu| cpu.trim().parse().map(CpuId));
    match cpus.collect::<Result<Vec<_>, _>>() {
        Ok(cpus) if cpus.len() > 1 => Ok(Core(cpus)),
        Ok(_) => Err(format!(
            "`{text}` is one CPU: a core is shared by two or more"
        )),
        Err(_) => Err(format!("`{text}` is no list of CPU numbers: use CPU,CPU")),
    }
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is no share of 0% to 100%")),
    }
}

pub(super) fn bound(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if ns.is_finite() && ns > 0.0 => Ok(ns),
        _ => Err(format!("`{text}` is no number of nanoseconds")),
    }
}

pub(super) fn requests(text: &str) -> Result<RequestsBy, String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.contains("..")
            && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    };
    match text.split_once("..") {
        _ if text == "sockets" => Ok(RequestsBy::Sockets),
        None if is_name(text) => Ok(RequestsBy::Calls(text.to_owned())),
        Some((begin, end)) if begin == end => {
            Err(format!("`{text}`: a request cannot end where it begins"))
        }
        Some((begin, end)) if is_name(begin) && is_name(end) => Ok(RequestsBy::Between {
            begin: begin.to_owned(),
            end: end.to_owned(),
        }),
        _ => Err(format!(
            "`{text}` is neither `sockets`, nor a function, nor two as in BEGIN..END"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_written_with_a_sign_or_without() {
        for (text, share) in [("5%", 0.05), ("0.5", 0.005), ("100 %", 1.0), ("0%", 0.0)] {
            assert!((percent(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["", "%", "-1%", "101", "nan", "a few"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn requests_are_told_by_sockets_or_functions() {
        assert_eq!(requests("sockets"), Ok(RequestsBy::Sockets));
        assert_eq!(
            requests("_ZN5serveEv"),
            Ok(RequestsBy::Calls("_ZN5serveEv".to_owned()))
        );
        let between = RequestsBy::Between {
            begin: "begin".to_owned(),
            end: "end".to_owned(),
        };
        assert_eq!(requests("begin..end"), Ok(between));
        for text in ["", "..", "a..", "..b", "a..b..c", "a b", "a..a"] {
            assert!(requests(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_core_is_two_hardware_threads_or_more() {
        assert_eq!(core("0, 4"), Ok(Core(vec![CpuId(0), CpuId(4)])));
        for text in ["", "0", "0,", "a,b", "0-1", "-1,0", "0;1"] {
            assert!(core(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_bound_is_a_positive_time() {
        assert_eq!(bound("200"), Ok(200.0));
        for text in ["", "0", "-3", "inf", "nan", "200ns"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
