//! Programs as children in process groups of their own: timed, waited for, and ended with all that they
//! started.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use membound_platform::affinity::Pinned;
use membound_types::CpuId;
use rustix::process::{Pid, Signal, kill_process_group};

/// Between two looks whether a child has ended: what its time is uncertain by.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A child that has not been waited for.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    begun: Instant,
    has_ended: bool,
}

/// Why a child was not waited for to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unended {
    /// It takes longer than is permitted.
    Late,
    /// The user has ended everything.
    Interrupted,
}

/// What a child reads: our own file from its beginning, or nothing.
pub(super) fn input() -> Stdio {
    let own = File::open("/proc/self/fd/0").ok();
    let file = own.filter(|file| file.metadata().is_ok_and(|found| found.is_file()));
    file.map_or_else(Stdio::null, Stdio::from)
}

/// Starts `command` on `cpu`, with what it reads.
pub(super) fn start(command: &mut Command, cpu: Option<CpuId>) -> Result<Running, String> {
    // A child inherits where its parent's thread may run.
    let pinned = cpu.map(Pinned::to).transpose();
    let _pinned = pinned.map_err(|error| error.to_string())?;
    command.process_group(0).stdin(input());
    let begun = Instant::now();
    let child = command.spawn().map_err(|error| {
        let name = command.get_program().to_string_lossy();
        format!("{name} cannot be run: {error}")
    })?;
    Ok(Running {
        child,
        begun,
        has_ended: false,
    })
}

/// Has a command write to nowhere.
pub(super) fn silent(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null())
}

impl Running {
    /// Waits for its end, for at most `limit`. Returns how it ended, and its wall time.
    pub(super) fn wait(
        &mut self,
        limit: Duration,
        cancel: &AtomicBool,
    ) -> Result<(ExitStatus, Duration), Unended> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.has_ended = true;
                return Ok((status, self.begun.elapsed()));
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Unended::Interrupted);
            }
            if self.begun.elapsed() > limit {
                return Err(Unended::Late);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Since it was started.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Sends a signal to it and to all that it started.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended just now.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// How a program ended, where that is not as it ends by itself.
pub(super) fn differs(status: ExitStatus, alone: ExitStatus) -> Option<String> {
    (status != alone).then(|| format!("it {} instead of {}", told(status), told(alone)))
}

/// How it ended, in words.
pub(super) fn told(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        start(silent(&mut command), None).unwrap()
    }

    #[test]
    fn a_child_is_waited_for_until_it_ends_is_late_or_all_is_ended() {
        let never = AtomicBool::new(false);
        let (status, _) = shell("exit 3")
            .wait(Duration::from_secs(60), &never)
            .unwrap();
        assert_eq!(told(status), "exit code 3");
        let mut late = shell("sleep 60");
        let found = late.wait(Duration::ZERO, &never);
        assert_eq!(found.unwrap_err(), Unended::Late);
        let found = late.wait(Duration::from_secs(60), &AtomicBool::new(true));
        assert_eq!(found.unwrap_err(), Unended::Interrupted);
    }

    #[test]
    fn what_a_child_started_ends_with_it() {
        let running = shell("sleep 60 & sleep 60");
        let group = running.child.id().to_string();
        drop(running);
        // The processes of the group that are left, without those that have ended and wait to be read.
        let left = || {
            let listed = Command::new("ps")
                .args(["-o", "stat=", "--pgroup", &group])
                .output();
            let listed = listed.map(|output| output.stdout).unwrap_or_default();
            let listed = String::from_utf8_lossy(&listed).into_owned();
            listed.lines().any(|line| !line.trim().starts_with('Z'))
        };
        let begun = Instant::now();
        while left() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
