//! Fits a model to points (document 002, section 4).
//!
//! The time is linear in all parameters except level sizes and exponents. `linear` fits the linear
//! parameters, `free` the sizes and exponents, `identify` finds which of them the data determine,
//! and `answer` reports them as parameters; this module assembles the [`Model`].

use membound_types::{
    FitData, FitMethod, FittedPoint, Kind, Model, ModelSource, Observation, Outcome, Residual,
    SCHEMA_VERSION, SizeMode, Topology,
};

use super::answer::answer;
use super::design::Edges;
use super::free::{errors_without, fit_free};
use super::identify::identify;
use super::linear::{WEIGHT_TOLERANCE, residual_sigma, solution};
use super::notes::notes;
use super::options::{FitError, FitOptions, KeepPoints, LeftOut, check};
use super::problem::{Fitted, Problem};
use super::solve::Triangle;
use super::vanish::vanishing;
use crate::stats::median;

/// Number of parts in the cross-validation over areas.
const FOLDS: usize = 5;

/// Distinct areas below which there is no cross-validation: leaving out a fifth would say more
/// about the choice of areas than about the model.
const MIN_AREAS: usize = 10;

/// Fits `topology` to `observations`: windows in areas or loads of a chase, in
/// nanoseconds, in any order.
///
/// The caller sets the source of the model. `options` decide about level sizes, given parameters
/// and weights. Parameters that the data do not determine are no error: they are marked, have the
/// minimum-norm value, and [`Model::combinations`] contains the sums that are determined.
///
/// Standard errors are σ²·(XᵀWX)⁺ with σ from the weighted residuals, for the problem
/// without the limit at zero: where a parameter is held at zero, its own interval and those of its
/// neighbours are wider than necessary, never narrower. Intervals are Student's, cut at zero.
/// They assume that the noise is as the weights say: relative, or with
/// [`Weights::Equal`](membound_types::Weights::Equal) the same for every point.
///
/// # Errors
/// An invalid topology or one without sizes, no points or too few, an invalid time, a window
/// that does not fit its area, a fixed symbol that is not a parameter.
pub fn fit(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<Model, FitError> {
    check(topology, data, observations, options)?;
    let edges = Edges::of(topology).ok_or(FitError::NoPoints)?;
    let problem = Problem::new(topology, data, observations, options)?;
    let fitted = match options.sizes {
        SizeMode::Fixed => problem.fit_at(edges)?,
        SizeMode::Free => fit_free(&problem, edges)?,
    };
    problem.model(observations, fitted)
}

impl Problem<'_> {
    fn fit_at(&self, edges: Edges) -> Result<Fitted, FitError> {
        let rows = self.all_rows();
        let linear = self.linear(&edges);
        let solved = linear
            .solve(self.options.weights, &rows, None, WEIGHT_TOLERANCE)
            .ok_or(FitError::Overflow)?;
        let identified = identify(&solved.triangle.matrix(), rows.len());
        Ok(Fitted {
            edges,
            linear,
            iterations: solved.iterations,
            solved,
            identified,
        })
    }

    /// Builds the model document from a fit.
    fn model(&self, observations: &[Observation], fitted: Fitted) -> Result<Model, FitError> {
        let topology = self.design.topology();
        let rows = self.all_rows();
        let rank = fitted.identified.rank;
        let freedom = rows.len().saturating_sub(rank);
        if freedom == 0 {
            return Err(FitError::TooFewPoints {
                points: rows.len(),
                determined: rank,
                topology: topology.name.clone(),
            });
        }
        let (sigma, squares) = residual_sigma(&fitted.linear, &fitted.solved, &rows, freedom);
        let relative: Vec<f64> = fitted
            .solved
            .model
            .iter()
            .zip(&self.measured)
            .map(|(model, measured)| (model / measured - 1.0).abs())
            .collect();
        let mut model = Model {
            schema_version: SCHEMA_VERSION,
            kind: Kind::Model,
            source: ModelSource::default(),
            topology: topology.clone(),
            method: FitMethod {
                data: self.data,
                weights: self.options.weights,
                sizes: self.options.sizes,
                points: rows.len(),
                rank,
                iterations: fitted.iterations,
                condition: fitted.identified.condition,
                selection: None,
            },
            parameters: Vec::new(),
            combinations: Vec::new(),
            covariance: Vec::new(),
            levels: Vec::new(),
            residual: Outcome::Known(Residual {
                median_relative: median(&relative).unwrap_or(0.0),
                max_relative: relative.iter().copied().fold(0.0, f64::max),
                sigma,
                left_out_median_relative: match self.options.left_out {
                    LeftOut::Check => self.left_out(&fitted),
                    LeftOut::Skip => None,
                },
            }),
            vanishing: vanishing(self, &fitted, squares),
            points: Vec::new(),
            notes: notes(self, &fitted),
        };
        answer(self, &fitted, sigma, freedom, &mut model);
        if self.options.points == KeepPoints::Keep {
            model.points = observations
                .iter()
                .zip(&fitted.solved.model)
                .map(|(&measured, &model_ns)| FittedPoint { measured, model_ns })
                .collect();
        }
        Ok(model)
    }

    /// Median relative error at left-out areas: cross-validation over five parts, with the weights of
    /// the whole fit. `None` with too few areas or points.
    fn left_out(&self, fitted: &Fitted) -> Option<f64> {
        let folds = self.folds()?;
        let mut errors = Vec::with_capacity(self.measured.len());
        if self.options.sizes == SizeMode::Free {
            for out in &folds {
                let kept: Vec<usize> = folds
                    .iter()
                    .filter(|fold| !std::ptr::eq(*fold, out))
                    .flatten()
                    .copied()
                    .collect();
                if kept.len() <= fitted.identified.rank {
                    return None;
                }
                errors.extend(errors_without(self, fitted, &kept, out)?);
            }
            return median(&errors);
        }
        let parts: Vec<Triangle> = folds
            .iter()
            .map(|rows| fitted.linear.triangle(&fitted.solved.scale, rows))
            .collect();
        for (out, rows) in folds.iter().enumerate() {
            let kept = parts
                .iter()
                .enumerate()
                .filter(|&(part, _)| part != out)
                .map(|(_, part)| part);
            let triangle = Triangle::combined(kept)?;
            let left = self.measured.len() - rows.len();
            if left <= fitted.identified.rank {
                return None;
            }
            let values = solution(&triangle, left, Some(&fitted.solved.values));
            for &row in rows {
                let model: f64 = fitted.linear.offset[row]
                    + fitted
                        .linear
                        .columns
                        .iter()
                        .zip(values.iter())
                        .map(|(column, value)| column[row] * value)
                        .sum::<f64>();
                errors.push((model / self.measured[row] - 1.0).abs());
            }
        }
        median(&errors)
    }

    /// Indices of the points in five parts by area; `None` with fewer than [`MIN_AREAS`] areas.
    fn folds(&self) -> Option<Vec<Vec<usize>>> {
        let mut areas = self.areas.clone();
        areas.sort_by(f64::total_cmp);
        areas.dedup();
        if areas.len() < MIN_AREAS {
            return None;
        }
        let mut folds = vec![Vec::new(); FOLDS];
        for (row, area) in self.areas.iter().enumerate() {
            let place = areas.partition_point(|other| other < area);
            folds[place % FOLDS].push(row);
        }
        Some(folds)
    }
}
