//! Path of the workspace, and running programs in it.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies one directory below the workspace's root")
}

/// Prints a line to stdout. A reader that has gone away is no error.
pub(crate) fn say(text: impl fmt::Display) {
    drop(writeln!(io::stdout(), "{text}"));
}

/// Prints a line to stderr.
pub(crate) fn note(text: impl fmt::Display) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// The text of a file.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The cargo that runs this, with the workspace's root as its directory and no stdin.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = program(cargo);
    command.args(args);
    command
}

/// A program with the workspace's root as its directory and no stdin.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Runs `command` to its end; an exit code other than 0 is an error that names it.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let name = shown(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed: {status}");
    }
    Ok(())
}

/// What `command` writes to stdout; an exit code other than 0 is an error with its stderr.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String> {
    let name = shown(command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{name}`"))?;
    if !output.status.success() {
        bail!(
            "`{name}` failed: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{name}` wrote other than UTF-8"))
}

/// The command as a person would type it, without the directory of the program.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The path of `name` along `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}
