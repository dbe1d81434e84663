//! The off switch of a harvest: SIGUSR2, which `membound harvest stop` sends.
//!
//! The command's yields go out of its text, and its scavengers wait, until it has ended. Where they are to end as
//! well, or where there is no command to spare, each goes on, on a thread of its own.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use membound_launch::{GuestPlace, Remote, YieldPlace};
use signal_hook::consts::SIGUSR2;
use signal_hook::iterator::{Handle, Signals};

use super::args::RunArgs;
use super::worth::PlannedYield;

/// How long a command is waited for that does not change its text.
const PATIENCE: Duration = Duration::from_secs(1);

/// Listens for the signal. From then on it ends nobody.
#[derive(Debug)]
pub(super) struct Switch(Signals);

impl Switch {
    /// # Errors
    /// When the signal cannot be caught.
    pub(super) fn listen() -> io::Result<Self> {
        crate::job::keep_for_oneself(SIGUSR2);
        Signals::new([SIGUSR2]).map(Self)
    }

    /// Has `tell` tell of it each time, until that is ended.
    pub(super) fn begin(mut self, tell: impl Fn() + Send + 'static) -> Listening {
        let handle = self.0.handle();
        let thread = std::thread::spawn(move || {
            for _ in self.0.forever() {
                tell();
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

/// What is to be taken away.
#[derive(Debug)]
pub(super) struct Off {
    yields: Vec<YieldPlace>,
    guests: usize,
    place: GuestPlace,
    begun: Instant,
}

impl Off {
    pub(super) fn new(args: &RunArgs, yields: &[PlannedYield], guests: usize) -> Self {
        Self {
            yields: yields.iter().map(|planned| planned.place.clone()).collect(),
            guests,
            place: match args.finish || args.no_primary {
                true => GuestPlace::Own,
                false => GuestPlace::Held,
            },
            begun: Instant::now(),
        }
    }

    /// The command has these yields since a moment ago.
    pub(super) fn is_of(&mut self, yields: &[PlannedYield]) {
        self.yields = yields.iter().map(|planned| planned.place.clone()).collect();
    }

    /// Takes it away, and says what came of it.
    pub(super) fn take_away(&self, remote: &Remote) -> String {
        let begun = Instant::now();
        remote.let_in(0.0);
        remote.set_places(&vec![self.place; self.guests]);
        let after_s = (begun - self.begun).as_secs_f64();
        let told = match self.place {
            GuestPlace::Held => "scavengers waited from then on",
            _ => "scavengers went on each on its own thread",
        };
        let told = format!("harvest: it was switched off after {after_s:.1} s: {told}");
        if self.yields.is_empty() {
            return told;
        }
        let exchange = remote.withdraw(self.yields.clone());
        while !remote.settled(exchange) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let harvested = remote.harvested();
        let out = harvested.map_or(0, |harvested| harvested.withdrawn.len());
        let (all, ms) = (self.yields.len(), begun.elapsed().as_millis());
        format!(
            "{told}, and {out} of the command's {all} yields were out of its text {ms} ms later"
        )
    }
}
