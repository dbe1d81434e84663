//! Harvesting: scavengers that run inside the command's process, at its yields.
//!
//! Only the process that a session starts has scavengers: programs that it executes later, and its
//! children, run as they are. A scavenger's modules are patched with the scavengers' choices after it has
//! mapped them and before they run; all other modules are patched with the primary's choices.

mod request;
mod status;
mod wanted;
mod yields;

use std::mem::offset_of;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::threads::Scheduled;
use membound_wire::{
    CREDIT_UNITS_PER_NS, ControlPage, ScavengerPlacement, ScavengerProcessState, ScavengerRequest,
    TIME_CLASSES, class_begin,
};

use self::request::request;
pub use self::status::ScavengerStatus;
use self::status::status;
pub use self::wanted::{Harvest, ScavengerCommand};
pub(crate) use self::yields::{lost, no_place};
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::maps::Mapping;
use crate::memory::Shared;
use crate::modules::{Loaded, ModulePlan};
use crate::planting::{LatePlantings, Planting};
use crate::process_key::ProcessKey;
use crate::requested::{Requested, Requesting};
use crate::withdrawn::{Withdrawn, YieldPlace};

/// Interval between two checks whether scavengers are ready.
const LOOK: Duration = Duration::from_millis(1);

/// Length of a phase with or without scavengers, in polls of the agent, where request latencies are
/// measured: 20 ms.
const REQUEST_POLLS: u32 = 10;

/// Longest phase, in polls of the agent: 500 ms.
const MAX_REQUEST_POLLS: f64 = 250.0;

/// Nanoseconds between two polls of the agent.
const LOOK_NS: f64 = 2e6;

/// CPU time in nanoseconds of a scavenger that has come to no yield, after which the command begins all the
/// same: the scavenger may be preparing its data for seconds.
const PREPARES_NS: u64 = 50_000_000;

/// Results of a harvest so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Harvested {
    /// Why the command has no run queues, if it has none.
    pub refused: Option<String>,
    /// Threads that got a run queue.
    pub threads: u64,
    /// Yields of the command at which scavengers were admitted, and CPU time of its threads meanwhile.
    pub with: Turns,
    /// The same while no scavenger was admitted.
    pub without: Turns,
    /// Scavengers that were taken from a waiting thread.
    pub steals: u64,
    /// Scavengers that were taken from a thread that had ended.
    pub reclaimed: u64,
    /// Scavengers that left a thread for a system call.
    pub calls: u64,
    /// Scavengers that left a thread because of a signal to the command.
    pub interrupted: u64,
    /// Scavengers that were called out of a time slice that did not end.
    pub overdue: u64,
    /// Time slices in short waits of the command's threads, and the duration of these waits.
    pub waits: Turns,
    /// Time slices that were to be timed, but which scavengers skipped to wait for their own prefetch.
    pub skipped: u64,
    /// Time slices that were timed.
    pub timed: u64,
    /// Sum of their durations, in nanoseconds.
    pub timed_ns: u64,
    /// The longest of them, in nanoseconds.
    pub longest_ns: u64,
    /// Histogram of their durations: (from, to, count), in nanoseconds.
    pub times: Vec<(u64, u64, u64)>,
    /// The scavengers, in their order.
    pub scavengers: Vec<ScavengerStatus>,
    /// Yields that could not be installed, with reasons.
    pub missed: Vec<String>,
    /// Request latencies of the command, if they are measured.
    pub requested: Option<Requested>,
    /// Yields of the command that are removed from its text.
    pub withdrawn: Vec<YieldPlace>,
}

/// Number of time slices, and CPU time of the threads in which they began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Number of time slices.
    pub count: u64,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
}

/// A harvest in progress.
#[derive(Debug)]
pub(crate) struct Harvesting {
    wanted: Harvest,
    /// The process with the scavengers, once it has begun.
    process: OnceLock<ProcessKey>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    control_page: Option<Shared>,
    /// By scavenger: its request, once it was started.
    requests: Vec<Option<Shared>>,
    /// Address ranges that scavengers have mapped.
    spans: Vec<Range<u64>>,
    refused: Option<String>,
    missed: Vec<String>,
    requesting: Requesting,
    withdrawn: Withdrawn,
    late: LatePlantings,
}

impl Harvesting {
    pub(crate) fn new(wanted: Harvest) -> Self {
        Self {
            wanted,
            process: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this is the process with the scavengers, and it has run queues.
    pub(crate) fn is_in(&self, key: ProcessKey) -> bool {
        self.process.get() == Some(&key) && self.state().control_page.is_some()
    }

    /// Reports that the process has executed another program, and that its scavengers have ended.
    fn say_executed(&self, path: &Path) {
        let missed = format!(
            "the command executed {}: scavengers ended with what ran before, and nothing was harvested of \
             this (run it itself)",
            path.display()
        );
        self.state().missed.push(missed);
    }

    /// True if a module is a scavenger's.
    pub(crate) fn is_scavengers(&self, module: &Loaded) -> bool {
        let span = module.span();
        let state = self.state();
        state
            .spans
            .iter()
            .any(|scavengers| scavengers.start < span.end && span.start < scavengers.end)
    }

    /// Keeps exception flags apart if the module, of the primary or of a scavenger, reads them.
    fn heed_exceptions(&self, module: &Loaded) {
        if module.module.reads_exceptions()
            && let Some(control_page) = &self.state().control_page
        {
            let word = control_page.word32(offset_of!(ControlPage, own_exceptions));
            word.store(1, Ordering::Relaxed);
        }
    }

    /// Gives the program run queues. If that fails it runs as it is, without scavengers.
    fn open_run_queues(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<bool, Failure> {
        let opened = self.control_page().and_then(|control_page| {
            let at = control_page.hang(conversation, maps)?;
            conversation.run_queues(at, size_of::<ControlPage>() as u64)?;
            Ok(control_page)
        });
        let mut state = self.state();
        match opened {
            Ok(control_page) => {
                state.control_page = Some(control_page);
                Ok(true)
            }
            Err(gone @ Failure::Gone(_)) => Err(gone),
            Err(refused) => {
                state.refused = Some(refused.to_string());
                Ok(false)
            }
        }
    }

    fn control_page(&self) -> Result<Shared, Failure> {
        let control_page = Shared::zeroed("membound-lanes", size_of::<ControlPage>())?;
        let wanted = &self.wanted;
        let word = |offset: usize, value: u32| {
            control_page.word32(offset).store(value, Ordering::Relaxed);
        };
        word(
            offset_of!(ControlPage, span),
            units(wanted.span_ns).cast_unsigned(),
        );
        word(offset_of!(ControlPage, per_thread), wanted.per_thread);
        word(offset_of!(ControlPage, finish), u32::from(wanted.finish));
        word(
            offset_of!(ControlPage, huge_pages),
            u32::from(wanted.huge_pages),
        );
        word(offset_of!(ControlPage, peers), u32::from(wanted.peers));
        word(offset_of!(ControlPage, idle), wanted.idle as u32);
        word(offset_of!(ControlPage, share), parts(wanted.share));
        if wanted.requests.is_some() {
            word(offset_of!(ControlPage, phase_looks), REQUEST_POLLS);
        }
        let long = |offset: usize, value: u64| {
            control_page.word64(offset).store(value, Ordering::Relaxed);
        };
        long(offset_of!(ControlPage, memory), wanted.memory_bytes);
        let scavengers = wanted.scavengers.len().max(1) as u64;
        long(
            offset_of!(ControlPage, memory_each),
            wanted.memory_bytes / 2 / scavengers,
        );
        word(
            offset_of!(ControlPage, ticks),
            (wanted.ticks_per_ns * 1024.0).max(1.0) as u32,
        );
        Ok(control_page)
    }

    /// Sets the time from a yield until the command's data have arrived, in nanoseconds, which is the
    /// credit of a slice, and the number of slices that scavengers skip after a miss of their own.
    pub(crate) fn set_turns(&self, span_ns: f64, skips: u32) {
        if let Some(control_page) = &self.state().control_page {
            let word = |offset, value| control_page.word32(offset).store(value, Ordering::Relaxed);
            word(
                offset_of!(ControlPage, span),
                units(span_ns).cast_unsigned(),
            );
            word(offset_of!(ControlPage, skips), skips);
        }
    }

    /// Lengthens phases with and without scavengers to this many nanoseconds, if they are shorter.
    pub(crate) fn lengthen_phases(&self, length_ns: f64) {
        if let Some(control_page) = &self.state().control_page {
            let looks = (length_ns / LOOK_NS).clamp(1.0, MAX_REQUEST_POLLS) as u32;
            let word = control_page.word32(offset_of!(ControlPage, phase_looks));
            word.fetch_max(looks, Ordering::Relaxed);
        }
    }

    /// Ticks of the time stamp counter in a nanosecond.
    pub(crate) const fn ticks_per_ns(&self) -> f64 {
        self.wanted.ticks_per_ns
    }

    /// Changes the state of request measurement.
    pub(crate) fn of_requests<T>(&self, change: impl FnOnce(&mut Requesting) -> T) -> T {
        change(&mut self.state().requesting)
    }

    /// True if the patches of a module are yields of the command.
    pub(crate) fn yields_by(&self, module: &ModulePlan) -> bool {
        let is_here = |planting: &Planting| planting.is_in(module);
        let late = |late: &mut LatePlantings| late.primary.iter().any(is_here);
        self.wanted.primary.iter().any(is_here) || self.of_late(late)
    }

    /// True if the patches of a module belong to a harvest: yields, or marks of requests.
    pub(crate) fn owns(&self, module: &ModulePlan) -> bool {
        let is_mark = |choice: &Choice| module.is_chosen(&choice.file, &choice.options);
        if self.of_requests(|requesting| requesting.marks.iter().any(is_mark)) {
            return true;
        }
        let is_here = |planting: &Planting| planting.is_in(module);
        self.yields_by(module) || self.wanted.scavenger_yields.iter().any(is_here)
    }

    /// Changes the state of the yields that were planned while the command ran.
    pub(crate) fn of_late<T>(&self, change: impl FnOnce(&mut LatePlantings) -> T) -> T {
        change(&mut self.state().late)
    }

    /// All yields of the command, including those that were planned while it ran.
    fn primary(&self) -> Vec<Planting> {
        let late = self.of_late(|late| late.primary.clone());
        self.wanted.primary.iter().cloned().chain(late).collect()
    }

    /// Reports something that could not be done.
    pub(crate) fn miss(&self, missed: String) {
        self.state().missed.push(missed);
    }

    /// Changes the state of the removed yields.
    pub(crate) fn of_withdrawn<T>(&self, change: impl FnOnce(&mut Withdrawn) -> T) -> T {
        change(&mut self.state().withdrawn)
    }

    /// Sets where each scavenger runs, in the order of the scavengers.
    pub(crate) fn set_places(&self, places: &[ScavengerPlacement]) {
        let state = self.state();
        for (request, &place) in state.requests.iter().zip(places) {
            if let Some(request) = request {
                let word = request.word32(offset_of!(ScavengerRequest, place));
                word.store(place as u32, Ordering::Relaxed);
            }
        }
    }

    /// Sets the share of the time, 0 to 1, in which scavengers are admitted.
    pub(crate) fn set_admitted_share(&self, share: f64) {
        if let Some(control_page) = &self.state().control_page {
            let word = control_page.word32(offset_of!(ControlPage, share));
            word.store(parts(share), Ordering::Relaxed);
        }
    }

    fn start_scavengers(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), Failure> {
        for scavenger in &self.wanted.scavengers {
            let started = request(scavenger, self.wanted.begins)
                .map_err(Failure::from)
                .and_then(|request| {
                    let at = request.memory.hang(conversation, maps)?;
                    conversation.scavenger(at, request.length)?;
                    Ok(request.memory)
                });
            let mut state = self.state();
            match started {
                Ok(request) => state.requests.push(Some(request)),
                Err(gone @ Failure::Gone(_)) => return Err(gone),
                Err(refused) => {
                    state.requests.push(None);
                    let path = scavenger.path.display();
                    state.missed.push(format!("{path}: {refused}"));
                }
            }
        }
        Ok(())
    }

    /// Waits until every scavenger has come to a yield, has run for long without one, or has ended; at most
    /// for the configured time.
    pub(crate) fn await_scavengers(&self) {
        let begun = Instant::now();
        let pid = self.process.get().map(|key| key.pid);
        let prepares = |thread: u32| {
            let scheduled = pid.and_then(|pid| Scheduled::of(pid, thread));
            scheduled.is_some_and(|it| it.cpu_ns >= PREPARES_NS)
        };
        while begun.elapsed() < self.wanted.patience && !self.wanted.peers {
            let ready = {
                let state = self.state();
                let mut requests = state.requests.iter().flatten();
                requests.all(|request| {
                    let scavenger = status(Some(request));
                    scavenger.parks > 0
                        || scavenger.state == Some(ScavengerProcessState::Runs)
                            && prepares(scavenger.thread)
                        || !matches!(
                            scavenger.state,
                            Some(ScavengerProcessState::Starting | ScavengerProcessState::Runs)
                        )
                })
            };
            if ready {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Results so far.
    pub(crate) fn harvested(&self) -> Harvested {
        let state = self.state();
        let mut harvested = Harvested {
            refused: state.refused.clone(),
            scavengers: (0..self.wanted.scavengers.len())
                .map(|index| status(state.requests.get(index).and_then(Option::as_ref)))
                .collect(),
            missed: state.missed.clone(),
            requested: self
                .wanted
                .requests
                .as_ref()
                .map(|_| state.requesting.requested()),
            withdrawn: state.withdrawn.places(),
            ..Harvested::default()
        };
        let Some(control_page) = &state.control_page else {
            return harvested;
        };
        let word = |offset: usize| control_page.word64(offset).load(Ordering::Relaxed);
        harvested.threads = word(offset_of!(ControlPage, adopted));
        harvested.with = Turns {
            count: word(offset_of!(ControlPage, turns_with)),
            cpu_ns: word(offset_of!(ControlPage, cpu_with_ns)),
        };
        harvested.without = Turns {
            count: word(offset_of!(ControlPage, turns_without)),
            cpu_ns: word(offset_of!(ControlPage, cpu_without_ns)),
        };
        harvested.waits = Turns {
            count: word(offset_of!(ControlPage, wait_turns)),
            cpu_ns: word(offset_of!(ControlPage, waited_ns)),
        };
        harvested.steals = word(offset_of!(ControlPage, steals));
        harvested.reclaimed = word(offset_of!(ControlPage, reclaimed));
        harvested.calls = word(offset_of!(ControlPage, calls));
        harvested.interrupted = word(offset_of!(ControlPage, interrupted));
        harvested.overdue = word(offset_of!(ControlPage, overdue));
        harvested.skipped = word(offset_of!(ControlPage, skipped));
        harvested.timed = word(offset_of!(ControlPage, timed));
        harvested.timed_ns = word(offset_of!(ControlPage, timed_ns));
        harvested.longest_ns = word(offset_of!(ControlPage, longest_ns));
        harvested.times =
            control_page.classes(offset_of!(ControlPage, times), TIME_CLASSES, class_begin);
        harvested
    }
}

/// Converts nanoseconds to units of credit.
fn units(ns: f64) -> i32 {
    let units = ns * f64::from(CREDIT_UNITS_PER_NS);
    units.clamp(0.0, f64::from(i32::MAX / 2)) as i32
}

fn parts(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * f64::from(ControlPage::SHARE_WHOLE)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_counted_in_parts() {
        assert_eq!([0.0, 0.5, 1.0, 7.0].map(parts), [0, 512, 1024, 1024]);
    }
}
