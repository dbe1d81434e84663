//! Predicts how the program would run on another machine.
//!
//! The stall of a site is assumed to change in proportion to its average latency: the cache model gives the
//! levels that serve it with either machine's caches, and the machine profiles give their latencies. The
//! part of the latency that is hidden is assumed to stay the same.
//!
//! The time without stalls is assumed to need as many core clock cycles there as here, if both profiles
//! have a core clock. How much work the cores do per cycle is unknown; the ratio of their first caches'
//! latencies, which follow the core's design, bounds that uncertainty.

use membound_model::stall::{ByLevel, Served};
use membound_types::{Basis, Elsewhere, Figure, LevelKind, MachineProfile, Outcome};

use super::burst_traffic::{BurstTraffic, SiteTraffic, busy};
use super::caches::Caches;
use super::pieces::Bursts;
use super::rates::Rates;
use crate::context::Context;
use crate::rows;

/// Average cost beyond a hit, as a share of the hit's latency, below which the model does not apply to a
/// site's stall.
const MIN_COST: f64 = 0.02;

/// Predictions for the machines that `context` names, and reasons for those without one.
pub(crate) fn elsewhere(
    context: &Context<'_>,
    own: &Caches,
    pieces: &Bursts,
    burst_traffic: &BurstTraffic,
    rates: &Rates,
) -> (Vec<Elsewhere>, Vec<String>) {
    let mut predictions = Vec::new();
    let mut without = Vec::new();
    for other in context.options.elsewhere {
        let Some(target) = Caches::new(other.profile) else {
            without.push(format!("the profile of {} has no levels", other.name));
            continue;
        };
        let prediction = if target.line_bytes == own.line_bytes {
            Prediction::new(context, own, &target, burst_traffic, pieces)
        } else {
            let pieces = Bursts::new(context, target.line_bytes);
            Prediction::new(context, own, &target, burst_traffic, &pieces)
        };
        let computing = computing(context.machine.profile, other.profile);
        predictions.push(prediction.report(
            context,
            own,
            &target,
            burst_traffic,
            rates,
            (other.name, computing),
        ));
    }
    (predictions, without)
}

/// Stalls and memory traffic on the other machine.
struct Prediction {
    burst_traffic: BurstTraffic,
    stall: ByLevel,
    /// Stall time in nanoseconds with caches at the lower and at the upper end of their size intervals.
    ends_ns: (f64, f64),
}

impl Prediction {
    fn new(
        context: &Context<'_>,
        own: &Caches,
        target: &Caches,
        burst_traffic: &BurstTraffic,
        pieces: &Bursts,
    ) -> Self {
        let of = |caches: &Caches| {
            let moved = BurstTraffic::new(context, pieces, caches);
            let stall = stall(context, (own, burst_traffic), (caches, &moved));
            (moved, stall)
        };
        let (moved, middle) = of(target);
        let ends = [0.0, 1.0].map(|along| of(&target.at(along)).1.total());
        Self {
            burst_traffic: moved,
            stall: middle,
            ends_ns: (ends[0].min(ends[1]), ends[0].max(ends[1])),
        }
    }

    fn report(
        &self,
        context: &Context<'_>,
        own: &Caches,
        target: &Caches,
        burst_traffic: &BurstTraffic,
        rates: &Rates,
        (name, computing): (&str, Outcome<Figure>),
    ) -> Elsewhere {
        let cpu_ns = context.times.total_ns.max(1.0);
        let whole = rows::whole(context);
        let bound = whole.bound(context);
        let stalled = whole.stall_ns / cpu_ns;
        let change = |stall_ns: f64| {
            if whole.stall_ns > 0.0 {
                stall_ns / whole.stall_ns
            } else {
                1.0
            }
        };
        let stall_ns = self.stall.total();
        let (bytes_here, bytes_there) = (
            moved(burst_traffic, rates),
            moved(&self.burst_traffic, rates),
        );
        let floor = floor(context, (own, bytes_here), (target, bytes_there));
        // If the speed of the other core is unknown, it is assumed to be the same.
        let cores = computing.known().copied();
        let (slower, slowest) = cores.map_or((1.0, [1.0, 1.0]), |it| (it.value, [it.low, it.high]));
        let ratio = |stalled: f64, change: f64, slower: f64| {
            let ratio = (1.0 - stalled) * slower + stalled * change;
            ratio.max(floor)
        };
        let value = ratio(stalled, change(stall_ns), slower);
        let ends: Vec<(f64, f64, f64)> = [bound.low.min(stalled), bound.high.max(stalled)]
            .into_iter()
            .flat_map(|stalled| [(stalled, self.ends_ns.0), (stalled, self.ends_ns.1)])
            .flat_map(|(stalled, ns)| slowest.map(|slower| (stalled, slower, change(ns))))
            .chain([(stalled, slower, change(stall_ns))])
            .collect();
        let ratios: Vec<f64> = ends
            .iter()
            .map(|&(stalled, slower, change)| ratio(stalled, change, slower))
            .collect();
        let computes: Vec<f64> = ends
            .iter()
            .zip(&ratios)
            .map(|((stalled, slower, _), ratio)| (1.0 - stalled) * slower / ratio)
            .collect();
        // Time that is not spent computing waits for latency or for bandwidth.
        let memory_bound = (1.0 - (1.0 - stalled) * slower / value).max(0.0);
        let low = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let modelled = |value: f64, low: f64, high: f64| Figure {
            value,
            low: low.min(value),
            high: high.max(value),
            basis: Basis::Modelled,
        };
        let mut levels = self.stall;
        // Time that latencies do not explain waits for memory bandwidth.
        let beyond = (memory_bound * value * cpu_ns - stall_ns).max(0.0);
        levels.add(Served::Dram, beyond);
        let levels = levels.scaled_to(memory_bound * cpu_ns);
        Elsewhere {
            machine: name.to_owned(),
            memory_bound: modelled(
                memory_bound,
                (1.0 - high(&computes)).max(0.0),
                (1.0 - low(&computes)).min(1.0),
            ),
            levels: rows::level_shares(&levels, context),
            compute_ratio: computing,
            time_ratio: modelled(value, low(&ratios), high(&ratios)),
            per_core_gb_s: bytes_there / (cpu_ns * value),
            machine_max_gb_s: target.most_gb_s.clone(),
        }
    }
}

/// Ratio of the time without stalls there to that here: the same cycles at another clock. The interval
/// includes the ratio of the first caches' latencies.
fn computing(own: Option<&MachineProfile>, target: &MachineProfile) -> Outcome<Figure> {
    let (Some(clock_here), Some(clock_there)) = (own.and_then(core_hz), core_hz(target)) else {
        return Outcome::missing("one of the machine profiles has no core clock");
    };
    let value = clock_here / clock_there;
    let first = own.and_then(first_cache_ns).zip(first_cache_ns(target));
    let other = first.map_or(value, |(own, target)| target / own);
    Outcome::Known(Figure {
        value,
        low: value.min(other),
        high: value.max(other),
        basis: Basis::Modelled,
    })
}

fn core_hz(profile: &MachineProfile) -> Option<f64> {
    let hz = crate::machine::core_hz(profile);
    (hz > 0.0 && hz.is_finite()).then_some(hz)
}

/// Latency of the innermost cache in nanoseconds; `None` if the profile has none.
fn first_cache_ns(profile: &MachineProfile) -> Option<f64> {
    let level = profile.levels.first()?;
    let is_cache = level.kind == LevelKind::Cache && level.latency_ns > 0.0;
    is_cache.then_some(level.latency_ns)
}

/// Bytes that memory moves over the whole run.
fn moved(burst_traffic: &BurstTraffic, rates: &Rates) -> f64 {
    burst_traffic
        .functions
        .iter()
        .filter_map(|(function, bytes)| Some(bytes.total() * rates.repeated.get(function)?))
        .sum()
}

/// Lower bound of the run-time ratio, from the memory bandwidth there. It is based on the share of the
/// bandwidth that memory is busy here, so that errors of the modelled traffic cancel.
fn floor(context: &Context<'_>, own: (&Caches, f64), target: (&Caches, f64)) -> f64 {
    let (Some(most_here), Some(most_there)) = (own.0.most_gb_s.known(), target.0.most_gb_s.known())
    else {
        return 0.0;
    };
    if own.1 <= 0.0 {
        return 0.0;
    }
    // Threads wait for each other's lines as for their own.
    let wall_ns = context.times.total_ns / busy(context);
    let share = (own.1 / (most_here * wall_ns.max(1.0))).min(1.0);
    share * (target.1 / most_there) / (own.1 / most_here)
}

/// Stall time on the other machine in nanoseconds, by level.
fn stall(
    context: &Context<'_>,
    own: (&Caches, &BurstTraffic),
    target: (&Caches, &BurstTraffic),
) -> ByLevel {
    let mut sum = ByLevel::default();
    for (index, cost) in context.costs.iter().enumerate() {
        let stalled = cost.stall.stall_ns.value;
        if stalled <= 0.0 {
            continue;
        }
        let site = membound_run::SiteId(index as u32);
        let models = own.1.sites.get(&site).zip(target.1.sites.get(&site));
        let by_model = models.and_then(|(from, to)| {
            let before = levels(from, own.0).total();
            let after = levels(to, target.0);
            let is_applicable = before > MIN_COST * own.0.caches[0].latency_ns;
            is_applicable.then(|| after.scaled_to(stalled * after.total() / before))
        });
        sum += by_model.unwrap_or_else(|| by_names(&cost.stall.levels, own.0, target.0));
    }
    sum
}

/// Average cost of a site's touch in nanoseconds beyond a hit in the innermost cache, by level.
fn levels(site: &SiteTraffic, caches: &Caches) -> ByLevel {
    let mut levels = ByLevel::default();
    if site.touches <= 0.0 {
        return levels;
    }
    for (at, beyond) in site.beyond.iter().enumerate() {
        let further = site.beyond.get(at + 1).copied().unwrap_or(0.0);
        let (served, cost_ns) = caches.level(at + 1);
        let share = (beyond - further).max(0.0) / site.touches;
        levels.add(served, share * cost_ns);
    }
    levels
}

/// Scales stalls that no burst covers: each level in proportion to its latency on the two machines.
fn by_names(stall: &ByLevel, own: &Caches, target: &Caches) -> ByLevel {
    let cost = |caches: &Caches, served: Served| {
        (1..=caches.caches.len())
            .map(|level| caches.level(level))
            .find(|level| level.0 == served)
            .map(|level| level.1)
            .filter(|cost| *cost > 0.0)
    };
    let mut levels = ByLevel::default();
    for served in Served::ALL {
        let change = match (cost(own, served), cost(target, served)) {
            (Some(before), Some(after)) => after / before,
            _ => 1.0,
        };
        levels.add(served, stall.get(served) * change);
    }
    levels
}
