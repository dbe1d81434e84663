//! Sums of parts, which become rows of tables.

use std::collections::BTreeMap;

use membound_model::stall::{self, ByLevel, Executed, Served, Stall};
use membound_run::{FrameId, SiteId};
use membound_types::{LevelShares, MemoryBound, Share};

use crate::context::Context;
use crate::parts::{self, Part};
use crate::tally::PlainTime;

/// Sum of parts and of samples without an access.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub samples: f64,
    pub time_ns: f64,
    pub sure_ns: f64,
    /// Time of accesses: the whole that `sure_ns` is a part of.
    pub waited_ns: f64,
    pub stall_ns: f64,
    /// Time for which it is unknown whether it waited for memory.
    pub unseen_ns: f64,
    pub levels: ByLevel,
    pub loads: Option<Executed>,
    pub stores: Option<Executed>,
    pub misses: Option<Executed>,
    /// Σ latency · weight, and Σ weight.
    latency: (f64, f64),
    /// Time, stall and levels by site, in order of sites.
    sites: Vec<(SiteId, f64, f64, ByLevel)>,
}

impl Sum {
    pub(crate) fn add(&mut self, context: &Context<'_>, part: &Part) {
        self.samples += part.samples;
        self.time_ns += part.time_ns;
        self.waited_ns += part.time_ns;
        self.sure_ns += part.sure_ns;
        self.stall_ns += part.stall_ns;
        self.levels += part.levels;
        let kind = context.run.sites[part.site.index()].kind;
        if let Some(misses) = part.misses {
            parts::add_up(&mut self.misses, misses);
        }
        if let Some(count) = part.executions {
            if kind.loads() {
                parts::add_up(&mut self.loads, count);
            }
            if kind.stores() {
                parts::add_up(&mut self.stores, count);
            }
        }
        if let Some((ns, weight)) = part.latency {
            self.latency.0 += ns * weight;
            self.latency.1 += weight;
        }
        match self.sites.last_mut() {
            Some((site, time_ns, stall_ns, levels)) if *site == part.site => {
                *time_ns += part.time_ns;
                *stall_ns += part.stall_ns;
                *levels += part.levels;
            }
            _ => self
                .sites
                .push((part.site, part.time_ns, part.stall_ns, part.levels)),
        }
    }

    pub(crate) fn add_plain(&mut self, plain: &PlainTime) {
        self.samples += plain.samples;
        self.time_ns += plain.time_ns;
        if plain.unseen {
            self.unseen_ns += plain.time_ns;
        }
    }

    /// Average latency in nanoseconds, weighted by executions.
    pub(crate) fn latency_ns(&self) -> Option<f64> {
        (self.latency.1 > 0.0).then(|| self.latency.0 / self.latency.1)
    }

    /// Stalled share of all CPU time with its interval; the upper end counts all unattributed time as
    /// stalled.
    pub(crate) fn bound(&self, context: &Context<'_>) -> MemoryBound {
        let stalls: Vec<Stall> = self
            .sites
            .iter()
            .map(|(site, time_ns, stall_ns, levels)| {
                let whole = &context.costs[site.index()].stall;
                parts::part_of(whole, *time_ns, *stall_ns, *levels)
            })
            .collect();
        let bound = stall::combine(
            &stalls,
            context.times.total_ns,
            context.times.effective_samples,
        );
        let besides_ns = self.sites.iter().map(|(site, time_ns, ..)| {
            let cost = &context.costs[site.index()];
            cost.besides_ns * (time_ns / cost.time_ns.max(f64::MIN_POSITIVE)).min(1.0)
        });
        let besides = context.times.share(besides_ns.sum());
        let unseen = context.times.share(self.unseen_ns);
        MemoryBound {
            high: (bound.high + besides + unseen).min(1.0),
            unseen,
            ..bound
        }
    }

    /// Converts the sum to the figures of a row.
    pub(crate) fn share(&self, context: &Context<'_>) -> Share {
        let bound = self.bound(context);
        let times = &context.times;
        let thresholds = &context.options.thresholds;
        let stall_fraction = times.share(self.stall_ns);
        let avg_latency_ns = self.latency_ns();
        let slow = avg_latency_ns
            .zip(context.machine.l1_ns())
            .is_some_and(|(ns, l1_ns)| ns >= thresholds.latency_ratio * l1_ns);
        Share {
            samples: self.samples.round() as u64,
            time_s: self.time_ns * 1e-9,
            time_fraction: times.share(self.time_ns),
            stall_fraction,
            stall_low: bound.low.min(stall_fraction),
            stall_high: bound.high.max(stall_fraction),
            levels: level_shares(&self.levels, context),
            loads: self.loads.map(|loads| loads.count),
            loads_low: self.loads.map(|loads| loads.low),
            loads_high: self.loads.map(|loads| loads.high),
            stores: self.stores.map(|stores| stores.count),
            stores_low: self.stores.map(|stores| stores.low),
            stores_high: self.stores.map(|stores| stores.high),
            llc_misses: self.misses.map(|misses| misses.count),
            llc_misses_low: self.misses.map(|misses| misses.low),
            llc_misses_high: self.misses.map(|misses| misses.high),
            avg_latency_ns,
            avg_latency_cycles: avg_latency_ns.and_then(|ns| context.machine.cycles(ns)),
            flagged: stall_fraction >= thresholds.row_stall
                || (slow && stall_fraction >= thresholds.slow_row_stall),
            confidence: if self.waited_ns > 0.0 {
                self.sure_ns / self.waited_ns
            } else {
                0.0
            },
        }
    }
}

/// Stall by level as shares of all CPU time. If the timer cannot separate the first two caches, `l1` holds
/// both.
pub(crate) fn level_shares(levels: &ByLevel, context: &Context<'_>) -> LevelShares {
    let share = |served| context.times.share(levels.get(served));
    let (l1, l2) = (share(Served::L1), share(Served::L2));
    let together = context.l1_and_l2_together();
    LevelShares {
        l1: if together { l1 + l2 } else { l1 },
        l2: if together { 0.0 } else { l2 },
        l3: share(Served::L3),
        dram: share(Served::Dram),
        remote: share(Served::Remote),
        unknown: share(Served::Unknown),
    }
}

/// Sums of parts by `key`; parts without a key are left out.
pub(crate) fn grouped<K: Ord>(
    context: &Context<'_>,
    key: impl Fn(&Part) -> Option<K>,
) -> BTreeMap<K, Sum> {
    let mut rows: BTreeMap<K, Sum> = BTreeMap::new();
    for part in &context.parts.parts {
        if let Some(key) = key(part) {
            rows.entry(key).or_default().add(context, part);
        }
    }
    rows
}

/// Groups parts and samples without an access by `key` of their frame. Sums without time are left out.
pub(crate) fn by_frame<K: Ord>(
    context: &Context<'_>,
    key: impl Fn(FrameId) -> K,
) -> impl IntoIterator<Item = (K, Sum)> {
    let frame_of = |part: &Part| context.run.sites[part.site.index()].frame;
    let mut sums = grouped(context, |part| Some(key(frame_of(part))));
    for plain in &context.plain {
        sums.entry(key(plain.frame)).or_default().add_plain(plain);
    }
    sums.into_iter().filter(|(_, sum)| sum.time_ns > 0.0)
}

/// Sum of all parts, of the time without accesses, and of that without samples.
pub(crate) fn whole(context: &Context<'_>) -> Sum {
    let mut sum = Sum::default();
    for part in &context.parts.parts {
        sum.add(context, part);
    }
    for plain in &context.plain {
        sum.add_plain(plain);
    }
    sum.unseen_ns += context.times.short_ns;
    sum
}

/// Time in nanoseconds by a function, module or caller of a source line.
pub(crate) type TimesOf<K> = BTreeMap<K, f64>;

/// Key with the longest time; of equal ones, the first.
pub(crate) fn most<K: Copy>(times: &TimesOf<K>) -> Option<K> {
    let longest = |most: (K, f64), one: (K, f64)| if one.1 > most.1 { one } else { most };
    let times = times.iter().map(|(of, time_ns)| (*of, *time_ns));
    times.reduce(longest).map(|(of, _)| of)
}

/// Order of rows: most stalled first, then most time, then by name.
pub(crate) fn order(a: (&Share, &str), b: (&Share, &str)) -> std::cmp::Ordering {
    let by = |a: f64, b: f64| b.total_cmp(&a);
    by(a.0.stall_fraction, b.0.stall_fraction)
        .then(by(a.0.time_fraction, b.0.time_fraction))
        .then_with(|| a.1.cmp(b.1))
}
