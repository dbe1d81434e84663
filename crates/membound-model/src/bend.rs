//! Tests whether values that should lie on a straight line bend, and where.
//!
//! The model is y = a + b·x up to the bend and another slope beyond it, continuous at the bend (a
//! linear spline with one knot). Only measured x values are tried as the knot; the change of slope
//! is tested with Student's t, and its probability is multiplied by the number of knots tried
//! (Bonferroni), so that a straight line rarely passes as a bent one.

use nalgebra::{DMatrix, DVector, Matrix3, Vector3};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::stats::{median, robust_sigma};

/// Fewest values in which [`find`] looks for a bend.
const MIN_POINTS: usize = 6;

/// One of the two straight parts of a bent line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Change of y per unit of x.
    pub slope: f64,
    /// Standard error of `slope`.
    pub slope_error: f64,
    /// Value of the part, extended to x = 0.
    pub intercept: f64,
    /// Standard error of `intercept`.
    pub intercept_error: f64,
}

/// A line with one bend, fitted by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bend {
    /// The x value of the bend.
    pub at: f64,
    /// The part up to `at`.
    pub before: Part,
    /// The part beyond `at`.
    pub after: Part,
    /// Standard deviation of the values around both parts.
    pub scatter: f64,
    /// Probability that noise alone makes a straight line bend at least this much, times the knots tried.
    pub p_value: f64,
    /// Number of values used in the fit.
    pub points: usize,
    /// Number of values excluded because they lie far off both parts.
    pub left_out: usize,
}

/// The bend that fits `points` (x, y) best, however slight: judge it by [`Bend::p_value`].
///
/// `None` with fewer than six values or four distinct x values.
#[must_use]
pub fn find(points: &[(f64, f64)]) -> Option<Bend> {
    if points.len() < MIN_POINTS {
        return None;
    }
    let mut places: Vec<f64> = points.iter().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    // Each part needs two distinct x values; the knot counts for the first part.
    let knots = places.get(1..places.len().saturating_sub(2))?;
    let (knot, coefficients) = knots
        .iter()
        .filter_map(|knot| {
            let found = least_absolute(points, *knot)?;
            let cost: f64 = residuals(points, *knot, &found)
                .iter()
                .map(|it| it.abs())
                .sum();
            Some((cost, *knot, found))
        })
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, knot, found)| (knot, found))?;
    let kept = undisturbed(points, &residuals(points, knot, &coefficients));
    let bend = least_squares(&kept, knot)?;
    Some(Bend {
        p_value: (bend.p_value * knots.len() as f64).min(1.0),
        left_out: points.len() - kept.len(),
        ..bend
    })
}

/// Basis functions at `x`: the factors of the three coefficients.
fn terms(x: f64, knot: f64) -> Vector3<f64> {
    Vector3::new(1.0, x, (x - knot).max(0.0))
}

fn residuals(points: &[(f64, f64)], knot: f64, coefficients: &Vector3<f64>) -> Vec<f64> {
    points
        .iter()
        .map(|(x, y)| y - terms(*x, knot).dot(coefficients))
        .collect()
}

/// Fits the least absolute residuals by iterated weights, so that one disturbed value makes no bend.
fn least_absolute(points: &[(f64, f64)], knot: f64) -> Option<Vector3<f64>> {
    const ROUNDS: usize = 25;
    let largest = points.iter().map(|point| point.1.abs()).fold(0.0, f64::max);
    let least = (largest * 1e-6).max(f64::MIN_POSITIVE);
    let mut weights = vec![1.0; points.len()];
    let mut found = None;
    for _ in 0..ROUNDS {
        let mut normal = Matrix3::zeros();
        let mut right = Vector3::zeros();
        for ((x, y), weight) in points.iter().zip(&weights) {
            let row = terms(*x, knot);
            normal += row * row.transpose() * *weight;
            right += row * (*y * *weight);
        }
        let solved = normal.lu().solve(&right)?;
        weights = residuals(points, knot, &solved)
            .iter()
            .map(|residual| 1.0 / residual.abs().max(least))
            .collect();
        found = Some(solved);
    }
    found
}

/// The points whose residuals are not outliers, by the same limit as in `robust_line`.
fn undisturbed(points: &[(f64, f64)], residuals: &[f64]) -> Vec<(f64, f64)> {
    let largest = points.iter().map(|point| point.1.abs()).fold(0.0, f64::max);
    let middle = median(residuals).unwrap_or(0.0);
    let sigma = robust_sigma(residuals).unwrap_or(0.0);
    let limit = (4.0 * sigma).max(0.01 * largest);
    points
        .iter()
        .zip(residuals)
        .filter(|(_, residual)| (*residual - middle).abs() <= limit)
        .map(|(point, _)| *point)
        .collect()
}

/// Ordinary least squares with the usual standard errors; `p_value` is for this one knot.
fn least_squares(points: &[(f64, f64)], knot: f64) -> Option<Bend> {
    let freedom = points.len().checked_sub(3).filter(|freedom| *freedom > 0)?;
    let rows = DMatrix::from_fn(points.len(), 3, |row, column| {
        terms(points[row].0, knot)[column]
    });
    let values = DVector::from_iterator(points.len(), points.iter().map(|point| point.1));
    let inverse = (rows.transpose() * &rows).try_inverse()?;
    let found = &inverse * rows.transpose() * &values;
    let variance = (&values - &rows * &found).norm_squared() / freedom as f64;
    // Standard error of the sum of the coefficients, each multiplied by its factor.
    let error = |factors: [f64; 3]| {
        let factors = DVector::from_row_slice(&factors);
        let square = (factors.transpose() * &inverse * &factors)[(0, 0)];
        (variance * square).max(0.0).sqrt()
    };
    let change = found[2];
    let student = StudentsT::new(0.0, 1.0, freedom as f64).ok()?;
    let p_value = match error([0.0, 0.0, 1.0]) {
        error if error > 0.0 => 2.0 * student.cdf(-(change / error).abs()),
        _ if change.abs() > 0.0 => 0.0,
        _ => 1.0,
    };
    Some(Bend {
        at: knot,
        before: Part {
            slope: found[1],
            slope_error: error([0.0, 1.0, 0.0]),
            intercept: found[0],
            intercept_error: error([1.0, 0.0, 0.0]),
        },
        after: Part {
            slope: found[1] + change,
            slope_error: error([0.0, 1.0, 1.0]),
            intercept: found[0] - change * knot,
            intercept_error: error([1.0, 0.0, -knot]),
        },
        scatter: variance.sqrt(),
        p_value,
        points: points.len(),
        left_out: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn bent(at: f64, before: f64, after: f64, x: f64) -> f64 {
        40.0 + before * x.min(at) + after * (x - at).max(0.0)
    }

    fn series(noise: f64, random: &mut Random, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (1..=12)
            .map(|n| (f64::from(n), value(f64::from(n)) + noise * random.normal()))
            .collect()
    }

    #[test]
    fn a_straight_line_is_rarely_mistaken_for_a_bent_one() {
        let mut random = Random::new(21);
        let bent = (0..2000)
            .filter(|_| {
                let points = series(8.0, &mut random, |n| 45.0 + 290.0 * n);
                find(&points).unwrap().p_value < 0.01
            })
            .count();
        // The level is 1 %; excluding outliers raises the rate of false bends somewhat.
        assert!(bent <= 60, "{bent} of 2000");
    }

    #[test]
    fn a_bend_is_found_where_it_is_with_the_slopes_of_its_parts() {
        let mut random = Random::new(22);
        for at in [2.0, 4.0, 7.0, 10.0] {
            let (mut places, mut slopes) = (0, 0);
            for _ in 0..200 {
                let points = series(6.0, &mut random, |n| bent(at, 290.0, 340.0, n));
                let found = find(&points).unwrap();
                let near = (found.at - at).abs() <= 1.0 && found.p_value < 0.01;
                places += i32::from(near);
                slopes += i32::from((found.after.slope - 340.0).abs() < 15.0 + 10.0 * (at - 2.0));
            }
            assert!(places >= 170, "{places} of 200 at {at}");
            assert!(slopes >= 190, "{slopes} of 200 at {at}");
        }
        let exact: Vec<(f64, f64)> = (1..=12)
            .map(|n| (f64::from(n), bent(4.0, 580.0, 655.0, f64::from(n))))
            .collect();
        let found = find(&exact).unwrap();
        assert_eq!(found.at, 4.0);
        assert!(found.p_value < 1e-6, "{found:?}");
        for (value, truth) in [
            (found.before.slope, 580.0),
            (found.before.intercept, 40.0),
            (found.after.slope, 655.0),
            (found.after.intercept, 40.0 - 4.0 * 75.0),
        ] {
            assert!((value - truth).abs() < 1e-3, "{found:?}");
        }
    }

    #[test]
    fn a_disturbed_value_is_left_out_and_makes_no_bend() {
        let mut random = Random::new(23);
        let mut points = series(3.0, &mut random, |n| 45.0 + 290.0 * n);
        points[8].1 += 700.0;
        let found = find(&points).unwrap();
        assert_eq!((found.points, found.left_out), (11, 1));
        assert!(found.p_value > 0.01, "{found:?}");
        assert_eq!(find(&points[..5]), None);
    }
}
