//! `membound harvest batch`: runs a list of commands, several at a time.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use membound_coschedule::check_agent;
use membound_coschedule::harvest_batch::{self, AtOnce, BatchConfig, Halt, Prepared};
use membound_types::BatchHarvest;

use crate::output::{self, Shown, Target, Usage};
use crate::profile::machine;
use crate::progress::BatchLine;
use crate::{job, launching};

/// Arguments of `harvest batch`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code: the number of jobs that failed, up to 100; 101 for more; 2 if the list or an option cannot be \
used, before any job starts; 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP; 255 if the job log or the \
output of jobs could not be written.

After a first Ctrl-C or SIGTERM no further job starts; a second one ends the running jobs (SIGTERM, and \
SIGKILL 2 s later).")]
pub(crate) struct BatchArgs {
    /// List of commands, one per line; `-` is standard input. Empty lines and lines that begin with `#` are skipped.
    /// A line that needs a shell is given to `sh -c`; every job reads /dev/null.
    #[arg(value_name = "FILE")]
    list: PathBuf,
    /// Maximum number of jobs at the same time: a number, or a percentage of the permitted CPUs; 0 starts all jobs at
    /// once [default: 100%].
    #[arg(short = 'j', long = "jobs", value_name = "N", value_parser = str::parse::<AtOnce>)]
    at_once: Option<AtOnce>,
    /// Print the output of jobs in the order of the list [default: as they end].
    #[arg(short, long)]
    keep_order: bool,
    /// Write each job's output to NUMBER.out and NUMBER.err in DIR, which is created if missing.
    #[arg(long, value_name = "DIR", conflicts_with = "keep_order")]
    output: Option<PathBuf>,
    /// Write a line to FILE for every job that ended, in the columns of GNU parallel's job log.
    #[arg(long, value_name = "FILE")]
    joblog: Option<PathBuf>,
    /// Skip jobs that the job log lists as ended, and append to the log.
    #[arg(long, requires = "joblog")]
    resume: bool,
    /// As --resume, but run failed jobs again.
    #[arg(long, requires = "joblog")]
    resume_failed: bool,
    /// When to stop early: never, or WHEN,WHY=N. WHEN is now (end running jobs) or soon (start no more jobs), WHY is
    /// fail, success or done, N is a number of jobs or a percentage of all [default: never].
    #[arg(long, value_name = "WHEN,WHY=N", value_parser = str::parse::<Halt>, allow_hyphen_values = true)]
    halt: Option<Halt>,
    /// Whether jobs that wait for memory run together in one harvest: auto (if an earlier run of the same programs
    /// gained by it, and one time in eight if their plans promise a factor of 1.3 or more), on (whenever kept plans
    /// promise a gain), off [default: auto].
    #[arg(long, value_name = "WHEN", default_value_t, hide_default_value = true)]
    harvest: BatchHarvest,
    /// Machine profile with latencies; without one there is no harvest [default: the one kept of this host].
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Print the commands in the order in which they would start, and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// Show the number of ended jobs and the remaining time: auto (if stderr is a terminal), off [default: auto].
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
    progress: Shown,
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
    summary: Shown,
    /// Write the results as JSON to FILE; without FILE or with `-`, to stdout (only with --output).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs the batch, and shows and writes its document.
pub(super) fn run(args: &BatchArgs) -> anyhow::Result<ExitCode> {
    // Until the first job is started, every error takes the usage code: other codes count failed jobs.
    let (prepared, mut json) = prepare(args).map_err(|error| Usage(format!("{error:#}")))?;
    let batch = match prepared {
        Prepared::Shown(commands) => {
            output::print_bytes(&commands);
            return Ok(ExitCode::SUCCESS);
        }
        Prepared::Batch(batch) => batch,
    };
    let (document, code) = batch.run(&job::batch_signals()?);
    if args.summary.is_shown() {
        let style = output::error_style();
        output::write_stderr(&membound_report::text::harvest_batch(&document, style));
    }
    if let Some(target) = &mut json
        && let Err(error) = output::json(&document).and_then(|text| target.write(&text))
    {
        output::fail(&error);
        return Ok(ExitCode::from(if code == 0 { u8::MAX } else { code }));
    }
    Ok(ExitCode::from(code))
}

fn prepare(args: &BatchArgs) -> anyhow::Result<(Prepared, Option<Target>)> {
    if args.harvest == BatchHarvest::On {
        check_agent()?;
    }
    // A batch that is only shown writes nothing and needs no machine.
    let runs = !args.dry_run;
    let json = args.json.as_deref().filter(|_| runs);
    let json = json.map(Target::open).transpose()?;
    if json.as_ref().is_some_and(Target::is_stdout) && args.output.is_none() {
        anyhow::bail!("--json to stdout needs --output: jobs print there too");
    }
    if let Some(path) = args.machine.as_deref().filter(|_| runs) {
        machine::read(path)?;
    }
    let config = BatchConfig {
        list: args.list.clone(),
        at_once: args.at_once,
        keep_order: args.keep_order,
        output: args.output.clone(),
        joblog: args.joblog.clone(),
        resume: args.resume,
        resume_failed: args.resume_failed,
        halt: args.halt,
        harvest: args.harvest,
        machine: args.machine.clone(),
        kept_profile: machine::kept_profile_path,
        dry_run: args.dry_run,
    };
    let line = BatchLine::new(args.progress);
    let prepared = harvest_batch::prepare(config, &launching::environment(), Box::new(line))?;
    Ok((prepared, json))
}
