//! Estimates the stall of one instruction.

use super::around::{CachedLoop, Factor, Work};
use super::{ByLevel, Estimate, Executed, Mixture, Served, Stream};
use crate::stats::Z95;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// It reads (and may also write).
    Reads,
    /// It only writes: instructions wait for it only if the store buffer is full.
    Writes,
    /// It reads and writes atomically, as a locked instruction.
    Locked,
    /// It asks for a line, as a prefetch instruction: it waits for translation, and for room among the lines that are
    /// on their way, but not for the line.
    Prefetches,
}

/// Most that lines may take, as a multiple of the time at the machine's measured bandwidth.
const MAX_BANDWIDTH_TIME_RATIO: f64 = 1.5;

/// Most of the measured bandwidth that a loop may use: another mix of loads and stores may get more than the one
/// that was measured.
const MAX_BANDWIDTH_RATIO: f64 = 1.5;

/// Share of a hit's latency that an access costs in a loop that goes through memory in order, where
/// hits overlap. The range is from a core that starts four of them per cycle to one that computes
/// with each; the usual value is that of copies, triads and stencils in the first cache.
const OVERLAPPED_HIT: Factor = Factor {
    least: 0.05,
    usual: 0.1,
    most: 0.2,
};

/// Cost of hits at a site whose accesses overlap, as shares of their latency.
struct OverlappedHits {
    least: f64,
    usual: f64,
}

/// Concurrent accesses from which on the latency of hits is hidden as far as possible.
const FULLY_HIDING_CONCURRENCY: f64 = 2.0;

impl OverlappedHits {
    /// Estimates the overlap from the time `time_ns` of all executions of a site.
    ///
    /// One after the other, each would take its average latency; the ratio of the two times is the
    /// number of concurrent accesses.
    fn of(time_ns: f64, executed: Executed, mixture: &Mixture) -> Self {
        let at_a_time = executed.count * mixture.mean_ns.value / time_ns.max(f64::MIN_POSITIVE);
        let hidden = ((at_a_time - 1.0) / (FULLY_HIDING_CONCURRENCY - 1.0)).clamp(0.0, 1.0);
        let part = |all_hidden: f64| 1.0 - hidden * (1.0 - all_hidden);
        Self {
            least: part(OVERLAPPED_HIT.least),
            usual: part(OVERLAPPED_HIT.most),
        }
    }
}

/// Lines of a site that threads take from each other.
///
/// A load finds such a line in the cache if an earlier store has just fetched it, and a store
/// retires before it has its line, so the latency of the load does not show the wait. But
/// it takes time until all earlier stores are complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contended {
    /// Share of the site's executions that access contended lines, 0 to 1.
    pub share: f64,
    /// Time of one such execution beyond a hit until it and all earlier stores are complete,
    /// in nanoseconds.
    pub excess_ns: f64,
    /// Share of a hit's cost that it would have without contention, 0 to 1: of several
    /// accesses to one line one waits, and the others overlap with it.
    pub hit_share: f64,
}

/// Everything that is known about a site.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Kind of the access.
    pub access_kind: AccessKind,
    /// CPU time of the samples attributed to the site, in nanoseconds.
    pub time_ns: f64,
    /// Part of it from samples at the access itself: these may have waited for the instruction before it instead.
    pub early_ns: f64,
    /// CPU time of all samples, in nanoseconds.
    pub total_ns: f64,
    /// Effective number of samples of equal weight: (Σw)² ÷ Σw².
    pub samples: f64,
    /// Confidence of the attribution, 0 to 1.
    pub confidence: f64,
    /// Executions, if they were counted.
    pub executed: Option<Executed>,
    /// Latencies, if they were timed.
    pub mixture: Option<&'a Mixture>,
    /// The site's stream, if it is one.
    pub stream: Option<Stream>,
    /// Contended lines, if the site accesses any.
    pub contended: Option<Contended>,
    /// The loop around the site, if known.
    pub work: Option<Work>,
    /// The same, if it was measured with its data in the first cache.
    pub cached_loop: Option<CachedLoop>,
}

/// Costs of operations on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Latency of a hit in the innermost cache, in nanoseconds.
    pub l1_ns: f64,
    /// Time of a locked operation on a line in the innermost cache, in nanoseconds; 0 if
    /// unknown.
    pub locked_ns: f64,
    /// Core clock in hertz.
    pub core_hz: f64,
    /// Latency of a hit in the last cache, in nanoseconds; 0 if it is unknown, or if slower accesses may be
    /// served by another core's cache.
    pub last_cache_ns: f64,
}

/// The estimated stall of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// Stalled time in nanoseconds.
    pub stall_ns: Estimate,
    /// Stalled time by place; the sum is `stall_ns.value`.
    pub levels: ByLevel,
    /// Share of the stall that is due to contention, 0 to 1; `None` if unknown.
    pub contention_share: Option<f64>,
    /// Average latency in nanoseconds, if accesses were timed.
    pub latency_ns: Option<Estimate>,
    /// Average latency in core clock cycles.
    pub latency_cycles: Option<Estimate>,
    /// Stalled share of the site's time, with all errors except the sampling error: see
    /// [`super::combine()`].
    pub ratio: Estimate,
    /// CPU time of the site's samples, in nanoseconds.
    pub time_ns: f64,
}

/// Stalled share of a site's time if only its time is known.
const ASSUMED_STALL_SHARE: f64 = 0.5;

impl Stall {
    /// Estimates the stall from `evidence`.
    ///
    /// With T the time, N the executions and h the cost of a hit, T − N·h is the most that a
    /// site's own accesses can have stalled if each waits only for itself. Accesses that overlap
    /// wait for each other: then most of the hits' cost is hidden, or T divides in the proportion of
    /// the latencies. Neither can exceed N times the average latency beyond h or, for accesses that
    /// advance in order, N times their lines at the memory's bandwidth (the more of it they use, the
    /// more they wait for it): other time at this site is not due to memory. Stores that are not timed
    /// have no such limit; samples after them waited for room in the store buffer. If T is the time of N
    /// accesses that each wait only for themselves, all of these are the same quantity, and are
    /// weighted by their precision. Accesses that were counted but not timed have stalled at least T minus
    /// the time that N executions of the slowest other instructions would take.
    #[must_use]
    pub fn of(evidence: &Evidence<'_>, costs: &Costs) -> Self {
        let time_ns = evidence.time_ns.max(0.0);
        let (stall, levels) = match (evidence.executed, evidence.mixture) {
            (Some(executed), _) if evidence.access_kind == AccessKind::Prefetches => {
                prefetched(time_ns, executed, costs)
            }
            (Some(executed), mixture) => {
                let (stall, levels) = match mixture {
                    Some(mixture) => timed(evidence, executed, mixture, costs),
                    None => counted(evidence, executed, costs),
                };
                // A stream's wait follows from its bandwidth instead.
                let work = evidence.work.filter(|_| evidence.stream.is_none());
                let exposed =
                    work.map(|work| work.exposed(stall, time_ns, executed, costs.core_hz));
                let stall = exposed.unwrap_or(stall);
                let beyond = beyond_cached_loop(evidence, executed);
                let stall = beyond.map_or(stall, |beyond| in_loop(evidence, beyond, stall));
                (stall, levels)
            }
            (None, Some(mixture)) => {
                let share = mixture.excess_ns.value / mixture.mean_ns.value.max(costs.l1_ns);
                let stall = Estimate::new(time_ns * share.min(1.0), 0.0, time_ns);
                (stall, by_level(mixture, costs))
            }
            (None, None) => {
                let stall = Estimate::new(time_ns * ASSUMED_STALL_SHARE, 0.0, time_ns);
                (stall, ByLevel::default())
            }
        };
        let (stall, levels, contention_ns) = match (evidence.contended, evidence.executed) {
            (Some(contended), Some(executed)) => {
                let contention = contention(evidence, contended, executed, costs);
                let (stall, levels) = with_contention(contended, contention, stall, levels);
                (stall, levels, Some(contention.value))
            }
            _ => (stall, levels, None),
        };
        let stall = stall.clamped(0.0, time_ns);
        let ratio = if time_ns > 0.0 {
            let Estimate { value, low, high } = stall.times(1.0 / time_ns);
            Estimate::new(value, low * (1.0 - evidence.early_ns / time_ns), high)
        } else {
            Estimate::default()
        };
        let latency_ns = evidence.mixture.map(|mixture| mixture.mean_ns);
        let cycles = (costs.core_hz > 0.0).then_some(costs.core_hz / 1e9);
        Self {
            stall_ns: with_chance(stall, ratio.value, evidence)
                .clamped(0.0, evidence.total_ns.max(time_ns)),
            levels: levels.scaled_to(stall.value),
            contention_share: contention_ns
                .map(|ns| (ns / stall.value.max(f64::MIN_POSITIVE)).min(1.0)),
            latency_ns,
            latency_cycles: latency_ns.zip(cycles).map(|(ns, factor)| ns.times(factor)),
            ratio,
            time_ns,
        }
    }
}

impl Costs {
    /// Cost of a hit in nanoseconds.
    fn hit_ns(&self, access_kind: AccessKind) -> f64 {
        match access_kind {
            AccessKind::Reads | AccessKind::Writes | AccessKind::Prefetches => self.l1_ns,
            AccessKind::Locked => self.l1_ns.max(self.locked_ns),
        }
    }
}

/// Cycles of a prefetch that does not wait: usually, and at most.
const PREFETCH_CYCLES: (f64, f64) = (0.5, 2.0);
/// Lines that a core has on their way at a time, at least (line fill buffers).
const LINES_ON_THEIR_WAY: f64 = 10.0;

/// The stall of prefetches: what they take beyond their own work. A prefetch waits until an earlier line arrives, so by
/// Little's law the latency of a line is at least the wait of a prefetch times the number of lines on their way: the
/// loop may have other prefetches.
fn prefetched(time_ns: f64, executed: Executed, costs: &Costs) -> (Estimate, ByLevel) {
    let cycle_ns = 1e9 / costs.core_hz.max(1e9);
    let (usual, most) = PREFETCH_CYCLES;
    let beyond = |count: f64, cycles: f64| (time_ns - count * cycles * cycle_ns).max(0.0);
    let stall = Estimate::new(
        beyond(executed.count, usual),
        beyond(executed.high, most),
        time_ns,
    );
    let mut levels = ByLevel::default();
    let least_latency_ns = LINES_ON_THEIR_WAY * stall.value / executed.count.max(1.0);
    if costs.last_cache_ns > 0.0 && least_latency_ns > costs.last_cache_ns {
        levels.add(Served::Dram, stall.value);
    }
    (stall, levels)
}

/// The stall of a site by what its loop took `beyond` its time in the first cache, and by what is known of the site alone,
/// `stall`.
///
/// Prefetchers hide the latencies of streams. Timed accesses show what they wait for: if they found their data
/// near, the rest of the time is rather that of a loop that begins anew after a few iterations. In a loop that is known to
/// have many iterations, an access that is timed alone, behind a fence, waits less than many in a row, for translation
/// above all; and a loop that was measured on a busy core seems to wait less, too. So the wait there is at least the
/// longer of both.
fn in_loop(evidence: &Evidence<'_>, beyond: Estimate, stall: Estimate) -> Estimate {
    let is_long = evidence.cached_loop.is_some_and(|it| it.is_long());
    let agree = beyond.low <= stall.high && stall.low <= beyond.high;
    match (evidence.stream, evidence.mixture) {
        (Some(stream), _) if is_long || stream.served != Served::L1 => beyond,
        (None, Some(_)) if is_long => Estimate::new(
            beyond.value.max(stall.value),
            beyond.low.max(stall.low),
            beyond.high.max(stall.high),
        ),
        (None, Some(_)) if agree && beyond.width() < stall.width() => beyond,
        (None, None) => beyond,
        _ => stall,
    }
}

/// A site's stall by the time of its loop in the first cache, if that is known.
fn beyond_cached_loop(evidence: &Evidence<'_>, executed: Executed) -> Option<Estimate> {
    // The wait for a contended line is estimated apart.
    let cached = evidence
        .cached_loop
        .filter(|_| evidence.contended.is_none())?;
    let moves = evidence.stream.map_or(0.0, |stream| stream.moved_ns(1.0));
    let most = MAX_BANDWIDTH_RATIO * cached.loop_ns / moves.max(f64::MIN_POSITIVE);
    let high = executed.high.min(most).max(executed.count);
    cached.stall(evidence.time_ns, Executed { high, ..executed })
}

/// A site's time in nanoseconds minus the cost of its hits.
fn beyond_hits(evidence: &Evidence<'_>, executed: Executed, hit_ns: f64) -> Estimate {
    let time_ns = evidence.time_ns;
    let hits = executed.count * hit_ns;
    let (fewest, most) = executed.ends();
    let left = |hits: f64| (time_ns - hits).max(0.0);
    Estimate::new(left(hits), left(hits * most), left(hits * fewest))
}

/// The stall of accesses that were both counted and timed, and its division by place.
fn timed(
    evidence: &Evidence<'_>,
    executed: Executed,
    mixture: &Mixture,
    costs: &Costs,
) -> (Estimate, ByLevel) {
    let time_ns = evidence.time_ns;
    let hit_ns = costs.hit_ns(evidence.access_kind);
    let plain = beyond_hits(evidence, executed, hit_ns);
    let alone = stall_without_overlap(time_ns, plain, executed, mixture);
    if let (Some(stall), None) = (alone, evidence.stream) {
        let stall = with_overlapped_hits(evidence, executed, mixture, hit_ns, stall);
        return (stall, by_level(mixture, costs).scaled_to(stall.value));
    }
    let overlapped = time_ns * far_share(mixture, costs);
    let hidden = OverlappedHits::of(time_ns, executed, mixture);
    // At most the share that the excess has of the latency: overlapping accesses divide the time
    // in the same proportion.
    let far_ns = |excess_ns: f64| time_ns * excess_ns / (excess_ns + costs.l1_ns);
    let excess = mixture.excess_ns;
    let freed = beyond_hits(evidence, executed, hit_ns * hidden.usual)
        .value
        .min(far_ns(excess.value.max(0.0)))
        .max(plain.value);
    let most_freed = beyond_hits(evidence, executed, hit_ns * hidden.least)
        .high
        .min(far_ns(excess.high.max(0.0)))
        .max(plain.high);
    // A stream from the innermost cache waits for nothing beyond hits.
    let beyond = evidence
        .stream
        .filter(|stream| stream.served != Served::L1)
        .map(|stream| beyond_stream_hits(stream, executed, hit_ns, time_ns));
    let wanted = beyond.map_or(freed, |beyond| beyond.value).max(overlapped);
    let (fewest, most) = executed.ends();
    let limit = mixture.excess_ns.times(executed.count);
    let (least, most) = (limit.low * fewest, limit.high * most);
    let of_latency = wanted.min(limit.value);
    let mut levels = by_level(mixture, costs).scaled_to(of_latency);
    let Some(stream) = evidence.stream else {
        let stall = Estimate::new(
            of_latency,
            plain.low.max(overlapped).min(least),
            most_freed.max(overlapped).min(most),
        );
        return (stall, levels);
    };
    let moved = stream.moved_ns(executed.count);
    // Hits of a stream are hidden behind its misses. The less bandwidth the stream uses, the more
    // of its misses prefetchers hide.
    let own = executed.count * stream.lines_per_execution * stream.line_ns;
    let used = (own / time_ns.max(f64::MIN_POSITIVE)).min(1.0);
    let streamed = time_ns.min(own) * used;
    let value = wanted.min(limit.value.max(moved)).max(streamed);
    levels.add(stream.served, value - of_latency);
    // If moving its lines takes all of the loop's time, the loop waits for nothing else.
    let bound = beyond.map_or(0.0, |beyond| beyond.low) * stream.bound(executed.count);
    let stall = Estimate::new(
        value,
        plain.low.max(bound).min(least.max(moved)),
        plain
            .high
            .max(time_ns.min(moved))
            .max(beyond.map_or(0.0, |beyond| {
                beyond.high.min(MAX_BANDWIDTH_TIME_RATIO * moved)
            })),
    );
    (stall, levels)
}

/// `stall`, which counts the whole latency of each hit, where hits may overlap: those among few misses, as in a search
/// through a line that was just fetched. How much they cost then shows in the time of the loop in the first cache, if that is
/// known. At most, accesses have waited for their latency beyond a hit.
fn with_overlapped_hits(
    evidence: &Evidence<'_>,
    executed: Executed,
    mixture: &Mixture,
    hit_ns: f64,
    stall: Estimate,
) -> Estimate {
    let (_, most) = executed.ends();
    let excess_ns = mixture.excess_ns.times(executed.count);
    let in_cache = beyond_cached_loop(evidence, executed).unwrap_or(stall);
    let high = beyond_hits(evidence, executed, hit_ns * OVERLAPPED_HIT.most).high;
    Estimate::new(
        in_cache.value.min(excess_ns.value).max(stall.value),
        stall.low,
        high.min(excess_ns.high * most).max(stall.high),
    )
}

/// The time of a stream's site beyond its hits, which overlap.
fn beyond_stream_hits(stream: Stream, executed: Executed, hit_ns: f64, time_ns: f64) -> Estimate {
    // The loop's work is distributed over its instructions as its time is.
    let hits = hit_ns * f64::from(1 + stream.other_streams);
    let loop_ns = stream.function_ns.max(time_ns).max(f64::MIN_POSITIVE);
    let beyond = |part: f64, count: f64| time_ns * (1.0 - part * count * hits / loop_ns).max(0.0);
    Estimate::new(
        beyond(OVERLAPPED_HIT.usual, executed.count),
        beyond(OVERLAPPED_HIT.most, executed.high),
        beyond(OVERLAPPED_HIT.least, executed.low),
    )
}

/// The stall if each access waits only for itself; `None` if the time does not equal that of
/// `executed` such accesses, or if nothing beyond hits was observed.
///
/// Two estimates are weighted: the share of the latency beyond a hit, which needs no count, and the
/// time without hits (`plain`), which needs no latency.
fn stall_without_overlap(
    time_ns: f64,
    plain: Estimate,
    executed: Executed,
    mixture: &Mixture,
) -> Option<Estimate> {
    let (fewest, most) = (executed.low, executed.high);
    let latency = mixture.mean_ns;
    if time_ns < fewest * latency.low || time_ns > most * latency.high {
        return None;
    }
    // Without any excess beyond hits there is nothing to weight.
    if mixture.excess_ns.value <= 0.0 {
        return None;
    }
    // With the latency x beyond a hit h, its share is x ÷ (h + x).
    let hit_ns = latency.value - mixture.excess_ns.value;
    let share = |excess_ns: f64| time_ns * excess_ns / (hit_ns + excess_ns).max(f64::MIN_POSITIVE);
    let excess = mixture.excess_ns;
    let of_latency = Estimate::new(share(excess.value), share(excess.low), share(excess.high));
    let weight = |estimate: &Estimate| {
        // No estimate is more precise than a hundredth of the time.
        let half = ((estimate.high - estimate.low) / 2.0).max(0.01 * time_ns);
        1.0 / (half * half).max(f64::MIN_POSITIVE)
    };
    let (a, b) = (weight(&plain), weight(&of_latency));
    let value = (a * plain.value + b * of_latency.value) / (a + b);
    let half = (a + b).sqrt().recip();
    Some(Estimate::new(value, value - half, value + half).clamped(0.0, time_ns))
}

/// The stall due to contention for lines.
fn contention(
    evidence: &Evidence<'_>,
    contended: Contended,
    executed: Executed,
    costs: &Costs,
) -> Estimate {
    let hit_ns = costs.hit_ns(evidence.access_kind);
    let hidden = beyond_hits(evidence, executed, hit_ns * contended.hit_share);
    // The lower end assumes that no part of the hits is hidden.
    let beyond = Estimate::new(
        hidden.value,
        beyond_hits(evidence, executed, hit_ns).low,
        hidden.high,
    );
    let limit = executed.count * contended.excess_ns.max(0.0);
    Estimate::new(
        beyond.value.min(limit),
        beyond.low.min(limit),
        beyond.high.min(limit),
    )
    .times(contended.share.clamp(0.0, 1.0))
}

/// The stall with contention; `stall` and `levels` are the stall without it.
fn with_contention(
    contended: Contended,
    contention: Estimate,
    stall: Estimate,
    levels: ByLevel,
) -> (Estimate, ByLevel) {
    let rest = stall.times(1.0 - contended.share.clamp(0.0, 1.0));
    let mut levels = levels.scaled_to(rest.value);
    levels.add(Served::Remote, contention.value);
    let stall = Estimate::new(
        rest.value + contention.value,
        rest.low + contention.low,
        rest.high + contention.high,
    );
    (stall, levels)
}

/// Cycles for which an instruction keeps the next one from retiring at most, without waiting for memory: a
/// division behind a mispredicted branch.
const MAX_CYCLES_WITHOUT_MEMORY: f64 = 60.0;

/// Average time of accesses served by caches, as a multiple of the last cache's latency: they may miss the TLB.
const MAX_HIT_RATIO: f64 = 2.0;

/// The stall of accesses that were counted but not timed, and its division by place.
fn counted(evidence: &Evidence<'_>, executed: Executed, costs: &Costs) -> (Estimate, ByLevel) {
    let hit_ns = costs.hit_ns(evidence.access_kind);
    let plain = beyond_hits(evidence, executed, hit_ns);
    // It is unknown whether they overlap.
    let most_ns = beyond_hits(evidence, executed, hit_ns * OVERLAPPED_HIT.least).high;
    // Without the clock nothing is known of other instructions.
    let least_ns = match costs.core_hz > 0.0 {
        true => {
            let other_ns = MAX_CYCLES_WITHOUT_MEMORY * 1e9 / costs.core_hz;
            beyond_hits(evidence, executed, hit_ns + other_ns).low
        }
        false => 0.0,
    };
    let moved = evidence
        .stream
        .map(|stream| stream.moved_ns(executed.count));
    let stall = match (evidence.access_kind, moved) {
        (AccessKind::Writes, _) => plain,
        (_, Some(moved)) => Estimate::new(plain.value.min(moved), 0.0, plain.high),
        (_, None) => {
            let value = least_ns + (most_ns - least_ns) * ASSUMED_STALL_SHARE;
            Estimate::new(value, least_ns, most_ns)
        }
    };
    let mut levels = ByLevel::default();
    match evidence.stream {
        Some(stream) => levels.add(stream.served, plain.value),
        None => {
            let beyond_caches =
                beyond_hits(evidence, executed, MAX_HIT_RATIO * costs.last_cache_ns);
            let certain = match evidence.access_kind {
                AccessKind::Reads if costs.last_cache_ns > 0.0 => beyond_caches.low.min(least_ns),
                _ => 0.0,
            };
            levels.add(Served::Dram, certain);
            levels.add(Served::Unknown, stall.value - certain);
        }
    }
    (stall, levels)
}

/// The share of its time that a site stalls on levels that are certainly not the
/// innermost, if its accesses wait for each other.
fn far_share(mixture: &Mixture, costs: &Costs) -> f64 {
    let beyond_hit = |ns: f64| (ns - costs.l1_ns).max(0.0);
    let mut far = mixture.beyond.low * beyond_hit(mixture.beyond_ns);
    for (position, level) in mixture.levels.iter().enumerate() {
        let group = mixture
            .indistinguishable
            .iter()
            .find(|(group, _)| group.contains(&position));
        let near = match group {
            Some((group, _)) => group.iter().any(|&level| is_innermost(mixture, level)),
            None => is_innermost(mixture, position),
        };
        if near {
            continue;
        }
        // Each member gets its part of what the group certainly has.
        let certain = match group {
            Some((_, all)) if all.value > 0.0 => all.low * level.share.value / all.value,
            Some(_) => 0.0,
            None => level.share.low,
        };
        far += certain * beyond_hit(level.latency_ns);
    }
    (far / mixture.mean_ns.value.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

fn is_innermost(mixture: &Mixture, position: usize) -> bool {
    mixture.levels[position].served == Served::L1
}

/// Contribution of each place to the average latency beyond a hit.
///
/// Shares that may be zero do not count: a few tenths of a percent of memory outweigh the second
/// cache. Uncertain shares are also cut as far as the sum of all contributions exceeds the average:
/// if all ticks are off by a fraction of a timer's step, this produces a few percent of a farther
/// level, but moves the average by that fraction only.
fn by_level(mixture: &Mixture, costs: &Costs) -> ByLevel {
    let mut added = added(mixture, costs);
    let all: f64 = added.iter().map(|it| it.amount).sum();
    let mut surplus = match mixture.excess_ns.value {
        average if average > 0.0 => (all - average).max(0.0),
        _ => 0.0,
    };
    for it in added.iter_mut().rev() {
        let cut = surplus.min((it.amount - it.certain).max(0.0));
        it.amount -= cut;
        surplus -= cut;
    }
    let mut levels = ByLevel::default();
    for it in added {
        levels.add(it.served, it.amount);
    }
    levels
}

/// Contribution of a level to the average latency, in nanoseconds.
struct Added {
    served: Served,
    amount: f64,
    certain: f64,
}

/// Contributions of all levels, innermost first.
fn added(mixture: &Mixture, costs: &Costs) -> Vec<Added> {
    let indistinguishable = |position: usize| {
        mixture
            .indistinguishable
            .iter()
            .find(|(group, _)| group.contains(&position))
    };
    let mut added = Vec::new();
    let mut farthest = (Served::Unknown, 0.0);
    for (position, level) in mixture.levels.iter().enumerate() {
        let group = indistinguishable(position);
        let sure = group.map_or(level.share.low, |(_, share)| share.low);
        if level.share.value > farthest.1 && level.served >= Served::Dram {
            farthest = (level.served, level.share.value);
        }
        if sure <= 0.0 {
            continue;
        }
        let beyond_hit = (level.latency_ns - costs.l1_ns).max(0.0);
        // Each member gets its part of what the group certainly has.
        let certain = group.map_or(sure, |(_, all)| {
            all.low * level.share.value / all.value.max(f64::MIN_POSITIVE)
        });
        let least = match group {
            Some((group, all)) => nearest(mixture, group, *all, costs),
            None => vec![(position, 1.0)],
        };
        for (position, part) in least {
            added.push(Added {
                served: mixture.levels[position].served,
                amount: part * level.share.value * beyond_hit,
                certain: part * certain * beyond_hit,
            });
        }
    }
    if mixture.beyond.low > 0.0 {
        let beyond_hit = (mixture.beyond_ns - costs.l1_ns).max(0.0);
        added.push(Added {
            // If memory is accessed, accesses slower than memory are memory accesses with a delay.
            served: if farthest.1 >= mixture.beyond.value {
                farthest.0
            } else {
                Served::Unknown
            },
            amount: mixture.beyond.value * beyond_hit,
            certain: mixture.beyond.low * beyond_hit,
        });
    }
    added
}

/// Distributes the time that a `group` of levels adds over these levels, as (position, part).
///
/// No part goes farther out than the average latency of the group's accesses, whose share is `all`,
/// requires. Histograms that overlap cannot distinguish two neighbours, but accesses that on
/// average take as long as a third level's were not served by the first. The first two caches count
/// as one here, and lines of other cores never result from those of memory.
fn nearest(mixture: &Mixture, group: &[usize], all: Estimate, costs: &Costs) -> Vec<(usize, f64)> {
    let beyond_hit = |position: usize| (mixture.levels[position].latency_ns - costs.l1_ns).max(0.0);
    let innermost = group.first().copied().unwrap_or_default();
    let mut others = mixture.beyond.value * (mixture.beyond_ns - costs.l1_ns).max(0.0);
    for (position, level) in mixture.levels.iter().enumerate() {
        if !group.contains(&position) {
            others += level.share.value * beyond_hit(position);
        }
    }
    let average = (mixture.excess_ns.low - others) / all.value.max(f64::MIN_POSITIVE);
    let mut outward: Vec<usize> = group
        .iter()
        .copied()
        .filter(|&position| mixture.levels[position].served != Served::Remote)
        .collect();
    outward.sort_by(|&one, &other| beyond_hit(one).total_cmp(&beyond_hit(other)));
    let reported = |position: usize| match mixture.levels[position].served {
        Served::L2 => innermost,
        _ => position,
    };
    let Some(far) = outward
        .iter()
        .position(|&position| beyond_hit(position) >= average)
    else {
        return vec![(
            outward.last().map_or(innermost, |&last| reported(last)),
            1.0,
        )];
    };
    let Some(near) = far.checked_sub(1) else {
        return vec![(innermost, 1.0)];
    };
    let (near, far) = (outward[near], outward[far]);
    // The farther level's part of the time, if only these two levels served the accesses.
    let (near_ns, far_ns) = (beyond_hit(near), beyond_hit(far));
    let share = (average - near_ns) / (far_ns - near_ns);
    let part = (share * far_ns / average).clamp(0.0, 1.0);
    vec![(reported(near), 1.0 - part), (reported(far), part)]
}

/// Adds the errors of sampling and of attribution to the interval of a stall.
fn with_chance(stall: Estimate, ratio: f64, evidence: &Evidence<'_>) -> Estimate {
    let samples = evidence.samples.max(1.0);
    let total = evidence
        .total_ns
        .max(evidence.time_ns)
        .max(f64::MIN_POSITIVE);
    // Two more samples of each kind (Agresti and Coull, 1998): none observed does not mean never.
    let share = (evidence.time_ns / total * samples + 2.0) / (samples + 4.0);
    let chance = Z95 * total * (share * (1.0 - share) / (samples + 4.0)).sqrt() * ratio;
    let attributed = (1.0 - evidence.confidence.clamp(0.0, 1.0)) * stall.value;
    let below = (stall.value - stall.low).hypot(chance).hypot(attributed);
    let above = (stall.high - stall.value).hypot(chance);
    Estimate::new(stall.value, stall.value - below, stall.value + above)
}
