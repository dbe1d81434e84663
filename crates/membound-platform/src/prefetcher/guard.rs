//! A process that restores registers after the process that changed them has ended.
//!
//! A signal handler or `Drop` cannot help after `kill -9` or a crash. So before the first change a
//! small process is started that knows the former values and holds the reading end of a pipe. The
//! kernel closes the other end when the changing process ends, however it ends. If the guard was
//! not dismissed before, it writes the former values.
//!
//! The guard is the command itself, started with a hidden subcommand that calls [`restore_main`].
//! The plan is one JSON object per line; when the guard has read it, has left the terminal's
//! session and ignores the terminal's signals, it answers `ready`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::{Error, msr};

const READY: &str = "ready";

/// Maximum bytes of a plan: a line for each CPU of a very large machine.
const MAX_PLAN_BYTES: u64 = 64 << 20;

/// How to start the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardCommand {
    /// A program that calls [`restore_main`] with its standard input and output.
    pub program: PathBuf,
    /// Command-line arguments that make the program do so.
    pub args: Vec<OsString>,
}

impl GuardCommand {
    /// The command `program args…`.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
        }
    }
}

/// Where a value is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(super) enum ValueLocation {
    /// Eight bytes at an offset of a register file.
    Register {
        /// The file.
        path: PathBuf,
        /// The register's number.
        offset: u64,
    },
    /// A file that holds one hexadecimal number.
    HexAttribute {
        /// The file.
        path: PathBuf,
    },
}

impl ValueLocation {
    pub(super) fn read(&self) -> Result<u64, Error> {
        match self {
            Self::Register { path, offset } => msr::read_at(path, *offset),
            Self::HexAttribute { path } => {
                let text = fs::read_to_string(path).map_err(|source| Error::Read {
                    path: path.clone(),
                    source,
                })?;
                let digits = text.trim().trim_start_matches("0x");
                u64::from_str_radix(digits, 16).map_err(|_| Error::Malformed {
                    path: path.clone(),
                    text: text.trim().to_owned(),
                    expected: "hexadecimal number",
                })
            }
        }
    }

    /// Opens the file for writing as [`ValueLocation::write`] does, without writing.
    pub(super) fn may_write(&self) -> Result<(), Error> {
        let (Self::Register { path, .. } | Self::HexAttribute { path }) = self;
        match fs::OpenOptions::new().write(true).open(path) {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::Write {
                path: path.clone(),
                value: String::new(),
                source,
            }),
        }
    }

    pub(super) fn write(&self, value: u64) -> Result<(), Error> {
        match self {
            Self::Register { path, offset } => msr::write_at(path, *offset, value),
            Self::HexAttribute { path } => write_attribute(path, &format!("{value:x}\n")),
        }
    }
}

fn write_attribute(path: &Path, text: &str) -> Result<(), Error> {
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| Error::Write {
            path: path.to_owned(),
            value: text.trim().to_owned(),
            source,
        })
}

/// A value that is changed temporarily.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) place: ValueLocation,
    /// The bits that membound changes; the others keep the values that they have at the time.
    pub(super) mask: u64,
    pub(super) former: u64,
    pub(super) wanted: u64,
}

impl Change {
    /// Writes the wanted bits and verifies that they stay.
    pub(super) fn apply(&self) -> Result<(), Error> {
        self.set(self.wanted)
    }

    /// Writes the former bits and verifies that they stay.
    pub(super) fn undo(&self) -> Result<(), Error> {
        self.set(self.former)
    }

    fn set(&self, value: u64) -> Result<(), Error> {
        let value = value & self.mask;
        let before = self.place.read()?;
        if before & self.mask != value {
            self.place.write(before & !self.mask | value)?;
        }
        let after = self.place.read()?;
        if after & self.mask != value {
            let (ValueLocation::Register { path, .. } | ValueLocation::HexAttribute { path }) =
                &self.place;
            return Err(Error::NotKept {
                path: path.clone(),
                written: value,
                found: after & self.mask,
            });
        }
        Ok(())
    }
}

/// A line of the plan.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
enum Line {
    Change(Change),
    /// The plan is complete; the end of the pipe or [`Line::Restored`] follows.
    Armed,
    Restored,
}

/// The changing process's handle of the guard. If it is dropped undismissed, the guard restores.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard and returns when it is ready to restore.
    pub(super) fn spawn(command: &GuardCommand, changes: &[Change]) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Guard {
            program: command.program.clone(),
            source,
        };
        let mut child = Command::new(&command.program)
            .args(&command.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let pipe = child.stdin.take();
        let answer = child.stdout.take();
        let mut guard = Self { child, pipe };
        let outcome = guard.arm(changes).and_then(|()| {
            let answer = answer.expect("the standard output was asked for as a pipe");
            let mut word = String::new();
            BufReader::new(answer).take(64).read_line(&mut word)?;
            if word.trim_end() == READY {
                return Ok(());
            }
            Err(io::Error::other(format!(
                "it answered `{}` instead of `{READY}`",
                word.trim_end()
            )))
        });
        match outcome {
            Ok(()) => Ok(guard),
            Err(source) => {
                // Nothing has been changed, so restoring would be harmless; but a program that is
                // no guard may wait for its input for ever.
                let _ = guard.child.kill();
                guard.release();
                Err(failed(source))
            }
        }
    }

    fn arm(&mut self, changes: &[Change]) -> io::Result<()> {
        for change in changes {
            self.send(&Line::Change(change.clone()))?;
        }
        self.send(&Line::Armed)
    }

    fn send(&mut self, line: &Line) -> io::Result<()> {
        let pipe = self
            .pipe
            .as_mut()
            .expect("the pipe is open until the guard is released");
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        pipe.write_all(text.as_bytes())
    }

    /// Dismisses the guard, because nothing is left to restore, and waits until it ends.
    pub(super) fn dismiss(mut self) {
        // If this fails, the guard has ended or restores restored values: both are harmless.
        let _ = self.send(&Line::Restored);
        self.release();
    }

    /// Closes the pipe, whereupon the guard restores unless it was dismissed, and waits until it
    /// ends.
    pub(super) fn release(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.pipe = None;
        // The guard ends by itself when its pipe is closed.
        let _ = self.child.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.close();
    }
}

/// The guard process: reads the plan, answers `ready`, and waits for the end of `input`.
/// Returns the exit code: 0 where nothing was left to restore or all of it is restored.
///
/// It leaves the terminal's session and ignores the signals by which a terminal or a service
/// manager ends a process, so that it outlives the process that it guards.
pub fn restore_main(input: impl Read, mut output: impl Write) -> i32 {
    const RESTORED: i32 = 0;
    const FAILED: i32 = 1;
    const NO_PLAN: i32 = 2;
    outlive_the_terminal();
    let mut changes: Vec<Change> = Vec::new();
    let mut armed = false;
    let mut lines = BufReader::new(input.take(MAX_PLAN_BYTES));
    let mut text = String::new();
    loop {
        text.clear();
        // An error of reading counts as the end of the pipe.
        if lines.read_line(&mut text).unwrap_or(0) == 0 {
            break;
        }
        match serde_json::from_str(&text) {
            Ok(Line::Change(change)) if !armed => changes.push(change),
            Ok(Line::Armed) if !armed => {
                armed = true;
                let answered = writeln!(output, "{READY}").and_then(|()| output.flush());
                if answered.is_err() {
                    // The other process did not receive the answer, so it has changed nothing.
                    return NO_PLAN;
                }
            }
            Ok(Line::Restored) if armed => return RESTORED,
            // A line that was cut off by the end of the other process.
            _ if armed => break,
            _ => return NO_PLAN,
        }
    }
    if !armed {
        // The other process ended before it could have changed anything.
        return NO_PLAN;
    }
    let failures = changes
        .iter()
        .filter(|change| change.undo().is_err())
        .count();
    if failures == 0 { RESTORED } else { FAILED }
}

fn outlive_the_terminal() {
    // Fails only where the process already leads a group; then the only terminal signals it can get
    // are its parent's, which are ignored below.
    let _ = rustix::process::setsid();
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ] {
        // SAFETY: ignoring a signal installs no code; these signals may be ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
