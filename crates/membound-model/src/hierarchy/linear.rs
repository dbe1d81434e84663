//! The linear fit: non-negative least squares with weights that are iterated until they no longer
//! change.
//!
//! With [`Weights::Model`] every residual is divided by the modelled value, and the fit is
//! repeated with the new modelled values. At the fixed point Σ (y − m)/m² · ∂m = 0: the estimating
//! equations of noise with constant relative size, whose mean is right at any noise. Dividing by
//! the measured value instead (equation 8) biases the fit towards values measured too low, by the
//! square of the relative noise.

use membound_types::Weights;
use nalgebra::DVector;

use super::identify::rank_tolerance;
use super::solve::{Triangle, lengths, non_negative, scaled, spectrum};

/// Most iterations of the weights before the fit is returned as not settled.
const MAX_ITERATIONS: usize = 100;

/// Iterations after which the step of the weights is halved (on a logarithmic scale): outliers can
/// make the weights oscillate.
const DAMPED_AFTER_ITERATIONS: usize = 20;

/// Relative change of the weights below which a reported fit counts as settled.
pub(super) const WEIGHT_TOLERANCE: f64 = 1e-12;

/// Least modelled value used for a weight, as a share of the measured value, so that a modelled
/// value near zero in an early iteration does not outweigh all others.
const MIN_MODEL: f64 = 1e-3;

/// Measured values and the columns on which they depend linearly.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// One column for each parameter to be fitted, one entry per measured value.
    pub(super) columns: Vec<Vec<f64>>,
    /// Contribution of the parameters with given values to each measured value.
    pub(super) offset: Vec<f64>,
    /// Measured values.
    pub(super) measured: Vec<f64>,
    /// `measured` minus `offset`.
    right: Vec<f64>,
}

/// A solution with the weights at which it was found.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// Values of the fitted parameters, one per column.
    pub(super) values: DVector<f64>,
    /// Modelled values of all points, including those excluded from the fit.
    pub(super) model: Vec<f64>,
    /// Weight of each point's residual.
    pub(super) scale: Vec<f64>,
    /// The weighted problem in triangular form.
    pub(super) triangle: Triangle,
    /// Number of iterations.
    pub(super) iterations: usize,
    /// True if the weights settled before [`MAX_ITERATIONS`].
    pub(super) settled: bool,
}

impl Linear {
    pub(super) fn new(columns: Vec<Vec<f64>>, offset: Vec<f64>, measured: Vec<f64>) -> Self {
        let right = measured
            .iter()
            .zip(&offset)
            .map(|(measured, offset)| measured - offset)
            .collect();
        Self {
            columns,
            offset,
            measured,
            right,
        }
    }

    /// Fits the points in `rows`, and iterates the weights until they change by less than `still`.
    ///
    /// `start` holds initial weights for [`Weights::Model`]; by default they are 1 ÷ measured. `None`
    /// when numbers overflow.
    pub(super) fn solve(
        &self,
        weights: Weights,
        rows: &[usize],
        start: Option<&[f64]>,
        still: f64,
    ) -> Option<Solved> {
        let mut scale = match (weights, start) {
            (Weights::Equal, _) => vec![1.0; self.measured.len()],
            (Weights::Model, Some(start)) => start.to_vec(),
            _ => self.measured.iter().map(|value| 1.0 / value).collect(),
        };
        let mut values: Option<DVector<f64>> = None;
        for iterations in 1.. {
            let triangle = self.triangle(&scale, rows);
            if !triangle.is_finite() {
                return None;
            }
            let found = solution(&triangle, rows.len(), values.as_ref());
            let model = self.model(&found);
            let mut change = 0.0_f64;
            let mut next = scale.clone();
            if weights == Weights::Model {
                for &row in rows {
                    let floor = MIN_MODEL * self.measured[row];
                    let new = 1.0 / model[row].max(floor);
                    change = change.max((scale[row] / new - 1.0).abs());
                    next[row] = if iterations > DAMPED_AFTER_ITERATIONS {
                        (new * scale[row]).sqrt()
                    } else {
                        new
                    };
                }
            }
            if change < still || iterations >= MAX_ITERATIONS {
                return Some(Solved {
                    values: found,
                    model,
                    scale,
                    triangle,
                    iterations,
                    settled: change < still,
                });
            }
            scale = next;
            values = Some(found);
        }
        None
    }

    /// The weighted problem of `rows` in triangular form (QR).
    pub(super) fn triangle(&self, scale: &[f64], rows: &[usize]) -> Triangle {
        let columns: Vec<&[f64]> = self.columns.iter().map(Vec::as_slice).collect();
        Triangle::of(&columns, &self.right, scale, rows)
    }

    /// Modelled value of every point for these parameter values.
    pub(super) fn model(&self, values: &DVector<f64>) -> Vec<f64> {
        let mut model = self.offset.clone();
        for (column, &value) in self.columns.iter().zip(values.iter()) {
            if value != 0.0 {
                for (model, entry) in model.iter_mut().zip(column) {
                    *model += value * entry;
                }
            }
        }
        model
    }
}

/// The non-negative least-squares solution of `triangle`, reduced from `rows` rows.
///
/// `near`, a solution that is probably close, saves the spectral start.
pub(super) fn solution(
    triangle: &Triangle,
    rows: usize,
    near: Option<&DVector<f64>>,
) -> DVector<f64> {
    let matrix = triangle.matrix();
    let lengths = lengths(&matrix);
    let matrix = scaled(matrix, &lengths);
    let right = triangle.right();
    let tolerance = rank_tolerance(rows);
    let free = match near {
        Some(near) => near.clone(),
        None => {
            let spectrum = spectrum(&matrix);
            spectrum.solve(spectrum.rank(tolerance), &right)
        }
    };
    let mut found = non_negative(&matrix, &right, &free, tolerance);
    for (value, length) in found.iter_mut().zip(&lengths) {
        *value /= length;
    }
    found
}

/// Root mean square of the weighted residuals in `rows` over `freedom` degrees of freedom,
/// and their sum of squares.
pub(super) fn residual_sigma(
    linear: &Linear,
    solved: &Solved,
    rows: &[usize],
    freedom: usize,
) -> (f64, f64) {
    let squares: f64 = rows
        .iter()
        .map(|&row| ((linear.measured[row] - solved.model[row]) * solved.scale[row]).powi(2))
        .sum();
    ((squares / freedom as f64).sqrt(), squares)
}
