//! Programs without a kept plan: they run as ordinary processes, are profiled while they run, and the plan that
//! comes of it is kept. No program is executed a second time for the sake of its plan.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::plans::{Followed, Maker, Wish};
use crate::output;

/// Time between two looks whether a recording is over although its program runs on.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a profiler has to end after its program was killed.
const PROFILER_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The niceness of the thread that plans: programs that wait for their plan are held meanwhile.
const PLANNING_NICENESS: i32 = 5;

/// How long plans that are being made are waited for when all programs have ended, which took `elapsed`.
pub(super) fn planning_time(elapsed: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(2);
    (elapsed / 30 + SHORTEST).min(LONGEST)
}

/// CPU time of all copies of a program from which on one of them is profiled, and of one copy, in seconds:
/// profiling costs some tenths of a second.
const LEAST_CPU_S: f64 = 3.0;
const LEAST_CPU_EACH_S: f64 = 0.3;

/// Whether it pays to profile one of so many copies of a program that takes so long.
pub(super) fn is_worth_profiling(cpu_s: f64, copies: usize) -> bool {
    cpu_s >= LEAST_CPU_EACH_S && cpu_s * copies as f64 >= LEAST_CPU_S
}

/// What was learned of a program that ran.
#[derive(Debug)]
pub(super) enum Learned {
    Plan(Box<Followed>),
    /// There can be no plan, for this reason.
    NoPlan(String),
    /// It was only timed: its CPU time, in seconds.
    Took(f64),
}

/// What is to be learned of a program that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// How long it takes, which tells whether profiling pays.
    CpuTime,
    /// Its plan.
    Plan,
}

/// A program of which something is to be learned while it runs.
#[derive(Clone, Debug)]
pub(super) struct Lesson {
    pub(super) maker: Arc<Maker>,
    pub(super) wish: Wish,
    pub(super) subject: Subject,
}

impl Lesson {
    /// Keeps how long the program took.
    pub(super) fn took(&self, cpu_s: f64) -> Learned {
        self.maker.keep_cpu_time(&self.wish, cpu_s);
        Learned::Took(cpu_s)
    }
}

/// A program that is being profiled.
#[derive(Debug)]
pub(super) struct Learning {
    lesson: Lesson,
    scratch: TempDir,
    next_poll: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Recording,
    Planning(Receiver<Learned>),
    Over,
}

impl Learning {
    /// Begins to learn.
    ///
    /// # Errors
    /// When there is no room for a run file.
    pub(super) fn begin(lesson: Lesson) -> io::Result<Self> {
        Ok(Self {
            next_poll: Instant::now() + lesson.maker.duration,
            scratch: tempfile::tempdir()?,
            lesson,
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
        let maker = &self.lesson.maker;
        let mut command = maker.profiler(&self.run_file())?;
        let seconds = maker.duration.as_secs_f64().to_string();
        command.args(["--duration", &seconds, "--"]).args(words);
        Ok(command)
    }

    /// Advances: `has_ended` says whether the program has. Returns what was learned, once.
    pub(super) fn look(&mut self, has_ended: bool) -> Option<Learned> {
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
                    let failed = |_| Learned::NoPlan("planning it failed".to_owned());
                    Some(received.unwrap_or_else(failed))
                }
            },
            State::Over => None,
        }
    }

    /// Whether nothing more is to be learned.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Plans beside the programs that run.
    fn plan(&self) -> Receiver<Learned> {
        let (sender, receiver) = mpsc::channel();
        let (Lesson { maker, wish, .. }, run) = (self.lesson.clone(), self.run_file());
        let thread = std::thread::Builder::new().name("planning".to_owned());
        // Without a thread nothing is sent, and nothing is learned.
        let _ = thread.spawn(move || {
            // Of this thread only, which is what the kernel means by no process.
            let _ = rustix::process::setpriority_process(None, PLANNING_NICENESS);
            let _ = sender.send(maker.learn(&wish, &run));
        });
        receiver
    }
}

/// Kills the program that a profiler runs, and waits until the profiler has ended as well.
pub(super) fn kill_profiled(profiler: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PROFILER_EXIT_TIMEOUT;
    while Instant::now() < deadline {
        for child in children_of(profiler.id()) {
            // It may have ended just now.
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

/// The children of a process, by the kernel's list of each thread's.
fn children_of(pid: u32) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let words: Vec<String> = lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    let numbers = words.iter().filter_map(|word| word.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

impl Maker {
    /// Makes the plan of a run that was recorded while the program did its work, and keeps it, or why there
    /// can be none.
    fn learn(&self, wish: &Wish, run: &Path) -> Learned {
        let data = match membound_run::RunData::open(run) {
            Ok(data) => data,
            Err(error) => return Learned::NoPlan(output::one_line(&error.into())),
        };
        match self.plan_of(wish, &data) {
            Ok(followed) => {
                self.keep(wish, &followed.plan);
                Learned::Plan(Box::new(followed))
            }
            Err(error) => {
                let why = output::one_line(&error);
                self.keep_refusal(wish, &why);
                Learned::NoPlan(why)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn long_programs_and_many_copies_are_worth_profiling() {
        assert!(is_worth_profiling(4.0, 1));
        assert!(is_worth_profiling(0.5, 7));
        for (cpu_s, copies) in [(2.0, 1), (0.5, 5), (0.01, 10_000), (4.0, 0)] {
            assert!(!is_worth_profiling(cpu_s, copies), "{cpu_s} {copies}");
        }
    }

    #[test]
    fn a_profiled_program_is_killed_with_its_profiler() {
        // A shell that waits for its child stands for the profiler.
        let mut profiler = Command::new("/bin/sh")
            .args(["-c", "sleep 1000; exit 7"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        while children_of(profiler.id()).is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = kill_profiled(&mut profiler).unwrap();
        assert_eq!(status.code(), Some(7), "the shell itself ended by itself");
    }
}
