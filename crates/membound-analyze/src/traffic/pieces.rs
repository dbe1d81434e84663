//! Converts bursts to streams of lines, with the objects that they touch and how much of these is in use.

use std::collections::BTreeMap;

use membound_model::traffic::{LineAccess, Stream, used_cells};
use membound_run::{Burst, ObjectId, SiteId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::memory::{self, Memory};
use crate::context::Context;
use crate::groups::{GroupId, Groups};

/// Most accesses that are evaluated over all bursts; more cost time and add little.
const MAX_EVALUATED_ACCESSES: usize = 3 << 20;

/// Accesses that are evaluated of each burst in any case.
const MIN_ACCESSES_PER_BURST: usize = 4096;

/// Cells into which a large object is divided to estimate how much of it is used.
const CELLS_PER_OBJECT: u64 = 64;

/// Samples in an object from which on they show how much of it is used.
const MIN_SAMPLES_OF_OBJECT: u64 = 8;

/// Smallest share of a burst's touches for an object to count for the burst's footprint.
const MIN_TOUCH_SHARE: f64 = 1e-3;

/// One burst, converted.
#[derive(Debug)]
pub(crate) struct Piece {
    pub sites: Vec<SiteId>,
    pub stream: Stream,
    /// Object of each touch.
    pub groups: Vec<GroupId>,
    /// Executions of each of `sites`, without non-temporal stores.
    pub executions: Vec<f64>,
    /// Bytes that each of `sites` stored past the caches, and the number of these stores.
    pub streamed: Vec<(f64, f64)>,
    /// Object of each site's non-temporal stores.
    pub streamed_to: Vec<Option<GroupId>>,
    /// Number of lines in use by the recorded sites altogether.
    pub footprint: f64,
}

/// All bursts, and the stride of each site.
#[derive(Debug)]
pub(crate) struct Bursts {
    pub pieces: Vec<Piece>,
    /// Bytes from one execution of a site to the next, if nearly all steps are the same.
    pub strides: FxHashMap<SiteId, f64>,
}

impl Bursts {
    pub(crate) fn new(context: &Context<'_>, line_bytes: u64) -> Self {
        let run = context.run;
        let memory = Memory::new(run);
        let used = Used::new(context);
        let most = (MAX_EVALUATED_ACCESSES / run.bursts.len().max(1)).max(MIN_ACCESSES_PER_BURST);
        let mut bursts: Vec<&Burst> = run.bursts.iter().collect();
        bursts.sort_by_key(|burst| (burst.from_ns, burst.thread, burst.to_ns));
        let pieces = bursts
            .iter()
            .map(|burst| piece(context, &memory, &used, burst, most, line_bytes))
            .collect();
        Self {
            pieces,
            strides: strides(&bursts),
        }
    }
}

fn piece(
    context: &Context<'_>,
    memory: &Memory<'_>,
    used: &Used,
    burst: &Burst,
    most: usize,
    line_bytes: u64,
) -> Piece {
    let run = context.run;
    let process = run.threads[burst.thread.index()].process;
    let past: Vec<bool> = burst
        .sites
        .iter()
        .map(|id| past_caches(context, *id))
        .collect();
    let mut piece = Piece {
        sites: burst.sites.clone(),
        stream: Stream::new(Vec::new()),
        groups: Vec::new(),
        executions: vec![0.0; burst.sites.len()],
        streamed: vec![(0.0, 0.0); burst.sites.len()],
        streamed_to: vec![None; burst.sites.len()],
        footprint: 0.0,
    };
    let mut touches = Vec::new();
    let mut last: Vec<Option<(u64, u64, Option<ObjectId>)>> = vec![None; burst.sites.len()];
    for &(number, address, stores) in burst.accesses.iter().take(most) {
        let site = usize::from(number);
        let Some(id) = burst.sites.get(site) else {
            continue;
        };
        let object = match last[site] {
            Some((from, to, object)) if (from..to).contains(&address) => object,
            _ => {
                let object = memory.at(process, address, burst.from_ns);
                let (from, to) = object.map_or((0, 0), |object| memory.range(object));
                last[site] = Some((from, to, object));
                object
            }
        };
        let group = memory::group(&context.groups, object);
        let bytes = u64::from(run.sites[id.index()].bytes).max(1);
        // The site's kind is certain; the kind of the recorded access is not always known.
        let stores = stores || run.sites[id.index()].kind.stores();
        if stores && past[site] {
            piece.streamed[site].0 += bytes as f64;
            piece.streamed[site].1 += 1.0;
            piece.streamed_to[site] = Some(group);
            continue;
        }
        piece.executions[site] += 1.0;
        let (first, end) = (
            address / line_bytes,
            address.saturating_add(bytes - 1) / line_bytes,
        );
        // A vector may span two lines; a larger access is not a single one.
        for line in first..=end.min(first + 1) {
            touches.push(LineAccess {
                site: number,
                line,
                stores,
            });
            piece.groups.push(group);
        }
    }
    piece.footprint = used.lines(context, &burst.sites, &piece.groups, line_bytes);
    piece.stream = Stream::new(touches);
    piece
}

/// True if the site's stores bypass the caches (`movnt…`).
fn past_caches(context: &Context<'_>, site: SiteId) -> bool {
    let text = &context.run.sites[site.index()].text;
    text.starts_with("movnt") || text.starts_with("vmovnt")
}

/// Cells of objects in which samples of each site lay.
#[derive(Debug, Default)]
struct Used {
    /// Sampled cells, by group and site.
    cells: FxHashMap<(GroupId, SiteId), Vec<u64>>,
    sites: FxHashMap<GroupId, Vec<SiteId>>,
    cell_bytes: Vec<u64>,
}

impl Used {
    fn new(context: &Context<'_>) -> Self {
        let line = u64::from(context.machine.line_bytes);
        let groups = &context.groups;
        let mut used = Self {
            cell_bytes: groups
                .groups
                .iter()
                .map(|group| {
                    (group.size_bytes / CELLS_PER_OBJECT)
                        .max(line)
                        .next_power_of_two()
                })
                .collect(),
            ..Self::default()
        };
        for access in &context.run.accesses {
            let group = memory::group(groups, access.object);
            used.add(group, access.site, access.address);
        }
        for sample in &context.run.samples {
            let frame = context.run.stacks[sample.stack.index()].frame;
            let waits = context.waits.of(frame);
            if let (Some(address), [wait]) = (sample.address, waits) {
                let group = memory::group(groups, sample.object);
                used.add(group, wait.site, address);
            }
        }
        for sites in used.sites.values_mut() {
            sites.sort_unstable();
        }
        used
    }

    fn add(&mut self, group: GroupId, site: SiteId, address: u64) {
        let cell = address / self.cell_bytes[group.index()];
        let cells = self.cells.entry((group, site)).or_default();
        if cells.is_empty() {
            self.sites.entry(group).or_default().push(site);
        }
        cells.push(cell);
    }

    /// Number of lines in use of all objects in `touched`, by `sites`.
    fn lines(
        &self,
        context: &Context<'_>,
        sites: &[SiteId],
        touched: &[GroupId],
        line_bytes: u64,
    ) -> f64 {
        let mut counts: BTreeMap<GroupId, usize> = BTreeMap::new();
        for group in touched {
            *counts.entry(*group).or_default() += 1;
        }
        let least = MIN_TOUCH_SHARE * touched.len() as f64;
        counts
            .into_iter()
            .filter(|(group, count)| *group != Groups::UNKNOWN && *count as f64 >= least)
            .map(|(group, _)| {
                let cell_bytes = self.cell_bytes[group.index()];
                let of = |only: Option<&[SiteId]>| {
                    let mut samples = 0_u64;
                    let mut distinct: FxHashSet<u64> = FxHashSet::default();
                    for site in self.sites.get(&group).into_iter().flatten() {
                        if only.is_none_or(|sites| sites.contains(site)) {
                            let cells = &self.cells[&(group, *site)];
                            samples += cells.len() as u64;
                            distinct.extend(cells);
                        }
                    }
                    (samples, distinct.len() as u64)
                };
                let (mut samples, mut distinct) = of(Some(sites));
                if samples < MIN_SAMPLES_OF_OBJECT {
                    (samples, distinct) = of(None);
                }
                let of_group = context.groups.get(group);
                let bytes = of_group.total_bytes.max(of_group.size_bytes) as f64;
                let all = (bytes / cell_bytes as f64).max(1.0);
                let cells = if samples < MIN_SAMPLES_OF_OBJECT {
                    all
                } else {
                    used_cells(samples, distinct, all)
                };
                // Cells at both ends may extend beyond the object.
                (cells * cell_bytes as f64).min(bytes) / line_bytes as f64
            })
            .sum()
    }
}

/// Share of equal steps from which on they are a stride.
const MIN_STRIDE_SHARE: f64 = 0.9;

/// Fewest steps for a stride.
const MIN_STEPS: usize = 32;

/// Bytes from one execution of each site to the next.
fn strides(bursts: &[&Burst]) -> FxHashMap<SiteId, f64> {
    let mut steps: FxHashMap<SiteId, FxHashMap<i64, usize>> = FxHashMap::default();
    for burst in bursts {
        let mut last: Vec<Option<u64>> = vec![None; burst.sites.len()];
        for &(site, address, _) in burst.accesses.iter().take(MIN_ACCESSES_PER_BURST) {
            let site = usize::from(site);
            let Some(id) = burst.sites.get(site) else {
                continue;
            };
            if let Some(before) = last[site].replace(address) {
                let step = address.wrapping_sub(before).cast_signed();
                *steps.entry(*id).or_default().entry(step).or_default() += 1;
            }
        }
    }
    steps
        .into_iter()
        .filter_map(|(site, steps)| {
            let all: usize = steps.values().sum();
            let (step, count) = steps
                .into_iter()
                .max_by_key(|&(step, count)| (count, step))?;
            let regular = all >= MIN_STEPS && count as f64 >= MIN_STRIDE_SHARE * all as f64;
            (regular && step != 0).then_some((site, step as f64))
        })
        .collect()
}
