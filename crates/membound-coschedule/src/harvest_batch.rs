//! Runs a list of commands, several at a time (`membound harvest batch`).
//!
//! Every job is an ordinary process under the kernel's scheduler, so a batch takes no longer than its
//! commands would take otherwise. Two things may make it shorter: an order based on what earlier batches
//! recorded about the programs (`lineup`), and running memory-bound programs together in one harvest where
//! that was measured to gain (`job_sets`). Decisions are pure functions; `engine` carries them out.

mod batch_config;
mod batch_display;
mod batch_history;
mod batch_pace;
mod batch_result;
mod engine;
mod halt;
mod job_list;
mod job_outputs;
mod job_processes;
mod job_sets;
mod joblog;
mod known_jobs;
mod lineup;
mod set_harvest;
mod start_queue;

use std::collections::HashSet;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use membound_platform::date::now_utc;
use membound_types::{BatchHarvest, HarvestBatch};

pub use batch_config::{AtOnce, BatchConfig};
pub use batch_display::{BatchDisplay, JobStream};
pub use halt::{Ends, Halt, Limit, Stop};

use crate::environment::Environment;
use crate::error::{At as _, Error};
use batch_history::Keeper;
use batch_pace::Pace;
use batch_result::BatchScope;
use engine::{Batch, Engine};
use job_list::Listed;
use job_outputs::{Outputs, PrintOrder};
use joblog::JobLog;
use lineup::{Expected, Lineup};
use start_queue::Queue;

/// A request that was checked.
pub enum Prepared {
    /// Nothing is run: the commands in the order in which they would be started, one a line.
    Shown(Vec<u8>),
    /// The batch. No job was started yet.
    Batch(Box<PreparedBatch>),
}

/// A checked batch. No job was started yet.
pub struct PreparedBatch {
    config: BatchConfig,
    environment: Environment,
    scope: BatchScope,
    batch: Batch,
}

impl PreparedBatch {
    /// Runs all jobs. `signals` receives the signals of this process: SIGCHLD, and those with which the user stops
    /// the batch. Returns the document and GNU parallel's exit code.
    #[must_use]
    pub fn run(self, signals: &Receiver<i32>) -> (HarvestBatch, u8) {
        let date = now_utc();
        let outcome = Engine::new(self.batch).run(signals);
        let info = self.environment.machine_info();
        let document = batch_result::document(&self.config, self.scope, &outcome, info, date);
        (document, batch_result::exit_code(&outcome))
    }
}

/// Reads and checks everything that a batch needs. The job log of an earlier batch is emptied at the very end.
///
/// # Errors
/// If the list, the log or the directory of outputs cannot be used.
pub fn prepare(
    config: BatchConfig,
    environment: &Environment,
    display: Box<dyn BatchDisplay>,
) -> Result<Prepared, Error> {
    let text = read(&config.list)?;
    let find = |name: &_| job_list::find(name, environment.search.as_deref());
    let mut listed = job_list::parse(&text, &find)
        .map_err(Error::Refused)
        .at(|| config.list.display().to_string())?;
    let given = listed.len();
    let mut log = match config.dry_run {
        true => {
            skip_as_logged(&mut listed, &config);
            None
        }
        false => log(&mut listed, &config)?,
    };
    let keeper = Keeper::open(environment);
    let plans = (listed.len() > 1).then(|| environment.harvest_plans());
    let jobs = known_jobs::jobs(&listed, &keeper.known, plans.flatten().as_deref());
    let expected: Vec<Expected> = jobs.iter().map(|job| job.expected).collect();
    let cpus = std::thread::available_parallelism().map_or(1, Into::into);
    let at_once = config.at_once.unwrap_or(AtOnce::OfCpus(1.0));
    let slots = at_once.slots(listed.len(), cpus);
    let mut lineup = Lineup::best(&expected, slots);
    if config.dry_run {
        return Ok(Prepared::Shown(shown(&listed, &mut lineup)));
    }
    let outputs = outputs(&listed, &config, environment)?;
    // Everything else was checked: what an earlier batch wrote may be removed.
    if let Some((path, log)) = &mut log {
        log.begin()
            .at(|| format!("cannot write {}", path.display()))?;
    }
    let scope = BatchScope {
        listed: given,
        skipped: given - listed.len(),
        slots,
        order: lineup.order,
    };
    let is_known = expected.iter().any(|it| it.wall_s.is_some());
    let can_harvest = jobs.iter().any(|job| job.plan.is_some());
    let (harvest, machine) = harvest(&config, environment, can_harvest);
    let batch = Batch {
        display,
        complain: environment.complain,
        listed,
        jobs,
        queue: Queue::new(lineup, slots),
        halt: config.halt.unwrap_or(Halt::Never),
        harvest,
        machine,
        outputs,
        log,
        keeper,
        pace: Pace::new(is_known),
    };
    Ok(Prepared::Batch(Box::new(PreparedBatch {
        config,
        environment: environment.clone(),
        scope,
        batch,
    })))
}

/// Removes the jobs that a log lists as done, without opening it for writing.
fn skip_as_logged(listed: &mut Vec<Listed>, config: &BatchConfig) {
    let path = config.joblog.as_ref().filter(|_| config.again().is_some());
    let content = path.and_then(|path| std::fs::read(path).ok());
    skip(listed, &content.unwrap_or_default(), config);
}

/// Opens the log, and removes the jobs that it lists as done.
fn log(listed: &mut Vec<Listed>, config: &BatchConfig) -> Result<Option<(PathBuf, JobLog)>, Error> {
    let Some(path) = &config.joblog else {
        return Ok(None);
    };
    let (log, content) = JobLog::open(path, config.again().is_some())
        .at(|| format!("cannot write {}", path.display()))?;
    skip(listed, &content, config);
    Ok(Some((path.clone(), log)))
}

/// Where the jobs' output goes.
fn outputs(
    listed: &[Listed],
    config: &BatchConfig,
    environment: &Environment,
) -> Result<Outputs, Error> {
    let order = match config.keep_order {
        true => PrintOrder::list(listed.iter().map(|it| it.number)),
        false => PrintOrder::Ends,
    };
    let temporary = &environment.temporary;
    Outputs::prepare(config.output.as_deref(), temporary, order).at(|| {
        let place = config.output.as_ref().unwrap_or(temporary);
        format!("cannot write to {}", place.display())
    })
}

/// Whether jobs are harvested, and the profile of the machine that this needs. `can_harvest`: some jobs have plans.
fn harvest(
    config: &BatchConfig,
    environment: &Environment,
    can_harvest: bool,
) -> (BatchHarvest, Option<PathBuf>) {
    let is_wanted = can_harvest && config.harvest != BatchHarvest::Off;
    let kept = || is_wanted.then(config.kept_profile).flatten();
    let machine = config.machine.clone().or_else(kept);
    let machine = machine.filter(|_| can_harvest);
    if config.harvest == BatchHarvest::On && machine.is_none() {
        let lacks = if can_harvest {
            "there is no kept machine profile (`membound measure` makes one)"
        } else {
            "fewer than two of the programs have a kept plan (`membound harvest run` makes plans)"
        };
        environment.complain(&format!("all jobs run as ordinary processes: {lacks}"));
    }
    let harvest = match machine {
        Some(_) if !membound_launch::AGENT.is_empty() => config.harvest,
        _ => BatchHarvest::Off,
    };
    (harvest, machine)
}

/// The bytes of the list; `-` is standard input.
fn read(list: &Path) -> Result<Vec<u8>, Error> {
    let place = || format!("cannot read {}", list.display());
    if list == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin().read_to_end(&mut text).at(place)?;
        return Ok(text);
    }
    std::fs::read(list).at(place)
}

/// Removes the jobs that the log lists as done.
fn skip(listed: &mut Vec<Listed>, held: &[u8], config: &BatchConfig) {
    let Some(again) = config.again() else {
        return;
    };
    let done: HashSet<u64> = joblog::done(held, listed, again).into_iter().collect();
    listed.retain(|it| !done.contains(&it.number));
}

/// The commands in the order in which they would be started, one a line.
fn shown(listed: &[Listed], lineup: &mut Lineup) -> Vec<u8> {
    let mut text = Vec::new();
    let mut memory_bound = 0;
    while let Some(job) = lineup.next(memory_bound) {
        // As if each job ended before the next of its kind is started.
        memory_bound = usize::from(lineup.is_memory_bound(job));
        text.extend_from_slice(listed[job].line.as_bytes());
        text.push(b'\n');
    }
    text
}
