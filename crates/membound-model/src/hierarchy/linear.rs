//! The linear fit: weights, iterated until they stand still, around a non-negative
//! least-squares solution.
//!
//! With [`Weights::Model`] every residual is divided by the modelled value, and the fit is
//! repeated with the new values. Its fixed point is where Σ (y − m)/m² · ∂m = 0: the
//! estimating equations of a constant relative noise, whose mean is right at any noise.
//! Dividing by the measured value instead (equation 8) favours what was measured too low,
//! by the square of the relative noise.

use membound_types::Weights;
use nalgebra::DVector;

use super::identify::rank_tolerance;
use super::solve::{Triangle, lengths, non_negative, scaled, spectrum};

/// Fits in a row before the weights are given up on.
const MOST_ITERATIONS: usize = 100;

/// Iterations after which only half of a step is taken: outliers can make weights swing.
const SWINGING: usize = 20;

/// Relative change below which weights stand still in a fit that is reported.
pub(super) const STILL: f64 = 1e-12;

/// A modelled value counts as at least this part of the measured one in a weight, so that
/// a model of zero somewhere on the way does not outweigh everything.
const LEAST_MODEL: f64 = 1e-3;

/// Values measured and what they depend on linearly.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    /// One column for each parameter to be fitted.
    pub(super) columns: Vec<Vec<f64>>,
    /// What given parameters contribute.
    pub(super) offset: Vec<f64>,
    /// Measured values.
    pub(super) measured: Vec<f64>,
    /// Measured values without the offset.
    right: Vec<f64>,
}

/// A solution with the weights that belong to it.
#[derive(Clone, Debug)]
pub(super) struct Solved {
    /// Values of the columns' parameters.
    pub(super) values: DVector<f64>,
    /// Modelled values of all points, also of those left out.
    pub(super) model: Vec<f64>,
    /// Factor of each row's residual.
    pub(super) scale: Vec<f64>,
    /// The weighted problem.
    pub(super) triangle: Triangle,
    /// Fits done.
    pub(super) iterations: usize,
    /// Whether the weights came to stand still.
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

    /// Fits the points in `rows`. `start` are factors to begin with, instead of those of
    /// the measured values; weights stand still when they change by less than `still`.
    /// `None` when numbers overflow.
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
                    let floor = LEAST_MODEL * self.measured[row];
                    let new = 1.0 / model[row].max(floor);
                    change = change.max((scale[row] / new - 1.0).abs());
                    next[row] = if iterations > SWINGING {
                        (new * scale[row]).sqrt()
                    } else {
                        new
                    };
                }
            }
            if change < still || iterations >= MOST_ITERATIONS {
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

    /// The weighted problem of `rows`, as a triangle.
    pub(super) fn triangle(&self, scale: &[f64], rows: &[usize]) -> Triangle {
        let columns: Vec<&[f64]> = self.columns.iter().map(Vec::as_slice).collect();
        Triangle::of(&columns, &self.right, scale, rows)
    }

    /// Modelled values for `values` of the parameters.
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

/// The non-negative solution of `triangle`, the R of `rows` rows; `near` is one that is
/// thought to be close.
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
