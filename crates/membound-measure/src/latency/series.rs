//! One curve: rounds over sizes until every point is narrow or the time is spent.

use std::collections::BTreeSet;
use std::time::Instant;

use membound_types::{Access, LatencyPoint, NodePolicy, PageKind, Pattern, PrefetchState};

use super::config::{LatencyConfig, align};
use super::copy::{Arena, Copy};
use crate::gate::Gate;
use crate::sampling::{Rounds, Sampled, Slot, Visit, run_rounds_as};
use crate::threads::{joined, spawned};
use crate::{Error, Session};

/// Chooses sizes to measure next, given `(size, ns, low, high)` in order of size and the maximum
/// number of sizes to choose.
pub type Refine<'a> = dyn Fn(&[(u64, f64, f64, f64)], usize) -> Vec<u64> + 'a;

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

/// Measures one curve. A cancelled run returns the points that have samples.
pub(super) fn measure(
    session: &Session<'_>,
    config: &LatencyConfig,
    key: Key,
    arenas: &mut [Arena],
    refine: &Refine<'_>,
    share: &dyn Fn(f64) -> f64,
) -> Result<Vec<LatencyPoint>, Error> {
    let largest = arenas.iter().map(Arena::largest).min().unwrap_or(0);
    let sizes = config
        .sizes
        .clone()
        .unwrap_or_else(|| config.grid(key.stride));
    // A size that the list names twice is one point. Sorted, because chains grow and shrink in
    // place.
    let sizes: BTreeSet<u64> = sizes.into_iter().collect();
    let mut slots: Vec<Slot<u64>> = sizes
        .into_iter()
        .filter(|size| *size <= largest)
        .map(Slot::time)
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
    let started = Instant::now();
    while started.elapsed() < config.warm_up && !session.cancelled() {
        let _awake = session.core.measure(&session.clock, 1);
    }
    let mut refined = 0;
    let rounds = Rounds {
        budget: config.series_budget,
        exactly: config.repetitions,
    };
    run_rounds_as(
        session,
        rounds,
        &mut slots,
        |size, progress| {
            session.progress.at(share(progress.done), &name);
            visit_together(session, &mut copies, *size, progress.round)
        },
        |round, slots| {
            if round < 4 && refined < config.refinements && config.sizes.is_none() {
                let at_most = config.refinements - refined;
                refined += add_sizes(slots, key.stride, largest, refine, at_most);
            }
        },
    )?;
    let page_share = arenas.iter().find_map(Arena::partial_page_share);
    Ok(slots
        .iter()
        .filter_map(|slot| point(session, key, arenas, slot, page_share))
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

/// Adds the sizes that `refine` chooses; returns how many were new.
fn add_sizes(
    slots: &mut Vec<Slot<u64>>,
    stride: u64,
    largest: u64,
    refine: &Refine<'_>,
    at_most: usize,
) -> usize {
    let curve: Vec<(u64, f64, f64, f64)> = slots
        .iter()
        .filter_map(|slot| {
            let fast = slot.modes()?.fast;
            Some((slot.key, fast.median, fast.low, fast.high))
        })
        .collect();
    let before = slots.len();
    for size in refine(&curve, at_most).into_iter().take(at_most) {
        let size = align(size, stride);
        if size <= largest && slots.iter().all(|slot| slot.key != size) {
            slots.push(Slot::time(size));
        }
    }
    slots.sort_by_key(|slot| slot.key);
    slots.len() - before
}

/// Number of places at which a single copy's chain is put in one round.
///
/// A second-level cache is indexed by physical addresses, which the host assigns page by page: the
/// place of a chain decides how many of its lines fit. The mean over many places is a property of
/// the machine, one place is luck. Chains inside a page, and chains larger than such caches, are
/// not affected.
fn placements(size: u64) -> u64 {
    const FOUR_PLACES: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
    if FOUR_PLACES.contains(&size) { 4 } else { 1 }
}

/// Visits one size with all copies at once; a single copy runs on the calling thread.
fn visit_together(
    session: &Session<'_>,
    copies: &mut [Copy<'_>],
    size: u64,
    round: u64,
) -> Result<Vec<Visit>, Error> {
    if let [copy] = copies {
        let places = placements(size);
        return (0..places)
            .map(|place| copy.visit(session, size, round * places + place, Gate::new(1).ticket()))
            .collect();
    }
    let gate = Gate::new(copies.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = copies
            .iter_mut()
            .map(|copy| {
                let (cpu, ticket) = (copy.cpu(), gate.ticket());
                spawned(scope, cpu, move || copy.visit(session, size, round, ticket))
            })
            .collect();
        running.into_iter().map(|thread| joined(thread?)).collect()
    })
}

fn point(
    session: &Session<'_>,
    key: Key,
    arenas: &[Arena],
    slot: &Slot<u64>,
    page_share: Option<f64>,
) -> Option<LatencyPoint> {
    let Sampled {
        summary,
        core_hz,
        samples,
    } = slot.sampled(session)?;
    Some(LatencyPoint {
        size_bytes: slot.key,
        stride_bytes: key.stride,
        pattern: key.pattern,
        access: key.access,
        page: key.page,
        cpu: arenas.first()?.cpu,
        node: key.node,
        prefetch: PrefetchState::Default,
        threads: key.threads,
        ns: summary.median,
        ns_low: summary.low,
        ns_high: summary.high,
        cycles: summary.median * core_hz / 1e9,
        samples: u32::try_from(samples.raw.len()).unwrap_or(u32::MAX),
        batches: samples,
        page_share,
        prefetch_taint: None,
    })
}
