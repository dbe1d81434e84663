//! Programs without a kept plan: they run as ordinary processes, are profiled while they run, and the
//! resulting plan is kept. No program is executed a second time for the sake of its plan.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use membound_platform::Root;
use membound_types::HarvestRole;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::error::one_line;
use crate::kept_plans::{PlanMaker, PlanRequest, PlanWithOrigin, STARTS_OTHERS, Timed};

/// Time between two checks whether a recording is complete although its program runs on.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a profiler may take to exit after its program was killed.
const PROFILER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Niceness of the planning thread; moderate, because programs that wait for their plan are held meanwhile.
pub(super) const PLANNING_NICENESS: i32 = 5;

/// How long to wait for plans in the making after all programs have ended; `elapsed` is how long the programs
/// took.
pub(super) fn planning_time(elapsed: Duration) -> Duration {
    const MIN_WAIT: Duration = Duration::from_millis(50);
    const MAX_WAIT: Duration = Duration::from_secs(2);
    (elapsed / 30 + MIN_WAIT).min(MAX_WAIT)
}

/// Share of the time of all programs of a harvest that profiling may cost.
pub(super) const PROFILING_BUDGET_SHARE: f64 = 0.03;
/// Minimum CPU time of a program for it to be profiled, in seconds.
const MIN_CPU_S: f64 = 0.3;
/// A profile lasts at least so long, in seconds, and for at least this share of the program's time: one that ends
/// while the program prepares its data makes a plan for that.
const MIN_PROFILE_S: f64 = 1.0;
const MIN_PROFILED_SHARE: f64 = 0.25;
/// Cost of profiling: a share of the profiled time, and a fixed part in seconds for the agent and the plan itself.
const PROFILING_COST_SHARE: f64 = 0.08;
const FIXED_COST_S: f64 = 0.1;
/// Cost for each byte of code that the program maps, in seconds, beyond the loader and the C library, whose
/// analysis is kept from other programs.
const COST_PER_BYTE_S: f64 = 0.2e-6;
const USUAL_CODE_BYTES: u64 = 2 << 20;

/// For how long a program is profiled, and what that costs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Profiling {
    pub(super) duration: Duration,
    pub(super) cost_s: f64,
}

impl Profiling {
    /// The longest profile up to `max` that costs at most `budget_s`; `None` if that is too short for a plan.
    pub(super) fn within(budget_s: f64, of: Timed, max: Duration) -> Option<Self> {
        let bytes = of.code_bytes.saturating_sub(USUAL_CODE_BYTES);
        let fixed_s = FIXED_COST_S + COST_PER_BYTE_S * bytes as f64;
        let longest_s = max.as_secs_f64().min(of.cpu_s);
        let affordable_s = ((budget_s - fixed_s) / PROFILING_COST_SHARE).min(longest_s);
        let needed_s = MIN_PROFILE_S
            .max(MIN_PROFILED_SHARE * of.cpu_s)
            .min(longest_s);
        (of.cpu_s >= MIN_CPU_S && affordable_s >= needed_s).then(|| Self {
            duration: Duration::from_secs_f64(affordable_s),
            cost_s: fixed_s + PROFILING_COST_SHARE * affordable_s,
        })
    }
}

/// Bytes of code that a process maps from files.
pub(super) fn code_bytes(pid: u32) -> u64 {
    let maps = membound_launch::maps_of(pid).unwrap_or_default();
    let code = maps.iter().filter(|map| map.executable && map.inode != 0);
    code.map(|map| map.range.end - map.range.start).sum()
}

/// Size of a program's file in bytes; 0 if it cannot be read.
pub(super) fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// Result of observing a program while it ran.
#[derive(Debug)]
pub(super) enum Observation {
    Plan(Box<PlanWithOrigin>),
    /// There can be no plan, for the reason given.
    NoPlan(String),
    /// The program was only timed.
    Timed(Timed),
}

/// What is to be found out about a program while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Its CPU time, which decides whether profiling pays.
    CpuTime,
    /// Its plan.
    Plan,
}

/// Task of observing one program while it runs.
#[derive(Clone, Debug)]
pub(super) struct ObservationTask {
    pub(super) maker: Arc<PlanMaker>,
    pub(super) plan_request: PlanRequest,
    pub(super) subject: Subject,
    /// Maximum time for which it is profiled.
    pub(super) duration: Duration,
}

impl ObservationTask {
    /// Keeps the program's CPU time; or, where the program started others, that it can have no plan.
    pub(super) fn record_time(&self, timed: Timed, starts_others: bool) -> Observation {
        if starts_others && self.plan_request.role == HarvestRole::Scavenger {
            self.maker.keep_refusal(&self.plan_request, STARTS_OTHERS);
            return Observation::NoPlan(STARTS_OTHERS.to_owned());
        }
        self.maker.keep_time(&self.plan_request, timed);
        Observation::Timed(timed)
    }
}

/// A program that is being profiled.
#[derive(Debug)]
pub(super) struct Learning {
    task: ObservationTask,
    scratch: TempDir,
    next_poll: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Recording,
    Planning(Receiver<Observation>),
    Over,
}

impl Learning {
    /// Prepares a scratch directory for the recording.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub(super) fn begin(task: ObservationTask) -> io::Result<Self> {
        Ok(Self {
            next_poll: Instant::now() + task.duration,
            scratch: tempfile::tempdir_in(&task.maker.environment.temporary)?,
            task,
            state: State::Recording,
        })
    }

    pub(super) fn run_file(&self) -> PathBuf {
        self.scratch.path().join("harvest.run")
    }

    /// The command that runs and profiles the program, which is called with `words`.
    ///
    /// # Errors
    /// When membound's own executable has no name any more.
    pub(super) fn command(&self, words: &[OsString]) -> io::Result<Command> {
        let mut command = self.task.maker.profiler(&self.run_file())?;
        let seconds = self.task.duration.as_secs_f64().to_string();
        command.args(["--duration", &seconds, "--"]).args(words);
        Ok(command)
    }

    /// Advances the state; `has_ended` is whether the program has ended. Returns the result, once.
    pub(super) fn poll(&mut self, has_ended: bool) -> Option<Observation> {
        match &self.state {
            State::Recording => {
                let now = Instant::now();
                if !has_ended {
                    if now < self.next_poll {
                        return None;
                    }
                    self.next_poll = now + POLL_INTERVAL;
                    if !membound_run::is_complete(&self.run_file()) {
                        return None;
                    }
                }
                self.state = State::Planning(self.plan());
                None
            }
            State::Planning(planned) => match planned.try_recv() {
                Err(TryRecvError::Empty) => None,
                received => {
                    self.state = State::Over;
                    let failed = |_| Observation::NoPlan("planning it failed".to_owned());
                    Some(received.unwrap_or_else(failed))
                }
            },
            State::Over => None,
        }
    }

    /// Whether there is nothing more to wait for.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Makes the plan in a thread alongside the programs that run.
    fn plan(&self) -> Receiver<Observation> {
        let (sender, receiver) = mpsc::channel();
        let (
            ObservationTask {
                maker,
                plan_request,
                ..
            },
            run,
        ) = (self.task.clone(), self.run_file());
        let thread = std::thread::Builder::new().name("planning".to_owned());
        // If the thread cannot be started, nothing is sent and the result is a failed plan.
        let _ = thread.spawn(move || {
            // Without a process ID the kernel changes the niceness of the calling thread only.
            let _ = rustix::process::setpriority_process(None, PLANNING_NICENESS);
            let _ = sender.send(maker.learn(&plan_request, &run));
        });
        receiver
    }
}

/// Kills the program that a profiler runs, and waits until the profiler has ended as well.
pub(super) fn kill_profiled(profiler: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PROFILER_EXIT_TIMEOUT;
    while Instant::now() < deadline {
        for child in children_of(profiler.id(), &threads_of(profiler.id())) {
            // The child may have ended just now.
            let _ = kill_process(child, Signal::KILL);
        }
        if let Ok(Some(status)) = profiler.try_wait() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    profiler.kill().ok()?;
    profiler.wait().ok()
}

/// Whether a process has several threads, or children.
pub(super) fn has_others(pid: u32) -> bool {
    let threads = threads_of(pid);
    threads.len() > 1 || !children_of(pid, &threads).is_empty()
}

fn threads_of(pid: u32) -> Vec<u32> {
    Root::system().numbered(format!("proc/{pid}/task"), "")
}

/// The children of a process with these threads, from the kernel's list for each thread.
fn children_of(pid: u32, threads: &[u32]) -> Vec<Pid> {
    let list = |thread| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    let lists: Vec<String> = threads
        .iter()
        .filter_map(|thread| list(thread).ok())
        .collect();
    let words = lists.iter().flat_map(|list| list.split_whitespace());
    let numbers = words.filter_map(|word| word.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

impl PlanMaker {
    /// Makes and keeps the plan from a run that was recorded while the program did its work, or keeps the
    /// reason why there can be none.
    fn learn(&self, plan_request: &PlanRequest, run: &Path) -> Observation {
        let data = match membound_run::RunData::open(run) {
            Ok(data) => data,
            Err(error) => return Observation::NoPlan(one_line(&error)),
        };
        match self.plan_of(plan_request, &data) {
            Ok(followed) => {
                self.keep(plan_request, &followed.plan);
                Observation::Plan(Box::new(followed))
            }
            Err(error) => {
                let why = one_line(&error);
                self.keep_refusal(plan_request, &why);
                Observation::NoPlan(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn profiling_costs_a_small_share_of_all_programs_time() {
        let max = Duration::from_secs(5);
        let profiling = |cpu_s: f64, code_mib: u64, all_s: f64| {
            let code_bytes = code_mib << 20;
            let budget_s = PROFILING_BUDGET_SHARE * all_s;
            let found = Profiling::within(budget_s, Timed { cpu_s, code_bytes }, max)?;
            assert!(found.cost_s <= budget_s, "{found:?}");
            Some(found.duration.as_secs_f64())
        };
        // Copies or other programs make it pay, and long programs by themselves.
        assert_eq!(profiling(4.0, 1, 4.0), None);
        assert!(profiling(4.0, 1, 8.0).is_some_and(|it| it > 1.7));
        assert_eq!(profiling(4.0, 1, 100.0), Some(4.0));
        assert_eq!(profiling(60.0, 1, 60.0), Some(5.0));
        // Code of large libraries is expensive, and short programs gain nothing.
        assert_eq!(profiling(4.0, 40, 100.0), None);
        assert_eq!(profiling(0.2, 1, 100.0), None);
        // Too short for a program of that length.
        assert_eq!(profiling(16.0, 1, 14.0), None);
    }

    #[test]
    fn the_code_that_a_process_maps_is_measured() {
        let own = code_bytes(std::process::id());
        assert!((4096..1 << 30).contains(&own), "{own}");
        assert_eq!(code_bytes(0), 0);
    }

    #[test]
    fn programs_that_start_others_are_recognised() {
        let start = |script: &str| {
            let mut shell = Command::new("/bin/sh");
            let shell = shell.args(["-c", script]).stdin(Stdio::piped());
            shell.spawn().unwrap()
        };
        let mut alone = start("read line");
        let mut with_child = start("cat; exit 0");
        while !has_others(with_child.id()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!has_others(alone.id()));
        drop((alone.stdin.take(), with_child.stdin.take()));
        alone.wait().unwrap();
        with_child.wait().unwrap();
    }

    #[test]
    fn a_profiled_program_is_killed_with_its_profiler() {
        // A shell that waits for its child takes the place of the profiler.
        let mut profiler = Command::new("/bin/sh")
            .args(["-c", "sleep 1000; exit 7"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        while !has_others(profiler.id()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = kill_profiled(&mut profiler).unwrap();
        assert_eq!(status.code(), Some(7), "the shell itself ended by itself");
    }
}
