//! The table that all others are sums of: time and stall by access, thread and object.
//!
//! Every view is a sum over these parts, so that views agree with each other and with the whole.

use std::collections::{BTreeMap, BTreeSet};

use membound_model::stall::{ByLevel, Estimate, Executed, Served, Stall};
use membound_run::{Access, RunData, SiteId, ThreadId};

use crate::groups::{GroupId, Groups};
use crate::machine::Machine;
use crate::recorded_accesses::{AccessTotal, Counts, RecordedAccesses};
use crate::sites::{self, SiteCost};
use crate::tally::{SiteTime, Tally};

/// Timed accesses from which on a site's stall is divided by their latencies instead of by samples.
const MIN_TIMED_ACCESSES: u64 = 50;

/// Samples with known object from which on they divide a site's stall: they fall where time is lost,
/// whether or not a window was open.
const MIN_SAMPLES: f64 = 30.0;

/// Share of a site's time for which the object must then be known; accesses to the unknown rest may be of
/// another kind.
const MIN_KNOWN_TIME_SHARE: f64 = 0.6;

/// Timed accesses to one object from which on its levels are fitted separately.
const MIN_TIMED_ACCESSES_FOR_LEVELS: u64 = 400;

/// Most objects of one site with levels of their own; each costs a fit.
const GROUPS_WITH_LEVELS: usize = 8;

/// Time and stall of one access, in one thread, on one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub site: SiteId,
    pub thread: ThreadId,
    pub group: GroupId,
    pub samples: f64,
    pub time_ns: f64,
    /// `time_ns` weighted by the confidence of its attribution.
    pub sure_ns: f64,
    pub stall_ns: f64,
    /// Stall by level in nanoseconds; sums to `stall_ns`.
    pub levels: ByLevel,
    /// Executions over the whole run; `None` if not counted.
    pub executions: Option<Executed>,
    /// Executions that missed the last cache; `None` if not counted and timed.
    pub misses: Option<Executed>,
    /// Average latency in nanoseconds and its weight in an average; `None` if not timed.
    pub latency: Option<(f64, f64)>,
}

/// All parts, sorted by site, thread and object.
#[derive(Debug)]
pub(crate) struct Parts {
    pub parts: Vec<Part>,
    /// Index of each site's first part; one more entry than there are sites.
    starts: Vec<u32>,
}

impl Parts {
    /// Divides `costs` into parts; afterwards the levels of each cost are the sum of its parts' levels.
    pub(crate) fn new(
        run: &RunData,
        machine: &Machine<'_>,
        groups: &Groups,
        tally: &Tally,
        touches: &RecordedAccesses<'_>,
        costs: &mut [SiteCost],
    ) -> Self {
        // Most cells yield one part; reserving avoids copying tens of megabytes as the vector grows.
        let mut parts = Vec::with_capacity(tally.sites.len());
        let mut starts = vec![0];
        let rates = iteration_rates(run);
        for (index, cost) in costs.iter_mut().enumerate() {
            let site = SiteId(index as u32);
            let division = Division {
                run,
                machine,
                groups,
                touches,
                site,
                cost,
                times: tally.of(site),
                touched: touches.counted(site, groups),
                rates: rates.get(&site),
            };
            division.divide(&mut parts);
            starts.push(parts.len() as u32);
        }
        let parts = Self { parts, starts };
        parts.sum_levels(costs);
        parts
    }

    /// Keeps the parts of threads for which `is_selected` is true, and reduces the cost of each site to
    /// theirs.
    pub(crate) fn keep(&mut self, is_selected: impl Fn(ThreadId) -> bool, costs: &mut [SiteCost]) {
        let mut kept_parts = Vec::new();
        let mut starts = vec![0];
        for (index, cost) in costs.iter_mut().enumerate() {
            let of_site = self.of(SiteId(index as u32));
            let (mut time_ns, mut stall_ns, mut levels) = (0.0, 0.0, ByLevel::default());
            let mut executed: Option<Executed> = None;
            for part in of_site.iter().filter(|part| is_selected(part.thread)) {
                time_ns += part.time_ns;
                stall_ns += part.stall_ns;
                levels += part.levels;
                if let Some(count) = part.executions {
                    add_up(&mut executed, count);
                }
                kept_parts.push(*part);
            }
            cost.stall = part_of(&cost.stall, time_ns, stall_ns, levels);
            cost.time_ns = time_ns;
            cost.executed = executed;
            starts.push(kept_parts.len() as u32);
        }
        self.parts = kept_parts;
        self.starts = starts;
    }

    /// Sets each site's levels to the sum over its parts. Subtracting removed parts instead could make a
    /// level slightly negative by rounding.
    fn sum_levels(&self, costs: &mut [SiteCost]) {
        for (index, cost) in costs.iter_mut().enumerate() {
            let mut levels = ByLevel::default();
            for part in self.of(SiteId(index as u32)) {
                levels += part.levels;
            }
            cost.stall.levels = levels;
        }
    }

    /// Reassigns stalls on objects that threads write and that fit a near cache to transfers between cores'
    /// caches.
    ///
    /// Such a line comes from memory only once; in histograms of latencies, other cores' caches may look
    /// like memory.
    pub(crate) fn name_transfers(
        &mut self,
        run: &RunData,
        machine: &Machine<'_>,
        groups: &Groups,
        costs: &mut [SiteCost],
    ) {
        let mut users: BTreeMap<GroupId, (BTreeSet<ThreadId>, bool)> = BTreeMap::new();
        let of_known_objects = self
            .parts
            .iter()
            .filter(|part| part.group != Groups::UNKNOWN);
        for part in of_known_objects {
            let user = users.entry(part.group).or_default();
            user.0.insert(part.thread);
            user.1 |= run.sites[part.site.index()].kind.stores();
        }
        for part in &mut self.parts {
            let shared = users
                .get(&part.group)
                .is_some_and(|(threads, written)| threads.len() > 1 && *written);
            let nearest_level = machine
                .level_of(groups.get(part.group).total_bytes)
                .filter(|_| shared);
            let farther: &[Served] = match nearest_level {
                Some(Served::L1) => &[Served::L3, Served::Dram],
                Some(Served::L2) => &[Served::Dram],
                _ => continue,
            };
            // A line from another core's cache did not miss the last cache.
            part.misses = part.misses.map(|misses| misses.times(0.0));
            for &served in farther {
                let moved = part.levels.take(served);
                part.levels.add(Served::Remote, moved);
            }
        }
        self.sum_levels(costs);
    }

    /// Index of the part of `site`, `thread` and `group`.
    pub(crate) fn find(&self, site: SiteId, thread: ThreadId, group: GroupId) -> Option<usize> {
        let from = self.starts[site.index()] as usize;
        let of_site = self.of(site);
        of_site
            .binary_search_by_key(&(thread, group), |part| (part.thread, part.group))
            .ok()
            .map(|at| from + at)
    }

    /// Parts of `site`.
    pub(crate) fn of(&self, site: SiteId) -> &[Part] {
        let index = site.index();
        &self.parts[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// Adds `more` to a sum of executions. Counts from the same windows have mostly the same error, so the
/// interval's ends are added directly rather than as squares.
pub(crate) fn add_up(sum: &mut Option<Executed>, more: Executed) {
    let sum = sum.get_or_insert(Executed {
        count: 0.0,
        low: 0.0,
        high: 0.0,
    });
    sum.count += more.count;
    sum.low += more.low;
    sum.high += more.high;
}

/// Part of `stall` as evidence of its own, with `time_ns` of its time and `stall_ns` of its stall.
pub(crate) fn part_of(stall: &Stall, time_ns: f64, stall_ns: f64, levels: ByLevel) -> Stall {
    let whole = stall.time_ns;
    let share = if whole > 0.0 { time_ns / whole } else { 0.0 };
    let ratio = if time_ns > 0.0 {
        stall_ns / time_ns
    } else {
        0.0
    };
    let scale = if stall.ratio.value > 0.0 {
        ratio / stall.ratio.value
    } else {
        1.0
    };
    let stalled = if stall.stall_ns.value > 0.0 {
        stall.stall_ns.times(stall_ns / stall.stall_ns.value)
    } else {
        stall.stall_ns.times(share)
    };
    Stall {
        stall_ns: Estimate::new(stall_ns, stalled.low, stalled.high.min(time_ns)),
        levels,
        contention_share: stall.contention_share,
        latency_ns: stall.latency_ns,
        latency_cycles: stall.latency_cycles,
        ratio: Estimate::new(
            ratio,
            stall.ratio.low * scale,
            (stall.ratio.high * scale).min(1.0),
        ),
        time_ns,
    }
}

/// Levels that served one site's accesses to one object.
struct OwnLevels {
    group: GroupId,
    levels: ByLevel,
    /// Share of the accesses that missed the last cache.
    missed: Estimate,
}

/// Executions per nanosecond, by thread.
type RateOfThreads = BTreeMap<ThreadId, f64>;

/// Rates of sites whose loops were counted without patches.
fn iteration_rates(run: &RunData) -> BTreeMap<SiteId, RateOfThreads> {
    let mut sums: BTreeMap<SiteId, BTreeMap<ThreadId, (u64, u64)>> = BTreeMap::new();
    for row in &run.laps {
        let of_site = sums.entry(row.site).or_default();
        let (count, cpu_ns) = of_site.entry(row.thread).or_default();
        *count += row.count;
        *cpu_ns += row.cpu_ns;
    }
    let rate = |(thread, (count, cpu_ns)): (ThreadId, (u64, u64))| {
        (cpu_ns > 0).then(|| (thread, count as f64 / cpu_ns as f64))
    };
    let of_site = |(site, sums): (SiteId, BTreeMap<_, _>)| {
        let rates: RateOfThreads = sums.into_iter().filter_map(rate).collect();
        (site, rates)
    };
    sums.into_iter().map(of_site).collect()
}

/// Division of one site's time and stall.
struct Division<'a> {
    run: &'a RunData,
    machine: &'a Machine<'a>,
    groups: &'a Groups,
    touches: &'a RecordedAccesses<'a>,
    site: SiteId,
    cost: &'a SiteCost,
    /// Sampled time, by thread and object.
    times: &'a [SiteTime],
    /// Recorded accesses, by thread and object.
    touched: Vec<AccessTotal>,
    /// Rates of its executions, where its loop was counted without patches.
    rates: Option<&'a RateOfThreads>,
}

/// Evidence about a site in one thread.
struct InThread<'a> {
    thread: ThreadId,
    times: &'a [SiteTime],
    touched: &'a [AccessTotal],
}

impl InThread<'_> {
    fn time_ns(&self) -> f64 {
        self.times.iter().map(|cell| cell.time_ns).sum()
    }
}

/// Evidence about a site in all threads.
struct InAllThreads {
    counts: Counts,
    /// Latency of a hit, in ticks.
    baseline: f64,
    by_object: Vec<(GroupId, Counts)>,
    /// Time of samples, by object.
    times: Vec<(GroupId, f64)>,
    levels: Vec<OwnLevels>,
}

/// Time and stall of a site in one thread.
struct ThreadTotals<'a> {
    thread: &'a InThread<'a>,
    time_ns: f64,
    stall_ns: f64,
    executed: Option<f64>,
}

/// Shares of one object in [`ThreadTotals`], and its recorded accesses.
struct ObjectShares {
    group: GroupId,
    stall: f64,
    runs: f64,
    counts: Option<Counts>,
}

impl Division<'_> {
    fn divide(&self, parts: &mut Vec<Part>) {
        let threads = self.threads();
        let site = self.in_all_threads();
        let executed: Vec<Option<f64>> = self
            .execution_shares(&threads, &site.counts)
            .into_iter()
            .map(|share| Some(self.cost.executed?.count * share))
            .collect();
        let beyond: Vec<f64> = threads
            .iter()
            .zip(&executed)
            .map(|(thread, executed)| self.beyond_hits(thread, &site.counts, *executed))
            .collect();
        let all_beyond: f64 = beyond.iter().sum();
        let all_time = self.cost.time_ns;
        for ((thread, beyond), executed) in threads.iter().zip(beyond).zip(executed) {
            let time_ns = thread.time_ns();
            // If the stall exceeds the time beyond hits (as a stream's estimate may), divide by time: then
            // no thread gets more stall than time.
            let share = if all_beyond > 0.0 && all_beyond >= self.cost.stall.stall_ns.value {
                beyond / all_beyond
            } else if all_time > 0.0 {
                time_ns / all_time
            } else {
                0.0
            };
            let totals = ThreadTotals {
                thread,
                time_ns,
                stall_ns: self.cost.stall.stall_ns.value * share,
                executed,
            };
            self.divide_by_object(&totals, &site, parts);
        }
    }

    fn in_all_threads(&self) -> InAllThreads {
        let by_object = self.pool_touches();
        InAllThreads {
            counts: sum(&self.touched),
            baseline: self.machine.l1_ticks.unwrap_or_else(|| self.least_ticks()),
            levels: self.levels_of_groups(&by_object),
            by_object,
            times: self.pool_times(),
        }
    }

    fn divide_by_object(
        &self,
        totals: &ThreadTotals<'_>,
        site: &InAllThreads,
        parts: &mut Vec<Part>,
    ) {
        let thread = totals.thread;
        let own = by_object(thread.touched);
        // Threads with too few observations use the objects of the whole site.
        let counts = if sum(thread.touched).number_timed >= MIN_TIMED_ACCESSES
            || site.counts.number_timed < MIN_TIMED_ACCESSES
        {
            &own
        } else {
            &site.by_object
        };
        let stalls = self
            .by_samples(thread, counts, totals.executed)
            .unwrap_or_else(|| {
                self.stall_shares(counts, &sampled(thread.times), &site.times, site.baseline)
            });
        let runs = run_shares(counts, &stalls);
        let mut groups: Vec<GroupId> = stalls
            .iter()
            .chain(&runs)
            .map(|(group, _)| *group)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        parts.extend(groups.into_iter().map(|group| {
            let object = ObjectShares {
                group,
                stall: of_group(&stalls, group).unwrap_or(0.0),
                runs: of_group(&runs, group).unwrap_or(0.0),
                counts: of_group(counts, group),
            };
            self.part(&object, totals, site)
        }));
    }

    fn part(&self, object: &ObjectShares, totals: &ThreadTotals<'_>, site: &InAllThreads) -> Part {
        let stall_ns = totals.stall_ns * object.stall;
        let time_ns = stall_ns + (totals.time_ns - totals.stall_ns).max(0.0) * object.runs;
        let of_time = if totals.time_ns > 0.0 {
            time_ns / totals.time_ns
        } else {
            0.0
        };
        let own = site.levels.iter().find(|own| own.group == object.group);
        let levels = own.map_or(self.cost.stall.levels, |own| own.levels);
        let count = totals.executed.map(|count| count * object.runs);
        let executions =
            self.cost
                .executed
                .zip(count)
                .map(|(executed, count)| match executed.count > 0.0 {
                    true => executed.times(count / executed.count),
                    false => executed,
                });
        let missed = own.map(|own| own.missed).or_else(|| {
            let ratio = self.excess_ratio(object.counts?, &site.counts, site.baseline);
            Some(self.cost.missed?.times(ratio).clamped(0.0, 1.0))
        });
        let times = totals.thread.times;
        Part {
            site: self.site,
            thread: totals.thread.thread,
            group: object.group,
            samples: of_time * times.iter().map(|cell| cell.samples).sum::<f64>(),
            time_ns,
            sure_ns: of_time * times.iter().map(|cell| cell.sure_ns).sum::<f64>(),
            stall_ns,
            levels: if stall_ns > 0.0 {
                levels.scaled_to(stall_ns)
            } else {
                ByLevel::default()
            },
            executions,
            misses: executions.zip(missed).map(|(executed, missed)| Executed {
                count: executed.count * missed.value,
                low: executed.low * missed.low,
                high: executed.high * missed.high,
            }),
            latency: self.latency(object.counts, &site.counts, count),
        }
    }

    /// Average latency of an object's accesses in nanoseconds, and its weight: `count`, else the number of
    /// accesses that the recorded ones represent.
    fn latency(
        &self,
        counts: Option<Counts>,
        all: &Counts,
        count: Option<f64>,
    ) -> Option<(f64, f64)> {
        let counts = counts?;
        let mean_ns = self.cost.mixture.as_ref()?.mean_ns.value;
        let apart = self.machine.ticks_ns(counts.mean()? - all.mean()?);
        // The difference from the mean is a few accesses' and may lie below any hit's latency.
        let least_ns = self.machine.costs.l1_ns.min(mean_ns);
        Some((
            (mean_ns + apart).max(least_ns),
            count.unwrap_or(counts.represented),
        ))
    }

    /// Threads that executed the site.
    fn threads(&self) -> Vec<InThread<'_>> {
        let mut threads: Vec<ThreadId> = self
            .times
            .iter()
            .map(|cell| cell.thread)
            .chain(self.touched.iter().map(|touch| touch.thread))
            .collect();
        threads.sort_unstable();
        threads.dedup();
        threads
            .into_iter()
            .map(|thread| {
                let from = self.times.partition_point(|cell| cell.thread < thread);
                let to = self.times.partition_point(|cell| cell.thread <= thread);
                let first = self.touched.partition_point(|touch| touch.thread < thread);
                let last = self.touched.partition_point(|touch| touch.thread <= thread);
                InThread {
                    thread,
                    times: &self.times[from..to],
                    touched: &self.touched[first..last],
                }
            })
            .collect()
    }

    /// Share of the site's executions that each of `threads` made: by rates of iterations, else by recorded
    /// accesses, which a few windows may divide badly, else by time.
    fn execution_shares(&self, threads: &[InThread<'_>], all: &Counts) -> Vec<f64> {
        let usual = |rates: &RateOfThreads| rates.values().sum::<f64>() / rates.len() as f64;
        let weight = |thread: &InThread<'_>| match self.rates.filter(|rates| !rates.is_empty()) {
            Some(rates) => {
                let own = rates.get(&thread.thread).copied();
                thread.time_ns() * own.unwrap_or_else(|| usual(rates))
            }
            None if all.represented > 0.0 => sum(thread.touched).represented,
            None => thread.time_ns(),
        };
        let weights: Vec<f64> = threads.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let share = |weight: f64| match sum > 0.0 {
            true => weight / sum,
            false => 1.0 / weights.len() as f64,
        };
        weights.iter().copied().map(share).collect()
    }

    /// Time of a thread at the site, in nanoseconds, beyond the cost of its `executed` executions as hits.
    fn beyond_hits(&self, thread: &InThread<'_>, all: &Counts, executed: Option<f64>) -> f64 {
        let time_ns = thread.time_ns();
        let suffices = all.number >= MIN_TIMED_ACCESSES && all.represented > 0.0;
        match executed.filter(|_| suffices) {
            Some(count) => (time_ns - count * self.machine.costs.l1_ns).max(0.0),
            None => time_ns,
        }
    }

    /// Latency beyond a hit of an object's average access, relative to that of `all`. An object with too
    /// few timed accesses for levels of its own is assumed to miss in proportion to it.
    fn excess_ratio(&self, counts: Counts, all: &Counts, baseline: f64) -> f64 {
        let each = |counts: &Counts| counts.excess(baseline) / counts.timed;
        let ratio = each(&counts) / each(all);
        if ratio.is_finite() { ratio } else { 1.0 }
    }

    /// Divides the stall by object from samples alone: their time beyond the cost of the executions there
    /// as hits.
    ///
    /// A thread with too few samples uses those of all threads. `None` if the samples do not suffice.
    fn by_samples(
        &self,
        thread: &InThread<'_>,
        counts: &[(GroupId, Counts)],
        executed: Option<f64>,
    ) -> Option<Vec<(GroupId, f64)>> {
        let by_known_group = |times: &[SiteTime]| {
            let of_known_objects = times.iter().filter(|cell| cell.group.is_some());
            let samples: f64 = of_known_objects.clone().map(|cell| cell.samples).sum();
            let known_ns: f64 = of_known_objects.map(|cell| cell.time_ns).sum();
            let all_ns: f64 = times.iter().map(|cell| cell.time_ns).sum();
            (samples >= MIN_SAMPLES && known_ns >= MIN_KNOWN_TIME_SHARE * all_ns)
                .then_some(known_ns)
        };
        let time_ns = thread.time_ns();
        let (known_ns, times) = match by_known_group(thread.times) {
            Some(known_ns) => (known_ns, sampled(thread.times)),
            None => (by_known_group(self.times)?, self.pool_times()),
        };
        let hits_ns = executed.unwrap_or(0.0) * self.machine.costs.l1_ns;
        let runs = run_shares(counts, &[]);
        let beyond = times.into_iter().map(|(group, ns)| {
            let hits_here = hits_ns * of_group(&runs, group).unwrap_or(0.0);
            (group, (ns / known_ns * time_ns - hits_here).max(0.0))
        });
        normalized(beyond.collect())
    }

    /// Divides the stall by object: by latency beyond a hit, else by samples, else by number of accesses.
    fn stall_shares(
        &self,
        touched: &[(GroupId, Counts)],
        sampled: &[(GroupId, f64)],
        pooled: &[(GroupId, f64)],
        baseline: f64,
    ) -> Vec<(GroupId, f64)> {
        let timed: u64 = touched.iter().map(|(_, counts)| counts.number_timed).sum();
        let excess = touched
            .iter()
            .map(|(group, counts)| (*group, counts.excess(baseline)))
            .collect();
        let excess = normalized(excess);
        if timed >= MIN_TIMED_ACCESSES && excess.is_some() {
            return excess.unwrap_or_default();
        }
        normalized(sampled.to_vec())
            .or_else(|| normalized(pooled.to_vec()))
            .or(excess)
            .or_else(|| {
                let represented = touched
                    .iter()
                    .map(|(group, counts)| (*group, counts.represented));
                normalized(represented.collect())
            })
            .unwrap_or_else(|| vec![(Groups::UNKNOWN, 1.0)])
    }

    fn pool_touches(&self) -> Vec<(GroupId, Counts)> {
        let mut pooled = by_object(&self.touched);
        pooled.sort_by_key(|(group, _)| *group);
        pooled.dedup_by(|next, into| {
            let same = next.0 == into.0;
            if same {
                into.1.merge(next.1);
            }
            same
        });
        pooled
    }

    fn pool_times(&self) -> Vec<(GroupId, f64)> {
        let mut pooled = sampled(self.times);
        pooled.sort_by_key(|(group, _)| *group);
        pooled.dedup_by(|next, into| {
            let same = next.0 == into.0;
            if same {
                into.1 += next.1;
            }
            same
        });
        pooled
    }

    /// Fewest ticks of any access of the site: the baseline if there is no calibration.
    fn least_ticks(&self) -> f64 {
        self.touches
            .of(self.site)
            .filter_map(|(position, _)| self.touches.ticks(position))
            .reduce(f64::min)
            .unwrap_or(0.0)
    }

    /// Levels of objects with many timed accesses, if the site accesses several. Streams and contended
    /// sites are excluded: their levels do not come from latencies.
    fn levels_of_groups(&self, pooled: &[(GroupId, Counts)]) -> Vec<OwnLevels> {
        let Ok(mixer) = &self.machine.mixer else {
            return Vec::new();
        };
        if pooled.len() < 2
            || self.cost.is_stream
            || self.cost.is_contended()
            || self.cost.stall.stall_ns.value <= 0.0
        {
            return Vec::new();
        }
        let mut often: Vec<(GroupId, Counts)> = pooled
            .iter()
            .filter(|(_, counts)| counts.number_timed >= MIN_TIMED_ACCESSES_FOR_LEVELS)
            .copied()
            .collect();
        often.sort_by(|(a, of_a), (b, of_b)| of_b.ticks.total_cmp(&of_a.ticks).then(a.cmp(b)));
        often.truncate(GROUPS_WITH_LEVELS);
        often
            .into_iter()
            .filter_map(|(group, _)| {
                let in_group = |_: u32, access: &Access| {
                    crate::recorded_accesses::group_of(access, self.groups) == group
                };
                let mixture = mixer.fit_timed(
                    &self.touches.histogram(self.site, in_group),
                    self.touches.timing(self.site),
                )?;
                let l1_ns = self.machine.costs.l1_ns;
                let mut levels = ByLevel::default();
                for level in &mixture.levels {
                    let beyond = (level.latency_ns - l1_ns).max(0.0);
                    levels.add(level.served, level.share.value * beyond);
                }
                let beyond = (mixture.beyond_ns - l1_ns).max(0.0);
                levels.add(Served::Unknown, mixture.beyond.value * beyond);
                (levels.total() > 0.0).then(|| OwnLevels {
                    group,
                    levels,
                    missed: sites::missed(self.run, &mixture),
                })
            })
            .collect()
    }
}

/// Sum over all accesses of `touched`.
fn sum(touched: &[AccessTotal]) -> Counts {
    let mut sum = Counts::default();
    for touch in touched {
        sum.merge(touch.counts);
    }
    sum
}

fn by_object(touched: &[AccessTotal]) -> Vec<(GroupId, Counts)> {
    let of_touch = |touch: &AccessTotal| (touch.group, touch.counts);
    touched.iter().map(of_touch).collect()
}

/// Time of samples by object, where the object is known.
fn sampled(times: &[SiteTime]) -> Vec<(GroupId, f64)> {
    times
        .iter()
        .filter_map(|cell| cell.group.map(|group| (group, cell.time_ns)))
        .collect()
}

/// Divides executions by object: as accesses were observed, else as the stall divides.
fn run_shares(touched: &[(GroupId, Counts)], stalls: &[(GroupId, f64)]) -> Vec<(GroupId, f64)> {
    let represented = touched
        .iter()
        .map(|(group, counts)| (*group, counts.represented));
    normalized(represented.collect()).unwrap_or_else(|| stalls.to_vec())
}

/// Entry of `shares`, which are sorted by group, for `group`.
fn of_group<T: Copy>(shares: &[(GroupId, T)], group: GroupId) -> Option<T> {
    let at = shares.binary_search_by_key(&group, |(of, _)| *of).ok()?;
    Some(shares[at].1)
}

/// `amounts` as shares of their sum; `None` if the sum is 0.
fn normalized(amounts: Vec<(GroupId, f64)>) -> Option<Vec<(GroupId, f64)>> {
    let sum: f64 = amounts.iter().map(|(_, amount)| amount).sum();
    (sum > 0.0).then(|| {
        amounts
            .into_iter()
            .map(|(group, amount)| (group, amount / sum))
            .collect()
    })
}
