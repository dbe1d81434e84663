//! How often a function repeats what bursts recorded of it.
//!
//! Counts come from windows in which patches slow the program down; for a loop that is shorter than its
//! patches they give too low a rate. A loop that goes through memory in order shows its rate without any
//! patch: the distance between sampled addresses of a site, divided by the bytes that one execution
//! advances.

use std::collections::BTreeMap;

use membound_run::{ObjectId, Sample, SiteId, ThreadId};
use rustc_hash::FxHashMap;

use super::burst_traffic::{BurstTraffic, function_of};
use crate::context::Context;
use crate::info;
use crate::places::FunctionId;

/// Fewest advances for a rate.
const MIN_ADVANCES: usize = 8;

/// Most samples between two samples of a site that are compared.
const MAX_SAMPLES_APART: u32 = 16;

/// Range of accepted rates, as multiples of the median; others wrapped around the end of an array.
const ACCEPTED_RATE_RANGE: (f64, f64) = (0.2, 3.0);

/// Share of the advances that must be accepted.
const MIN_ACCEPTED_SHARE: f64 = 0.5;

/// Rate at which a function repeats what bursts recorded of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Repetitions of everything that bursts recorded of the function, per nanosecond of its time.
    pub per_ns: f64,
    /// Source of the rate.
    pub through: Through,
}

/// Source of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Through {
    /// Distance between samples: valid for the time without patches.
    Advances,
    /// Counts, extrapolated to all of the function's time.
    Counts,
}

/// Rates of all functions.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    pub functions: BTreeMap<FunctionId, Rate>,
    /// Repetitions over the whole run.
    pub repeated: BTreeMap<FunctionId, f64>,
    /// Share of the sampled CPU time spent in functions with a rate.
    pub covered: f64,
}

impl Rates {
    pub(crate) fn new(context: &Context<'_>, burst_traffic: &BurstTraffic) -> Self {
        let times = times(context);
        let advances = advances(context, burst_traffic);
        let mut functions = BTreeMap::new();
        let mut counted: BTreeMap<FunctionId, (f64, f64)> = BTreeMap::new();
        let mut advanced: BTreeMap<FunctionId, (usize, f64)> = BTreeMap::new();
        for (site, of_site) in &burst_traffic.sites {
            if of_site.executions <= 0.0 {
                continue;
            }
            let function = function_of(context, *site);
            if let Some(executed) = context.costs[site.index()].executed {
                let sum = counted.entry(function).or_default();
                sum.0 += executed.count;
                sum.1 += of_site.executions;
            }
            let steps = advances.get(site).map_or(&[][..], Vec::as_slice);
            if let Some(bytes_per_ns) = likely(steps)
                && let Some(stride) = of_site.stride
                && bytes_per_ns * stride > 0.0
            {
                // `stride` bytes per execution, so this is repetitions of the burst per nanosecond. Of the
                // function's sites, the one with most advances decides.
                let per_ns = bytes_per_ns / stride / of_site.executions;
                let best = advanced.entry(function).or_default();
                if steps.len() > best.0 {
                    *best = (steps.len(), per_ns);
                }
            }
        }
        let mut covered = 0.0;
        let mut repeated = BTreeMap::new();
        for (function, time_ns) in &times {
            let by_count = counted.get(function).filter(|sums| sums.0 > 0.0);
            let rate = match (advanced.get(function), by_count) {
                // Advances are preferred: patches slow down the windows in which executions were counted.
                (Some((_, per_ns)), _) => Rate {
                    per_ns: *per_ns,
                    through: Through::Advances,
                },
                (None, Some((executed, recorded))) => Rate {
                    per_ns: executed / recorded / time_ns,
                    through: Through::Counts,
                },
                (None, None) => continue,
            };
            covered += time_ns;
            functions.insert(*function, rate);
            repeated.insert(*function, rate.per_ns * time_ns);
        }
        let all: f64 = times.values().sum();
        Self {
            functions,
            repeated,
            covered: if all > 0.0 { covered / all } else { 0.0 },
        }
    }

    /// Sampled time in nanoseconds of a function with a rate; 0 without.
    pub(crate) fn time_ns(&self, function: FunctionId) -> f64 {
        let rate = self
            .functions
            .get(&function)
            .zip(self.repeated.get(&function));
        rate.map_or(0.0, |(rate, repeated)| repeated / rate.per_ns)
    }
}

/// Sampled time of each function in nanoseconds.
fn times(context: &Context<'_>) -> BTreeMap<FunctionId, f64> {
    let mut times: BTreeMap<FunctionId, u64> = BTreeMap::new();
    for sample in &context.run.samples {
        let frame = context.run.stacks[sample.stack.index()].frame;
        if !info::is_own(context.run, frame) && context.is_selected(sample.thread) {
            *times.entry(context.places.function_of(frame)).or_default() += sample.weight_ns;
        }
    }
    times
        .into_iter()
        .filter(|(_, ns)| *ns > 0)
        .map(|(function, ns)| (function, ns as f64))
        .collect()
}

/// Last sample of a site.
#[derive(Clone, Copy, Debug)]
struct Last {
    address: u64,
    object: Option<ObjectId>,
    /// CPU time of the thread so far in nanoseconds, and its number of samples.
    cpu_ns: u64,
    samples: u32,
    /// Number of the thread's last sample at which it entered another function or ran patched code.
    away: u32,
}

/// By site: advances in bytes with the CPU time in nanoseconds that they took.
fn advances(
    context: &Context<'_>,
    burst_traffic: &BurstTraffic,
) -> FxHashMap<SiteId, Vec<(f64, f64)>> {
    let run = context.run;
    let mut order: Vec<&Sample> = run.samples.iter().collect();
    let key = |it: &&Sample| (it.thread, it.t_ns, it.address, it.weight_ns, it.stack);
    if !order.is_sorted_by_key(key) {
        order.sort_by_key(key);
    }
    let mut advances: FxHashMap<SiteId, Vec<(f64, f64)>> = FxHashMap::default();
    for of_thread in order.chunk_by(|a, b| a.thread == b.thread) {
        of_one(context, burst_traffic, of_thread, &mut advances);
    }
    advances
}

/// Collects the advances of one thread, whose `samples` are in order of time.
fn of_one(
    context: &Context<'_>,
    burst_traffic: &BurstTraffic,
    samples: &[&Sample],
    advances: &mut FxHashMap<SiteId, Vec<(f64, f64)>>,
) {
    let patched = Patched::of_thread(context, samples[0].thread);
    let mut last: FxHashMap<SiteId, Last> = FxHashMap::default();
    let (mut cpu_ns, mut away) = (0_u64, 0);
    let mut inside = None;
    for (number, sample) in (0_u32..).zip(samples) {
        cpu_ns += sample.weight_ns;
        let frame = context.run.stacks[sample.stack.index()].frame;
        let function = context.places.function_of(frame);
        // Between samples in another function or in patched code, the loop may have been left or slowed.
        if inside.replace(function) != Some(function) || patched.at(sample.t_ns) {
            away = number;
        }
        // An instruction that waits for several accesses does not show which of them the address belongs
        // to.
        let ([wait], Some(address), true) = (context.waits.of(frame), sample.address, sample.exact)
        else {
            continue;
        };
        if burst_traffic
            .sites
            .get(&wait.site)
            .and_then(|it| it.stride)
            .is_none()
        {
            continue;
        }
        let now = Last {
            address,
            object: sample.object,
            cpu_ns,
            samples: number,
            away,
        };
        if let Some(before) = last.insert(wait.site, now)
            && before.away == away
            && before.object == sample.object
            && number - before.samples <= MAX_SAMPLES_APART
            && cpu_ns > before.cpu_ns
        {
            let bytes = address.wrapping_sub(before.address).cast_signed() as f64;
            let of_site = advances.entry(wait.site).or_default();
            of_site.push((bytes, (cpu_ns - before.cpu_ns) as f64));
        }
    }
}

/// Bytes per nanosecond on which most of `advances` agree; `None` if there are too few or they disagree.
fn likely(advances: &[(f64, f64)]) -> Option<f64> {
    if advances.len() < MIN_ADVANCES {
        return None;
    }
    let mut rates: Vec<f64> = advances.iter().map(|(bytes, ns)| bytes / ns).collect();
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    let (mut bytes, mut ns, mut count) = (0.0, 0.0, 0);
    for advance in advances {
        let part = advance.0 / advance.1 / median;
        if (ACCEPTED_RATE_RANGE.0..ACCEPTED_RATE_RANGE.1).contains(&part) {
            bytes += advance.0;
            ns += advance.1;
            count += 1;
        }
    }
    (count as f64 >= MIN_ACCEPTED_SHARE * advances.len() as f64 && ns > 0.0).then(|| bytes / ns)
}

/// Times in which a thread ran patched code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patched {
    /// Start and end in nanoseconds, ascending and disjoint.
    times: Vec<(u64, u64)>,
}

impl Patched {
    /// Collects the windows in which anything was counted, and the bursts of `thread`.
    pub(crate) fn of_thread(context: &Context<'_>, thread: ThreadId) -> Self {
        let run = context.run;
        let bursts = run.bursts.iter().filter(|it| it.thread == thread);
        let mut times: Vec<(u64, u64)> = bursts
            .map(|it| (it.from_ns, it.to_ns))
            .chain(run.executions.iter().map(|it| (it.from_ns, it.to_ns)))
            .chain(run.blocks.iter().map(|it| (it.from_ns, it.to_ns)))
            .collect();
        times.sort_unstable();
        let mut apart: Vec<(u64, u64)> = Vec::new();
        for (from, to) in times {
            match apart.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => apart.push((from, to)),
            }
        }
        Self { times: apart }
    }

    /// True if patches were installed at `t_ns`.
    pub(crate) fn at(&self, t_ns: u64) -> bool {
        let behind = self.times.partition_point(|time| time.0 <= t_ns);
        behind
            .checked_sub(1)
            .is_some_and(|at| t_ns <= self.times[at].1)
    }
}
