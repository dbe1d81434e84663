//! Holds the command's slowdown, and the 95th percentile of its requests' durations, to their bounds: by
//! the share of the time in which scavengers are let in. Shares are of 1, durations in nanoseconds.

use membound_launch::{Harvested, RequestDurations};
use membound_types::SlowdownGuard;

use super::slowdown::Span;
use super::times;

/// Share of the time in which scavengers are let in unless a bound forbids it: the rest tells how fast
/// the command is without them.
pub(super) const MOST: f64 = 0.95;
/// Share of the time in which they are let in at least: without it nothing would be seen of them.
const LEAST: f64 = 0.02;
/// Share of the requests that are aimed at to keep to their bound: 95 in 100 are to, and what is seen of
/// some hundred is noisy.
const KEPT: f64 = 0.96;
/// Requests that a decision is made on.
const LEAST_REQUESTS: u64 = 100;

/// What is to be held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    /// How much slower the command may become, as a share.
    pub(super) max_slowdown: Option<f64>,
    /// Duration that 95 in 100 of its requests are not to exceed, in nanoseconds.
    pub(super) slo_p95_ns: Option<f64>,
}

/// Holds the command to its limits.
#[derive(Debug)]
pub(super) struct Guard {
    slowdown: Option<SlowdownLimit>,
    latency: Option<LatencyLimit>,
    share: f64,
    said: SlowdownGuard,
}

/// A limit on the slowdown.
#[derive(Debug)]
struct SlowdownLimit {
    most: f64,
    /// What was seen at the last decision.
    last: Span,
    wished: f64,
}

/// A limit on the duration of requests.
#[derive(Debug)]
struct LatencyLimit {
    bound_ns: f64,
    /// With scavengers and without.
    kept: [Kept; 2],
    wished: f64,
}

/// Requests that keep to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Kept {
    /// Requests that were seen at the last decision, and how many of them kept to it.
    last: (u64, f64),
    /// The share that did lately.
    share: Option<f64>,
}

impl Guard {
    /// `None` where there is no limit.
    pub(super) fn new(limits: Limits) -> Option<Self> {
        let slowdown = limits.max_slowdown.map(|most| SlowdownLimit {
            most,
            last: Span::default(),
            wished: MOST,
        });
        let latency = limits.slo_p95_ns.map(|bound_ns| LatencyLimit {
            bound_ns,
            kept: [Kept::default(); 2],
            wished: MOST,
        });
        (slowdown.is_some() || latency.is_some()).then(|| Self {
            slowdown,
            latency,
            share: MOST,
            said: SlowdownGuard {
                final_share: MOST,
                ..SlowdownGuard::default()
            },
        })
    }

    /// What it did.
    pub(super) const fn said(&self) -> SlowdownGuard {
        self.said
    }

    /// A new share, if it is to be another one.
    pub(super) fn decide(&mut self, now: &Harvested) -> Option<f64> {
        let by_slowdown = self.slowdown.as_mut().is_some_and(|it| it.decide(now));
        let by_latency = self.latency.as_mut().is_some_and(|it| it.decide(now));
        if !by_slowdown && !by_latency {
            return None;
        }
        self.said.checks += 1;
        let wishes = [
            self.slowdown.as_ref().map(|it| it.wished),
            self.latency.as_ref().map(|it| it.wished),
        ];
        let share = wishes.into_iter().flatten().fold(MOST, f64::min);
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

impl SlowdownLimit {
    /// Decides anew, where enough was seen for it.
    fn decide(&mut self, now: &Harvested) -> bool {
        let now = Span::so_far(now);
        let Some(slower) = now.since(self.last).slowdown() else {
            return false;
        };
        self.last = now;
        // Over all time the command is slower by the part of it in which they are let in.
        self.wished = if slower <= 0.0 {
            MOST
        } else {
            (self.most / slower).clamp(LEAST, MOST)
        };
        true
    }
}

impl LatencyLimit {
    /// As [`SlowdownLimit::decide`].
    ///
    /// Over all time, the share of the requests that keep to the bound is that with scavengers and
    /// that without, weighted by how much of the time these are let in.
    fn decide(&mut self, now: &Harvested) -> bool {
        let Some(requested) = &now.requested else {
            return false;
        };
        let [with, without] = &mut self.kept;
        let is_new = with.look(&requested.with, self.bound_ns);
        without.look(&requested.without, self.bound_ns);
        let Some(kept) = with.share.filter(|_| is_new) else {
            return false;
        };
        self.wished = match without.share {
            _ if kept >= KEPT => MOST,
            None => (self.wished / 2.0).max(LEAST),
            Some(alone) if alone <= KEPT => LEAST,
            Some(alone) => ((alone - KEPT) / (alone - kept)).clamp(LEAST, MOST),
        };
        true
    }
}

impl Kept {
    /// Looks at the requests since the last time, if they are enough.
    fn look(&mut self, now: &RequestDurations, bound_ns: f64) -> bool {
        let all = now.count();
        let requests = all.saturating_sub(self.last.0);
        if requests < LEAST_REQUESTS {
            return false;
        }
        let kept = times::within(&now.times, bound_ns);
        self.share = Some((kept - self.last.1) / requests as f64);
        self.last = (all, kept);
        true
    }
}

#[cfg(test)]
mod tests {
    use membound_launch::Requested;

    use super::*;

    #[test]
    fn the_guard_lets_in_less_while_it_is_too_slow_and_more_again() {
        let mut guard = Guard::new(Limits {
            max_slowdown: Some(0.05),
            slo_p95_ns: None,
        })
        .unwrap();
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

    #[test]
    fn without_limits_there_is_no_guard() {
        assert!(Guard::new(Limits::default()).is_none());
    }

    /// Requests so far, with scavengers or without: so many of 1000 more take 2 ms and the rest 10 µs.
    fn more(durations: &mut RequestDurations, slow: u64) {
        for (from, count) in [(10_000, 1000 - slow), (2_000_000, slow)] {
            match durations.times.iter_mut().find(|it| it.0 == from) {
                Some((_, _, known)) => *known += count,
                None => durations.times.push((from, from + 1, count)),
            }
        }
    }

    /// The share that a guard comes to where so many of 1000 requests take too long.
    fn share_where(guard: &mut Guard, now: &mut Harvested, with: u64, without: u64) -> f64 {
        let mut share = guard.share;
        for _ in 0..20 {
            let requested = now.requested.get_or_insert_with(Requested::default);
            more(&mut requested.with, with);
            more(&mut requested.without, without);
            share = guard.decide(now).unwrap_or(share);
        }
        share
    }

    #[test]
    fn ninety_five_of_a_hundred_requests_are_held_to_their_bound() {
        let limits = Limits {
            max_slowdown: None,
            slo_p95_ns: Some(1e6),
        };
        let mut guard = Guard::new(limits).unwrap();
        let mut now = Harvested::default();
        assert_eq!(guard.decide(&now), None);
        // 20 % with and 1 % without: for 4 % together they are let in for 3 parts of 19.
        let share = share_where(&mut guard, &mut now, 200, 10);
        assert!((share - 3.0 / 19.0).abs() < 0.02, "{share}");
        assert!(guard.said.steps_out > 0 && guard.said.steps_in == 0);
        // Fewer than that with: they are let in again.
        let share = share_where(&mut guard, &mut now, 40, 10);
        assert!(share > 0.9, "{share}");
        // Too many without: nothing helps, and little is let in.
        let share = share_where(&mut guard, &mut now, 200, 100);
        assert!(share < 0.04, "{share}");
    }

    #[test]
    fn the_narrower_of_two_limits_counts() {
        let limits = Limits {
            max_slowdown: Some(0.5),
            slo_p95_ns: Some(1e6),
        };
        let mut guard = Guard::new(limits).unwrap();
        let mut now = Harvested::default();
        for _ in 0..20 {
            // A tenth slower is allowed.
            now.with.count += 10_000;
            now.with.cpu_ns += 1_100_000;
            now.without.count += 10_000;
            now.without.cpu_ns += 1_000_000;
            share_where(&mut guard, &mut now, 200, 10);
        }
        assert!((guard.share - 3.0 / 19.0).abs() < 0.02, "{}", guard.share);
    }
}
