//! Cost of sharing a line, measured by trials in which all threads but one were stopped for a moment: a
//! measured effect, not an inference from latencies.
//!
//! A trial gives the factor by which a thread is faster while it runs alone. The factor applies to the time
//! in which, according to samples, the thread and at least one other used the line again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use membound_run::{FrameId, Hold, RunData, ThreadId};
use membound_types::{Figure, SharedLine};
use rustc_hash::{FxHashMap, FxHashSet};

use super::evidence::Line;
use super::waiting_loops::waits_at;
use crate::context::Context;
use crate::decoding::Functions;
use crate::places::FunctionId;

/// Half of the fewest spans, of both kinds together, that a thread must have.
const MIN_SPANS: usize = 4;
/// Fewest spans of each kind (alone, with others) in a trial that counts.
const MIN_SPANS_OF_TRIAL: usize = 3;
/// A span alone is dropped if the thread used less than this part of its usual CPU time: then it waited for
/// the stopped threads.
const MIN_USUAL_CPU_SHARE: f64 = 0.5;
/// A thread counts as using a line between two samples in code that uses it, if these are at most as far apart as this
/// many times the median distance of such samples. Where a thread is seldom sampled in this code, and at random, 94 %
/// of the distances are shorter. A pause between two phases with many samples each is longer.
const MEDIAN_GAPS: u64 = 4;
/// Bounds of that distance, in nanoseconds.
const MIN_GAP_NS: u64 = 20_000_000;
const MAX_GAP_NS: u64 = 200_000_000;
/// Error caused by the trial itself: signals to the thread, changed caches and clock of the core.
const TRIAL_ERROR: f64 = 0.01;
/// Error because threads do not run together in all of an interval, and change the course of each other's
/// contention.
const COURSE_ERROR: f64 = 0.03;

/// Share of the time in which a thread contends from which on it counts as waiting for the others, if it spends
/// that in loops that only wait.
const MIN_WAITING_SHARE: f64 = 0.5;
/// Largest difference between the savings of two threads that is attributed to chance.
const MAX_CHANCE_DIFFERENCE: f64 = 0.25;

/// Share with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// Share of all CPU time that the threads of `lines` were measured to cost each other.
pub(crate) fn contention_cost<'a>(lines: impl Iterator<Item = &'a SharedLine>) -> Share {
    let mut sum = Share {
        value: 0.0,
        low: 0.0,
        high: 0.0,
    };
    for line in lines {
        let lost_s = |of: fn(&Figure) -> f64| -> f64 {
            let of_thread = line.held.iter().map(|cost| of(&cost.share) * cost.cpu_s);
            of_thread.sum()
        };
        let value_s = lost_s(|share| share.value);
        if value_s > 0.0 {
            let scaled = |of| line.stall_fraction * lost_s(of) / value_s;
            sum.value += line.stall_fraction;
            sum.low += (scaled(|share| share.low) - COURSE_ERROR).max(0.0);
            sum.high += scaled(|share| share.high) + COURSE_ERROR;
        }
    }
    Share {
        value: sum.value.min(1.0),
        low: sum.low.min(1.0),
        high: sum.high.min(1.0),
    }
}

/// Cost that other threads cause to one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Share of its CPU time while it contends.
    pub share: Share,
    /// CPU time in which it contends, in nanoseconds.
    pub time_ns: f64,
    /// Time of the last sample in which it contended, in nanoseconds since the run began.
    pub end_ns: f64,
    /// True if it only waits for the others meanwhile, and ends when they do.
    pub waits: bool,
    pub spans: u64,
}

/// Time in which a thread contends.
#[derive(Clone, Copy, Debug, Default)]
struct Contending {
    /// CPU time in nanoseconds, and the part of it in loops that only wait.
    time_ns: f64,
    waiting_ns: f64,
    /// Time of the last such sample, in nanoseconds since the run began.
    end_ns: f64,
}

impl Contending {
    fn cost(self, share: Share, spans: u64) -> Cost {
        Cost {
            share,
            time_ns: self.time_ns,
            end_ns: self.end_ns,
            waits: self.waiting_ns > MIN_WAITING_SHARE * self.time_ns,
            spans,
        }
    }
}

/// Results of all trials of a run.
pub(crate) struct Trials<'a> {
    functions: Functions<'a>,
    /// By line and thread: the share of its CPU time that the thread would save if it ran alone, and the
    /// number of spans that the share is based on.
    shares: BTreeMap<(u64, ThreadId), (Share, u64)>,
}

impl<'a> Trials<'a> {
    pub(crate) fn new(run: &'a RunData) -> Self {
        let mut rows: BTreeMap<(u64, ThreadId), Vec<&Hold>> = BTreeMap::new();
        for hold in run.holds.iter().filter(|it| it.wall_ns > 0) {
            rows.entry((hold.line, hold.thread)).or_default().push(hold);
        }
        let shares = rows
            .into_iter()
            .filter_map(|(key, rows)| Some((key, share(&rows)?)))
            .collect();
        Self {
            functions: Functions::new(run),
            shares,
        }
    }

    /// Costs to the threads that use `lines`, the lines of one finding; `None` if trials covered fewer than
    /// two of them.
    pub(crate) fn costs(
        &self,
        context: &Context<'_>,
        lines: &[&Line],
        users: &BTreeSet<ThreadId>,
    ) -> Option<BTreeMap<ThreadId, Cost>> {
        let own: FxHashSet<u64> = lines.iter().map(|line| line.address).collect();
        let of_own = |line: &u64| own.contains(line);
        let shares_of = |is_meant: &dyn Fn(&u64) -> bool| {
            let mut found: BTreeMap<ThreadId, (Share, u64)> = BTreeMap::new();
            for ((line, thread), measured) in &self.shares {
                if is_meant(line) && users.contains(thread) {
                    let best = found.entry(*thread).or_insert(*measured);
                    if measured.1 > best.1 {
                        *best = *measured;
                    }
                }
            }
            found
        };
        // If the same threads use several lines, trials were made with one of them only.
        let mut shares = shares_of(&of_own);
        if shares.len() < 2 {
            shares = shares_of(&|_| true);
        }
        if shares.len() < 2 {
            return None;
        }
        let times = time_together(context, &self.functions, lines, users);
        let costs = shares.into_iter().map(|(thread, (share, spans))| {
            let contending = times.get(&thread).copied().unwrap_or_default();
            (thread, contending.cost(share, spans))
        });
        Some(costs.collect())
    }

    /// The same where trials measured nothing: anything from nothing to all of the threads' time.
    pub(crate) fn unmeasured_costs(
        &self,
        context: &Context<'_>,
        lines: &[&Line],
        users: &BTreeSet<ThreadId>,
    ) -> BTreeMap<ThreadId, Cost> {
        let share = Share {
            value: 0.0,
            low: 0.0,
            high: 1.0,
        };
        let times = time_together(context, &self.functions, lines, users);
        let costs = times.into_iter();
        let costs = costs.map(|(thread, contending)| (thread, contending.cost(share, 0)));
        costs.collect()
    }
}

/// Result of the spans of one thread and their number; `None` if there are too few.
fn share(rows: &[&Hold]) -> Option<(Share, u64)> {
    let busy = |alone: bool| {
        let of_kind = rows.iter().filter(|row| row.alone == alone);
        let (cpu, wall) = of_kind.fold((0, 0), |(cpu, wall), row| {
            (cpu + row.cpu_ns, wall + row.wall_ns)
        });
        cpu as f64 / (wall as f64).max(1.0)
    };
    let usual = busy(false);
    let is_valid = |row: &&&Hold| {
        !row.alone || row.cpu_ns as f64 >= MIN_USUAL_CPU_SHARE * usual * row.wall_ns as f64
    };
    let accepted: Vec<&Hold> = rows
        .iter()
        .filter(|row| row.progress > 0 && row.cpu_ns > 0)
        .filter(is_valid)
        .copied()
        .collect();
    let numbers: BTreeSet<u32> = accepted.iter().map(|row| row.trial).collect();
    let of_trial = |number| {
        let rows = accepted.iter().filter(|row| row.trial == number);
        let (alone, all): (Vec<&Hold>, Vec<&Hold>) = rows.copied().partition(|row| row.alone);
        Factor::new(&alone, &all)
    };
    let factors: Vec<Factor> = numbers.into_iter().filter_map(of_trial).collect();
    let spans: usize = factors.iter().map(|factor| factor.spans).sum();
    if spans < 2 * MIN_SPANS {
        return None;
    }
    let count = factors.len() as f64;
    let mean = factors.iter().map(|factor| factor.log).sum::<f64>() / count;
    let within = factors.iter().map(|factor| factor.variance).sum::<f64>() / (count * count);
    let between = if factors.len() >= 2 {
        let deviations = factors.iter().map(|factor| factor.log - mean);
        let squares: f64 = deviations.map(|it| it.powi(2)).sum();
        squares / (count * (count - 1.0))
    } else {
        0.0
    };
    // With few trials their spread is uncertain: use a larger quantile.
    let quantile = match factors.len() {
        1 => 2.4,
        2..5 => 2.8,
        _ => 2.2,
    };
    let half = quantile * within.max(between).sqrt() + TRIAL_ERROR;
    let at = |log: f64| (1.0 - log.exp()).clamp(0.0, 1.0);
    let share = Share {
        value: at(mean),
        low: at(mean + half),
        high: at(mean - half),
    };
    Some((share, spans as u64))
}

/// Factor by which a thread was faster alone in one trial.
struct Factor {
    /// Logarithm of the factor.
    log: f64,
    /// Variance of `log`, from the spread of the spans.
    variance: f64,
    /// Number of spans.
    spans: usize,
}

impl Factor {
    /// Compares the spans `alone` with the spans with `all` threads; `None` if there are too few of either.
    fn new(alone: &[&Hold], all: &[&Hold]) -> Option<Self> {
        if alone.len().min(all.len()) < MIN_SPANS_OF_TRIAL {
            return None;
        }
        // Weight each span by its progress: total CPU time ÷ total steps.
        let step_ns = |rows: &[&Hold]| {
            let cpu_ns: f64 = rows.iter().map(|row| row.cpu_ns as f64).sum();
            cpu_ns / rows.iter().map(|row| row.progress as f64).sum::<f64>()
        };
        let step_variance = |rows: &[&Hold]| {
            let steps = rows.iter();
            let steps_ns: Vec<f64> = steps
                .map(|row| row.cpu_ns as f64 / row.progress as f64)
                .collect();
            variance_of_mean(&steps_ns)
        };
        Some(Self {
            log: (step_ns(alone) / step_ns(all)).ln(),
            variance: step_variance(alone) + step_variance(all),
            spans: alone.len() + all.len(),
        })
    }
}

/// Relative variance of the mean.
fn variance_of_mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (count * (count - 1.0)) / (mean * mean)
}

/// By thread: the time in which it and another of `users` used `lines` again and again.
///
/// Whatever a thread executes meanwhile counts, since trials measure all of its time: the stores that other
/// threads delay also delay the caller of the function in which they stand.
fn time_together(
    context: &Context<'_>,
    functions: &Functions<'_>,
    lines: &[&Line],
    users: &BTreeSet<ThreadId>,
) -> BTreeMap<ThreadId, Contending> {
    let run = context.run;
    let uses = stacks_that_use(context, lines);
    let of_users = || {
        let samples = run.samples.iter();
        samples.filter(|sample| users.contains(&sample.thread))
    };
    let mut times_of_use: BTreeMap<ThreadId, Vec<u64>> = BTreeMap::new();
    for sample in of_users().filter(|sample| uses[sample.stack.index()]) {
        let of_thread = times_of_use.entry(sample.thread).or_default();
        of_thread.push(sample.t_ns);
    }
    let periods: BTreeMap<ThreadId, Vec<RangeInclusive<u64>>> = times_of_use
        .into_iter()
        .map(|(thread, times)| (thread, periods_of_use(times)))
        .collect();
    let within = |thread: &ThreadId, t_ns: u64| {
        periods.get(thread).is_some_and(|periods| {
            let next = periods.partition_point(|period| *period.end() < t_ns);
            periods.get(next).is_some_and(|it| it.contains(&t_ns))
        })
    };
    let mut waiting: FxHashMap<FrameId, bool> = FxHashMap::default();
    let mut waits = |frame: FrameId| {
        *waiting.entry(frame).or_insert_with(|| {
            let at = &run.frames[frame.index()];
            at.module
                .is_some_and(|module| waits_at(functions, module, at.address))
        })
    };
    let mut times: BTreeMap<ThreadId, Contending> = BTreeMap::new();
    for sample in of_users() {
        let others = || users.iter().filter(|other| **other != sample.thread);
        if within(&sample.thread, sample.t_ns) && others().any(|it| within(it, sample.t_ns)) {
            let of_thread = context.times.thread(sample.thread);
            // Scale samples to the kernel's count of CPU time, which includes time without samples.
            let scale = of_thread.cpu_ns as f64 / (of_thread.sampled_ns as f64).max(1.0);
            let scaled_ns = sample.weight_ns as f64 * scale.max(1.0);
            let time = times.entry(sample.thread).or_default();
            time.time_ns += scaled_ns;
            if waits(run.stacks[sample.stack.index()].frame) {
                time.waiting_ns += scaled_ns;
            }
            time.end_ns = time.end_ns.max(sample.t_ns as f64);
        }
    }
    times
}

/// By stack: true if it is in a function that uses `lines`, or one called from there.
fn stacks_that_use(context: &Context<'_>, lines: &[&Line]) -> Vec<bool> {
    let run = context.run;
    let observations = lines.iter().flat_map(|line| &line.observations);
    let code_of_lines: BTreeSet<FunctionId> = observations
        .map(|one| {
            let site = &run.sites[one.site.index()];
            context.places.function_of(site.frame)
        })
        .collect();
    let mut uses: Vec<bool> = Vec::with_capacity(run.stacks.len());
    for stack in &run.stacks {
        let called = stack.parent.is_some_and(|parent| uses[parent.index()]);
        let inside = code_of_lines.contains(&context.places.function_of(stack.frame));
        uses.push(inside || called);
    }
    uses
}

/// The periods, in ascending order, in which a thread uses lines, from the times of its samples in code that
/// does so. A period reaches half of the shortest gap beyond its first and last samples.
fn periods_of_use(mut times: Vec<u64>) -> Vec<RangeInclusive<u64>> {
    times.sort_unstable();
    let mut distances: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    distances.sort_unstable();
    let median = distances
        .get(distances.len().saturating_sub(1) / 2)
        .copied()
        .unwrap_or(0);
    let gap_ns = (MEDIAN_GAPS * median).clamp(MIN_GAP_NS, MAX_GAP_NS);
    let margin = MIN_GAP_NS / 2;
    times
        .chunk_by(|before, after| after - before <= gap_ns)
        .map(|period| period[0].saturating_sub(margin)..=period[period.len() - 1] + margin)
        .collect()
}

/// CPU time in nanoseconds that the threads would save, and the saved share of the wall time.
///
/// The program took `elapsed_ns`, and would have taken `stretch` times less without recording. The run ends
/// when the last of the threads ends, which gives the lower bound of the saving; the upper bound is the
/// saving of the thread that is slowed down most. If the two are close, it is mostly chance which thread is
/// slowed down more, and their middle is reported. If not, one thread loses little, and the other, which
/// may only wait, makes nothing end sooner: the lower bound is reported. Threads that are known to wait for
/// the others make nothing end sooner or later.
pub(crate) fn saved(
    elapsed_ns: f64,
    stretch: f64,
    costs: &BTreeMap<ThreadId, Cost>,
    part: impl Fn(ThreadId) -> f64,
) -> (f64, Share) {
    let elapsed_ns = elapsed_ns / stretch;
    let all_wait = costs.values().all(|cost| cost.waits);
    let decides = |cost: &Cost| all_wait || !cost.waits;
    let slowed_ns = |of: fn(&Share) -> f64, thread: &ThreadId, cost: &Cost| {
        of(&cost.share) * cost.time_ns * part(*thread)
    };
    let slowed = |of: fn(&Share) -> f64| -> Vec<(f64, f64)> {
        let deciding = costs.iter().filter(|(_, cost)| decides(cost));
        let of_thread =
            deciding.map(|(thread, cost)| (cost.end_ns / stretch, slowed_ns(of, thread, cost)));
        of_thread.collect()
    };
    let ends = costs.values().filter(|cost| decides(cost));
    let end = ends.map(|cost| cost.end_ns / stretch).fold(0.0, f64::max);
    let least = |of: fn(&Share) -> f64| {
        let ends = slowed(of).into_iter().map(|(end, ns)| end - ns);
        (end - ends.fold(0.0, f64::max)) / elapsed_ns.max(1.0)
    };
    let most = |of: fn(&Share) -> f64| {
        let slowed = slowed(of).into_iter().map(|(_, ns)| ns);
        slowed.fold(0.0, f64::max) / elapsed_ns.max(1.0)
    };
    let value = |share: &Share| share.value;
    let (fewest, largest) = (least(value), most(value));
    let usual = match largest - fewest <= MAX_CHANCE_DIFFERENCE {
        true => f64::midpoint(fewest, largest),
        false => fewest,
    };
    let share = Share {
        value: usual.clamp(0.0, 1.0),
        low: (least(|share| share.low) - COURSE_ERROR).clamp(0.0, 1.0),
        high: (most(|share| share.high) + COURSE_ERROR).clamp(0.0, 1.0),
    };
    // A thread that waits ends as much sooner as those for which it waits.
    let deciding_ns: f64 = costs
        .values()
        .filter(|cost| decides(cost))
        .map(|cost| cost.time_ns)
        .sum();
    let decided = slowed(value).iter().map(|(_, ns)| ns).sum::<f64>() / deciding_ns.max(1.0);
    let cpu_ns = costs
        .iter()
        .map(|(thread, cost)| match decides(cost) {
            true => slowed_ns(value, thread, cost),
            false => decided * cost.time_ns,
        })
        .sum();
    (cpu_ns, share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(trial: u32, alone: bool, cpu_ns: u64, progress: u64) -> Hold {
        Hold {
            t_ns: 0,
            trial,
            thread: ThreadId(0),
            line: 64,
            alone,
            wall_ns: 700_000,
            cpu_ns,
            progress,
        }
    }

    /// Spans of several trials; the unit of progress differs from trial to trial.
    fn rows(trials: u32, alone_ns: f64, all_ns: f64) -> Vec<Hold> {
        let mut rows = Vec::new();
        for trial in 0..trials {
            let unit = f64::from(1 + trial);
            for number in 0..5 {
                let cpu = 690_000 + number * 100;
                let steps = |step_ns: f64| (cpu as f64 / step_ns * unit) as u64;
                rows.push(hold(trial, true, cpu, steps(alone_ns)));
                rows.push(hold(trial, false, cpu, steps(all_ns)));
            }
        }
        rows
    }

    fn shared(rows: &[Hold]) -> Option<Share> {
        let rows: Vec<&Hold> = rows.iter().collect();
        Some(share(&rows)?.0)
    }

    #[test]
    fn the_share_is_the_time_saved_per_step_when_alone() {
        let measured = shared(&rows(3, 2.0, 8.0)).unwrap();
        assert!((measured.value - 0.75).abs() < 0.01, "{measured:?}");
        assert!(measured.low < 0.75 && measured.high > 0.75 && measured.high - measured.low < 0.1);
        let none = shared(&rows(3, 2.0, 2.0)).unwrap();
        assert!(none.value < 0.01 && none.low == 0.0, "{none:?}");
        assert_eq!(shared(&rows(3, 2.0, 8.0)[..4]), None);
    }

    #[test]
    fn spans_in_which_a_thread_waits_for_a_stopped_one_are_dropped() {
        let mut waiting = rows(2, 2.0, 2.0);
        for row in waiting.iter_mut().filter(|row| row.alone) {
            row.cpu_ns /= 10;
            row.progress /= 40;
        }
        assert_eq!(shared(&waiting), None);
    }

    #[test]
    fn a_line_is_used_between_samples_that_are_close() {
        let ms = |times: &[u64]| -> Vec<u64> { times.iter().map(|it| it * 1_000_000).collect() };
        let periods = |times: &[u64]| -> Vec<[u64; 2]> {
            let periods = periods_of_use(ms(times));
            let ends = periods.iter().map(|it| [*it.start(), *it.end()]);
            ends.map(|ends| ends.map(|end| end / 1_000_000)).collect()
        };
        assert_eq!(periods(&[]), Vec::<[u64; 2]>::new());
        assert_eq!(periods(&[5, 100, 15]), [[0, 25], [90, 110]]);
        assert_eq!(
            periods(&[50, 90, 120, 160, 280, 310, 1000]),
            [[40, 320], [990, 1010]],
            "one sample in many is in this code"
        );
        assert_eq!(
            periods(&[100, 105, 110, 200, 205, 210]),
            [[90, 120], [190, 220]],
            "phases are apart"
        );
        assert_eq!(periods(&[100, 5000]), [[90, 110], [4990, 5010]]);
    }

    #[test]
    fn the_run_ends_when_the_last_thread_does() {
        let share = |value| Share {
            value,
            low: value,
            high: value,
        };
        let cost = |value, end_ns| Cost {
            share: share(value),
            time_ns: 600.0,
            end_ns,
            waits: false,
            spans: 20,
        };
        let costs = BTreeMap::from([
            (ThreadId(0), cost(0.2, 600.0)),
            (ThreadId(1), cost(0.8, 1000.0)),
        ]);
        let (cpu_ns, wall) = saved(1000.0, 1.0, &costs, |_| 1.0);
        assert!((cpu_ns - 600.0).abs() < 1e-9);
        assert!(
            (wall.value - 0.48).abs() < 1e-9,
            "the second one is the last: {wall:?}"
        );
        assert!(wall.low < 0.48 && wall.high > 0.48);
        let later = |cost: Cost| Cost {
            end_ns: 1.25 * cost.end_ns,
            ..cost
        };
        let costs: BTreeMap<_, _> = costs
            .into_iter()
            .map(|(it, cost)| (it, later(cost)))
            .collect();
        let (_, recorded) = saved(1250.0, 1.25, &costs, |_| 1.0);
        assert!(
            (recorded.value - wall.value).abs() < 1e-9,
            "of what it takes without being recorded: {recorded:?}"
        );
        let poller = BTreeMap::from([
            (ThreadId(0), cost(0.05, 600.0)),
            (ThreadId(1), cost(0.8, 600.0)),
        ]);
        let (_, polled) = saved(600.0, 1.0, &poller, |_| 1.0);
        assert!((polled.value - 0.05).abs() < 1e-9, "{polled:?}");
        assert!(polled.low < 0.05 && polled.high > 0.8);
        let mut known = poller;
        for cost in known.values_mut() {
            cost.waits = cost.share.value < 0.1;
        }
        let (cpu_ns, waited_for) = saved(600.0, 1.0, &known, |_| 1.0);
        assert!((waited_for.value - 0.8).abs() < 1e-9, "{waited_for:?}");
        assert!(
            (cpu_ns - 2.0 * 480.0).abs() < 1e-9,
            "both end sooner: {cpu_ns}"
        );
        assert!(waited_for.low > 0.7, "{waited_for:?}");
        let (_, none) = saved(1000.0, 1.0, &costs, |_| 0.0);
        assert_eq!((none.value, none.low), (0.0, 0.0));
    }
}
