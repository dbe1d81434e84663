//! Runs a batch: carries out decisions, and accounts for jobs that ended.

mod ends;
mod starts;
mod trouble;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use membound_types::{BatchHarvest, BatchJob, BatchSet, CpuId};
use rustix::process::{Pid, Signal, getpid, kill_process};

use super::batch_display::{BatchDisplay, aside};
use super::batch_history::Keeper;
use super::batch_pace::{self, Pace};
use super::halt::{Halt, Stop};
use super::job_list::Listed;
use super::job_outputs::Outputs;
use super::job_processes;
use super::job_sets::{self, Candidate, Choice, JobSet};
use super::joblog::JobLog;
use super::known_jobs::Job;
use super::lineup::Lineup;
use super::set_harvest::Harvest;
use super::start_queue::{Next, Queue, RunningCounts};

/// Time between SIGTERM and SIGKILL when jobs are ended.
const SIGKILL_DELAY: Duration = Duration::from_secs(2);
/// Time between two updates of the progress line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);
/// Number of waiting jobs that are considered for a set, from the next one on.
const MAX_CONSIDERED: usize = 256;

/// Everything that a batch begins with.
pub(super) struct Batch {
    /// Shows outputs and progress.
    pub(super) display: Box<dyn BatchDisplay>,
    /// Shows a message of one line.
    pub(super) complain: fn(&str),
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
        let redraw = self.batch.display.is_shown().then_some(REDRAW_INTERVAL);
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
        match Signal::from_named_raw(signal) {
            Some(Signal::CHILD) => self.reap(),
            Some(Signal::TSTP) => {
                self.signal_all(Signal::STOP);
                // Stops until the user has the shell continue it.
                let _ = kill_process(getpid(), Signal::STOP);
                self.signal_all(Signal::CONT);
            }
            _ => self.interrupt(signal),
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
                if self.batch.display.is_shown() && running > 0 {
                    let line = format!(
                        "no further jobs are started; {running} still run, and are ended if you \
                         interrupt once more"
                    );
                    self.aside(&line);
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
            job_processes::signal(running.pid, signal);
        }
    }

    fn reap(&mut self) {
        while let Some(ended) = job_processes::reap() {
            let at = self.running.iter().position(|it| it.pid == ended.pid);
            let Some(at) = at else { continue };
            let running = self.running.remove(at);
            if self.is_ending {
                // Kills the processes that the job left behind in its process group.
                job_processes::signal(running.pid, Signal::KILL);
            }
            self.outcome.cpu_s += ended.cpu_s;
            self.process_ended(running, &ended);
        }
    }

    fn show(&self) {
        if !self.batch.display.is_shown() {
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
        let message = batch_pace::message(self.running.len(), failed, left_s);
        let jobs = self.batch.listed.len();
        self.batch.display.at(ended, jobs, &message);
    }

    fn finish(mut self) -> Outcome {
        self.batch.display.finish();
        let printed = self.batch.outputs.flush(&*self.batch.display);
        self.printed(printed);
        if let Some((_, log)) = &mut self.batch.log
            && log.flush().is_err()
        {
            self.outcome.is_troubled = true;
        }
        if let Some(kept) = self.batch.outputs.finish() {
            (self.batch.complain)(&kept);
            self.outcome.notes.push(kept);
        }
        self.batch.keeper.keep();
        self.outcome
    }

    /// Shows a message of one line without disturbing the line of progress.
    fn aside(&self, line: &str) {
        aside(&*self.batch.display, || (self.batch.complain)(line));
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
    let choice = job_sets::choose(&candidates, lineup.len(), free, harvest, &keeper.known);
    if job_sets::is_chance(&choice) {
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
