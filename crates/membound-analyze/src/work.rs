//! Loops around accesses: their work, and their time in the first cache. Work that the processor does while an
//! access waits does not show in samples, but would take time if the data were near.

use membound_model::stall::{CachedLoop, Estimate, Executed, Work};
use membound_run::{FrameId, ModuleId, RunData, SiteId, SiteKind};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::decoding::Functions;

/// Loop, by its module and the address of its first block.
pub(crate) type Loop = (ModuleId, u64);

/// Instructions from which on the code between a loop's ends is not accepted as its body.
const MAX_BODY: usize = 512;

/// Observations of a loop.
#[derive(Default)]
struct Body {
    /// Lowest and highest sampled address.
    sampled_range: Option<(u64, u64)>,
    time_ns: f64,
    /// Part of `time_ns` that is attributed to accesses.
    of_sites_ns: f64,
}

/// What is known of the innermost loop around a site.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Around {
    pub work: Option<Work>,
    pub cached: Option<CachedLoop>,
}

/// Time in nanoseconds of an iteration with its data in the first cache and the range of its measurements, of the
/// loops for which it was measured.
pub(crate) fn cached_ns(run: &RunData) -> FxHashMap<Loop, Estimate> {
    let measured = run.loops.iter().filter_map(|around| {
        let module = run.frames[around.frame.index()].module?;
        let ns = around.cached_ns?;
        let least_ns = around.cached_least_ns.unwrap_or(ns);
        let most_ns = around.cached_most_ns.unwrap_or(ns);
        Some(((module, around.start), Estimate::new(ns, least_ns, most_ns)))
    });
    measured.collect()
}

/// The innermost loop around each frame that is in one.
fn innermost(run: &RunData) -> FxHashMap<FrameId, Loop> {
    (run.loops.iter())
        .filter(|around| around.level == 0)
        .filter_map(|around| {
            let module = run.frames[around.frame.index()].module?;
            Some((around.frame, (module, around.start)))
        })
        .collect()
}

/// Executions of prefetch instructions, which are not counted: those of the nearest counted access in the same loop.
pub(crate) struct Prefetches {
    innermost: FxHashMap<FrameId, Loop>,
    /// Counted accesses by loop, with their addresses.
    counted: FxHashMap<Loop, Vec<(u64, Executed)>>,
}

impl Prefetches {
    /// `executed` holds the executions of each site.
    pub(crate) fn new(run: &RunData, executed: &[Option<Executed>]) -> Self {
        let innermost = innermost(run);
        let mut counted: FxHashMap<Loop, Vec<(u64, Executed)>> = FxHashMap::default();
        for (site, executed) in run.sites.iter().zip(executed) {
            if let (Some(executed), Some(around)) = (executed, innermost.get(&site.frame)) {
                let address = run.frames[site.frame.index()].address;
                counted
                    .entry(*around)
                    .or_default()
                    .push((address, *executed));
            }
        }
        Self { innermost, counted }
    }

    /// Executions of a site, if it is a prefetch in a loop with counted accesses.
    pub(crate) fn executed(&self, run: &RunData, site: SiteId) -> Option<Executed> {
        let site = &run.sites[site.index()];
        if site.kind != SiteKind::Prefetch {
            return None;
        }
        let beside = self.counted.get(self.innermost.get(&site.frame)?)?;
        let address = run.frames[site.frame.index()].address;
        let nearest = beside.iter().min_by_key(|(it, _)| it.abs_diff(address));
        nearest.map(|(_, executed)| *executed)
    }
}

/// The innermost loop around each site. `times_ns` is the CPU time attributed to each site, in nanoseconds.
pub(crate) fn around_sites(run: &RunData, times_ns: &[f64]) -> Vec<Around> {
    let innermost = innermost(run);
    let cached_ns = cached_ns(run);
    let mut bodies: FxHashMap<Loop, Body> = FxHashMap::default();
    let mut add = |frame: FrameId, time_ns: f64, of_sites_ns: f64| {
        if let Some(around) = innermost.get(&frame) {
            let address = run.frames[frame.index()].address;
            let body = bodies.entry(*around).or_default();
            let (low, high) = body.sampled_range.unwrap_or((around.1, address));
            body.sampled_range = Some((low.min(address), high.max(address)));
            body.time_ns += time_ns;
            body.of_sites_ns += of_sites_ns;
        }
    };
    for sample in &run.samples {
        let frame = run.stacks[sample.stack.index()].frame;
        add(frame, sample.weight_ns as f64, 0.0);
    }
    for (site, time_ns) in run.sites.iter().zip(times_ns) {
        add(site.frame, 0.0, *time_ns);
    }
    let functions = Functions::new(run);
    // A run of a whole machine has tens of thousands of loops.
    let all: FxHashMap<Loop, Around> = bodies
        .into_par_iter()
        .filter(|(_, body)| body.of_sites_ns > 0.0)
        .map(|(around, body)| {
            let length = body
                .sampled_range
                .and_then(|sampled| instructions(&functions, around, sampled));
            let work = length.map(|instructions| Work {
                instructions: instructions as f64,
                visible_ns: (body.time_ns - body.of_sites_ns).max(0.0),
                waiting_ns: body.of_sites_ns,
            });
            let cached = cached_ns.get(&around).map(|&iteration_ns| CachedLoop {
                iteration_ns,
                loop_ns: body.time_ns,
                waiting_ns: body.of_sites_ns,
            });
            (around, Around { work, cached })
        })
        .collect();
    let of_site = |site: &membound_run::Site| all.get(innermost.get(&site.frame)?).copied();
    run.sites
        .iter()
        .map(|site| of_site(site).unwrap_or_default())
        .collect()
}

/// Number of instructions of the loop that begins at `start`, up to its last jump back there. `low` and
/// `high` are its lowest and highest observed addresses.
fn instructions(
    functions: &Functions<'_>,
    (module, start): Loop,
    (low, high): (u64, u64),
) -> Option<usize> {
    let mut body = 0;
    let mut longest = None;
    for instruction in functions.from(module, low)?.into_iter().take(MAX_BODY) {
        body += 1;
        let back = instruction.near_branch_target() == start && instruction.ip() >= start;
        if back || instruction.ip() == high {
            longest = Some(body);
        }
    }
    longest
}
