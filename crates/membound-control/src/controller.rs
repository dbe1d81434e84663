//! All controllers of a harvest, in the order in which they decide.

use membound_types::SlowdownGuard;
use membound_wire::ScavengerPlacement;

use crate::durations;
use crate::guard::{Guard, Limits};
use crate::interleaving::{Interleaving, InterleavingReport};
use crate::observation::{Counters, Observation};
use crate::siblings::{HarvestState, SiblingControl};
use crate::slice_control::{SliceControl, SliceLimits};
use crate::tuning::{MAX_SKIPPED_DECISIONS, MIN_PHASE_LENGTH_PER_P99, POLLS_PER_DECISION};
use crate::yield_ranking::YieldFigures;

/// What the caller changes in the harvest.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Admits scavengers for this share of the time.
    Admit(f64),
    /// Removes the yields with these indices from the command's text, and installs all others. Until that is
    /// done, observations are not settled.
    Remove(Vec<usize>),
    /// Makes phases with and without scavengers at least this long, in nanoseconds.
    LengthenPhases(f64),
    /// Limits time slices.
    Limit(SliceLimits),
    /// Places scavengers, by index.
    Place(Vec<ScavengerPlacement>),
}

/// Controls a harvest.
#[derive(Debug)]
pub struct Controller {
    limits: Limits,
    /// `None` if there are no limits.
    guard: Option<Guard>,
    /// `None` if time slices have no bound.
    slices: Option<SliceControl>,
    /// `None` if SMT siblings of the command are not for scavengers.
    siblings: Option<SiblingControl>,
    /// `None` if there is a command.
    interleaving: Option<Interleaving>,
    places: Vec<ScavengerPlacement>,
    polls: u32,
    /// Decisions skipped so far because a change of yields is pending.
    skipped_decisions: Option<u32>,
}

impl Controller {
    /// Holds a command with these yields, all of them installed, to `limits`.
    pub fn new(limits: Limits, yields: &[YieldFigures]) -> Self {
        Self {
            limits,
            guard: Guard::new(limits, yields),
            slices: None,
            siblings: None,
            interleaving: None,
            places: Vec::new(),
            polls: 0,
            skipped_decisions: None,
        }
    }

    /// The same, and holds time slices to a bound.
    #[must_use]
    pub fn with_slices(self, slices: Option<SliceControl>) -> Self {
        Self { slices, ..self }
    }

    /// The same, and decides whether scavengers may use SMT siblings.
    #[must_use]
    pub fn with_siblings(self, siblings: Option<SiblingControl>) -> Self {
        Self { siblings, ..self }
    }

    /// The same, and decides which scavengers interleave, where there is no command.
    #[must_use]
    pub fn with_interleaving(self, interleaving: Option<Interleaving>) -> Self {
        Self {
            interleaving,
            ..self
        }
    }

    /// Begins anew with the yields of a plan that was adopted: earlier counters were measured without them.
    pub fn adopt(&mut self, yields: &[YieldFigures]) {
        self.guard = Guard::new(self.limits, yields);
    }

    /// Ignores all measurements so far in later decisions of the guard.
    pub fn discard_so_far(&mut self, counters: &Counters) {
        if let Some(guard) = &mut self.guard {
            guard.discard_so_far(counters);
        }
    }

    /// Decides from the observation of a poll, and returns the changes that the caller must make.
    pub fn step(&mut self, observation: &Observation<'_>) -> Vec<Action> {
        self.polls = self.polls.wrapping_add(1);
        let mut actions = Vec::new();
        if self.polls.is_multiple_of(POLLS_PER_DECISION) {
            self.decide(observation, &mut actions);
        }
        actions.extend(self.place(observation).map(Action::Place));
        let slices = self.slices.as_mut();
        let limits = slices.and_then(|it| it.decide(observation.counters));
        actions.extend(limits.map(Action::Limit));
        actions
    }

    fn decide(&mut self, observation: &Observation<'_>, actions: &mut Vec<Action>) {
        let counters = observation.counters;
        let state = HarvestState {
            uses_siblings: observation.uses_siblings,
            holds_back: self.guard.as_ref().is_some_and(Guard::holds_back),
        };
        if let Some(siblings) = &mut self.siblings {
            siblings.decide(counters, state);
        }
        if self.siblings.is_some() && observation.uses_siblings {
            // Such counters do not show how fast the command is without scavengers.
            self.discard_so_far(counters);
        } else {
            self.guard(observation, actions);
        }
        let lengthened = p99_ns(counters).map(|p99| MIN_PHASE_LENGTH_PER_P99 * p99);
        actions.extend(lengthened.map(Action::LengthenPhases));
    }

    /// Lets the guard decide, unless the change that it asked for last is still pending.
    fn guard(&mut self, observation: &Observation<'_>, actions: &mut Vec<Action>) {
        let Some(guard) = &mut self.guard else {
            return;
        };
        if let Some(skipped) = self.skipped_decisions {
            if skipped < MAX_SKIPPED_DECISIONS && !observation.is_settled {
                self.skipped_decisions = Some(skipped + 1);
            } else {
                self.skipped_decisions = None;
                guard.begin_anew(observation.counters);
            }
            return;
        }
        let decision = guard.decide(observation.counters);
        actions.extend(decision.share.map(Action::Admit));
        if let Some(removed) = decision.removed {
            self.skipped_decisions = Some(0);
            actions.push(Action::Remove(removed));
        }
    }

    /// The places of scavengers without a command, if they change.
    fn place(&mut self, observation: &Observation<'_>) -> Option<Vec<ScavengerPlacement>> {
        let interleaving = self.interleaving.as_mut()?;
        let places = interleaving.step(
            observation.now,
            observation.progress,
            observation.processors,
        );
        if places == self.places {
            return None;
        }
        self.places.clone_from(&places);
        Some(places)
    }

    /// Whether polls must be frequent: a trial is under way, or no scavenger has prepared its data.
    pub fn is_watchful(&self) -> bool {
        let interleaving = self.interleaving.as_ref();
        interleaving.is_some_and(Interleaving::is_watchful)
    }

    /// Whether it decides which scavengers interleave.
    pub const fn has_interleaving(&self) -> bool {
        self.interleaving.is_some()
    }

    /// Whether scavengers may use SMT siblings, if they are for scavengers at all.
    pub const fn siblings(&self) -> Option<&SiblingControl> {
        self.siblings.as_ref()
    }

    /// What the guard did, for the report.
    pub fn guard_report(&self) -> Option<SlowdownGuard> {
        self.guard.as_ref().map(Guard::report)
    }

    /// What interleaving gained, for the report.
    pub fn interleaving_report(&self) -> Option<InterleavingReport> {
        self.interleaving.as_ref().map(Interleaving::report)
    }
}

/// The duration that 99 in 100 requests so far do not exceed, in nanoseconds: the longer of those with
/// scavengers and without.
fn p99_ns(counters: &Counters) -> Option<f64> {
    let requests = counters.requests.as_ref()?;
    let of_phases = requests.iter();
    of_phases
        .filter_map(|durations| durations::quantile(durations, 0.99))
        .reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tuning::TOO_SLOW_JUDGEMENTS;

    /// A harvest whose command takes 100 ns a slice, and more with scavengers, as long as its yields stand.
    struct Trace {
        controller: Controller,
        counters: Counters,
        polls: u32,
        share: f64,
        removed: Vec<usize>,
        is_settled: bool,
        uses_siblings: bool,
    }

    impl Trace {
        fn new(controller: Controller) -> Self {
            Self {
                controller,
                counters: Counters::default(),
                polls: 0,
                share: 0.95,
                removed: Vec::new(),
                is_settled: true,
                uses_siblings: false,
            }
        }

        /// Polls until the next decision; slices take `with_ns` with scavengers.
        fn decision(&mut self, with_ns: u64) -> Vec<Action> {
            let mut actions = Vec::new();
            for _ in 0..POLLS_PER_DECISION {
                self.polls += 1;
                self.counters.with.count += 10_000;
                self.counters.with.cpu_ns += 10_000 * with_ns;
                self.counters.without.count += 10_000;
                self.counters.without.cpu_ns += 10_000 * 100;
                actions.extend(self.controller.step(&Observation {
                    now: Duration::from_millis(50) * self.polls,
                    counters: &self.counters,
                    is_settled: self.is_settled,
                    uses_siblings: self.uses_siblings,
                    progress: &[],
                    processors: 1,
                }));
            }
            for action in &actions {
                match action {
                    Action::Admit(share) => self.share = *share,
                    Action::Remove(removed) => self.removed.clone_from(removed),
                    _ => {}
                }
            }
            actions
        }
    }

    const LIMITS: Limits = Limits {
        max_slowdown: Some(0.1),
        slo_p95_ns: None,
    };

    fn yields() -> Vec<YieldFigures> {
        [(0.0, 0.04), (0.3, 0.001)]
            .map(|(gain, hit_cost)| YieldFigures {
                gain,
                hit_cost,
                rate: None,
            })
            .into()
    }

    #[test]
    fn nothing_is_decided_while_yields_change_and_then_only_by_what_comes_after() {
        let mut trace = Trace::new(Controller::new(LIMITS, &yields()));
        for _ in 1..TOO_SLOW_JUDGEMENTS {
            assert_eq!(trace.decision(200), []);
        }
        assert_eq!(trace.decision(200), [Action::Remove(vec![0])]);
        trace.is_settled = false;
        for _ in 0..5 {
            assert_eq!(trace.decision(1000), []);
        }
        trace.is_settled = true;
        // The first decision after the change only takes the counters as its beginning.
        assert_eq!(trace.decision(1000), []);
        for _ in 0..30 {
            trace.decision(200);
        }
        assert!((trace.share - 0.1).abs() < 0.02, "{}", trace.share);
        assert_eq!(trace.removed, [0]);
    }

    #[test]
    fn a_program_that_is_stopped_does_not_end_all_decisions() {
        let mut trace = Trace::new(Controller::new(LIMITS, &yields()));
        for _ in 0..TOO_SLOW_JUDGEMENTS {
            trace.decision(200);
        }
        trace.is_settled = false;
        for _ in 0..=MAX_SKIPPED_DECISIONS {
            assert_eq!(trace.decision(200), []);
        }
        let later: Vec<Action> = (0..5).flat_map(|_| trace.decision(200)).collect();
        assert!(matches!(later[..], [Action::Admit(_), ..]), "{later:?}");
    }

    #[test]
    fn what_siblings_cost_is_not_blamed_on_yields() {
        let siblings = SiblingControl::new(LIMITS);
        let controller = Controller::new(LIMITS, &yields()).with_siblings(Some(siblings));
        let mut trace = Trace::new(controller);
        trace.uses_siblings = true;
        for _ in 0..TOO_SLOW_JUDGEMENTS {
            assert_eq!(trace.decision(200), []);
        }
        let is_on = |trace: &Trace| {
            trace
                .controller
                .siblings()
                .is_some_and(SiblingControl::is_on)
        };
        assert!(!is_on(&trace));
        trace.uses_siblings = false;
        for _ in 1..TOO_SLOW_JUDGEMENTS {
            assert_eq!(trace.decision(200), []);
        }
        assert_eq!(trace.decision(200), [Action::Remove(vec![0])]);
    }

    #[test]
    fn a_plan_that_is_adopted_is_judged_by_what_comes_after() {
        let mut trace = Trace::new(Controller::new(LIMITS, &[]));
        trace.decision(100);
        trace.counters.with.cpu_ns *= 100;
        trace.controller.adopt(&yields());
        trace.controller.discard_so_far(&trace.counters);
        for _ in 0..10 {
            assert_eq!(trace.decision(100), []);
        }
        let report = trace.controller.guard_report().unwrap();
        assert_eq!((report.yields_taken_out, report.steps_out), (0, 0));
    }

    #[test]
    fn phases_are_long_beside_requests() {
        let mut trace = Trace::new(Controller::new(Limits::default(), &[]));
        assert_eq!(trace.decision(100), []);
        trace.counters.requests = Some([vec![(1000, 1010, 100)], vec![(2000, 2010, 100)]]);
        let [Action::LengthenPhases(ns)] = trace.decision(100)[..] else {
            panic!("no phase is lengthened");
        };
        assert!((ns - 20.0 * 2009.9).abs() < 1.0, "{ns}");
    }

    #[test]
    fn scavengers_without_a_command_are_placed_where_they_change() {
        let mut controller = Controller::new(Limits::default(), &[])
            .with_interleaving(Some(Interleaving::default()));
        let mut step = |ms: u64, progress: &[Option<u64>]| {
            controller.step(&Observation {
                now: Duration::from_millis(ms),
                counters: &Counters::default(),
                is_settled: true,
                uses_siblings: false,
                progress,
                processors: 1,
            })
        };
        use ScavengerPlacement::{Held, Own};
        assert_eq!(
            step(10, &[Some(0), Some(0)]),
            [Action::Place(vec![Own, Held])]
        );
        assert_eq!(step(20, &[Some(0), Some(0)]), []);
        assert_eq!(step(30, &[None, Some(0)]), [Action::Place(vec![Held, Own])]);
    }
}
