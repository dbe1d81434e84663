//! Cost of each access over the whole run.

use std::collections::BTreeMap;

use membound_model::stall::{
    self, Advance, Contended, Estimate, Evidence, Executed, Mixture, Served, Stall, Stream,
};
use membound_run::{Access, RunData, SiteId, SiteKind};
use rayon::prelude::*;

use crate::executions::Windows;
use crate::groups::Groups;
use crate::info;
use crate::machine::Machine;
use crate::places::{FunctionId, Places};
use crate::recorded_accesses::{self, RecordedAccesses};
use crate::served_share::served_share;
use crate::sharing::ContendedLines;
use crate::tally::Tally;
use crate::time::Times;
use crate::work;

/// Most accesses of one thread that are searched for a regular advance.
const ADVANCE_ACCESSES: usize = 4096;

/// Share of the steps that must fit a constant advance for accesses to be a stream.
const MIN_STREAM_REGULARITY: f64 = 0.5;

/// Restarts of a stream from which on its observed span is accepted as all of the memory that it goes
/// through.
const MIN_TURNS: usize = 3;

/// Cost of an access over the whole run.
#[derive(Debug)]
pub(crate) struct SiteCost {
    pub stall: Stall,
    pub executed: Option<Executed>,
    pub mixture: Option<Mixture>,
    /// Share of the executions that missed the last cache.
    pub missed: Option<Estimate>,
    pub contended: Option<Contended>,
    pub is_stream: bool,
    pub time_ns: f64,
    /// Most CPU time in nanoseconds that samples of other instructions of its loop waited for it: see [`waits_besides`].
    pub besides_ns: f64,
}

impl SiteCost {
    /// True if most of its accesses go to lines that threads contend for.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended
            .is_some_and(|contended| contended.share > 0.5)
    }
}

/// Evidence about an access from counts and addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    executed: Option<Executed>,
    stream: Option<Stream>,
}

/// Counts and streams of all accesses, by [`SiteId`]; `executed` holds the executions of each.
pub(crate) fn counted(
    run: &RunData,
    machine: &Machine<'_>,
    places: &Places<'_>,
    groups: &Groups,
    touches: &RecordedAccesses<'_>,
    windows: &Windows,
    executed: &[Option<Executed>],
) -> Vec<Counted> {
    let busy = info::threads(run).min(run.meta.cpus.max(1) as usize) as u32;
    let mut streams: Vec<Option<Stream>> = (0..run.sites.len())
        .into_par_iter()
        .map(|index| {
            stream(
                run,
                machine,
                groups,
                touches,
                windows,
                SiteId(index as u32),
                busy,
            )
        })
        .collect();
    add_other_streams(run, places, executed, &mut streams);
    let both = executed.iter().zip(streams);
    both.map(|(&executed, stream)| Counted { executed, stream })
        .collect()
}

/// Costs of all accesses, by [`SiteId`].
pub(crate) fn costs(
    run: &RunData,
    machine: &Machine<'_>,
    counted: Vec<Counted>,
    times: &Times,
    tally: &Tally,
    touches: &RecordedAccesses<'_>,
    contended_lines: &ContendedLines,
) -> Vec<SiteCost> {
    let time_of = |id| tally.of(id).iter().map(|cell| cell.time_ns).sum();
    let times_ns: Vec<f64> = (0..run.sites.len())
        .map(|index| time_of(SiteId(index as u32)))
        .collect();
    let innermost = work::innermost(run);
    let loops = work::around_sites(run, &innermost, &times_ns);
    let executed: Vec<Option<Executed>> = counted.iter().map(|it| it.executed).collect();
    let of_prefetches = work::of_prefetches(run, &innermost, &executed);
    // Fitting mixtures is most of the work in a run with many sites.
    let mut costs: Vec<SiteCost> = run
        .sites
        .par_iter()
        .zip(counted)
        .enumerate()
        .map(|(index, (site, Counted { executed, stream }))| {
            let id = SiteId(index as u32);
            let cells = tally.of(id);
            let time_ns = times_ns[index];
            let sure_ns: f64 = cells.iter().map(|cell| cell.sure_ns).sum();
            let fit = |select: &dyn Fn(u32) -> bool| {
                let mixer = machine.mixer.as_ref().ok()?;
                let histogram = touches.histogram(id, |position, _| select(position));
                mixer.fit_timed(&histogram, touches.timing(id))
            };
            let mixture = fit(&|_| true);
            let contended = contended_lines.contended(id);
            // Latencies of contended accesses are excluded from the fit of the others.
            let uncontended = contended.map(|_| fit(&|position| !contended_lines.has(position)));
            let stall = Stall::of(
                &Evidence {
                    access_kind: access_kind(site.kind),
                    time_ns,
                    early_ns: cells.iter().map(|cell| cell.early_ns).sum(),
                    total_ns: times.total_ns,
                    samples: times.effective_samples,
                    confidence: if time_ns > 0.0 {
                        sure_ns / time_ns
                    } else {
                        0.0
                    },
                    executed: executed.or_else(|| of_prefetches.get(&id).copied()),
                    mixture: uncontended.as_ref().unwrap_or(&mixture).as_ref(),
                    stream,
                    contended,
                    work: loops[index].work,
                    cached_loop: loops[index].cached,
                },
                &machine.costs,
            );
            let timed = uncontended.as_ref().unwrap_or(&mixture).as_ref();
            let uncontended = contended.map_or(1.0, |contended| (1.0 - contended.share).max(0.0));
            SiteCost {
                stall,
                missed: timed.map(|mixture| missed(run, mixture).times(uncontended)),
                executed,
                mixture,
                contended,
                is_stream: stream.is_some(),
                time_ns,
                besides_ns: 0.0,
            }
        })
        .collect();
    waits_besides(run, &innermost, &loops, machine.costs.core_hz, &mut costs);
    costs
}

/// Cycles that an instruction takes at least: a core that retires six in a cycle hardly reaches four in a loop that also
/// waits.
const MIN_CYCLES_PER_INSTRUCTION: f64 = 0.25;

/// Finds how much of the time that samples show at other instructions of a loop may be a wait for its accesses, too.
///
/// A sample lies at the oldest instruction that has not retired. While the store buffer is full, or a branch that
/// depends on a miss was foreseen wrongly, that is another one than the access. No more than the loop takes beyond its
/// instructions at full speed can be a wait, and no more than its timed accesses have latency beyond hits. The site of
/// each loop with the longest wait gets the time.
fn waits_besides(
    run: &RunData,
    innermost: &work::Innermost,
    loops: &[work::Around],
    core_hz: f64,
    costs: &mut [SiteCost],
) {
    let mut of_loops: BTreeMap<work::Loop, Vec<usize>> = BTreeMap::new();
    for (index, site) in run.sites.iter().enumerate() {
        let cost = &costs[index];
        if let Some(around) = innermost.get(&site.frame)
            && !cost.is_stream
            && cost.contended.is_none()
        {
            of_loops.entry(*around).or_default().push(index);
        }
    }
    for indices in of_loops.into_values() {
        let of_loop = loops[indices[0]];
        let iterations = indices.iter().filter_map(|&index| costs[index].executed);
        let iterations = iterations.map(|it| it.low).reduce(f64::max);
        let (Some(work), Some(iterations)) = (of_loop.work, iterations) else {
            continue;
        };
        let iteration_ns = match of_loop.cached {
            Some(cached) => cached.iteration_ns.low * (1.0 - stall::CACHED_LOOP_ERROR),
            None => work.instructions * MIN_CYCLES_PER_INSTRUCTION * 1e9 / core_hz,
        };
        let latency_ns = |cost: &SiteCost| {
            let excess = cost.mixture.as_ref()?.excess_ns;
            let executed = cost.executed.filter(|_| excess.low > 0.0)?;
            Some(executed.high * excess.high)
        };
        let of_sites = || indices.iter().map(|&index| &costs[index]);
        let latencies_ns: f64 = of_sites().filter_map(latency_ns).sum();
        let known_ns: f64 = of_sites().map(|cost| cost.stall.stall_ns.high).sum();
        let possible_ns = work.visible_ns + work.waiting_ns - iterations * iteration_ns;
        let besides_ns = possible_ns.min(latencies_ns) - known_ns;
        let longest = |a: &usize, b: &usize| {
            let ns = |index: &usize| costs[*index].stall.stall_ns.value;
            ns(a).total_cmp(&ns(b))
        };
        if core_hz > 0.0
            && besides_ns > 0.0
            && let Some(longest) = indices.iter().copied().max_by(longest)
        {
            costs[longest].besides_ns = besides_ns;
        }
    }
}

/// Share of the timed accesses that missed the last cache.
///
/// On a machine with one node, a transfer from another core's cache passes the last cache; with several
/// nodes it may come from behind another node's last cache.
pub(crate) fn missed(run: &RunData, mixture: &Mixture) -> Estimate {
    let beyond: &[Served] = if run.meta.nodes > 1 {
        &[Served::Dram, Served::Remote]
    } else {
        &[Served::Dram]
    };
    served_share(mixture, beyond)
}

const fn access_kind(kind: SiteKind) -> stall::AccessKind {
    match kind {
        SiteKind::Load | SiteKind::Both => stall::AccessKind::Reads,
        SiteKind::Store => stall::AccessKind::Writes,
        SiteKind::Locked => stall::AccessKind::Locked,
        SiteKind::Prefetch => stall::AccessKind::Prefetches,
    }
}

/// Largest ratio between the executions of two accesses that count as one loop; not 1, because they are
/// counted in windows at different times.
const MAX_SAME_LOOP_COUNT_RATIO: f64 = 1.5;

/// Adds to each stream the transfer time of the streams beside it: accesses of the same function that
/// execute as often.
fn add_other_streams(
    run: &RunData,
    places: &Places<'_>,
    executed: &[Option<Executed>],
    streams: &mut [Option<Stream>],
) {
    let mut by_function: BTreeMap<FunctionId, Vec<(usize, f64, f64)>> = BTreeMap::new();
    for (index, stream) in streams.iter().enumerate() {
        let (Some(stream), Some(executed)) = (stream, executed[index]) else {
            continue;
        };
        if stream.served == Served::L1 {
            continue;
        }
        let function = places.function_of(run.sites[index].frame);
        by_function.entry(function).or_default().push((
            index,
            executed.count,
            stream.lines_per_execution * stream.line_ns,
        ));
    }
    let mut times: BTreeMap<FunctionId, u64> = BTreeMap::new();
    if !by_function.is_empty() {
        for sample in &run.samples {
            let frame = run.stacks[sample.stack.index()].frame;
            let time_ns = times.entry(places.function_of(frame)).or_default();
            *time_ns = time_ns.saturating_add(sample.weight_ns);
        }
    }
    for (function, of_function) in &by_function {
        let function_ns = times.get(function).copied().unwrap_or(0) as f64;
        for &(index, count, _) in of_function {
            let others = of_function.iter().filter(|(other, of_other, _)| {
                *other != index
                    && *of_other <= MAX_SAME_LOOP_COUNT_RATIO * count
                    && count <= MAX_SAME_LOOP_COUNT_RATIO * of_other
            });
            let (number, others_ns) =
                others.fold((0, 0.0), |(number, sum), (_, _, ns)| (number + 1, sum + ns));
            if let Some(stream) = &mut streams[index] {
                stream.other_streams_ns = others_ns;
                stream.other_streams = number;
                stream.function_ns = function_ns;
            }
        }
    }
}

/// Addresses of a thread's `accesses` in the window of `site` that has most of them, and the number of
/// executions between two of them.
///
/// Timing may end before the window does, so the window's count is taken in proportion to the time.
fn counted_window(
    accesses: &[&Access],
    windows: &Windows,
    site: SiteId,
) -> Option<(Vec<u64>, f64)> {
    let window_of = |access: &&Access| windows.at(site, access.t_ns);
    let most = accesses
        .chunk_by(|a, b| window_of(a) == window_of(b))
        .filter(|of_window| of_window.first().and_then(window_of).is_some())
        .max_by_key(|of_window| of_window.len())?;
    let window = &windows.of(site)[window_of(most.first()?)?];
    let (first, last) = (most.first()?.t_ns, most.last()?.t_ns);
    let between = most.len().checked_sub(1).filter(|between| *between > 0)?;
    let length_ns = window.to_ns.saturating_sub(window.from_ns).max(1) as f64;
    let passed = last.saturating_sub(first) as f64 / length_ns;
    let period = window.count as f64 * passed.min(1.0) / between as f64;
    let addresses = most.iter().map(|access| access.address).collect();
    (period >= 1.0).then_some((addresses, period))
}

/// Bytes of memory that a stream goes through in one pass. Few timed accesses may cover only part of an
/// array, so the size of the whole object is used until the stream was observed to restart.
fn stream_bytes(advance: &Advance, accesses: &[&Access], groups: &Groups) -> u64 {
    if advance.turns >= MIN_TURNS {
        return advance.span_bytes;
    }
    let of_object = |access: &&Access| match recorded_accesses::group_of(access, groups) {
        Groups::UNKNOWN => 0,
        group => groups.get(group).size_bytes,
    };
    let mut sizes: Vec<u64> = accesses.iter().map(of_object).collect();
    sizes.sort_unstable();
    let usual = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    advance.span_bytes.max(usual)
}

/// Stream that `site` forms, judged by the thread with most of its accesses.
fn stream(
    run: &RunData,
    machine: &Machine<'_>,
    groups: &Groups,
    touches: &RecordedAccesses<'_>,
    windows: &Windows,
    site: SiteId,
    busy: u32,
) -> Option<Stream> {
    let accesses: Vec<_> = touches.of(site).map(|(_, access)| access).collect();
    let longest = accesses
        .chunk_by(|a, b| a.thread == b.thread)
        .max_by_key(|of_thread| of_thread.len())?;
    let addresses: Vec<u64> = longest
        .iter()
        .take(ADVANCE_ACCESSES)
        .map(|access| access.address)
        .collect();
    let usual = f64::from(run.meta.site_period.max(1));
    let mut advance = stall::advance(&addresses, usual)
        .filter(|advance| advance.regularity >= MIN_STREAM_REGULARITY)?;
    // The sampling distance differs between windows; in a counted window, the advance per execution is
    // known.
    if let Some((addresses, period)) = counted_window(longest, windows, site)
        && let Some(counted) = stall::advance(&addresses, period)
    {
        advance.bytes_per_execution = counted.bytes_per_execution;
    }
    let served = machine.level_of(stream_bytes(&advance, longest, groups))?;
    let line_bytes = f64::from(machine.line_bytes);
    let lines = (advance.bytes_per_execution.abs() / line_bytes).min(1.0);
    let written_back = run.sites[site.index()].kind.stores();
    Some(Stream {
        lines_per_execution: if written_back { 2.0 * lines } else { lines },
        line_ns: machine.line_ns(served, busy)?,
        other_streams_ns: 0.0,
        other_streams: 0,
        function_ns: 0.0,
        served,
    })
}
