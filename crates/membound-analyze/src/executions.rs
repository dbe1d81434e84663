//! Estimates how often sites executed over the whole run, from windows in which they were counted and from
//! iterations of their loops (`Laps`).
//!
//! A count is extrapolated to the rest of the run by time, though only by the time of samples in the site's
//! own **stratum**: the innermost loop around it (with everything the loop encloses), or its function if it
//! is in no loop. With n executions counted while the stratum used t nanoseconds, and T nanoseconds of the
//! stratum in samples outside of the windows, the estimate is n + n ÷ t · T. So each phase of the program
//! counts only for itself, and initialisation does not count for later phases. t is not measured directly:
//! it is the share of the window's samples that lay in the stratum, times the window's CPU time without the
//! patches' cost, for which the recorder gives bounds. Samples of processes that have no patches are not of
//! that share, since nothing counts there; their time is extrapolated to, as all time outside of windows.
//!
//! Iterations need no patch: where a site's loop has a register that counts, n and t come from samples.
//! Other sites of the same loop nest follow by the ratio of their counts to such a site's counts in the
//! same windows; the cost of patches cancels in that ratio.

use std::collections::{BTreeMap, BTreeSet};

use membound_model::stall::{CACHED_LOOP_ERROR, Estimate, Executed};
use membound_model::stats::Z95;
use membound_run::{Executions, FrameId, Laps, ModuleId, RunData, SiteId};
use rustc_hash::FxHashMap;

use crate::decoding::Functions;
use crate::entries::{self, variance_between};
use crate::info;
use crate::machine::Machine;
use crate::places::{FunctionId, Places};
use crate::span::Span;
use crate::tally::Waits;
use crate::work;

/// Assumed spread of execution rates between windows, as a share of the rate, before any are compared. It
/// has the weight of one window.
const PRIOR_SPREAD: f64 = 0.2;

/// Error of the estimated cost of patches, as a share of a window's time. It is the same in all windows, so
/// that more windows do not reduce it.
const COST_ERROR: f64 = 0.04;

/// Largest factor from an estimate to an end of its interval; a wider interval would say no more.
const MAX_WIDENING: f64 = 1e3;

/// Samples of the stratum within windows from which on a count of 0 means that the site did not execute.
const MIN_WINDOWS_IN_STRATUM: u64 = 3;

/// If a site's windows hold fewer samples of the program than this, samples in patches count too when the
/// stratum's share is estimated.
const MIN_WINDOW_SAMPLES: u64 = 10;

/// An iteration-based estimate below this part of the lower end of the count from windows is rejected.
///
/// Patches can only lower the windows' rate, so a lower rate of iterations means that the loop was left and
/// entered again between samples.
const MIN_PLAUSIBLE_RATE_RATIO: f64 = 0.8;

/// Upper limit of a loop's iterations per cycle of the measured core clock: each takes a branch. A core may
/// run somewhat faster than when it was measured.
const MAX_ITERATIONS_PER_CYCLE: f64 = 1.25;

/// Windows in which sites were counted.
#[derive(Debug)]
pub(crate) struct Windows {
    /// Sorted by site, then time.
    windows: Vec<Executions>,
    /// Index of each site's first window; one more entry than there are sites.
    starts: Vec<u32>,
}

impl Windows {
    pub(crate) fn new(run: &RunData) -> Self {
        let mut windows: Vec<Executions> = run.executions.clone();
        windows.sort_by_key(|window| (window.site, window.from_ns, window.to_ns, window.count));
        let mut starts = vec![0_u32; run.sites.len() + 1];
        for window in &windows {
            starts[window.site.index() + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Self { windows, starts }
    }

    /// Windows of `site`, by time.
    pub(crate) fn of(&self, site: SiteId) -> &[Executions] {
        let index = site.index();
        &self.windows[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    /// Index, among the windows of `site`, of the window that contains `t_ns`.
    pub(crate) fn at(&self, site: SiteId, t_ns: u64) -> Option<usize> {
        let of_site = self.of(site);
        let behind = of_site.partition_point(|window| window.from_ns <= t_ns);
        let last = behind.checked_sub(1)?;
        (t_ns < of_site[last].to_ns).then_some(last)
    }
}

/// Code that executes together: a loop or a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stratum {
    /// Loop, by its module and the address of its first instruction.
    Loop(Option<ModuleId>, u64),
    Function(FunctionId),
}

/// Samples in order of time, with running sums of their weights.
#[derive(Debug, Default)]
struct Series {
    t_ns: Vec<u64>,
    /// Sum of the weights of all earlier samples; one more entry than there are samples.
    before_ns: Vec<u64>,
}

impl Series {
    fn of(mut samples: Vec<(u64, u64)>) -> Self {
        samples.sort_unstable();
        let mut series = Self {
            t_ns: Vec::with_capacity(samples.len()),
            before_ns: vec![0],
        };
        let mut sum: u64 = 0;
        for (t_ns, weight_ns) in samples {
            sum = sum.saturating_add(weight_ns);
            series.t_ns.push(t_ns);
            series.before_ns.push(sum);
        }
        series
    }

    /// Number of samples from `from_ns` to before `to_ns`, and their time in nanoseconds.
    fn within(&self, from_ns: u64, to_ns: u64) -> (u64, u64) {
        let from = self.t_ns.partition_point(|t_ns| *t_ns < from_ns);
        let to = self.t_ns.partition_point(|t_ns| *t_ns < to_ns).max(from);
        (
            (to - from) as u64,
            self.before_ns[to] - self.before_ns[from],
        )
    }
}

/// Samples of the program in total, and of each stratum that contains a site.
struct Strata {
    of_site: Vec<Stratum>,
    /// Strata that contain each site, its own stratum included.
    around_site: Vec<BTreeSet<Stratum>>,
    /// Samples that lay in patches, by the strata of the patched instruction.
    patched: FxHashMap<Stratum, Series>,
    plain: FxHashMap<Stratum, Series>,
    /// Samples of processes without patches.
    unpatched: FxHashMap<Stratum, Series>,
    all_plain: Series,
    all_patched: Series,
    /// CPU time between two samples of a thread, in nanoseconds.
    period_ns: f64,
    /// Upper limit of a loop's iterations per nanosecond; infinite if the core clock is not known.
    max_iterations_per_ns: f64,
    /// Time in nanoseconds of an iteration in the first cache, of loops for which it was measured.
    cached_ns: FxHashMap<work::Loop, Estimate>,
}

impl Strata {
    fn new(run: &RunData, machine: &Machine<'_>, places: &Places<'_>) -> Self {
        let loops = loops_by_frame(run);
        // From the innermost loop outwards.
        let strata_of = |frame: FrameId| {
            let module = run.frames[frame.index()].module;
            let around = loops.get(&frame).into_iter().flatten();
            around
                .map(|(_, start)| Stratum::Loop(module, *start))
                .chain([Stratum::Function(places.function_of(frame))])
                .collect::<Vec<_>>()
        };
        let around: Vec<Vec<Stratum>> =
            run.sites.iter().map(|site| strata_of(site.frame)).collect();
        let of_site: Vec<Stratum> = around.iter().map(|strata| strata[0]).collect();
        let strata_of_sites: BTreeSet<Stratum> = of_site.iter().copied().collect();
        let mut strata_by_frame: FxHashMap<FrameId, Vec<Stratum>> = FxHashMap::default();
        let mut patched: FxHashMap<Stratum, Vec<(u64, u64)>> = FxHashMap::default();
        let mut plain: FxHashMap<Stratum, Vec<(u64, u64)>> = FxHashMap::default();
        let mut unpatched: FxHashMap<Stratum, Vec<(u64, u64)>> = FxHashMap::default();
        let (mut all_plain, mut all_patched) = (Vec::new(), Vec::new());
        for sample in &run.samples {
            let stack = &run.stacks[sample.stack.index()];
            let own = info::is_own(run, stack.frame);
            let caller = stack.parent.map(|parent| run.stacks[parent.index()].frame);
            let frame = match caller {
                // A sample in a patch has the patched instruction as its caller.
                Some(caller) if own && !info::is_own(run, caller) => caller,
                _ if own => continue,
                _ => stack.frame,
            };
            let at = (sample.t_ns, sample.weight_ns);
            let (series, all) = if own {
                (&mut patched, &mut all_patched)
            } else if !info::is_patched(run, sample.thread) {
                (&mut unpatched, &mut all_plain)
            } else {
                (&mut plain, &mut all_plain)
            };
            all.push(at);
            let strata = strata_by_frame.entry(frame).or_insert_with(|| {
                let strata = strata_of(frame).into_iter();
                strata.filter(|it| strata_of_sites.contains(it)).collect()
            });
            for stratum in strata {
                series.entry(*stratum).or_default().push(at);
            }
        }
        let in_order = |series: FxHashMap<Stratum, Vec<(u64, u64)>>| {
            let series = series.into_iter();
            series
                .map(|(stratum, samples)| (stratum, Series::of(samples)))
                .collect()
        };
        Self {
            cached_ns: work::cached_ns(run),
            of_site,
            around_site: around
                .into_iter()
                .map(|strata| strata.into_iter().collect())
                .collect(),
            patched: in_order(patched),
            plain: in_order(plain),
            unpatched: in_order(unpatched),
            all_plain: Series::of(all_plain),
            all_patched: Series::of(all_patched),
            period_ns: run.meta.period_ns.max(1) as f64,
            max_iterations_per_ns: machine
                .cycles(1.0)
                .map_or(f64::INFINITY, |cycles| MAX_ITERATIONS_PER_CYCLE * cycles),
        }
    }

    /// Upper limit of the iterations of a loop per nanosecond.
    fn max_iterations_per_ns(&self, of_loop: Stratum) -> f64 {
        let cached_ns = match of_loop {
            Stratum::Loop(Some(module), start) => self.cached_ns.get(&(module, start)),
            Stratum::Loop(None, _) | Stratum::Function(_) => None,
        };
        let most = cached_ns.map(|ns| 1.0 / (ns.low * (1.0 - CACHED_LOOP_ERROR)));
        most.map_or(self.max_iterations_per_ns, |most| {
            most.min(self.max_iterations_per_ns)
        })
    }
}

/// Level and address of the first instruction of the loops around each frame, innermost first.
fn loops_by_frame(run: &RunData) -> FxHashMap<FrameId, Vec<(u32, u64)>> {
    let mut loops: FxHashMap<FrameId, Vec<(u32, u64)>> = FxHashMap::default();
    for around in &run.loops {
        let of_frame = loops.entry(around.frame).or_default();
        of_frame.push((around.level, around.start));
    }
    for of_frame in loops.values_mut() {
        of_frame.sort_unstable();
    }
    loops
}

/// Count of executions with the time of the stratum in which it was made.
#[derive(Clone, Copy, Debug)]
struct Rated {
    count: f64,
    /// Time of the stratum without patches, in nanoseconds, with bounds.
    ns: f64,
    least_ns: f64,
    most_ns: f64,
    /// Variance of `ns` due to sampling.
    variance: f64,
}

/// Time of a stratum to which a rate is extrapolated.
#[derive(Clone, Copy, Debug)]
struct Outside {
    ns: f64,
    /// Standard error of `ns`, as a share of it.
    error: f64,
    /// Time in patches of the stratum's instructions.
    patched_ns: f64,
}

/// Pooled execution rate of several windows.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    count: f64,
    ns: f64,
    /// Factors from `ns` to its lower and upper bound.
    least: f64,
    most: f64,
    /// Standard error of the rate, as a share of it.
    error: f64,
}

impl Rate {
    fn of(windows: &[Rated]) -> Self {
        let sum = |part: fn(&Rated) -> f64| windows.iter().map(part).sum::<f64>();
        let (count, ns) = (sum(|it| it.count), sum(|it| it.ns));
        if ns <= 0.0 {
            return Self::default();
        }
        let typical = count / ns;
        let timed = windows.iter().filter(|it| typical > 0.0 && it.ns > 0.0);
        // A long window determines the typical rate better than a short one.
        let differences = timed.map(|it| (it.ns / ns, it.count / it.ns / typical - 1.0));
        let spread = variance_between(differences, windows.len(), PRIOR_SPREAD);
        let chance = sum(|it| it.variance) / (ns * ns);
        Self {
            count,
            ns,
            least: (sum(|it| it.least_ns) / ns).min(1.0),
            most: (sum(|it| it.most_ns) / ns).max(1.0),
            error: (spread + chance + COST_ERROR * COST_ERROR).sqrt(),
        }
    }

    /// Extrapolates the rate to more time of the stratum, and adds what was counted.
    fn extended(&self, counted: f64, outside: Outside) -> Executed {
        if self.ns <= 0.0 {
            return exactly(counted);
        }
        let each = self.count / self.ns;
        let factor = widening(self.error.hypot(outside.error));
        // It is unknown how much of the time in patches the program would have used without them: half as
        // the estimate, none and all as the bounds.
        let more = |part: f64| each * part.mul_add(outside.patched_ns, outside.ns);
        Executed {
            count: counted + more(0.5),
            low: counted + more(0.0) / factor / self.most.min(MAX_WIDENING),
            high: counted + more(1.0) * factor / self.least.max(MAX_WIDENING.recip()),
        }
    }
}

/// Factor from an estimate to the ends of its 95 % interval; `error` is the standard error as a share.
fn widening(error: f64) -> f64 {
    (Z95 * error).exp().min(MAX_WIDENING)
}

const fn exactly(count: f64) -> Executed {
    Executed {
        count,
        low: count,
        high: count,
    }
}

/// Executions of each site in `span`, by [`SiteId`]; `None` where there is no evidence.
///
/// The rate comes from the site's windows that touch the span, or from all its windows if none does, and is
/// extrapolated to the time of the stratum in the span.
pub(crate) fn executed(
    run: &RunData,
    machine: &Machine<'_>,
    span: Span,
    waits: &Waits,
    places: &Places<'_>,
    windows: &Windows,
) -> Vec<Option<Executed>> {
    if run.executions.is_empty() && run.laps.is_empty() {
        return vec![None; run.sites.len()];
    }
    let strata = Strata::new(run, machine, places);
    let mut laps: BTreeMap<SiteId, Vec<Laps>> = BTreeMap::new();
    for row in &run.laps {
        laps.entry(row.site).or_default().push(*row);
    }
    let waited = waited_ns_by_site(run, span, waits);
    let from_entries = entries::windows_of_sites(run, &Functions::new(run));
    let mut by_iterations: BTreeMap<SiteId, Executed> = BTreeMap::new();
    let mut executed: Vec<Option<Executed>> = (0..run.sites.len())
        .map(|index| {
            let site = SiteId(index as u32);
            let one = OfSite::new(&strata, span, site, windows.of(site));
            let counted = one.counted(waited[index]);
            let from_entries = from_entries.get(&site).and_then(|windows| {
                OfSite::new(&strata, span, site, windows).counted(waited[index])
            });
            let counted = counted.map(|counted| surer(counted, from_entries));
            let of_iterations = laps.get(&site).and_then(|rows| one.of_loop(rows, counted));
            if let Some(of_iterations) = of_iterations {
                by_iterations.insert(site, of_iterations);
            }
            of_iterations.or(counted)
        })
        .collect();
    for (index, executed) in executed.iter_mut().enumerate() {
        let site = SiteId(index as u32);
        if executed.is_some() && !by_iterations.contains_key(&site) {
            let from_related = from_related_site(site, &strata, windows, &by_iterations);
            *executed = from_related.or(*executed);
        }
    }
    executed
}

/// Time of samples in `span` that waited for each site, in nanoseconds.
fn waited_ns_by_site(run: &RunData, span: Span, waits: &Waits) -> Vec<u64> {
    let mut waited = vec![0_u64; run.sites.len()];
    for sample in run.samples.iter().filter(|it| span.has(it.t_ns)) {
        let frame = run.stacks[sample.stack.index()].frame;
        for wait in waits.of(frame) {
            let sum = &mut waited[wait.site.index()];
            *sum = sum.saturating_add(sample.weight_ns);
        }
    }
    waited
}

struct OfSite<'a> {
    strata: &'a Strata,
    span: Span,
    site: SiteId,
    /// Windows whose rates are used.
    windows: Vec<Executions>,
    /// Parts of the windows that lie in the span: their counts are known, not extrapolated.
    inside: Vec<Executions>,
}

impl<'a> OfSite<'a> {
    fn new(strata: &'a Strata, span: Span, site: SiteId, windows: &[Executions]) -> Self {
        let inside: Vec<Executions> = windows
            .iter()
            .filter_map(|window| span.cut_window(window))
            .collect();
        let touching = windows
            .iter()
            .filter(|window| inside.is_empty() || span.cut_window(window).is_some());
        Self {
            strata,
            span,
            site,
            windows: touching.copied().collect(),
            inside,
        }
    }

    /// Executions counted within the span.
    fn counted_inside(&self) -> f64 {
        self.inside.iter().map(|window| window.count as f64).sum()
    }

    fn stratum(&self) -> Stratum {
        self.strata.of_site[self.site.index()]
    }

    /// Time of the stratum in the span, outside of the site's windows.
    fn outside(&self) -> Outside {
        let in_span = |series: &Series| series.within(self.span.from_ns, self.span.to_ns);
        let (mut all, _) = in_span(&self.strata.all_plain);
        let (mut mine, mut mine_ns) = self
            .strata
            .plain
            .get(&self.stratum())
            .map_or((0, 0), in_span);
        for window in &self.inside {
            let (number, _) = self.strata.all_plain.within(window.from_ns, window.to_ns);
            all = all.saturating_sub(number);
            if let Some(series) = self.strata.plain.get(&self.stratum()) {
                let (number, ns) = series.within(window.from_ns, window.to_ns);
                mine = mine.saturating_sub(number);
                mine_ns = mine_ns.saturating_sub(ns);
            }
        }
        if let Some(series) = self.strata.unpatched.get(&self.stratum()) {
            let (number, ns) = in_span(series);
            mine = mine.saturating_add(number);
            mine_ns = mine_ns.saturating_add(ns);
        }
        let share = mine as f64 / all.max(1) as f64;
        let error = ((1.0 - share).max(0.0) / mine.max(1) as f64).sqrt();
        // Patches stay installed for a while before and after windows.
        let mut patched_ns = 0;
        if let Some(series) = self.strata.patched.get(&self.stratum()) {
            patched_ns = in_span(series).1;
            for window in &self.inside {
                let (_, ns) = series.within(window.from_ns, window.to_ns);
                patched_ns = patched_ns.saturating_sub(ns);
            }
        }
        Outside {
            ns: mine_ns as f64,
            error,
            patched_ns: patched_ns as f64,
        }
    }

    /// Estimate from the site's windows; `waited_ns` is the time of samples that waited for the site.
    fn counted(&self, waited_ns: u64) -> Option<Executed> {
        if self.windows.is_empty() {
            return None;
        }
        let counted = self.counted_inside();
        let rated: f64 = self.windows.iter().map(|window| window.count as f64).sum();
        let window_samples: Vec<WindowSamples> = self
            .windows
            .iter()
            .map(|window| self.samples_of(window))
            .collect();
        let sum = |part: fn(&WindowSamples) -> u64| window_samples.iter().map(part).sum::<u64>();
        let (mine, all) = (sum(|it| it.mine), sum(|it| it.all));
        let (mine_patched, all_patched) = (sum(|it| it.mine_patched), sum(|it| it.all_patched));
        let outside = self.outside();
        if rated == 0.0 {
            // A count of 0 in the windows is no evidence about code that executed only at other times.
            let never = waited_ns == 0 && mine + mine_patched >= MIN_WINDOWS_IN_STRATUM;
            let over = outside.ns == 0.0;
            return (never || over).then(|| exactly(0.0));
        }
        let with_patched = all < MIN_WINDOW_SAMPLES;
        let share = |mine: u64, mine_patched: u64, all: u64, all_patched: u64, pull: f64| {
            let (mine, all) = if with_patched {
                (mine + mine_patched, all + all_patched)
            } else {
                (mine, all)
            };
            (mine as f64 + pull, all as f64 + 1.0)
        };
        let (part, of) = share(mine, mine_patched, all, all_patched, 0.5);
        // Without samples in the windows, assume that the stratum had all of their time.
        let usual = if of > 1.0 { (part / of).min(1.0) } else { 1.0 };
        let rated: Vec<Rated> = self
            .windows
            .iter()
            .zip(&window_samples)
            .map(|(window, window_samples)| {
                let (part, of) = share(
                    window_samples.mine,
                    window_samples.mine_patched,
                    window_samples.all,
                    window_samples.all_patched,
                    usual,
                );
                let share = (part / of).clamp(0.0, 1.0);
                let least = window.least_cpu_ns.unwrap_or(window.cpu_ns) as f64;
                let most = window.most_cpu_ns.unwrap_or(window.cpu_ns) as f64;
                let cpu_ns = window.cpu_ns as f64;
                Rated {
                    count: window.count as f64,
                    ns: share * cpu_ns,
                    least_ns: share * least.min(cpu_ns),
                    most_ns: share * most.max(cpu_ns),
                    variance: cpu_ns * cpu_ns * share * (1.0 - share) / of,
                }
            })
            .collect();
        let rate = Rate::of(&rated);
        Some(rate.extended(counted, outside))
    }

    /// Estimate from iterations of the site's loop, rejected if the count from windows shows that
    /// iterations were missed.
    fn of_loop(&self, rows: &[Laps], counted: Option<Executed>) -> Option<Executed> {
        let touches = |row: &&Laps| self.span.cut(row.from_ns, row.to_ns).is_some();
        let elsewhere = !rows.iter().any(|row| touches(&row));
        let rows = rows.iter().filter(|row| elsewhere || touches(row));
        let rows: Vec<Laps> = rows.copied().collect();
        let rated: Vec<Rated> = rows
            .iter()
            .map(|row| {
                let ns = row.cpu_ns as f64;
                // `cpu_ns` comes from samples where the kernel took part of the time: hence the variance.
                let share = (ns / row.to_ns.saturating_sub(row.from_ns).max(1) as f64).min(1.0);
                let samples = ns / self.strata.period_ns;
                Rated {
                    count: row.count as f64,
                    ns,
                    least_ns: ns,
                    most_ns: ns,
                    variance: ns * ns * (1.0 - share) / samples.max(1.0),
                }
            })
            .collect();
        let rate = Rate::of(&rated);
        let all = rate.extended(self.counted_inside(), self.outside());
        let least = counted.map_or(0.0, |counted| counted.low);
        if rate.ns <= 0.0 || all.count < MIN_PLAUSIBLE_RATE_RATIO * least {
            return None;
        }
        let factor = more_often(&rows, self.strata.max_iterations_per_ns(self.stratum()));
        Some(if_begun_again(all, factor, counted))
    }

    fn samples_of(&self, window: &Executions) -> WindowSamples {
        let within = |series: &Series| series.within(window.from_ns, window.to_ns).0;
        let stratum = self.stratum();
        WindowSamples {
            mine: self.strata.plain.get(&stratum).map_or(0, within),
            mine_patched: self.strata.patched.get(&stratum).map_or(0, within),
            all: within(&self.strata.all_plain),
            all_patched: within(&self.strata.all_patched),
        }
    }
}

/// The executions `other`, if they do not contradict what was counted in windows of the site and are known better.
fn surer(counted: Executed, other: Option<Executed>) -> Executed {
    let width = |it: &Executed| it.high / it.low.max(f64::MIN_POSITIVE);
    other
        .filter(|it| it.count > 0.0 && it.low <= counted.high && counted.low <= it.high)
        .filter(|it| width(it) < width(&counted))
        .unwrap_or(counted)
}

/// Factor from the iterations in `rows` to those if their loops began again once more between each two
/// samples; `None` if no loop runs at more than `max_per_ns`.
fn more_often(rows: &[Laps], max_per_ns: f64) -> Option<f64> {
    let count: u64 = rows.iter().map(|row| row.count).sum();
    let more = rows.iter().map(|row| {
        let more = row.more_count;
        let more = more.filter(|more| *more as f64 <= max_per_ns * row.cpu_ns as f64);
        more.unwrap_or(row.count)
    });
    let factor = more.sum::<u64>() as f64 / count.max(1) as f64;
    (factor > 1.0).then_some(factor)
}

/// The executions `all`, or `factor` as many or still more: the count from windows decides, or bounds them.
fn if_begun_again(all: Executed, factor: Option<f64>, counted: Option<Executed>) -> Executed {
    let Some(factor) = factor else { return all };
    let most = counted.map_or(f64::INFINITY, |counted| counted.high);
    if factor * all.low > most {
        return all;
    }
    Executed {
        low: counted.map_or(all.low, |counted| counted.low.max(all.low)),
        high: most.min(factor * all.high).max(all.high),
        ..all
    }
}

/// Numbers of samples in a window: of the stratum and of the program, each outside of and in patches.
#[derive(Clone, Copy, Debug)]
struct WindowSamples {
    mine: u64,
    mine_patched: u64,
    all: u64,
    all_patched: u64,
}

/// Estimate from the ratio of the site's counts to those of another site in the same windows whose
/// executions are known from iterations, where one site's loop encloses the other's.
fn from_related_site(
    site: SiteId,
    strata: &Strata,
    windows: &Windows,
    by_iterations: &BTreeMap<SiteId, Executed>,
) -> Option<Executed> {
    let mine = strata.of_site[site.index()];
    let related = by_iterations.iter().filter(|(other, _)| {
        let others = strata.of_site[other.index()];
        strata.around_site[site.index()].contains(&others)
            || strata.around_site[other.index()].contains(&mine)
    });
    let candidates = related.filter_map(|(other, executed)| {
        let mut rated = Vec::new();
        for window in windows.of(site) {
            let same = windows.of(*other).iter();
            let same = same
                .filter(|it| (it.from_ns, it.to_ns) == (window.from_ns, window.to_ns))
                .max_by_key(|it| it.count);
            let related_count = same.map_or(0.0, |it| it.count as f64);
            rated.push(Rated {
                count: window.count as f64,
                ns: related_count,
                least_ns: related_count,
                most_ns: related_count,
                variance: 0.0,
            });
        }
        let ratio = Rate::of(&rated);
        if ratio.ns <= 0.0 || rated.iter().any(|it| it.ns <= 0.0 && it.count > 0.0) {
            return None;
        }
        let each = ratio.count / ratio.ns;
        let factor = widening(ratio.error);
        let found = Executed {
            count: each * executed.count,
            low: each * executed.low / factor,
            high: each * executed.high * factor,
        };
        Some((ratio.ns, found))
    });
    candidates
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rated(count: f64, ns: f64) -> Rated {
        Rated {
            count,
            ns,
            least_ns: ns,
            most_ns: ns,
            variance: 0.0,
        }
    }

    const NOTHING_PATCHED: Outside = Outside {
        ns: 900.0,
        error: 0.0,
        patched_ns: 0.0,
    };

    #[test]
    fn a_count_is_carried_over_by_the_stratum_s_time() {
        let rate = Rate::of(&[rated(50.0, 50.0), rated(50.0, 50.0)]);
        let all = rate.extended(100.0, NOTHING_PATCHED);
        assert!((all.count - 1000.0).abs() < 1e-9);
        assert!(all.low < 900.0 && all.low > 500.0, "{all:?}");
        // More windows that agree narrow the interval.
        let many_rates: Vec<Rated> = (0..50).map(|_| rated(2.0, 2.0)).collect();
        let surer = Rate::of(&many_rates).extended(100.0, NOTHING_PATCHED);
        assert!(surer.low > all.low && surer.high < all.high);
        // Windows that disagree widen it.
        let differing: Vec<Rated> = (0..50)
            .map(|number| rated(f64::from(number % 2) * 4.0, 2.0))
            .collect();
        let less = Rate::of(&differing).extended(100.0, NOTHING_PATCHED);
        assert!(less.low < surer.low && less.high > surer.high);
    }

    #[test]
    fn what_patches_may_have_taken_widens_the_interval_on_its_side() {
        let slowed = Rated {
            least_ns: 20.0,
            ..rated(100.0, 100.0)
        };
        let all = Rate::of(&[slowed]).extended(100.0, NOTHING_PATCHED);
        let plain = Rate::of(&[rated(100.0, 100.0)]).extended(100.0, NOTHING_PATCHED);
        assert_eq!(all.count, plain.count);
        assert_eq!(all.low, plain.low);
        assert!(all.high > 4.0 * plain.high);
        let patched = Outside {
            patched_ns: 100.0,
            ..NOTHING_PATCHED
        };
        let around = Rate::of(&[rated(100.0, 100.0)]).extended(100.0, patched);
        assert!(around.count > plain.count && around.low == plain.low);
        assert!(around.high > plain.high);
    }

    #[test]
    fn loops_that_begin_again_have_the_fewer_iterations_where_windows_exclude_more() {
        let executed = |low, count, high| Executed { count, low, high };
        let laps = |count, more_count| Laps {
            site: SiteId(0),
            thread: membound_run::ThreadId(0),
            from_ns: 0,
            to_ns: 1_000,
            count,
            more_count,
            cpu_ns: 1_000,
        };
        assert_eq!(more_often(&[laps(100, None)], f64::INFINITY), None);
        let rows = [laps(100, Some(500)), laps(100, None)];
        assert_eq!(more_often(&rows, 0.4), None);
        let factor = more_often(&rows, 0.6);
        assert_eq!(factor, Some(3.0));
        let all = executed(90.0, 100.0, 110.0);
        assert_eq!(if_begun_again(all, None, None), all);
        let windows = executed(10.0, 15.0, 250.0);
        assert_eq!(if_begun_again(all, factor, Some(windows)), all);
        let wider = executed(10.0, 15.0, 300.0);
        let unknown = executed(90.0, 100.0, 300.0);
        assert_eq!(if_begun_again(all, factor, Some(wider)), unknown);
        let free = executed(90.0, 100.0, 330.0);
        assert_eq!(if_begun_again(all, factor, None), free);
    }

    #[test]
    fn samples_are_found_by_time() {
        let series = Series::of(vec![(30, 3), (10, 1), (20, 2)]);
        assert_eq!(series.within(10, 30), (2, 3));
        assert_eq!(series.within(11, 31), (2, 5));
        assert_eq!(series.within(31, 5), (0, 0));
        assert_eq!(series.within(0, u64::MAX), (3, 6));
    }
}
