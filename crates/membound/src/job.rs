//! Signals and job control, with which the command stands in for the program that it started.
//!
//! The program shares the process group, so the terminal's own signals (Ctrl-C, Ctrl-\, Ctrl-Z, hang-up)
//! reach it anyway, and membound must only outlive them. Signals that a process sends to membound alone are
//! passed on. When the program is stopped, membound stops too, so that the shell sees it, and both continue
//! together. Without a terminal there is no shell to continue membound: it keeps running and waits until the
//! program is continued.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use membound_launch::{Change, Session};
use membound_platform::signal_masks::ignored;
use membound_platform::stat::Stat;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

/// Signals that are passed on when they were sent to membound alone.
const PASSED_ON: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
/// Signals that a terminal sends to the program as well.
const SHARED: [i32; 2] = [SIGINT, SIGQUIT];

/// Bit mask of signals that are not passed on, since they mean something to membound itself.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Excludes a signal from being passed on.
pub(crate) fn keep_for_oneself(signal: i32) {
    KEPT.fetch_or(1 << (signal - 1), Ordering::Relaxed);
}

/// Queue of signals, from its creation until there is a program to pass them to.
pub(crate) struct Job {
    signals: SignalsInfo<WithRawSiginfo>,
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Job {
    /// Begins to catch signals, except ignored ones: the program inherits those as ignored too.
    pub(crate) fn prepare() -> anyhow::Result<Self> {
        let left_alone = ignored() | KEPT.load(Ordering::Relaxed);
        let listened = PASSED_ON
            .into_iter()
            .chain(SHARED)
            .filter(|signal| left_alone & (1 << (signal - 1)) == 0);
        let signals = SignalsInfo::new(listened).context("cannot listen for signals")?;
        Ok(Self { signals })
    }

    /// Stands in for the session's program until it ends.
    pub(crate) fn follow(mut self, session: &Session) -> anyhow::Result<End> {
        let pid = i32::try_from(session.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        let handle = self.signals.handle();
        let passing = std::thread::spawn(move || {
            for info in self.signals.forever() {
                // Positive codes come from the kernel, which sends terminal signals to the whole process
                // group.
                let from_a_process = info.si_code <= 0;
                let signal = info.si_signo;
                if from_a_process
                    && PASSED_ON.contains(&signal)
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    // The program may have ended just now.
                    let _ = kill_process(pid, signal);
                }
            }
        });
        let end = loop {
            match session.wait().context("cannot wait for the program")? {
                Change::Stopped(_) if has_terminal() => stop_with(pid),
                Change::Stopped(_) => {}
                Change::Ended(status) => {
                    use std::os::unix::process::ExitStatusExt;
                    break match (status.code(), status.signal()) {
                        (Some(code), _) => End::Exited(code),
                        (None, signal) => End::Killed(signal.unwrap_or(0)),
                    };
                }
            }
        };
        handle.close();
        let _ = passing.join();
        Ok(end)
    }
}

/// Stops this process unless the program was continued already; once continued, it continues the program.
fn stop_with(pid: Pid) {
    // Ctrl-Z and `fg` reach both processes, in any order: give the other one time.
    std::thread::sleep(Duration::from_millis(20));
    if !is_stopped(pid) {
        return;
    }
    let _ = kill_process(getpid(), Signal::STOP);
    let _ = kill_process(pid, Signal::CONT);
}

/// Whether there is a controlling terminal.
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

fn is_stopped(pid: Pid) -> bool {
    Stat::of(pid.as_raw_nonzero().get().unsigned_abs()).is_ok_and(|stat| stat.is_stopped())
}

/// Ends like the program: with its exit code, or by its signal (without a second core file).
pub(crate) fn end_like(end: End) -> ExitCode {
    match end {
        End::Exited(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        End::Killed(signal) => {
            let none = Rlimit {
                current: Some(0),
                maximum: Some(0),
            };
            let _: io::Result<()> = setrlimit(Resource::Core, none).map_err(Into::into);
            if signal_hook::low_level::emulate_default_handler(signal).is_err() {
                // A real-time signal is unknown to `emulate_default_handler`; its default action is still
                // set.
                let _ = signal_hook::low_level::raise(signal);
            }
            // The exit code of a shell for this signal, in case the signal does not end this process.
            ExitCode::from(128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)))
        }
    }
}
