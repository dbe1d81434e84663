//! Rounds over points until each interval is narrow: the sampling that all parts share.
//!
//! A part makes one [`Slot`] per point, whose key identifies the point, and passes them to
//! [`run_rounds`] with a function that visits one of them: it warms up, takes a few batches
//! ([`take_batches`]) and returns them as [`Visit`]s. Slots are visited upwards and downwards in
//! turn, so that a slow phase of the machine hits a few visits of many points instead of all visits
//! of one. [`Slot::sampled`] then gives figure, interval and the raw samples for documents. What is
//! measured, and in which unit, is left to the part.

use std::time::{Duration, Instant};

use membound_types::{CpuId, Disturbance, Samples, Stopped};

use crate::stats::{self, Modes, Summary};
use crate::watch::{BatchWatch, StealWatch};
use crate::{Error, Session};

/// A point is done when its 95 % interval reaches this far to each side, relative to the
/// figure.
pub(crate) const TARGET_RELATIVE_HALF_WIDTH: f64 = 0.01;

/// Minimum time over which points are visited, or a quarter of the budget where that is shorter,
/// even if they are narrow sooner: slow phases of shared machines last that long.
const MIN_VISITING_TIME: Duration = Duration::from_millis(1_200);

/// Rounds into which the minimum time is divided.
const ROUNDS_IN_MIN_TIME: u32 = 8;

/// Relative change of the core clock during a visit from which on the visit counts as perturbed.
/// Slow drifts do not count: cycles are counted with the visit's own clock.
const CLOCK_TOLERANCE: f64 = 0.02;

/// Which of two values is the unperturbed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sense {
    /// Values are times: the lower.
    Time,
    /// Values are rates: the higher.
    Rate,
}

/// Result of one visit to a point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visit {
    /// Values of the batches, in the unit of the point's figure.
    pub(crate) values: Vec<f64>,
    /// Core clock during the visit, in hertz.
    pub(crate) core_hz: f64,
    /// What perturbed the visit.
    pub(crate) disturbed: Disturbance,
}

/// Takes `count` clean batches on the calling thread, which is pinned to `cpu`. `batch` receives
/// the core clock in hertz and returns a batch's value. Perturbed batches are repeated up to
/// `count` times, then kept as they are.
pub(crate) fn take_batches(
    session: &Session<'_>,
    cpu: CpuId,
    count: usize,
    mut batch: impl FnMut(f64) -> f64,
) -> Visit {
    take_batches_if(
        session,
        cpu,
        count,
        |core_hz| (batch(core_hz), true),
        |value| *value,
    )
    .0
}

/// Like [`take_batches`], for a `batch` that also reports whether it was otherwise unperturbed and
/// returns more than a value; `value` extracts the value. Returns the visit and the results of all
/// kept batches.
pub(crate) fn take_batches_if<T>(
    session: &Session<'_>,
    cpu: CpuId,
    count: usize,
    mut batch: impl FnMut(f64) -> (T, bool),
    value: impl Fn(&T) -> f64,
) -> (Visit, Vec<T>) {
    let steal = StealWatch::begin(session.root, cpu);
    let core_hz = session.core.measure(&session.clock, 3);
    let mut disturbed = Disturbance::default();
    let mut samples = Vec::with_capacity(count);
    let mut tries = 2 * count;
    while samples.len() < count && tries > 0 {
        let watch = BatchWatch::begin(cpu);
        let (found, undisturbed) = batch(core_hz);
        let clean = watch.end(&mut disturbed) && undisturbed;
        // When as many tries are left as batches are missing, perturbed ones must do.
        if clean || tries <= count - samples.len() {
            samples.push(found);
            disturbed.kept_batches += u32::from(!clean);
        } else {
            disturbed.repeated_batches += 1;
        }
        tries -= 1;
    }
    let core_hz_after = session.core.measure(&session.clock, 3);
    disturbed.clock_changes = clock_changes(core_hz, core_hz_after);
    disturbed.steal_ms = steal.end(session.root);
    let visit = Visit {
        values: samples.iter().map(value).collect(),
        core_hz: f64::midpoint(core_hz, core_hz_after),
        disturbed,
    };
    (visit, samples)
}

/// 1 if the core clock differs between the beginning and the end of a visit, else 0.
pub(crate) fn clock_changes(before_hz: f64, after_hz: f64) -> u32 {
    u32::from((after_hz / before_hz - 1.0).abs() > CLOCK_TOLERANCE)
}

/// Adds the counts of `added` to `sum`. Modes are left out, because they are found from all batches
/// of a point.
pub(crate) fn add_disturbance(sum: &mut Disturbance, added: &Disturbance) {
    sum.repeated_batches += added.repeated_batches;
    sum.kept_batches += added.kept_batches;
    sum.involuntary_switches += added.involuntary_switches;
    sum.migrations += added.migrations;
    sum.steal_ms += added.steal_ms;
    sum.clock_changes += added.clock_changes;
}

/// A point and its batches so far.
#[derive(Clone, Debug)]
pub(crate) struct Slot<K> {
    /// Which point it is.
    pub(crate) key: K,
    sense: Sense,
    raw: Vec<f64>,
    core_hz: Vec<f64>,
    disturbed: Disturbance,
    rounds: u32,
}

/// A point's figure as documents hold it.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    /// Figure and interval, of the unperturbed mode where there are two.
    pub(crate) summary: Summary,
    /// Core clock while the point was measured, in hertz.
    pub(crate) core_hz: f64,
    /// Raw batches and how the sampling went.
    pub(crate) samples: Samples,
}

impl<K> Slot<K> {
    /// Relative gap between two groups of batches that makes them two modes.
    const MIN_RELATIVE_MODE_GAP: f64 = 0.15;
    /// Minimum number of rounds in which a point is visited, to see slow phases at all.
    const MIN_ROUNDS: u32 = 3;

    /// A point whose figure is a time.
    pub(crate) fn time(key: K) -> Self {
        Self::new(key, Sense::Time)
    }

    /// A point whose figure is a rate.
    pub(crate) fn rate(key: K) -> Self {
        Self::new(key, Sense::Rate)
    }

    fn new(key: K, sense: Sense) -> Self {
        Self {
            key,
            sense,
            raw: Vec::new(),
            core_hz: Vec::new(),
            disturbed: Disturbance::default(),
            rounds: 0,
        }
    }

    /// Adds the result of one round: one visit for every participating thread.
    pub(crate) fn add(&mut self, visits: impl IntoIterator<Item = Visit>) {
        for visit in visits {
            // An abandoned visit did not measure the clock either.
            if !visit.values.is_empty() {
                self.core_hz.push(visit.core_hz);
            }
            self.raw.extend(visit.values);
            add_disturbance(&mut self.disturbed, &visit.disturbed);
        }
        self.rounds += 1;
    }

    /// The unperturbed mode where there are two and it has a quarter of the batches, else
    /// everything.
    pub(crate) fn modes(&self) -> Option<Modes> {
        let modes = match self.sense {
            Sense::Time => stats::modes(&self.raw, Self::MIN_RELATIVE_MODE_GAP)?,
            Sense::Rate => rate_modes(&self.raw, Self::MIN_RELATIVE_MODE_GAP)?,
        };
        if modes.slow.is_some() && modes.fast_count * 4 < self.raw.len() {
            return Some(Modes {
                fast: stats::summarize(&self.raw)?,
                fast_count: self.raw.len(),
                slow: modes.slow,
            });
        }
        Some(modes)
    }

    /// Whether more samples would add no information.
    pub(crate) fn converged(&self) -> bool {
        self.rounds >= Self::MIN_ROUNDS
            && self.modes().is_some_and(|modes| {
                modes.slow.is_none()
                    && modes.fast.high - modes.fast.low
                        <= 2.0 * TARGET_RELATIVE_HALF_WIDTH * modes.fast.median
            })
    }

    /// The figure with its samples; `None` when the point was never visited.
    pub(crate) fn sampled(&self, session: &Session<'_>) -> Option<Sampled> {
        let modes = self.modes()?;
        let stopped = if self.converged() {
            Stopped::Converged
        } else if session.cancelled() {
            Stopped::Interrupted
        } else {
            Stopped::Budget
        };
        Some(Sampled {
            summary: modes.fast,
            core_hz: stats::median(&self.core_hz).unwrap_or(session.core_hz),
            samples: Samples {
                raw: self.raw.clone(),
                stopped,
                disturbed: Disturbance {
                    slow_mode: modes.slow.map(|(median, _)| median),
                    slow_share: modes.slow.map(|(_, share)| share),
                    ..self.disturbed
                },
            },
        })
    }
}

/// [`stats::modes`] of rates. Groups are found in the reciprocals, which are times, so that a gap
/// means the same for both; the summaries are those of the rates.
fn rate_modes(rates: &[f64], min_gap: f64) -> Option<Modes> {
    let times: Vec<f64> = rates.iter().map(|rate| rate.recip()).collect();
    let of_times = stats::modes(&times, min_gap)?;
    let mut sorted: Vec<f64> = rates.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (fast, slow) = sorted.split_at(of_times.fast_count.min(sorted.len()));
    Some(Modes {
        fast: stats::summarize(fast)?,
        fast_count: fast.len(),
        slow: of_times
            .slow
            .and_then(|(_, share)| Some((stats::median(slow)?, share))),
    })
}

/// Progress of [`run_rounds`] when it requests a visit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisitProgress {
    /// Number of the round, from 0.
    pub(crate) round: u64,
    /// Share of the work that is done, 0 to 1, for progress.
    pub(crate) done: f64,
}

/// Visits all slots that are not yet narrow, round by round, until all are, `budget` is spent (two
/// rounds are made in any case) or the session is cancelled. After each round `between` may add
/// slots.
///
/// # Errors
/// The first error of `visit`.
pub(crate) fn run_rounds<K>(
    session: &Session<'_>,
    budget: Duration,
    slots: &mut Vec<Slot<K>>,
    visit: impl FnMut(&K, VisitProgress) -> Result<Vec<Visit>, Error>,
    between: impl FnMut(u64, &mut Vec<Slot<K>>),
) -> Result<(), Error> {
    let rounds = Rounds {
        budget,
        exactly: None,
    };
    run_rounds_as(session, rounds, slots, visit, between)
}

/// Limits of the number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Time budget of the rounds.
    pub(crate) budget: Duration,
    /// Exact number of rounds, regardless of the time and of how narrow the intervals are.
    pub(crate) exactly: Option<u32>,
}

/// [`run_rounds`] with an optional exact number of rounds.
///
/// # Errors
/// The first error of `visit`.
pub(crate) fn run_rounds_as<K>(
    session: &Session<'_>,
    rounds: Rounds,
    slots: &mut Vec<Slot<K>>,
    mut visit: impl FnMut(&K, VisitProgress) -> Result<Vec<Visit>, Error>,
    mut between: impl FnMut(u64, &mut Vec<Slot<K>>),
) -> Result<(), Error> {
    let Rounds { budget, exactly } = rounds;
    let started = Instant::now();
    let span = MIN_VISITING_TIME.min(budget / 4);
    let mut longest_round = 0.0_f64;
    for round in 0_u64.. {
        // A series of few points is spread over time; otherwise one phase of the machine could
        // cover all its visits.
        let due = span
            * u32::try_from(round)
                .unwrap_or(u32::MAX)
                .min(ROUNDS_IN_MIN_TIME)
            / ROUNDS_IN_MIN_TIME;
        while exactly.is_none() && started.elapsed() < due && !session.cancelled() {
            // Work, not sleep, so that the core keeps its clock.
            let _awake = session.core.measure(&session.clock, 1);
        }
        let round_begun = Instant::now();
        let early = started.elapsed() < span;
        let mut order: Vec<usize> = (0..slots.len())
            .filter(|at| early || exactly.is_some() || !slots[*at].converged())
            .collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let visits = order.len();
        for (done, at) in order.into_iter().enumerate() {
            if session.cancelled() {
                return Ok(());
            }
            let spent = started.elapsed().as_secs_f64() / budget.as_secs_f64();
            // The first round counts as at least an eighth of the progress, however short it is.
            let in_first_round = if round == 0 {
                done as f64 / visits as f64 / 8.0
            } else {
                0.0
            };
            let within = round as f64 + done as f64 / visits as f64;
            let share = exactly.map_or_else(
                || spent.max(in_first_round),
                |rounds| within / f64::from(rounds.max(1)),
            );
            let progress = VisitProgress {
                round,
                done: share.min(1.0),
            };
            let visited = visit(&slots[at].key, progress)?;
            slots[at].add(visited);
        }
        longest_round = longest_round.max(round_begun.elapsed().as_secs_f64());
        between(round, slots);
        let spent = started.elapsed().as_secs_f64();
        // A further round is made only if most of it fits into the budget.
        let over = spent + longest_round * 0.7 > budget.as_secs_f64();
        let enough = match exactly {
            Some(rounds) => round + 1 >= u64::from(rounds),
            None => over && round >= 1,
        };
        if session.cancelled() || visits == 0 || enough {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use membound_platform::Root;

    use super::*;
    use crate::{Effort, Silent};

    fn visit(values: &[f64]) -> Visit {
        Visit {
            values: values.to_vec(),
            core_hz: 1e9,
            disturbed: Disturbance {
                repeated_batches: 1,
                steal_ms: 2.0,
                ..Disturbance::default()
            },
        }
    }

    fn with_session(check: impl FnOnce(&Session<'_>, &AtomicBool)) {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        check(&session, &cancel);
    }

    #[test]
    fn a_point_is_done_when_it_is_narrow_after_three_rounds() {
        let mut slot = Slot::time(());
        for round in 0..3 {
            assert!(!slot.converged(), "after {round} rounds");
            slot.add([visit(&[100.0, 100.5, 100.2])]);
        }
        assert!(slot.converged());
        let mut wide = Slot::time(());
        for _ in 0..5 {
            wide.add([visit(&[100.0, 104.0, 110.0])]);
        }
        assert!(!wide.converged());
    }

    #[test]
    fn disturbances_add_up_and_modes_are_named() {
        with_session(|session, _| {
            let mut slot = Slot::time(());
            slot.add([visit(&[1.0; 5]), visit(&[1.0; 5])]);
            slot.add([visit(&[2.0; 4])]);
            let sampled = slot.sampled(session).unwrap();
            assert_eq!(sampled.samples.disturbed.repeated_batches, 3);
            assert_eq!(sampled.samples.disturbed.steal_ms, 6.0);
            assert_eq!(sampled.samples.disturbed.slow_mode, Some(2.0));
            assert_eq!(sampled.samples.disturbed.slow_share, Some(4.0 / 14.0));
            assert_eq!(sampled.summary.median, 1.0);
            assert_eq!(sampled.samples.raw.len(), 14);
            assert_eq!(sampled.samples.stopped, Stopped::Budget);
            assert_eq!(sampled.core_hz, 1e9);
        });
    }

    #[test]
    fn the_slow_mode_of_a_rate_is_the_lower_one() {
        let mut slot = Slot::rate(());
        slot.add([visit(&[40.0, 41.0, 40.5, 40.2, 40.8, 20.0, 20.5])]);
        let modes = slot.modes().unwrap();
        assert_eq!(modes.fast.median, 40.5);
        assert_eq!(modes.slow, Some((20.25, 2.0 / 7.0)));
    }

    #[test]
    fn a_fast_mode_that_is_rare_is_not_the_figure() {
        let mut slot = Slot::time(());
        slot.add([visit(&[1.0, 1.0]), visit(&[2.0; 18])]);
        assert_eq!(slot.modes().unwrap().fast.median, 2.0);
    }

    #[test]
    fn a_point_never_visited_has_no_figure() {
        with_session(|session, _| assert!(Slot::time(()).sampled(session).is_none()));
    }

    #[test]
    fn rounds_go_up_and_down_until_all_are_narrow() {
        with_session(|session, _| {
            let mut slots: Vec<Slot<u32>> = (0..3).map(Slot::time).collect();
            let mut order = Vec::new();
            run_rounds(
                session,
                Duration::from_secs(60),
                &mut slots,
                |key, progress| {
                    order.push((progress.round, *key));
                    assert!((0.0..=1.0).contains(&progress.done));
                    Ok(vec![visit(&[5.0])])
                },
                |round, slots| {
                    if round == 0 {
                        slots.push(Slot::time(3));
                    }
                },
            )
            .unwrap();
            let up = |round| (0..4).map(move |key| (round, key));
            let down = |round| (0..4).rev().map(move |key| (round, key));
            let mut expected: Vec<(u64, u32)> = (0..3).map(|key| (0, key)).collect();
            // All are narrow after round 2, but their least span is not over.
            for round in 1..u64::from(ROUNDS_IN_MIN_TIME) {
                if round % 2 == 1 {
                    expected.extend(down(round))
                } else {
                    expected.extend(up(round))
                }
            }
            assert_eq!(order, expected);
        });
    }

    #[test]
    fn a_spent_budget_and_a_cancelled_session_end_the_rounds() {
        with_session(|session, cancel| {
            let noisy = |value: &mut f64| {
                *value += 1.0;
                Ok(vec![visit(&[*value])])
            };
            let mut value = 0.0;
            let mut slots = vec![Slot::time(()), Slot::time(())];
            let mut run = |slots: &mut Vec<Slot<()>>| {
                run_rounds(
                    session,
                    Duration::ZERO,
                    slots,
                    |(), _| noisy(&mut value),
                    |_, _| (),
                )
            };
            run(&mut slots).unwrap();
            assert_eq!(slots[0].raw.len(), 2);
            let mut late = vec![Slot::time(())];
            cancel.store(true, Ordering::Relaxed);
            run(&mut late).unwrap();
            assert!(late[0].raw.is_empty());
            assert_eq!(
                slots[1].sampled(session).unwrap().samples.stopped,
                Stopped::Interrupted
            );
        });
    }

    #[test]
    fn batches_are_counted_and_their_disturbance_is_kept() {
        with_session(|session, _| {
            let mut made = 0;
            let cpu = session.cpu;
            let visit = take_batches(session, cpu, 4, |core_hz| {
                assert!(core_hz > 1e8);
                made += 1;
                f64::from(made)
            });
            assert_eq!(visit.values.len(), 4);
            assert_eq!(made - 4, visit.disturbed.repeated_batches as i32);
        });
    }

    #[test]
    fn batches_perturbed_elsewhere_are_repeated_and_finally_accepted() {
        with_session(|session, _| {
            let mut made = 0;
            let take = |from: i32, made: &mut i32| {
                take_batches_if(
                    session,
                    session.cpu,
                    3,
                    |_| {
                        *made += 1;
                        (*made, *made > from)
                    },
                    |number| f64::from(*number),
                )
            };
            let (visit, taken) = take(2, &mut made);
            assert_eq!(taken.len(), 3);
            assert!(taken[0] > 2, "{taken:?}");
            assert!(visit.disturbed.repeated_batches >= 2);
            made = 0;
            let (visit, taken) = take(i32::MAX, &mut made);
            assert_eq!((taken, made), (vec![4, 5, 6], 6));
            assert_eq!(visit.values, [4.0, 5.0, 6.0]);
        });
    }
}
