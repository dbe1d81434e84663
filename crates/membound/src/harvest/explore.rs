//! `membound harvest explore`: compares settings of a harvest on the user's own program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use membound_coschedule::check_agent;
use membound_coschedule::harvest_explore::{
    BoundNs, CheckedExploration, EndedEarly, ExploreConfig, Load,
};
use membound_launch::RequestsBy;
use membound_types::{CpuId, ExploreSweep, IdlePolicy};

use crate::option_values::{percent, seconds};
use crate::output::{self, DocumentTargets, ENDED_BY_USER};
use crate::profile::machine;
use crate::progress::Bar;
use crate::{launching, measure};

/// Arguments of `harvest explore`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each round runs the program by itself and then once under each setting, in an order that \
                  alternates between rounds. Figures are medians over the rounds, with the smallest and \
                  largest value (from six rounds on the 95 % interval) in brackets. All programs share one \
                  CPU, except while they are profiled. The first run of the program writes to stdout and \
                  stderr, all other runs to /dev/null; tables go to stderr. If the program fails by itself, \
                  nothing is explored and its exit code is passed on. If a setting fails, its row has the \
                  reason. Each run reads stdin from its beginning if stdin is a regular file, and /dev/null \
                  otherwise. Ctrl-C ends the runs and shows what was measured until then."
)]
pub(crate) struct ExploreArgs {
    /// Program to run while the command waits for memory, as a shell command line. May be repeated [default: the
    /// command itself].
    #[arg(long, value_name = "CMD")]
    scavenger: Vec<String>,
    /// Number of copies of each scavenger.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    copies: u32,
    /// What to vary, as a list: bound (time until the command runs again), distance (between a scavenger's yields),
    /// overhead (CPU time that yields may cost where loads hit, which decides how many loads yield), parts (of a
    /// yield, each left out in turn), periods (of the profile), chases (1, 2, 4, 6, 8 programs at once), kernel (the
    /// kernel's scheduling), slo (objectives of latency; needs --requests), load (the command's load, under the
    /// kernel's scheduling and in a harvest; needs --loads), parts-by-distance (each part left out at each distance)
    /// [default: all that apply, without the last two].
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    sweep: Vec<ExploreSweep>,
    /// Bounds and distances, in nanoseconds or `none` [default: 50,100,200,500,1000,none; with parts-by-distance
    /// 50,200,1000].
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = str::parse::<BoundNs>)]
    bounds: Vec<BoundNs>,
    /// Loads for `--sweep load`, as numbers: each replaces `{load}` in the command's arguments. The command is
    /// profiled at the largest.
    #[arg(long, value_name = "L", value_delimiter = ',', value_parser = str::parse::<Load>)]
    loads: Vec<Load>,
    /// Maximum costs of yields, as shares of the CPU time [default: 0.2%,1%,2%,5%,10%,20%].
    #[arg(long, value_name = "P%", value_delimiter = ',', value_parser = percent)]
    overheads: Vec<f64>,
    /// Number of rounds. Each round runs every setting once.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// CPU that all programs share [default: the last permitted CPU].
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Plan of the command or of a scavenger, from `harvest plan`, for all settings. May be repeated; a program
    /// without one is profiled first.
    #[arg(long, value_name = "FILE")]
    plan: Vec<PathBuf>,
    /// Maximum time for profiling a program without a plan, in seconds.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    profile_s: Duration,
    /// What a request of the command is, as in `harvest run`; the latency of requests is compared instead of the
    /// command's time.
    #[arg(long, value_name = "HOW", value_parser = str::parse::<RequestsBy>)]
    requests: Option<RequestsBy>,
    /// What scavengers do when no thread has room for them, as in `harvest run`; with `--sweep chases` they wait
    /// [default: harvest].
    #[arg(long, value_name = "WHAT", default_value_t, hide_default_value = true)]
    idle: IdlePolicy,
    /// Machine profile with latencies [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Write the results as JSON to FILE; without FILE or with `-`, to stdout.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write an HTML page with tables and plots to FILE.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print only errors.
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Explores, prints and writes the document.
pub(super) fn run(args: &ExploreArgs) -> anyhow::Result<ExitCode> {
    check_agent()?;
    let cancel = measure::interruptible()?;
    let mut targets = DocumentTargets::open(args.json.as_deref(), args.html.as_deref())?;
    let checked = CheckedExploration::new(config(args), launching::environment())?;
    let machine = machine::profile(args.machine.as_deref())?;
    let bar = Bar::new();
    let explored = checked.run(machine, &cancel, &bar);
    bar.finish();
    let explored = explored?;
    if let Some(why) = &explored.ended_early {
        output::complain(&format!("{why}: what was measured up to then follows"));
    }
    let document = &explored.document;
    if !args.quiet {
        targets.show(|style| membound_report::text::harvest_explore(document, style));
    }
    targets.write(document, membound_report::page::harvest_explore)?;
    Ok(match explored.ended_early {
        None => ExitCode::SUCCESS,
        Some(EndedEarly::Interrupted) => ExitCode::from(ENDED_BY_USER),
        Some(EndedEarly::Failed(_)) => ExitCode::FAILURE,
    })
}

fn config(args: &ExploreArgs) -> ExploreConfig {
    ExploreConfig {
        command: args.command.clone(),
        scavenger: args.scavenger.clone(),
        copies: args.copies,
        sweep: args.sweep.clone(),
        bounds: args.bounds.clone(),
        loads: args.loads.clone(),
        overheads: args.overheads.clone(),
        pairs: args.pairs,
        cpu: args.cpu.map(CpuId),
        plan: args.plan.clone(),
        profile_time: args.profile_s,
        requests: args.requests.clone(),
        idle: args.idle,
        quiet: args.quiet,
    }
}
