//! Prepares the points of a curve: sorts them, estimates an error of each, and removes outliers.

use crate::stats::{MAD_TO_SIGMA, median};

use super::input::CurvePoint;

/// Least error of ln(ns): buffers of neighbouring sizes lie differently in sets and pages.
const MIN_SIGMA: f64 = 0.01;

/// Least scatter of ln(ns): sizes are whole bytes and times have few digits.
const MIN_SCATTER: f64 = 0.003;

/// Largest error of ln(ns): a point with a larger one is wrong rather than noisy, and must not turn
/// the points around it into a plateau.
const MAX_SIGMA: f64 = 0.08;

/// Least rise above the following points that makes a point an outlier, in ln(ns).
const MIN_OUTLIER_RISE_LN: f64 = 0.10;

/// A point in log-log space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prepared {
    pub(crate) size_bytes: u64,
    /// log₂ of the size in bytes.
    pub(crate) octave: f64,
    /// ln of the latency in nanoseconds.
    pub(crate) log_ns: f64,
    /// Standard error of `log_ns`.
    pub(crate) sigma: f64,
}

/// A prepared curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Points in order of size, one per size.
    pub(crate) points: Vec<Prepared>,
    /// Sizes of the points that were removed.
    pub(crate) outliers: Vec<u64>,
    /// Scatter of ln(ns) about the trend of the neighbours, over the whole curve.
    pub(crate) scatter: f64,
}

/// Sorts the points, merges those of one size, removes outliers and estimates errors.
pub(crate) fn prepare(curve: &[CurvePoint]) -> Curve {
    let mut sorted: Vec<&CurvePoint> = curve
        .iter()
        .filter(|point| point.size_bytes > 0 && point.ns.is_finite() && point.ns > 0.0)
        .collect();
    sorted.sort_by_key(|point| point.size_bytes);
    let mut points: Vec<Prepared> = sorted
        .chunk_by(|a, b| a.size_bytes == b.size_bytes)
        .map(|same| {
            let logs: Vec<f64> = same.iter().map(|point| point.ns.ln()).collect();
            let half: Vec<f64> = same.iter().map(|point| half_width(point)).collect();
            Prepared {
                size_bytes: same[0].size_bytes,
                octave: (same[0].size_bytes as f64).log2(),
                log_ns: median(&logs).unwrap_or(logs[0]),
                sigma: median(&half).unwrap_or(0.0) / 1.96,
            }
        })
        .collect();
    let outliers = drop_outliers(&mut points);
    let scatter = scatter(&points);
    let rough = roughness(&points);
    for (point, rough) in points.iter_mut().zip(rough) {
        point.sigma = point.sigma.max(rough).clamp(MIN_SIGMA, MAX_SIGMA);
    }
    Curve {
        points,
        outliers,
        scatter,
    }
}

/// Half the relative width of a point's interval; 0 if it has none.
fn half_width(point: &CurvePoint) -> f64 {
    let half = (point.ns_high - point.ns_low) / 2.0 / point.ns;
    if half.is_finite() { half.max(0.0) } else { 0.0 }
}

/// Removes points above the following ones, or below the preceding and following ones, by more
/// than noise; returns their sizes. The reference is the median of three neighbours, so that two
/// outliers in a row are found as well.
fn drop_outliers(points: &mut Vec<Prepared>) -> Vec<u64> {
    let rough = median(&roughness(points)).unwrap_or(0.0);
    let limit = MIN_OUTLIER_RISE_LN.max(5.0 * rough.min(MAX_SIGMA));
    let of = |range: &[Prepared]| {
        let logs: Vec<f64> = range.iter().map(|point| point.log_ns).collect();
        median(&logs)
    };
    let wrong: Vec<bool> = (0..points.len())
        .map(|index| {
            let after = &points[index + 1..(index + 4).min(points.len())];
            let before = &points[index.saturating_sub(3)..index];
            let above = after.len() >= 2
                && of(after).is_some_and(|level| points[index].log_ns > level + limit);
            let below = before.len() >= 2
                && of(before).is_some_and(|level| points[index].log_ns < level - limit)
                // A correct point looks low after outliers that are too high.
                && of(after).is_some_and(|level| points[index].log_ns < level - limit);
            above || below
        })
        .collect();
    let mut index = 0;
    let mut dropped = Vec::new();
    points.retain(|point| {
        let keep = !wrong[index];
        if !keep {
            dropped.push(point.size_bytes);
        }
        index += 1;
        keep
    });
    dropped
}

/// Scatter over the whole curve, at least [`MIN_SCATTER`]. A refined curve has many points at its
/// bends, so each point is weighted by the octaves between its neighbours.
fn scatter(points: &[Prepared]) -> f64 {
    let mut known: Vec<(f64, f64)> = deviations(points)
        .into_iter()
        .enumerate()
        .filter(|(_, deviation)| !deviation.is_nan())
        .map(|(index, deviation)| {
            let span = points[index + 1].octave - points[index - 1].octave;
            (deviation, span)
        })
        .collect();
    known.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = known.iter().map(|(_, span)| span).sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let middle = known
        .iter()
        .find(|(_, span)| {
            sum += span;
            sum >= half
        })
        .map_or(0.0, |(deviation, _)| *deviation);
    (middle * MAD_TO_SIGMA).max(MIN_SCATTER)
}

/// Distance of each point from the line between its neighbours, as the standard deviation of a
/// point if all had the same; NaN at the ends.
fn deviations(points: &[Prepared]) -> Vec<f64> {
    (0..points.len())
        .map(|index| {
            if index == 0 || index + 1 == points.len() {
                return f64::NAN;
            }
            let (before, here, after) = (points[index - 1], points[index], points[index + 1]);
            let share = (here.octave - before.octave) / (after.octave - before.octave);
            let between = before.log_ns + share * (after.log_ns - before.log_ns);
            // The variance of the point plus the variance of the interpolation, for equal variances.
            let scale = (1.0 + (1.0 - share).powi(2) + share.powi(2)).sqrt();
            (here.log_ns - between).abs() / scale
        })
        .collect()
}

/// Local scatter: the median over nine points of the distance from the line between neighbours.
/// Curvature hardly affects it, an outlier or a step not at all.
fn roughness(points: &[Prepared]) -> Vec<f64> {
    let deviations = deviations(points);
    (0..points.len())
        .map(|index| {
            let window: Vec<f64> = deviations
                [index.saturating_sub(4)..(index + 5).min(deviations.len())]
                .iter()
                .copied()
                .filter(|deviation| !deviation.is_nan())
                .collect();
            median(&window).unwrap_or(0.0) * MAD_TO_SIGMA
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[(u64, f64)]) -> Vec<CurvePoint> {
        values
            .iter()
            .map(|&(size_bytes, ns)| CurvePoint {
                size_bytes,
                ns,
                ns_low: ns * 0.995,
                ns_high: ns * 1.005,
            })
            .collect()
    }

    #[test]
    fn points_are_sorted_merged_and_the_impossible_ignored() {
        let prepared = prepare(&curve(&[
            (4096, 2.0),
            (1024, 1.0),
            (4096, 2.2),
            (4096, 50.0),
            (2048, f64::NAN),
            (0, 1.0),
            (8192, 0.0),
        ]));
        let sizes: Vec<u64> = prepared
            .points
            .iter()
            .map(|point| point.size_bytes)
            .collect();
        assert_eq!(sizes, [1024, 4096]);
        assert!((prepared.points[1].log_ns.exp() - 2.2).abs() < 1e-9);
    }

    #[test]
    fn a_point_above_its_successors_is_left_out_and_a_step_is_not() {
        let mut values: Vec<(u64, f64)> = (0..12).map(|k| (1000 << k, 1.0)).collect();
        values[3].1 = 2.0;
        for value in &mut values[8..] {
            value.1 = 3.0;
        }
        let prepared = prepare(&curve(&values));
        assert_eq!(prepared.outliers, [8000]);
        assert_eq!(prepared.points.len(), 11);
    }

    #[test]
    fn scatter_widens_the_error_and_a_step_does_not() {
        let smooth: Vec<(u64, f64)> = (0..24)
            .map(|k| (1000 + 100 * k, if k < 12 { 1.0 } else { 4.0 }))
            .collect();
        assert!(
            prepare(&curve(&smooth))
                .points
                .iter()
                .all(|point| point.sigma < 0.011)
        );
        let rough: Vec<(u64, f64)> = (0..24)
            .map(|k| {
                (
                    1000 + 100 * k,
                    1.0 + 0.05 * ((k * 7 % 5) as f64 - 2.0) / 2.0,
                )
            })
            .collect();
        let prepared = prepare(&curve(&rough));
        assert!(
            prepared.points[12].sigma > 0.02,
            "{:?}",
            prepared.points[12]
        );
    }
}
