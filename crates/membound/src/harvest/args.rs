//! Arguments of `harvest`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use membound_input::parse_size;
use membound_launch::RequestsBy;
use membound_types::{CpuId, DistanceRule, HarvestPart, HarvestRole, IdlePolicy, SmtPolicy};

use super::harvest_batch::args::BatchArgs;
use super::harvest_explore::args::ExploreArgs;
use super::option_values::{bound, percent};
use crate::profile::args::seconds;

/// What to do about stall time.
#[derive(Debug, Subcommand)]
pub(crate) enum HarvestCommand {
    /// Show where a profiled program would yield, what that gains, and why other loads would not yield.
    Plan(PlanArgs),
    /// Run a program, and other programs while it waits for memory.
    Run(Box<RunArgs>),
    /// Compare settings of a harvest with each other and with the kernel's scheduling, on your own
    /// program.
    Explore(Box<ExploreArgs>),
    /// Run a list of commands, several at a time. Commands that wait for memory share a CPU if that was
    /// measured to pay.
    Batch(Box<BatchArgs>),
    /// Switch off a running harvest: its command goes on without yields, and its scavengers wait.
    Stop(StopArgs),
}

/// Arguments of `harvest stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// Process of the `membound harvest run`, or of its command [default: the only harvest that runs].
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Arguments of `harvest plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Run file from `membound profile`.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Role of the program: primary (its stall time is harvested), scavenger (it runs in the stall time
    /// of others) [default: primary].
    #[arg(long, value_name = "ROLE", default_value_t, hide_default_value = true)]
    pub(crate) role: HarvestRole,
    /// Machine profile with levels and latencies [default: the run's own].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    pub(crate) max_overhead: f64,
    /// Longest time between two yields of a scavenger, in nanoseconds [default: 200].
    #[arg(long, value_name = "D", value_parser = bound)]
    pub(crate) bound_ns: Option<f64>,
    /// How the time between yields is estimated: max (the longest path), expected (the average over
    /// paths) [default: max].
    #[arg(long, value_name = "RULE")]
    pub(crate) distance: Option<DistanceRule>,
    /// Earlier plan; its decisions are kept where the figures allow both.
    #[arg(long, value_name = "FILE")]
    pub(crate) previous: Option<PathBuf>,
    /// Write the plan as JSON to FILE; without FILE or with `-`, to stdout instead of the text.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
}

/// Arguments of `harvest run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Program to run while the command waits for memory, as a shell command line: an executable, or a
    /// shared object with `main` or `entry`. May be repeated.
    #[arg(long, value_name = "CMD")]
    pub(crate) scavenger: Vec<String>,
    /// Number of copies of each scavenger.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) copies: u32,
    /// Maximum number of scavengers in one thread's run queue [default: all; all but one if idle time
    /// is harvested].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) per_thread: Option<u32>,
    /// Plan of the command or of a scavenger, from `harvest plan`. May be repeated. A program without
    /// one follows its kept plan. If none is kept, the program is profiled while it runs and the new
    /// plan is kept: the command follows it at once, scavengers in the next run.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Vec<PathBuf>,
    /// Run each program without a plan once beforehand to profile it; its side effects then happen
    /// twice.
    #[arg(long)]
    pub(crate) rehearse: bool,
    /// Maximum time for profiling a program without a plan, in seconds; CPU time for the command.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) profile_s: Duration,
    /// Longest time from a yield of the command until it runs again, in nanoseconds.
    #[arg(long, value_name = "D", value_parser = bound)]
    pub(crate) bound_ns: Option<f64>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    pub(crate) max_overhead: f64,
    /// Maximum slowdown of the command. If it is exceeded, the yields that gain least are removed, then
    /// scavengers get less time.
    #[arg(long, value_name = "P%", value_parser = percent)]
    pub(crate) max_slowdown: Option<f64>,
    /// What a request of the command is; its latency is measured: sockets (from a receive to the next
    /// send on the same socket), FUNCTION (each call), BEGIN..END (from a call of one function to the
    /// thread's next call of the other). Functions have their names in symbol tables.
    #[arg(long, value_name = "HOW", value_parser = str::parse::<RequestsBy>)]
    pub(crate) requests: Option<RequestsBy>,
    /// Objective for the 95th percentile of the request latency, in nanoseconds. If it is exceeded,
    /// scavengers get less time. Needs --requests.
    #[arg(long, value_name = "NS", value_parser = bound)]
    pub(crate) slo_p95: Option<f64>,
    /// What scavengers do when no thread has room for them: harvest (run in idle time), steal (wait for
    /// another thread), stop (wait where they are) [default: harvest].
    #[arg(long, value_name = "WHAT", default_value_t, hide_default_value = true)]
    pub(crate) idle: IdlePolicy,
    /// Whether scavengers may run on the other hardware threads of the command's cores, with --idle
    /// harvest: auto (while --slo-p95 and --max-slowdown are kept; without --slo-p95 the kernel
    /// decides), on (also without --slo-p95), off (never, as while a bound is exceeded) [default:
    /// auto].
    #[arg(long, value_name = "WHEN", default_value_t, hide_default_value = true)]
    pub(crate) smt: SmtPolicy,
    /// Hardware threads that share a core, if the kernel does not know (as in many virtual machines).
    /// May be repeated, once for each core [default: as the kernel reports].
    #[arg(long, value_name = "CPU,CPU", value_parser = core)]
    pub(crate) siblings: Vec<Core>,
    /// Maximum memory of all scavengers together; each has an equal share of one half for itself
    /// [default: half of the available memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Leave out a part of the method, to measure its effect. May be repeated. Experiments of document
    /// 003 use it; the book lists the parts.
    #[arg(long, value_name = "PART", hide = true)]
    pub(crate) without: Vec<HarvestPart>,
    /// Let unfinished scavengers go on after the command has ended.
    #[arg(long)]
    pub(crate) finish: bool,
    /// Run only the scavengers, in each other's stalls, on one CPU.
    #[arg(long, conflicts_with = "command")]
    pub(crate) no_primary: bool,
    /// Directory for the scavengers' output, as NUMBER-COPY.out and NUMBER-COPY.err; created if missing
    /// [default: output is discarded].
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Machine profile with latencies [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Write the results as JSON to FILE; without FILE or with `-`, to stdout.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = false)]
    pub(crate) json: Option<PathBuf>,
    /// Write an HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print only errors.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_two_hardware_threads_or_more() {
        assert_eq!(core("0, 4"), Ok(Core(vec![CpuId(0), CpuId(4)])));
        for text in ["", "0", "0,", "a,b", "0-1", "-1,0", "0;1"] {
            assert!(core(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_book_lists_every_part_that_can_be_left_out() {
        let book = include_str!("../../../../docs/book/harvest.md");
        let listed: Vec<&str> = book
            .lines()
            .skip_while(|line| !line.starts_with("| `--without` |"))
            .skip(2)
            .map_while(|line| line.strip_prefix("| `"))
            .filter_map(|row| row.split('`').next())
            .collect();
        assert_eq!(listed, HarvestPart::ALL.map(HarvestPart::name));
    }
}
