//! What is looked at while a harvest runs: how far it has come, the CPU time of scavengers, the
//! slowdown of the command and the time until it runs again, which are held to their bounds.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use membound_launch::{Harvested, Remote};
use membound_types::SlowdownGuard;

use super::slowdown::{Span, Spans};
use super::span::SpanControl;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(50);
/// Looks between two decisions on the slowdown.
const LOOKS: u32 = 5;
/// Share of the time in which scavengers are let in unless the slowdown forbids it: the rest tells
/// how fast the command is without them.
pub(super) const MOST: f64 = 0.95;

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
    /// Begins; `max_slowdown` is a share.
    pub(super) fn begin(
        remote: Remote,
        pid: u32,
        max_slowdown: Option<f64>,
        mut span: Option<SpanControl>,
    ) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let mut guard = max_slowdown.map(Guard::new);
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
                if let Some(control) = &mut span
                    && looks.is_multiple_of(LOOKS)
                    && let Some(span_ns) = control.decide(&seen.harvested)
                {
                    remote.set_span(span_ns);
                }
                if over {
                    seen.guard = guard.map(|guard| guard.said);
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

/// CPU time of a thread, in seconds, by the kernel's scheduler.
fn thread_cpu_s(pid: u32, thread: u32) -> Option<f64> {
    if thread == 0 {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    let ns: f64 = text.split(' ').next()?.parse().ok()?;
    Some(ns * 1e-9)
}

/// Holds the slowdown to a bound, by the share of the time in which scavengers are let in.
#[derive(Debug)]
struct Guard {
    most: f64,
    share: f64,
    said: SlowdownGuard,
    /// What was seen at the last decision.
    last: Span,
}

impl Guard {
    fn new(most: f64) -> Self {
        Self {
            most,
            share: MOST,
            said: SlowdownGuard {
                final_share: MOST,
                ..SlowdownGuard::default()
            },
            last: Span::default(),
        }
    }

    /// A new share, if it is to be another one.
    fn decide(&mut self, now: &Harvested) -> Option<f64> {
        let now = Span::so_far(now);
        let slower = now.since(self.last).slowdown()?;
        self.last = now;
        self.said.checks += 1;
        // Over all time the command is slower by the part of it in which they are let in.
        let share = if slower <= 0.0 {
            MOST
        } else {
            (self.most / slower).clamp(LEAST, MOST)
        };
        // Half of the way: what was seen is noisy.
        let share = (self.share + share) / 2.0;
        if (share - self.share).abs() < 0.01 {
            return None;
        }
        if share < self.share {
            self.said.steps_out += 1;
        } else {
            self.said.steps_in += 1;
        }
        self.share = share;
        self.said.final_share = share;
        Some(share)
    }
}

/// Share of the time in which they are let in at least: without it nothing would be seen of them.
const LEAST: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_lets_in_less_while_it_is_too_slow_and_more_again() {
        let mut guard = Guard::new(0.05);
        // Twice as slow while they are let in: a twentieth of the time is theirs.
        let mut now = Harvested::default();
        let mut share = MOST;
        for _ in 0..20 {
            now.with.count += 10_000;
            now.with.cpu_ns += 2_000_000;
            now.without.count += 10_000;
            now.without.cpu_ns += 1_000_000;
            share = guard.decide(&now).unwrap_or(share);
        }
        assert!((share - 0.05).abs() < 0.02, "{share}");
        assert!(guard.said.steps_out > 0 && guard.said.steps_in == 0);
        for _ in 0..20 {
            now.with.count += 10_000;
            now.with.cpu_ns += 1_000_000;
            now.without.count += 10_000;
            now.without.cpu_ns += 1_000_000;
            share = guard.decide(&now).unwrap_or(share);
        }
        assert!(share > 0.9, "{share}");
        assert!(guard.said.steps_in > 0);
        assert_eq!(guard.said.checks, 40);
    }
}
