//! Bytes that each site moves between caches and memory, according to the cache model.

use std::collections::BTreeMap;

use membound_model::stall::Estimate;
use membound_model::traffic::ProgramContext;
use membound_run::SiteId;

use super::caches::Caches;
use super::pieces::{Bursts, Piece};
use crate::context::Context;
use crate::groups::GroupId;
use crate::places::FunctionId;

/// Bytes moved between the caches and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bytes {
    pub read: f64,
    pub written: f64,
}

impl Bytes {
    pub(crate) const fn total(self) -> f64 {
        self.read + self.written
    }

    pub(crate) fn add(&mut self, other: Self, factor: f64) {
        self.read += other.read * factor;
        self.written += other.written * factor;
    }
}

/// Traffic of one site in bursts.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteTraffic {
    /// Executions of the site within bursts.
    pub executions: f64,
    /// Touches of lines by the site.
    pub touches: f64,
    /// Touches that missed the first n caches, for n from 1 on.
    pub beyond: Vec<f64>,
    pub bytes: BTreeMap<GroupId, Bytes>,
    /// Touches of lines by object.
    touched: BTreeMap<GroupId, f64>,
    /// Bytes from one execution to the next; see [`Bursts::strides`].
    pub stride: Option<f64>,
}

impl SiteTraffic {
    /// Replaces the modelled bytes from memory if their number of lines lies outside of the interval of `missed`, the
    /// share of the site's timed accesses that missed the last cache: bursts are too short to show all lines
    /// that return.
    fn agree_with(&mut self, missed: Estimate, line_bytes: f64) {
        let Some(modelled) = self.beyond.last().copied() else {
            return;
        };
        let share = modelled / self.executions.max(1.0);
        if (missed.low..=missed.high).contains(&share) {
            return;
        }
        let lines = self.executions * missed.value;
        if modelled > 0.0 {
            for bytes in self.bytes.values_mut() {
                bytes.read *= lines / modelled;
                bytes.written *= lines / modelled;
            }
        } else {
            for (group, touched) in &self.touched {
                let bytes = self.bytes.entry(*group).or_default();
                bytes.read += lines * line_bytes * touched / self.touches;
            }
        }
    }
}

/// Traffic of all sites in bursts.
#[derive(Clone, Debug)]
pub(crate) struct BurstTraffic {
    pub sites: BTreeMap<SiteId, SiteTraffic>,
    /// Bytes of all sites of each function.
    pub functions: BTreeMap<FunctionId, Bytes>,
}

impl BurstTraffic {
    /// Models the run's traffic with the given caches.
    pub(crate) fn new(context: &Context<'_>, pieces: &Bursts, caches: &Caches) -> Self {
        let busy = busy(context);
        let mut sites = BTreeMap::new();
        for piece in &pieces.pieces {
            add(piece, caches, busy, &mut sites);
        }
        for (site, moves) in &mut sites {
            moves.stride = pieces.strides.get(site).copied();
        }
        Self {
            functions: by_function(context, &sites),
            sites,
        }
    }

    /// The same with the latencies of timed accesses instead of the model, where they contradict it. Accesses
    /// with a stride keep the model's figures, since prefetchers hide their lines from latencies.
    pub(crate) fn agreeing_with_latencies(
        mut self,
        context: &Context<'_>,
        line_bytes: u64,
    ) -> Self {
        let irregular = self.sites.iter_mut().filter(|it| it.1.stride.is_none());
        for (site, moves) in irregular {
            if let Some(missed) = context.costs[site.index()].missed {
                moves.agree_with(missed, line_bytes as f64);
            }
        }
        self.functions = by_function(context, &self.sites);
        self
    }
}

/// Bytes of all sites of each function.
fn by_function(
    context: &Context<'_>,
    sites: &BTreeMap<SiteId, SiteTraffic>,
) -> BTreeMap<FunctionId, Bytes> {
    let mut functions: BTreeMap<FunctionId, Bytes> = BTreeMap::new();
    for (site, moves) in sites {
        let sum = functions.entry(function_of(context, *site)).or_default();
        for bytes in moves.bytes.values() {
            sum.add(*bytes, 1.0);
        }
    }
    functions
}

/// Function that contains a site.
pub(crate) fn function_of(context: &Context<'_>, site: SiteId) -> FunctionId {
    let frame = context.run.sites[site.index()].frame;
    context.places.function_of(frame)
}

/// Adds the traffic of one burst to its sites: touches that miss each cache, and bytes that miss the last.
fn add(piece: &Piece, caches: &Caches, busy: f64, sites: &mut BTreeMap<SiteId, SiteTraffic>) {
    let around = ProgramContext {
        footprint: piece.footprint,
    };
    let levels = caches.caches.len();
    for (number, id) in piece.sites.iter().enumerate() {
        let site = sites.entry(*id).or_default();
        site.beyond.resize(levels, 0.0);
        let (bytes, times) = piece.streamed[number];
        site.executions += piece.executions[number] + times;
        if let Some(group) = piece.streamed_to[number] {
            site.bytes.entry(group).or_default().written += bytes;
        }
    }
    let line = caches.line_bytes as f64;
    let touches = piece.stream.touches();
    for (touch, group) in touches.iter().zip(&piece.groups) {
        let site = sites
            .entry(piece.sites[usize::from(touch.site)])
            .or_default();
        *site.touched.entry(*group).or_default() += 1.0;
    }
    for level in 0..levels {
        let misses = piece.stream.misses(caches.capacity(level, busy), around);
        let outermost = level + 1 == levels;
        let written = outermost.then(|| piece.stream.written_back(&misses));
        let mut sums: Vec<(f64, f64)> = vec![(0.0, 0.0); piece.sites.len()];
        let mut bytes: BTreeMap<(u16, GroupId), Bytes> = BTreeMap::new();
        // Consecutive touches mostly have the same key: sum them before the lookup in the map.
        let mut last: Option<((u16, GroupId), Bytes)> = None;
        for (at, touch) in touches.iter().enumerate() {
            let sum = &mut sums[usize::from(touch.site)];
            sum.0 += 1.0;
            sum.1 += f64::from(misses[at]);
            let Some(written) = &written else {
                continue;
            };
            let moved = Bytes {
                read: f64::from(misses[at]) * line,
                written: f64::from(written[at]) * line,
            };
            if moved == Bytes::default() {
                continue;
            }
            let key = (touch.site, piece.groups[at]);
            match &mut last {
                Some((of, sum)) if *of == key => sum.add(moved, 1.0),
                _ => {
                    if let Some((of, sum)) = last.replace((key, moved)) {
                        bytes.entry(of).or_default().add(sum, 1.0);
                    }
                }
            }
        }
        if let Some((of, sum)) = last {
            bytes.entry(of).or_default().add(sum, 1.0);
        }
        for (id, (count, misses)) in piece.sites.iter().zip(sums) {
            let site = sites.entry(*id).or_default();
            site.beyond[level] += misses;
            if outermost {
                site.touches += count;
            }
        }
        for ((number, group), moved) in bytes {
            let site = sites.entry(piece.sites[usize::from(number)]).or_default();
            site.bytes.entry(group).or_default().add(moved, 1.0);
        }
    }
}

/// Number of slices of the run in which threads count as running at once.
const CONCURRENCY_SLICES: u64 = 200;

/// Average number of threads that ran at once, over the slices in which any did.
pub(crate) fn busy(context: &Context<'_>) -> f64 {
    let run = context.run;
    let slice = (run.meta.elapsed_ns / CONCURRENCY_SLICES)
        .max(10 * run.meta.period_ns)
        .max(1);
    let mut slices: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in &run.samples {
        *slices.entry(sample.t_ns / slice).or_default() += sample.weight_ns;
    }
    let cpu: u64 = slices.values().sum();
    let wall = slices.len() as u64 * slice;
    (cpu as f64 / wall.max(1) as f64).max(1.0)
}
