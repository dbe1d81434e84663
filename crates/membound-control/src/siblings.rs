//! Whether scavengers may use SMT siblings of the command's hardware threads: they may while the command
//! keeps to its bounds (document 003's SMT); otherwise the kernel schedules them elsewhere.
//!
//! A busy SMT sibling slows the command down all the time, a time slice only for a moment. So siblings are
//! given up first, at once, before scavengers are admitted less ([`crate::guard`]), and are used again last:
//! when nothing else is held back, and after more judgements that find the bounds kept each time.

use crate::guard::{self, Limits, RequestsWithinLimit};
use crate::observation::Counters;
use crate::slowdown::Span;
use crate::tuning::{
    CALM_JUDGEMENTS, MIN_SHARE_WITHIN_LIMIT, SIBLING_RELAPSE_JUDGEMENTS, TOO_SLOW_JUDGEMENTS,
};

/// A bound that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededBound {
    /// More requests took too long than may.
    Requests,
    /// The command was slower than allowed.
    Slowdown,
}

/// State of the harvest at a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HarvestState {
    /// A scavenger is on an SMT sibling.
    pub(crate) uses_siblings: bool,
    /// Scavengers are admitted less than the maximum, or yields are removed.
    pub(crate) holds_back: bool,
}

/// Decides about SMT siblings while the command runs.
#[derive(Debug)]
pub struct SiblingControl {
    limits: Limits,
    /// The bound that was exceeded last, while siblings are given up because of it.
    exceeded: Option<ExceededBound>,
    /// Consecutive judgements since the last change that found the bounds kept.
    kept: u32,
    /// Value of `kept` from which on siblings are used again.
    patience: u32,
    /// Consecutive judgements that found the command too slow.
    slow: u32,
    /// Requests of both phases, with and without scavengers.
    requests: RequestsWithinLimit,
    /// Counters of time slices at the last judgement of the slowdown.
    span: Span,
    changes: u64,
}

impl SiblingControl {
    /// Begins with siblings in use, since no bound was exceeded yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            exceeded: None,
            kept: 0,
            patience: CALM_JUDGEMENTS[0],
            slow: 0,
            requests: RequestsWithinLimit::default(),
            span: Span::default(),
            changes: 0,
        }
    }

    /// Whether scavengers may use SMT siblings.
    pub const fn is_on(&self) -> bool {
        self.exceeded.is_none()
    }

    /// The bound for which they may not.
    pub const fn exceeded(&self) -> Option<ExceededBound> {
        self.exceeded
    }

    /// Whether there is a bound at all.
    pub fn has_limits(&self) -> bool {
        self.limits != Limits::default()
    }

    /// Number of changes so far.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Judges the counters since the last decision, and changes the decision if needed.
    pub(crate) fn decide(&mut self, now: &Counters, state: HarvestState) {
        if self.is_on() && !state.uses_siblings {
            // No scavenger is on a sibling, so none there can be the reason if a bound is exceeded.
            self.begin_anew(now);
            return;
        }
        let exceeded = match self.judge(now) {
            Judged::Nothing => return,
            Judged::Kept => None,
            Judged::Exceeded(exceeded) => Some(exceeded),
        };
        match (exceeded, self.is_on()) {
            (None, true) => self.kept += 1,
            (Some(_), true) => {
                if self.kept < SIBLING_RELAPSE_JUDGEMENTS && self.changes > 0 {
                    self.patience = (2 * self.patience).min(CALM_JUDGEMENTS[1]);
                }
                self.change(exceeded, now);
            }
            (None, false) if !state.holds_back => {
                self.kept += 1;
                if self.kept >= self.patience {
                    self.change(None, now);
                }
            }
            (_, false) => self.kept = 0,
        }
    }

    fn change(&mut self, exceeded: Option<ExceededBound>, now: &Counters) {
        self.exceeded = exceeded;
        self.changes += 1;
        self.begin_anew(now);
    }

    /// Ignores the counters so far: they were measured under another decision.
    fn begin_anew(&mut self, now: &Counters) {
        self.kept = 0;
        self.slow = 0;
        self.requests.discard_so_far(self.requests_so_far(now));
        self.span = Span::so_far(now);
    }

    fn judge(&mut self, now: &Counters) -> Judged {
        let requests = self.judge_requests(now);
        let slowdown = self.judge_slowdown(now);
        match (requests, slowdown) {
            (Some(false), _) => Judged::Exceeded(ExceededBound::Requests),
            (_, Some(false)) => Judged::Exceeded(ExceededBound::Slowdown),
            (None, None) => Judged::Nothing,
            _ => Judged::Kept,
        }
    }

    /// Whether requests kept to their limit; `None` if there were too few.
    fn judge_requests(&mut self, now: &Counters) -> Option<bool> {
        self.limits.slo_p95_ns?;
        let so_far = self.requests_so_far(now);
        let is_new = self.requests.update(so_far);
        self.requests
            .share
            .filter(|_| is_new)
            .map(|share| share >= MIN_SHARE_WITHIN_LIMIT)
    }

    /// Whether the slowdown is within its limit; `None` if there were too few time slices, or too few
    /// consecutive judgements beyond it.
    fn judge_slowdown(&mut self, now: &Counters) -> Option<bool> {
        let most = self.limits.max_slowdown?;
        let now = Span::so_far(now);
        let slower = now.since(self.span).slowdown()?;
        self.span = now;
        if slower <= most {
            self.slow = 0;
            return Some(true);
        }
        self.slow += 1;
        (self.slow >= TOO_SLOW_JUDGEMENTS).then_some(false)
    }

    /// All requests of both phases, and how many of them kept to the limit.
    fn requests_so_far(&self, now: &Counters) -> (u64, f64) {
        let (Some(requests), Some(bound_ns)) = (&now.requests, self.limits.slo_p95_ns) else {
            return (0, 0.0);
        };
        let [with, without] = requests
            .each_ref()
            .map(|durations| guard::count_within(durations, bound_ns));
        (with.0 + without.0, with.1 + without.1)
    }
}

/// Result of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// There was too little to judge.
    Nothing,
    Kept,
    Exceeded(ExceededBound),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durations;
    use crate::observation::Slices;
    use crate::tuning::MIN_REQUESTS;

    const REQUESTS: Limits = Limits {
        max_slowdown: None,
        slo_p95_ns: Some(1000.0),
    };

    const BESIDE: HarvestState = HarvestState {
        uses_siblings: true,
        holds_back: false,
    };

    /// Adds `quick` requests of 500 ns and `slow` of 5 us.
    fn served(so_far: &mut Counters, quick: u64, slow: u64) {
        let [with, without] = so_far.requests.get_or_insert_default();
        durations::add(with, 500, quick);
        durations::add(without, 5000, slow);
    }

    /// Judgements with `slow` in 1000 requests until the decision changes; `None` if it does not within 1000.
    fn until_it_changes(
        control: &mut SiblingControl,
        so_far: &mut Counters,
        slow: u64,
    ) -> Option<u32> {
        let before = control.is_on();
        (1..=1000).find(|_| {
            served(so_far, 1000 - slow, slow);
            control.decide(so_far, BESIDE);
            control.is_on() != before
        })
    }

    #[test]
    fn it_is_given_up_at_once_and_comes_back_later_each_time() {
        let mut control = SiblingControl::new(REQUESTS);
        let mut so_far = Counters::default();
        assert!(control.is_on());
        let mut waited = Vec::new();
        for _ in 0..7 {
            assert_eq!(until_it_changes(&mut control, &mut so_far, 60), Some(1));
            assert_eq!(control.exceeded(), Some(ExceededBound::Requests));
            waited.extend(until_it_changes(&mut control, &mut so_far, 40));
        }
        assert_eq!(waited, [8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(control.changes(), 14);
    }

    #[test]
    fn a_long_success_resets_the_back_off() {
        let mut control = SiblingControl::new(REQUESTS);
        let mut so_far = Counters::default();
        for _ in 0..3 {
            for _ in 0..SIBLING_RELAPSE_JUDGEMENTS {
                served(&mut so_far, 1000, 0);
                control.decide(&so_far, BESIDE);
                assert!(control.is_on());
            }
            assert_eq!(until_it_changes(&mut control, &mut so_far, 60), Some(1));
            assert_eq!(until_it_changes(&mut control, &mut so_far, 0), Some(8));
        }
    }

    #[test]
    fn it_stays_off_while_scavengers_are_held_back() {
        let mut control = SiblingControl::new(REQUESTS);
        let mut so_far = Counters::default();
        assert_eq!(until_it_changes(&mut control, &mut so_far, 500), Some(1));
        for _ in 0..100 {
            served(&mut so_far, 1000, 0);
            let state = HarvestState {
                uses_siblings: false,
                holds_back: true,
            };
            control.decide(&so_far, state);
            assert!(!control.is_on());
        }
        assert_eq!(until_it_changes(&mut control, &mut so_far, 0), Some(8));
    }

    #[test]
    fn siblings_without_scavengers_are_not_blamed() {
        let mut control = SiblingControl::new(REQUESTS);
        let mut so_far = Counters::default();
        for _ in 0..10 {
            served(&mut so_far, 0, 1000);
            let state = HarvestState {
                uses_siblings: false,
                holds_back: false,
            };
            control.decide(&so_far, state);
        }
        assert!(control.is_on());
        // Slow requests from before the change do not count.
        served(&mut so_far, 1000, 0);
        control.decide(&so_far, BESIDE);
        assert!(control.is_on());
    }

    #[test]
    fn few_requests_decide_nothing_and_no_bound_ever_forbids_it() {
        let mut so_far = Counters::default();
        served(&mut so_far, 0, MIN_REQUESTS - 1);
        let mut control = SiblingControl::new(REQUESTS);
        control.decide(&so_far, BESIDE);
        assert!(control.is_on());
        served(&mut so_far, 0, 1);
        control.decide(&so_far, BESIDE);
        assert!(!control.is_on());
        let mut control = SiblingControl::new(Limits::default());
        assert!(!control.has_limits());
        assert_eq!(until_it_changes(&mut control, &mut so_far, 1000), None);
    }

    #[test]
    fn it_is_given_up_where_the_command_is_too_slow_for_long() {
        let mut control = SiblingControl::new(Limits {
            max_slowdown: Some(0.1),
            slo_p95_ns: None,
        });
        let mut so_far = Counters::default();
        let mut add_slices = |each_ns: u64, control: &mut SiblingControl| {
            let add = |slices: &mut Slices, ns: u64| {
                slices.count += 10_000;
                slices.cpu_ns += 10_000 * ns;
            };
            add(&mut so_far.with, each_ns);
            add(&mut so_far.without, 100);
            control.decide(&so_far, BESIDE);
            control.is_on()
        };
        assert!([130, 130, 105, 130, 130].map(|ns| add_slices(ns, &mut control)) == [true; 5]);
        assert!(!add_slices(130, &mut control));
        assert_eq!(control.exceeded(), Some(ExceededBound::Slowdown));
    }
}
