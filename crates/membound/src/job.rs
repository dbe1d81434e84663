//! Signals and job control, with which the command stands in for the program that it started.
//!
//! The program shares the process group, so the terminal's own signals (Ctrl-C, Ctrl-\, Ctrl-Z, hang-up)
//! reach it anyway, and membound must only outlive them. Signals that a process sends to membound alone are
//! passed on. When the program is stopped, membound stops too, so that the shell sees it, and both continue
//! together. Without a terminal there is no shell to continue membound: it keeps running and waits until the
//! program is continued.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use anyhow::Context;
use membound_coschedule::harvest_run::OffSwitch;
use membound_coschedule::{CallerError, StandIn};
use membound_launch::{Change, Session};
use membound_platform::signal_masks::ignored;
use membound_platform::stat::Stat;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use signal_hook::iterator::{Signals, SignalsInfo};

/// Signals that are passed on when they were sent to membound alone.
const PASSED_ON: [i32; 4] = [SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
/// Signals that a terminal sends to the program as well.
const SHARED: [i32; 2] = [SIGINT, SIGQUIT];

/// Bit mask of signals that are not passed on, since they mean something to membound itself.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Has SIGUSR2 switch a harvest off from now on, instead of being passed on.
///
/// # Errors
/// If the signal cannot be caught.
pub(crate) fn on_off_signal(off: &OffSwitch) -> anyhow::Result<()> {
    KEPT.fetch_or(1 << (SIGUSR2 - 1), Ordering::Relaxed);
    let mut signals = Signals::new([SIGUSR2]).context("cannot listen for SIGUSR2")?;
    let off = off.clone();
    std::thread::spawn(move || signals.forever().for_each(|_| off.switch_off()));
    Ok(())
}

/// Receives the ends of child processes from now on, and the signals with which the user stops a batch.
///
/// # Errors
/// If signals cannot be caught.
pub(crate) fn batch_signals() -> anyhow::Result<Receiver<i32>> {
    let (sender, receiver) = mpsc::channel();
    // Signals that were ignored when the batch was started stay ignored, as with nohup or as a shell's job
    // without a terminal.
    let ignored = ignored();
    let wanted = [SIGINT, SIGTERM, SIGHUP, SIGTSTP]
        .into_iter()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0)
        .chain([SIGCHLD]);
    let mut signals = Signals::new(wanted).context("cannot listen for signals")?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
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

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Killed(signal.unwrap_or(0)),
        }
    }
}

/// Begins to catch signals for a program of a harvest.
pub(crate) fn stand_in() -> Result<Box<dyn StandIn>, CallerError> {
    Ok(Box::new(Job::prepare()?))
}

impl StandIn for Job {
    fn follow(self: Box<Self>, session: &Session) -> Result<ExitStatus, CallerError> {
        Ok(self.wait_for(session)?)
    }
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
    pub(crate) fn follow(self, session: &Session) -> anyhow::Result<End> {
        self.wait_for(session).map(End::from)
    }

    fn wait_for(mut self, session: &Session) -> anyhow::Result<ExitStatus> {
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
                Change::Ended(status) => break status,
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
