//! Memory-level parallelism from the N × K plane, as document 000 (IIT Delhi, Experiments
//! on memory level parallelism, 2018) reads it, and from parallel chases.
//!
//! Times are core clock cycles. Nothing here knows which CPU they come from.

use membound_types::{MlpCell, MlpMode, NodePolicy, Outcome, PageKind, ThroughputPoint};

use crate::stats::{isotonic_median, median, robust_line, robust_sigma};

/// Where two loads stop overlapping as fillers push them apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cliff {
    /// Most fillers measured with which they still overlap.
    pub inside_fillers: u32,
    /// Fewest fillers measured with which they do not.
    pub outside_fillers: u32,
    /// Median cycles before the cliff.
    pub inside_cycles: f64,
    /// Median cycles after it.
    pub outside_cycles: f64,
}

/// The time of n sequential loads as a line, T(n) = n·M + C.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SequentialFit {
    /// M, cycles of one load.
    pub load_cycles: f64,
    /// Standard error of M.
    pub load_error: f64,
    /// C, cycles that every execution costs whatever its number of loads.
    pub overhead_cycles: f64,
    /// Standard error of C.
    pub overhead_error: f64,
}

/// The parallel cells of one condition that the rule reads: (N, cycles) at the smallest K
/// measured for each N, in order of N.
///
/// With the fewest fillers all N loads surely lie inside the reorder buffer. Where a
/// cell was measured twice, the median counts.
#[must_use]
pub fn rule_table(
    cells: &[MlpCell],
    page: PageKind,
    node: NodePolicy,
    area_bytes: u64,
) -> Vec<(u32, f64)> {
    let mine: Vec<&MlpCell> = cells
        .iter()
        .filter(|cell| {
            cell.mode == MlpMode::Parallel
                && cell.page == page
                && cell.node == node
                && cell.area_bytes == area_bytes
                && cell.cycles.is_finite()
        })
        .collect();
    let mut counts: Vec<u32> = mine.iter().map(|cell| cell.loads).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
        .into_iter()
        .filter_map(|loads| {
            let of_n = || mine.iter().filter(move |cell| cell.loads == loads);
            let fewest = of_n().map(|cell| cell.fillers).min()?;
            let cycles: Vec<f64> = of_n()
                .filter(|cell| cell.fillers == fewest)
                .map(|cell| cell.cycles)
                .collect();
            median(&cycles).map(|cycles| (loads, cycles))
        })
        .collect()
}

/// The document's rule: the first N whose time inside the window reaches that of two
/// sequential loads, minus one, with the fraction between two N by interpolation.
///
/// `parallel` holds (N, cycles) with N ascending. More loads never take less time, so the
/// times are first made monotone, which takes single disturbed cells out. Missing when no
/// N reaches the time (then the parallelism is at least the largest N), or when nothing
/// was measured.
#[must_use]
pub fn rule(parallel: &[(u32, f64)], sequential_pair_cycles: f64) -> Outcome<f64> {
    let mut table: Vec<(u32, f64)> = parallel
        .iter()
        .copied()
        .filter(|(loads, cycles)| *loads >= 2 && cycles.is_finite())
        .collect();
    table.sort_by_key(|(loads, _)| *loads);
    if table.is_empty() {
        return Outcome::missing("no parallel loads were measured");
    }
    if !sequential_pair_cycles.is_finite() || sequential_pair_cycles <= 0.0 {
        return Outcome::missing("the time of two sequential loads is not known");
    }
    let times: Vec<f64> = table.iter().map(|(_, cycles)| *cycles).collect();
    let times = isotonic_median(&times);
    let Some(first) = times
        .iter()
        .position(|time| *time >= sequential_pair_cycles)
    else {
        let most = table.last().map_or(0, |(loads, _)| *loads);
        return Outcome::missing_with(
            format!(
                "{most} loads at once still take less time than two in sequence: more than {most}"
            ),
            "measure with more loads (`--loads`)",
        );
    };
    if first == 0 {
        let fewest = table[0].0;
        // Without a smaller N there is nothing to interpolate from, unless this one is
        // the crossing itself.
        if fewest > 2 && times[0] > 1.02 * sequential_pair_cycles {
            return Outcome::missing_with(
                format!(
                    "{fewest} loads at once, the fewest measured, take longer than two in \
                     sequence: less than {}",
                    fewest - 1
                ),
                "measure with fewer loads (`--loads`)",
            );
        }
        return Outcome::Known(f64::from(fewest - 1));
    }
    let (below, above) = (times[first - 1], times[first]);
    let fraction = (sequential_pair_cycles - below) / (above - below);
    let (from, to) = (f64::from(table[first - 1].0), f64::from(table[first].0));
    Outcome::Known(from + fraction * (to - from) - 1.0)
}

/// The largest parallelism that parallel chases reached: latency of one chain ÷ time per
/// load.
///
/// A point that claims more than its own number of chains (a disturbed single chain as the
/// reference makes such points) is left out. Missing without a usable point.
#[must_use]
pub fn throughput(points: &[ThroughputPoint]) -> Outcome<f64> {
    points
        .iter()
        .filter(|point| {
            point.chains >= 1
                && point.parallelism.is_finite()
                && point.parallelism > 0.0
                && point.parallelism <= f64::from(point.chains) * 1.05
        })
        .map(|point| point.parallelism)
        .max_by(f64::total_cmp)
        .map_or_else(
            || Outcome::missing("no parallel chases were measured"),
            Outcome::Known,
        )
}

/// Fits T(n) = n·M + C to (n, cycles) of sequential loads (chapter 3.2 of the document).
///
/// Missing with fewer than three different n: two leave no error to state.
#[must_use]
pub fn sequential_fit(series: &[(u32, f64)]) -> Outcome<SequentialFit> {
    let points: Vec<(f64, f64)> = series
        .iter()
        .filter(|(_, cycles)| cycles.is_finite())
        .map(|(loads, cycles)| (f64::from(*loads), *cycles))
        .collect();
    match robust_line(&points) {
        Some(line) => Outcome::Known(SequentialFit {
            load_cycles: line.slope,
            load_error: line.slope_error,
            overhead_cycles: line.intercept,
            overhead_error: line.intercept_error,
        }),
        None => Outcome::missing_with(
            "a line with errors needs at least three lengths of sequential loads",
            "measure n = 1…12",
        ),
    }
}

/// Finds the step in (K, cycles): the split into two runs with the smallest sum of
/// distances from their medians.
///
/// `None` where there is no step: fewer than two points on a side, or a height below
/// a tenth of the lower side or below four times the scatter around the two medians.
#[must_use]
pub fn cliff(points: &[(u32, f64)]) -> Option<Cliff> {
    let mut sorted: Vec<(u32, f64)> = points
        .iter()
        .copied()
        .filter(|(_, cycles)| cycles.is_finite())
        .collect();
    sorted.sort_by_key(|(fillers, _)| *fillers);
    let cycles: Vec<f64> = sorted.iter().map(|(_, cycles)| *cycles).collect();
    let distance = |side: &[f64]| {
        median(side).map_or(f64::INFINITY, |middle| {
            side.iter().map(|value| (value - middle).abs()).sum()
        })
    };
    let split = (2..cycles.len().checked_sub(1)?).min_by(|a, b| {
        let cost = |at: usize| distance(&cycles[..at]) + distance(&cycles[at..]);
        cost(*a).total_cmp(&cost(*b))
    })?;
    let (inside, outside) = (median(&cycles[..split])?, median(&cycles[split..])?);
    let residuals: Vec<f64> = cycles
        .iter()
        .enumerate()
        .map(|(index, value)| value - if index < split { inside } else { outside })
        .collect();
    let scatter = robust_sigma(&residuals)?;
    (outside - inside > (0.1 * inside).max(4.0 * scatter)).then(|| Cliff {
        inside_fillers: sorted[split - 1].0,
        outside_fillers: sorted[split].0,
        inside_cycles: inside,
        outside_cycles: outside,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use membound_types::{Filler, Samples};

    /// The printed pairs of document 000, chapter by chapter, and what the document says
    /// comes of them.
    #[test]
    fn the_documents_own_figures_give_the_documents_answers() {
        let check = |what: &str, table: &[(u32, f64)], pair: f64, low: f64, high: f64| {
            let found = *rule(table, pair).known().expect(what);
            assert!(
                found >= low - 1e-9 && found <= high + 1e-9,
                "{what}: {found} is not in {low}…{high}"
            );
        };
        check(
            "chapter 1",
            &[(2, 220.0), (10, 340.0), (11, 420.0)],
            420.0,
            10.0,
            10.0,
        );
        check(
            "chapter 2, THP off",
            &[(5, 495.0), (6, 565.0)],
            520.0,
            4.0,
            5.0,
        );
        check(
            "chapter 3, H0G0",
            &[(10, 340.0), (11, 425.0)],
            420.0,
            9.9,
            10.0,
        );
        check(
            "chapter 3, H0G1",
            &[(4, 630.0), (5, 690.0)],
            650.0,
            3.0,
            4.0,
        );
        check(
            "chapter 3, H1G1",
            &[(4, 725.0), (5, 825.0)],
            800.0,
            3.0,
            4.0,
        );
        check("chapter 3, H1G0", &[(4, 600.0)], 600.0, 3.0, 3.0);
        check(
            "chapter 3, H1G0 with N = 3",
            &[(3, 540.0), (4, 600.0)],
            600.0,
            3.0,
            3.0,
        );
        check(
            "chapter 4",
            &[(2, 320.0), (10, 450.0), (12, 540.0)],
            540.0,
            11.0,
            11.0,
        );
    }

    #[test]
    fn the_rule_survives_a_disturbed_cell_and_says_when_no_n_reaches_the_pair() {
        let mut table: Vec<(u32, f64)> =
            (2..=24).map(|n| (n, 200.0 + 20.0 * f64::from(n))).collect();
        table[3].1 = 2000.0;
        let found = *rule(&table, 420.0).known().unwrap();
        assert!((found - 10.0).abs() < 1e-9, "{found}");
        let missing = rule(&table, 5000.0);
        let reason = &missing.why_missing().unwrap().reason;
        assert!(reason.contains("more than 24"), "{reason}");
        let missing = rule(&[(6, 900.0), (8, 1000.0)], 420.0);
        let reason = &missing.why_missing().unwrap().reason;
        assert!(reason.contains("less than 5"), "{reason}");
        assert!(rule(&[], 100.0).known().is_none());
        assert!(rule(&table, f64::NAN).known().is_none());
    }

    #[test]
    fn loads_that_never_overlap_have_a_parallelism_of_one() {
        assert_eq!(rule(&[(2, 400.0), (3, 600.0)], 400.0), Outcome::Known(1.0));
    }

    fn cell(loads: u32, fillers: u32, cycles: f64) -> MlpCell {
        MlpCell {
            mode: MlpMode::Parallel,
            loads,
            fillers,
            filler: Filler::Nop,
            area_bytes: 1 << 28,
            node: NodePolicy::LOCAL,
            page: PageKind::Thp,
            cycles,
            spread: 1.0,
            misses: Outcome::missing("no counters"),
        }
    }

    #[test]
    fn the_table_takes_the_fewest_fillers_of_each_n_and_one_condition_only() {
        let mut cells = vec![
            cell(3, 50, 300.0),
            cell(3, 1, 260.0),
            cell(2, 1, 220.0),
            cell(2, 400, 420.0),
        ];
        let mut remote = cell(2, 0, 999.0);
        remote.node = NodePolicy::INTERLEAVE;
        cells.push(remote);
        let table = rule_table(&cells, PageKind::Thp, NodePolicy::LOCAL, 1 << 28);
        assert_eq!(table, [(2, 220.0), (3, 260.0)]);
    }

    #[test]
    fn throughput_takes_the_most_that_is_possible() {
        let point = |chains: u32, parallelism: f64| ThroughputPoint {
            chains,
            cycles_per_load: 100.0,
            parallelism,
            batches: Samples::default(),
        };
        let points = [
            point(1, 1.0),
            point(2, 4.0),
            point(8, 7.5),
            point(64, 31.0),
            point(96, 30.0),
        ];
        assert_eq!(throughput(&points), Outcome::Known(31.0));
        assert!(throughput(&[]).known().is_none());
    }

    #[test]
    fn sequential_loads_give_one_load_and_the_overhead() {
        let series: Vec<(u32, f64)> = (1..=12)
            .map(|n| {
                (
                    n,
                    45.0 + 290.0 * f64::from(n) + if n % 3 == 0 { 2.0 } else { -1.0 },
                )
            })
            .collect();
        let fit = sequential_fit(&series);
        let fit = fit.known().unwrap();
        assert!(
            (fit.load_cycles - 290.0).abs() < 3.0 * fit.load_error,
            "{fit:?}"
        );
        assert!(
            (fit.overhead_cycles - 45.0).abs() < 3.0 * fit.overhead_error,
            "{fit:?}"
        );
        assert!(
            fit.overhead_error > 0.1 && fit.overhead_error < 3.0,
            "{fit:?}"
        );
        assert!(sequential_fit(&series[..2]).known().is_none());
    }

    #[test]
    fn the_cliff_is_bracketed_and_noise_is_no_cliff() {
        let mut points: Vec<(u32, f64)> = (0..=210)
            .step_by(6)
            .map(|k| (k, if k <= 186 { 220.0 } else { 420.0 } + f64::from(k % 7)))
            .collect();
        points[4].1 = 900.0;
        let found = cliff(&points).unwrap();
        assert_eq!((found.inside_fillers, found.outside_fillers), (186, 192));
        assert!((found.outside_cycles / found.inside_cycles - 1.9).abs() < 0.1);
        let flat: Vec<(u32, f64)> = (0..40)
            .map(|k| (k, 200.0 + f64::from(k * 37 % 11)))
            .collect();
        assert_eq!(cliff(&flat), None);
        assert_eq!(cliff(&points[..2]), None);
    }
}
