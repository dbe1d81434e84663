//! Scavengers that run as ordinary processes under the kernel's scheduler: those that cannot have time
//! slices, and those for which slices would not pay.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use membound_launch::ScavengerCommand;
use membound_platform::Root;
use membound_platform::disturb::ThreadUsage;
use membound_types::{Scavenger, ScavengerState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::idle_processors::IdleProcessors;
use super::learning::{
    self, Learning, Observation, ObservationTask, Subject, code_bytes, has_others,
};
use crate::kept_plans::Timed;
use crate::named_programs::CopyRequest;

/// Poll interval while only plans are pending, and while processes run, whose end also wakes the poll.
const PLANNING_POLL_INTERVAL_NS: i64 = 2_000_000;
const MAX_POLL_INTERVAL_NS: i64 = 20_000_000;
/// Time between two checks whether a process starts others.
const CHILD_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Niceness of a process alongside a command: the lowest priority.
const LOWEST_PRIORITY_NICENESS: i32 = 19;

/// A scavenger without time slices.
#[derive(Debug)]
pub(super) struct Ordinary {
    pub(super) scavenger: ScavengerCommand,
    pub(super) copy_request: CopyRequest,
    /// Why it has none.
    pub(super) why: String,
    /// What is to be found out about it meanwhile, where it has no plan.
    pub(super) task: Option<ObservationTask>,
}

/// Result of observing a program.
#[derive(Debug)]
pub(super) struct ObservationResult {
    pub(super) task: ObservationTask,
    pub(super) learned: Observation,
}

/// A process that was started, or could not be.
#[derive(Debug)]
pub(super) struct Started {
    copy_request: CopyRequest,
    why: String,
    child: Result<Child, String>,
    /// Process file descriptor, readable once the process has ended.
    end: Option<OwnedFd>,
    status: Option<ExitStatus>,
    cpu_s: f64,
    /// Whether it was observed with several threads, or children.
    starts_others: bool,
    /// Bytes of code that it mapped when that was read last.
    code_bytes: u64,
    start: Instant,
    /// When these are checked next.
    next_check: Instant,
    next_code_check: Instant,
    /// What is still to be found out about it.
    task: Option<ObservationTask>,
    learning: Option<Learning>,
}

/// Maximum number of processes that run at one time on `processors` processors where there is no command.
///
/// On one processor they run one after another, so that they do not evict each other's data. Several
/// processors are shared by twice as many processes, as the kernel shares them among all that are started
/// at once: a process that was started only when another one had ended would run by itself at the end,
/// while other processors are idle.
const fn max_running(processors: usize) -> usize {
    if processors <= 1 {
        processors
    } else {
        2 * processors
    }
}

/// All ordinary processes of a harvest.
#[derive(Debug)]
pub(super) struct Processes {
    /// Processes that are not started yet.
    waiting: VecDeque<Ordinary>,
    started: Vec<Started>,
    /// Processors that they may use.
    processors: usize,
    /// Maximum number that run at one time, unless they leave a processor idle.
    most: usize,
    idle: IdleProcessors,
    beside_command: bool,
    start: Instant,
    /// Results since the last call of [`Self::take_learned`].
    learned: Vec<ObservationResult>,
}

impl Processes {
    /// Starts processes on `processors` processors, as many at a time as [`max_running`] says.
    pub(super) fn start(all: Vec<Ordinary>, processors: usize) -> Self {
        Self::begin(all, processors, max_running(processors), false)
    }

    /// Starts all processes at once, with the lowest priority, so that a command is not slowed down.
    pub(super) fn start_with_command(all: Vec<Ordinary>) -> Self {
        Self::begin(all, usize::MAX, usize::MAX, true)
    }

    fn begin(all: Vec<Ordinary>, processors: usize, most: usize, beside_command: bool) -> Self {
        let mut processes = Self {
            waiting: all.into(),
            started: Vec::new(),
            processors,
            most,
            idle: IdleProcessors::below(Root::system()),
            beside_command,
            start: Instant::now(),
            learned: Vec::new(),
        };
        processes.poll();
        processes
    }

    /// Number of processes that run.
    pub(super) fn running(&self) -> usize {
        let runs = |it: &&Started| it.child.is_ok() && it.status.is_none();
        self.started.iter().filter(runs).count()
    }

    /// Reaps processes that have ended, and starts waiting ones; returns whether all have ended.
    pub(super) fn poll(&mut self) -> bool {
        for started in &mut self.started {
            started.poll();
            self.learned.extend(started.learn());
        }
        while !self.waiting.is_empty()
            && self.may_start()
            && let Some(next) = self.waiting.pop_front()
        {
            self.started.push(begin(next, self.beside_command));
        }
        self.running() == 0 && self.waiting.is_empty()
    }

    /// Whether another process may start: fewer than the maximum run, or they wait for files, other processes or
    /// clocks, and leave a processor idle.
    fn may_start(&mut self) -> bool {
        self.running() < self.most || (self.most > 0 && self.idle.has_one())
    }

    /// Whether a processor is free, and no process waits to be started.
    pub(super) fn has_free_processor(&mut self) -> bool {
        self.waiting.is_empty() && (self.running() < self.processors || self.idle.has_one())
    }

    /// Number of processes that have not ended.
    pub(super) fn count(&self) -> usize {
        self.waiting.len() + self.running()
    }

    /// Adds a process, which is started after those that wait.
    pub(super) fn add(&mut self, ordinary: Ordinary) {
        self.waiting.push_back(ordinary);
    }

    /// Starts no further process until [`Self::end`].
    pub(super) fn hold_back(&mut self) {
        self.most = 0;
    }

    /// The results since the last call.
    pub(super) fn take_learned(&mut self) -> Vec<ObservationResult> {
        std::mem::take(&mut self.learned)
    }

    /// Whether a plan is still being made, or a result was not fetched yet.
    pub(super) fn is_learning(&self) -> bool {
        self.is_planning() || !self.learned.is_empty()
    }

    fn is_planning(&self) -> bool {
        let learns = |it: &Started| it.learning.as_ref().is_some_and(|it| !it.is_over());
        self.started.iter().any(learns)
    }

    /// Waits until a process ends, at most some milliseconds.
    pub(super) fn wait(&self) {
        let is_planning = self.is_planning() && self.running() == 0;
        self.wait_for_end(Some(match is_planning {
            true => PLANNING_POLL_INTERVAL_NS,
            false => MAX_POLL_INTERVAL_NS,
        }));
    }

    /// The same, for as long as it takes if nothing but the ends of processes is to be seen: each look takes a
    /// processor, for which the processes may have to wait.
    fn wait_for_all(&self) {
        if self.waiting.is_empty() && self.started.iter().all(Started::is_settled) {
            self.wait_for_end(None);
        } else {
            self.wait();
        }
    }

    fn wait_for_end(&self, most_ns: Option<i64>) {
        let running = self.started.iter().filter(|it| it.status.is_none());
        let ends = running.filter_map(|it| it.end.as_ref());
        let mut ends: Vec<PollFd<'_>> = ends.map(|end| PollFd::new(end, PollFlags::IN)).collect();
        let most = most_ns.map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        // The wait may also end because of a signal; callers poll again anyway.
        let _ = poll(&mut ends, most.as_ref());
    }

    /// With `finish`, waits until all have ended, on `processors` processors; otherwise kills them.
    pub(super) fn end(mut self, finish: bool, processors: usize) -> Vec<Scavenger> {
        self.most = max_running(processors);
        while finish && !self.poll() {
            self.wait_for_all();
        }
        // A plan that is nearly made is worth a short wait; others are made in a later run.
        let until = Instant::now() + learning::planning_time(self.start.elapsed());
        while finish && self.is_planning() && Instant::now() < until {
            self.wait();
            self.poll();
        }
        self.started.iter_mut().for_each(Started::kill);
        let never = std::mem::take(&mut self.waiting);
        let never = never.into_iter().map(|ordinary| Started {
            child: Err("the command ended before".to_owned()),
            ..Started::of(ordinary)
        });
        let started = std::mem::take(&mut self.started);
        started
            .into_iter()
            .chain(never)
            .map(Started::scavenger)
            .collect()
    }
}

impl Default for Processes {
    fn default() -> Self {
        Self::start(Vec::new(), 0)
    }
}

impl Drop for Processes {
    /// Kills the processes where a harvest ends early, for instance by an error.
    fn drop(&mut self) {
        self.started.iter_mut().for_each(Started::kill);
    }
}

fn begin(ordinary: Ordinary, beside_command: bool) -> Started {
    // If there is no room for a run file, the program runs unprofiled.
    let task = ordinary.task.clone();
    let task = task.filter(|task| task.subject == Subject::Plan);
    let mut learning = task.and_then(|task| Learning::begin(task).ok());
    let child = start(&ordinary.scavenger, learning.as_ref()).map_err(|error| error.to_string());
    if child.is_err() {
        learning = None;
    }
    let pid = child.as_ref().ok().map(Child::id);
    let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    if pid.is_some() && beside_command {
        // If this is refused, the process keeps its niceness.
        let _ = rustix::process::setpriority_process(pid, LOWEST_PRIORITY_NICENESS);
    }
    Started {
        child,
        end: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
        learning,
        ..Started::of(ordinary)
    }
}

impl Started {
    /// The state before the start.
    fn of(ordinary: Ordinary) -> Self {
        Self {
            copy_request: ordinary.copy_request,
            why: ordinary.why,
            child: Err(String::new()),
            end: None,
            status: None,
            cpu_s: 0.0,
            starts_others: false,
            code_bytes: 0,
            start: Instant::now(),
            next_check: Instant::now(),
            next_code_check: Instant::now(),
            task: ordinary.task,
            learning: None,
        }
    }

    /// The result, if it became known just now.
    fn learn(&mut self) -> Option<ObservationResult> {
        let learned = match &mut self.learning {
            Some(learning) => learning.poll(self.status.is_some())?,
            None => {
                self.status.filter(|status| status.code().is_some())?;
                let task = self.task.as_ref()?;
                let timed = Timed {
                    cpu_s: self.cpu_s,
                    code_bytes: self.code_bytes,
                };
                task.record_time(timed, self.starts_others)
            }
        };
        let task = self.task.take()?;
        Some(ObservationResult { task, learned })
    }

    /// Whether nothing is to be done for it but to reap it when its descriptor says that it has ended.
    fn is_settled(&self) -> bool {
        let is_learned = self.learning.as_ref().is_none_or(Learning::is_over);
        let is_reaped = self.child.is_err() || self.status.is_some();
        is_learned
            && (is_reaped || self.end.is_some() && (self.task.is_none() || self.starts_others))
    }

    /// Reaps the process if it has ended; else checks at times whether it has started others.
    fn poll(&mut self) {
        if self.status.is_none() {
            self.status = self.reap(|child| child.try_wait().ok().flatten());
        }
        let now = Instant::now();
        if self.status.is_none()
            && self.learning.is_none()
            && self.task.is_some()
            && !self.starts_others
            && now >= self.next_check
        {
            self.next_check = now + CHILD_CHECK_INTERVAL;
            let Ok(pid) = self.child.as_ref().map(Child::id) else {
                return;
            };
            self.starts_others = has_others(pid);
            if now >= self.next_code_check {
                // Libraries are mapped early: later it is read less often.
                self.next_code_check = now + now.saturating_duration_since(self.start);
                self.code_bytes = code_bytes(pid);
            }
        }
    }

    /// Kills the process if it runs, as scavengers in the command's process end with the command.
    fn kill(&mut self) {
        self.poll();
        if self.status.is_none() {
            let is_profiled = self.learning.is_some();
            self.reap(|child| {
                if is_profiled {
                    return learning::kill_profiled(child);
                }
                child.kill().ok()?;
                child.wait().ok()
            });
        }
    }

    /// Lets `wait` reap the process. Its CPU time, including the children that it waited for, is the increase
    /// of this process's CPU time of children.
    fn reap(&mut self, wait: impl FnOnce(&mut Child) -> Option<ExitStatus>) -> Option<ExitStatus> {
        let child = self.child.as_mut().ok()?;
        let before_s = ThreadUsage::of_children().cpu_s();
        let status = wait(child)?;
        self.cpu_s = ThreadUsage::of_children().cpu_s() - before_s;
        Some(status)
    }

    fn scavenger(self) -> Scavenger {
        let code = self.status.and_then(|status| status.code());
        let signal = self.status.and_then(|status| status.signal());
        let state = match (&self.child, self.status) {
            (Err(_), _) => ScavengerState::Refused,
            (Ok(_), None) => ScavengerState::Unfinished,
            (Ok(_), Some(_)) if signal.is_some() => ScavengerState::Crashed,
            (Ok(_), Some(_)) => ScavengerState::Finished,
        };
        let reason = match self.child {
            Err(error) => format!("cannot be started: {error}"),
            Ok(_) => format!("ran as an ordinary process: {}", self.why),
        };
        Scavenger {
            command: self.copy_request.words,
            copy: self.copy_request.copy,
            exit_code: code,
            signal,
            state,
            reason: Some(reason),
            cpu_s: (state != ScavengerState::Refused).then_some(self.cpu_s),
            in_stalls_s: None,
            in_waits_s: 0.0,
            own_thread_s: self.cpu_s,
            calls: 0,
            turns: 0,
            output: self.copy_request.output,
        }
    }
}

/// Starts a program, under the profiler if `learning` is given; its output goes to the files of `scavenger`.
fn start(scavenger: &ScavengerCommand, learning: Option<&Learning>) -> std::io::Result<Child> {
    let stdout = scavenger.output.as_deref().map(File::create).transpose()?;
    let stderr = match &scavenger.errors {
        Some(path) if scavenger.errors != scavenger.output => Some(File::create(path)?),
        Some(_) => stdout.as_ref().map(File::try_clone).transpose()?,
        None => None,
    };
    let to = |file: Option<File>| file.map_or_else(Stdio::null, Stdio::from);
    let mut command = match learning {
        Some(learning) => learning.command(&scavenger.arguments)?,
        None => as_it_is(scavenger),
    };
    command
        .stdin(Stdio::null())
        .stdout(to(stdout))
        .stderr(to(stderr))
        .spawn()
}

fn as_it_is(scavenger: &ScavengerCommand) -> Command {
    let mut command = Command::new(&scavenger.path);
    if let Some(name) = scavenger.arguments.first() {
        command.arg0(name);
    }
    command.args(scavenger.arguments.get(1..).unwrap_or_default());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary(words: &[&str], output: Option<&std::path::Path>) -> Ordinary {
        Ordinary {
            scavenger: ScavengerCommand {
                path: "/bin/sh".into(),
                arguments: words.iter().map(|word| word.into()).collect(),
                environment: Vec::new(),
                output: output.map(Into::into),
                errors: output.map(Into::into),
                memory_bytes: 0,
                stack_bytes: 0,
            },
            copy_request: CopyRequest {
                words: words.iter().map(|&word| word.to_owned()).collect(),
                copy: 0,
                output: None,
            },
            why: "it is a script".to_owned(),
            task: None,
        }
    }

    #[test]
    fn processes_end_as_they_do_and_write_where_they_are_asked_to() {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("out");
        let script = "echo one; echo two >&2; exit 3";
        let all = vec![
            ordinary(&["sh", "-c", script], Some(&file)),
            ordinary(&["sh", "-c", "kill -9 $$"], None),
        ];
        let ended = Processes::start(all, 1).end(true, 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        let found = ended.iter().map(|it| (it.state, it.exit_code, it.signal));
        let expected = [
            (ScavengerState::Finished, Some(3), None),
            (ScavengerState::Crashed, None, Some(9)),
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
        assert!(
            ended[0]
                .reason
                .as_deref()
                .unwrap()
                .ends_with("it is a script")
        );
    }

    #[test]
    fn several_processors_are_shared_and_one_is_not() {
        for (processors, running) in [(1, 1), (2, 4), (8, 5)] {
            let all = (0..5).map(|_| ordinary(&["sh", "-c", "sleep 1000"], None));
            let processes = Processes::start(all.collect(), processors);
            assert_eq!(processes.running(), running, "on {processors}");
            assert_eq!(processes.end(false, processors).len(), 5);
        }
    }

    #[test]
    fn another_process_starts_where_one_waits_and_leaves_its_processor_idle() {
        let room = tempfile::tempdir().unwrap();
        std::fs::create_dir(room.path().join("proc")).unwrap();
        let counts: String = (0..1024)
            .map(|cpu| format!("cpu{cpu} 5 0 0 9 0 0 0\n"))
            .collect();
        std::fs::write(room.path().join("proc/stat"), counts).unwrap();
        let file = room.path().join("file");
        let waits = format!("while [ ! -e {0} ]; do sleep 0.01; done", file.display());
        let makes = format!("echo > {}", file.display());
        let all = [waits, makes].map(|script| ordinary(&["sh", "-c", &script], None));
        let mut processes = Processes::start(all.into(), 1);
        processes.idle = IdleProcessors::below(Root::at(room.path()));
        // Without the second process the first would never end.
        let ended = processes.end(true, 1);
        assert!(ended.iter().all(|it| it.exit_code == Some(0)), "{ended:?}");
    }

    #[test]
    fn unfinished_processes_are_ended_and_missing_programs_are_refused() {
        let mut absent = ordinary(&["sh"], None);
        absent.scavenger.path = "/nowhere/at/all".into();
        let all = vec![ordinary(&["sh", "-c", "sleep 1000"], None), absent];
        let ended = Processes::start_with_command(all).end(false, 9);
        let states: Vec<_> = ended.iter().map(|it| it.state).collect();
        assert_eq!(
            states,
            [ScavengerState::Unfinished, ScavengerState::Refused]
        );
    }
}
