//! `membound rewrite check`: runs a program with every load and store patched.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use membound_launch::{Live, Options, PerfMap, Remote, ShortLived, Wanted};
use membound_types::RewriteCheck;

use super::args::CheckArgs;
use super::{checked, settings};
use crate::job::{self, End, Job};
use crate::launching;
use crate::output::{self, Target, Usage};

/// Runs the program, prints the counts, and returns the program's exit code.
pub(super) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let plan = settings::plan(&args.options).map_err(Usage)?;
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let Some((name, arguments)) = args.command.split_first() else {
        anyhow::bail!("there is no command to run");
    };
    let program = launching::program(name, arguments);
    let options = Options {
        plan,
        cache: settings::cache(&args.options),
        revision: launching::revision(),
        live: args.churn.map_or(Live::Off, |_| Live::On),
        text_at_start: None,
        short_lived: ShortLived::All,
        period: settings::PERIOD,
        recording: settings::recording(args.options.body),
        objects: None,
        timers: None,
        harvest: None,
        directory: launching::directory(),
        // The directory in which perf looks, regardless of `TMPDIR`.
        perf_maps: args.perf_map.then(|| PathBuf::from("/tmp")),
    };
    let job = Job::prepare()?;
    let started = Instant::now();
    let session = match launching::start(&program, options)? {
        Ok(session) => session,
        Err(code) => return Ok(code),
    };
    if let Some(obstacle) = session.obstacle() {
        output::complain(&format!("runs unpatched: {obstacle}"));
    }
    let obstacle_reported = session.obstacle().is_some();
    let churn = args
        .churn
        .map(|every| Churn::begin(session.remote(), every));
    let end = job.follow(&session)?;
    drop(churn);
    let elapsed_s = started.elapsed().as_secs_f64();
    let report = session.finish();
    let document = checked::document(args, &report, end, elapsed_s);
    print_counts(&document, obstacle_reported);
    print_perf_maps(&report.perf_maps);
    if let Some(target) = &mut json
        && let Err(error) = output::json(&document).and_then(|text| target.write(&text))
    {
        // The exit code of a program that failed takes precedence over ours.
        let code = output::fail(&error);
        if end == End::Exited(0) {
            return Ok(code);
        }
    }
    Ok(job::end_like(end))
}

/// Prints the counts on stderr, since stdout is the program's.
fn print_counts(document: &RewriteCheck, obstacle_reported: bool) {
    if let (Some(reason), false) = (&document.reason, obstacle_reported) {
        output::complain(&format!("ran unpatched: {reason}"));
    }
    if document.modules.is_empty() {
        return;
    }
    let text = membound_report::text::rewrite_check(document, output::error_style());
    output::write_stderr(&text);
}

/// Prints where the names for perf are, or why there are none.
fn print_perf_maps(maps: &[PerfMap]) {
    for map in maps {
        let path = map.path.display();
        output::complain(&match &map.written {
            Ok(()) => format!("names for perf are in {path}; delete it after perf report"),
            Err(error) => format!("perf will not know names: cannot write {path}: {error}"),
        });
    }
}

/// Removes and installs all patches in turn, until it is dropped.
struct Churn {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Churn {
    fn begin(remote: Remote, every: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut wanted = Wanted::Original;
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                remote.want(wanted);
                wanted = match wanted {
                    Wanted::Original => Wanted::Patches,
                    Wanted::Patches => Wanted::Original,
                };
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}
