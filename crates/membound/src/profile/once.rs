//! One recording of a program: its options and its result.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use membound_record::{
    DEFAULT_OBJECT_BYTES, DEFAULT_OVERHEAD, Ended, Error, Latencies, Options, Recorder, Summary,
    TimerChoice, Watch,
};

use super::args::{ProfileArgs, SamplerArg};
use super::machine;
use crate::job::{End, Job};
use crate::{launching, output, report};

/// What is printed at the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Printed {
    /// The results, in a few lines.
    Summary,
    /// Problems only.
    Nothing,
}

/// The options that the arguments request.
///
/// # Errors
/// If the named machine profile is none, or measuring the machine was interrupted.
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
        period: args.period,
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
        ..default_options(args.output.clone())
    })
}

/// Result of a recording.
pub(super) enum Recorded {
    /// The command could not be run; holds the exit code that a shell would use.
    NotStarted(ExitCode),
    /// The run is complete.
    Whole(End),
    /// The program ended, but the run could not be completed; holds our exit code.
    Failed(End, ExitCode),
}

/// Records a program to its end.
///
/// # Errors
/// If it cannot be recorded.
pub(super) fn record(
    name: &OsString,
    arguments: &[OsString],
    options: Options,
    printed: Printed,
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
            print_summary(&summary, printed);
            Recorded::Whole(end)
        }
        Err(error) => {
            let error = anyhow::Error::new(error).context(partial_run_context(&path));
            Recorded::Failed(end, output::fail(&error))
        }
    })
}

/// Options that all recordings of this build share.
pub(super) fn default_options(run: PathBuf) -> Options {
    launching::environment().recording(run)
}

/// Context of an error: what the file of an incomplete run holds.
pub(super) fn partial_run_context(path: &Path) -> String {
    format!("{} holds what was recorded until then", path.display())
}

/// Prints the results in a few lines, and how to see the rest; on stderr, since stdout is the program's.
pub(super) fn print_summary(summary: &Summary, printed: Printed) {
    if printed == Printed::Nothing {
        return;
    }
    let path = summary.path.display();
    match report::summary(&summary.path, output::error_style()) {
        Ok(text) => output::write_stderr(&text),
        Err(error) => output::complain(&format!("{error:#}")),
    }
    output::complain(&format!(
        "`membound report {path}` shows this again, `--by object` and others more, `--html FILE` all of it"
    ));
}
