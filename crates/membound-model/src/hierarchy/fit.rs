//! From points to a fitted model (document 002, section 4).
//!
//! The time is linear in all parameters but level sizes and exponents: `linear` finds the
//! former, `free` the latter, `identify` says what of it the data determine, and here the
//! answers become a [`Model`].

use membound_types::{
    Combination, FitData, FitMethod, FittedPoint, Kind, Model, ModelSource, Observation,
    Parameter, Residual, SCHEMA_VERSION, Topology,
};
use nalgebra::DVector;

use super::design::{Column, Design, Edges};
use super::identify::{Group, Identified, identify};
use super::linear::{Linear, Solved, residual_sigma, solution};
use super::options::{FitError, FitOptions, KeepPoints, LeftOut, check, given_values};
use super::predict::{Interval, estimate, student_t};
use super::rates::model_levels;
use super::solve::Triangle;
use super::vanish::vanishing;
use crate::declared::bytes;
use crate::stats::{median, robust_sigma};

/// Parts into which areas are divided for the check on those left out.
const FOLDS: usize = 5;

/// Areas below which leaving out a fifth says more of the areas than of the model.
const LEAST_AREAS: usize = 10;

/// Robust standard deviations beyond which a residual is an outlier …
const OUTLYING_SIGMAS: f64 = 5.0;
/// … unless it is smaller than this: data may be rounded or computed.
const NEVER_OUTLYING: f64 = 0.01;
/// Share of outliers that a reader should know of.
const MANY_OUTLIERS: f64 = 0.01;

/// Points and what they are to be fitted with.
pub(super) struct Problem<'a> {
    pub(super) design: Design<'a>,
    pub(super) data: FitData,
    pub(super) windows: Vec<Option<f64>>,
    pub(super) areas: Vec<f64>,
    pub(super) measured: Vec<f64>,
    /// Values of the terms that are given.
    pub(super) given: Vec<Option<f64>>,
    /// Terms to be fitted.
    pub(super) fitted: Vec<usize>,
    pub(super) options: &'a FitOptions,
}

/// A fit before it is reported.
pub(super) struct Fitted {
    pub(super) edges: Edges,
    pub(super) linear: Linear,
    pub(super) solved: Solved,
    /// Of the fitted terms, then of `moved`.
    pub(super) identified: Identified,
    pub(super) iterations: usize,
    pub(super) notes: Vec<String>,
}

/// Fits `topology` to `observations`: windows in areas or loads of a chase, in
/// nanoseconds, in any order.
///
/// The source of the model is left to the caller. Level sizes, given parameters and weights
/// are as `options` say. What the data do not determine is not an error: the parameters
/// are marked, have the minimum-norm value, and what is known of them stands in
/// [`Model::combinations`].
///
/// Standard errors are σ²·(XᵀWX)⁺ with σ from the weighted residuals, for the problem
/// without the limit at zero: where a parameter is held there its own interval and its
/// neighbours' are wider than need be, never narrower. Intervals are Student's, cut at zero.
///
/// # Errors
/// A topology that is not sound or lacks sizes, no points or too few, a value that is no
/// time, a window that does not fit its area, a fixed symbol that is no parameter.
pub fn fit(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<Model, FitError> {
    check(topology, data, observations, options)?;
    let edges = Edges::of(topology).ok_or(FitError::NoPoints)?;
    let problem = Problem::new(topology, data, observations, options)?;
    let fitted = problem.fit_at(edges)?;
    problem.model(observations, fitted)
}

impl<'a> Problem<'a> {
    fn new(
        topology: &'a Topology,
        data: FitData,
        observations: &[Observation],
        options: &'a FitOptions,
    ) -> Result<Self, FitError> {
        let design = Design::new(topology, data);
        let given = given_values(topology, &design.terms, &options.fixed)?;
        let fitted = (0..given.len()).filter(|&term| given[term].is_none()).collect();
        let bytes = |bytes: u64| bytes as f64;
        Ok(Self {
            design,
            data,
            windows: observations.iter().map(|point| point.window_bytes.map(bytes)).collect(),
            areas: observations.iter().map(|point| bytes(point.area_bytes)).collect(),
            measured: observations.iter().map(|point| point.ns).collect(),
            given,
            fitted,
            options,
        })
    }

    /// The linear problem for given sizes.
    pub(super) fn linear(&self, edges: &Edges) -> Linear {
        let count = self.measured.len();
        let mut columns = vec![Vec::with_capacity(count); self.fitted.len()];
        let mut offset = Vec::with_capacity(count);
        for (&window, &area) in self.windows.iter().zip(&self.areas) {
            let row = self.design.row(edges, window, area);
            for (column, &term) in columns.iter_mut().zip(&self.fitted) {
                column.push(row[term]);
            }
            offset.push(
                row.iter()
                    .zip(&self.given)
                    .map(|(entry, given)| entry * given.unwrap_or(0.0))
                    .sum(),
            );
        }
        Linear::new(columns, offset, self.measured.clone())
    }

    /// All points.
    pub(super) fn all_rows(&self) -> Vec<usize> {
        (0..self.measured.len()).collect()
    }

    fn fit_at(&self, edges: Edges) -> Result<Fitted, FitError> {
        let rows = self.all_rows();
        let linear = self.linear(&edges);
        let solved = linear
            .solve(self.options.weights, &rows, None)
            .ok_or(FitError::Overflow)?;
        let identified = identify(&solved.triangle.matrix(), rows.len());
        Ok(Fitted {
            edges,
            linear,
            iterations: solved.iterations,
            solved,
            identified,
            notes: Vec::new(),
        })
    }

    /// The document of a fit.
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
            residual: Residual {
                median_relative: median(&relative).unwrap_or(0.0),
                max_relative: relative.iter().copied().fold(0.0, f64::max),
                sigma,
                left_out_median_relative: match self.options.left_out {
                    LeftOut::Check => self.left_out(&fitted),
                    LeftOut::Skip => None,
                },
            },
            vanishing: vanishing(self, &fitted, squares),
            points: Vec::new(),
            notes: self.notes(&fitted),
        };
        self.report_parameters(&fitted, sigma, freedom, &mut model);
        model.levels = model_levels(&model.topology, self.data, &|factors| {
            estimate(&model, factors)
        });
        if self.options.points == KeepPoints::Keep {
            model.points = observations
                .iter()
                .zip(&fitted.solved.model)
                .map(|(&measured, &model_ns)| FittedPoint { measured, model_ns })
                .collect();
        }
        Ok(model)
    }

    fn report_parameters(&self, fitted: &Fitted, sigma: f64, freedom: usize, model: &mut Model) {
        let identified = &fitted.identified;
        let mut values = fitted.solved.values.clone();
        for group in &identified.groups {
            for (&member, value) in group.members.iter().zip(group.minimum_norm(&values)) {
                values[member] = value;
            }
        }
        let student = student_t(freedom);
        let terms = &self.design.terms;
        model.covariance = vec![vec![0.0; terms.len()]; terms.len()];
        for (row, &to) in self.fitted.iter().enumerate() {
            for (column, &from) in self.fitted.iter().enumerate() {
                model.covariance[to][from] =
                    identified.covariance[(row, column)] * sigma * sigma;
            }
        }
        for (index, term) in terms.iter().enumerate() {
            let mut parameter = Parameter {
                symbol: term.symbol.clone(),
                value: self.given[index].unwrap_or(0.0),
                unit: "ns".to_owned(),
                related_to: term.related_to.clone(),
                std_error: None,
                low: None,
                high: None,
                identifiable: true,
                reason: None,
                fixed: self.given[index].is_some(),
                role: term.role,
                name: term.name.clone(),
            };
            if let Some(place) = self.fitted.iter().position(|&fitted| fitted == index) {
                parameter.value = values[place];
                parameter.identifiable = identified.identifiable[place];
                if parameter.identifiable {
                    let error = model.covariance[index][index].max(0.0).sqrt();
                    let interval = Interval::of(parameter.value, error, student);
                    parameter.std_error = Some(error);
                    parameter.low = Some(interval.low);
                    parameter.high = Some(interval.high);
                } else {
                    parameter.reason = Some(self.reason(identified, place));
                }
            }
            model.parameters.push(parameter);
        }
        for group in &identified.groups {
            for factors in &group.determined {
                model.combinations.push(self.combination(
                    group,
                    factors,
                    &values,
                    &model.covariance,
                    student,
                ));
            }
        }
    }

    fn combination(
        &self,
        group: &Group,
        factors: &[f64],
        values: &DVector<f64>,
        covariance: &[Vec<f64>],
        student: f64,
    ) -> Combination {
        let parts: Vec<(usize, usize, f64)> = group
            .members
            .iter()
            .zip(factors)
            .filter(|&(_, &factor)| factor != 0.0)
            .map(|(&member, &factor)| (member, self.fitted[member], factor))
            .collect();
        let value: f64 = parts
            .iter()
            .map(|&(member, _, factor)| factor * values[member])
            .sum();
        let variance: f64 = parts
            .iter()
            .flat_map(|left| parts.iter().map(move |right| (left, right)))
            .map(|(left, right)| left.2 * right.2 * covariance[left.1][right.1])
            .sum();
        let error = variance.max(0.0).sqrt();
        let mut interval = Interval::of(value, error, student);
        if parts.iter().any(|&(_, _, factor)| factor < 0.0) {
            interval = Interval::unlimited(value, error, student);
        }
        Combination {
            symbols: parts
                .iter()
                .map(|&(_, term, _)| self.design.terms[term].symbol.clone())
                .collect(),
            coefficients: parts.iter().map(|&(_, _, factor)| factor).collect(),
            value,
            unit: "ns".to_owned(),
            std_error: error,
            low: interval.low,
            high: interval.high,
        }
    }

    /// Why the data do not determine a fitted term.
    fn reason(&self, identified: &Identified, place: usize) -> String {
        let symbol = |place: usize| self.design.terms[self.fitted[place]].symbol.as_str();
        let term = &self.design.terms[self.fitted[place]];
        let topology = self.design.topology();
        if identified.idle[place] {
            return match term.column {
                Column::Once(component) | Column::Line(component) => {
                    let component = &topology.components[component].symbol;
                    let level = topology
                        .levels
                        .iter()
                        .find(|level| level.path.contains_key(component));
                    match level {
                        Some(level) => format!("no area is large enough to reach `{}`", level.name),
                        None => "it lies on the path to no level".to_owned(),
                    }
                }
                Column::Tlb(index) => {
                    let tlb = &topology.tlb[index];
                    let reach = bytes(tlb.entries.saturating_mul(tlb.page_bytes));
                    format!("no area exceeds the {reach} that this TLB reaches")
                }
                Column::PageTable => {
                    let start = topology.page_table.as_ref().map_or(0, |term| term.start_bytes);
                    format!("no area is as large as {}", bytes(start))
                }
            };
        }
        let others: Vec<&str> = identified
            .groups
            .iter()
            .find(|group| group.members.contains(&place))
            .into_iter()
            .flat_map(|group| &group.members)
            .filter(|&&member| member != place)
            .map(|&member| symbol(member))
            .collect();
        format!("cannot be told from {}", others.join(", "))
    }

    fn notes(&self, fitted: &Fitted) -> Vec<String> {
        let topology = self.design.topology();
        let mut notes = fitted.notes.clone();
        let largest = self.areas.iter().copied().fold(0.0, f64::max);
        let inner = fitted.edges.reach.last().copied().unwrap_or(0.0);
        if let Some(last) = topology.levels.last()
            && let Some(size) = last.size_bytes
        {
            let held = match topology.sizes {
                membound_types::SizeMeaning::Own => inner + size as f64,
                membound_types::SizeMeaning::Reach => size as f64,
            };
            if largest > held {
                notes.push(format!(
                    "areas go up to {}, but the levels hold {} together: `{}` is taken to go on",
                    bytes(largest as u64),
                    bytes(held as u64),
                    last.name
                ));
            }
        }
        if !fitted.solved.settled {
            notes.push(format!(
                "weights did not come to stand still in {} iterations: \
                 the values depend on where they began",
                fitted.solved.iterations
            ));
        }
        notes.extend(self.outliers(fitted));
        notes
    }

    /// A sentence on points far from the model, when there are many.
    fn outliers(&self, fitted: &Fitted) -> Option<String> {
        let residuals: Vec<f64> = fitted
            .solved
            .model
            .iter()
            .zip(&self.measured)
            .map(|(model, measured)| measured / model.max(1e-3 * measured) - 1.0)
            .collect();
        let sigma = robust_sigma(&residuals)?;
        let limit = (OUTLYING_SIGMAS * sigma).max(NEVER_OUTLYING);
        let outlying = residuals.iter().filter(|residual| residual.abs() > limit).count();
        if outlying as f64 <= MANY_OUTLIERS * residuals.len() as f64 {
            return None;
        }
        let (worst, residual) = residuals
            .iter()
            .enumerate()
            .max_by(|left, right| left.1.abs().total_cmp(&right.1.abs()))?;
        Some(format!(
            "{outlying} of {} points lie more than {:.1} % from the model (5 robust standard \
             deviations), the worst {:+.0} % at an area of {}; none was left out",
            residuals.len(),
            limit * 100.0,
            residual * 100.0,
            bytes(self.areas[worst] as u64)
        ))
    }

    /// Median relative error at areas that were left out, each of five parts in turn, with
    /// the weights of the whole fit.
    fn left_out(&self, fitted: &Fitted) -> Option<f64> {
        let folds = self.folds()?;
        let parts: Vec<Triangle> = folds
            .iter()
            .map(|rows| fitted.linear.triangle(&fitted.solved.scale, rows))
            .collect();
        let mut errors = Vec::with_capacity(self.measured.len());
        for (out, rows) in folds.iter().enumerate() {
            let kept = parts
                .iter()
                .enumerate()
                .filter(|&(part, _)| part != out)
                .map(|(_, part)| part);
            let triangle = Triangle::together(kept)?;
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

    /// Rows in five parts by area; `None` with too few areas.
    pub(super) fn folds(&self) -> Option<Vec<Vec<usize>>> {
        let mut areas = self.areas.clone();
        areas.sort_by(f64::total_cmp);
        areas.dedup();
        if areas.len() < LEAST_AREAS {
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
