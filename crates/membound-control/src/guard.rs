//! Holds the command's slowdown and the 95th percentile of its request durations to their limits, by the
//! share of the time in which scavengers are admitted; for the slowdown, yields are removed first
//! ([`crate::yield_ranking`]). Shares are of 1, durations in nanoseconds.

use membound_types::SlowdownGuard;

use crate::durations;
use crate::observation::Counters;
use crate::slowdown::Span;
use crate::tuning::{
    MAX_ADMITTED_SHARE, MIN_ADMITTED_SHARE, MIN_REQUESTS, TARGET_SHARE_WITHIN_LIMIT,
};
use crate::yield_ranking::{Change, Pace, YieldFigures, Yields};

/// Limits that the user set for the command.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// How much slower the command may become, as a share of its time without scavengers.
    pub max_slowdown: Option<f64>,
    /// Duration that 95 in 100 of its requests must not exceed, in nanoseconds.
    pub slo_p95_ns: Option<f64>,
}

/// Holds the command to its limits.
#[derive(Debug)]
pub(crate) struct Guard {
    slowdown: Option<SlowdownLimit>,
    latency: Option<LatencyLimit>,
    share: f64,
    report: SlowdownGuard,
}

/// Decision of the guard.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Decision {
    /// Share of the time in which scavengers are admitted from now on; `None`: unchanged.
    pub(crate) share: Option<f64>,
    /// Indices of the yields to remove; all others are to be installed. The guard must not decide again before
    /// that is done. `None`: unchanged.
    pub(crate) removed: Option<Vec<usize>>,
}

/// A limit on the slowdown.
#[derive(Debug)]
struct SlowdownLimit {
    most: f64,
    yields: Yields,
    /// Counters at the last decision.
    last: Span,
    target_share: f64,
}

/// A limit on the duration of requests.
#[derive(Debug)]
struct LatencyLimit {
    bound_ns: f64,
    /// Requests with scavengers and without.
    kept: [RequestsWithinLimit; 2],
    target_share: f64,
}

/// Counts the requests that keep to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RequestsWithinLimit {
    /// Requests up to the last decision, and how many of them kept to the limit.
    last: (u64, f64),
    /// Share of the requests between the last two decisions that kept to the limit.
    pub(crate) share: Option<f64>,
}

impl Guard {
    /// The guard of a command with these yields; `None` where there is no limit.
    pub(crate) fn new(limits: Limits, yields: &[YieldFigures]) -> Option<Self> {
        let slowdown = limits.max_slowdown.map(|most| SlowdownLimit {
            most,
            yields: Yields::new(yields),
            last: Span::default(),
            target_share: MAX_ADMITTED_SHARE,
        });
        let latency = limits.slo_p95_ns.map(|bound_ns| LatencyLimit {
            bound_ns,
            kept: [RequestsWithinLimit::default(); 2],
            target_share: MAX_ADMITTED_SHARE,
        });
        (slowdown.is_some() || latency.is_some()).then(|| Self {
            slowdown,
            latency,
            share: MAX_ADMITTED_SHARE,
            report: SlowdownGuard {
                final_share: MAX_ADMITTED_SHARE,
                ..SlowdownGuard::default()
            },
        })
    }

    /// What the guard did, for the report.
    pub(crate) const fn report(&self) -> SlowdownGuard {
        self.report
    }

    /// Ignores the slowdown so far: it was measured with other yields than are installed now.
    pub(crate) fn begin_anew(&mut self, now: &Counters) {
        if let Some(limit) = &mut self.slowdown {
            limit.last = Span::so_far(now);
        }
    }

    /// Ignores all measurements so far in later decisions.
    pub(crate) fn discard_so_far(&mut self, now: &Counters) {
        self.begin_anew(now);
        if let Some(limit) = &mut self.latency {
            limit.discard_so_far(now);
        }
    }

    /// Whether the guard admits scavengers less than the maximum, or has removed yields.
    pub(crate) fn holds_back(&self) -> bool {
        let slowdown = self.slowdown.as_ref();
        self.target_share() < MAX_ADMITTED_SHARE
            || slowdown.is_some_and(|limit| limit.yields.is_any_removed())
    }

    /// Decides from what was measured since the last decision.
    pub(crate) fn decide(&mut self, now: &Counters) -> Decision {
        let by_slowdown = self.slowdown.as_mut().map(|it| it.decide(now));
        let by_latency = self.latency.as_mut().is_some_and(|it| it.decide(now));
        let judged = by_slowdown.unwrap_or_default();
        if !judged.enough && !by_latency {
            return Decision::default();
        }
        self.report.checks += 1;
        match judged.change {
            Some(Change::Removed) => self.report.yields_taken_out += 1,
            Some(Change::Reinstalled) => self.report.yields_put_back += 1,
            None => {}
        }
        let changed = self.slowdown.as_ref().filter(|_| judged.change.is_some());
        Decision {
            removed: changed.map(|limit| limit.yields.removed()),
            share: self.next_share(),
        }
    }

    /// The share that keeps all limits.
    fn target_share(&self) -> f64 {
        let target_shares = [
            self.slowdown.as_ref().map(|it| it.target_share),
            self.latency.as_ref().map(|it| it.target_share),
        ];
        target_shares
            .into_iter()
            .flatten()
            .fold(MAX_ADMITTED_SHARE, f64::min)
    }

    /// The next share, or `None` if it stays as it is.
    fn next_share(&mut self) -> Option<f64> {
        // Half of the way, since the measurement is noisy.
        let share = (self.share + self.target_share()) / 2.0;
        if (share - self.share).abs() < 0.01 {
            return None;
        }
        if share < self.share {
            self.report.steps_out += 1;
        } else {
            self.report.steps_in += 1;
        }
        self.share = share;
        self.report.final_share = share;
        Some(share)
    }
}

/// Result of judging the slowdown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Judged {
    /// Whether there were enough measurements to judge.
    enough: bool,
    /// Change of the installed yields.
    change: Option<Change>,
}

impl SlowdownLimit {
    /// Judges the slowdown since the last decision, if there were enough measurements.
    fn decide(&mut self, now: &Counters) -> Judged {
        let now = Span::so_far(now);
        let span = now.since(self.last);
        let slower = match span.slowdown() {
            Some(slower) => slower,
            // With all yields removed no time slice is left to measure the slowdown, and none costs anything.
            None if self.yields.all_removed() => 0.0,
            None => return Judged::default(),
        };
        self.last = now;
        let pace = Pace {
            slower,
            overhead: self.yields.overhead(span.slices_per_s_without()),
            max_admitted_share: MAX_ADMITTED_SHARE,
        };
        let change = self.yields.judge(pace, self.most);
        // The slowdown over all time is that with scavengers, times the share of the time in which they are
        // admitted.
        let target_share = if slower <= 0.0 {
            MAX_ADMITTED_SHARE
        } else {
            ((self.most - pace.overhead) / slower).clamp(MIN_ADMITTED_SHARE, MAX_ADMITTED_SHARE)
        };
        // Yields are removed before scavengers are admitted less.
        if change.is_none() && !self.yields.may_remove(pace, self.most) {
            self.target_share = target_share;
        } else {
            self.target_share = self.target_share.max(target_share);
        }
        Judged {
            enough: true,
            change,
        }
    }
}

impl LatencyLimit {
    fn discard_so_far(&mut self, now: &Counters) {
        let phases = now.requests.iter().flatten();
        for (kept, durations) in self.kept.iter_mut().zip(phases) {
            kept.discard_so_far(count_within(durations, self.bound_ns));
        }
    }

    /// Decides as [`SlowdownLimit::decide`] does; returns false if there were too few requests.
    ///
    /// Over all time, the share of the requests that keep to the limit is the mean of the shares with and
    /// without scavengers, weighted by the time in which they are admitted.
    fn decide(&mut self, now: &Counters) -> bool {
        let Some(requests) = &now.requests else {
            return false;
        };
        let [with, without] = &mut self.kept;
        let is_new = with.update(count_within(&requests[0], self.bound_ns));
        without.update(count_within(&requests[1], self.bound_ns));
        let Some(kept) = with.share.filter(|_| is_new) else {
            return false;
        };
        self.target_share = match without.share {
            _ if kept >= TARGET_SHARE_WITHIN_LIMIT => MAX_ADMITTED_SHARE,
            None => (self.target_share / 2.0).max(MIN_ADMITTED_SHARE),
            Some(alone) if alone <= TARGET_SHARE_WITHIN_LIMIT => MIN_ADMITTED_SHARE,
            Some(alone) => ((alone - TARGET_SHARE_WITHIN_LIMIT) / (alone - kept))
                .clamp(MIN_ADMITTED_SHARE, MAX_ADMITTED_SHARE),
        };
        true
    }
}

impl RequestsWithinLimit {
    /// Updates the share from the requests since the last update; `now` are the counts so far. Returns false,
    /// and changes nothing, if there were fewer than [`MIN_REQUESTS`].
    pub(crate) fn update(&mut self, now: (u64, f64)) -> bool {
        let requests = now.0.saturating_sub(self.last.0);
        if requests < MIN_REQUESTS {
            return false;
        }
        self.share = Some((now.1 - self.last.1) / requests as f64);
        self.last = now;
        true
    }

    /// Leaves the requests so far out of later shares.
    pub(crate) const fn discard_so_far(&mut self, now: (u64, f64)) {
        self.last = now;
    }
}

/// Number of requests so far, and how many of them kept to the limit.
pub(crate) fn count_within(now: &[(u64, u64, u64)], bound_ns: f64) -> (u64, f64) {
    (
        durations::count(now),
        durations::share_within(now, bound_ns),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scavengers_are_admitted_less_while_it_is_too_slow_and_more_again() {
        let limits = Limits {
            max_slowdown: Some(0.05),
            slo_p95_ns: None,
        };
        let mut guard = Guard::new(limits, &[]).unwrap();
        // Twice as slow while they are admitted: they get a twentieth of the time.
        let mut now = Counters::default();
        let mut share = MAX_ADMITTED_SHARE;
        for _ in 0..20 {
            share = decide(&mut guard, &mut now, 200).share.unwrap_or(share);
        }
        assert!((share - 0.05).abs() < 0.02, "{share}");
        assert!(guard.report.steps_out > 0 && guard.report.steps_in == 0);
        for _ in 0..20 {
            share = decide(&mut guard, &mut now, 100).share.unwrap_or(share);
        }
        assert!(share > 0.9, "{share}");
        assert!(guard.report.steps_in > 0);
        assert_eq!(guard.report.checks, 40);
    }

    /// Decision of a guard where slices take `with_ns` with scavengers and 100 ns without.
    fn decide(guard: &mut Guard, now: &mut Counters, with_ns: u64) -> Decision {
        now.with.count += 10_000;
        now.with.cpu_ns += 10_000 * with_ns;
        now.without.count += 10_000;
        now.without.cpu_ns += 10_000 * 100;
        guard.decide(now)
    }

    #[test]
    fn yields_go_before_scavengers_are_admitted_less_and_come_back_after() {
        let limits = Limits {
            max_slowdown: Some(0.1),
            slo_p95_ns: None,
        };
        let yields = [(0.0, 0.04), (0.3, 0.001)].map(|(gain, hit_cost)| YieldFigures {
            gain,
            hit_cost,
            rate: None,
        });
        let mut guard = Guard::new(limits, &yields).unwrap();
        let mut now = Counters::default();
        // Three judgements in a row are needed.
        for _ in 0..2 {
            assert_eq!(decide(&mut guard, &mut now, 200), Decision::default());
        }
        let decision = decide(&mut guard, &mut now, 200);
        assert_eq!((decision.share, decision.removed), (None, Some(vec![0])));
        // With the other yield it is still too slow: that yield stays, for less of the time.
        guard.begin_anew(&now);
        let mut share = MAX_ADMITTED_SHARE;
        for _ in 0..20 {
            let decision = decide(&mut guard, &mut now, 200);
            assert_eq!(decision.removed, None);
            share = decision.share.unwrap_or(share);
        }
        assert!((share - 0.1).abs() < 0.02, "{share}");
        // Later scavengers slow it down no more.
        let back: Vec<Decision> = (0..20).map(|_| decide(&mut guard, &mut now, 100)).collect();
        let changes = back.iter().filter_map(|it| it.removed.clone());
        assert_eq!(changes.collect::<Vec<_>>(), [vec![0; 0]]);
        assert!(back[0].share > Some(share), "{back:?}");
        let report = guard.report();
        assert_eq!((report.yields_taken_out, report.yields_put_back), (1, 1));
        assert!(report.steps_out > 0 && report.steps_in > 0, "{report:?}");
    }

    #[test]
    fn without_limits_there_is_no_guard() {
        assert!(Guard::new(Limits::default(), &[]).is_none());
    }

    /// Adds 1000 requests, of which `slow` take 2 ms and the rest 10 µs.
    fn more(requests: &mut Vec<(u64, u64, u64)>, slow: u64) {
        for (from, count) in [(10_000, 1000 - slow), (2_000_000, slow)] {
            durations::add(requests, from, count);
        }
    }

    /// The share that a guard settles on where `with` and `without` of 1000 requests take too long.
    fn share_where(guard: &mut Guard, now: &mut Counters, with: u64, without: u64) -> f64 {
        let mut share = guard.share;
        for _ in 0..20 {
            let requests = now.requests.get_or_insert_default();
            more(&mut requests[0], with);
            more(&mut requests[1], without);
            share = guard.decide(now).share.unwrap_or(share);
        }
        share
    }

    #[test]
    fn the_slo_limits_the_95th_percentile_of_requests() {
        let limits = Limits {
            max_slowdown: None,
            slo_p95_ns: Some(1e6),
        };
        let mut guard = Guard::new(limits, &[]).unwrap();
        let mut now = Counters::default();
        assert_eq!(guard.decide(&now), Decision::default());
        // 20 % with and 1 % without: for 4 % together they are admitted for 3 parts of 19.
        let share = share_where(&mut guard, &mut now, 200, 10);
        assert!((share - 3.0 / 19.0).abs() < 0.02, "{share}");
        assert!(guard.report.steps_out > 0 && guard.report.steps_in == 0);
        // Fewer with scavengers than allowed: they are admitted again.
        let share = share_where(&mut guard, &mut now, 40, 10);
        assert!(share > 0.9, "{share}");
        // Too many even without scavengers: nothing helps, and they are hardly admitted.
        let share = share_where(&mut guard, &mut now, 200, 100);
        assert!(share < 0.04, "{share}");
    }

    #[test]
    fn the_narrower_of_two_limits_counts() {
        let limits = Limits {
            max_slowdown: Some(0.5),
            slo_p95_ns: Some(1e6),
        };
        let mut guard = Guard::new(limits, &[]).unwrap();
        let mut now = Counters::default();
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
