//! Runs a batch: carries out decisions, and accounts for jobs that ended.

mod ends;
mod starts;
mod trouble;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use membound_types::{BatchHarvest, BatchJob, BatchSet, CpuId};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGTSTP};

use super::halt::{Halt, Stop};
use super::joblog::JobLog;
use super::known::Job;
use super::lineup::Lineup;
use super::listing::Listed;
use super::outputs::Outputs;
use super::pace::{Line, Pace};
use super::processes;
use super::queue::{Next, Queue, RunningCounts};
use super::record::Keeper;
use super::scavengers::Harvest;
use super::sets::{self, Candidate, Choice, JobSet};
use crate::output;

/// Time between SIGTERM and SIGKILL when jobs are ended.
const SIGKILL_DELAY: Duration = Duration::from_secs(2);
/// Time between two updates of the progress line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);
/// Number of waiting jobs that are considered for a set, from the next one on.
const MAX_CONSIDERED: usize = 256;
/// Everything that a batch begins with.
pub(super) struct Batch {
    /// The commands to run, and what is known of each, by index.
    pub(super) listed: Vec<Listed>,
    pub(super) jobs: Vec<Job>,
    pub(super) queue: Queue,
    pub(super) halt: Halt,
    pub(super) harvest: BatchHarvest,
    /// Machine profile for harvests; without one no harvest is started.
    pub(super) machine: Option<PathBuf>,
    pub(super) outputs: Outputs,
    pub(super) log: Option<(PathBuf, JobLog)>,
    pub(super) keeper: Keeper,
    pub(super) line: Line,
    pub(super) pace: Pace,
}

/// Results of a batch.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) results: Vec<BatchJob>,
    pub(super) sets: Vec<BatchSet>,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    /// Number of jobs that the batch ended.
    pub(super) ended: usize,
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    /// First signal with which the user stopped the batch.
    pub(super) interrupted: Option<i32>,
    /// Whether the reader of stdout is gone.
    pub(super) is_unread: bool,
    /// Whether the job log or outputs could not be written.
    pub(super) is_troubled: bool,
    /// Problems, each printed already.
    pub(super) notes: Vec<String>,
}

/// A running job or set.
struct Running {
    pid: Pid,
    what: What,
    start: Instant,
    started_unix_s: f64,
}

enum What {
    Job(usize),
    Set(Box<Set>),
}

struct Set {
    chosen: JobSet,
    harvest: Harvest,
    cpu: CpuId,
}

/// State of a batch that runs.
pub(super) struct Engine {
    batch: Batch,
    outcome: Outcome,
    running: Vec<Running>,
    /// Number of times that the user asked for an end.
    asked: usize,
    /// Whether running jobs are being ended, and when those that remain are killed.
    is_ending: bool,
    kill_at: Option<Instant>,
}

impl Engine {
    pub(super) fn new(batch: Batch) -> Self {
        Self {
            batch,
            outcome: Outcome::default(),
            running: Vec::new(),
            asked: 0,
            is_ending: false,
            kill_at: None,
        }
    }

    /// Runs all jobs. `signals` receives the signals of this process.
    pub(super) fn run(mut self, signals: &Receiver<i32>) -> Outcome {
        let start = Instant::now();
        loop {
            match signals.try_recv() {
                Ok(signal) => self.signalled(signal),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            match self.next() {
                Next::Start(job) => self.start(job),
                Next::Together(set) => self.start_set(set),
                Next::Wait => self.wait(signals),
                Next::Over => break,
            }
        }
        self.outcome.wall_s = start.elapsed().as_secs_f64();
        self.finish()
    }

    fn next(&mut self) -> Next {
        let memory_bound = self.running.iter().filter(|it| match &it.what {
            What::Job(job) => self.batch.queue.lineup.is_memory_bound(*job),
            What::Set(_) => true,
        });
        let running_counts = RunningCounts {
            running: self.running.len(),
            memory_bound: memory_bound.count(),
        };
        let Batch {
            queue,
            jobs,
            keeper,
            harvest,
            ..
        } = &mut self.batch;
        queue.next(running_counts, &mut |lineup, free| {
            choose(lineup, free, jobs, *harvest, keeper)
        })
    }

    fn started(&mut self, pid: Pid, what: What) {
        self.running.push(Running {
            pid,
            what,
            start: Instant::now(),
            started_unix_s: unix_s(),
        });
        self.show();
    }

    fn wait(&mut self, signals: &Receiver<i32>) {
        let until_kill = self
            .kill_at
            .map(|at| at.saturating_duration_since(Instant::now()));
        let redraw = self.batch.line.is_shown().then_some(REDRAW_INTERVAL);
        let limit = until_kill.into_iter().chain(redraw).min();
        match signals.recv_timeout(limit.unwrap_or(Duration::from_secs(60))) {
            Ok(signal) => self.signalled(signal),
            // Children are also polled after the timeout, so a lost SIGCHLD delays the batch by at most a
            // minute.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => self.reap(),
        }
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill_at = None;
            self.signal_all(Signal::KILL);
        }
        self.show();
    }

    fn signalled(&mut self, signal: i32) {
        match signal {
            SIGCHLD => self.reap(),
            SIGTSTP => {
                self.signal_all(Signal::STOP);
                // Stops until the user has the shell continue it.
                let _ = signal_hook::low_level::raise(signal_hook::consts::SIGSTOP);
                self.signal_all(Signal::CONT);
            }
            signal => self.interrupt(signal),
        }
    }

    /// At the first interruption no more jobs are started, at the second the running jobs are ended, from the
    /// third on they are killed.
    fn interrupt(&mut self, signal: i32) {
        self.asked += 1;
        self.outcome.interrupted.get_or_insert(signal);
        match self.asked {
            1 => {
                self.batch.queue.stop(Stop::Soon);
                let running = self.running.len();
                if self.batch.line.is_shown() && running > 0 {
                    let line = format!(
                        "no further jobs are started; {running} still run, and are ended if you \
                         interrupt once more"
                    );
                    self.batch.line.aside(|| output::complain(&line));
                }
            }
            2 => self.end_running(),
            _ => self.signal_all(Signal::KILL),
        }
    }

    fn end_running(&mut self) {
        self.batch.queue.stop(Stop::Now);
        if self.is_ending {
            return;
        }
        self.is_ending = true;
        self.kill_at = Some(Instant::now() + SIGKILL_DELAY);
        self.signal_all(Signal::TERM);
        // A stopped process handles SIGTERM only once it is continued.
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        for running in &self.running {
            processes::signal(running.pid, signal);
        }
    }

    fn reap(&mut self) {
        while let Some(ended) = processes::reap() {
            let at = self.running.iter().position(|it| it.pid == ended.pid);
            let Some(at) = at else { continue };
            let running = self.running.remove(at);
            if self.is_ending {
                // Kills the processes that the job left behind in its process group.
                processes::signal(running.pid, Signal::KILL);
            }
            self.outcome.cpu_s += ended.cpu_s;
            self.process_ended(running, &ended);
        }
    }

    fn show(&self) {
        if !self.batch.line.is_shown() {
            return;
        }
        let lineup = &self.batch.queue.lineup;
        let running = self.running.iter().map(|it| {
            let expected_s = match &it.what {
                What::Job(job) => lineup.expected_s(*job),
                What::Set(set) => set
                    .chosen
                    .jobs
                    .iter()
                    .map(|job| lineup.expected_s(*job))
                    .sum(),
            };
            (it.start.elapsed().as_secs_f64(), expected_s)
        });
        let slots = self.batch.queue.slots();
        let left_s = self.batch.pace.left_s(lineup.waiting_s(), running, slots);
        let (ended, failed) = (self.outcome.results.len(), self.outcome.failed);
        self.batch
            .line
            .at(ended, self.running.len(), failed, left_s);
    }

    fn finish(mut self) -> Outcome {
        self.batch.line.finish();
        let printed = self.batch.outputs.flush();
        self.printed(printed);
        if let Some((_, log)) = &mut self.batch.log
            && log.flush().is_err()
        {
            self.outcome.is_troubled = true;
        }
        if let Some(kept) = self.batch.outputs.finish() {
            output::complain(&kept);
            self.outcome.notes.push(kept);
        }
        self.batch.keeper.keep();
        self.outcome
    }

    fn number(&self, job: usize) -> u64 {
        self.batch.listed[job].number
    }
}

/// Chooses a set of waiting jobs to run together, if any.
fn choose(
    lineup: &Lineup,
    free: usize,
    jobs: &mut [Job],
    harvest: BatchHarvest,
    keeper: &mut Keeper,
) -> Choice {
    let candidates: Vec<Candidate<'_>> = lineup
        .waiting()
        .take(MAX_CONSIDERED)
        .filter_map(|job| {
            let plan = jobs[job].plan.as_ref()?;
            Some(Candidate {
                job,
                key: &jobs[job].key,
                gain_fraction: plan.gain_fraction,
            })
        })
        .collect();
    let choice = sets::choose(&candidates, lineup.len(), free, harvest, &keeper.known);
    if sets::is_chance(&choice) {
        keeper.chance();
    }
    if let Choice::NotYet(of_set) = &choice {
        // These jobs had their chance to be part of a set: they run as ordinary processes from now on.
        for job in of_set {
            jobs[*job].plan = None;
        }
    }
    choice
}

/// Seconds since 1970.
fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
