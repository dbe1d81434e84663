//! The first run of a command, which has no plan yet: it is planned and harvested in the same run where that is
//! possible, else profiled for the next one.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use membound_record::{Ended, Options, Recorder};

use super::follower::Observed;
use super::in_place::InPlace;
use super::learning::{self, Learning, Observation, ObservationTask, file_bytes};
use super::ordinary::Processes;
use super::role_assignment::RoleAssignment;
use super::run_document::{self, Facts};
use super::stage::{Done, Stage, TOO_SHORT, run_options};
use crate::error::{At as _, Error, one_line};
use crate::named_programs::{Program, texts};

/// Time between two polls of the ordinary processes alongside a command that is profiled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Reasons why a command without a plan can be harvested only in its next run.
const NO_HARVESTED_SCAVENGER: &str = "no scavenger has a plan that gives it time slices";
const IS_SCRIPT: &str =
    "it is a script, and the programs that it executes would end the scavengers";
const NO_SAMPLES: &str = "the kernel does not permit timer samples (perf_event_paranoid)";
const TOO_LARGE: &str = "its file is so large that the command would have to wait for its patches";
/// Size of a command's file above which it is not planned while it runs, in bytes: the command would be held
/// for some tenths of a second until all its text is analysed.
const MAX_BYTES: u64 = 8 << 20;

impl Stage<'_> {
    /// Runs a command that has no plan yet.
    pub(super) fn first_run(
        &self,
        command: Program,
        assignment: RoleAssignment,
        task: ObservationTask,
    ) -> Result<Done, Error> {
        if let Some(why) = why_only_profiled(&command.path, &assignment) {
            return self.profiled_run(command, assignment, task, &why);
        }
        let without = self.config.without.clone();
        let in_place = InPlace::begin(task, without, self.live(), assignment.harvested.len());
        self.harvest(command, assignment, None, in_place.ok())
    }

    /// Runs a command that has no plan and profiles it for the next run. Scavengers run as ordinary
    /// processes; `why` is the reason, shown to the user, for giving them no time slices in this run.
    fn profiled_run(
        &self,
        command: Program,
        mut assignment: RoleAssignment,
        task: ObservationTask,
        why: &str,
    ) -> Result<Done, Error> {
        let Ok(learning) = Learning::begin(task) else {
            return self.harvest(command, assignment, None, None);
        };
        let run = learning.run_file();
        let processes = Processes::start_with_command(assignment.all_ordinary());
        let watch = ScavengerWatch::begin(processes, learning);
        let recorded = self.record(&command, run);
        let wall_s = self.start.elapsed().as_secs_f64();
        let (processes, mut learning, mut learned) = watch.end()?;
        let end = recorded?;
        let ordinary = processes.end(self.config.finish, self.processors());
        let deadline = Instant::now() + learning::planning_time(self.start.elapsed());
        while learned.is_none() && !learning.is_over() && Instant::now() < deadline {
            learned = learning.poll(true);
            std::thread::sleep(Duration::from_millis(2));
        }
        let document = run_document::document(Facts {
            wall_s: self.start.elapsed().as_secs_f64(),
            primary_wall_s: Some(wall_s),
            process_cpu_s: self.process_cpu_s(&ordinary),
            options: run_options(self.config, 0, Vec::new()),
            requests: self.config.requests.as_ref(),
            command: texts(&command.words),
            ordinary,
            missed: vec![note(learned, why)],
            ..Facts::nothing(&self.info, &Observed::default(), end)
        });
        Ok((document, end))
    }

    /// Runs the command and profiles it for the profiling time, without its allocations. Shows the user why a
    /// recording could not be completed.
    fn record(&self, command: &Program, run: PathBuf) -> Result<ExitStatus, Error> {
        let environment = self.environment();
        let (name, arguments) = command
            .words
            .split_first()
            .ok_or_else(|| Error::Refused("a command has a name".to_owned()))?;
        let options = Options {
            machine: self.maker.machine.clone(),
            objects: None,
            duration: Some(self.maker.duration),
            ..environment.recording(run.clone())
        };
        let stand_in = (environment.stand_in)()?;
        let recorder = Recorder::launch(&environment.program(name, arguments), options)?;
        let session = recorder
            .session()
            .ok_or_else(|| Error::Refused("a program that was started has a session".to_owned()))?;
        let end = stand_in.follow(session)?;
        let ended = match end.code() {
            Some(code) => Ended::Exited(code),
            None => Ended::Killed(end.signal().unwrap_or(0)),
        };
        let finished = recorder
            .finish(ended)
            .at(|| format!("{} holds what was recorded until then", run.display()));
        if let Err(error) = finished {
            environment.complain(&one_line(&error));
        }
        Ok(end)
    }
}

/// Why a command without a plan is not harvested in this run; `None` if it can be.
fn why_only_profiled(path: &Path, assignment: &RoleAssignment) -> Option<String> {
    if let Some(obstacle) = membound_launch::examine(path) {
        return Some(obstacle.to_string());
    }
    let why = if is_script(path) {
        IS_SCRIPT
    } else if assignment.harvested.is_empty() {
        NO_HARVESTED_SCAVENGER
    } else if !membound_record::can_sample(&Options::new(PathBuf::new())) {
        NO_SAMPLES
    } else if file_bytes(path) > MAX_BYTES {
        TOO_LARGE
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// A thread that polls ordinary processes, and the plan of a command that is profiled beside them.
struct ScavengerWatch {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<(Processes, Learning, Option<Observation>)>,
}

impl ScavengerWatch {
    fn begin(mut processes: Processes, mut learning: Learning) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut learned = None;
            while stopped.recv_timeout(POLL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                processes.poll();
                learned = learned.or_else(|| learning.poll(false));
            }
            (processes, learning, learned)
        });
        Self { stop, thread }
    }

    fn end(self) -> Result<(Processes, Learning, Option<Observation>), Error> {
        drop(self.stop);
        self.thread
            .join()
            .map_err(|_| Error::Refused("the thread that watches scavengers failed".to_owned()))
    }
}

/// What the report says of the plan; `why` is the reason for giving scavengers no time slices.
fn note(learned: Option<Observation>, why: &str) -> String {
    match learned {
        Some(Observation::Plan(_)) => {
            format!(
                "the command was profiled in this run, and nobody took turns, since {why}: the next run \
                 follows the plan that was made (--rehearse makes it beforehand)"
            )
        }
        Some(Observation::NoPlan(why)) => {
            format!("the command was profiled, but has no plan: {why}")
        }
        None | Some(Observation::Timed(_)) => TOO_SHORT.to_owned(),
    }
}

/// Whether the kernel runs the file with an interpreter, that is, whether it starts with `#!`.
fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}
