//! Output: files, which are checked to be writable before anything is measured, stdout, and messages on
//! stderr.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::ValueEnum;
use membound_platform::output_file::OutputFile;
use membound_report::text::Style;
use rustix::termios::tcgetwinsize;
use serde::Serialize;

/// Width of text where neither `COLUMNS` nor a terminal gives one, in columns.
const USUAL_WIDTH: usize = 80;
/// Minimum width of text, in columns.
const NARROWEST_WIDTH: usize = 60;
/// Maximum width of text, in columns: longer lines are hard to read.
const WIDEST_WIDTH: usize = 160;

/// A request that makes no sense on any machine: exit code 2, as for arguments that clap refuses.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Exit code with which a shell reports a program that Ctrl-C ended.
pub(crate) const ENDED_BY_USER: u8 = 130;

/// Whether something for people is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    /// If stderr is a terminal.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Shown {
    /// Whether it is shown on stderr.
    pub(crate) fn is_shown(self) -> bool {
        match self {
            Self::Auto => io::stderr().is_terminal(),
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// Destination of a document.
#[derive(Debug)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A file, which is replaced in one step where it is a regular one.
    File(OutputFile),
}

impl Target {
    /// Checks that `path` can be written, without changing what is there.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        Ok(Self::File(OutputFile::open(path)?))
    }

    /// As [`Target::open`], for an HTML page, which is not to be shown on a terminal.
    ///
    /// # Errors
    /// [`Usage`] for standard output, otherwise as [`Target::open`].
    pub(crate) fn page(path: &Path) -> anyhow::Result<Self> {
        let target = Self::open(path)?;
        if target.is_stdout() {
            return Err(Usage("--html needs a file".to_owned()).into());
        }
        Ok(target)
    }

    /// Whether this is standard output.
    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Whether this is a regular file, or will become one.
    pub(crate) const fn is_file(&self) -> bool {
        matches!(self, Self::File(file) if file.is_regular())
    }

    /// Writes a whole document.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => {
                print(text);
                Ok(())
            }
            Self::File(file) => Ok(file.write(text)?),
        }
    }
}

/// Where a document goes: as JSON, as an HTML page, or both.
#[derive(Debug)]
pub(crate) struct DocumentTargets {
    json: Option<Target>,
    html: Option<Target>,
}

impl DocumentTargets {
    /// Checks that the paths that were given can be written.
    pub(crate) fn open(json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self {
            json: json.map(Target::open).transpose()?,
            html: html.map(Target::page).transpose()?,
        })
    }

    /// Writes the document as text to stderr, unless its JSON goes to standard output.
    pub(crate) fn show(&self, text: impl FnOnce(Style) -> String) {
        if !self.json.as_ref().is_some_and(Target::is_stdout) {
            write_stderr(&text(error_style()));
        }
    }

    /// Writes the document. If the JSON cannot be written, the page still is; the first error is returned.
    pub(crate) fn write<T: Serialize>(
        &mut self,
        document: &T,
        page: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let mut written = Ok(());
        if let Some(target) = &mut self.json {
            written = json(document).and_then(|text| target.write(&text));
        }
        if let Some(target) = &mut self.html {
            let html = target.write(&page(document));
            written = written.and(html);
        }
        written
    }
}

/// Set when a result could not be written to stdout.
static LOST: AtomicBool = AtomicBool::new(false);

/// The exit code of a command that ended with `code`: a failure if a result could not be written to stdout.
pub(crate) fn settled(code: ExitCode) -> ExitCode {
    if LOST.load(Ordering::Relaxed) && code == ExitCode::SUCCESS {
        ExitCode::FAILURE
    } else {
        code
    }
}

/// Writes to stdout; a closed pipe is no error. Any other failure is reported at once and makes the command
/// fail when it ends, so that files are still written.
pub(crate) fn print(text: &str) {
    print_bytes(text.as_bytes());
}

/// As [`print()`], for bytes that need not be text.
pub(crate) fn print_bytes(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    if let Err(error) = ignore_broken_pipe(written) {
        LOST.store(true, Ordering::Relaxed);
        complain(&format!("cannot write to stdout: {error}"));
    }
}

/// Writes a line to stderr. Failures are ignored, since they could not be reported.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(io::stderr().lock(), "membound: {line}");
}

/// Writes text to stderr unchanged. Failures are ignored, since they could not be reported.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// An error and its causes in one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    membound_coschedule::one_line(error.as_ref())
}

/// Reports an error on stderr; returns exit code 2 for a usage error, else 1.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&one_line(error));
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// A document as indented JSON, in the form written to files and to stdout.
pub(crate) fn json<T: Serialize>(document: &T) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(document).context("cannot write JSON")?;
    Ok(text + "\n")
}

/// Colours and width of text on stdout.
pub(crate) fn style() -> Style {
    Style {
        color: colors(),
        width: width(io::stdout()),
    }
}

/// Colours and width of text on stderr.
pub(crate) fn error_style() -> Style {
    Style {
        color: io::stderr().is_terminal() && wants_colors(),
        width: width(io::stderr()),
    }
}

/// Width of text on `stream`: from `COLUMNS`, else from the terminal.
fn width(stream: impl AsFd) -> usize {
    let asked = std::env::var("COLUMNS").ok();
    let terminal = tcgetwinsize(stream).ok().map(|size| size.ws_col);
    columns(asked.as_deref(), terminal)
}

/// Width in columns, from `COLUMNS` (ignored unless a positive number) or else from the terminal, which
/// reports 0 if it does not know.
fn columns(asked: Option<&str>, terminal: Option<u16>) -> usize {
    let asked = asked.and_then(|text| text.trim().parse::<usize>().ok());
    asked
        .or(terminal.map(usize::from))
        .filter(|columns| *columns > 0)
        .or(terminal.map(usize::from).filter(|columns| *columns > 0))
        .map_or(USUAL_WIDTH, |columns| {
            columns.clamp(NARROWEST_WIDTH, WIDEST_WIDTH)
        })
}

/// Whether the user permits colours (`NO_COLOR`).
fn wants_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether text on stdout is coloured.
pub(crate) fn colors() -> bool {
    io::stdout().is_terminal() && wants_colors()
}

fn ignore_broken_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_the_requested_one_or_the_terminals_within_limits() {
        for (asked, terminal, expected) in [
            (None, None, 80),
            (None, Some(132), 132),
            (Some("72"), Some(132), 72),
            (Some("72"), None, 72),
            (Some("0"), Some(100), 100),
            (Some("wide"), Some(100), 100),
            (Some("wide"), None, 80),
            (None, Some(0), 80),
            (Some("20"), None, 60),
            (None, Some(40), 60),
            (Some("100000"), None, 160),
        ] {
            assert_eq!(columns(asked, terminal), expected, "{asked:?} {terminal:?}");
        }
    }

    #[test]
    fn usage_errors_are_recognised_through_any_context() {
        let error = anyhow::Error::new(Usage("no".to_owned())).context("where");
        assert!(error.is::<Usage>());
    }
}
