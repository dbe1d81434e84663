//! Programs as children in process groups of their own: timed, waited for, and killed together with all that
//! they started.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use membound_platform::affinity::Pinned;
use membound_types::CpuId;
use rustix::process::{Pid, Signal, kill_process_group};

/// Time between two polls of a child, which is also the uncertainty of its time.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A child that may still run.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    start: Instant,
    has_ended: bool,
}

/// Why a child was not seen to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndFailure {
    /// It could not be started, for this reason.
    NotStarted(String),
    /// The child took longer than the limit.
    Late,
    /// The user interrupted the command.
    Interrupted,
}

impl EndFailure {
    /// The reason in words, of a child that had `limit` to end.
    pub(super) fn reason(self, limit: Duration) -> String {
        match self {
            Self::NotStarted(why) => why,
            Self::Late => format!("it did not end within {:.0} s", limit.as_secs_f64()),
            Self::Interrupted => INTERRUPTED.to_owned(),
        }
    }
}

/// Reason of a run that the user interrupted.
pub(super) const INTERRUPTED: &str = "interrupted";

/// Stdin for a child: our own file from its beginning if it is a regular file, else `/dev/null`.
pub(super) fn input() -> Stdio {
    let own = File::open("/proc/self/fd/0").ok();
    let file = own.filter(|file| file.metadata().is_ok_and(|found| found.is_file()));
    file.map_or_else(Stdio::null, Stdio::from)
}

/// Starts `command` on `cpu` (`None`: on any), with [`input`] as its stdin.
pub(super) fn start(command: &mut Command, cpu: Option<CpuId>) -> Result<Running, String> {
    // A child inherits the affinity of the thread that starts it.
    let pinned = cpu.map(Pinned::to).transpose();
    let _pinned = pinned.map_err(|error| error.to_string())?;
    command.process_group(0).stdin(input());
    let start = Instant::now();
    let child = command.spawn().map_err(|error| {
        let name = command.get_program().to_string_lossy();
        format!("{name} cannot be run: {error}")
    })?;
    Ok(Running {
        child,
        start,
        has_ended: false,
    })
}

/// Sends a command's output to `/dev/null`.
pub(super) fn silent(command: &mut Command) -> &mut Command {
    command.stdout(Stdio::null()).stderr(Stdio::null())
}

impl Running {
    /// Waits for the child to end, for at most `limit` after its start. Returns how it ended, and its wall
    /// time.
    pub(super) fn wait(
        &mut self,
        limit: Duration,
        cancel: &AtomicBool,
    ) -> Result<(ExitStatus, Duration), EndFailure> {
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.has_ended = true;
                return Ok((status, self.start.elapsed()));
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(EndFailure::Interrupted);
            }
            if self.start.elapsed() > limit {
                return Err(EndFailure::Late);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Time since the child was started.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sends a signal to the child's process group.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group may have ended just now.
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

/// How a program ended, if that differs from how it ends alone.
pub(super) fn differs(status: ExitStatus, alone: ExitStatus) -> Option<String> {
    (status != alone).then(|| {
        format!(
            "it {} instead of {}",
            describe_end(status),
            describe_end(alone)
        )
    })
}

/// How a program ended, in words.
pub(super) fn describe_end(status: ExitStatus) -> String {
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
        assert_eq!(describe_end(status), "exit code 3");
        let mut late = shell("sleep 60");
        let found = late.wait(Duration::ZERO, &never);
        assert_eq!(found.unwrap_err(), EndFailure::Late);
        let found = late.wait(Duration::from_secs(60), &AtomicBool::new(true));
        assert_eq!(found.unwrap_err(), EndFailure::Interrupted);
    }

    #[test]
    fn descendants_of_a_child_end_with_it() {
        let running = shell("sleep 60 & sleep 60");
        let group = running.child.id().to_string();
        drop(running);
        // The processes that are left in the group, except zombies.
        let left = || {
            let listed = Command::new("ps")
                .args(["-o", "stat=", "--pgroup", &group])
                .output();
            let listed = listed.map(|output| output.stdout).unwrap_or_default();
            let listed = String::from_utf8_lossy(&listed).into_owned();
            listed.lines().any(|line| !line.trim().starts_with('Z'))
        };
        let start = Instant::now();
        while left() {
            assert!(start.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
