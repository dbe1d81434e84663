//! The plan of a command that has none, made and adopted while the command runs.
//!
//! The command is recorded while scavengers run alongside it on their home threads. The run file is planned
//! repeatedly as it grows, until the plan covers most of the stall so far. Then the recording ends, the
//! yields are installed in the running text, and scavengers may have time slices. None of this stops the
//! command.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use membound_launch::{Live, Remote, ScavengerPlacement};
use membound_platform::cpu_time;
use membound_record::CutOff;
use membound_run::RunData;
use membound_types::{HarvestPart, HarvestRole};
use tempfile::TempDir;

use super::choices::Choices;
use super::learning::{ObservationTask, PLANNING_NICENESS};
use crate::error::{Error, one_line};
use crate::kept_plans::PlanWithOrigin;

/// Time from the start of the command to the first attempt at its plan.
const FIRST_ATTEMPT: Duration = Duration::from_millis(400);
/// Minimum time from the end of one attempt to the start of the next.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Wall time between two attempts per second of CPU time that the first of them took: attempts take at most a
/// fifth of a processor. The wall time of an attempt does not show its cost: under a load, 3 ms of CPU time
/// take some tenths of a second.
const PAUSE_PER_ATTEMPT_CPU: u32 = 4;
/// Time since the start of the command over the pause between two attempts: attempts become rarer.
const ELAPSED_PER_PAUSE: u32 = 5;
/// Share of the stall so far that a plan must cover, and share of the CPU time that the stall must be, for
/// the plan to be adopted before the recording is complete: a command that still prepares its data has other
/// loads to wait for.
const MIN_COVERED_SHARE: f64 = 0.5;
const MIN_STALL_SHARE: f64 = 0.1;
/// A recording is complete when it holds as much CPU time of the command as a profile needs, or after this
/// many times as much wall time: a command that waits, or has little of a processor, yields fewer samples.
const MAX_DURATIONS: u32 = 4;
/// Share of a profile's CPU time from which on a recording without yields proves that there are none.
const MIN_RECORDED_SHARE: f64 = 0.5;
/// How long to wait for a command in whose text the yields are not installed, in wall time.
const TEXT_CHANGE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of making a command's plan while the command runs.
#[derive(Debug)]
pub(super) struct InPlace {
    task: ObservationTask,
    scratch: TempDir,
    without: Vec<HarvestPart>,
    live: Live,
    cut_off: CutOff,
    scavengers: usize,
    start: Instant,
    next_attempt: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The command is recorded.
    Recording,
    /// The run file is planned.
    Planning(Receiver<Attempt>),
    /// The recording has been asked to end.
    Ending(Box<Ready>),
    /// Yields are being installed: the plan, the number of the exchange, and its start.
    Planting(Box<Ready>, u64, Instant),
    Over,
}

/// Result of planning what was recorded so far.
#[derive(Debug)]
struct Attempt {
    /// CPU time of the command in the recording, in seconds.
    cpu_s: f64,
    /// CPU time that the attempt itself took.
    own_cpu: Duration,
    ready: Result<Box<Ready>, String>,
}

/// A plan, and the patches for it.
#[derive(Debug)]
struct Ready {
    followed: PlanWithOrigin,
    choices: Choices,
}

impl Ready {
    fn has_yields(&self) -> bool {
        !self.choices.primary.is_empty()
    }
}

/// Final result.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The plan was adopted.
    Adopted(Box<Adopted>),
    /// There is no plan, for the reason given.
    NoPlan(String),
}

/// A plan that is followed from some moment of the run on.
#[derive(Debug)]
pub(super) struct Adopted {
    pub(super) followed: PlanWithOrigin,
    pub(super) choices: Choices,
}

impl InPlace {
    /// Prepares a scratch directory for the recording, which goes into [`Self::run_file`].
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(super) fn begin(
        task: ObservationTask,
        without: Vec<HarvestPart>,
        live: Live,
        scavengers: usize,
    ) -> std::io::Result<Self> {
        let start = Instant::now();
        Ok(Self {
            scratch: tempfile::tempdir_in(&task.maker.environment.temporary)?,
            task,
            without,
            live,
            cut_off: CutOff::default(),
            scavengers,
            start,
            next_attempt: start + FIRST_ATTEMPT,
            stage: Stage::Recording,
        })
    }

    pub(super) fn run_file(&self) -> PathBuf {
        self.scratch.path().join("harvest.run")
    }

    /// Hands over `cut_off`, which ends the recording, after the recording has begun.
    pub(super) fn follow(self, cut_off: CutOff) -> Self {
        Self { cut_off, ..self }
    }

    /// Ends the recording without making a plan.
    pub(super) fn give_up(self) {
        self.cut_off.cut();
    }

    /// Advances the state; returns the result, once.
    pub(super) fn poll(&mut self, remote: &Remote) -> Option<Outcome> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Recording => {
                self.stage = if Instant::now() < self.next_attempt {
                    Stage::Recording
                } else {
                    Stage::Planning(self.attempt())
                };
            }
            Stage::Planning(planned) => match planned.try_recv() {
                Err(TryRecvError::Empty) => self.stage = Stage::Planning(planned),
                Ok(attempt) => return self.judge(remote, attempt),
                Err(TryRecvError::Disconnected) => {
                    let failed = Attempt {
                        cpu_s: 0.0,
                        own_cpu: Duration::ZERO,
                        ready: Err("planning it failed".to_owned()),
                    };
                    return self.judge(remote, failed);
                }
            },
            Stage::Ending(ready) => {
                self.stage = if self.cut_off.has_ended() {
                    let plantings = ready.choices.primary.clone();
                    let exchange = remote.plant(plantings);
                    Stage::Planting(ready, exchange, Instant::now())
                } else {
                    Stage::Ending(ready)
                };
            }
            Stage::Planting(ready, exchange, since) => {
                if !remote.settled(exchange) && since.elapsed() < TEXT_CHANGE_TIMEOUT {
                    self.stage = Stage::Planting(ready, exchange, since);
                    return None;
                }
                let Ready { followed, choices } = *ready;
                return Some(Outcome::Adopted(Box::new(Adopted { followed, choices })));
            }
            Stage::Over => {}
        }
        None
    }

    /// Decides whether the plan of an attempt is adopted, or when the next attempt is made.
    fn judge(&mut self, remote: &Remote, attempt: Attempt) -> Option<Outcome> {
        let ObservationTask {
            maker,
            plan_request,
            ..
        } = &self.task;
        let Attempt {
            cpu_s,
            own_cpu,
            ready,
        } = attempt;
        let wanted = maker.duration;
        let is_known = cpu_s >= MIN_RECORDED_SHARE * wanted.as_secs_f64();
        let is_over =
            cpu_s >= wanted.as_secs_f64() || self.start.elapsed() >= wanted * MAX_DURATIONS;
        match ready {
            Ok(ready) if is_enough(&ready) || is_over && (is_known || ready.has_yields()) => {
                maker.keep(plan_request, &ready.followed.plan);
                self.end_recording(remote);
                self.stage = Stage::Ending(ready);
                None
            }
            Err(why) if is_over && is_known => {
                maker.keep_refusal(plan_request, &why);
                self.end_recording(remote);
                Some(Outcome::NoPlan(why))
            }
            Ok(_) | Err(_) if is_over => {
                self.end_recording(remote);
                Some(Outcome::NoPlan(format!(
                    "it took {cpu_s:.1} s of CPU time meanwhile, which is too little"
                )))
            }
            Ok(_) | Err(_) => {
                self.next_attempt = Instant::now() + pause(own_cpu, self.start.elapsed());
                self.stage = Stage::Recording;
                None
            }
        }
    }

    /// Ends the recording, and puts scavengers into run queues: those that reach a yield now are ready when
    /// the command executes its first one.
    fn end_recording(&self, remote: &Remote) {
        self.cut_off.cut();
        remote.set_places(&vec![ScavengerPlacement::RunQueues; self.scavengers]);
    }

    /// Makes a plan from what is recorded so far, in a thread alongside the programs that run.
    fn attempt(&self) -> Receiver<Attempt> {
        let (sender, receiver) = mpsc::channel();
        let (task, run) = (self.task.clone(), self.run_file());
        let (without, live) = (self.without.clone(), self.live);
        let thread = std::thread::Builder::new().name("planning".to_owned());
        // If the thread cannot be started, nothing is sent and the attempt counts as failed.
        let _ = thread.spawn(move || {
            // Without a process ID the kernel changes the niceness of the calling thread only.
            let _ = rustix::process::setpriority_process(None, PLANNING_NICENESS);
            let mut cpu_s = 0.0;
            let mut ready = || -> Result<Box<Ready>, Error> {
                let data = RunData::open(&run)?;
                let recorded_ns: u64 = data.samples.iter().map(|sample| sample.weight_ns).sum();
                cpu_s = recorded_ns as f64 * 1e-9;
                let followed = task.maker.plan_of(&task.plan_request, &data)?;
                let choices = Choices::of(std::slice::from_ref(&followed.plan), &without, live)?;
                Ok(Box::new(Ready { followed, choices }))
            };
            let ready = ready().map_err(|error| one_line(&error));
            let _ = sender.send(Attempt {
                cpu_s,
                own_cpu: Duration::from_nanos(cpu_time::of_this_thread()),
                ready,
            });
        });
        receiver
    }
}

/// Time from the end of an attempt that took `own_cpu` to the next one, `elapsed` after the start of the
/// command.
fn pause(own_cpu: Duration, elapsed: Duration) -> Duration {
    (own_cpu * PAUSE_PER_ATTEMPT_CPU)
        .max(elapsed / ELAPSED_PER_PAUSE)
        .max(MIN_PAUSE)
}

/// Whether a plan is adopted although more could be recorded.
fn is_enough(ready: &Ready) -> bool {
    let plan = &ready.followed.plan;
    let totals = &plan.totals;
    plan.role == HarvestRole::Primary
        && ready.has_yields()
        && totals.stall_fraction >= MIN_STALL_SHARE
        && totals.covered_fraction >= MIN_COVERED_SHARE * totals.stall_fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_by_their_cpu_time_and_become_rarer() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(3), ms(430)), MIN_PAUSE);
        assert_eq!(pause(ms(3), ms(1000)), ms(200));
        assert_eq!(pause(ms(3), ms(10_000)), ms(2000));
        // A large program takes a fifth of a processor at most.
        assert_eq!(pause(ms(200), ms(1000)), ms(800));
    }
}
