//! Statistics for reading a curve: medians and their spread, monotone regression, and a straight
//! line with standard errors.
//!
//! Timing noise is one-sided (other work on the machine only makes a time longer) and heavy-tailed,
//! so medians are used where a textbook would use a mean. Statistics of batches belong to the
//! measuring crate; the values here are medians already.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// Factor that turns a median absolute deviation into the standard deviation of a normal
/// distribution with the same spread.
pub const MAD_TO_SIGMA: f64 = 1.4826;

/// Half the width of a 95 % interval in standard deviations of a normal distribution.
pub const Z95: f64 = 1.959_963_984_540_054;

/// A straight line fitted by least squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Value of the line at x = 0.
    pub intercept: f64,
    /// Change of y per unit of x.
    pub slope: f64,
    /// Standard error of `intercept`.
    pub intercept_error: f64,
    /// Standard error of `slope`.
    pub slope_error: f64,
    /// Standard deviation of the values around the line, with n − 2 degrees of freedom.
    pub scatter: f64,
    /// Number of points used in the fit.
    pub points: usize,
}

/// The median; the mean of the middle two for an even count. `None` if `values` is empty or
/// contains NaN.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The `share` quantile (0 to 1) with linear interpolation between order statistics
/// (Hyndman and Fan's type 7). `None` if `values` is empty or contains NaN.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    let fraction = place - below as f64;
    Some(sorted[below] + fraction * (sorted[above] - sorted[below]))
}

/// The median absolute deviation from the median, scaled by [`MAD_TO_SIGMA`] so that it
/// estimates a standard deviation. `None` if `values` is empty or contains NaN.
#[must_use]
pub fn robust_sigma(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&deviations).map(|deviation| deviation * MAD_TO_SIGMA)
}

/// The standard error of the median of `values`, estimated from their robust spread
/// (1.2533·σ/√n for a normal distribution). `None` for fewer than two values.
#[must_use]
pub fn median_error(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let sigma = robust_sigma(values)?;
    Some(1.2533 * sigma / (values.len() as f64).sqrt())
}

/// The non-decreasing sequence nearest to `values` in absolute error.
///
/// Pool-adjacent-violators with the lower median of each pool: a single value that is far too
/// high, the typical error of timings, is pulled down to its successors instead of lifting them.
#[must_use]
pub fn isotonic_median(values: &[f64]) -> Vec<f64> {
    struct Pool {
        sorted: Vec<f64>,
    }
    impl Pool {
        fn level(&self) -> f64 {
            self.sorted[(self.sorted.len() - 1) / 2]
        }
    }
    let mut pools: Vec<Pool> = Vec::new();
    for &value in values {
        let mut pool = Pool {
            sorted: vec![value],
        };
        while let Some(last) = pools.last() {
            if last.level() <= pool.level() {
                break;
            }
            let mut merged = pools.pop().expect("`last` was just seen").sorted;
            merged.append(&mut pool.sorted);
            merged.sort_by(f64::total_cmp);
            pool = Pool { sorted: merged };
        }
        pools.push(pool);
    }
    pools
        .iter()
        .flat_map(|pool| std::iter::repeat_n(pool.level(), pool.sorted.len()))
        .collect()
}

/// A straight line through `(x, y)` by ordinary least squares, without outliers.
///
/// Outliers are points further from the Theil–Sen line than four robust standard deviations and
/// than one per cent of the largest `y`. `None` with fewer than three points left or with all `x`
/// equal: two points have no standard error.
#[must_use]
pub fn robust_line(points: &[(f64, f64)]) -> Option<Line> {
    let mut slopes = Vec::new();
    for (index, first) in points.iter().enumerate() {
        for second in &points[index + 1..] {
            let run = second.0 - first.0;
            if run.abs() > f64::EPSILON {
                slopes.push((second.1 - first.1) / run);
            }
        }
    }
    let slope = median(&slopes)?;
    let residuals: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
    let middle = median(&residuals)?;
    let sigma = robust_sigma(&residuals)?;
    // Values rounded to whole numbers may have a median deviation of 0; a deviation up to one per
    // cent of the largest value is never an outlier.
    let largest = points.iter().map(|(_, y)| y.abs()).fold(0.0, f64::max);
    let limit = (4.0 * sigma).max(0.01 * largest);
    let kept: Vec<(f64, f64)> = points
        .iter()
        .zip(&residuals)
        .filter(|(_, residual)| (*residual - middle).abs() <= limit)
        .map(|(point, _)| *point)
        .collect();
    least_squares(&kept)
}

/// Ordinary least squares with the usual standard errors.
fn least_squares(points: &[(f64, f64)]) -> Option<Line> {
    if points.len() < 3 {
        return None;
    }
    let n = points.len() as f64;
    let mean_x = points.iter().map(|point| point.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / n;
    let spread_x: f64 = points.iter().map(|point| (point.0 - mean_x).powi(2)).sum();
    if spread_x <= 0.0 {
        return None;
    }
    let together: f64 = points
        .iter()
        .map(|point| (point.0 - mean_x) * (point.1 - mean_y))
        .sum();
    let slope = together / spread_x;
    let intercept = mean_y - slope * mean_x;
    let squares: f64 = points
        .iter()
        .map(|point| (point.1 - intercept - slope * point.0).powi(2))
        .sum();
    let variance = squares / (n - 2.0);
    Some(Line {
        intercept,
        slope,
        intercept_error: (variance * (1.0 / n + mean_x * mean_x / spread_x)).sqrt(),
        slope_error: (variance / spread_x).sqrt(),
        scatter: variance.sqrt(),
        points: points.len(),
    })
}

/// Half the width of a 95 % interval in standard errors: the 0.975 quantile of Student's t
/// with `freedom` degrees of freedom. Infinite for 0 degrees of freedom.
#[must_use]
pub fn student_95(freedom: usize) -> f64 {
    /// The same quantile of the normal distribution, the limit for many degrees of freedom.
    const NORMAL: f64 = 1.959_963_984_540_054;
    if freedom == 0 {
        return f64::INFINITY;
    }
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(NORMAL, |student| student.inverse_cdf(0.975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_and_refuse_what_is_no_number() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn robust_sigma_ignores_one_wild_value() {
        let sigma = robust_sigma(&[10.0, 11.0, 9.0, 10.5, 9.5, 400.0]).unwrap();
        assert!(sigma < 2.0, "{sigma}");
    }

    #[test]
    fn isotonic_median_pulls_an_outlier_down_instead_of_lifting_its_successors() {
        let fitted = isotonic_median(&[1.0, 2.0, 9.0, 3.0, 4.0, 5.0]);
        assert_eq!(fitted, [1.0, 2.0, 3.0, 3.0, 4.0, 5.0]);
        assert_eq!(isotonic_median(&[]), Vec::<f64>::new());
    }

    #[test]
    fn isotonic_median_keeps_what_is_already_monotone() {
        let values = [1.0, 1.0, 2.0, 5.0];
        assert_eq!(isotonic_median(&values), values);
    }

    #[test]
    fn a_line_survives_one_outlier_and_two_points_have_no_error() {
        let mut points: Vec<(f64, f64)> = (1..=12)
            .map(|n| {
                let x = f64::from(n);
                (x, 40.0 + 200.0 * x + if n % 2 == 0 { 1.0 } else { -1.0 })
            })
            .collect();
        points[6].1 += 900.0;
        let line = robust_line(&points).unwrap();
        assert!((line.slope - 200.0).abs() < 1.0, "{line:?}");
        assert!((line.intercept - 40.0).abs() < 4.0, "{line:?}");
        assert!(line.slope_error > 0.0 && line.slope_error < 1.0, "{line:?}");
        assert_eq!(robust_line(&points[..2]), None);
        assert_eq!(line.points, 11);
        assert!((line.scatter - 1.0).abs() < 0.2, "{line:?}");
    }

    #[test]
    fn student_is_the_published_table_and_ends_at_the_normal_distribution() {
        for (freedom, published) in [
            (1, 12.7062),
            (2, 4.3027),
            (10, 2.2281),
            (30, 2.0423),
            (31, 2.0395),
            (60, 2.0003),
            (100_000, 1.9600),
        ] {
            assert!((student_95(freedom) - published).abs() < 6e-5, "{freedom}");
        }
        assert_eq!(student_95(0), f64::INFINITY);
    }
}
