//! One process group, watched from outside: how long its program ran, how much memory it had, and
//! that no process is left.
//!
//! Under membound the program is the first descendant that runs another executable. Its own
//! time is from there to its end, so that what membound does before the program's start and
//! after its end does not count as slowdown. The wall time of everything is kept beside it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::campaign::outcome::Ending;

/// Time between two polls of a process.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Polls between two readings of the memory of all processes.
const POLLS_PER_MEMORY_READING: u32 = 20;

/// A running process group.
pub(crate) struct Group {
    child: Child,
    begun: Instant,
    /// Membound's executable, which is not the program.
    recorder: Option<PathBuf>,
    program: Option<Program>,
    peak_kb: u64,
    polls: u32,
}

struct Program {
    pid: u32,
    begun: Instant,
    ended: Option<Instant>,
}

/// Result of a process group.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) ending: Ending,
    /// From the start of everything to its end, in seconds.
    pub(crate) wall_s: f64,
    /// From the program's start to its end, in seconds.
    pub(crate) program_s: f64,
    /// Largest sum of the resident memory of the program's processes, in KiB.
    pub(crate) peak_kb: u64,
}

impl Group {
    /// Starts `command` in a group of its own; `recorder` is membound's executable where
    /// membound starts the program.
    pub(crate) fn start(mut command: Command, recorder: Option<&Path>) -> Result<Self> {
        let name = crate::run::shown(&command);
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start `{name}`"))?;
        Ok(Self {
            child,
            begun: Instant::now(),
            recorder: recorder.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned())),
            program: None,
            peak_kb: 0,
            polls: 0,
        })
    }

    /// Polls once; returns how the group's leader ended, if it has.
    pub(crate) fn poll(&mut self) -> Result<Option<Ending>> {
        let status = self.child.try_wait()?;
        let root = self.child.id();
        if let Some(recorder) = &self.recorder {
            match &mut self.program {
                None => {
                    self.program = children(root)
                        .into_iter()
                        .find(|&pid| executable(pid).is_some_and(|it| it != *recorder))
                        .map(|pid| Program {
                            pid,
                            begun: Instant::now(),
                            ended: None,
                        });
                }
                Some(program) if program.ended.is_none() && !is_alive(program.pid) => {
                    program.ended = Some(Instant::now());
                }
                Some(_) => {}
            }
        }
        if self.polls.is_multiple_of(POLLS_PER_MEMORY_READING) {
            let sum = descendants(root)
                .into_iter()
                .filter(|&pid| {
                    self.recorder
                        .as_ref()
                        .is_none_or(|recorder| executable(pid).is_none_or(|it| it != *recorder))
                })
                .filter_map(resident_kb)
                .sum();
            self.peak_kb = self.peak_kb.max(sum);
        }
        self.polls += 1;
        Ok(status.map(Ending::from))
    }

    /// Waits until everything has ended, for at most `limit`; then kills the rest.
    pub(crate) fn wait(mut self, limit: Duration) -> Result<Left> {
        let begun = Instant::now();
        let ending = loop {
            if let Some(ending) = self.poll()? {
                break ending;
            }
            if begun.elapsed() > limit {
                break Ending::Hung;
            }
            std::thread::sleep(POLL_INTERVAL);
        };
        let ended = Instant::now();
        self.end();
        let wall_s = ended.duration_since(self.begun).as_secs_f64();
        let program_s = self.program.as_ref().map_or(wall_s, |program| {
            program
                .ended
                .unwrap_or(ended)
                .duration_since(program.begun)
                .as_secs_f64()
        });
        Ok(Left {
            ending,
            wall_s,
            program_s,
            peak_kb: self.peak_kb,
        })
    }

    /// Sends `signal` to the program itself, as a service manager would.
    pub(crate) fn signal(&self, signal: i32) {
        let pid = match (&self.recorder, &self.program) {
            (Some(_), Some(program)) => program.pid,
            _ => self.child.id(),
        };
        send(i64::from(pid), signal);
    }

    /// Kills what is left: the group, and descendants that have groups of their own.
    fn end(&mut self) {
        let root = self.child.id();
        let left = descendants(root);
        send(-i64::from(root), libc::SIGKILL);
        for pid in left {
            if pid != root {
                send(i64::from(pid), libc::SIGKILL);
            }
        }
        // The group's leader may have ended already; no other error is possible here.
        drop(self.child.wait());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

fn send(pid: i64, signal: i32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    // SAFETY: kill has no memory arguments; a process that has ended is an error code.
    unsafe { libc::kill(pid, signal) };
}

fn executable(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Whether the process runs: it exists and is not a zombie.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Children of every thread of `pid`.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// `pid` and all its descendants.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        found.extend(children(pid));
        next += 1;
    }
    found
}

fn resident_kb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_run_past_its_limit_is_ended_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let group = Group::start(
            shell(&format!("sleep 1000 & echo $! > {}; wait", file.display())),
            None,
        )
        .unwrap();
        let left = group.wait(Duration::from_secs(1)).unwrap();
        assert_eq!(left.ending, Ending::Hung);
        let pid: u32 = std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        // The process that adopted the killed child waits for it.
        let begun = Instant::now();
        while is_alive(pid) && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert!(!is_alive(pid));
    }

    #[test]
    fn the_program_is_the_first_child_with_another_executable() {
        let shell_path = std::fs::canonicalize("/bin/sh").unwrap();
        let group = Group::start(shell("sleep 0.3; sleep 1000"), Some(&shell_path)).unwrap();
        let mut group = group;
        let begun = Instant::now();
        while group.program.as_ref().is_none_or(|it| it.ended.is_none())
            && begun.elapsed() < Duration::from_secs(30)
        {
            group.poll().unwrap();
        }
        assert!(group.program.as_ref().is_some_and(|it| it.ended.is_some()));
    }

    #[test]
    fn the_ending_is_kept() {
        let left = Group::start(shell("exit 3"), None)
            .unwrap()
            .wait(Duration::from_secs(30))
            .unwrap();
        assert_eq!(left.ending, Ending::Exited(3));
    }
}
