//! The thread that follows a harvest while it runs. It polls the counters of the session and the CPU time of
//! scavengers, lets the controller decide, and applies what that decides.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use membound_control::{
    Action, Controller, Counters, InterleavingReport, Observation, Slices, Spans, YieldFigures,
};
use membound_launch::{Harvested, Remote, ScavengerProcessState, ScavengerStatus, Turns};
use membound_platform::threads::Scheduled;
use membound_types::{HarvestSlots, SlowdownGuard};

use super::choices::PlannedYield;
use super::control_trace::ControlTrace;
use super::in_place::{Adopted, InPlace, Outcome};
use super::off_switch::{HarvestSwitch, Listening, OffSwitch};
use super::ordinary::Processes;
use super::slots::Slots;

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two polls while the balance tries time slices of scavengers without a command.
const TRIAL_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time from the beginning for which polls come as often, to see when the first time slice begins.
const FIRST_SLICE_WATCH: Duration = Duration::from_secs(2);
/// Consecutive idle polls before the poll interval doubles, and the maximum number of doublings: each poll
/// costs some fifty microseconds of a thread that shares the processor.
const IDLE_POLLS_BEFORE_BACK_OFF: u32 = 8;
const MAX_INTERVAL_DOUBLINGS: u32 = 3;

/// What the follower observed last.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) harvested: Harvested,
    /// The controller's part of these counters.
    counters: Counters,
    /// The same counters, poll by poll.
    pub(super) spans: Spans,
    /// CPU time of each scavenger's own thread, in seconds.
    pub(super) own_thread_s: Vec<f64>,
    pub(super) guard: Option<SlowdownGuard>,
    pub(super) slots: HarvestSlots,
    /// What interleaving gained, for scavengers without a command.
    pub(super) balance: Option<InterleavingReport>,
    /// What switching the harvest off did, for the report.
    pub(super) off: Option<String>,
    /// Why the controller's trace could not be written.
    pub(super) untraced: Option<String>,
    /// Time from the beginning to the first poll after a scavenger had a time slice.
    pub(super) first_turn: Option<Duration>,
    /// The plan that was made during the run and the time when it was adopted, or why there is none.
    pub(super) learned: Option<Result<(Box<Adopted>, Duration), String>>,
}

/// Messages to the follower's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The harvest is to be switched off.
    Off,
    /// The session has ended.
    End,
}

/// Thread that polls a session until [`Follower::end`].
#[derive(Debug)]
pub(super) struct Follower {
    sender: mpsc::Sender<Message>,
    listening: Listening,
    thread: JoinHandle<(Observed, Processes)>,
}

impl Follower {
    /// Starts the thread.
    pub(super) fn begin(
        (remote, pid): (Remote, u32),
        (controller, yields, trace): (Controller, Vec<PlannedYield>, Option<ControlTrace>),
        slots: Slots,
        others: OtherProcesses,
        (switch, off): (&OffSwitch, HarvestSwitch),
        (start, in_place): (Instant, Option<InPlace>),
    ) -> Self {
        let (sender, receiver) = mpsc::channel();
        let switched = sender.clone();
        let listening = switch.begin(move || {
            // A follower that has ended needs no message.
            let _ = switched.send(Message::Off);
        });
        let mut followed = Followed {
            remote,
            pid,
            start,
            begin: Instant::now(),
            controller,
            trace,
            yields,
            slots,
            others,
            off,
            in_place,
            observed: Observed::default(),
            exchange: None,
            idle_polls: IdlePolls::default(),
        };
        let thread = std::thread::spawn(move || {
            loop {
                match receiver.recv_timeout(followed.poll_interval()) {
                    Ok(Message::Off) => followed.switch_off(),
                    Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => {
                        return followed.end();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
                followed.poll();
            }
        });
        Self {
            sender,
            listening,
            thread,
        }
    }

    /// Stops the thread and returns what it observed.
    pub(super) fn end(self) -> (Observed, Processes) {
        // The thread ends by itself only in a panic.
        let _ = self.sender.send(Message::End);
        self.listening.end();
        self.thread.join().unwrap_or_default()
    }
}

/// A session and its controller, on the follower's thread.
struct Followed {
    remote: Remote,
    pid: u32,
    /// When the harvest began.
    start: Instant,
    /// When it was followed first.
    begin: Instant,
    controller: Controller,
    trace: Option<ControlTrace>,
    /// Yields of the command, in the controller's order.
    yields: Vec<PlannedYield>,
    slots: Slots,
    others: OtherProcesses,
    off: HarvestSwitch,
    /// A plan that is being made while the programs run.
    in_place: Option<InPlace>,
    observed: Observed,
    /// The exchange that changes yields, while it is pending.
    exchange: Option<u64>,
    idle_polls: IdlePolls,
}

impl Followed {
    fn poll_interval(&self) -> Duration {
        let awaits_first =
            self.observed.first_turn.is_none() && self.start.elapsed() < FIRST_SLICE_WATCH;
        if self.controller.is_watchful() || self.in_place.is_some() || awaits_first {
            TRIAL_POLL_INTERVAL
        } else if self.slots.are_followed() || self.controller.has_interleaving() {
            POLL_INTERVAL
        } else {
            self.idle_polls.poll_interval()
        }
    }

    fn switch_off(&mut self) {
        if self.observed.off.is_some() {
            return;
        }
        // A plan that is not made yet is given up.
        if let Some(planning) = self.in_place.take() {
            planning.give_up();
        }
        self.observed.off = Some(self.off.switch_off(&self.remote));
    }

    fn poll(&mut self) {
        self.observe();
        // Without a plan there is nothing yet to hold to bounds, and nothing any more after switching off.
        if self.in_place.is_some() || self.observed.off.is_some() {
            self.others.processes.poll();
        } else {
            self.decide();
        }
    }

    /// Reads the counters, and adopts a plan that was made meanwhile.
    fn observe(&mut self) {
        if let Some(harvested) = self.remote.harvested() {
            self.idle_polls.update(&harvested, &self.observed.harvested);
            self.observed.update(harvested, self.pid, self.start);
        }
        let planning = self.in_place.as_mut();
        let Some(outcome) = planning.and_then(|it| it.poll(&self.remote)) else {
            return;
        };
        self.in_place = None;
        self.observed.learned = Some(match outcome {
            Outcome::Adopted(adopted) => {
                self.off.is_of(&adopted.choices.yields);
                self.yields.clone_from(&adopted.choices.yields);
                self.controller.adopt(&figures(&self.yields));
                Ok((adopted, self.start.elapsed()))
            }
            Outcome::NoPlan(why) => Err(why),
        });
        self.controller.discard_so_far(&self.observed.counters);
    }

    /// Lets the controller decide, and applies what it decides.
    fn decide(&mut self) {
        self.others.processes.poll();
        if self.exchange.is_some_and(|it| self.remote.settled(it)) {
            self.exchange = None;
        }
        let observed = &self.observed;
        let observation = Observation {
            now: self.begin.elapsed(),
            counters: &observed.counters,
            is_settled: self.exchange.is_none(),
            uses_siblings: self.slots.uses_siblings(),
            progress: &progress(&observed.harvested),
            processors: self.others.free_processors(),
        };
        let actions = self.controller.step(&observation);
        if let Some(trace) = &mut self.trace {
            trace.add(&observation, &actions);
        }
        for action in actions {
            self.apply(action);
        }
        let observed = &self.observed;
        self.slots.poll(
            (&self.remote, self.pid),
            &observed.harvested,
            &observed.own_thread_s,
            self.controller.siblings(),
        );
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Admit(share) => self.remote.set_admitted_share(share),
            Action::Remove(yields) => {
                let places = yields.into_iter().map(|it| self.yields[it].place.clone());
                self.exchange = Some(self.remote.withdraw(places.collect()));
            }
            Action::LengthenPhases(ns) => self.remote.lengthen_phases(ns),
            Action::Limit(limits) => self.remote.set_turns(limits.span_ns, limits.skips),
            Action::Place(places) => self.remote.set_places(&places),
        }
    }

    /// Polls a last time, and returns what was observed.
    fn end(mut self) -> (Observed, Processes) {
        self.observe();
        self.decide();
        self.observed.untraced = self.trace.take().and_then(ControlTrace::write);
        self.observed.guard = self.controller.guard_report();
        self.observed.balance = self.controller.interleaving_report();
        self.observed.slots = self.slots.report(self.controller.siblings());
        (self.observed, self.others.processes)
    }
}

/// Scavengers that run as ordinary processes.
#[derive(Debug)]
pub(super) struct OtherProcesses {
    processes: Processes,
    processors: usize,
}

impl OtherProcesses {
    /// `processors` is how many all scavengers together may use.
    pub(super) const fn new(processes: Processes, processors: usize) -> Self {
        Self {
            processes,
            processors,
        }
    }

    /// Processors that they leave to the others.
    fn free_processors(&self) -> usize {
        self.processors.saturating_sub(self.processes.running())
    }
}

impl Observed {
    /// Why the command was not started, where its requests could not be observed.
    pub(super) fn prevented(&self) -> Option<&str> {
        let requested = self.harvested.requested.as_ref()?;
        let why = requested.refused.as_deref();
        why.filter(|_| requested.prevented)
    }

    fn update(&mut self, harvested: Harvested, pid: u32, start: Instant) {
        if self.first_turn.is_none() && harvested.with.count + harvested.waits.count > 0 {
            self.first_turn = Some(start.elapsed());
        }
        self.own_thread_s.resize(harvested.scavengers.len(), 0.0);
        for (scavenger, seconds) in harvested.scavengers.iter().zip(&mut self.own_thread_s) {
            let own = if scavenger.cpu_ns > 0 {
                Some(scavenger.cpu_ns as f64 * 1e-9)
            } else {
                thread_cpu_s(pid, scavenger.thread)
            };
            // A scavenger that has ended keeps its last value.
            *seconds = own.unwrap_or(*seconds).max(*seconds);
        }
        self.counters = counters(&harvested);
        self.spans.update(&self.counters);
        self.harvested = harvested;
    }
}

/// Number of consecutive polls without a time slice.
#[derive(Debug, Default)]
struct IdlePolls(u32);

impl IdlePolls {
    /// Compares the counters of a poll with those of the poll before.
    fn update(&mut self, harvested: &Harvested, before: &Harvested) {
        let slice_counts =
            |it: &Harvested| [it.with, it.without, it.waits].map(|slices| slices.count);
        // While yields are removed, polls stay frequent, so that the guard installs them again in time.
        let rests = slice_counts(harvested) == slice_counts(before)
            && harvested.requested == before.requested
            && harvested.withdrawn.is_empty();
        self.0 = if rests { self.0.saturating_add(1) } else { 0 };
    }

    /// Time until the next poll.
    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL * (1 << (self.0 / IDLE_POLLS_BEFORE_BACK_OFF).min(MAX_INTERVAL_DOUBLINGS))
    }
}

/// The controller's part of the counters of a session.
fn counters(harvested: &Harvested) -> Counters {
    let slices = |turns: Turns| Slices {
        count: turns.count,
        cpu_ns: turns.cpu_ns,
    };
    let requested = harvested.requested.as_ref();
    let durations = requested.map(|it| [&it.with, &it.without].map(|phase| phase.times.clone()));
    Counters {
        with: slices(harvested.with),
        without: slices(harvested.without),
        slices: harvested.times.clone(),
        requests: durations,
    }
}

/// Figures of the command's yields, in their order.
pub(super) fn figures(yields: &[PlannedYield]) -> Vec<YieldFigures> {
    yields.iter().map(|it| it.figures).collect()
}

/// CPU time of a thread, in seconds, by the kernel's scheduler.
fn thread_cpu_s(pid: u32, thread: u32) -> Option<f64> {
    let scheduled = (thread != 0).then(|| Scheduled::of(pid, thread))??;
    Some(scheduled.cpu_ns as f64 * 1e-9)
}

/// For each scavenger, the number of loads with a yield that it has executed; `None` if it has not begun or
/// has ended.
fn progress(harvested: &Harvested) -> Vec<Option<u64>> {
    let scavengers = harvested.scavengers.iter();
    let of = |scavenger: &ScavengerStatus| {
        (scavenger.state == Some(ScavengerProcessState::Runs)).then_some(scavenger.progress)
    };
    scavengers.map(of).collect()
}

#[cfg(test)]
mod tests {
    use membound_launch::{Requested, YieldPlace};
    use membound_rewrite::image::Identity;

    use super::*;

    #[test]
    fn polls_become_rare_without_slices_and_frequent_with_them() {
        let ran = |slices: u64, spanning: u64| Harvested {
            with: Turns {
                count: slices,
                cpu_ns: 0,
            },
            requested: Some(Requested {
                spanning,
                ..Requested::default()
            }),
            ..Harvested::default()
        };
        let mut idle_polls = IdlePolls::default();
        let (idle, turned, asked) = (ran(7, 0), ran(8, 0), ran(8, 1));
        let mut periods = Vec::new();
        for _ in 0..40 {
            idle_polls.update(&idle, &idle);
            periods.push(idle_polls.poll_interval());
        }
        assert_eq!(periods[6], POLL_INTERVAL);
        assert_eq!(periods[7], 2 * POLL_INTERVAL);
        assert_eq!(periods[39], 8 * POLL_INTERVAL);
        let without_a_yield = Harvested {
            withdrawn: vec![YieldPlace {
                file: Identity::TextHash([0; 32]),
                address: 1,
            }],
            ..ran(7, 0)
        };
        for (now, before) in [
            (&turned, &idle),
            (&asked, &turned),
            (&without_a_yield, &idle),
        ] {
            idle_polls.update(now, before);
            assert_eq!(idle_polls.poll_interval(), POLL_INTERVAL);
            idle_polls = IdlePolls(100);
        }
    }
}
