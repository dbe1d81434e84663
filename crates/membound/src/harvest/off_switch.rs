//! The off switch of a harvest: SIGUSR2, which `membound harvest stop` sends.
//!
//! The command's yields are removed from its text, and its scavengers are held until the command has ended.
//! Where scavengers are to finish as well, or where there is no command, each continues on its home thread.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use membound_launch::{Remote, ScavengerPlacement, YieldPlace};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::{Handle, Signals};

use super::args::RunArgs;
use super::choices::PlannedYield;

/// How long to wait for a command that does not complete the removal of its yields.
const TEXT_CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Listens for the signal, which no longer kills the process from then on.
#[derive(Debug)]
pub(super) struct Switch(Signals);

impl Switch {
    /// Begins to catch the signal.
    ///
    /// # Errors
    /// If the signal cannot be caught.
    pub(super) fn listen() -> io::Result<Self> {
        crate::job::keep_for_oneself(SIGUSR2);
        Signals::new([SIGUSR2]).map(Self)
    }

    /// Starts a thread that calls `notify` at each signal, until [`Listening::end`].
    pub(super) fn begin(mut self, notify: impl Fn() + Send + 'static) -> Listening {
        let handle = self.0.handle();
        let thread = std::thread::spawn(move || {
            for _ in self.0.forever() {
                notify();
            }
        });
        Listening { handle, thread }
    }
}

/// A thread that waits for the signal.
#[derive(Debug)]
pub(super) struct Listening {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Listening {
    pub(super) fn end(self) {
        self.handle.close();
        let _ = self.thread.join();
    }
}

/// What switching off does to this harvest.
#[derive(Debug)]
pub(super) struct HarvestSwitch {
    yields: Vec<YieldPlace>,
    scavengers: usize,
    place: ScavengerPlacement,
    started: Instant,
}

impl HarvestSwitch {
    pub(super) fn new(args: &RunArgs, yields: &[PlannedYield], scavengers: usize) -> Self {
        Self {
            yields: yields.iter().map(|planned| planned.place.clone()).collect(),
            scavengers,
            place: match args.finish || args.no_primary {
                true => ScavengerPlacement::Own,
                false => ScavengerPlacement::Held,
            },
            started: Instant::now(),
        }
    }

    /// Replaces the yields: the command was given these while it runs.
    pub(super) fn is_of(&mut self, yields: &[PlannedYield]) {
        self.yields = yields.iter().map(|planned| planned.place.clone()).collect();
    }

    /// Removes the yields and moves the scavengers; returns a note for the report.
    pub(super) fn switch_off(&self, remote: &Remote) -> String {
        let started = Instant::now();
        remote.set_admitted_share(0.0);
        remote.set_places(&vec![self.place; self.scavengers]);
        let after_s = (started - self.started).as_secs_f64();
        let message = match self.place {
            ScavengerPlacement::Held => "scavengers waited from then on",
            _ => "scavengers went on, each on its own thread",
        };
        let message = format!("harvest: it was switched off after {after_s:.1} s: {message}");
        if self.yields.is_empty() {
            return message;
        }
        let exchange = remote.withdraw(self.yields.clone());
        while !remote.settled(exchange) && started.elapsed() < TEXT_CHANGE_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let harvested = remote.harvested();
        let out = harvested.map_or(0, |harvested| harvested.withdrawn.len());
        let (all, ms) = (self.yields.len(), started.elapsed().as_millis());
        format!(
            "{message}, and {out} of the command's {all} yields were removed from its code {ms} ms later"
        )
    }
}
