//! Jobs as processes. Each has a process group of its own, so that a terminal's signals reach only the batch.
//! They are waited for one at a time, so that the CPU time of each is known.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use membound_platform::affinity::Pinned;
use membound_platform::disturb::ThreadUsage;
use membound_types::CpuId;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};

use super::job_list::{Execution, Listed};
use super::job_outputs::Pair;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) pid: Pid,
    pub(super) exit_code: i32,
    /// The signal that killed it, or 0.
    pub(super) signal: i32,
    /// CPU time in seconds, including that of children that it waited for.
    pub(super) cpu_s: f64,
}

/// Why a job could not be started.
#[derive(Debug)]
pub(super) enum Unstarted {
    /// The system lacks memory, processes or descriptors at the moment.
    NoRoom(io::Error),
    /// The job can never be started.
    Never(io::Error),
}

/// Starts a job. A program that exists and cannot be executed is given to the shell, which reports why.
///
/// # Errors
/// If the system refuses.
pub(super) fn start(job: &Listed, outputs: &Pair) -> Result<Pid, Unstarted> {
    if let Execution::Direct { path, words } = &job.execution {
        let mut command = Command::new(path);
        command.arg0(words.first().map_or(OsStr::new(""), |word| word));
        command.args(words.get(1..).unwrap_or_default());
        match spawn(&mut command, outputs) {
            // The program may be a script without an interpreter line.
            Err(Unstarted::Never(_)) => {}
            other => return other,
        }
    }
    let mut shell = Command::new("/bin/sh");
    // `--` ends the options, so that a line may begin with a dash.
    shell.args([OsStr::new("-c"), OsStr::new("--"), &job.line]);
    spawn(&mut shell, outputs)
}

fn spawn(command: &mut Command, outputs: &Pair) -> Result<Pid, Unstarted> {
    let file = |file: &std::fs::File| file.try_clone().map(Stdio::from).map_err(classed);
    command
        .stdout(file(&outputs.stdout)?)
        .stderr(file(&outputs.stderr)?);
    spawned(command)
}

/// Starts a command on one CPU, with the output that it was given.
///
/// # Errors
/// If the system refuses.
pub(super) fn spawned_on(command: &mut Command, cpu: CpuId) -> Result<Pid, Unstarted> {
    // A child inherits the affinity of the thread that starts it.
    let _pinned = Pinned::to(cpu).map_err(|error| Unstarted::Never(io::Error::other(error)))?;
    spawned(command)
}

fn spawned(command: &mut Command) -> Result<Pid, Unstarted> {
    let spawned = command.stdin(Stdio::null()).process_group(0).spawn();
    // The handle is dropped, since [`reap`] waits for all children by process ID.
    let child = spawned.map_err(classed)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| Unstarted::Never(io::Error::other("the started process has no process ID")))
}

fn classed(error: io::Error) -> Unstarted {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match error.raw_os_error() {
        Some(EAGAIN | ENOMEM | ENFILE | EMFILE) => Unstarted::NoRoom(error),
        _ => Unstarted::Never(error),
    }
}

/// Reaps the next process that has ended, if any.
pub(super) fn reap() -> Option<Ended> {
    let before_s = ThreadUsage::of_children().cpu_s();
    let (pid, status) = wait(WaitOptions::NOHANG).ok().flatten()?;
    Some(Ended {
        pid,
        exit_code: status.exit_status().unwrap_or(0),
        signal: status.terminating_signal().unwrap_or(0),
        cpu_s: ThreadUsage::of_children().cpu_s() - before_s,
    })
}

/// Sends a signal to the process group of a job.
pub(super) fn signal(pid: Pid, signal: Signal) {
    // The group may have ended just now.
    let _ = kill_process_group(pid, signal);
}
