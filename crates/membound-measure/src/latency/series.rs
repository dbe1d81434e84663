//! One curve: rounds over sizes until every point is narrow or the time is spent.

use std::time::Instant;

use membound_types::{
    Access, Disturbance, LatencyPoint, NodePolicy, PageKind, Pattern, PrefetchState, Samples,
    Stopped,
};

use super::copy::{Arena, Copy, Gate, Visit};
use super::{LatencyConfig, Refine, align};
use crate::{Error, Session, stats};

/// What all points of a series have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) page: PageKind,
    pub(super) node: NodePolicy,
    pub(super) threads: u32,
    pub(super) pattern: Pattern,
    pub(super) access: Access,
    pub(super) stride: u64,
}

/// A size and what was seen of it so far.
struct Slot {
    size: u64,
    ns: Vec<f64>,
    core_hz: Vec<f64>,
    disturbed: Disturbance,
    rounds: u32,
}

impl Slot {
    const fn new(size: u64) -> Self {
        Self {
            size,
            ns: Vec::new(),
            core_hz: Vec::new(),
            disturbed: Disturbance {
                repeated_batches: 0,
                involuntary_switches: 0,
                migrations: 0,
                steal_ms: 0.0,
                clock_changes: 0,
                slow_mode: None,
                slow_share: None,
            },
            rounds: 0,
        }
    }

    fn add(&mut self, visit: Visit) {
        self.ns.extend(visit.ns);
        self.core_hz.push(visit.core_hz);
        let (sum, seen) = (&mut self.disturbed, visit.disturbed);
        sum.repeated_batches += seen.repeated_batches;
        sum.involuntary_switches += seen.involuntary_switches;
        sum.migrations += seen.migrations;
        sum.steal_ms += seen.steal_ms;
        sum.clock_changes += seen.clock_changes;
    }

    /// The faster mode where there are two and it is no rarity, else everything.
    fn modes(&self) -> Option<stats::Modes> {
        let modes = stats::modes(&self.ns, Self::MODE_GAP)?;
        if modes.slow.is_some() && modes.fast_count * 4 < self.ns.len() {
            let fast = stats::summarize(&self.ns)?;
            return Some(stats::Modes {
                fast,
                fast_count: self.ns.len(),
                slow: modes.slow,
            });
        }
        Some(modes)
    }

    /// Relative gap between two groups of batches that makes them two modes.
    const MODE_GAP: f64 = 0.15;
    /// A point is visited in at least so many rounds, to see slow phases at all.
    const LEAST_ROUNDS: u32 = 3;

    fn converged(&self) -> bool {
        self.rounds >= Self::LEAST_ROUNDS
            && self.modes().is_some_and(|modes| {
                modes.slow.is_none()
                    && modes.fast.high - modes.fast.low
                        <= 2.0 * LatencyConfig::TARGET * modes.fast.median
            })
    }
}

/// Measures one curve. A cancelled run returns the points that have samples.
pub(super) fn measure(
    session: &Session<'_>,
    config: &LatencyConfig,
    key: Key,
    arenas: &mut [Arena],
    refine: &Refine<'_>,
    share: &dyn Fn(f64) -> f64,
) -> Result<Vec<LatencyPoint>, Error> {
    let begun = Instant::now();
    let largest = arenas.iter().map(Arena::largest).min().unwrap_or(0);
    let sizes = config
        .sizes
        .clone()
        .unwrap_or_else(|| config.grid(key.stride));
    let mut slots: Vec<Slot> = sizes
        .into_iter()
        .filter(|size| *size <= largest)
        .map(Slot::new)
        .collect();
    let mut copies = arenas
        .iter()
        .enumerate()
        .map(|(index, arena)| {
            let seed = 0x6d65_6d62 + index as u64;
            Copy::new(session, arena, key.pattern, key.access, key.stride, seed)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let name = format!(
        "latency: {} of {} pages, stride {}",
        key.pattern_name(),
        key.page,
        key.stride
    );
    let mut longest_round = 0.0_f64;
    let mut refined = 0;
    for round in 0_u64.. {
        let round_begun = Instant::now();
        let mut order: Vec<usize> = (0..slots.len())
            .filter(|at| !slots[*at].converged())
            .collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let visits = order.len();
        for (done, at) in order.into_iter().enumerate() {
            if session.cancelled() {
                break;
            }
            let spent = begun.elapsed().as_secs_f64() / config.series_budget.as_secs_f64();
            let within = spent.max(if round == 0 {
                done as f64 / visits as f64 / 8.0
            } else {
                0.0
            });
            session.progress.at(share(within.min(1.0)), &name);
            let seen = visit_together(session, &mut copies, slots[at].size, round)?;
            for visit in seen {
                slots[at].add(visit);
            }
            slots[at].rounds += 1;
        }
        longest_round = longest_round.max(round_begun.elapsed().as_secs_f64());
        if round < 4 && refined < config.refinements && config.sizes.is_none() {
            refined += add_sizes(
                &mut slots,
                key.stride,
                largest,
                refine,
                config.refinements - refined,
            );
        }
        let spent = begun.elapsed().as_secs_f64();
        let over = spent + longest_round * 0.7 > config.series_budget.as_secs_f64();
        if session.cancelled() || visits == 0 || (over && round >= 1) {
            break;
        }
    }
    let page_share = arenas.iter().find_map(Arena::partial_page_share);
    let stopped = if session.cancelled() {
        Stopped::Interrupted
    } else {
        Stopped::Budget
    };
    Ok(slots
        .iter()
        .filter_map(|slot| point(session, key, arenas, slot, stopped, page_share))
        .collect())
}

impl Key {
    const fn pattern_name(self) -> &'static str {
        match self.pattern {
            Pattern::Random => "random chase",
            Pattern::Stride => "stride ring",
            Pattern::PageRandom => "page-random chase",
            Pattern::Indexed => "indexed chase",
        }
    }
}

/// Adds the sizes that `refine` names; returns how many.
fn add_sizes(
    slots: &mut Vec<Slot>,
    stride: u64,
    largest: u64,
    refine: &Refine<'_>,
    at_most: usize,
) -> usize {
    let curve: Vec<(u64, f64, f64, f64)> = slots
        .iter()
        .filter_map(|slot| {
            let fast = slot.modes()?.fast;
            Some((slot.size, fast.median, fast.low, fast.high))
        })
        .collect();
    let before = slots.len();
    for size in refine(&curve, at_most).into_iter().take(at_most) {
        let size = align(size, stride);
        if size <= largest && slots.iter().all(|slot| slot.size != size) {
            slots.push(Slot::new(size));
        }
    }
    slots.sort_by_key(|slot| slot.size);
    slots.len() - before
}

/// One visit of all copies at once; a single copy runs on the calling thread.
fn visit_together(
    session: &Session<'_>,
    copies: &mut [Copy<'_>],
    size: u64,
    round: u64,
) -> Result<Vec<Visit>, Error> {
    let gate = Gate::new(copies.len());
    if let [copy] = copies {
        return Ok(vec![copy.visit(session, size, round, &gate)?]);
    }
    std::thread::scope(|scope| {
        let running: Vec<_> = copies
            .iter_mut()
            .map(|copy| scope.spawn(|| copy.visit(session, size, round, &gate)))
            .collect();
        running
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

fn point(
    session: &Session<'_>,
    key: Key,
    arenas: &[Arena],
    slot: &Slot,
    stopped: Stopped,
    page_share: Option<f64>,
) -> Option<LatencyPoint> {
    let modes = slot.modes()?;
    let mut disturbed = slot.disturbed;
    disturbed.slow_mode = modes.slow.map(|(median, _)| median);
    disturbed.slow_share = modes.slow.map(|(_, share)| share);
    let core_hz = stats::median(&slot.core_hz).unwrap_or(session.core_hz);
    Some(LatencyPoint {
        size_bytes: slot.size,
        stride_bytes: key.stride,
        pattern: key.pattern,
        access: key.access,
        page: key.page,
        cpu: arenas.first()?.cpu,
        node: key.node,
        prefetch: PrefetchState::Default,
        threads: key.threads,
        ns: modes.fast.median,
        ns_low: modes.fast.low,
        ns_high: modes.fast.high,
        cycles: modes.fast.median * core_hz / 1e9,
        samples: u32::try_from(slot.ns.len()).unwrap_or(u32::MAX),
        batches: Samples {
            raw: slot.ns.clone(),
            stopped: if slot.converged() {
                Stopped::Converged
            } else {
                stopped
            },
            disturbed,
        },
        page_share,
        prefetch_taint: None,
    })
}
