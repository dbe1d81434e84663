//! Holds the length of time slices to the bound of the command.
//!
//! Plans take the times of blocks from a profile of the scavenger alone, where caches and predictors are its
//! own. In time slices it is slower. The measured durations of slices decide how much of the bound they may
//! use before the first yield at which they end. The part of a slice beyond the load that it hides costs the
//! command time, so at most half of the slices may outlast that load, wherever the bound lies.
//!
//! A scavenger that misses itself has a slice that lasts until its own data have arrived, wherever it ends.
//! Where too many slices exceed the bound for this reason, a scavenger skips slices after it has left at a
//! load, and its data arrive while the command runs.

use crate::durations;
use crate::observation::Counters;
use crate::tuning::{
    DECISIONS_BEFORE_LENGTHENING, DECISIONS_PER_PROBE, FIRST_BACK_OFF_PROBES, LENGTHENING_STEPS,
    MAX_BACK_OFF_PROBES, MAX_EXTRA_EXCESS_SHARE, MAX_LONG_SHARE, MAX_OVERLONG_SHARE,
    MAX_POLLS_PER_DECISION, MIN_GAIN_OF_SKIP, MIN_GAIN_OF_SKIP_IN_ALL, MIN_SHARE_TO_LENGTHEN,
    MIN_SPAN_NS, MIN_TIMED_SLICES, SHARE_NOISE, STANDARD_ERRORS, SUFFICIENT_TIMED_SLICES,
    TARGET_SHARE_WITHIN_BOUND,
};

/// Limits of time slices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SliceLimits {
    /// Time until the first yield at which a slice ends, in nanoseconds.
    pub span_ns: f64,
    /// Slices that a scavenger skips after a miss of its own.
    pub skips: u32,
}

/// Another number of skips on trial, and the share of the slices that kept to the bound before it.
#[derive(Clone, Copy, Debug)]
enum Trial {
    More(f64),
    Fewer(f64),
}

/// Finds the span and the skips with which time slices keep to the bound and to the load that they hide.
#[derive(Debug)]
pub struct SliceControl {
    bound_ns: f64,
    /// Duration of a load that a slice hides, in nanoseconds.
    hidden_ns: f64,
    max_ns: f64,
    span_ns: f64,
    /// True while slices end at the first yield, to probe which share keeps to the bound at best.
    probing: bool,
    /// Share of the slices that kept to the bound in the latest probes.
    best_share: Option<f64>,
    /// Slices that are skipped after a miss, and their maximum.
    skips: u32,
    max_skips: u32,
    trial: Option<Trial>,
    /// Probes until another trial may begin, and the wait after the next trial that fails.
    rest: u32,
    next_rest: u32,
    /// Decisions so far, probes excluded.
    decisions: u32,
    /// The last span that kept to the bound, in nanoseconds.
    kept_ns: f64,
    /// Decisions until a longer span is tried.
    patience: u32,
    /// Slices up to the last decision.
    last: SliceCounts,
    /// Polls since the last decision.
    polls: u32,
}

/// Numbers of time slices that were timed and that were short enough.
#[derive(Clone, Copy, Debug, Default)]
struct SliceCounts {
    timed: u64,
    /// Slices that kept to the bound.
    kept: f64,
    /// Slices that were no longer than the load that they hid.
    hidden: f64,
}

impl SliceControl {
    /// Begins with [`crate::FIRST_SPAN_NS`], where loads take `hidden_ns`; `max_ns` is never exceeded.
    pub fn new(bound_ns: f64, hidden_ns: f64, max_ns: f64) -> Self {
        Self {
            bound_ns,
            hidden_ns,
            max_ns,
            span_ns: max_ns / 4.0,
            probing: true,
            best_share: None,
            skips: 0,
            max_skips: 0,
            trial: None,
            rest: 0,
            next_rest: FIRST_BACK_OFF_PROBES,
            decisions: 0,
            kept_ns: max_ns / 4.0,
            patience: 0,
            last: SliceCounts::default(),
            polls: 0,
        }
    }

    /// The same control, with scavengers that skip at most `max_skips` slices after a miss.
    #[must_use]
    pub fn skipping(self, max_skips: u32) -> Self {
        Self { max_skips, ..self }
    }

    /// New limits for time slices, or `None` if they stay as they are.
    pub fn decide(&mut self, now: &Counters) -> Option<SliceLimits> {
        let so_far = SliceCounts {
            timed: durations::count(&now.slices),
            kept: durations::share_within(&now.slices, self.bound_ns),
            hidden: durations::share_within(&now.slices, self.hidden_ns),
        };
        let slices = so_far.timed.saturating_sub(self.last.timed);
        if slices < MIN_TIMED_SLICES {
            return None;
        }
        let share = (so_far.kept - self.last.kept) / slices as f64;
        let long = 1.0 - (so_far.hidden - self.last.hidden) / slices as f64;
        self.polls += 1;
        if slices < SUFFICIENT_TIMED_SLICES
            && self.polls < MAX_POLLS_PER_DECISION
            && self.may_be_chance(share, slices)
        {
            return None;
        }
        self.last = so_far;
        self.polls = 0;
        let was = self.present();
        if self.probing {
            let best_share = self
                .best_share
                .map_or(share, |best_share| (best_share + share) / 2.0);
            self.best_share = Some(best_share);
            self.probing = self.skip(best_share);
        } else {
            self.span_ns = self.next_span_ns(share, long);
            self.decisions += 1;
            self.probing = self.decisions.is_multiple_of(DECISIONS_PER_PROBE);
        }
        let wanted = self.present();
        (wanted != was).then_some(wanted)
    }

    fn present(&self) -> SliceLimits {
        SliceLimits {
            span_ns: if self.probing { 0.0 } else { self.span_ns },
            skips: self.skips,
        }
    }

    /// Begins or judges a trial of another number of skips; `share` is the share of the shortest slices that
    /// keep to the bound. Returns whether the shortest slices are probed once more.
    fn skip(&mut self, share: f64) -> bool {
        let is_kept = share >= TARGET_SHARE_WITHIN_BOUND;
        match self.trial.take() {
            Some(Trial::More(before)) if share < before + min_gain_of_skip(before) => {
                return self.skip_as_before(self.skips - 1, before);
            }
            Some(Trial::Fewer(before)) if !is_kept => {
                return self.skip_as_before(self.skips + 1, before);
            }
            Some(Trial::More(_)) if is_kept => self.rest = self.next_rest,
            Some(_) | None => self.rest = self.rest.saturating_sub(1),
        }
        if self.rest > 0 {
            return false;
        }
        if !is_kept && self.skips < self.max_skips {
            self.trial = Some(Trial::More(share));
            self.skips += 1;
        } else if is_kept && self.skips > 0 {
            self.trial = Some(Trial::Fewer(share));
            self.skips -= 1;
        } else {
            return false;
        }
        // The share that was measured so far is of slices with another number of skips.
        self.best_share = None;
        true
    }

    /// Ends a trial that failed: goes back to `skips`, and waits longer before the next trial.
    fn skip_as_before(&mut self, skips: u32, share: f64) -> bool {
        self.skips = skips;
        self.best_share = Some(share);
        self.rest = self.next_rest;
        self.next_rest = (2 * self.next_rest).min(MAX_BACK_OFF_PROBES);
        false
    }

    /// Whether as many slices again could move the share to the other side of its target by chance.
    fn may_be_chance(&self, share: f64, slices: u64) -> bool {
        let slices = slices as f64;
        // As if one slice more kept to the bound and one more did not: otherwise shares of 0 and 1 would have
        // no error.
        let mended = (share * slices + 1.0) / (slices + 2.0);
        let error = (mended * (1.0 - mended) / slices).sqrt();
        // The share of the shortest slices is the reference for longer spans, so it is measured to within
        // `SHARE_NOISE`.
        let away = if self.probing {
            SHARE_NOISE
        } else {
            (share - Self::target(self.max_share())).abs()
        };
        away < STANDARD_ERRORS * error
    }

    /// The largest share of slices that can keep to the bound.
    fn max_share(&self) -> f64 {
        self.best_share.unwrap_or(1.0)
    }

    /// The share of slices that must keep to the bound if `best` can at most.
    fn target(best: f64) -> f64 {
        best.min(TARGET_SHARE_WITHIN_BOUND)
            - (TARGET_SHARE_WITHIN_BOUND - best).clamp(0.0, MAX_EXTRA_EXCESS_SHARE)
    }

    /// The next span in nanoseconds, given the share of the slices that kept to the bound and the share that
    /// lasted longer than the load that they hide.
    fn next_span_ns(&mut self, share: f64, long: f64) -> f64 {
        let best = self.max_share();
        if best < MIN_SHARE_TO_LENGTHEN {
            return 0.0;
        }
        let target = Self::target(best);
        let beyond = (best - target).max(SHARE_NOISE);
        let wanted = if share >= target && long > MAX_OVERLONG_SHARE {
            self.patience = DECISIONS_BEFORE_LENGTHENING;
            self.span_ns * 0.8
        } else if share >= target {
            self.kept_ns = self.span_ns;
            self.patience = self.patience.saturating_sub(1);
            let mut longer = LENGTHENING_STEPS.iter();
            let longer = longer.find(|(part, _)| share > target + part * beyond);
            match longer {
                Some((_, times)) if long <= MAX_LONG_SHARE && self.patience == 0 => {
                    (self.span_ns * times).max(MIN_SPAN_NS)
                }
                _ => self.span_ns,
            }
        } else {
            self.patience = DECISIONS_BEFORE_LENGTHENING;
            if self.span_ns > self.kept_ns {
                self.kept_ns
            } else if share < target - 9.0 * beyond {
                self.span_ns * 0.5
            } else {
                self.span_ns * 0.8
            }
        };
        if wanted < MIN_SPAN_NS {
            0.0
        } else {
            wanted.min(self.max_ns)
        }
    }
}

/// By how much one more skip must raise the share that keeps to the bound.
fn min_gain_of_skip(share: f64) -> f64 {
    ((TARGET_SHARE_WITHIN_BOUND - share) * MIN_GAIN_OF_SKIP).max(MIN_GAIN_OF_SKIP_IN_ALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SliceLimits {
        /// The limits that a control begins with.
        const FIRST: Self = Self {
            span_ns: crate::FIRST_SPAN_NS,
            skips: 0,
        };
    }

    /// The numbers of skips that the control asks for, where `late` of 1000 slices exceed the bound for a
    /// given number.
    fn skipping(
        control: &mut SliceControl,
        so_far: &mut Counters,
        polls: u32,
        late: impl Fn(u32) -> u64,
    ) -> Vec<u32> {
        let mut skips = Vec::new();
        for _ in 0..polls {
            let late = 10 * late(control.skips);
            durations::add(&mut so_far.slices, 60, 10_000 - late);
            durations::add(&mut so_far.slices, 400, late);
            control.decide(so_far);
            skips.push(control.skips);
        }
        skips
    }

    #[test]
    fn slices_are_skipped_if_the_scavengers_own_misses_make_them_late() {
        let mut control = SliceControl::new(200.0, 200.0, 150.0).skipping(3);
        let mut so_far = Counters::default();
        let late = |skips| [130, 30, 4, 4][skips as usize];
        let skips = skipping(&mut control, &mut so_far, 40, late);
        assert_eq!(skips[..3], [1, 2, 2]);
        assert_eq!(control.skips, 2, "{skips:?}");
        assert!(control.span_ns > 30.0, "{control:?}");
        // Fewer skips are tried at times, and less often after each failure.
        let skips = skipping(&mut control, &mut so_far, 2000, late);
        let fewer = skips.iter().filter(|skips| **skips < 2).count();
        assert!((1..=8).contains(&fewer), "{fewer}");
        // When few slices are late, no skip remains.
        let skips = skipping(&mut control, &mut so_far, 2000, |_| 3);
        assert_eq!(*skips.last().unwrap(), 0);
    }

    #[test]
    fn no_slices_are_skipped_without_a_benefit() {
        let mut control = SliceControl::new(200.0, 200.0, 150.0).skipping(3);
        let mut so_far = Counters::default();
        let skips = skipping(&mut control, &mut so_far, 2000, |_| 20);
        let skipping = skips.iter().filter(|skips| **skips > 0).count();
        assert!((1..=8).contains(&skipping), "{skipping}");
        assert_eq!(control.skips, 0);
    }

    /// Slices last 60 ns and 1.5 times the span, one in a thousand much longer.
    fn timed(so_far: &mut Counters, span_ns: f64) {
        let ns = (60.0 + 1.5 * span_ns) as u64;
        for (from, count) in [(ns, 999), (5000, 1)] {
            durations::add(&mut so_far.slices, from, count);
        }
    }

    #[test]
    fn slices_converge_to_their_bound() {
        let mut control = SliceControl::new(200.0, 200.0, 150.0);
        let mut so_far = Counters::default();
        let mut wanted = SliceLimits::FIRST;
        for _ in 0..60 {
            timed(&mut so_far, wanted.span_ns);
            wanted = control.decide(&so_far).unwrap_or(wanted);
        }
        let lasts = 60.0 + 1.5 * wanted.span_ns;
        assert!((150.0..=215.0).contains(&lasts), "{wanted:?} {lasts}");
        // Too few slices for a decision.
        assert_eq!(control.decide(&so_far), None);
    }

    #[test]
    fn slices_converge_to_the_latency_they_hide() {
        // Slices of 20 ns and three times the span, of which four in ten are half as long.
        for (began_ns, hidden_ns) in [(180.0, 150.0), (20.0, 150.0)] {
            let mut control = SliceControl::new(1000.0, hidden_ns, 180.0);
            control.span_ns = began_ns;
            let mut so_far = Counters::default();
            let mut wanted = SliceLimits::FIRST;
            for _ in 0..60 {
                let ns = 3.0_f64.mul_add(wanted.span_ns, 20.0) as u64;
                durations::add(&mut so_far.slices, ns, 600);
                durations::add(&mut so_far.slices, ns / 2, 400);
                wanted = control.decide(&so_far).unwrap_or(wanted);
            }
            let lasts_ns = 3.0_f64.mul_add(control.kept_ns, 20.0);
            assert!((100.0..=150.0).contains(&lasts_ns), "{control:?}");
            assert!(control.span_ns < 1.3 * control.kept_ns, "{control:?}");
        }
    }

    #[test]
    fn a_few_late_slices_do_not_shorten_the_span() {
        // Two in a hundred are late regardless of the span; among each 250 that are timed up to nine are late.
        let mut control = SliceControl::new(200.0, 200.0, 150.0);
        let mut so_far = Counters::default();
        let mut wanted = SliceLimits::FIRST;
        let mut shortest = f64::INFINITY;
        for (look, late) in [1, 9, 5, 2, 8, 5, 6, 4]
            .into_iter()
            .cycle()
            .take(800)
            .enumerate()
        {
            durations::add(
                &mut so_far.slices,
                60 + wanted.span_ns as u64 / 2,
                250 - late,
            );
            durations::add(&mut so_far.slices, 400, late);
            wanted = control.decide(&so_far).unwrap_or(wanted);
            if look > 400 && !control.probing {
                shortest = shortest.min(control.span_ns);
            }
        }
        assert!(shortest > 60.0, "{control:?}");
    }

    #[test]
    fn a_span_that_was_too_long_is_seldom_tried_again() {
        let mut control = SliceControl::new(200.0, 200.0, 150.0);
        let mut so_far = Counters::default();
        let mut wanted = SliceLimits::FIRST;
        let mut too_long = 0;
        for _ in 0..60 {
            // Up to 60 ns nearly all slices keep to the bound; beyond, one in ten does not.
            let late = if wanted.span_ns > 60.0 { 100 } else { 1 };
            durations::add(&mut so_far.slices, 150, 1000 - late);
            durations::add(&mut so_far.slices, 400, late);
            too_long += u32::from(wanted.span_ns > 60.0);
            wanted = control.decide(&so_far).unwrap_or(wanted);
        }
        assert!((1..=6).contains(&too_long), "{too_long}");
        assert!(
            control.kept_ns > 50.0 && control.kept_ns <= 60.0,
            "{control:?}"
        );
    }

    #[test]
    fn unavoidably_long_slices_do_not_shorten_the_others() {
        let mut control = SliceControl::new(200.0, 200.0, 150.0);
        let mut so_far = Counters::default();
        let mut wanted = SliceLimits::FIRST;
        // One in twenty is cold, and lasts longer than the bound regardless of the span.
        for _ in 0..60 {
            let ns = (60.0 + 0.5 * wanted.span_ns) as u64;
            for (from, count) in [(ns, 950), (400, 50)] {
                durations::add(&mut so_far.slices, from, count);
            }
            wanted = control.decide(&so_far).unwrap_or(wanted);
        }
        assert!(control.span_ns > 30.0, "{control:?}");
    }

    #[test]
    fn slices_end_at_the_first_yield_if_one_segment_exceeds_the_bound() {
        let mut control = SliceControl::new(50.0, 50.0, 25.0);
        let mut so_far = Counters::default();
        let mut wanted = SliceLimits::FIRST;
        for _ in 0..20 {
            timed(&mut so_far, wanted.span_ns);
            wanted = control.decide(&so_far).unwrap_or(wanted);
        }
        assert!(wanted.span_ns < 1e-9, "{wanted:?}");
    }
}
