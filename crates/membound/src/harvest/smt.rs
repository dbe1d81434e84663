//! Whether scavengers are to have hardware threads beside the command's: document 003's SMT while the
//! command keeps to its bounds, and the kernel's scheduling otherwise.
//!
//! A hardware thread beside the command's slows it down all the time, where turns do so for moments.
//! So that is given up first, at once, before scavengers are let in less ([`super::guard`]), and comes
//! back last: when nothing else is held back, after more and more judgements that find the bounds kept.

use membound_launch::Harvested;

use super::guard::{self, Kept, Limits};
use super::slowdown::Span;

/// Share of the requests that are to keep to their bound.
const KEPT: f64 = 0.95;
/// Judgements in a row by which the command is too slow before that is believed: one is noisy.
const TOO_SLOW: u32 = 3;
/// Judgements in a row that find the bounds kept before scavengers have hardware threads again, at
/// first; each time that these had to be given up soon, it is twice as many, up to the second number.
const CALM: [u32; 2] = [8, 256];
/// Judgements in which it is soon.
const SOON: u32 = 32;

/// A bound that was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missed {
    /// Requests took too long.
    Requests,
    /// The command was too slow.
    Slowdown,
}

/// How things stand when it is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Scavengers have hardware threads beside the command's.
    pub(super) has_beside: bool,
    /// Scavengers are let in less than they might be, or yields are out of the command's text.
    pub(super) holds_back: bool,
}

/// Decides while the command runs.
#[derive(Debug)]
pub(super) struct Control {
    limits: Limits,
    /// The bound that was missed last, where scavengers have none of these hardware threads for it.
    missed: Option<Missed>,
    /// Judgements in a row that found the bounds kept since the last change.
    kept: u32,
    /// Those after which scavengers have hardware threads again.
    patience: u32,
    /// Judgements in a row by which the command was too slow.
    slow: u32,
    /// Requests, in whichever phase.
    requests: Kept,
    /// What was seen of turns then.
    span: Span,
    changes: u64,
}

impl Control {
    /// Begins with scavengers beside the command: no bound was missed yet.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            missed: None,
            kept: 0,
            patience: CALM[0],
            slow: 0,
            requests: Kept::default(),
            span: Span::default(),
            changes: 0,
        }
    }

    /// Whether scavengers are to have hardware threads beside the command's.
    pub(super) const fn is_on(&self) -> bool {
        self.missed.is_none()
    }

    /// The bound for which they are not to.
    pub(super) const fn missed(&self) -> Option<Missed> {
        self.missed
    }

    /// Whether anything is held to a bound.
    pub(super) fn has_limits(&self) -> bool {
        self.limits != Limits::default()
    }

    /// Times that it decided otherwise.
    pub(super) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Judges what was seen since the last time.
    pub(super) fn decide(&mut self, now: &Harvested, standing: Standing) {
        if self.is_on() && !standing.has_beside {
            // Whatever is missed, nobody beside the command is to blame.
            self.begin_anew(now);
            return;
        }
        let missed = match self.judge(now) {
            Judged::Nothing => return,
            Judged::Kept => None,
            Judged::Missed(missed) => Some(missed),
        };
        match (missed, self.is_on()) {
            (None, true) => self.kept += 1,
            (Some(_), true) => {
                if self.kept < SOON && self.changes > 0 {
                    self.patience = (2 * self.patience).min(CALM[1]);
                }
                self.change(missed, now);
            }
            (None, false) if !standing.holds_back => {
                self.kept += 1;
                if self.kept >= self.patience {
                    self.change(None, now);
                }
            }
            (_, false) => self.kept = 0,
        }
    }

    fn change(&mut self, missed: Option<Missed>, now: &Harvested) {
        self.missed = missed;
        self.changes += 1;
        self.begin_anew(now);
    }

    /// What was seen so far says nothing of what comes.
    fn begin_anew(&mut self, now: &Harvested) {
        self.kept = 0;
        self.slow = 0;
        self.requests.pass_over(self.requests_so_far(now));
        self.span = Span::so_far(now);
    }

    fn judge(&mut self, now: &Harvested) -> Judged {
        let requests = self.judge_requests(now);
        let slowdown = self.judge_slowdown(now);
        match (requests, slowdown) {
            (Some(false), _) => Judged::Missed(Missed::Requests),
            (_, Some(false)) => Judged::Missed(Missed::Slowdown),
            (None, None) => Judged::Nothing,
            _ => Judged::Kept,
        }
    }

    /// Whether requests kept to their bound; `None` where too few came.
    fn judge_requests(&mut self, now: &Harvested) -> Option<bool> {
        self.limits.slo_p95_ns?;
        let so_far = self.requests_so_far(now);
        let is_new = self.requests.look(so_far);
        self.requests
            .share
            .filter(|_| is_new)
            .map(|share| share >= KEPT)
    }

    /// Whether the command is no slower than it may be; `None` where too few turns tell, or it is not
    /// sure yet.
    fn judge_slowdown(&mut self, now: &Harvested) -> Option<bool> {
        let most = self.limits.max_slowdown?;
        let now = Span::so_far(now);
        let slower = now.since(self.span).slowdown()?;
        self.span = now;
        if slower <= most {
            self.slow = 0;
            return Some(true);
        }
        self.slow += 1;
        (self.slow >= TOO_SLOW).then_some(false)
    }

    /// All requests, in whichever phase, and those of them that kept to the bound.
    fn requests_so_far(&self, now: &Harvested) -> (u64, f64) {
        let (Some(requested), Some(bound_ns)) = (&now.requested, self.limits.slo_p95_ns) else {
            return (0, 0.0);
        };
        let [with, without] =
            [&requested.with, &requested.without].map(|phase| guard::seen(phase, bound_ns));
        (with.0 + without.0, with.1 + without.1)
    }
}

/// What came of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// Too little was seen.
    Nothing,
    Kept,
    Missed(Missed),
}

#[cfg(test)]
mod tests {
    use membound_launch::{Requested, Turns};

    use super::*;
    use crate::harvest::times;

    const REQUESTS: Limits = Limits {
        max_slowdown: None,
        slo_p95_ns: Some(1000.0),
    };

    const BESIDE: Standing = Standing {
        has_beside: true,
        holds_back: false,
    };

    /// Requests of 500 ns come, and so many of 5 us.
    fn served(so_far: &mut Harvested, quick: u64, slow: u64) {
        let requested = so_far.requested.get_or_insert_with(Requested::default);
        times::add(&mut requested.with.times, 500, quick);
        times::add(&mut requested.without.times, 5000, slow);
    }

    /// Judgements of `slow` in 1000 until it decides otherwise; `None`: it does not in 1000.
    fn until_it_changes(control: &mut Control, so_far: &mut Harvested, slow: u64) -> Option<u32> {
        let before = control.is_on();
        (1..=1000).find(|_| {
            served(so_far, 1000 - slow, slow);
            control.decide(so_far, BESIDE);
            control.is_on() != before
        })
    }

    #[test]
    fn it_is_given_up_at_once_and_comes_back_later_each_time() {
        let mut control = Control::new(REQUESTS);
        let mut so_far = Harvested::default();
        assert!(control.is_on());
        let mut waited = Vec::new();
        for _ in 0..7 {
            assert_eq!(until_it_changes(&mut control, &mut so_far, 60), Some(1));
            assert_eq!(control.missed(), Some(Missed::Requests));
            waited.extend(until_it_changes(&mut control, &mut so_far, 40));
        }
        assert_eq!(waited, [8, 16, 32, 64, 128, 256, 256]);
        assert_eq!(control.changes(), 14);
    }

    #[test]
    fn what_lasted_is_not_held_against_it() {
        let mut control = Control::new(REQUESTS);
        let mut so_far = Harvested::default();
        for _ in 0..3 {
            for _ in 0..SOON {
                served(&mut so_far, 1000, 0);
                control.decide(&so_far, BESIDE);
                assert!(control.is_on());
            }
            assert_eq!(until_it_changes(&mut control, &mut so_far, 60), Some(1));
            assert_eq!(until_it_changes(&mut control, &mut so_far, 0), Some(8));
        }
    }

    #[test]
    fn it_does_not_come_back_while_something_is_held_back() {
        let mut control = Control::new(REQUESTS);
        let mut so_far = Harvested::default();
        assert_eq!(until_it_changes(&mut control, &mut so_far, 500), Some(1));
        for _ in 0..100 {
            served(&mut so_far, 1000, 0);
            let standing = Standing {
                has_beside: false,
                holds_back: true,
            };
            control.decide(&so_far, standing);
            assert!(!control.is_on());
        }
        assert_eq!(until_it_changes(&mut control, &mut so_far, 0), Some(8));
    }

    #[test]
    fn nobody_is_to_blame_who_is_not_there() {
        let mut control = Control::new(REQUESTS);
        let mut so_far = Harvested::default();
        for _ in 0..10 {
            served(&mut so_far, 0, 1000);
            let standing = Standing {
                has_beside: false,
                holds_back: false,
            };
            control.decide(&so_far, standing);
        }
        assert!(control.is_on());
        // What was slow before does not count.
        served(&mut so_far, 1000, 0);
        control.decide(&so_far, BESIDE);
        assert!(control.is_on());
    }

    #[test]
    fn few_requests_decide_nothing_and_no_bound_ever_forbids_it() {
        let mut so_far = Harvested::default();
        served(&mut so_far, 0, guard::LEAST_REQUESTS - 1);
        let mut control = Control::new(REQUESTS);
        control.decide(&so_far, BESIDE);
        assert!(control.is_on());
        served(&mut so_far, 0, 1);
        control.decide(&so_far, BESIDE);
        assert!(!control.is_on());
        let mut control = Control::new(Limits::default());
        assert!(!control.has_limits());
        assert_eq!(until_it_changes(&mut control, &mut so_far, 1000), None);
    }

    #[test]
    fn it_is_given_up_where_the_command_is_too_slow_for_long() {
        let mut control = Control::new(Limits {
            max_slowdown: Some(0.1),
            slo_p95_ns: None,
        });
        let mut so_far = Harvested::default();
        let mut turns = |each_ns: u64, control: &mut Control| {
            let add = |turns: &mut Turns, ns: u64| {
                turns.count += 10_000;
                turns.cpu_ns += 10_000 * ns;
            };
            add(&mut so_far.with, each_ns);
            add(&mut so_far.without, 100);
            control.decide(&so_far, BESIDE);
            control.is_on()
        };
        assert!([130, 130, 105, 130, 130].map(|ns| turns(ns, &mut control)) == [true; 5]);
        assert!(!turns(130, &mut control));
        assert_eq!(control.missed(), Some(Missed::Slowdown));
    }
}
