//! Derives the configuration of each part from arguments and effort.

use std::time::Duration;

use membound_measure::bandwidth::{self as bandwidth_part, BandwidthConfig};
use membound_measure::latency::LatencyConfig;
use membound_measure::loaded::LoadedConfig;
use membound_measure::mlp::MlpConfig;
use membound_measure::numa::NumaConfig;
use membound_measure::tlb::TlbConfig;
use membound_measure::window::WindowConfig;
use membound_measure::{Effort, Region, RegionConfig, Session, Spread};
use membound_platform::pages::{HugePool, Thp};
use membound_types::{Access, LevelKind, MachineProfile, NodePolicy, PageKind, Pattern, ThpState};

use crate::args::{Format, MeasureArgs, Part, SpreadArg};

const MIB: u64 = 1 << 20;

/// Duration of a part relative to the others, for the progress bar.
pub(super) const fn weight(part: Part) -> f64 {
    match part {
        Part::Latency => 20.0,
        Part::Mlp => 4.0,
        Part::Window => 7.0,
        Part::Bandwidth => 6.0,
        Part::Loaded => 5.0,
        Part::Tlb => 5.0,
        Part::Prefetch => 4.0,
        Part::Numa => 2.0,
        Part::C2c => 1.0,
        Part::Calibration => 3.0,
    }
}

/// The requested page kinds, otherwise those that this machine has, first the largest that needs no
/// preparation.
pub(super) fn pages(session: &Session<'_>, args: &MeasureArgs) -> Vec<PageKind> {
    if !args.page.is_empty() {
        return distinct(&args.page);
    }
    let mut pages = Vec::new();
    if Thp::read(session.root)
        .enabled
        .known()
        .is_some_and(|state| *state != ThpState::Never)
    {
        pages.push(PageKind::Thp);
    }
    pages.push(PageKind::Base);
    for pool in HugePool::read(session.root) {
        match pool.page_bytes {
            0x20_0000 if pool.usable() >= 64 => pages.push(PageKind::Huge2M),
            0x4000_0000 if pool.usable() >= 1 => pages.push(PageKind::Huge1G),
            _ => {}
        }
    }
    pages
}

/// The page kind of a part that uses only one: the requested one, otherwise transparent huge pages if the
/// kernel really gives them. It may refuse them to a process, or have no free ones, and then there would be
/// no figure at all.
pub(super) fn page(session: &Session<'_>, args: &MeasureArgs) -> PageKind {
    const TRIED_BYTES: usize = 16 << 20;
    let first = pages(session, args)[0];
    let tried = RegionConfig {
        bytes: TRIED_BYTES,
        page: first,
        node: NodePolicy::LOCAL,
        cpu: session.cpu,
    };
    if args.page.is_empty() && Region::new(session, tried).is_err() {
        return PageKind::Base;
    }
    first
}

/// The requested node policies, otherwise local.
pub(super) fn nodes(args: &MeasureArgs) -> Vec<NodePolicy> {
    if args.node.is_empty() {
        vec![NodePolicy::LOCAL]
    } else {
        distinct(&args.node)
    }
}

pub(super) const fn spread(args: &MeasureArgs) -> Spread {
    match args.spread {
        Some(SpreadArg::Siblings) => Spread::Siblings,
        Some(SpreadArg::Cores) | None => Spread::Cores,
    }
}

/// The plans of `latency`: the product of the options, or a survey when everything is measured: every page
/// kind in full, and with the best kind the curves of document 004 (strides, several copies, nodes), dirty
/// lines, and the orders that distinguish translation from prefetching.
pub(super) fn latency(
    session: &Session<'_>,
    args: &MeasureArgs,
    everything: bool,
) -> Vec<LatencyConfig> {
    let effort = session.effort;
    let pages = pages(session, args);
    let mut main = LatencyConfig::new(effort, pages[0]);
    main.pages.clone_from(&pages);
    main.spread = spread(args);
    main.nodes = nodes(args);
    if let Some(max) = args.max {
        main.max_bytes = max;
        main.min_bytes = main.min_bytes.min(max);
    }
    let lat_mem_rd = args.format == Some(Format::LatMemRd);
    if lat_mem_rd {
        main.patterns = vec![Pattern::Stride];
        main.pages = vec![page(session, args)];
    }
    replace_default(&args.strides, &mut main.strides);
    replace_default(&args.pattern, &mut main.patterns);
    replace_default(&args.access, &mut main.accesses);
    replace_default(&args.threads, &mut main.threads);
    if !args.sizes.is_empty() {
        main.sizes = Some(distinct(&args.sizes));
    }
    if !everything || !args.used().is_empty() {
        return vec![main];
    }
    let mut plans = survey(session, effort, page(session, args));
    plans.insert(0, main);
    plans
}

/// Replaces the default by the given values, if any.
fn replace_default<T: Clone + PartialEq>(list: &[T], into: &mut Vec<T>) {
    if !list.is_empty() {
        *into = distinct(list);
    }
}

/// The values without duplicates.
fn distinct<T: Clone + PartialEq>(list: &[T]) -> Vec<T> {
    let mut distinct: Vec<T> = Vec::with_capacity(list.len());
    for value in list {
        if !distinct.contains(value) {
            distinct.push(value.clone());
        }
    }
    distinct
}

/// The curves of a survey beside the main ones.
fn survey(session: &Session<'_>, effort: Effort, page: PageKind) -> Vec<LatencyConfig> {
    let base = LatencyConfig {
        points_per_octave: effort.pick(2, 3, 4),
        max_bytes: effort.pick(128 * MIB, 256 * MIB, 1024 * MIB),
        refinements: 0,
        ..LatencyConfig::new(effort, page)
    };
    let budget = |quick: u64| Duration::from_millis(effort.pick(quick, 2 * quick, 8 * quick));
    let mut plans = vec![
        LatencyConfig {
            patterns: vec![Pattern::Stride],
            strides: vec![16, 64, 128, 256, 512, 1024],
            series_budget: budget(400),
            ..base.clone()
        },
        // Somewhat larger than a first-level and a second-level cache: there the line size shows.
        LatencyConfig {
            strides: vec![8, 16, 32, 64, 128, 256],
            sizes: Some(
                [64, 96, 128, 192, 256, 1536, 3072]
                    .map(|kib| kib << 10)
                    .to_vec(),
            ),
            series_budget: budget(200),
            ..base.clone()
        },
        LatencyConfig {
            patterns: vec![Pattern::PageRandom, Pattern::Indexed],
            series_budget: budget(800),
            ..base.clone()
        },
        LatencyConfig {
            accesses: vec![Access::Dirty],
            series_budget: budget(900),
            ..base.clone()
        },
    ];
    let copies = u32::try_from(session.cpus.len())
        .unwrap_or(u32::MAX)
        .min(64);
    if copies > 1 {
        plans.push(LatencyConfig {
            threads: vec![copies],
            series_budget: budget(1_600),
            ..base.clone()
        });
    }
    if session.topology.memory_nodes().len() > 1 {
        let mut nodes: Vec<NodePolicy> = session
            .topology
            .memory_nodes()
            .into_iter()
            .map(NodePolicy::Node)
            .collect();
        nodes.push(NodePolicy::INTERLEAVE);
        plans.push(LatencyConfig {
            nodes,
            series_budget: budget(1_000),
            ..base
        });
    }
    plans
}

/// The configuration of `mlp`.
pub(super) fn mlp(session: &Session<'_>, args: &MeasureArgs) -> MlpConfig {
    let pages = pages(session, args);
    let mut config = MlpConfig::new(session.effort, pages[0]);
    config.pages = pages;
    config.nodes = nodes(args);
    if args.node.is_empty() && session.topology.memory_nodes().len() > 1 {
        config.nodes.push(NodePolicy::INTERLEAVE);
        config.nodes.extend(
            session
                .topology
                .memory_nodes()
                .into_iter()
                .map(NodePolicy::Node),
        );
    }
    replace_default(&args.loads, &mut config.loads);
    if !args.fillers.is_empty() {
        config.fillers = Some(distinct(&args.fillers));
    }
    config.filler = args.filler.or(config.filler);
    config.fence = args.fence;
    config.placements = args.placements.unwrap_or(0);
    if let Some(area) = args.areas.iter().max() {
        config.area_bytes = *area;
    }
    config
}

/// The configurations of `window`, one for each page kind and node policy. By default only the first page
/// kind is measured, since the areas take the whole memory.
pub(super) fn windows(session: &Session<'_>, args: &MeasureArgs) -> Vec<WindowConfig> {
    let pages = if args.page.is_empty() {
        vec![page(session, args)]
    } else {
        distinct(&args.page)
    };
    let nodes = nodes(args);
    let one = |page, node| {
        let mut config = WindowConfig::new(session.effort, page);
        config.node = node;
        config.init_cpu = args.init_cpu;
        config.init_node = args.init_node;
        replace_default(&args.windows, &mut config.windows);
        replace_default(&args.window_kernel, &mut config.kernels);
        if !args.areas.is_empty() {
            config.areas = Some(distinct(&args.areas));
        }
        config
    };
    pages
        .iter()
        .flat_map(|page| nodes.iter().map(|node| one(*page, *node)))
        .collect()
}

/// The configuration of `loaded`: one page kind, one node.
pub(super) fn loaded(
    session: &Session<'_>,
    args: &MeasureArgs,
    profile: &MachineProfile,
) -> LoadedConfig {
    let mut config = LoadedConfig::new(session.effort, page(session, args));
    config.cache_bytes = cache_sizes(profile).last().copied();
    config.node = nodes(args)[0];
    replace_default(&args.mix, &mut config.mixes);
    config
}

/// The configuration of `tlb`.
pub(super) fn tlb(session: &Session<'_>, args: &MeasureArgs) -> TlbConfig {
    TlbConfig::new(session.effort, pages(session, args))
}

/// The configuration of `numa`.
pub(super) fn numa(session: &Session<'_>, args: &MeasureArgs) -> NumaConfig {
    NumaConfig::new(session.effort, page(session, args))
}

/// The configuration of `bandwidth`: a working set inside each measured level, and one in memory.
pub(super) fn bandwidth(
    session: &Session<'_>,
    args: &MeasureArgs,
    profile: &MachineProfile,
) -> BandwidthConfig {
    let cpus = u32::try_from(session.cpus.len()).unwrap_or(u32::MAX);
    let mut config = BandwidthConfig::new(session.effort, page(session, args), cpus);
    if !args.page.is_empty() {
        config.pages = distinct(&args.page);
    }
    config.nodes = nodes(args);
    config.spread = spread(args);
    replace_default(&args.kernel, &mut config.kernels);
    replace_default(&args.threads, &mut config.threads);
    let most = config.threads.iter().copied().max().unwrap_or(1);
    config.sizes = if args.sizes.is_empty() {
        let room = bandwidth_part::largest_set_bytes(session, &config);
        working_sets(profile, most).map(|sets| fitting(sets, room))
    } else {
        Some(args.sizes.clone())
    };
    config
}

/// Shrinks sets to the available memory: with all threads together they may still exceed the caches.
fn fitting(mut sets: Vec<u64>, room_bytes: u64) -> Vec<u64> {
    const MIN_BYTES: u64 = 64 << 10;
    for set in &mut sets {
        *set = (*set).min(room_bytes.max(MIN_BYTES));
    }
    sets.dedup();
    sets
}

/// Bytes per thread for each level: half of the first level; for the others the geometric mean of the size of
/// the level before and of the thread's share of this level, where an outermost cache is divided by `threads`
/// if CPUs share it.
fn working_sets(profile: &MachineProfile, threads: u32) -> Option<Vec<u64>> {
    let caches = cache_sizes(profile);
    let (first, last) = (*caches.first()?, *caches.last()?);
    let declared = profile
        .machine
        .caches
        .iter()
        .max_by_key(|cache| cache.size_bytes);
    let shared = declared.is_some_and(|cache| cache.shared_by.len() > 1);
    let mut sets = vec![first / 2];
    for pair in caches.windows(2) {
        let shares = if shared && pair[1] == last {
            u64::from(threads)
        } else {
            1
        };
        let room = pair[1] / shares;
        if room > pair[0] * 3 / 2 {
            sets.push((pair[0] as f64 * room as f64).sqrt() as u64);
        }
    }
    let beyond = declared
        .map_or(32 * MIB, |cache| cache.size_bytes)
        .max(last);
    sets.push((4 * beyond).clamp(64 * MIB, 512 * MIB));
    Some(sets)
}

/// Measured sizes of the caches in bytes, innermost first.
fn cache_sizes(profile: &MachineProfile) -> Vec<u64> {
    let caches = (profile.levels.iter()).filter(|level| level.kind == LevelKind::Cache);
    caches.filter_map(|level| level.size_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_measured_once() {
        let mut threads = vec![9];
        replace_default(&[2, 1, 2, 1], &mut threads);
        assert_eq!(threads, [2, 1]);
        replace_default(&[], &mut threads);
        assert_eq!(threads, [2, 1]);
    }

    #[test]
    fn sets_shrink_to_the_room_that_a_small_container_has() {
        let sets = vec![24 << 10, 300 << 10, 128 * MIB, 512 * MIB];
        let fits = fitting(sets.clone(), 48 * MIB);
        assert_eq!(fits, [24 << 10, 300 << 10, 48 * MIB]);
        assert_eq!(fitting(sets.clone(), 1 << 40), sets);
        assert_eq!(fitting(sets, 0), [24 << 10, 64 << 10]);
    }
}
