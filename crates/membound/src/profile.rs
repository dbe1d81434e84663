//! `membound profile`: records a program, or a process that already runs.

pub(crate) mod args;
pub(crate) mod machine;
mod once;
mod repeat;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, ensure};
use membound_record::{Ended, Options, Over, Recorder};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::job::{self, End};
use crate::output::{self, Target, Usage};
use crate::report;
use args::ProfileArgs;
use once::{
    Printed, Recorded, default_options, options, partial_run_context, print_summary, record,
};

/// Runs `membound profile`; returns the exit code of the program that was started.
pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    // Checked before the machine is measured and the program runs.
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
    let printed = if args.quiet {
        Printed::Nothing
    } else {
        Printed::Summary
    };
    match (args.pid, args.command.split_first()) {
        (Some(pid), _) => attach(pid, options, printed),
        (None, Some((name, arguments))) => {
            let begun = Instant::now();
            let code = launch(name, arguments, options, printed)?;
            if !args.leave_plans {
                membound_launch::finish_plans(begun.elapsed());
            }
            Ok(code)
        }
        (None, None) => anyhow::bail!("there is neither a command nor a process"),
    }
}

fn launch(
    name: &OsString,
    arguments: &[OsString],
    options: Options,
    printed: Printed,
) -> anyhow::Result<ExitCode> {
    Ok(match record(name, arguments, options, printed)? {
        // The exit code of a program that failed takes precedence over ours.
        Recorded::Failed(End::Exited(0), code) | Recorded::NotStarted(code) => code,
        Recorded::Whole(end) | Recorded::Failed(end, _) => job::end_like(end),
    })
}

/// Profiles a program with default options, without printing anything.
///
/// # Errors
/// If it cannot be recorded, or fails.
pub(crate) fn quietly(program: &Path, arguments: &[OsString], run: PathBuf) -> anyhow::Result<()> {
    let options = Options {
        machine: machine::profile(None)?,
        ..default_options(run)
    };
    let code = launch(&program.into(), arguments, options, Printed::Nothing)?;
    ensure!(code == ExitCode::SUCCESS, "{} failed", program.display());
    Ok(())
}

fn attach(pid: u32, options: Options, printed: Printed) -> anyhow::Result<ExitCode> {
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
    let summary = recorder
        .finish(ended)
        .with_context(|| partial_run_context(&path))?;
    print_summary(&summary, printed);
    // An attached process has no exit code that could take precedence.
    ensure!(
        summary.samples > 0,
        "{}: {}",
        path.display(),
        report::NO_SAMPLES
    );
    Ok(ExitCode::SUCCESS)
}
