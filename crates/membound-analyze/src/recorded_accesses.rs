//! Accesses recorded by the latency sampler, counted by site, thread and object.

use membound_model::stall::{Executed, Timing, collected, on_steps};
use membound_run::{Access, RunData, SiteId, ThreadId};
use membound_types::TickCount;
use rustc_hash::FxHashMap;

use crate::executions::Windows;
use crate::groups::{GroupId, Groups};
use crate::machine::Machine;

/// Accesses of a site by one thread to one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AccessTotal {
    pub thread: ThreadId,
    pub group: GroupId,
    pub counts: Counts,
}

/// Number of accesses and their latencies.
///
/// The latency sampler records one access in a number that differs from window to window, so each access
/// represents executions of its own window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Recorded accesses; determines the sampling error.
    pub number: u64,
    /// Recorded accesses with a latency.
    pub number_timed: u64,
    /// Executions that the recorded accesses represent.
    pub represented: f64,
    /// Executions that the timed accesses represent.
    pub timed: f64,
    /// Ticks of timed accesses, weighted by executions.
    pub ticks: f64,
}

impl Counts {
    /// Adds one access that represents `weight` executions.
    pub(crate) fn add(&mut self, ticks: Option<f64>, weight: f64) {
        self.number += 1;
        self.represented += weight;
        if let Some(ticks) = ticks {
            self.number_timed += 1;
            self.timed += weight;
            self.ticks += ticks * weight;
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.number += other.number;
        self.number_timed += other.number_timed;
        self.represented += other.represented;
        self.timed += other.timed;
        self.ticks += other.ticks;
    }

    /// Ticks beyond `baseline` ticks per access; at least 0.
    pub(crate) fn excess(&self, baseline: f64) -> f64 {
        (self.ticks - self.timed * baseline).max(0.0)
    }

    /// Average ticks of an access; `None` if none were timed.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.timed > 0.0).then(|| self.ticks / self.timed)
    }
}

/// All accesses of a run by site; within a site by thread and time.
#[derive(Debug)]
pub(crate) struct RecordedAccesses<'a> {
    run: &'a RunData,
    starts: Vec<u32>,
    order: Vec<u32>,
    /// Executions that each access represents, by its position in the run.
    weights: Vec<f64>,
    /// Timing correction by site.
    shifts: Vec<Shift>,
    /// Resolution of the timer: all its intervals are multiples of this many ticks.
    tick_step: u32,
}

/// Ticks by which timing costs more at a site than during calibration, because the surrounding code, the
/// load of the processor or its clock differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shift {
    ticks: f64,
    timing: Timing,
}

/// Fewest timed hits from which a shift is computed.
const MIN_HITS: usize = 16;
/// A hit that took more than this many times the usual was interrupted, and is ignored.
const INTERRUPTED_HIT_FACTOR: f64 = 4.0;

impl<'a> RecordedAccesses<'a> {
    /// Sorts the accesses of `run` and computes their weights from `windows` and `executed`.
    pub(crate) fn new(
        run: &'a RunData,
        windows: &Windows,
        executed: &[Option<Executed>],
        machine: &Machine<'_>,
    ) -> Self {
        let mut starts = vec![0_u32; run.sites.len() + 1];
        for access in &run.accesses {
            starts[access.site.index() + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; run.accesses.len()];
        for (index, access) in run.accesses.iter().enumerate() {
            let place = &mut next[access.site.index()];
            order[*place as usize] = index as u32;
            *place += 1;
        }
        for range in starts.windows(2) {
            let key = |&index: &u32| {
                let access = &run.accesses[index as usize];
                (access.thread, access.t_ns, access.address, access.ticks)
            };
            let of_site = &mut order[range[0] as usize..range[1] as usize];
            if !of_site.is_sorted_by_key(key) {
                of_site.sort_by_key(key);
            }
        }
        let mut touches = Self {
            run,
            starts,
            order,
            weights: weights(run, windows, executed),
            shifts: Vec::new(),
            tick_step: machine.tick_step,
        };
        if let Some(usual) = machine.usual_hit_ticks {
            touches.shifts = (0..run.sites.len())
                .map(|index| touches.shift(SiteId(index as u32), usual))
                .collect();
        }
        touches
    }

    fn shift(&self, site: SiteId, usual: f64) -> Shift {
        let hits: Vec<f64> = self
            .of(site)
            .filter_map(|(_, access)| access.hit.map(f64::from))
            .filter(|hit| *hit <= INTERRUPTED_HIT_FACTOR * usual)
            .collect();
        if hits.len() < MIN_HITS {
            return Shift::default();
        }
        let count = hits.len() as f64;
        let mean = hits.iter().sum::<f64>() / count;
        let variance = hits.iter().map(|hit| (hit - mean).powi(2)).sum::<f64>() / count;
        Shift {
            ticks: mean - usual,
            timing: Timing {
                error: (variance / count).sqrt(),
                pace: mean / usual,
            },
        }
    }

    fn shift_of(&self, site: SiteId) -> Shift {
        self.shifts.get(site.index()).copied().unwrap_or_default()
    }

    /// Error and pace of the timing of a site's accesses, whose ticks are corrected.
    pub(crate) fn timing(&self, site: SiteId) -> Timing {
        self.shift_of(site).timing
    }

    /// Ticks of the access at position `index` in the run, corrected to the conditions of the calibration.
    pub(crate) fn ticks(&self, index: u32) -> Option<f64> {
        let access = &self.run.accesses[index as usize];
        let ticks = f64::from(access.ticks?);
        Some((ticks - self.shift_of(access.site).ticks).max(0.0))
    }

    /// Executions that the access at position `index` in the run represents.
    pub(crate) fn weight(&self, index: u32) -> f64 {
        self.weights[index as usize]
    }

    /// Accesses of `site` by thread and time, with their positions in the run.
    pub(crate) fn of(
        &self,
        site: SiteId,
    ) -> impl ExactSizeIterator<Item = (u32, &'a Access)> + Clone + use<'a, '_> {
        let index = site.index();
        self.order[self.starts[index] as usize..self.starts[index + 1] as usize]
            .iter()
            .map(|&index| (index, &self.run.accesses[index as usize]))
    }

    /// Accesses of `site`, counted by thread and object and sorted by them.
    pub(crate) fn counted(&self, site: SiteId, groups: &Groups) -> Vec<AccessTotal> {
        let mut counted: Vec<AccessTotal> = Vec::new();
        let mut places: FxHashMap<(ThreadId, GroupId), usize> = FxHashMap::default();
        let mut place = 0;
        for (index, access) in self.of(site) {
            let key = (access.thread, group_of(access, groups));
            // Consecutive accesses mostly have the same key.
            if counted.get(place).map(|touch| (touch.thread, touch.group)) != Some(key) {
                place = *places.entry(key).or_insert_with(|| {
                    counted.push(AccessTotal {
                        thread: key.0,
                        group: key.1,
                        counts: Counts::default(),
                    });
                    counted.len() - 1
                });
            }
            counted[place]
                .counts
                .add(self.ticks(index), self.weight(index));
        }
        counted.sort_by_key(|touch| (touch.thread, touch.group));
        counted
    }

    /// Histogram of latencies at `site` over the accesses for which `select` is true. Counts are in
    /// proportion to executions, and sum to the effective number of accesses.
    pub(crate) fn histogram(
        &self,
        site: SiteId,
        select: impl Fn(u32, &Access) -> bool,
    ) -> Vec<TickCount> {
        let (sum, squares) = self
            .of(site)
            .filter(|(index, access)| access.ticks.is_some() && select(*index, access))
            .map(|(index, _)| self.weight(index))
            .fold((0.0, 0.0), |(sum, squares), weight| {
                (sum + weight, squares + weight * weight)
            });
        if sum <= 0.0 {
            return Vec::new();
        }
        let scale = sum / squares;
        let ticks = self
            .of(site)
            .filter(|(index, access)| select(*index, access))
            .filter_map(|(index, _)| Some((self.ticks(index)?, self.weight(index))))
            .flat_map(|(ticks, weight)| on_steps(ticks, weight * scale, self.tick_step));
        collected(ticks.collect())
    }
}

/// Executions that each access represents: those of its site in its window ÷ accesses recorded there.
fn weights(run: &RunData, windows: &Windows, executed: &[Option<Executed>]) -> Vec<f64> {
    let places: Vec<Option<usize>> = run
        .accesses
        .iter()
        .map(|access| windows.at(access.site, access.t_ns))
        .collect();
    let mut recorded: FxHashMap<(SiteId, usize), u64> = FxHashMap::default();
    for (access, place) in run.accesses.iter().zip(&places) {
        if let Some(place) = place {
            *recorded.entry((access.site, *place)).or_default() += 1;
        }
    }
    let in_window: FxHashMap<(SiteId, usize), f64> = recorded
        .iter()
        .map(|(&(site, place), &recorded)| {
            let count = windows.of(site)[place].count;
            ((site, place), count as f64 / recorded as f64)
        })
        .collect();
    // An access outside of windows gets the average weight of its site's other accesses.
    let mut of_site = vec![(0_u64, 0_u64); run.sites.len()];
    for (&(site, place), &recorded) in &recorded {
        let sum = &mut of_site[site.index()];
        sum.0 += windows.of(site)[place].count;
        sum.1 += recorded;
    }
    // Sites may be counted in windows of their own, and so be timed at different rates: divide by each
    // site's accesses.
    let mut all = vec![0_u64; run.sites.len()];
    for access in &run.accesses {
        all[access.site.index()] += 1;
    }
    let usual = f64::from(run.meta.site_period.max(1));
    run.accesses
        .iter()
        .zip(&places)
        .map(|(access, place)| match place {
            Some(place) => in_window[&(access.site, *place)],
            None => match of_site[access.site.index()] {
                (_, 0) => executed[access.site.index()].map_or(usual, |executed| {
                    executed.count / all[access.site.index()] as f64
                }),
                (count, recorded) => count as f64 / recorded as f64,
            },
        })
        // A window with a count of 0 and recorded accesses would give them no weight.
        .map(|weight| if weight > 0.0 { weight } else { usual })
        .collect()
}

/// Group of the object that `access` went to.
pub(crate) fn group_of(access: &Access, groups: &Groups) -> GroupId {
    access
        .object
        .map_or(Groups::UNKNOWN, |object| groups.of(object))
}
