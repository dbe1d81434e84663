//! What every command that starts programs needs to know.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use etcetera::BaseStrategy;
use membound_launch::{Cache, Error, Options, Program, Session, environment};

use crate::output;

/// A command with its arguments, to be run as the user would run it here.
pub(crate) fn program(name: &OsStr, arguments: &[OsString]) -> Program {
    Program {
        name: name.to_owned(),
        arguments: arguments.to_vec(),
        search: std::env::var_os("PATH"),
        environment: environment(),
    }
}

/// Starts a session; `Err` with the code that a shell would exit with, after saying why, where the
/// command cannot be run.
///
/// # Errors
/// When the session cannot be prepared.
pub(crate) fn start(
    program: &Program,
    options: Options,
) -> anyhow::Result<Result<Session, ExitCode>> {
    match Session::start(program, options) {
        Ok(session) => Ok(Ok(session)),
        Err(Error::CannotRun(error)) => {
            output::complain(&error.to_string());
            Ok(Err(ExitCode::from(error.code())))
        }
        Err(error) => Err(error.into()),
    }
}

/// Where plans are kept, unless there is no place for them.
pub(crate) fn cache() -> Option<Cache> {
    let directories = etcetera::choose_base_strategy().ok()?;
    let directory = directories.cache_dir().join("membound").join("plans");
    Some(Cache::at(directory))
}

/// Tells plans of this build from those of another: its version, and when and how large it
/// was made, for those who build it twice a day.
pub(crate) fn revision() -> String {
    let executable = std::env::current_exe().and_then(std::fs::metadata);
    let built = executable.map(|found| {
        let time = found.modified().unwrap_or(UNIX_EPOCH);
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        (found.len(), time.as_nanos())
    });
    format!(
        "{} {:?}",
        env!("CARGO_PKG_VERSION"),
        built.unwrap_or_default()
    )
}

/// Where a session puts its socket.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir()
}
