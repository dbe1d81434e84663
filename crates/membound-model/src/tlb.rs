//! Levels of the TLB, from what translation costs against the number of pages.
//!
//! The chase visits one line on each page in random order, so its curve of cycles against
//! pages has plateaus as a latency curve has, and the same search finds them: the first
//! where the first TLB holds all pages, the next where the second does. What the lines
//! themselves cost has been taken away point by point (the packed chase), so the curve
//! that is searched is the cost of translation on top of that of an L1 hit.

use membound_types::{Basis, Figure, PageKind, TlbLevel, TlbPoint};

use crate::levels::{CurvePoint, LevelOptions, Levels, Plateau, find_levels};
use crate::stats::{median, median_error};

/// What counts as a level here: a second TLB adds seven or so cycles to an L1 hit of four
/// or five, a walk ten and more to that.
const OPTIONS: LevelOptions = LevelOptions {
    least_span_octaves: 0.7,
    steepest_plateau: 0.2,
    least_ratio: 1.3,
    least_climb: 0.4,
    least_separation_octaves: 1.3,
    // Sizes are counted in pages here, and each page chooses its set.
    page_bytes: 1,
    cache_bound_bytes: None,
};

/// A miss that costs at least so many cycles is a page walk: TLBs that stand behind another
/// answer within ten or so. A later step is no TLB, but page tables that leave a cache.
const WALK_CYCLES: f64 = 20.0;

/// How well the packed chase tells what the lines cost, as a share of that.
const PACKED_ERROR: f64 = 0.01;

/// The TLB levels of every page kind in `points`, innermost first. A page kind without a
/// bend has none: its TLB reaches further than was measured.
#[must_use]
pub fn find(points: &[TlbPoint]) -> Vec<TlbLevel> {
    PageKind::ALL
        .into_iter()
        .flat_map(|page| of_kind(points, page))
        .collect()
}

fn of_kind(points: &[TlbPoint], page: PageKind) -> Vec<TlbLevel> {
    let mine: Vec<&TlbPoint> = points
        .iter()
        .filter(|point| {
            point.page == page && point.pages > 0 && point.translation_cycles.is_finite()
        })
        .collect();
    let Some((base, cycles_per_ns)) = base(&mine) else {
        return Vec::new();
    };
    let curve: Vec<CurvePoint> = mine
        .iter()
        .map(|point| {
            let value = base + point.translation_cycles.max(0.0);
            let own = median_error(&point.batches.raw).unwrap_or(0.0);
            let error = 1.96 * own.hypot(PACKED_ERROR * point.packed_ns) * cycles_per_ns;
            CurvePoint {
                size_bytes: point.pages,
                ns: value,
                ns_low: value - error,
                ns_high: value + error,
            }
        })
        .collect();
    let levels = find_levels(&curve, &OPTIONS);
    let mut found: Vec<TlbLevel> = levels
        .plateaus
        .iter()
        .enumerate()
        .filter_map(|(index, plateau)| {
            let (entries, _) = plateau.size?;
            let miss = miss_cycles(&curve, &levels, index, plateau)?;
            let reach = entries.value * page_bytes(page) as f64;
            Some(TlbLevel {
                page,
                level: u32::try_from(index + 1).ok()?,
                entries: Figure {
                    value: entries.value,
                    low: entries.low,
                    high: entries.high,
                    basis: Basis::Estimated,
                },
                reach_bytes: reach.round() as u64,
                miss_cycles: miss,
            })
        })
        .collect();
    let walks = found
        .iter()
        .position(|level| level.miss_cycles.value >= WALK_CYCLES);
    found.truncate(walks.map_or(found.len(), |last| last + 1));
    found
}

/// Cycles of a packed chase over the fewest pages (an L1 hit), and cycles per nanosecond,
/// which the points hold implicitly. `None` where translation never costs anything.
fn base(points: &[&TlbPoint]) -> Option<(f64, f64)> {
    let rates: Vec<f64> = points
        .iter()
        .filter(|point| point.translation_cycles > 1.0 && point.ns - point.packed_ns > 0.0)
        .map(|point| point.translation_cycles / (point.ns - point.packed_ns))
        .collect();
    let rate = median(&rates)?;
    let hit = points
        .iter()
        .map(|point| point.packed_ns)
        .filter(|ns| *ns > 0.0)
        .min_by(f64::total_cmp)?;
    Some((hit * rate, rate))
}

/// What a miss of plateau `index` costs: the step to the next plateau, or where the curve
/// goes on climbing, to the points between 1.5 and 4 times its entries.
fn miss_cycles(
    curve: &[CurvePoint],
    levels: &Levels,
    index: usize,
    plateau: &Plateau,
) -> Option<Figure> {
    let here = plateau.latency_ns;
    let there = match levels.plateaus.get(index + 1) {
        Some(next) => next.latency_ns,
        None => {
            let (entries, _) = plateau.size?;
            let beyond: Vec<f64> = curve
                .iter()
                .filter(|point| {
                    let ratio = point.size_bytes as f64 / entries.value;
                    (1.5..=4.0).contains(&ratio)
                })
                .map(|point| point.ns)
                .collect();
            crate::levels::Interval {
                value: median(&beyond)?,
                low: beyond.iter().copied().min_by(f64::total_cmp)?,
                high: beyond.iter().copied().max_by(f64::total_cmp)?,
            }
        }
    };
    Some(Figure {
        value: there.value - here.value,
        low: (there.low - here.high).max(0.0),
        high: there.high - here.low,
        basis: Basis::Estimated,
    })
}

/// Bytes of one page. Base pages are taken for 4 KiB, as their name in documents says.
const fn page_bytes(page: PageKind) -> u64 {
    match page {
        PageKind::Base => 4 << 10,
        PageKind::Thp | PageKind::Huge2M => 2 << 20,
        PageKind::Huge1G => 1 << 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::Samples;

    /// A TLB of `first` entries and one of `second`, LRU, then walks that grow slowly.
    fn points(page: PageKind, first: u64, second: u64, noise: f64) -> Vec<TlbPoint> {
        let clock = 4.0;
        (8..60)
            .map(|k| {
                let pages = (f64::from(k) / 4.0).exp2().round() as u64;
                let translation = if pages <= first {
                    0.0
                } else if pages <= second {
                    7.0
                } else {
                    35.0 + 4.0 * (pages as f64 / second as f64).log2()
                };
                let wiggle = 1.0 + noise * (f64::from(k * 7 % 11) / 5.0 - 1.0);
                let packed_ns = if pages <= 700 { 1.0 } else { 3.4 };
                let ns = (packed_ns + translation / clock) * wiggle;
                TlbPoint {
                    page,
                    pages,
                    ns,
                    packed_ns,
                    translation_cycles: (ns - packed_ns) * clock,
                    batches: Samples {
                        raw: vec![ns; 7],
                        ..Samples::default()
                    },
                }
            })
            .collect()
    }

    #[test]
    fn two_levels_with_their_entries_and_costs() {
        for noise in [0.0, 0.02] {
            let found = find(&points(PageKind::Base, 96, 4096, noise));
            assert_eq!(found.len(), 2, "{found:?}");
            let near = |figure: &Figure, truth: f64, tolerance: f64| {
                assert!(
                    (figure.value / truth - 1.0).abs() < tolerance,
                    "{figure:?} {truth}"
                );
                assert!(figure.low <= figure.value && figure.value <= figure.high);
            };
            near(&found[0].entries, 96.0, 0.12);
            near(&found[1].entries, 4096.0, 0.12);
            near(&found[0].miss_cycles, 7.0, 0.2);
            near(&found[1].miss_cycles, 31.0, 0.25);
            assert_eq!(found[0].level, 1);
            assert_eq!(
                found[1].reach_bytes,
                (found[1].entries.value * 4096.0).round() as u64
            );
        }
    }

    #[test]
    fn page_tables_that_leave_a_cache_are_no_level() {
        let mut points = points(PageKind::Base, 96, 1024, 0.0);
        for point in points.iter_mut().filter(|point| point.pages > 8192) {
            point.ns += 100.0;
            point.translation_cycles += 400.0;
        }
        let found = find(&points);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            (found[1].entries.value / 1024.0 - 1.0).abs() < 0.12,
            "{found:?}"
        );
    }

    #[test]
    fn a_reach_beyond_the_curve_is_no_level() {
        let flat: Vec<TlbPoint> = points(PageKind::Huge2M, 1 << 20, 1 << 21, 0.01);
        assert!(find(&flat).is_empty());
        assert!(find(&[]).is_empty());
    }
}
