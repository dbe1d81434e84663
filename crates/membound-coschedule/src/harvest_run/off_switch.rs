//! The off switch of a harvest, which the caller operates.
//!
//! The command's yields are removed from its text, and its scavengers are held until the command has ended.
//! Where scavengers are to finish as well, or where there is no command, each continues on its home thread.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_launch::{Remote, ScavengerPlacement, YieldPlace};

use super::choices::PlannedYield;
use super::run_config::RunConfig;

/// How long to wait for a command that does not complete the removal of its yields.
const TEXT_CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Switches a harvest off. Clones are the same switch.
#[derive(Clone, Default)]
pub struct OffSwitch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_off: bool,
    notify: Option<Box<dyn Fn() + Send>>,
}

impl OffSwitch {
    /// Switches the harvest off, at once or as soon as its command is followed: a command without a plan is profiled
    /// before.
    pub fn switch_off(&self) {
        let mut state = self.state();
        state.is_off = true;
        if let Some(notify) = &state.notify {
            notify();
        }
    }

    /// Calls `notify` when it is operated, or now if it was; until [`Listening::end`].
    pub(super) fn begin(&self, notify: impl Fn() + Send + 'static) -> Listening {
        let mut state = self.state();
        if state.is_off {
            notify();
        }
        state.notify = Some(Box::new(notify));
        Listening(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OffSwitch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_off = self.state().is_off;
        out.debug_struct("OffSwitch")
            .field("is_off", &is_off)
            .finish_non_exhaustive()
    }
}

/// A harvest that is told when it is switched off.
#[derive(Debug)]
pub(super) struct Listening(OffSwitch);

impl Listening {
    pub(super) fn end(self) {
        self.0.state().notify = None;
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
    pub(super) fn new(config: &RunConfig, yields: &[PlannedYield], scavengers: usize) -> Self {
        Self {
            yields: yields.iter().map(|planned| planned.place.clone()).collect(),
            scavengers,
            place: match config.finish || config.no_primary {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_switch_that_was_operated_before_the_harvest_is_followed_counts() {
        let switch = OffSwitch::default();
        let (sender, receiver) = mpsc::channel();
        let follow = || {
            let sender = sender.clone();
            switch.begin(move || sender.send(()).unwrap())
        };
        let listening = follow();
        assert!(receiver.try_recv().is_err());
        switch.clone().switch_off();
        assert!(receiver.try_recv().is_ok());
        listening.end();
        switch.switch_off();
        assert!(receiver.try_recv().is_err());
        follow().end();
        assert!(receiver.try_recv().is_ok());
    }
}
