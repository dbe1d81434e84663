//! Predicts how the program would run on another machine.
//!
//! A stall at a level is assumed to change in proportion to the latency: the cache model gives the levels that
//! serve the lines there which that level serves here, and the machine profiles give their latencies. The part
//! of the latency that is hidden is assumed to stay the same. Streams do not wait for latency, which prefetchers
//! hide: where they come from memory, their stall changes as the time does that their bytes take.
//!
//! A function that keeps memory busy, or waits at streams for it, takes at least the time that its bytes take
//! there: as much longer as the machines' bandwidths differ for its mix of reads and writes and the program's
//! number of threads.
//!
//! The time without stalls is assumed to need as many core clock cycles there as here, if both profiles
//! have a core clock. How much work another core does per cycle is unknown: see [`BY_DESIGN`].

use std::collections::BTreeMap;

use membound_model::stall::{ByLevel, Served};
use membound_types::{Basis, Elsewhere, Figure, LevelKind, MachineProfile, Outcome};

use super::burst_traffic::{BurstTraffic, Bytes, SiteTraffic, busy, function_of};
use super::caches::{Caches, Within};
use super::pieces::Bursts;
use super::rates::Rates;
use crate::context::Context;
use crate::options::OtherMachine;
use crate::places::FunctionId;
use crate::rows;

/// Factor by which cores of two designs may differ in the cycles for the same work, either way. The twelve
/// programs of the field that wait least for memory took 0.96 to 1.30 times as many on Zen 4 as on Zen 5.
const BY_DESIGN: f64 = 1.3;

/// Shares of a function's time that transfers would take at the full bandwidth, and that waits at streams, from
/// which on memory sets the function's pace, although the function moves fewer bytes than the machine's own
/// kernels, which use the widest vectors.
const PACED_SHARES: (f64, f64) = (0.5, 0.2);

/// Share of a function's time that transfers would take at the full bandwidth from which on its streams come from memory.
const MIN_TRANSFER_SHARE: f64 = 0.1;

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
        let other_lines =
            (target.line_bytes != own.line_bytes).then(|| Bursts::new(context, target.line_bytes));
        let here = Here {
            context,
            own,
            burst_traffic,
            pieces: other_lines.as_ref().unwrap_or(pieces),
            rates,
        };
        let computing = computing(context.machine.profile, other.profile);
        predictions.push(prediction(&here, &target, other, computing));
    }
    (predictions, without)
}

/// What is known of the run on its own machine.
struct Here<'a> {
    context: &'a Context<'a>,
    own: &'a Caches,
    burst_traffic: &'a BurstTraffic,
    /// Bursts in lines of the other machine.
    pieces: &'a Bursts,
    rates: &'a Rates,
}

/// The run on the other machine.
struct There {
    /// Sum over all functions.
    stall: ByLevel,
    functions: BTreeMap<FunctionId, Function>,
    /// Bytes that memory moves over the whole run.
    bytes: f64,
}

/// CPU time of one function in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    time_here_ns: f64,
    stall_here_ns: f64,
    /// Part of it at streams.
    streams_here_ns: f64,
    stall_there_ns: f64,
    /// Part of it at streams.
    streams_there: ByLevel,
    /// Least time there, because of memory's bandwidth.
    transfer_there_ns: f64,
}

impl Function {
    /// Makes its streams wait `longer` times as long as here; returns by how much its stall there changes.
    fn pace_streams(&mut self, longer: f64) -> ByLevel {
        let by_latency_ns = self.streams_there.total();
        if by_latency_ns <= 0.0 {
            return ByLevel::default();
        }
        let paced = self.streams_here_ns * longer / by_latency_ns;
        let change = self.streams_there.times(paced - 1.0);
        self.stall_there_ns += change.total();
        change
    }
}

impl There {
    fn new(here: &Here<'_>, caches: &Caches) -> Self {
        let moved = BurstTraffic::new(here.context, here.pieces, caches);
        let mut there = Self {
            stall: ByLevel::default(),
            functions: BTreeMap::new(),
            bytes: 0.0,
        };
        there.add_stalls(here, caches, &moved);
        there.add_transfers(here, caches, &moved);
        there
    }

    fn add_stalls(&mut self, here: &Here<'_>, caches: &Caches, moved: &BurstTraffic) {
        for (index, cost) in here.context.costs.iter().enumerate() {
            let stalled = cost.stall.stall_ns.value;
            if stalled <= 0.0 {
                continue;
            }
            let site = membound_run::SiteId(index as u32);
            let models = here.burst_traffic.sites.get(&site);
            let models = models.zip(moved.sites.get(&site));
            let there = stall_there(&cost.stall.levels, models, (here.own, caches));
            let function = function_of(here.context, site);
            let function = self.functions.entry(function).or_default();
            function.stall_here_ns += stalled;
            if cost.is_stream {
                function.streams_here_ns += stalled;
                function.streams_there += there;
            }
            function.stall_there_ns += there.total();
            self.stall += there;
        }
    }

    /// The transfer's share of a function's time here is known; errors of the modelled traffic mostly
    /// cancel in the ratio of what is left of it there.
    fn add_transfers(&mut self, here: &Here<'_>, caches: &Caches, moved: &BurstTraffic) {
        let threads = busy(here.context);
        for (function, repeated) in &here.rates.repeated {
            let bytes = |traffic: &BurstTraffic| {
                let bytes = traffic.functions.get(function).copied();
                let bytes = bytes.unwrap_or_default();
                (bytes, bytes.total() * repeated)
            };
            let (before, after) = (bytes(here.burst_traffic), bytes(moved));
            self.bytes += after.1;
            let transfer_ns = |(mix, bytes): (Bytes, f64), caches: &Caches| {
                let written = mix.written / mix.total().max(1.0);
                let gb_s = caches.most_of(written, threads).known().copied()?;
                // Threads that move bytes at the same time wait for each other's as for their own.
                Some(bytes * threads / gb_s)
            };
            let Some((transfer_here, transfer_there)) =
                transfer_ns(before, here.own).zip(transfer_ns(after, caches))
            else {
                continue;
            };
            let time_ns = here.rates.time_ns(*function);
            let of_function = self.functions.entry(*function).or_default();
            of_function.time_here_ns = time_ns;
            if transfer_here > 0.0 {
                let is_paced = transfer_here >= PACED_SHARES.0 * time_ns
                    && of_function.streams_here_ns >= PACED_SHARES.1 * time_ns;
                let transfer_ns = if is_paced {
                    time_ns
                } else {
                    transfer_here.min(time_ns)
                };
                let longer = transfer_there / transfer_here;
                of_function.transfer_there_ns = transfer_ns * longer;
                if transfer_here >= MIN_TRANSFER_SHARE * time_ns {
                    self.stall += of_function.pace_streams(longer);
                }
            }
        }
    }

    /// Waits there in nanoseconds of CPU time: for latency, and beyond that for bandwidth; if computing
    /// takes `slower` times as long as here, and stalls here are `stalled` times the estimates.
    fn waits_ns(&self, slower: f64, stalled: f64) -> (f64, f64) {
        let beyond = self.functions.values().map(|function| {
            let computing = (function.time_here_ns - function.stall_here_ns * stalled).max(0.0);
            let by_latency = computing * slower + function.stall_there_ns * stalled;
            (function.transfer_there_ns - by_latency).max(0.0)
        });
        (self.stall.total() * stalled, beyond.sum())
    }
}

/// Prediction for one machine; `computing` is the ratio of the time without stalls there to that here.
fn prediction(
    here: &Here<'_>,
    target: &Caches,
    other: &OtherMachine<'_>,
    computing: Outcome<Figure>,
) -> Elsewhere {
    let context = here.context;
    let cpu_ns = context.times.total_ns.max(1.0);
    let whole = rows::whole(context);
    let bound = whole.bound(context);
    let stalled = whole.stall_ns / cpu_ns;
    // If the speed of the other core is unknown, it is assumed to be the same.
    let cores = computing.known().copied();
    let (slower, slowest) = cores.map_or((1.0, [1.0, 1.0]), |it| (it.value, [it.low, it.high]));
    // Time without stalls there, and all time there, as shares of the time here.
    let run = |there: &There, stalled_here: f64, slower: f64| {
        let of_estimate = if stalled > 0.0 {
            stalled_here / stalled
        } else {
            1.0
        };
        let (latency_ns, beyond_ns) = there.waits_ns(slower, of_estimate);
        let computing = (1.0 - stalled_here) * slower;
        (computing, computing + (latency_ns + beyond_ns) / cpu_ns)
    };
    let there = There::new(here, target);
    let mut ends = vec![run(&there, stalled, slower)];
    let intervals = [Within::Fastest, Within::Slowest];
    for end in intervals
        .into_iter()
        .filter_map(|end| Caches::within(other.profile, end))
    {
        let there = There::new(here, &end);
        for stalled in [bound.low.min(stalled), bound.high.max(stalled)] {
            ends.extend(slowest.map(|slower| run(&there, stalled, slower)));
        }
    }
    // Time that is not spent computing waits for latency or for bandwidth.
    let bounds = ends
        .iter()
        .map(|(computing, all)| (1.0 - computing / all).max(0.0));
    let bounds: Vec<f64> = bounds.collect();
    let ratios: Vec<f64> = ends.iter().map(|(_, all)| *all).collect();
    let (memory_bound, time_ratio) = (modelled(&bounds), modelled(&ratios));
    let mut levels = there.stall;
    levels.add(Served::Dram, there.waits_ns(slower, 1.0).1);
    let levels = levels.scaled_to(memory_bound.value * cpu_ns);
    Elsewhere {
        machine: other.name.to_owned(),
        memory_bound,
        levels: rows::level_shares(&levels, context),
        compute_ratio: computing,
        per_core_gb_s: there.bytes / (cpu_ns * time_ratio.value),
        time_ratio,
        machine_max_gb_s: target.most_gb_s.clone(),
    }
}

/// The first of `values`, with all of them as its interval.
fn modelled(values: &[f64]) -> Figure {
    Figure {
        value: values[0],
        low: values.iter().copied().fold(f64::INFINITY, f64::min),
        high: values.iter().copied().fold(0.0, f64::max),
        basis: Basis::Modelled,
    }
}

/// Ratio of the time without stalls there to that here: the same cycles at another clock. The interval
/// includes the ratio of the first caches' latencies, which follow the core's design, and [`BY_DESIGN`].
fn computing(own: Option<&MachineProfile>, target: &MachineProfile) -> Outcome<Figure> {
    let (Some(clock_here), Some(clock_there)) = (own.and_then(core_hz), core_hz(target)) else {
        return Outcome::missing("one of the machine profiles has no core clock");
    };
    let value = clock_here / clock_there;
    let first = own.and_then(first_cache_ns).zip(first_cache_ns(target));
    let other = first.map_or(value, |(own, target)| target / own);
    let by_design = if own.is_some_and(|own| is_same_design(own, target)) {
        1.0
    } else {
        BY_DESIGN
    };
    Outcome::Known(Figure {
        value,
        low: value.min(other).min(value / by_design),
        high: value.max(other).max(value * by_design),
        basis: Basis::Modelled,
    })
}

fn is_same_design(own: &MachineProfile, target: &MachineProfile) -> bool {
    let design = |profile: &MachineProfile| profile.machine.cpu.microarchitecture.clone();
    design(own).is_some_and(|own| design(target) == Some(own))
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

/// Scales the stall of a site, by level, to another machine. `models` is its traffic with the caches here and
/// there, if a burst recorded it; `caches` are those here and there.
fn stall_there(
    stall: &ByLevel,
    models: Option<(&SiteTraffic, &SiteTraffic)>,
    (own, target): (&Caches, &Caches),
) -> ByLevel {
    let mut there = ByLevel::default();
    for served in Served::ALL {
        let stalled = stall.get(served);
        let number = (1..=own.caches.len()).find(|number| own.level(*number).0 == served);
        let cost_here = number.map(|number| (number, own.level(number).1));
        let Some((number, cost_here)) = cost_here.filter(|it| it.1 > 0.0) else {
            there.add(served, stalled);
            continue;
        };
        let moves = models.and_then(|(from, to)| moves(from, to, number));
        for (level, share) in moves.unwrap_or_else(|| vec![(same_level(served, target), 1.0)]) {
            let (served, cost) = target.level(level);
            there.add(served, stalled * share * cost / cost_here);
        }
    }
    there
}

/// Takes the lines that miss the first `number` caches here and hit the next level, and returns the levels that
/// serve them there, each with its share of the lines. Both machines serve the lines in the same order: the
/// outermost levels serve the first ones, the innermost levels the last. `None` if no line hits that level here.
fn moves(from: &SiteTraffic, to: &SiteTraffic, number: usize) -> Option<Vec<(usize, f64)>> {
    let (start, end) = furthest_first(from, number);
    let found = (0..=to.beyond.len()).map(|level| {
        let (start_there, end_there) = furthest_first(to, level);
        let both = end.min(end_there) - start.max(start_there);
        (level, both.max(0.0) / (end - start))
    });
    (end > start).then(|| found.filter(|(_, share)| *share > 0.0).collect())
}

/// Place of the lines of a level among all touches of a site, 0 to 1, those found furthest out first.
fn furthest_first(site: &SiteTraffic, level: usize) -> (f64, f64) {
    let beyond = |level: usize| match level.checked_sub(1) {
        Some(cache) => site
            .beyond
            .get(cache)
            .map_or(0.0, |beyond| beyond / site.touches),
        None => 1.0,
    };
    (beyond(level + 1), beyond(level))
}

/// Level of `target` of the same name, or the next one further out.
fn same_level(served: Served, target: &Caches) -> usize {
    let mut levels = 1..=target.caches.len();
    levels
        .find(|level| target.level(*level).0 >= served)
        .unwrap_or(target.caches.len())
}
