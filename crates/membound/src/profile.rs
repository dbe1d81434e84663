//! `membound profile`: records a program, or a process that runs already.

pub(crate) mod args;
pub(crate) mod machine;
mod repeat;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use membound_record::{
    DEFAULT_OBJECT_BYTES, DEFAULT_OVERHEAD, DEFAULT_PERIOD, Ended, Error, Latencies, Options, Over,
    Recorder, Summary, TimerChoice, Watch,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::job::{self, End, Job};
use crate::output::{self, Target, Usage};
use crate::{launching, report};
use args::{ProfileArgs, SamplerArg};

/// Records what was asked for and says what it came to; a program's own end is passed on.
pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    // Found out before the machine is measured and the program runs.
    if Target::open(&args.output)?.is_stdout() {
        let why = "a run is a database and goes into a file: name one with -o";
        return Err(Usage(why.to_owned()).into());
    }
    if let Some(name) = args.command.first()
        && let Err(error) = membound_launch::find(name, std::env::var_os("PATH").as_deref())
    {
        output::complain(&error.to_string());
        return Ok(ExitCode::from(error.code()));
    }
    if args.repeat.is_some() || args.until.is_some() {
        return repeat::run(args);
    }
    let options = options(args)?;
    let telling = if args.quiet {
        Telling::Nothing
    } else {
        Telling::Summary
    };
    match (args.pid, args.command.split_first()) {
        (Some(pid), _) => attach(pid, options, telling),
        (None, Some((name, arguments))) => launch(name, arguments, options, telling),
        (None, None) => anyhow::bail!("there is neither a command nor a process"),
    }
}

/// What is said at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// What was found, in a few lines.
    Summary,
    /// Only what went wrong.
    Nothing,
}

fn options(args: &ProfileArgs) -> anyhow::Result<Options> {
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

fn launch(
    name: &OsString,
    arguments: &[OsString],
    options: Options,
    telling: Telling,
) -> anyhow::Result<ExitCode> {
    Ok(match record(name, arguments, options, telling)? {
        // The program's own failure says more than ours.
        Recorded::Failed(End::Exited(0), code) | Recorded::NotStarted(code) => code,
        Recorded::Whole(end) | Recorded::Failed(end, _) => job::end_like(end),
    })
}

/// What became of a recording.
enum Recorded {
    /// The command cannot be run; this is what a shell would exit with.
    NotStarted(ExitCode),
    /// The run is whole.
    Whole(End),
    /// The program ended, and the run could not be completed.
    Failed(End, ExitCode),
}

fn record(
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

/// Profiles a program that is not the user's, as everything stands by default.
///
/// # Errors
/// When it cannot be recorded, or fails.
pub(crate) fn quietly(program: &Path, arguments: &[OsString], run: PathBuf) -> anyhow::Result<()> {
    let options = Options {
        machine: machine::profile(None)?,
        ..usual(run)
    };
    let code = launch(&program.into(), arguments, options, Telling::Nothing)?;
    ensure!(code == ExitCode::SUCCESS, "{} failed", program.display());
    Ok(())
}

/// What every recording of this build has.
fn usual(run: PathBuf) -> Options {
    Options {
        cache: launching::cache(),
        revision: launching::revision(),
        directory: launching::directory(),
        membound_version: crate::version::BUILD.to_owned(),
        ..Options::new(run)
    }
}

fn attach(pid: u32, options: Options, telling: Telling) -> anyhow::Result<ExitCode> {
    let path = options.output.clone();
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
    let recorder = Recorder::attach(pid, options)?;
    let stopper = recorder.stopper();
    let handle = signals.handle();
    let waiting = std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            stopper.stop();
        }
    });
    let over = recorder.wait_attached();
    handle.close();
    let _ = waiting.join();
    let ended = match over {
        Over::Gone | Over::Stopped | Over::Elapsed => Ended::Detached,
    };
    let summary = recorder.finish(ended).with_context(|| kept(&path))?;
    tell(&summary, telling);
    // There is no exit code of a program's that says more.
    ensure!(
        summary.samples > 0,
        "{}: {}",
        path.display(),
        report::NO_SAMPLES
    );
    Ok(ExitCode::SUCCESS)
}

/// What became of the file when it could not be completed.
fn kept(path: &Path) -> String {
    format!("{} holds what was recorded until then", path.display())
}

/// What was found, in a few lines, and where the rest is; on stderr, since stdout is the
/// program's.
fn tell(summary: &Summary, telling: Telling) {
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
