//! Executions of sites from counts of the blocks around their loops.
//!
//! Counting in an inner loop slows it, by an amount that samples hardly show; counting only the blocks around it does
//! not. How often a site's block is executed for each execution of such a block is known from windows that count all
//! blocks of the function: however much these slow it, they slow all of it alike.

use std::collections::BTreeMap;

use membound_model::stats::Z95;
use membound_run::{Executions, ModuleId, RunData, SiteId};
use rustc_hash::FxHashMap;

use crate::decoding::Functions;

/// Time without the patches as a share of a window's CPU time, at least, in windows that hardly slow the program.
const MIN_UNSLOWED_SHARE: f64 = 0.96;
/// Assumed spread of the ratio of two blocks' executions, before any windows are compared, with the weight of one.
const PRIOR_SPREAD: f64 = 0.1;
/// Executions of a block below which it stands for no other.
const MIN_ENTRIES: u64 = 10;
/// Most standard errors of a ratio that is used, as a share of it.
const MAX_ERROR: f64 = 0.25;

/// A window in which blocks of a function were counted.
#[derive(Debug)]
pub(crate) struct BlockWindow {
    from_ns: u64,
    to_ns: u64,
    /// CPU time with that of the patches, and without the most that these may have taken, if known.
    cpu_ns: Option<(u64, u64)>,
    /// Executions by the address of the block.
    pub(crate) counts: BTreeMap<u64, u64>,
}

impl BlockWindow {
    /// Duration in nanoseconds.
    pub(crate) fn length_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }

    /// CPU time, and what is left of it at least without the patches, if these hardly slowed the program.
    fn unslowed_ns(&self) -> Option<(u64, u64)> {
        self.cpu_ns
            .filter(|(all, least)| *all > 0 && *least as f64 >= MIN_UNSLOWED_SHARE * *all as f64)
    }

    /// True if the counts may be too low for the window's time.
    pub(crate) fn is_slowed(&self) -> bool {
        self.unslowed_ns().is_none()
    }
}

/// A function, by its module and the address at which its code begins.
pub(crate) type FunctionKey = (ModuleId, u64);

/// The blocks of a function that were counted.
#[derive(Debug, Default)]
pub(crate) struct FunctionBlocks {
    /// By time.
    pub(crate) windows: Vec<BlockWindow>,
    /// Bytes of each block, by its address.
    lengths: BTreeMap<u64, u32>,
}

impl FunctionBlocks {
    /// Those of each function with counted blocks.
    pub(crate) fn all(run: &RunData, functions: &Functions<'_>) -> FxHashMap<FunctionKey, Self> {
        let mut windows: BTreeMap<(FunctionKey, u64, u64), BlockWindow> = BTreeMap::new();
        let mut all: FxHashMap<FunctionKey, Self> = FxHashMap::default();
        for row in &run.blocks {
            let frame = run.frames[row.frame.index()];
            let Some(function) = function_of(functions, frame.module, frame.address) else {
                continue;
            };
            let lengths = &mut all.entry(function).or_default().lengths;
            lengths.insert(frame.address, row.length);
            let key = (function, row.from_ns, row.to_ns);
            let window = windows.entry(key).or_insert_with(|| BlockWindow {
                from_ns: row.from_ns,
                to_ns: row.to_ns,
                cpu_ns: row.cpu_ns.zip(row.least_cpu_ns),
                counts: BTreeMap::new(),
            });
            *window.counts.entry(frame.address).or_default() += row.count;
        }
        for ((function, ..), window) in windows {
            all.entry(function).or_default().windows.push(window);
        }
        all
    }

    /// Address of the block that contains `address`.
    fn block_at(&self, address: u64) -> Option<u64> {
        let (block, length) = self.lengths.range(..=address).next_back()?;
        (address - block < u64::from(*length)).then_some(*block)
    }
}

fn function_of(
    functions: &Functions<'_>,
    module: Option<ModuleId>,
    address: u64,
) -> Option<FunctionKey> {
    let module = module?;
    Some((module, functions.containing(module, address)?.address))
}

/// Executions of a site's block for each execution of another block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio {
    each: f64,
    /// Standard error, as a share of it.
    error: f64,
}

impl Ratio {
    /// From the executions of both blocks, the site's first, in each window that counted both.
    fn of(windows: &[(u64, u64)]) -> Option<Self> {
        let sum = |part: fn(&(u64, u64)) -> u64| windows.iter().map(part).sum::<u64>();
        let (site, other) = (sum(|it| it.0), sum(|it| it.1));
        if site == 0 || other < MIN_ENTRIES {
            return None;
        }
        let each = site as f64 / other as f64;
        let counted = || windows.iter().filter(|it| it.1 > 0);
        let differences = counted().map(|(site, counted)| {
            let weight = *counted as f64 / other as f64;
            (weight, *site as f64 / *counted as f64 / each - 1.0)
        });
        let spread = variance_between(differences, windows.len(), PRIOR_SPREAD);
        // The last execution in a window is cut off.
        let edges = counted().count() as f64 / other as f64;
        let error = spread.sqrt().hypot(edges);
        (error <= MAX_ERROR).then_some(Self { each, error })
    }
}

/// Relative variance of a mean over `windows` windows.
///
/// `differences` has, for each window that was counted, its weight (the weights sum to 1) and its relative difference from
/// the mean. One more difference, `prior`, is assumed, so that equal windows do not make the mean exact.
pub(crate) fn variance_between(
    differences: impl Iterator<Item = (f64, f64)>,
    windows: usize,
    prior: f64,
) -> f64 {
    let mut squares = prior * prior;
    let mut number: f64 = 0.0;
    for (weight, difference) in differences {
        squares += weight * difference * difference * windows as f64;
        number += 1.0;
    }
    squares / number.max(1.0).powi(2)
}

/// Windows of each site, by time, with executions that follow from blocks counted without slowing the program.
pub(crate) fn windows_of_sites(
    run: &RunData,
    functions: &Functions<'_>,
) -> FxHashMap<SiteId, Vec<Executions>> {
    let blocks = FunctionBlocks::all(run, functions);
    let mut known: FxHashMap<(FunctionKey, u64), Vec<Counted>> = FxHashMap::default();
    let mut of_sites = FxHashMap::default();
    for (site, row) in (0..).map(SiteId).zip(&run.sites) {
        let frame = run.frames[row.frame.index()];
        let place = function_of(functions, frame.module, frame.address).and_then(|function| {
            let blocks = blocks.get(&function)?;
            Some((function, blocks, blocks.block_at(frame.address)?))
        });
        let Some((function, blocks, block)) = place else {
            continue;
        };
        let counted = known
            .entry((function, block))
            .or_insert_with(|| of_block(blocks, block));
        if !counted.is_empty() {
            let rows = counted.iter().map(|it| it.of_site(site));
            of_sites.insert(site, rows.collect());
        }
    }
    of_sites
}

/// Executions of a block in a window, with the bounds of the window's CPU time that follow from those of the count.
#[derive(Clone, Copy, Debug)]
struct Counted {
    from_ns: u64,
    to_ns: u64,
    count: u64,
    least_ns: u64,
    most_ns: u64,
}

impl Counted {
    const fn of_site(&self, site: SiteId) -> Executions {
        Executions {
            site,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            count: self.count,
            cpu_ns: self.least_ns.midpoint(self.most_ns),
            least_cpu_ns: Some(self.least_ns),
            most_cpu_ns: Some(self.most_ns),
        }
    }
}

/// Executions of the block at an address in the windows that hardly slowed the program.
fn of_block(blocks: &FunctionBlocks, block: u64) -> Vec<Counted> {
    let windows = &blocks.windows;
    let unslowed = || windows.iter().filter(|window| !window.is_slowed());
    if unslowed().next().is_none() {
        return Vec::new();
    }
    let mut ratios: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for window in windows {
        let Some(of_site) = window.counts.get(&block) else {
            continue;
        };
        for (other, count) in &window.counts {
            ratios.entry(*other).or_default().push((*of_site, *count));
        }
    }
    let entries = |address: u64| -> u64 {
        unslowed()
            .filter_map(|window| window.counts.get(&address))
            .sum()
    };
    let mut best: Option<(u64, Ratio, u64)> = None;
    for (other, pairs) in &ratios {
        let count = entries(*other);
        let ratio = match *other == block {
            true => Some(Ratio {
                each: 1.0,
                error: 0.0,
            }),
            false => Ratio::of(pairs),
        };
        let Some(ratio) = ratio.filter(|_| count >= MIN_ENTRIES) else {
            continue;
        };
        let is_better = best.is_none_or(|(_, known, known_count)| {
            (ratio.error, known_count) < (known.error, count)
        });
        if is_better {
            best = Some((*other, ratio, count));
        }
    }
    let Some((other, ratio, _)) = best else {
        return Vec::new();
    };
    let counted = unslowed().filter_map(|window| {
        let count = *window.counts.get(&other)?;
        let (cpu_ns, least_ns) = window.unslowed_ns()?;
        let range = Z95 * ratio.error;
        Some(Counted {
            from_ns: window.from_ns,
            to_ns: window.to_ns,
            count: (count as f64 * ratio.each) as u64,
            least_ns: (least_ns as f64 * (1.0 - range)) as u64,
            most_ns: (cpu_ns as f64 * (1.0 + range)) as u64,
        })
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from_ns: u64, least_ns: u64, counts: &[(u64, u64)]) -> BlockWindow {
        BlockWindow {
            from_ns,
            to_ns: from_ns + 1000,
            cpu_ns: Some((1000, least_ns)),
            counts: counts.iter().copied().collect(),
        }
    }

    #[test]
    fn a_block_runs_as_often_as_those_around_it_say_that_are_counted_alone() {
        let both =
            |from_ns, iterations: u64| window(from_ns, 300, &[(10, 100), (20, 100 * iterations)]);
        let alone = |from_ns, count| window(from_ns, 990, &[(10, count)]);
        let mut blocks = FunctionBlocks {
            windows: vec![
                both(0, 750),
                alone(2000, 250),
                alone(4000, 251),
                both(6000, 750),
            ],
            lengths: BTreeMap::new(),
        };
        let counted = of_block(&blocks, 20);
        let counts: Vec<u64> = counted.iter().map(|it| it.count).collect();
        assert_eq!(counts, [187_500, 188_250]);
        assert!(
            counted[0].least_ns > 850 && counted[0].most_ns < 1150,
            "{counted:?}"
        );
        // What is counted itself needs no ratio.
        let entries = of_block(&blocks, 10);
        assert_eq!(entries[0].count, 250);
        assert_eq!((entries[0].least_ns, entries[0].most_ns), (990, 1000));
        assert!(of_block(&blocks, 30).is_empty(), "another function's");
        blocks.windows.truncate(1);
        assert!(of_block(&blocks, 20).is_empty(), "slowed");
    }

    #[test]
    fn loops_of_changing_lengths_are_known_less_well_or_not_at_all() {
        let steady = Ratio::of(&[(1000, 100), (1000, 100)]).map(|it| it.error);
        let changing = Ratio::of(&[(800, 100), (1200, 100)]).map(|it| it.error);
        assert!(
            steady < changing && changing.is_some(),
            "{steady:?} {changing:?}"
        );
        assert_eq!(Ratio::of(&[(100, 100), (1900, 100)]), None);
        assert_eq!(Ratio::of(&[(1000, MIN_ENTRIES - 1)]), None);
        assert_eq!(Ratio::of(&[(0, 100)]), None);
    }
}
