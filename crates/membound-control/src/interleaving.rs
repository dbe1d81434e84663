//! Harvests without a command: decides which scavengers run when. They interleave where trials measure that
//! this does more work than running them one after another on each processor; otherwise they run one after
//! another.
//!
//! A scavenger's work is measured by its progress, the number of loads with a yield that it executes. In a
//! trial all members interleave for one interval, and then each runs alone for one, as many at a time as
//! there are processors. The rate of each member interleaved is divided by its rate alone; the sum of these
//! ratios per processor is the speedup of interleaving. Where that seems to pay, all interleave for one more
//! interval, and the lower of both rates counts: a program whose progress changes by itself meanwhile would
//! otherwise look like one that gains. Intervals alone cost only what interleaving would have gained meanwhile.
//!
//! A scavenger with little progress still prepares its data. Those scavengers also run one after another, so
//! that they do not share caches with others while sharing gains them nothing.

use std::time::Duration;

use membound_wire::ScavengerPlacement;

use crate::tuning::{
    FIRST_TRIAL_PAUSE, MAX_INTERLEAVED_PER_PROCESSOR, MAX_TRIAL_PAUSE, MIN_LOADS_ALONE,
    MIN_PREPARED_LOADS, MIN_SPEEDUP, SETTLING_TIME, TRIAL_INTERVAL,
};

/// Progress of each scavenger, in loads with a yield; `None` if it has not begun or has ended.
type Progress = [Option<u64>];

/// Results for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InterleavingReport {
    /// Number of trials that ended.
    pub trials: u32,
    /// Speedup in the last trial: work interleaved divided by work one after another.
    pub speedup: Option<f64>,
    /// Time in which scavengers interleaved.
    pub together: Duration,
    /// Time in which they ran one after another.
    pub apart: Duration,
}

/// Part of a trial.
#[derive(Clone, Copy, Debug)]
enum Part {
    Interleaved,
    /// Each member runs alone in turn; the number says how many have done so.
    Alone(usize),
    InterleavedAgain,
}

/// A trial under way.
#[derive(Clone, Debug)]
struct Trial {
    /// Indices of the scavengers that take part.
    members: Vec<usize>,
    part: Part,
    /// When the present interval may begin, and, once it has begun, its start and the progress at that time.
    from: Duration,
    before: Option<(Duration, Vec<Option<u64>>)>,
    /// Loads per second of each member, interleaved and alone.
    interleaved_rates: Vec<Option<f64>>,
    alone_rates: Vec<Option<f64>>,
}

/// Decides where each scavenger runs.
#[derive(Clone, Debug)]
pub struct Interleaving {
    processors: usize,
    trial: Option<Trial>,
    /// Time of the next trial.
    next_trial: Duration,
    pause: Duration,
    pays: bool,
    /// Members that the last decision was made for; empty before the first.
    decided_for: Vec<usize>,
    last: Duration,
    were_together: bool,
    found: InterleavingReport,
}

impl Default for Interleaving {
    /// Begins without a trial.
    fn default() -> Self {
        Self {
            processors: 1,
            trial: None,
            next_trial: Duration::ZERO,
            pause: FIRST_TRIAL_PAUSE,
            pays: false,
            decided_for: Vec::new(),
            last: Duration::ZERO,
            were_together: false,
            found: InterleavingReport::default(),
        }
    }
}

impl Interleaving {
    /// Whether polls must be frequent: a trial is under way, or no scavenger has prepared its data.
    pub fn is_watchful(&self) -> bool {
        self.trial.is_some() || self.decided_for.is_empty()
    }

    /// What was found so far, for the report.
    pub const fn report(&self) -> InterleavingReport {
        self.found
    }

    /// Changes the number of processors, at least 1; a change begins a new trial.
    fn set_processors(&mut self, processors: usize) {
        if processors.max(1) != self.processors {
            self.processors = processors.max(1);
            self.trial = None;
            self.next_trial = self.last;
        }
    }

    /// Decides where each scavenger runs until the next poll. `progress` is that of each scavenger, `processors`
    /// the number that ordinary processes leave to them.
    pub fn step(
        &mut self,
        now: Duration,
        progress: &Progress,
        processors: usize,
    ) -> Vec<ScavengerPlacement> {
        self.set_processors(processors);
        let passed = now.saturating_sub(self.last);
        self.last = now;
        if self.were_together {
            self.found.together += passed;
        } else {
            self.found.apart += passed;
        }
        let places = self.places(now, progress);
        self.were_together = places.contains(&ScavengerPlacement::RunQueues);
        places
    }

    fn places(&mut self, now: Duration, progress: &Progress) -> Vec<ScavengerPlacement> {
        let alive: Vec<usize> = (0..progress.len())
            .filter(|&index| progress[index].is_some())
            .collect();
        let (prepared, prepares): (Vec<usize>, Vec<usize>) = alive
            .iter()
            .partition(|&&index| progress[index].is_some_and(|it| it >= MIN_PREPARED_LOADS));
        let most = MAX_INTERLEAVED_PER_PROCESSOR * self.processors;
        if !prepares.is_empty() && prepared.len() < most {
            self.trial = None;
            let first: Vec<usize> = prepares.into_iter().chain(prepared).collect();
            return placements_alone(progress.len(), &first, self.processors);
        }
        let members: Vec<usize> = prepared.into_iter().take(most).collect();
        if members.len() <= self.processors {
            self.trial = None;
            self.decided_for = members;
            return placements_alone(progress.len(), &alive, self.processors);
        }
        if members != self.decided_for && self.trial.is_none() {
            // The members changed since the last decision.
            self.pause = FIRST_TRIAL_PAUSE;
            self.next_trial = now;
        }
        if let Some(trial) = &mut self.trial {
            if trial.members == members {
                if !trial.advance(now, progress, self.processors) {
                    return trial.places(progress.len(), self.processors);
                }
                let speedup = trial.speedup(self.processors);
                self.conclude(now, speedup);
            }
            self.trial = None;
        }
        if now >= self.next_trial {
            self.decided_for.clone_from(&members);
            let trial = Trial::of(members, now);
            let places = trial.places(progress.len(), self.processors);
            self.trial = Some(trial);
            return places;
        }
        if self.pays {
            placements_together(progress.len(), &members)
        } else {
            placements_alone(progress.len(), &members, self.processors)
        }
    }

    fn conclude(&mut self, now: Duration, speedup: Option<f64>) {
        self.found.trials += 1;
        if let Some(speedup) = speedup {
            self.found.speedup = Some(speedup);
            let pays = speedup >= MIN_SPEEDUP;
            self.pause = if pays == self.pays {
                (self.pause * 2).min(MAX_TRIAL_PAUSE)
            } else {
                FIRST_TRIAL_PAUSE
            };
            self.pays = pays;
        }
        self.next_trial = now + self.pause;
    }
}

impl Trial {
    fn of(members: Vec<usize>, now: Duration) -> Self {
        Self {
            interleaved_rates: vec![None; members.len()],
            alone_rates: vec![None; members.len()],
            members,
            part: Part::Interleaved,
            from: now + SETTLING_TIME,
            before: None,
        }
    }

    /// Takes a poll; returns whether the trial is over.
    fn advance(&mut self, now: Duration, progress: &Progress, processors: usize) -> bool {
        let Some((since, before)) = &self.before else {
            if now >= self.from {
                self.before = Some((now, progress.to_vec()));
            }
            return false;
        };
        let lasted = now.saturating_sub(*since);
        if lasted < TRIAL_INTERVAL {
            return false;
        }
        let rate = |index: usize| {
            let loads = progress[index]?.saturating_sub(before[index]?);
            Some(loads as f64 / lasted.as_secs_f64())
        };
        let rates: Vec<Option<f64>> = self.members.iter().map(|&index| rate(index)).collect();
        self.before = None;
        self.from = now + SETTLING_TIME;
        self.part = match self.part {
            Part::Interleaved => {
                self.interleaved_rates = rates;
                Part::Alone(0)
            }
            Part::Alone(ended) => {
                let until = (ended + processors).min(self.members.len());
                self.alone_rates[ended..until].copy_from_slice(&rates[ended..until]);
                if until < self.members.len() {
                    Part::Alone(until)
                } else if self.speedup(processors).is_some_and(|it| it >= MIN_SPEEDUP) {
                    Part::InterleavedAgain
                } else {
                    return true;
                }
            }
            Part::InterleavedAgain => {
                for (rate, again) in self.interleaved_rates.iter_mut().zip(rates) {
                    *rate = rate.zip(again).map(|(rate, again)| rate.min(again));
                }
                return true;
            }
        };
        false
    }

    /// The speedup of interleaving: the mean ratio of the members with enough progress alone, times the number
    /// of members per processor. `None` if no member had enough progress.
    fn speedup(&self, processors: usize) -> Option<f64> {
        let least = MIN_LOADS_ALONE / TRIAL_INTERVAL.as_secs_f64();
        let ratios: Vec<f64> = self
            .interleaved_rates
            .iter()
            .zip(&self.alone_rates)
            .filter_map(|(interleaved, alone)| {
                let (interleaved, alone) = ((*interleaved)?, (*alone)?);
                (alone >= least).then(|| interleaved / alone)
            })
            .collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty()).then(|| mean * self.members.len() as f64 / processors as f64)
    }

    fn places(&self, count: usize, processors: usize) -> Vec<ScavengerPlacement> {
        match self.part {
            Part::Alone(ended) => placements_alone(count, &self.members[ended..], processors),
            Part::Interleaved | Part::InterleavedAgain => placements_together(count, &self.members),
        }
    }
}

/// The first of `these` run alone, one on each processor; all other scavengers are held.
fn placements_alone(count: usize, these: &[usize], processors: usize) -> Vec<ScavengerPlacement> {
    let mut places = vec![ScavengerPlacement::Held; count];
    for &index in these.iter().take(processors) {
        places[index] = ScavengerPlacement::Own;
    }
    places
}

/// All of `these` interleave; all other scavengers are held.
fn placements_together(count: usize, these: &[usize]) -> Vec<ScavengerPlacement> {
    let mut places = vec![ScavengerPlacement::Held; count];
    for &index in these {
        places[index] = ScavengerPlacement::RunQueues;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with these rates of loads per millisecond, interleaved and alone on a processor, after it
    /// has prepared its data for some milliseconds; it ends after some number of loads.
    #[derive(Clone, Copy)]
    struct Program {
        prepares_ms: u64,
        interleaved_rate: u64,
        alone: u64,
        loads: u64,
    }

    /// Runs programs on `processors` processors; returns when each ended, in milliseconds, and the results.
    fn run(programs: &[Program], processors: usize) -> (Vec<u64>, InterleavingReport) {
        const STEP_MS: u64 = 10;
        let mut interleaving = Interleaving::default();
        let mut prepared = vec![0_u64; programs.len()];
        let mut loads = vec![0_u64; programs.len()];
        let mut ends = vec![0_u64; programs.len()];
        let mut places;
        for now in (0..100_000).step_by(STEP_MS as usize) {
            let progress: Vec<Option<u64>> = (0..programs.len())
                .map(|index| (ends[index] == 0).then_some(loads[index]))
                .collect();
            if progress.iter().all(Option::is_none) {
                return (ends, interleaving.report());
            }
            places = interleaving.step(Duration::from_millis(now), &progress, processors);
            assert!(
                places
                    .iter()
                    .filter(|it| **it == ScavengerPlacement::Own)
                    .count()
                    <= processors,
                "{places:?}"
            );
            for (index, program) in programs.iter().enumerate() {
                if ends[index] > 0 || places[index] == ScavengerPlacement::Held {
                    continue;
                }
                if prepared[index] < program.prepares_ms {
                    prepared[index] += STEP_MS;
                    continue;
                }
                loads[index] += STEP_MS
                    * match places[index] {
                        ScavengerPlacement::RunQueues => program.interleaved_rate,
                        _ => program.alone,
                    };
                if loads[index] >= program.loads {
                    ends[index] = now + STEP_MS;
                }
            }
        }
        panic!("{ends:?} {:?}", interleaving.report());
    }

    fn last(ends: &[u64]) -> u64 {
        ends.iter().copied().max().unwrap()
    }

    #[test]
    fn interleaving_that_pays_is_kept() {
        // Each makes the same progress interleaved as alone: eight times as much together.
        let program = Program {
            prepares_ms: 300,
            interleaved_rate: 1000,
            alone: 1000,
            loads: 10_000_000,
        };
        let (ends, found) = run(&[program; 8], 1);
        assert!((found.speedup.unwrap() - 8.0).abs() < 0.5, "{found:?}");
        // One after another takes 82.4 s, and no less than 12.4 s is possible.
        assert!(last(&ends) < 15_500, "{ends:?} {found:?}");
    }

    #[test]
    fn interleaving_that_does_not_pay_costs_little() {
        let program = Program {
            prepares_ms: 200,
            interleaved_rate: 200,
            alone: 1000,
            loads: 4_000_000,
        };
        for (processors, alone_ms) in [(1, 4 * 4200), (2, 2 * 4200)] {
            let (ends, found) = run(&[program; 4], processors);
            assert!(found.speedup.unwrap() < 0.9, "{found:?}");
            let slower = last(&ends) as f64 / f64::from(alone_ms);
            assert!(slower < 1.03, "{slower} {found:?}");
        }
    }

    #[test]
    fn a_change_of_progress_in_a_trial_is_no_gain() {
        let mut interleaving = Interleaving::default();
        let mut loads = [5000_u64; 2];
        let mut together_ms = 0;
        for now in (0..900).step_by(10) {
            let progress = loads.map(Some);
            let places = interleaving.step(Duration::from_millis(now), &progress, 1);
            // Both programs go ten times as fast for 80 ms, and share the processor's time where they interleave.
            let rate = if now < 80 { 10_000 } else { 1000 };
            for (loads, place) in loads.iter_mut().zip(places) {
                *loads += 10
                    * match place {
                        ScavengerPlacement::RunQueues => rate / 2,
                        ScavengerPlacement::Own => rate,
                        ScavengerPlacement::Held => 0,
                    };
                together_ms += 5 * u64::from(place == ScavengerPlacement::RunQueues);
            }
        }
        let found = interleaving.report();
        assert_eq!(found.trials, 1);
        assert!(found.speedup.unwrap() < MIN_SPEEDUP, "{found:?}");
        // Only the two intervals of the trial.
        assert!(together_ms <= 160, "{together_ms}");
    }

    #[test]
    fn scavengers_without_progress_run_one_after_another() {
        let program = Program {
            prepares_ms: 1000,
            interleaved_rate: 1,
            alone: 1,
            loads: 10,
        };
        let (ends, found) = run(&[program; 3], 1);
        assert_eq!(found.trials, 0);
        assert!(last(&ends) <= 3 * 1040, "{ends:?}");
    }

    #[test]
    fn one_that_is_left_runs_on_its_own() {
        let short = Program {
            prepares_ms: 0,
            interleaved_rate: 1000,
            alone: 1000,
            loads: 1_000_000,
        };
        let long = Program {
            loads: 8_000_000,
            ..short
        };
        let (ends, found) = run(&[short, long], 1);
        assert!(found.speedup.unwrap() > 1.9, "{found:?}");
        assert!(found.apart > Duration::from_secs(6), "{found:?} {ends:?}");
    }
}
