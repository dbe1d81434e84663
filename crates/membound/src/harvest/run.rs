//! `membound harvest run`: runs a program, and scavengers in the time that it waits for memory.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use membound_coschedule::check_agent;
use membound_coschedule::harvest_run::{CheckedRun, Core, OffSwitch, RunConfig};
use membound_input::parse_size;
use membound_launch::RequestsBy;
use membound_types::{HarvestPart, IdlePolicy, SmtPolicy};

use crate::option_values::{bound, percent, seconds};
use crate::output::{self, DocumentTargets};
use crate::profile::machine;
use crate::{job, launching};

/// Arguments of `harvest run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Program to run while the command waits for memory, as a shell command line: an executable, or a shared object
    /// with `main` or `entry`. May be repeated.
    #[arg(long, value_name = "CMD")]
    scavenger: Vec<String>,
    /// Number of copies of each scavenger.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    copies: u32,
    /// Maximum number of scavengers in one thread's run queue [default: all; all but one if idle time is harvested].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    per_thread: Option<u32>,
    /// Plan of the command or of a scavenger, from `harvest plan`. May be repeated. A program without one follows its
    /// kept plan. If none is kept, the program is profiled while it runs and the new plan is kept: the command
    /// follows it at once, scavengers in the next run.
    #[arg(long, value_name = "FILE")]
    plan: Vec<PathBuf>,
    /// Run each program without a plan once beforehand to profile it; its side effects then happen twice.
    #[arg(long)]
    rehearse: bool,
    /// Maximum time for profiling a program without a plan, in seconds; CPU time for the command.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    profile_s: Duration,
    /// Longest time from a yield of the command until it runs again, in nanoseconds.
    #[arg(long, value_name = "D", value_parser = bound)]
    bound_ns: Option<f64>,
    /// Maximum share of CPU time that yields may cost where their loads hit.
    #[arg(long, value_name = "P%", default_value = "5%", value_parser = percent)]
    max_overhead: f64,
    /// Maximum slowdown of the command. If it is exceeded, the yields that gain least are removed, then scavengers
    /// get less time.
    #[arg(long, value_name = "P%", value_parser = percent)]
    max_slowdown: Option<f64>,
    /// What a request of the command is; its latency is measured: sockets (from a receive to the next send on the
    /// same socket), FUNCTION (each call), BEGIN..END (from a call of one function to the thread's next call of the
    /// other). Functions have their names in symbol tables.
    #[arg(long, value_name = "HOW", value_parser = str::parse::<RequestsBy>)]
    requests: Option<RequestsBy>,
    /// Objective for the 95th percentile of the request latency, in nanoseconds. If it is exceeded, scavengers get
    /// less time. Needs --requests.
    #[arg(long, value_name = "NS", value_parser = bound)]
    slo_p95: Option<f64>,
    /// What scavengers do when no thread has room for them: harvest (run in idle time), steal (wait for another
    /// thread), stop (wait where they are) [default: harvest].
    #[arg(long, value_name = "WHAT", default_value_t, hide_default_value = true)]
    idle: IdlePolicy,
    /// Whether scavengers may run on the other hardware threads of the command's cores, with --idle harvest: auto
    /// (while --slo-p95 and --max-slowdown are kept; without --slo-p95 the kernel decides), on (also without
    /// --slo-p95), off (never, as while a bound is exceeded) [default: auto].
    #[arg(long, value_name = "WHEN", default_value_t, hide_default_value = true)]
    smt: SmtPolicy,
    /// Hardware threads that share a core, if the kernel does not know (as in many virtual machines). May be
    /// repeated, once for each core [default: as the kernel reports].
    #[arg(long, value_name = "CPU,CPU", value_parser = str::parse::<Core>)]
    siblings: Vec<Core>,
    /// Maximum memory of all scavengers together; each has an equal share of one half for itself [default: half of
    /// the available memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Leave out a part of the method, to measure its effect. May be repeated. Experiments of document 003 use it;
    /// the book lists the parts.
    #[arg(long, value_name = "PART", hide = true)]
    without: Vec<HarvestPart>,
    /// Let unfinished scavengers go on after the command has ended.
    #[arg(long)]
    finish: bool,
    /// Run only the scavengers, in each other's stalls, on one CPU.
    #[arg(long, conflicts_with = "command")]
    no_primary: bool,
    /// Directory for the scavengers' output, as NUMBER-COPY.out and NUMBER-COPY.err; created if missing [default:
    /// output is discarded].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Machine profile with latencies [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Write the results as JSON to FILE; without FILE or with `-`, to stdout.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", require_equals = false)]
    json: Option<PathBuf>,
    /// Write an HTML page to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Record what the controller observes and does, for its replay tests.
    #[arg(long, value_name = "FILE", hide = true)]
    control_trace: Option<PathBuf>,
    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(
        required_unless_present = "no_primary",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Runs the harvest, prints and writes its document, and returns the command's exit code.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    check_agent()?;
    let off = OffSwitch::default();
    // Caught from the beginning: otherwise SIGUSR2 would kill the process before a harvest is followed.
    job::on_off_signal(&off)?;
    let mut targets = DocumentTargets::open(args.json.as_deref(), args.html.as_deref())?;
    let checked = CheckedRun::new(config(args), launching::environment())?;
    let machine = match args.rehearse {
        true => machine::profile(args.machine.as_deref())?,
        false => machine::at_hand(args.machine.as_deref())?,
    };
    let (document, end) = checked.run(machine, &off)?;
    if !args.quiet {
        targets.show(|style| membound_report::text::harvest_run(&document, style));
    }
    if let Err(error) = targets.write(&document, membound_report::page::harvest_run) {
        let code = output::fail(&error);
        // The exit code of a program that failed takes precedence over ours.
        if end.success() {
            return Ok(code);
        }
    }
    Ok(job::end_like(end.into()))
}

fn config(args: &RunArgs) -> RunConfig {
    RunConfig {
        command: args.command.clone(),
        no_primary: args.no_primary,
        scavenger: args.scavenger.clone(),
        copies: args.copies,
        per_thread: args.per_thread,
        plan: args.plan.clone(),
        rehearse: args.rehearse,
        profile_time: args.profile_s,
        bound_ns: args.bound_ns,
        max_overhead: args.max_overhead,
        max_slowdown: args.max_slowdown,
        requests: args.requests.clone(),
        slo_p95_ns: args.slo_p95,
        idle: args.idle,
        smt: args.smt,
        siblings: args.siblings.clone(),
        memory_bytes: args.memory,
        without: args.without.clone(),
        finish: args.finish,
        output: args.output.clone(),
        machine_path: args.machine.clone(),
        control_trace: args.control_trace.clone(),
        quiet: args.quiet,
    }
}
