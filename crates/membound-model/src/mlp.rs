//! Memory-level parallelism from the N × K plane, by the rule of document 000 (IIT Delhi,
//! Experiments on memory level parallelism, 2018), and from parallel chases.
//!
//! Times are core clock cycles. Nothing here depends on the CPU that they come from.

#[cfg(test)]
pub(crate) mod document_000;
mod run;
mod sequence;

use membound_types::{
    Basis, Figure, MlpCell, MlpMode, NodePolicy, Outcome, PageKind, RuleBracket, RuleTime,
    ThroughputPoint,
};

pub(crate) use run::Run;
pub use sequence::{sequential_fit, two_point_line};

use crate::stats::{isotonic_median, median, median_error, robust_sigma};

/// Half the width of a 95 % interval in standard deviations of a normal distribution.
pub(crate) const NORMAL_95: f64 = 1.96;

/// `value` with an interval of `half_width` on each side.
pub(crate) const fn around(value: f64, half_width: f64) -> Figure {
    Figure {
        value,
        low: value - half_width,
        high: value + half_width,
        basis: Basis::Estimated,
    }
}

/// The time of N parallel loads with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RulePoint {
    /// Number of parallel loads, N.
    pub loads: u32,
    /// Time of all loads in core clock cycles.
    pub cycles: f64,
    /// Half the width of the 95 % interval of `cycles`; 0 if unknown.
    pub half_width: f64,
}

impl From<(u32, f64)> for RulePoint {
    fn from((loads, cycles): (u32, f64)) -> Self {
        Self {
            loads,
            cycles,
            half_width: 0.0,
        }
    }
}

/// Result of the document's rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleReading {
    /// The parallelism, interpolated between two N.
    pub parallelism: f64,
    /// The parallelism with its 95 % interval, or why the interval is unknown.
    pub interval: Outcome<Figure>,
    /// The two N between which the time of two sequential loads lies.
    pub between: RuleBracket,
}

/// The parallel cells of one condition that the rule uses: (N, cycles) at the smallest K
/// measured for each N, in order of N.
///
/// With the fewest fillers all N loads are certainly inside the reorder buffer. A
/// cell that was measured several times counts by its median.
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

/// [`rule_table`] with the error of each cell.
///
/// From eight N on the error is the scatter of the times around the line between their
/// neighbours, as a share of the time: this is how far two cells of the same machine
/// differ, for any reason. With fewer N, the spread of a cell's own batches replaces its standard
/// error; it is wider, because a cell is a median of many batches.
#[must_use]
pub fn rule_points(
    cells: &[MlpCell],
    page: PageKind,
    node: NodePolicy,
    area_bytes: u64,
) -> Vec<RulePoint> {
    let table = rule_table(cells, page, node, area_bytes);
    let scatter = neighbour_scatter(&table);
    let spread = |loads| parallel_spread(cells, page, node, area_bytes, loads).unwrap_or(0.0);
    table
        .iter()
        .map(|&(loads, cycles)| RulePoint {
            loads,
            cycles,
            half_width: NORMAL_95 * scatter.map_or_else(|| spread(loads), |share| share * cycles),
        })
        .collect()
}

/// Spread in cycles of the parallel cells of `loads` with the fewest fillers.
fn parallel_spread(
    cells: &[MlpCell],
    page: PageKind,
    node: NodePolicy,
    area_bytes: u64,
    loads: u32,
) -> Option<f64> {
    let of_n = cells.iter().filter(|cell| {
        cell.mode == MlpMode::Parallel
            && cell.loads == loads
            && cell.page == page
            && cell.node == node
            && cell.area_bytes == area_bytes
            && cell.spread.is_finite()
    });
    of_n.min_by_key(|cell| cell.fillers).map(|cell| cell.spread)
}

/// Relative standard deviation of the times, from their distances to the
/// line between their neighbours. `None` with fewer than eight N.
fn neighbour_scatter(table: &[(u32, f64)]) -> Option<f64> {
    const MIN_POINTS: usize = 8;
    if table.len() < MIN_POINTS {
        return None;
    }
    let distances: Vec<f64> = table
        .windows(3)
        .filter_map(|three| {
            let [before, here, after] = three else {
                return None;
            };
            let place = f64::from(here.0 - before.0) / f64::from(after.0 - before.0);
            let expected = before.1 + place * (after.1 - before.1);
            // The variance of the point plus the variance of the interpolation, for equal variances.
            let widening = (1.0 + place.powi(2) + (1.0 - place).powi(2)).sqrt();
            (here.1 > 0.0).then(|| (here.1 - expected) / (widening * here.1))
        })
        .collect();
    robust_sigma(&distances)
}

/// The document's rule: the first N whose time reaches that of two sequential loads, minus one,
/// interpolated between two N, with its interval and the two N that it lies between.
///
/// `parallel` holds the times of N loads; `pair_half_width` is half the 95 % interval of the time
/// of two sequential loads. More loads never take less time, so the times are first made monotone,
/// which removes single perturbed cells. Missing if no N reaches the time (then the parallelism
/// is at least the largest N), or if nothing was measured.
///
/// The interval contains every parallelism at which the times and the time of the pair agree
/// within their errors: all times are raised, then lowered, by the two half widths added in
/// quadrature, and the rule is applied again (inverse regression). If the lowered times no
/// longer reach the pair, the interval is missing and the reason contains its lower end.
#[must_use]
pub fn read_rule(
    parallel: &[RulePoint],
    sequential_pair_cycles: f64,
    pair_half_width: f64,
) -> Outcome<RuleReading> {
    let mut table: Vec<RulePoint> = parallel
        .iter()
        .copied()
        .filter(|point| point.loads >= 2 && point.cycles.is_finite())
        .collect();
    table.sort_by_key(|point| point.loads);
    let (Some(fewest), Some(most)) = (table.first(), table.last()) else {
        return Outcome::missing("no parallel loads were measured");
    };
    let (fewest, most) = (fewest.loads, most.loads);
    if !sequential_pair_cycles.is_finite() || sequential_pair_cycles <= 0.0 {
        return Outcome::missing("the time of two sequential loads is not known");
    }
    let times = monotone(&table, 0.0, pair_half_width);
    let Some((parallelism, first)) = crossing(&table, &times, sequential_pair_cycles) else {
        return Outcome::missing_with(
            format!(
                "{most} loads at once still take less time than two in sequence: more than {most}"
            ),
            "measure with more loads (`--loads`)",
        );
    };
    // Without a smaller N there is nothing to interpolate from, unless the smallest N is the
    // crossing itself.
    if first == 0 && fewest > 2 && times[0] > 1.02 * sequential_pair_cycles {
        return Outcome::missing_with(
            format!(
                "{fewest} loads at once, the fewest measured, take longer than two in \
                 sequence: less than {}",
                fewest - 1
            ),
            "measure with fewer loads (`--loads`)",
        );
    }
    let at = |index: usize| RuleTime {
        loads: table[index].loads,
        cycles: times[index],
    };
    Outcome::Known(RuleReading {
        parallelism,
        interval: rule_interval(&table, parallelism, sequential_pair_cycles, pair_half_width),
        between: RuleBracket {
            below: first.checked_sub(1).map(at),
            reached: at(first),
        },
    })
}

/// The times of `table`, raised by `by` times their half widths and the pair's, and made monotone.
fn monotone(table: &[RulePoint], by: f64, pair_half_width: f64) -> Vec<f64> {
    let times: Vec<f64> = table
        .iter()
        .map(|point| {
            point.cycles + by * half_width(point.half_width).hypot(half_width(pair_half_width))
        })
        .collect();
    isotonic_median(&times)
}

/// The interval of `parallelism` by inverse regression.
fn rule_interval(
    table: &[RulePoint],
    parallelism: f64,
    pair: f64,
    pair_half_width: f64,
) -> Outcome<Figure> {
    let raised = monotone(table, 1.0, pair_half_width);
    let low = match crossing(table, &raised, pair) {
        // No smaller N was measured, so the lower end is the least possible parallelism.
        Some((_, 0)) if raised[0] > pair => 1.0,
        Some((low, _)) => low.min(parallelism),
        None => parallelism,
    };
    let lowered = monotone(table, -1.0, pair_half_width);
    match crossing(table, &lowered, pair) {
        Some((high, _)) => Outcome::Known(Figure {
            value: parallelism,
            low,
            high: high.max(parallelism),
            basis: Basis::Estimated,
        }),
        None => Outcome::missing_with(
            format!(
                "from {low:.1} to more than {}: the interval ends beyond the loads measured",
                table.last().map_or(0, |point| point.loads)
            ),
            "measure with more loads (`--loads`)",
        ),
    }
}

/// The crossing of monotone `times` with `pair`: N − 1 interpolated, and the index of the first
/// N at or above `pair`. `None` if no time reaches it.
fn crossing(table: &[RulePoint], times: &[f64], pair: f64) -> Option<(f64, usize)> {
    let first = times.iter().position(|time| *time >= pair)?;
    let to = f64::from(table[first].loads);
    let parallelism = match first.checked_sub(1) {
        None => to - 1.0,
        Some(below) => {
            let from = f64::from(table[below].loads);
            let fraction = (pair - times[below]) / (times[first] - times[below]);
            from + fraction * (to - from) - 1.0
        }
    };
    Some((parallelism, first))
}

/// `value` as a half width; 0 if it is not finite.
fn half_width(value: f64) -> f64 {
    if value.is_finite() { value.abs() } else { 0.0 }
}

/// The largest parallelism among the points of parallel chases: latency of one chain ÷ time per
/// load.
///
/// Points with more parallelism than chains, plus 5 %, are excluded: a disturbed single chain as
/// the reference produces such points. Missing without a usable point.
#[must_use]
pub fn throughput(points: &[ThroughputPoint]) -> Outcome<f64> {
    most_parallel(points).map_or_else(
        || Outcome::missing("no parallel chases were measured"),
        |point| Outcome::Known(point.parallelism),
    )
}

/// [`throughput`] with its 95 % interval: the interval of the quotient of two medians, from the
/// scatter of their batches. Missing if one of them has too few batches.
#[must_use]
pub fn throughput_interval(points: &[ThroughputPoint]) -> Outcome<Figure> {
    let Some(best) = most_parallel(points) else {
        return Outcome::missing("no parallel chases were measured");
    };
    let error = |point: &ThroughputPoint| {
        let middle = median(&point.batches.raw).filter(|middle| *middle > 0.0)?;
        median_error(&point.batches.raw).map(|error| error / middle)
    };
    let alone = points.iter().find(|point| point.chains == 1);
    let errors = alone.and_then(error).zip(error(best));
    errors.map_or_else(
        || Outcome::missing("too few batches of the chases say how far they scatter"),
        |(alone, best_error)| {
            // The parallelism of one chain is 1 by definition, so it has no error.
            let relative = if best.chains == 1 {
                0.0
            } else {
                alone.hypot(best_error)
            };
            let half_width = NORMAL_95 * relative * best.parallelism;
            Outcome::Known(around(best.parallelism, half_width))
        },
    )
}

/// The point that gives [`throughput`].
fn most_parallel(points: &[ThroughputPoint]) -> Option<&ThroughputPoint> {
    points
        .iter()
        .filter(|point| {
            point.chains >= 1
                && point.parallelism.is_finite()
                && point.parallelism > 0.0
                && point.parallelism <= f64::from(point.chains) * 1.05
        })
        .max_by(|one, other| one.parallelism.total_cmp(&other.parallelism))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use membound_types::{Filler, Samples};

    #[test]
    fn the_interval_holds_the_truth_and_names_the_two_n() {
        let mut random = Random::new(11);
        let mut inside = 0;
        for _ in 0..400 {
            let sigma = 4.0;
            let cells: Vec<MlpCell> = (2..=24)
                .map(|n| cell(n, 0, 200.0 + 20.0 * f64::from(n) + sigma * random.normal()))
                .collect();
            let points = rule_points(&cells, PageKind::Thp, NodePolicy::LOCAL, 1 << 28);
            let pair = 430.0 + sigma * random.normal();
            let found = read_rule(&points, pair, 1.96 * sigma);
            let found = found.known().unwrap();
            let interval = found.interval.known().unwrap();
            assert!(interval.low <= interval.value && interval.value <= interval.high);
            assert!(interval.high - interval.low < 3.0, "{interval:?}");
            if interval.low <= 10.5 && 10.5 <= interval.high {
                inside += 1;
            }
        }
        assert!(inside >= 372, "{inside} of 400");

        let exact: Vec<RulePoint> = (2..=24)
            .map(|n| RulePoint::from((n, 200.0 + 20.0 * f64::from(n))))
            .collect();
        let found = read_rule(&exact, 430.0, 0.0);
        let found = found.known().unwrap();
        assert_eq!(found.between.below.unwrap().loads, 11);
        assert_eq!(found.between.reached.loads, 12);
        assert_eq!(found.between.reached.cycles, 440.0);
        let interval = found.interval.known().unwrap();
        assert_eq!((interval.low, interval.high), (10.5, 10.5));
    }

    #[test]
    fn an_interval_beyond_the_loads_measured_is_no_figure() {
        let points = [(2, 300.0), (4, 340.0), (6, 420.0)].map(|pair| RulePoint {
            half_width: 30.0,
            ..RulePoint::from(pair)
        });
        let found = read_rule(&points, 415.0, 0.0);
        let found = found.known().unwrap();
        assert!((found.parallelism - 4.875).abs() < 1e-9);
        let reason = &found.interval.why_missing().unwrap().reason;
        assert!(reason.contains("from 4.1 to more than 6"), "{reason}");
        // If the only N just reaches the time of two in sequence, its parallelism has no lower limit.
        let lone = [RulePoint {
            loads: 4,
            cycles: 600.0,
            half_width: 20.0,
        }];
        let found = read_rule(&lone, 590.0, 0.0);
        let found = found.known().unwrap();
        assert_eq!(found.parallelism, 3.0);
        assert_eq!(found.between.below, None);
        assert!(found.interval.known().is_none());
    }

    #[test]
    fn the_rule_survives_a_perturbed_cell_and_reports_an_unreached_pair() {
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

    fn rule(parallel: &[(u32, f64)], sequential_pair_cycles: f64) -> Outcome<f64> {
        let points: Vec<RulePoint> = parallel.iter().copied().map(RulePoint::from).collect();
        read_rule(&points, sequential_pair_cycles, 0.0).map(|reading| reading.parallelism)
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
        let why = throughput_interval(&points);
        assert!(
            why.why_missing()
                .unwrap()
                .reason
                .contains("too few batches")
        );
    }

    #[test]
    fn the_interval_of_the_throughput_holds_the_truth() {
        let mut random = Random::new(31);
        let inside = (0..400)
            .filter(|_| {
                let mut point = |chains: u32, cycles: f64, alone: f64| {
                    let raw: Vec<f64> = (0..9)
                        .map(|_| cycles * (1.0 + 0.02 * random.normal()))
                        .collect();
                    let cycles_per_load = median(&raw).unwrap();
                    ThroughputPoint {
                        chains,
                        cycles_per_load,
                        parallelism: alone / cycles_per_load,
                        batches: Samples {
                            raw,
                            ..Samples::default()
                        },
                    }
                };
                let alone = point(1, 400.0, 400.0);
                let many = point(64, 20.0, alone.cycles_per_load);
                let points = [
                    ThroughputPoint {
                        parallelism: 1.0,
                        ..alone
                    },
                    many,
                ];
                let found = throughput_interval(&points);
                let found = found.known().unwrap();
                assert!(found.high - found.low < 2.0, "{found:?}");
                found.low <= 20.0 && 20.0 <= found.high
            })
            .count();
        // The median's error is itself estimated from nine batches.
        assert!(inside >= 340, "{inside} of 400");
    }
}
