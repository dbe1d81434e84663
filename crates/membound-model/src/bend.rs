//! A line with one bend: whether values that are meant to lie on a line do, and if not,
//! where they leave it.
//!
//! y = a + b·x up to the bend and with another slope beyond it, continuous there (a linear
//! spline with one knot). The knot is searched among the places that were measured; the
//! change of slope is tested with Student's t, its probability multiplied by the number of
//! knots tried (Bonferroni), so that a straight line is rarely taken for a bent one.

use nalgebra::{DMatrix, DVector, Matrix3, Vector3};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::stats::{median, robust_sigma};

/// Fewest values that a bend is looked for in.
const LEAST_POINTS: usize = 6;

/// A part of a bent line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Change per unit.
    pub slope: f64,
    /// Standard error of `slope`.
    pub slope_error: f64,
    /// Value at zero, where the part is carried on to it.
    pub intercept: f64,
    /// Standard error of `intercept`.
    pub intercept_error: f64,
}

/// A line with one bend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bend {
    /// Where it bends.
    pub at: f64,
    /// Up to there.
    pub before: Part,
    /// From there on.
    pub after: Part,
    /// Standard deviation around both parts.
    pub scatter: f64,
    /// Probability that values on a straight line bend as much by chance.
    pub p_value: f64,
    /// Values behind it.
    pub points: usize,
    /// Values that were left out because they lie far off both parts.
    pub left_out: usize,
}

/// The bend that the values have most clearly, however slight it is: the caller judges by
/// [`Bend::p_value`]. `None` with fewer than six values or four places.
#[must_use]
pub fn find(points: &[(f64, f64)]) -> Option<Bend> {
    if points.len() < LEAST_POINTS {
        return None;
    }
    let mut places: Vec<f64> = points.iter().map(|point| point.0).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    // Two places up to the bend, the bend's own among them, and two beyond.
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

/// What the coefficients are multiplied with at `x`.
fn terms(x: f64, knot: f64) -> Vector3<f64> {
    Vector3::new(1.0, x, (x - knot).max(0.0))
}

fn residuals(points: &[(f64, f64)], knot: f64, coefficients: &Vector3<f64>) -> Vec<f64> {
    points
        .iter()
        .map(|(x, y)| y - terms(*x, knot).dot(coefficients))
        .collect()
}

/// Least absolute residuals by iterated weights: a single disturbed value does not bend it.
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

/// The values whose residuals are not far off all others', as `robust_line` keeps them.
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

/// Ordinary least squares with the usual standard errors; the probability is that of one
/// knot.
fn least_squares(points: &[(f64, f64)], knot: f64) -> Option<Bend> {
    let freedom = points.len().checked_sub(3).filter(|freedom| *freedom > 0)?;
    let rows = DMatrix::from_fn(points.len(), 3, |row, column| {
        terms(points[row].0, knot)[column]
    });
    let values = DVector::from_iterator(points.len(), points.iter().map(|point| point.1));
    let inverse = (rows.transpose() * &rows).try_inverse()?;
    let found = &inverse * rows.transpose() * &values;
    let variance = (&values - &rows * &found).norm_squared() / freedom as f64;
    // The variance of a sum of coefficients, each taken so many times.
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
    use crate::testing::Draws;

    fn bent(at: f64, before: f64, after: f64, x: f64) -> f64 {
        40.0 + before * x.min(at) + after * (x - at).max(0.0)
    }

    fn series(noise: f64, random: &mut Draws, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (1..=12)
            .map(|n| (f64::from(n), value(f64::from(n)) + noise * random.normal()))
            .collect()
    }

    #[test]
    fn a_straight_line_is_rarely_taken_for_a_bent_one() {
        let mut random = Draws::new(21);
        let bent = (0..2000)
            .filter(|_| {
                let points = series(8.0, &mut random, |n| 45.0 + 290.0 * n);
                find(&points).unwrap().p_value < 0.01
            })
            .count();
        // One in a hundred at the most, were no values left out.
        assert!(bent <= 60, "{bent} of 2000");
    }

    #[test]
    fn a_bend_is_found_where_it_is_with_the_slopes_of_its_parts() {
        let mut random = Draws::new(22);
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
        let mut random = Draws::new(23);
        let mut points = series(3.0, &mut random, |n| 45.0 + 290.0 * n);
        points[8].1 += 700.0;
        let found = find(&points).unwrap();
        assert_eq!((found.points, found.left_out), (11, 1));
        assert!(found.p_value > 0.01, "{found:?}");
        assert_eq!(find(&points[..5]), None);
    }
}
