//! Inputs for all commands that start programs.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use etcetera::BaseStrategy;
use membound_coschedule::Environment;
use membound_launch::{Cache, Error, Options, Program, Session};

use crate::{job, output, version};

/// A command with its arguments, found and run as the user's shell would here.
pub(crate) fn program(name: &OsStr, arguments: &[OsString]) -> Program {
    environment().program(name, arguments)
}

/// Starts a session. If the command cannot be run, prints why and returns the exit code that a shell would
/// use.
///
/// # Errors
/// If the session cannot be prepared.
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

/// What libraries take from this process.
pub(crate) fn environment() -> Environment {
    Environment {
        version: version::BUILD.to_owned(),
        revision: revision(),
        search: std::env::var_os("PATH"),
        cache: cache_directory(),
        temporary: directory(),
        complain: output::complain,
        stand_in: job::stand_in,
    }
}

/// The cache of patch plans, or `None` without a cache directory.
pub(crate) fn cache() -> Option<Cache> {
    environment().patch_plans()
}

fn cache_directory() -> Option<PathBuf> {
    let directories = etcetera::choose_base_strategy().ok()?;
    Some(directories.cache_dir().join("membound"))
}

/// Distinguishes plans of this build from those of another: the version, and the time and size of the
/// executable, for developers who build more than once per version.
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

/// Directory of the session's socket.
pub(crate) fn directory() -> PathBuf {
    std::env::temp_dir()
}
