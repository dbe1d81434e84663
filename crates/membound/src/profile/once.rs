//! One recording of a program: with what options, and what became of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use membound_record::{
    DEFAULT_OBJECT_BYTES, DEFAULT_OVERHEAD, DEFAULT_PERIOD, Ended, Error, Latencies, Options,
    Recorder, Summary, TimerChoice, Watch,
};

use super::args::{ProfileArgs, SamplerArg};
use super::machine;
use crate::job::{End, Job};
use crate::{launching, output, report};

/// What is said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// What was found, in a few lines.
    Summary,
    /// Only what went wrong.
    Nothing,
}

/// What was asked for.
///
/// # Errors
/// When the named machine profile is none.
pub(super) fn options(args: &ProfileArgs) -> anyhow::Result<Options> {
    let objects = (!args.no_objects && args.pid.is_none())
        .then(|| args.object_size.unwrap_or(DEFAULT_OBJECT_BYTES));
    let patched = !args.no_latencies && args.pid.is_none();
    Ok(Options {
        timer: match args.sampler {
            SamplerArg::Auto => TimerChoice::Auto,
            SamplerArg::Perf => TimerChoice::Perf,
            SamplerArg::Agent => TimerChoice::Agent,
        },
        period: args.period.unwrap_or(DEFAULT_PERIOD),
        latencies: if patched {
            Latencies::On
        } else {
            Latencies::Off
        },
        objects,
        allocators: args.allocator.clone(),
        watch: if args.watch { Watch::On } else { Watch::Off },
        max_overhead: args.max_overhead.unwrap_or(DEFAULT_OVERHEAD),
        machine: machine::profile(args.machine.as_deref())?,
        duration: args.duration,
        ..usual(args.output.clone())
    })
}

/// What became of a recording.
pub(crate) enum Recorded {
    /// The command cannot be run; this is what a shell would exit with.
    NotStarted(ExitCode),
    /// The run is whole.
    Whole(End),
    /// The program ended, and the run could not be completed.
    Failed(End, ExitCode),
}

/// Records a program to its end.
///
/// # Errors
/// When it cannot be recorded.
pub(super) fn record(
    name: &OsString,
    arguments: &[OsString],
    options: Options,
    telling: Telling,
) -> anyhow::Result<Recorded> {
    let program = launching::program(name, arguments);
    let path = options.output.clone();
    let job = Job::prepare()?;
    let recorder = match Recorder::launch(&program, options) {
        Ok(recorder) => recorder,
        Err(Error::Launch(membound_launch::Error::CannotRun(error))) => {
            output::complain(&error.to_string());
            return Ok(Recorded::NotStarted(ExitCode::from(error.code())));
        }
        Err(error) => return Err(error.into()),
    };
    let session = recorder
        .session()
        .context("a program that was started has a session")?;
    let end = job.follow(session)?;
    let ended = match end {
        End::Exited(code) => Ended::Exited(code),
        End::Killed(signal) => Ended::Killed(signal),
    };
    Ok(match recorder.finish(ended) {
        Ok(summary) => {
            tell(&summary, telling);
            Recorded::Whole(end)
        }
        Err(error) => {
            let error = anyhow::Error::new(error).context(kept(&path));
            Recorded::Failed(end, output::fail(&error))
        }
    })
}

/// What every recording of this build has.
pub(super) fn usual(run: PathBuf) -> Options {
    Options {
        cache: launching::cache(),
        revision: launching::revision(),
        directory: launching::directory(),
        membound_version: crate::version::BUILD.to_owned(),
        ..Options::new(run)
    }
}

/// What became of the file when it could not be completed.
pub(super) fn kept(path: &Path) -> String {
    format!("{} holds what was recorded until then", path.display())
}

/// What was found, in a few lines, and where the rest is; on stderr, since stdout is the
/// program's.
pub(super) fn tell(summary: &Summary, telling: Telling) {
    if telling == Telling::Nothing {
        return;
    }
    let path = summary.path.display();
    match report::summary(&summary.path, output::error_style()) {
        Ok(text) => output::tell(&text),
        Err(error) => output::complain(&format!("{error:#}")),
    }
    output::complain(&format!(
        "`membound report {path}` shows this again, `--by object` and others more, `--html FILE` all of it"
    ));
}
