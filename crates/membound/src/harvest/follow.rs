//! What is looked at while a harvest runs: how far it has come, the CPU time of scavengers, the
//! slowdown of the command, its requests, and the time until it runs again, which are held to their
//! bounds.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use membound_launch::{Harvested, Remote, RequestDurations};
use membound_types::SlowdownGuard;

use super::guard::{Guard, Limits};
use super::slowdown::Spans;
use super::span::SpanControl;
use super::times;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// Looks between two decisions on the slowdown.
const LOOKS: u32 = 5;
/// Requests of that many times the duration that most do not exceed fit into a phase with scavengers or
/// without: those that do not are in neither.
const REQUESTS_A_PHASE: f64 = 20.0;

/// What was seen last.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) harvested: Harvested,
    /// The same by the looks that it was seen at.
    pub(super) spans: Spans,
    /// CPU time of each scavenger's own thread, in seconds.
    pub(super) own_thread_s: Vec<f64>,
    pub(super) guard: Option<SlowdownGuard>,
}

/// Looks at a session until it is told to end.
#[derive(Debug)]
pub(super) struct Follower {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<Seen>,
}

impl Follower {
    /// Begins.
    pub(super) fn begin(
        remote: Remote,
        pid: u32,
        limits: Limits,
        mut span: Option<SpanControl>,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let mut guard = Guard::new(limits);
            let mut looks = 0_u32;
            loop {
                let over = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                if let Some(harvested) = remote.harvested() {
                    seen.look(harvested, pid);
                }
                looks += 1;
                if let Some(guard) = &mut guard
                    && looks.is_multiple_of(LOOKS)
                    && let Some(share) = guard.decide(&seen.harvested)
                {
                    remote.let_in(share);
                }
                if looks.is_multiple_of(LOOKS)
                    && let Some(p99) = p99_ns(&seen.harvested)
                {
                    remote.lengthen_phases(REQUESTS_A_PHASE * p99);
                }
                if let Some(control) = &mut span
                    && looks.is_multiple_of(LOOKS)
                    && let Some(span_ns) = control.decide(&seen.harvested)
                {
                    remote.set_span(span_ns);
                }
                if over {
                    seen.guard = guard.map(|guard| guard.said());
                    return seen;
                }
            }
        });
        Self { stop, thread }
    }

    /// What was seen.
    pub(super) fn end(self) -> Seen {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

impl Seen {
    /// Why the command was not begun, where its requests could not be told.
    pub(super) fn prevented(&self) -> Option<&str> {
        let requested = self.harvested.requested.as_ref()?;
        let why = requested.refused.as_deref();
        why.filter(|_| requested.prevented)
    }

    fn look(&mut self, harvested: Harvested, pid: u32) {
        self.own_thread_s.resize(harvested.guests.len(), 0.0);
        for (guest, seconds) in harvested.guests.iter().zip(&mut self.own_thread_s) {
            let own = if guest.cpu_ns > 0 {
                Some(guest.cpu_ns as f64 * 1e-9)
            } else {
                thread_cpu_s(pid, guest.thread)
            };
            // One that has ended keeps what it had.
            *seconds = own.unwrap_or(*seconds).max(*seconds);
        }
        self.spans.look(&harvested);
        self.harvested = harvested;
    }
}

/// The duration that 99 in 100 requests so far do not exceed, in nanoseconds: the longer of those with
/// scavengers and without.
fn p99_ns(harvested: &Harvested) -> Option<f64> {
    let requested = harvested.requested.as_ref()?;
    let of = |durations: &RequestDurations| times::quantile(&durations.times, 0.99);
    [&requested.with, &requested.without]
        .into_iter()
        .filter_map(of)
        .reduce(f64::max)
}

/// CPU time of a thread, in seconds, by the kernel's scheduler.
fn thread_cpu_s(pid: u32, thread: u32) -> Option<f64> {
    if thread == 0 {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    let ns: f64 = text.split(' ').next()?.parse().ok()?;
    Some(ns * 1e-9)
}
