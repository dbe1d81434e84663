//! Finds the levels of the TLB from the cost of translation over the number of pages.
//!
//! The chase visits one line on each page in random order, so its curve of cycles over
//! pages has plateaus like a latency curve, and the same search finds them: the first
//! while the first TLB holds all pages, the next while the second does. The cost of the lines
//! themselves was subtracted point by point (the packed chase), so the searched curve
//! is the cost of translation plus that of an L1 hit.

use membound_types::{Basis, Figure, PageKind, TlbLevel, TlbPoint};

use crate::levels::{CurvePoint, Interval, LevelOptions, Levels, Plateau, find_levels};
use crate::stats::{median, median_error};

/// Options for levels of a TLB: a second TLB adds seven or so cycles to an L1 hit of four
/// or five, a walk ten and more to that.
const OPTIONS: LevelOptions = LevelOptions {
    least_span_octaves: 0.7,
    steepest_plateau: 0.2,
    least_ratio: 1.3,
    least_step: 1.3,
    least_climb: 0.4,
    least_separation_octaves: 1.3,
    // Sizes are numbers of pages here, and each page has its own set.
    page_bytes: 1,
    cache_bound_bytes: None,
    caches: None,
};

/// Least cycles of a miss that is a page walk: a second TLB answers within ten or so. A step
/// further out is no TLB: there the page tables leave a cache.
pub(crate) const WALK_CYCLES: f64 = 20.0;

/// Relative error of the packed chase as a measure of the cost of the lines.
const PACKED_ERROR: f64 = 0.01;

/// The TLB levels of every page kind in `points`, innermost first. A page kind without a
/// bend has no levels: its TLB reaches further than was measured.
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
            let next = levels.plateaus.get(index + 1);
            let entries = next.map_or(entries, |next| {
                capacity_along_climb(&curve, plateau, next, entries)
            });
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

/// Share of the climb to the next plateau at which pages certainly begin to miss.
const ONSET_CLIMB_SHARE: f64 = 0.05;
/// Share of the climb at which as many pages miss as hit.
const HALF_CLIMB_SHARE: f64 = 0.5;

/// Ratio of the pages at these two shares above which the end is not sharp.
const MAX_SHARP_CLIMB_RATIO: f64 = 1.5;

/// Entries of a TLB whose misses increase over an octave or more, because pages are
/// unevenly distributed over its sets or its replacement is random: the capacity lies between the
/// onset of the climb and its middle, and the curve does not determine where.
fn capacity_along_climb(
    curve: &[CurvePoint],
    plateau: &Plateau,
    next: &Plateau,
    found: Interval,
) -> Interval {
    let (from, to) = (plateau.latency_ns.value, next.latency_ns.value);
    let crossing = |share: f64| {
        let wanted = from + share * (to - from);
        let inside = |point: &&CurvePoint| point.size_bytes >= plateau.from_bytes;
        let points: Vec<&CurvePoint> = curve.iter().filter(inside).collect();
        // Use the last upward crossing of the value: a disturbance on the plateau is no climb.
        let pair = points
            .windows(2)
            .filter(|pair| pair[1].size_bytes <= next.to_bytes)
            .rfind(|pair| pair[0].ns < wanted && pair[1].ns >= wanted)?;
        let place = (wanted - pair[0].ns) / (pair[1].ns - pair[0].ns);
        let ln = |point: &CurvePoint| (point.size_bytes as f64).ln();
        Some((ln(pair[0]) + place * (ln(pair[1]) - ln(pair[0]))).exp())
    };
    match (crossing(ONSET_CLIMB_SHARE), crossing(HALF_CLIMB_SHARE)) {
        (Some(onset), Some(half)) if half > onset * MAX_SHARP_CLIMB_RATIO => Interval {
            value: (onset * half).sqrt(),
            low: onset.min(found.low),
            high: half.max(found.high),
        },
        _ => found,
    }
}

/// Cycles of a packed chase over the fewest pages (an L1 hit), and cycles per nanosecond,
/// which follow from the points. `None` if translation never costs anything.
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

/// Cost of a miss of plateau `index`: the step to the next plateau or, if the curve
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

/// Bytes of one page. Base pages count as 4 KiB, as their name in documents says.
pub(crate) const fn page_bytes(page: PageKind) -> u64 {
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

    /// A TLB with `first` entries and one with `second`, LRU, then walks that grow slowly.
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

    /// Cost of translation in a guest on a processor whose second TLB has 4096 entries: two
    /// runs, the second on a finer grid.
    const SLOWLY: [&[(u64, f64)]; 2] = [
        &[
            (512, 7.0),
            (609, 7.0),
            (724, 7.3),
            (861, 6.9),
            (1024, 7.0),
            (1218, 7.1),
            (1448, 7.7),
            (1722, 6.8),
            (2048, 6.0),
            (2435, 7.0),
            (2896, 7.8),
            (3444, 12.2),
            (4096, 20.7),
            (4871, 29.3),
            (5793, 34.8),
            (6889, 41.7),
            (8192, 47.6),
            (9742, 58.2),
            (11585, 74.3),
            (13777, 85.2),
            (16384, 85.2),
            (19484, 82.5),
            (23170, 79.0),
            (27554, 79.0),
            (32768, 82.0),
        ],
        &[
            (512, 7.0),
            (575, 7.0),
            (645, 7.1),
            (724, 7.3),
            (813, 7.1),
            (912, 7.0),
            (1024, 7.0),
            (1149, 7.0),
            (1290, 6.9),
            (1448, 6.9),
            (1625, 6.3),
            (1825, 5.6),
            (2048, 5.3),
            (2299, 4.9),
            (2580, 5.2),
            (2896, 5.5),
            (3251, 7.9),
            (3649, 12.5),
            (4096, 16.3),
            (4598, 22.0),
            (5161, 30.5),
            (5793, 33.6),
            (6502, 39.4),
            (7298, 42.9),
            (8192, 47.9),
            (9195, 55.9),
            (10321, 63.8),
            (11585, 74.0),
            (13004, 83.0),
            (14596, 85.6),
            (16384, 83.8),
            (18390, 82.8),
            (20643, 80.0),
            (23170, 80.0),
            (26008, 79.0),
            (29193, 81.0),
            (32768, 82.0),
        ],
    ];

    #[test]
    fn a_second_tlb_that_fills_slowly_is_found_alike_in_two_runs() {
        let found = SLOWLY.map(|run| {
            let first = (8..36).map(|k| {
                let pages = (f64::from(k) / 4.0).exp2().round() as u64;
                (pages, if pages <= 96 { 0.0 } else { 7.0 })
            });
            let mut all: Vec<(u64, f64)> = first.collect();
            all.extend_from_slice(run);
            let clock = 4.0;
            let points: Vec<TlbPoint> = all
                .into_iter()
                .map(|(pages, cycles)| TlbPoint {
                    page: PageKind::Base,
                    pages,
                    ns: 1.0 + cycles / clock,
                    packed_ns: 1.0,
                    translation_cycles: cycles,
                    batches: Samples::default(),
                })
                .collect();
            let levels = find(&points);
            levels.get(1).expect("a second TLB").entries
        });
        for entries in found {
            assert!(entries.low < 4096.0 && 4096.0 < entries.high, "{entries:?}");
        }
        let apart = found[0].value / found[1].value;
        assert!((0.8..1.25).contains(&apart), "{found:?}");
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
