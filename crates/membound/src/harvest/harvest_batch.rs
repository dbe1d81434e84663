//! `membound harvest batch`: runs a list of commands, several at a time.
//!
//! Every job is an ordinary process under the kernel's scheduler, so a batch takes no longer than its
//! commands would take otherwise. Two things may make it shorter: an order based on what earlier batches
//! recorded about the programs (`lineup`), and running memory-bound programs together in one harvest where
//! that was measured to gain (`sets`). Decisions are pure functions; `engine` carries them out.

pub(crate) mod args;
mod engine;
mod halt;
mod joblog;
mod known;
mod lineup;
mod listing;
mod outputs;
mod pace;
mod processes;
mod queue;
mod record;
mod result;
mod scavengers;
mod sets;

use std::io::{IsTerminal, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};

use anyhow::Context;
use membound_platform::date::now_utc;
use membound_platform::signal_masks;
use membound_types::BatchHarvest;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use args::{AtOnce, BatchArgs, Shown};
use engine::{Batch, Engine};
use halt::Halt;
use joblog::{JobLog, ResumedJobs};
use lineup::{Expected, Lineup};
use listing::Listed;
use outputs::{Outputs, PrintOrder};
use pace::{Line, Pace};
use queue::Queue;
use record::Keeper;
use result::BatchScope;

use crate::output::{self, Target, Usage};

/// Runs `membound harvest batch`.
pub(super) fn run(args: &BatchArgs) -> anyhow::Result<ExitCode> {
    // Until the first job is started, every error takes the usage code: other codes count failed jobs.
    let prepared = prepare(args).map_err(|error| Usage(format!("{error:#}")))?;
    let Some((batch, given, mut json)) = prepared else {
        return Ok(ExitCode::SUCCESS);
    };
    let date = now_utc();
    let signals = signals()?;
    let outcome = Engine::new(batch).run(&signals);
    let document = result::document(args, given, &outcome, date);
    let is_shown = match args.summary {
        Shown::Auto => std::io::stderr().is_terminal(),
        Shown::On => true,
        Shown::Off => false,
    };
    if is_shown {
        let style = output::error_style();
        output::write_stderr(&membound_report::text::harvest_batch(&document, style));
    }
    let code = result::exit_code(&outcome);
    if let Some(target) = &mut json
        && let Err(error) = output::json(&document).and_then(|text| target.write(&text))
    {
        output::fail(&error);
        return Ok(ExitCode::from(if code == 0 { u8::MAX } else { code }));
    }
    Ok(ExitCode::from(code))
}

/// Everything that is needed to run the batch; `None` if no job is to be run.
fn prepare(args: &BatchArgs) -> anyhow::Result<Option<(Batch, BatchScope, Option<Target>)>> {
    let text = read(&args.list)?;
    let mut listed = listing::parse(&text, &listing::find)
        .map_err(anyhow::Error::msg)
        .with_context(|| args.list.display().to_string())?;
    let given = listed.len();
    let (json, mut log) = match args.dry_run {
        true => {
            skip_as_logged(&mut listed, args);
            (None, None)
        }
        false => (json(args)?, log(&mut listed, args)?),
    };
    let keeper = Keeper::open();
    let jobs = known::jobs(&listed, &keeper.known, listed.len() > 1);
    let expected: Vec<Expected> = jobs.iter().map(|job| job.expected).collect();
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let at_once = args.at_once.unwrap_or(AtOnce::OfCpus(1.0));
    let slots = at_once.slots(listed.len(), cpus);
    let mut lineup = Lineup::best(&expected, slots);
    if args.dry_run {
        show(&listed, &mut lineup);
        return Ok(None);
    }
    let outputs = outputs(&listed, args)?;
    // Everything else was checked: what an earlier batch wrote may be removed.
    if let Some((path, log)) = &mut log {
        log.begin()
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let scope = BatchScope {
        listed: given,
        skipped: given - listed.len(),
        slots,
        order: lineup.order,
    };
    let is_known = expected.iter().any(|it| it.wall_s.is_some());
    let can_harvest = jobs.iter().any(|job| job.plan.is_some());
    let (harvest, machine) = harvest(args, can_harvest)?;
    let batch = Batch {
        line: Line::new(listed.len(), args.progress != Shown::Off),
        listed,
        jobs,
        queue: Queue::new(lineup, slots),
        halt: args.halt.unwrap_or(Halt::Never),
        harvest,
        machine,
        outputs,
        log,
        keeper,
        pace: Pace::new(is_known),
    };
    Ok(Some((batch, scope, json)))
}

/// Removes the jobs that a log lists as done, without opening it for writing.
fn skip_as_logged(listed: &mut Vec<Listed>, args: &BatchArgs) {
    let path = args
        .joblog
        .as_ref()
        .filter(|_| resumed_jobs(args).is_some());
    let content = path.and_then(|path| std::fs::read(path).ok());
    skip(listed, &content.unwrap_or_default(), args);
}

/// Where the document goes.
fn json(args: &BatchArgs) -> anyhow::Result<Option<Target>> {
    let json = args.json.as_deref().map(Target::open).transpose()?;
    if json.as_ref().is_some_and(Target::is_stdout) && args.output.is_none() {
        anyhow::bail!("--json to stdout needs --output: jobs print there too");
    }
    Ok(json)
}

/// Opens the log, and removes the jobs that it lists as done.
fn log(listed: &mut Vec<Listed>, args: &BatchArgs) -> anyhow::Result<Option<(PathBuf, JobLog)>> {
    let Some(path) = &args.joblog else {
        return Ok(None);
    };
    let (log, content) = JobLog::open(path, resumed_jobs(args).is_some())
        .with_context(|| format!("cannot write {}", path.display()))?;
    skip(listed, &content, args);
    Ok(Some((path.clone(), log)))
}

/// Where the jobs' output goes.
fn outputs(listed: &[Listed], args: &BatchArgs) -> anyhow::Result<Outputs> {
    let order = match args.keep_order {
        true => PrintOrder::list(listed.iter().map(|it| it.number)),
        false => PrintOrder::Ends,
    };
    Outputs::prepare(args.output.as_deref(), order).with_context(|| {
        let temporary = std::env::temp_dir();
        let place = args.output.as_deref().unwrap_or(&temporary);
        format!("cannot write to {}", place.display())
    })
}

/// Whether jobs are harvested, and the profile of the machine that this needs. `can_harvest`: some jobs have plans.
fn harvest(args: &BatchArgs, can_harvest: bool) -> anyhow::Result<(BatchHarvest, Option<PathBuf>)> {
    let machine = if args.machine.is_some() || (can_harvest && args.harvest != BatchHarvest::Off) {
        scavengers::machine(args.machine.as_deref())?.filter(|_| can_harvest)
    } else {
        None
    };
    if args.harvest == BatchHarvest::On && machine.is_none() {
        let lacks = if can_harvest {
            "there is no kept machine profile (`membound measure` makes one)"
        } else {
            "fewer than two of the programs have a kept plan (`membound harvest run` makes plans)"
        };
        output::complain(&format!("all jobs run as ordinary processes: {lacks}"));
    }
    let harvest = match machine {
        Some(_) if !membound_launch::AGENT.is_empty() => args.harvest,
        _ => BatchHarvest::Off,
    };
    Ok((harvest, machine))
}

/// The bytes of the list; `-` is standard input.
fn read(list: &Path) -> anyhow::Result<Vec<u8>> {
    let place = || format!("cannot read {}", list.display());
    if list == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin()
            .read_to_end(&mut text)
            .with_context(place)?;
        return Ok(text);
    }
    std::fs::read(list).with_context(place)
}

/// Which jobs of the log are run again, if the batch resumes one.
fn resumed_jobs(args: &BatchArgs) -> Option<ResumedJobs> {
    match (args.resume, args.resume_failed) {
        (_, true) => Some(ResumedJobs::Failed),
        (true, false) => Some(ResumedJobs::Unended),
        (false, false) => None,
    }
}

/// Removes the jobs that the log lists as done.
fn skip(listed: &mut Vec<Listed>, held: &[u8], args: &BatchArgs) {
    let Some(again) = resumed_jobs(args) else {
        return;
    };
    let done = joblog::done(held, listed, again);
    let done: std::collections::HashSet<u64> = done.into_iter().collect();
    listed.retain(|it| !done.contains(&it.number));
}

/// Prints the commands in the order in which they would be started.
fn show(listed: &[Listed], lineup: &mut Lineup) {
    let mut text = Vec::new();
    let mut memory_bound = 0;
    while let Some(job) = lineup.next(memory_bound) {
        // As if each job ended before the next of its kind is started.
        memory_bound = usize::from(lineup.is_memory_bound(job));
        text.extend_from_slice(listed[job].line.as_bytes());
        text.push(b'\n');
    }
    output::print_bytes(&text);
}

/// Receives the signals of this process from now on.
fn signals() -> anyhow::Result<Receiver<i32>> {
    let (sender, receiver) = mpsc::channel();
    // Signals that were ignored when the batch was started stay ignored, as with nohup or as a shell's job
    // without a terminal.
    let ignored = signal_masks::ignored();
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGTSTP]
        .into_iter()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0)
        .chain([SIGCHLD]);
    let mut signals = Signals::new(wanted).context("cannot listen for signals")?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
