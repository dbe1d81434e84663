//! Fills everything in a machine profile that follows from its measured values.
//!
//! The measuring crate fills in times; [`interpret`] adds their interpretation, part by part, in
//! the order of dependence: marks on latency points, the line, the levels, and then everything that
//! refers to levels.

use membound_types::{
    Access, Bandwidth, Cache, CacheKind, Latency, LatencyPoint, Level, LevelKind, LineSize,
    MachineInfo, MachineProfile, Mlp, NodePolicy, Outcome, PageKind, PageWalks, Pattern,
    PrefetchState, Tlb,
};

use crate::levels::{CurvePoint, LevelOptions, Levels, find_levels};
use crate::mlp::Run;
use crate::{area, crowding, declared, hits, line, mlp, reach, stats, taint, tlb, walks};

/// Fewest points of a curve in which levels are searched.
const MIN_POINTS: usize = 8;

/// Levels and line size from the latency part of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Interpretation {
    /// Levels, innermost first; empty when no curve shows any.
    pub levels: Vec<Level>,
    /// Line size, or why it is not known.
    pub line: Outcome<LineSize>,
}

impl From<&LatencyPoint> for CurvePoint {
    fn from(point: &LatencyPoint) -> Self {
        Self {
            size_bytes: point.size_bytes,
            ns: point.ns,
            ns_low: point.ns_low,
            ns_high: point.ns_high,
        }
    }
}

/// Interprets every part that is present. Missing parts stay missing; without
/// a latency part the present levels and line stay and are used for the other parts.
pub fn interpret(profile: &mut MachineProfile) {
    if let Outcome::Known(latency) = &mut profile.latency {
        let found = interpret_latency(latency, &profile.machine);
        profile.levels = found.levels;
        profile.line = found.line;
    }
    let levels = &profile.levels;
    if let Outcome::Known(part) = &mut profile.mlp {
        interpret_mlp(part, levels);
        hits::fill(part, levels, &profile.machine.caches);
    }
    if let Outcome::Known(part) = &mut profile.bandwidth {
        interpret_bandwidth(part, levels, &profile.machine.caches);
    }
    let kinds = page_kinds(profile);
    if let Outcome::Known(part) = &mut profile.tlb {
        interpret_tlb(part, &profile.levels, &profile.machine.caches, &kinds);
        if let (Outcome::Known(chases), Outcome::Known(mlp)) =
            (&part.parallel_walks, &mut profile.mlp)
        {
            add_overlapped_chases(mlp, *chases);
        }
    }
}

/// Copies the number of walks that independent chases overlapped into the MLP part, next to that
/// of parallel loads. Chases are measured only with base pages.
fn add_overlapped_chases(part: &mut Mlp, chases: f64) {
    if part.page == PageKind::Base
        && let Outcome::Known(walks) = &mut part.page_walks
    {
        walks.walks_by_chases = Some(chases);
    }
    for other in &mut part.others {
        add_overlapped_chases(other, chases);
    }
}

/// Page kinds with which some part of the profile was measured, smallest first.
fn page_kinds(profile: &MachineProfile) -> Vec<PageKind> {
    let mut kinds: Vec<PageKind> = Vec::new();
    if let Outcome::Known(part) = &profile.latency {
        kinds.extend(part.points.iter().map(|point| point.page));
    }
    if let Outcome::Known(part) = &profile.mlp {
        kinds.extend(runs(part).map(|run| run.page));
    }
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn runs(part: &Mlp) -> impl Iterator<Item = &Mlp> {
    std::iter::once(part).chain(&part.others)
}

/// Marks points that a prefetcher shortened, fills `crowding`, and returns the levels and the line.
pub fn interpret_latency(latency: &mut Latency, machine: &MachineInfo) -> Interpretation {
    taint::mark(&mut latency.points);
    let options = LevelOptions {
        cache_bound_bytes: cache_bound(&machine.caches, machine.cpu.online.len()),
        caches: caches_before_memory(&machine.caches),
        ..LevelOptions::default()
    };
    latency.crowding = crowding::compare(
        &latency.points,
        &machine.caches,
        &machine.cpu.smt_siblings,
        &options,
    );
    let line = line::find_line(&latency.points, &machine.caches);
    let mut levels = match level_curves(&latency.points).split_first() {
        Some((main, others)) => {
            let levels_of = |curve: &Vec<CurvePoint>| {
                let mut found = find_levels(curve, &options);
                if let Some(bound) = options.cache_bound_bytes {
                    found.join_memory(bound);
                }
                found
            };
            let mut found = levels_of(main);
            let others: Vec<Levels> = others.iter().map(levels_of).collect();
            found.join_sizes(&others);
            found.to_levels(machine.timer.core_clock_hz)
        }
        None => Vec::new(),
    };
    declared::compare(
        &mut levels,
        &machine.caches,
        machine.conditions.hypervisor.as_deref(),
        line.known(),
    );
    Interpretation { levels, line }
}

/// Fills rule, throughput, line through sequential loads and expected hits of `part` and of its
/// other conditions, then the page walks of every condition.
///
/// Page walks need another condition with larger pages.
pub fn interpret_mlp(part: &mut Mlp, levels: &[Level]) {
    interpret_run(part, levels);
    let walks: Vec<Outcome<PageWalks>> = runs(part).map(|run| page_walks(run, part)).collect();
    let mut walks = walks.into_iter();
    if let Some(own) = walks.next() {
        part.page_walks = own;
    }
    for (other, own) in part.others.iter_mut().zip(walks) {
        other.page_walks = own;
    }
}

/// Fills everything that follows from one condition alone.
fn interpret_run(part: &mut Mlp, levels: &[Level]) {
    if part.sequential_pair_cycles.known().is_none()
        && let Some(cycles) = stats::median(&cells(part).sequential(2, |cell| cell.cycles))
    {
        part.sequential_pair_cycles = Outcome::Known(cycles);
    }
    part.sequential_pair_interval = cells(part)
        .pair_half_width()
        .zip(part.sequential_pair_cycles.known().copied())
        .map_or_else(
            || Outcome::missing("two loads in sequence were not measured"),
            |(half_width, cycles)| Outcome::Known(mlp::around(cycles, half_width)),
        );
    part.one_load_cycles = cells(part).one_load().map_or_else(
        || Outcome::missing("one load was not measured"),
        |one| Outcome::Known(mlp::around(one.cycles, mlp::NORMAL_95 * one.spread)),
    );
    part.sequential_line = mlp::sequential_fit(&cells(part).sequential_series());
    let reading = cells(part).read_rule(part.sequential_pair_cycles.known().copied());
    part.mlp_rule = reading.clone().map(|reading| reading.parallelism);
    part.mlp_rule_between = reading.known().map(|reading| reading.between);
    part.mlp_rule_interval = match reading {
        Outcome::Known(reading) => reading.interval,
        Outcome::Missing { not_measured } => Outcome::Missing { not_measured },
    };
    part.mlp_throughput = mlp::throughput(&part.throughput);
    part.mlp_throughput_interval = mlp::throughput_interval(&part.throughput);
    for point in &mut part.areas {
        point.expected = area::expected_hits(point.area_bytes, levels);
    }
    for other in &mut part.others {
        interpret_run(other, levels);
    }
}

/// The cells measured with the part's own pages and node.
fn cells(part: &Mlp) -> Run<'_> {
    Run::new(&part.cells, part.page, part.node)
}

/// Page walks of `run`, compared with the largest pages among all runs of `part` on the same node
/// and with an area of similar size.
fn page_walks(run: &Mlp, part: &Mlp) -> Outcome<PageWalks> {
    let Some(area_bytes) = cells(run).main_area() else {
        return Outcome::missing("no parallel loads were measured");
    };
    let larger = runs(part)
        .filter(|other| {
            other.node == run.node && tlb::page_bytes(other.page) > tlb::page_bytes(run.page)
        })
        .filter_map(|other| Some((other, cells(other).main_area()?)))
        .filter(|(_, other_bytes)| *other_bytes >= area_bytes / 2 && *other_bytes / 2 <= area_bytes)
        .max_by_key(|(other, _)| tlb::page_bytes(other.page));
    let Some((other, _)) = larger else {
        return Outcome::missing_with(
            "no larger pages were measured on the same node",
            "measure with several page kinds (`--page 4k,thp`)",
        );
    };
    let (small, large) = (cells(run).rule_points(), cells(other).rule_points());
    walks::compare(
        walks::Times {
            parallel: &small,
            sequence: run.sequential_line.known(),
        },
        walks::Times {
            parallel: &large,
            sequence: other.sequential_line.known(),
        },
        other.page,
        other.mlp_rule.known().copied(),
    )
}

/// Sets the level into which each point's working set fits. Several threads on a shared
/// outermost cache need room there for the sets of all threads.
pub fn interpret_bandwidth(part: &mut Bandwidth, levels: &[Level], caches: &[Cache]) {
    let shared = outermost(caches).is_some_and(|cache| cache.shared_by.len() > 1);
    let last_cache = levels
        .iter()
        .rposition(|level| level.kind == LevelKind::Cache);
    for point in &mut part.points {
        point.level = levels
            .iter()
            .enumerate()
            .find(|(index, level)| {
                let copies = if shared && Some(*index) == last_cache {
                    point.threads
                } else {
                    1
                };
                match (level.kind, level.size_bytes) {
                    (LevelKind::Memory, _) => true,
                    (LevelKind::Cache, Some(size)) => {
                        point.size_bytes.saturating_mul(u64::from(copies)) <= size
                    }
                    (LevelKind::Cache, None) => false,
                }
            })
            .map(|(_, level)| level.name.clone());
    }
}

/// Fills the levels of the TLB and, for each cache, how much of it the TLB reaches.
///
/// Cache sizes come from `levels` as found, else from `caches` as declared. `kinds` are the page
/// kinds that the machine is known to have.
pub fn interpret_tlb(part: &mut Tlb, levels: &[Level], caches: &[Cache], kinds: &[PageKind]) {
    part.levels = tlb::find(&part.points);
    part.reach = reach::reach(part, &reach::cache_sizes(levels, caches), kinds);
}

/// The curves in which levels are searched, the most informative first.
///
/// Each has random loads, clean, one copy, local, prefetchers in their default state, and one page
/// kind. The largest pages that were measured up to large sizes come first, because with small
/// ones the TLB bends the curve and a physically indexed cache fills unevenly. Where a
/// curve on large pages begins late, points on smaller pages are added below its first point.
#[must_use]
pub fn level_curves(points: &[LatencyPoint]) -> Vec<Vec<CurvePoint>> {
    let usable: Vec<&LatencyPoint> = points
        .iter()
        .filter(|point| {
            point.access == Access::Clean
                && point.threads == 1
                && point.node == NodePolicy::LOCAL
                && point.prefetch == PrefetchState::Default
        })
        .collect();
    let tainted = usable
        .iter()
        .filter(|point| point.pattern == Pattern::Random && point.prefetch_taint.is_some())
        .count();
    let harder = usable
        .iter()
        .filter(|point| point.pattern == Pattern::Indexed)
        .count();
    // A prefetcher that follows pointers shortens every size beyond the caches; if only a few sizes
    // are shorter, a neighbour was busy while the other pattern ran.
    let patterns = if tainted > 2 && 4 * tainted > harder {
        [Pattern::Indexed, Pattern::Random, Pattern::PageRandom]
    } else {
        [Pattern::Random, Pattern::Indexed, Pattern::PageRandom]
    };
    for pattern in patterns {
        let curves: Vec<Vec<CurvePoint>> = [
            PageKind::Huge1G,
            PageKind::Huge2M,
            PageKind::Thp,
            PageKind::Base,
        ]
        .into_iter()
        .filter_map(|page| longest_stride(&usable, pattern, page))
        .collect();
        let reach = |curve: &[CurvePoint]| {
            curve
                .iter()
                .map(|point| point.size_bytes)
                .max()
                .unwrap_or(0)
        };
        let farthest = curves.iter().map(|curve| reach(curve)).max().unwrap_or(0);
        // A large-page curve that ends early lacks the outer levels.
        let reaching: Vec<usize> = (0..curves.len())
            .filter(|&index| {
                reach(&curves[index]) >= farthest / 2 && curves[index].len() >= MIN_POINTS
            })
            .collect();
        if reaching.is_empty() {
            continue;
        }
        return reaching
            .into_iter()
            .map(|index| {
                let mut curve = curves[index].clone();
                for other in &curves[index + 1..] {
                    let smallest = curve
                        .iter()
                        .map(|point| point.size_bytes)
                        .min()
                        .unwrap_or(0);
                    curve.extend(other.iter().filter(|point| point.size_bytes < smallest));
                }
                curve.sort_by_key(|point| point.size_bytes);
                curve
            })
            .collect();
    }
    Vec::new()
}

/// The points of one pattern and page kind, at the stride with the most points.
fn longest_stride(
    usable: &[&LatencyPoint],
    pattern: Pattern,
    page: PageKind,
) -> Option<Vec<CurvePoint>> {
    let mine: Vec<&&LatencyPoint> = usable
        .iter()
        .filter(|point| point.pattern == pattern && point.page == page)
        .collect();
    let count = |stride: u64| {
        mine.iter()
            .filter(|point| point.stride_bytes == stride)
            .count()
    };
    let stride = mine
        .iter()
        .map(|point| point.stride_bytes)
        .max_by_key(|&stride| (count(stride), stride))?;
    Some(
        mine.iter()
            .filter(|point| point.stride_bytes == stride)
            .map(|point| CurvePoint::from(**point))
            .collect(),
    )
}

/// The outermost declared cache that holds data.
fn outermost(caches: &[Cache]) -> Option<&Cache> {
    caches
        .iter()
        .filter(|cache| cache.kind != CacheKind::Instruction)
        .max_by_key(|cache| cache.level)
}

/// Number of declared cache levels before memory, plus one for the caches of other cores if the
/// outermost is private. `None` without declared caches.
fn caches_before_memory(caches: &[Cache]) -> Option<usize> {
    let cache = outermost(caches)?;
    let others = usize::from(cache.shared_by.len() == 1);
    Some(cache.level as usize + others)
}

/// Size beyond which no cache can hold a buffer: twice the outermost declared cache; if that is
/// private to a core, twice the sum over all cores (at most 16), since lateral cast-out may
/// use the others. `None` without declared caches.
fn cache_bound(caches: &[Cache], online: usize) -> Option<u64> {
    const MAX_NEIGHBOURS: usize = 16;
    let cache = outermost(caches)?;
    let copies = match cache.shared_by.len() {
        1 => online.clamp(1, MAX_NEIGHBOURS),
        _ => 1,
    };
    Some(cache.size_bytes.saturating_mul(2 * copies as u64))
}
