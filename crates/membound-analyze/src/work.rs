//! Loops around accesses: their work, and their time in the first cache. Work that the processor does while an
//! access waits does not show in samples, but would take time if the data were near.

use std::collections::BTreeMap;
use std::ops::Range;

use membound_model::stall::{CachedLoop, Estimate, Executed, Work};
use membound_run::{Code, FrameId, ModuleId, RunData, Site, SiteId, SiteKind};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::decoding::Functions;
use crate::entries::FunctionBlocks;

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
pub(crate) type Innermost = FxHashMap<FrameId, Loop>;

/// See [`Innermost`].
pub(crate) fn innermost(run: &RunData) -> Innermost {
    (run.loops.iter())
        .filter(|around| around.level == 0)
        .filter_map(|around| {
            let module = run.frames[around.frame.index()].module?;
            Some((around.frame, (module, around.start)))
        })
        .collect()
}

/// Executions of prefetch instructions, which are not counted: those of the nearest counted access in the same loop.
/// `executed` holds the executions of each site.
pub(crate) fn of_prefetches(
    run: &RunData,
    innermost: &Innermost,
    executed: &[Option<Executed>],
) -> FxHashMap<SiteId, Executed> {
    let place = |site: &Site| {
        let around = innermost.get(&site.frame)?;
        Some((*around, run.frames[site.frame.index()].address))
    };
    let sites = || (0..).map(SiteId).zip(&run.sites);
    let mut prefetches: FxHashMap<Loop, Vec<(u64, SiteId)>> = FxHashMap::default();
    for (id, site) in sites().filter(|(_, site)| site.kind == SiteKind::Prefetch) {
        if let Some((around, address)) = place(site) {
            prefetches.entry(around).or_default().push((address, id));
        }
    }
    let mut nearest: FxHashMap<SiteId, (u64, Executed)> = FxHashMap::default();
    for (site, executed) in run.sites.iter().zip(executed) {
        let (Some(executed), Some((around, address))) = (executed, place(site)) else {
            continue;
        };
        for (of_prefetch, id) in prefetches.get(&around).into_iter().flatten() {
            let distance = of_prefetch.abs_diff(address);
            let known = nearest.entry(*id).or_insert((distance, *executed));
            if distance < known.0 {
                *known = (distance, *executed);
            }
        }
    }
    let executed = |(id, (_, executed))| (id, executed);
    nearest.into_iter().map(executed).collect()
}

/// The innermost loop around each site. `times_ns` is the CPU time attributed to each site, in nanoseconds.
pub(crate) fn around_sites(run: &RunData, innermost: &Innermost, times_ns: &[f64]) -> Vec<Around> {
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
    let rates = Rates::new(run, innermost, &functions);
    // A run of a whole machine has tens of thousands of loops.
    let all: FxHashMap<Loop, Around> = bodies
        .into_par_iter()
        .filter(|(_, body)| body.of_sites_ns > 0.0)
        .map(|(around, body)| {
            let extent = body
                .sampled_range
                .and_then(|sampled| extent(&functions, around, sampled));
            let work = extent.map(|extent| Work {
                instructions: extent.instructions as f64,
                visible_ns: (body.time_ns - body.of_sites_ns).max(0.0),
                waiting_ns: body.of_sites_ns,
            });
            let cached = cached_ns.get(&around).map(|&iteration_ns| CachedLoop {
                iteration_ns,
                loop_ns: body.time_ns,
                waiting_ns: body.of_sites_ns,
                iterations: extent.and_then(|extent| {
                    let function = functions.containing(around.0, around.1)?;
                    rates.iterations(around, extent.end, function)
                }),
            });
            (around, Around { work, cached })
        })
        .collect();
    let of_site = |site: &Site| all.get(innermost.get(&site.frame)?).copied();
    run.sites
        .iter()
        .map(|site| of_site(site).unwrap_or_default())
        .collect()
}

/// How often sites and blocks were executed per nanosecond in their windows.
struct Rates {
    /// The highest rate of a site in each loop.
    of_sites: FxHashMap<Loop, f64>,
    /// Rates of blocks by their first address.
    of_blocks: BTreeMap<(ModuleId, u64), f64>,
}

impl Rates {
    fn new(run: &RunData, innermost: &Innermost, functions: &Functions<'_>) -> Self {
        // Count and time of all windows.
        let mut sites: FxHashMap<SiteId, (u64, u64)> = FxHashMap::default();
        for row in &run.executions {
            let (count, ns) = sites.entry(row.site).or_default();
            *count += row.count;
            *ns += row.to_ns.saturating_sub(row.from_ns);
        }
        let rate = |(count, ns): (u64, u64)| count as f64 / ns.max(1) as f64;
        let mut of_sites: FxHashMap<Loop, f64> = FxHashMap::default();
        for (site, executed) in sites {
            if let Some(around) = innermost.get(&run.sites[site.index()].frame) {
                let highest = of_sites.entry(*around).or_default();
                *highest = highest.max(rate(executed));
            }
        }
        let mut blocks: BTreeMap<(ModuleId, u64), (u64, u64)> = BTreeMap::new();
        for ((module, _), of_function) in FunctionBlocks::all(run, functions) {
            // Rates are compared with each other: all of them from windows that slow the program alike.
            let slowed = of_function.windows.iter().filter(|it| it.is_slowed());
            for window in slowed {
                for (block, executed) in &window.counts {
                    let (count, ns) = blocks.entry((module, *block)).or_default();
                    *count += executed;
                    *ns += window.length_ns();
                }
            }
        }
        let of_blocks = blocks.into_iter().map(|(at, sum)| (at, rate(sum)));
        Self {
            of_sites,
            of_blocks: of_blocks.collect(),
        }
    }

    /// Iterations of a loop, which ends before `end`, each time that it is entered: its executions divided by those of
    /// the block of its `function` that is executed most often outside of it. `None` if blocks were not counted there.
    fn iterations(&self, (module, start): Loop, end: u64, function: &Code) -> Option<f64> {
        let function_end = function.address + function.bytes.len() as u64;
        let highest = |range: Range<u64>| {
            let blocks = self
                .of_blocks
                .range((module, range.start)..(module, range.end));
            blocks.map(|(_, rate)| *rate).reduce(f64::max)
        };
        let before = highest(function.address..start);
        let behind = highest(end..function_end);
        let entries = before.into_iter().chain(behind).reduce(f64::max)?;
        // Blocks of the loop itself were counted in the same windows, if they could be.
        let inside = highest(start..end).filter(|rate| *rate > 0.0);
        let of_loop = inside.or_else(|| self.of_sites.get(&(module, start)).copied());
        let is_seen = entries > 0.0 || inside.is_some();
        of_loop
            .filter(|_| is_seen)
            .map(|of_loop| of_loop / entries.max(f64::MIN_POSITIVE))
    }
}

/// Length of a loop.
#[derive(Clone, Copy)]
struct Extent {
    instructions: usize,
    /// Address behind the last instruction.
    end: u64,
}

/// Extent of the loop that begins at `start`, up to its last jump back there. `low` and `high` are its lowest and
/// highest observed addresses.
fn extent(
    functions: &Functions<'_>,
    (module, start): Loop,
    (low, high): (u64, u64),
) -> Option<Extent> {
    let mut longest = None;
    let body = functions.from(module, low)?.into_iter().take(MAX_BODY);
    for (instruction, instructions) in body.zip(1..) {
        let back = instruction.near_branch_target() == start && instruction.ip() >= start;
        if back || instruction.ip() == high {
            longest = Some(Extent {
                instructions,
                end: instruction.next_ip(),
            });
        }
    }
    longest
}
