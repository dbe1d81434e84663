//! `measure tlb`: the cost of translation against the number of pages, and whether misses overlap.
//!
//! A random chase visits one line on each of P pages; another visits P lines that are
//! packed into a few pages and fill the caches alike. The difference is translation: it
//! rises where P exceeds what a level of the TLB holds. Levels are found from the points
//! by `membound-model`. Then several chases run at once over enough pages that
//! translations miss: when the difference per load shrinks, misses overlap.

mod ground;
mod layout;

use std::time::{Duration, Instant};

use membound_platform::pages;
use membound_types::{NodePolicy, Outcome, PageKind, Tlb, TlbOverlap, TlbPoint};

use crate::sampling::{Slot, run_rounds};
use crate::{Effort, Error, Session, hint, room};
use ground::{Shape, TlbMemory};

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct TlbConfig {
    /// Page kinds to measure.
    pub pages: Vec<PageKind>,
    /// Maximum number of pages of one kind.
    pub max_pages: u64,
    /// Maximum memory of one kind in bytes; less where memory is short.
    pub max_bytes: u64,
    /// Points per octave of the number of pages.
    pub points_per_octave: u32,
    /// Numbers of chains for the overlap; one chain is always measured.
    pub chains: Vec<u32>,
    /// Time for the part; every point is visited at least twice, even if that takes longer.
    pub budget: Duration,
}

impl TlbConfig {
    /// Page kinds `pages` with the memory and the time that `effort` allows.
    #[must_use]
    pub fn new(effort: Effort, pages: Vec<PageKind>) -> Self {
        Self {
            pages,
            max_pages: effort.pick(1 << 16, 1 << 18, 1 << 18),
            max_bytes: 1 << 30,
            points_per_octave: effort.pick(4, 6, 8),
            chains: vec![2, 4, 8, 16],
            budget: Duration::from_millis(effort.pick(5_000, 15_000, 60_000)),
        }
    }
}

/// Measures every page kind. [`Tlb::skipped`] names the kinds that are not available; a cancelled
/// run returns the points that have samples. `levels` is left to the model.
///
/// # Errors
/// The reason itself when no page kind could be measured.
pub fn measure(session: &Session<'_>, config: &TlbConfig) -> Result<Tlb, Error> {
    let started = Instant::now();
    let mut tlb = Tlb::default();
    let mut last_error = None;
    // The largest pages first: their curves are short and leave time to the others.
    let mut kinds = config.pages.clone();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.reverse();
    for (at, page) in kinds.iter().enumerate() {
        if session.cancelled() {
            break;
        }
        let share = |within: f64| (at as f64 + within) / kinds.len() as f64;
        session
            .progress
            .at(share(0.0), &format!("tlb: mapping {page} pages"));
        let left = config.budget.saturating_sub(started.elapsed());
        let budget = left / u32::try_from(kinds.len() - at).unwrap_or(u32::MAX);
        match allocate(session, config, *page) {
            Ok(mut memory) => {
                tlb.skipped.extend(memory.note());
                of_kind(session, config, &mut memory, budget, &share, &mut tlb)?;
            }
            Err(error) => {
                tlb.skipped.push(format!("{page} pages: {error}"));
                last_error = Some(error);
            }
        }
    }
    tlb.points.sort_by_key(|point| (point.page, point.pages));
    tlb.overlap
        .sort_by_key(|overlap| (overlap.page, overlap.chains));
    tlb.parallel_walks = match parallel_walks(&tlb.overlap) {
        Some(most) => Outcome::Known(most),
        None if session.cancelled() => Outcome::missing("the run ended before it was measured"),
        None => Outcome::missing("no page kind needed page walks within the memory allowed"),
    };
    tlb.elapsed_s = started.elapsed().as_secs_f64();
    match last_error {
        Some(error) if tlb.points.is_empty() && !session.cancelled() => Err(error),
        _ => Ok(tlb),
    }
}

/// Cycles that no second-level TLB takes to answer: a translation that costs as much is a page
/// walk.
const WALK_CYCLES: f64 = 25.0;

/// The largest overlap of page kinds whose translations are page walks.
fn parallel_walks(overlap: &[TlbOverlap]) -> Option<f64> {
    let walks = |page| {
        overlap.iter().any(|alone| {
            alone.page == page && alone.chains == 1 && alone.translation_cycles >= WALK_CYCLES
        })
    };
    overlap
        .iter()
        .filter(|overlap| walks(overlap.page))
        .map(|overlap| overlap.overlap)
        .max_by(f64::total_cmp)
}

/// Minimum number of pages that make a curve.
const MIN_CURVE_PAGES: u64 = 4;

/// Allocates as many pages of a kind as config and machine allow.
fn allocate(session: &Session<'_>, config: &TlbConfig, page: PageKind) -> Result<TlbMemory, Error> {
    let page_bytes = match page {
        PageKind::Base => pages::base_page_bytes() as u64,
        PageKind::Thp | PageKind::Huge2M => 2 << 20,
        PageKind::Huge1G => 1 << 30,
    };
    let mut most = config.max_pages.min(config.max_bytes / page_bytes);
    let available = room::share_bytes(session, (page, NodePolicy::LOCAL, session.cpu), 1);
    most = most.min(if room::is_pool(page) {
        available / page_bytes
    } else {
        // Packed lines take up to a sixteenth more.
        available / (page_bytes + page_bytes / 16)
    });
    if most < MIN_CURVE_PAGES {
        let what = if room::is_pool(page) && available < MIN_CURVE_PAGES * page_bytes {
            "the pool leaves"
        } else {
            "the memory that this part may take holds"
        };
        return Err(Error::Invalid(format!(
            "{what} {most} pages of {page_bytes} bytes, and {MIN_CURVE_PAGES} are the fewest that \
             make a curve"
        )));
    }
    // A pool may have fewer pages than asked for: halve until it does.
    loop {
        match TlbMemory::new(session, page, most, page_bytes) {
            Err(Error::Map { .. })
                if most / 2 >= MIN_CURVE_PAGES
                    && matches!(page, PageKind::Huge2M | PageKind::Huge1G) =>
            {
                most /= 2;
            }
            other => return other,
        }
    }
}

fn of_kind(
    session: &Session<'_>,
    config: &TlbConfig,
    memory: &mut TlbMemory,
    budget: Duration,
    share: &dyn Fn(f64) -> f64,
    tlb: &mut Tlb,
) -> Result<(), Error> {
    const CURVE_SHARE: f64 = 0.75;
    let page = memory.page;
    let mut slots: Vec<Slot<(u64, Shape)>> = layout::grid(memory.pages(), config.points_per_octave)
        .into_iter()
        .flat_map(|pages| [Shape::Spread, Shape::Packed].map(|shape| Slot::time((pages, shape))))
        .collect();
    run_rounds(
        session,
        budget.mul_f64(CURVE_SHARE),
        &mut slots,
        |&(pages, shape), progress| {
            session.progress.at(
                share(progress.done * CURVE_SHARE),
                &format!("tlb: {pages} {page} pages"),
            );
            Ok(vec![memory.visit(session, pages, shape, progress.round)?])
        },
        |_, _| (),
    )?;
    let points: Vec<TlbPoint> = slots
        .chunks(2)
        .filter_map(|pair| point(session, page, &pair[0], &pair[1]))
        .collect();
    match crowded(session, &points) {
        Ok(pages) if !session.cancelled() => {
            let share = |within: f64| share(CURVE_SHARE + within * (1.0 - CURVE_SHARE));
            let budget = budget.mul_f64(1.0 - CURVE_SHARE);
            let overlap = overlap(session, config, memory, pages, budget, &share)?;
            tlb.overlap.extend(overlap);
        }
        Ok(_) => {}
        Err(reason) => tlb
            .skipped
            .push(format!("overlap on {page} pages: {reason}")),
    }
    tlb.points.extend(points);
    Ok(())
}

fn point(
    session: &Session<'_>,
    page: PageKind,
    spread: &Slot<(u64, Shape)>,
    packed: &Slot<(u64, Shape)>,
) -> Option<TlbPoint> {
    let pages = spread.key.0;
    let spread = spread.sampled(session)?;
    let packed = packed.sampled(session)?;
    let (ns, packed_ns) = (spread.summary.median, packed.summary.median);
    Some(TlbPoint {
        page,
        pages,
        ns,
        packed_ns,
        translation_cycles: (ns - packed_ns) * spread.core_hz / 1e9,
        batches: spread.samples,
    })
}

/// Chooses a number of pages at which translations miss while the lines stay near the core, so that
/// the line itself is little of a load's time: the fewest pages that cost nine tenths of the
/// maximum, among those whose lines fit the declared second-level cache. If no page walk shows
/// there, among those whose lines fill at most a quarter of the largest cache.
fn crowded(session: &Session<'_>, points: &[TlbPoint]) -> Result<u64, String> {
    /// Cycles below which a difference between chases means nothing.
    const MIN_DIFFERENCE_CYCLES: f64 = 4.0;
    const SHARE: f64 = 0.9;
    let within = |bytes: u64| -> Vec<&TlbPoint> {
        points
            .iter()
            .filter(|point| point.pages * 64 <= bytes)
            .collect()
    };
    let most = |near: &[&TlbPoint]| {
        near.iter()
            .map(|point| point.translation_cycles)
            .fold(0.0, f64::max)
    };
    let mut near = within(hint::second_level_bytes(session));
    if most(&near) < WALK_CYCLES {
        near = within(hint::largest_cache_bytes(session) / 4);
    }
    let most = most(&near);
    if most < MIN_DIFFERENCE_CYCLES {
        return Err(format!(
            "translation over up to {} pages costs less than {MIN_DIFFERENCE_CYCLES} cycles a load, so there is nothing to overlap",
            near.last().map_or(0, |point| point.pages)
        ));
    }
    near.iter()
        .find(|point| point.translation_cycles >= SHARE * most)
        .map(|point| point.pages)
        .ok_or_else(|| "the run ended before its points were measured".to_owned())
}

fn overlap(
    session: &Session<'_>,
    config: &TlbConfig,
    memory: &mut TlbMemory,
    pages: u64,
    budget: Duration,
    share: &dyn Fn(f64) -> f64,
) -> Result<Vec<TlbOverlap>, Error> {
    let page = memory.page;
    let mut counts: Vec<u32> = config.chains.clone();
    counts.push(1);
    counts.retain(|chains| *chains > 0 && u64::from(*chains) <= pages);
    counts.sort_unstable();
    counts.dedup();
    let loops = counts
        .iter()
        .map(|chains| session.backend.chains(*chains as usize))
        .collect::<Result<Vec<_>, _>>()?;
    let mut slots: Vec<Slot<(usize, Shape)>> = (0..counts.len())
        .flat_map(|at| [Shape::Spread, Shape::Packed].map(|shape| Slot::time((at, shape))))
        .collect();
    run_rounds(
        session,
        budget,
        &mut slots,
        |&(at, shape), progress| {
            session.progress.at(
                share(progress.done),
                &format!("tlb: {} chains over {pages} {page} pages", counts[at]),
            );
            let visit = memory.visit_chains(session, &*loops[at], pages, shape, progress.round)?;
            Ok(vec![visit])
        },
        |_, _| (),
    )?;
    let costs: Vec<(u32, f64)> = slots
        .chunks(2)
        .zip(&counts)
        .filter_map(|(pair, chains)| {
            let spread = pair[0].sampled(session)?;
            let packed = pair[1].sampled(session)?;
            let ns = spread.summary.median - packed.summary.median;
            Some((*chains, ns * spread.core_hz / 1e9))
        })
        .collect();
    Ok(overlaps(page, &costs))
}

/// How far translations overlap with each number of chains, from `(chains, cycles of translation
/// per load)`, one chain among them: at most the number of chains, however small the cost.
fn overlaps(page: PageKind, costs: &[(u32, f64)]) -> Vec<TlbOverlap> {
    let Some((_, alone)) = costs.iter().find(|(chains, _)| *chains == 1) else {
        return Vec::new();
    };
    costs
        .iter()
        .map(|(chains, cycles)| {
            let full = f64::from(*chains);
            let overlap = if cycles * full <= *alone {
                full
            } else {
                alone / cycles
            };
            TlbOverlap {
                page,
                chains: *chains,
                translation_cycles: *cycles,
                overlap,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use membound_platform::Root;
    use membound_types::Samples;

    use super::*;
    use crate::Silent;

    fn with_session(check: impl FnOnce(&Session<'_>, &AtomicBool)) {
        let root = Root::system();
        let cancel = AtomicBool::new(false);
        let session = Session::new(&root, None, Effort::Quick, &cancel, &Silent).unwrap();
        check(&session, &cancel);
    }

    fn small(pages: Vec<PageKind>) -> TlbConfig {
        TlbConfig {
            max_pages: 512,
            max_bytes: 64 << 20,
            points_per_octave: 2,
            chains: vec![4, 2],
            budget: Duration::ZERO,
            ..TlbConfig::new(Effort::Quick, pages)
        }
    }

    fn point(page: PageKind, pages: u64, translation_cycles: f64) -> TlbPoint {
        TlbPoint {
            page,
            pages,
            ns: 1.0,
            packed_ns: 1.0,
            translation_cycles,
            batches: Samples::default(),
        }
    }

    #[test]
    fn every_point_of_the_grid_is_measured_spread_and_packed() {
        with_session(|session, _| {
            let tlb = measure(session, &small(vec![PageKind::Base, PageKind::Thp])).unwrap();
            let of = |kind| -> Vec<u64> {
                tlb.points
                    .iter()
                    .filter(|point| point.page == kind)
                    .map(|point| point.pages)
                    .collect()
            };
            assert_eq!(of(PageKind::Base), layout::grid(512, 2));
            if of(PageKind::Thp).is_empty() {
                println!("skipped: {:?}", tlb.skipped);
            } else {
                assert_eq!(of(PageKind::Thp), layout::grid(32, 2));
            }
            for point in &tlb.points {
                assert!(point.ns > 0.0 && point.packed_ns > 0.0, "{point:?}");
                assert!(point.batches.raw.len() >= 10);
                let difference = point.ns - point.packed_ns;
                assert!(
                    point.translation_cycles.abs() < 1e-9
                        || (point.translation_cycles > 0.0) == (difference > 0.0),
                    "{point:?}"
                );
            }
            assert!(tlb.levels.is_empty(), "levels are the model's affair");
            for overlap in &tlb.overlap {
                assert!(overlap.overlap <= f64::from(overlap.chains), "{overlap:?}");
            }
            assert_eq!(
                tlb.parallel_walks.known().copied(),
                parallel_walks(&tlb.overlap)
            );
        });
    }

    #[test]
    fn a_page_kind_that_is_not_to_be_had_is_named() {
        with_session(|session, _| {
            // Not even the smallest curve fits.
            let config = TlbConfig {
                max_bytes: 1 << 30,
                ..small(vec![PageKind::Huge1G, PageKind::Base])
            };
            let tlb = measure(session, &config).unwrap();
            assert!(tlb.skipped.iter().any(|line| line.starts_with("1g pages:")));
            assert!(tlb.points.iter().all(|point| point.page == PageKind::Base));
            let config = small(vec![PageKind::Huge1G]);
            let error = measure(session, &config).unwrap_err();
            assert!(error.to_string().contains("0 pages"), "{error}");
        });
    }

    #[test]
    fn a_cancelled_run_ends_without_points() {
        with_session(|session, cancel| {
            cancel.store(true, Ordering::Relaxed);
            let tlb = measure(session, &small(vec![PageKind::Base])).unwrap();
            assert!(tlb.points.is_empty());
            assert!(tlb.parallel_walks.known().is_none());
        });
    }

    #[test]
    fn overlap_is_measured_where_translations_miss_and_lines_are_near() {
        with_session(|session, _| {
            let lines = hint::second_level_bytes(session) / 64;
            let curve = [
                point(PageKind::Base, 64, 0.0),
                point(PageKind::Base, 512, 7.0),
                point(PageKind::Base, lines / 2, 60.0),
                point(PageKind::Base, lines, 61.0),
                point(PageKind::Base, 4 * lines, 300.0),
            ];
            assert_eq!(crowded(session, &curve), Ok(lines / 2));
            assert!(crowded(session, &curve[..1]).is_err());
            assert_eq!(crowded(session, &curve[..2]), Ok(512));
        });
    }

    #[test]
    fn overlaps_are_ratios_to_one_chain_and_never_more_than_all() {
        let costs = [(1, 60.0), (2, 30.0), (4, 20.0), (8, 0.5), (16, -1.0)];
        let found: Vec<f64> = overlaps(PageKind::Base, &costs)
            .iter()
            .map(|overlap| overlap.overlap)
            .collect();
        assert_eq!(found, [1.0, 2.0, 3.0, 8.0, 16.0]);
        assert!(overlaps(PageKind::Base, &costs[1..]).is_empty());
        let mut both = overlaps(PageKind::Base, &costs[..3]);
        assert_eq!(parallel_walks(&both), Some(3.0));
        // A second-level TLB that answers in seven cycles walks no pages.
        both.extend(overlaps(PageKind::Thp, &[(1, 7.0), (8, 1.0)]));
        assert_eq!(parallel_walks(&both), Some(3.0));
        assert_eq!(parallel_walks(&both[3..]), None);
    }
}
