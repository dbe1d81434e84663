//! Scavengers without a command: who runs when. They take turns with each other where that gives more than one
//! after another on each processor, which is measured; else they run one after another.
//!
//! A scavenger's work is told by the loads with a yield that it comes by. In a trial all take turns for a span,
//! and then each runs on its own for one, so many at a time as there are processors. What each did in turns is
//! divided by what it did on its own: the sum over all, for each processor, is what turns are worth. Spans on
//! their own cost nothing but what turns would have given meanwhile.
//!
//! Whoever has not come by loads yet prepares its data. That is done one after another too, so that caches are
//! not shared by those who do not gain by it.

use std::time::Duration;

use membound_launch::GuestPlace;

/// How long a span takes, before which everybody finds their place for [`SETTLES`].
const SPAN: Duration = Duration::from_millis(50);
const SETTLES: Duration = Duration::from_millis(20);
/// Loads after which a scavenger is taken to have its data.
const PREPARED_LOADS: u64 = 2000;
/// Loads that one has to come by in its span alone to be counted.
const LEAST_LOADS: f64 = 500.0;
/// What turns have to be worth.
const PAYS: f64 = 1.03;
/// Until the second trial; each time twice as long where it finds the same.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Most scavengers that take turns on a processor.
pub(super) const MOST_IN_TURNS: usize = 16;

/// What is seen at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    /// Since the begin.
    pub(super) now: Duration,
    /// By scavenger: the loads that it has come by; `None` of one that has ended.
    pub(super) progress: &'a [Option<u64>],
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Trials that were made.
    pub(super) trials: u32,
    /// What turns were worth at the last: work in turns divided by work one after another.
    pub(super) worth: Option<f64>,
    /// Time in which they had turns, and in which they ran one after another.
    pub(super) together: Duration,
    pub(super) apart: Duration,
}

/// A trial under way.
#[derive(Clone, Debug)]
struct Trial {
    /// Those that take part.
    members: Vec<usize>,
    /// How many of them had their span alone, and whether all had that in turns.
    alone: usize,
    had_turns: bool,
    /// When the present span begins to count, and what was seen then.
    from: Duration,
    before: Option<(Duration, Vec<Option<u64>>)>,
    /// Loads a second, by member.
    in_turns: Vec<Option<f64>>,
    on_own: Vec<Option<f64>>,
}

/// Decides.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    processors: usize,
    trial: Option<Trial>,
    /// When the next one begins.
    next_trial: Duration,
    pause: Duration,
    pays: bool,
    /// Those that it was decided for.
    decided_for: Vec<usize>,
    last: Duration,
    were_together: bool,
    found: Found,
}

impl Balance {
    /// For so many processors.
    pub(super) fn new(processors: usize) -> Self {
        Self {
            processors: processors.max(1),
            trial: None,
            next_trial: Duration::ZERO,
            pause: FIRST_PAUSE,
            pays: false,
            decided_for: Vec::new(),
            last: Duration::ZERO,
            were_together: false,
            found: Found::default(),
        }
    }

    /// Whether looks are to come often: a trial is under way, or somebody prepares.
    pub(super) fn is_watchful(&self) -> bool {
        self.trial.is_some() || self.decided_for.is_empty()
    }

    pub(super) const fn found(&self) -> Found {
        self.found
    }

    /// Others have left so many processors.
    pub(super) fn set_processors(&mut self, processors: usize) {
        if processors.max(1) != self.processors {
            self.processors = processors.max(1);
            self.trial = None;
            self.next_trial = self.last;
        }
    }

    /// Where each scavenger is to be from now on.
    pub(super) fn step(&mut self, look: Look<'_>) -> Vec<GuestPlace> {
        let passed = look.now.saturating_sub(self.last);
        self.last = look.now;
        if self.were_together {
            self.found.together += passed;
        } else {
            self.found.apart += passed;
        }
        let places = self.places(look);
        self.were_together = places.contains(&GuestPlace::Lanes);
        places
    }

    fn places(&mut self, look: Look<'_>) -> Vec<GuestPlace> {
        let alive: Vec<usize> = (0..look.progress.len())
            .filter(|&index| look.progress[index].is_some())
            .collect();
        let (prepared, prepares): (Vec<usize>, Vec<usize>) = alive
            .iter()
            .partition(|&&index| look.progress[index].is_some_and(|it| it >= PREPARED_LOADS));
        let most = MOST_IN_TURNS * self.processors;
        if !prepares.is_empty() && prepared.len() < most {
            self.trial = None;
            let first: Vec<usize> = prepares.into_iter().chain(prepared).collect();
            return alone(look.progress.len(), &first, self.processors);
        }
        let members: Vec<usize> = prepared.into_iter().take(most).collect();
        if members.len() <= self.processors {
            self.trial = None;
            self.decided_for = members;
            return alone(look.progress.len(), &alive, self.processors);
        }
        if members != self.decided_for && self.trial.is_none() {
            // Others than those whom it was decided for.
            self.pause = FIRST_PAUSE;
            self.next_trial = look.now;
        }
        if let Some(trial) = &mut self.trial {
            if trial.members == members {
                if !trial.advance(look, self.processors) {
                    return trial.places(look.progress.len(), self.processors);
                }
                let worth = trial.worth(self.processors);
                self.conclude(look.now, worth);
            }
            self.trial = None;
        }
        if look.now >= self.next_trial {
            self.decided_for.clone_from(&members);
            let trial = Trial::of(members, look.now);
            let places = trial.places(look.progress.len(), self.processors);
            self.trial = Some(trial);
            return places;
        }
        if self.pays {
            together(look.progress.len(), &members)
        } else {
            alone(look.progress.len(), &members, self.processors)
        }
    }

    fn conclude(&mut self, now: Duration, worth: Option<f64>) {
        self.found.trials += 1;
        if let Some(worth) = worth {
            self.found.worth = Some(worth);
            let pays = worth >= PAYS;
            self.pause = if pays == self.pays {
                (self.pause * 2).min(LONGEST_PAUSE)
            } else {
                FIRST_PAUSE
            };
            self.pays = pays;
        }
        self.next_trial = now + self.pause;
    }
}

impl Trial {
    fn of(members: Vec<usize>, now: Duration) -> Self {
        Self {
            in_turns: vec![None; members.len()],
            on_own: vec![None; members.len()],
            members,
            alone: 0,
            had_turns: false,
            from: now + SETTLES,
            before: None,
        }
    }

    /// Takes what is seen; returns whether the trial is over.
    fn advance(&mut self, look: Look<'_>, processors: usize) -> bool {
        let Some((since, before)) = &self.before else {
            if look.now >= self.from {
                self.before = Some((look.now, look.progress.to_vec()));
            }
            return false;
        };
        let lasted = look.now.saturating_sub(*since);
        if lasted < SPAN {
            return false;
        }
        let rate = |index: usize| {
            let loads = look.progress[index]?.saturating_sub(before[index]?);
            Some(loads as f64 / lasted.as_secs_f64())
        };
        if self.had_turns {
            let until = (self.alone + processors).min(self.members.len());
            for member in self.alone..until {
                self.on_own[member] = rate(self.members[member]);
            }
            self.alone = until;
        } else {
            self.in_turns = self.members.iter().map(|&index| rate(index)).collect();
            self.had_turns = true;
        }
        self.before = None;
        self.from = look.now + SETTLES;
        self.alone == self.members.len()
    }

    /// What turns are worth: the sum over those who came by enough loads on their own, for each processor and
    /// for all who take turns. `None`: nobody did.
    fn worth(&self, processors: usize) -> Option<f64> {
        let least = LEAST_LOADS / SPAN.as_secs_f64();
        let ratios: Vec<f64> = self
            .in_turns
            .iter()
            .zip(&self.on_own)
            .filter_map(|(in_turns, on_own)| {
                let (in_turns, on_own) = ((*in_turns)?, (*on_own)?);
                (on_own >= least).then(|| in_turns / on_own)
            })
            .collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty()).then(|| mean * self.members.len() as f64 / processors as f64)
    }

    fn places(&self, count: usize, processors: usize) -> Vec<GuestPlace> {
        if self.had_turns {
            alone(count, &self.members[self.alone..], processors)
        } else {
            together(count, &self.members)
        }
    }
}

/// The first of these run, as many as there are processors, and nobody else.
fn alone(count: usize, these: &[usize], processors: usize) -> Vec<GuestPlace> {
    let mut places = vec![GuestPlace::Held; count];
    for &index in these.iter().take(processors) {
        places[index] = GuestPlace::Own;
    }
    places
}

/// These take turns, and nobody else runs.
fn together(count: usize, these: &[usize]) -> Vec<GuestPlace> {
    let mut places = vec![GuestPlace::Held; count];
    for &index in these {
        places[index] = GuestPlace::Lanes;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that comes by loads at these rates in a millisecond, in turns and alone on a processor, after so
    /// many milliseconds of its own, and ends after so many loads.
    #[derive(Clone, Copy)]
    struct Program {
        prepares_ms: u64,
        in_turns: u64,
        alone: u64,
        loads: u64,
    }

    /// Runs them on so many processors; returns when each ended, in milliseconds, and what was found.
    fn run(programs: &[Program], processors: usize) -> (Vec<u64>, Found) {
        const STEP_MS: u64 = 10;
        let mut balance = Balance::new(processors);
        let mut prepared = vec![0_u64; programs.len()];
        let mut loads = vec![0_u64; programs.len()];
        let mut ends = vec![0_u64; programs.len()];
        let mut places;
        for now in (0..100_000).step_by(STEP_MS as usize) {
            let progress: Vec<Option<u64>> = (0..programs.len())
                .map(|index| (ends[index] == 0).then_some(loads[index]))
                .collect();
            if progress.iter().all(Option::is_none) {
                return (ends, balance.found());
            }
            places = balance.step(Look {
                now: Duration::from_millis(now),
                progress: &progress,
            });
            assert!(
                places.iter().filter(|it| **it == GuestPlace::Own).count() <= processors,
                "{places:?}"
            );
            for (index, program) in programs.iter().enumerate() {
                if ends[index] > 0 || places[index] == GuestPlace::Held {
                    continue;
                }
                if prepared[index] < program.prepares_ms {
                    prepared[index] += STEP_MS;
                    continue;
                }
                loads[index] += STEP_MS
                    * match places[index] {
                        GuestPlace::Lanes => program.in_turns,
                        _ => program.alone,
                    };
                if loads[index] >= program.loads {
                    ends[index] = now + STEP_MS;
                }
            }
        }
        panic!("{ends:?} {:?}", balance.found());
    }

    fn last(ends: &[u64]) -> u64 {
        ends.iter().copied().max().unwrap()
    }

    #[test]
    fn turns_that_pay_are_kept() {
        // Each does as much in turns as alone: eight times as much together.
        let program = Program {
            prepares_ms: 300,
            in_turns: 1000,
            alone: 1000,
            loads: 10_000_000,
        };
        let (ends, found) = run(&[program; 8], 1);
        assert!((found.worth.unwrap() - 8.0).abs() < 0.5, "{found:?}");
        // One after another takes 82.4 s, and no less than 12.4 s is possible.
        assert!(last(&ends) < 15_500, "{ends:?} {found:?}");
    }

    #[test]
    fn turns_that_do_not_pay_cost_next_to_nothing() {
        let program = Program {
            prepares_ms: 200,
            in_turns: 200,
            alone: 1000,
            loads: 4_000_000,
        };
        for (processors, alone_ms) in [(1, 4 * 4200), (2, 2 * 4200)] {
            let (ends, found) = run(&[program; 4], processors);
            assert!(found.worth.unwrap() < 0.9, "{found:?}");
            let slower = last(&ends) as f64 / f64::from(alone_ms);
            assert!(slower < 1.03, "{slower} {found:?}");
        }
    }

    #[test]
    fn who_never_comes_by_loads_runs_one_after_another() {
        let program = Program {
            prepares_ms: 1000,
            in_turns: 1,
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
            in_turns: 1000,
            alone: 1000,
            loads: 1_000_000,
        };
        let long = Program {
            loads: 8_000_000,
            ..short
        };
        let (ends, found) = run(&[short, long], 1);
        assert!(found.worth.unwrap() > 1.9, "{found:?}");
        assert!(found.apart > Duration::from_secs(6), "{found:?} {ends:?}");
    }
}
