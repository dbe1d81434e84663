//! Output: files, which are checked to be writable before anything is measured, stdout, and messages on
//! stderr.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use membound_report::text::Style;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use tempfile::NamedTempFile;

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

/// Destination of a document.
///
/// A regular file is replaced in one step when the document is complete, so that an earlier file survives a
/// full disk or a kill; that its directory takes files is checked when the target is made.
#[derive(Debug)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// A regular file, or one that does not exist yet.
    File(PathBuf),
    /// A pipe, terminal or device, opened once.
    Stream(PathBuf, File),
}

impl Target {
    /// Checks that `path` can be written, without changing what is there.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let place = || format!("cannot write {}", path.display());
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                bail!("cannot write {}: it is a directory", path.display())
            }
            Ok(found) if !found.is_file() => {
                let file = File::options().write(true).open(path).with_context(place)?;
                return Ok(Self::Stream(path.to_owned(), file));
            }
            Ok(_) => {
                File::options()
                    .append(true)
                    .open(path)
                    .with_context(place)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(place),
        }
        let parent = directory(path);
        if !parent.is_dir() {
            bail!(
                "cannot write {}: there is no directory {}",
                path.display(),
                parent.display()
            );
        }
        temporary_file(path)
            .map_err(|error| takes_no_files(error, parent))
            .with_context(place)?;
        Ok(Self::File(path.to_owned()))
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
        matches!(self, Self::File(_))
    }

    /// Writes a whole document.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Stdout => {
                print(text);
                Ok(())
            }
            Self::Stream(path, file) => {
                let written = file.write_all(text.as_bytes()).and_then(|()| file.flush());
                ignore_broken_pipe(written)
                    .with_context(|| format!("cannot write {}", path.display()))
            }
            Self::File(path) => replace(path, text),
        }
    }
}

/// Replaces `path` in one step, through a temporary file in its directory that is synced to disk before it replaces
/// the old one. Permissions of an existing file are kept.
pub(crate) fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    replace_with(path, |temporary| {
        let place = || format!("cannot write {}", path.display());
        fs::write(temporary, text).with_context(place)
    })
}

/// As [`replace`], with content from `write`, which is called with the path of an empty file.
pub(crate) fn replace_with(
    path: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let place = || format!("cannot write {}", path.display());
    // A symbolic link is kept: the file that it points to is replaced.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let file = temporary_file(path).with_context(place)?;
    write(file.path())?;
    file.as_file().sync_all().with_context(place)?;
    let permissions = fs::metadata(path).map(|found| found.permissions());
    let permissions = permissions.unwrap_or_else(|_| new_file_permissions());
    file.as_file()
        .set_permissions(permissions)
        .with_context(place)?;
    file.persist(path).with_context(place)?;
    Ok(())
}

/// A temporary file in the directory of `path`, removed when it is dropped.
fn temporary_file(path: &Path) -> io::Result<NamedTempFile> {
    // The whole error names the temporary file, which means nothing to the user.
    NamedTempFile::new_in(directory(path)).map_err(|error| of_the_system(&error))
}

/// The system's own error behind one that names a temporary file.
fn of_the_system(error: &io::Error) -> io::Error {
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = inner {
        let code = cause.downcast_ref::<io::Error>();
        if let Some(code) = code.and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        inner = cause.source();
    }
    io::Error::from(error.kind())
}

/// Rewords `error` where it claims that an existing directory does not exist, as file systems of the kernel
/// such as `/proc` do.
fn takes_no_files(error: io::Error, directory: &Path) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound && directory.is_dir() {
        let why = format!("no file can be made in {}", directory.display());
        return io::Error::new(error.kind(), why);
    }
    error
}

/// Permissions of a new file under the usual umask; a temporary file would otherwise stay private.
fn new_file_permissions() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o644)
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
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
    format!("{error:#}").replace('\n', " ")
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
    fn replacing_a_file_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("profile.json");
        Target::open(&path).unwrap().write("first").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Target::open(&path).unwrap().write("second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn opening_a_target_changes_nothing() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("old.json");
        fs::write(&path, "old").unwrap();
        Target::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        Target::open(&place.path().join("new.json")).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

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
    fn a_directory_that_takes_no_files_is_named_as_the_cause() {
        let error = format!("{:#}", Target::open(Path::new("/proc/x.json")).unwrap_err());
        assert_eq!(
            error,
            "cannot write /proc/x.json: no file can be made in /proc"
        );
    }

    #[test]
    fn usage_errors_are_recognised_through_any_context() {
        let error = anyhow::Error::new(Usage("no".to_owned())).context("where");
        assert!(error.is::<Usage>());
    }

    #[test]
    fn the_error_names_the_path_that_cannot_be_written() {
        let place = tempfile::tempdir().unwrap();
        for path in [place.path().to_owned(), place.path().join("no/such/file")] {
            let error = format!("{:#}", Target::open(&path).unwrap_err());
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
