//! Sums of steps at given sizes and shapes: their heights, and what a further step would gain.

use nalgebra::{DMatrix, DVector};

use super::input::LevelOptions;
use super::leaving::MissShape;

/// Most steps of a sum.
pub(super) const MAX_STEPS: usize = 10;

/// Most that one point can cost, in squared standard deviations.
pub(super) const MAX_DEVIATION: f64 = 9.0;

/// Cost of a step with another shape than the first step has, besides its parameters.
const OTHER_SHAPE_COST: f64 = 6.0;

/// One step of a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// log₂ of the size in bytes.
    pub(super) octave: f64,
    /// Index of the shape in [`MissShape::all`].
    pub(super) shape: usize,
}

/// A sum of steps, solved.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// Steps in order of size.
    pub(super) steps: Vec<Step>,
    /// Nanoseconds of the base, then what each step adds.
    pub(super) heights: Vec<f64>,
    /// Σ min(r²/σ², 9).
    pub(super) cost: f64,
    /// Schwarz's criterion of the sum, with [`OTHER_SHAPE_COST`]; lower is better.
    pub(super) criterion: f64,
    /// Modelled nanoseconds at each point.
    pub(super) model: Vec<f64>,
}

/// The data and options of the search on one curve.
pub(super) struct Search<'a> {
    /// log₂ of the sizes in bytes.
    pub(super) octaves: Vec<f64>,
    pub(super) ns: Vec<f64>,
    pub(super) logs: Vec<f64>,
    pub(super) sigma: f64,
    pub(super) options: &'a LevelOptions,
    /// ln n, the price of one parameter in the criterion.
    pub(super) price: f64,
}

impl Search<'_> {
    /// Fits the heights of `steps` with weights relative to the model, which starts as `model`;
    /// `None` if a height is not positive.
    pub(super) fn solve(&self, mut steps: Vec<Step>, model: Option<&[f64]>) -> Option<Sum> {
        steps.sort_by(|a, b| a.octave.total_cmp(&b.octave));
        let mut columns = vec![vec![1.0; self.ns.len()]];
        columns.extend(steps.iter().map(|step| self.feature(*step)));
        let mut model: Vec<f64> = model.unwrap_or(&self.ns).to_vec();
        let mut heights = Vec::new();
        for _ in 0..2 {
            heights = self.heights(&columns, &model)?;
            let least = heights[0].max(self.ns.iter().copied().fold(f64::INFINITY, f64::min) / 4.0);
            for (point, value) in model.iter_mut().enumerate() {
                let heights = heights.iter().zip(&columns);
                let sum: f64 = heights.map(|(height, column)| height * column[point]).sum();
                *value = sum.max(least);
            }
        }
        if heights
            .iter()
            .any(|height| height.is_nan() || *height <= 0.0)
        {
            return None;
        }
        let cost: f64 = self
            .logs
            .iter()
            .zip(&model)
            .map(|(log, model)| ((log - model.ln()) / self.sigma).powi(2).min(MAX_DEVIATION))
            .sum();
        let first = steps.first().map_or(0, |step| step.shape);
        let others = steps.iter().filter(|step| step.shape != first).count();
        let criterion =
            cost + (1 + 2 * steps.len()) as f64 * self.price + others as f64 * OTHER_SHAPE_COST;
        Some(Sum {
            steps,
            heights,
            cost,
            criterion,
            model,
        })
    }

    /// Solves for the heights of `columns` once, with weights relative to `model`.
    fn heights(&self, columns: &[Vec<f64>], model: &[f64]) -> Option<Vec<f64>> {
        let count = columns.len();
        let mut normal = DMatrix::<f64>::zeros(count, count);
        let mut right = DVector::<f64>::zeros(count);
        for (point, (model, ns)) in model.iter().zip(&self.ns).enumerate() {
            // An outlier gets less weight; without this the weight of a point far below the model would stay
            // high.
            let off = ((ns / model).ln() / (4.0 * self.sigma)).abs().max(1.0);
            let weight = (model * model * off).recip();
            for row in 0..count {
                let weighted = weight * columns[row][point];
                right[row] += weighted * ns;
                for column in 0..=row {
                    normal[(row, column)] += weighted * columns[column][point];
                }
            }
        }
        for row in 0..count {
            for column in row + 1..count {
                normal[(row, column)] = normal[(column, row)];
            }
        }
        // Columns are scaled to length 1: a step that the curve hardly reaches has a tiny column.
        let scale: Vec<f64> = (0..count)
            .map(|column| {
                normal[(column, column)]
                    .sqrt()
                    .max(f64::MIN_POSITIVE)
                    .recip()
            })
            .collect();
        for row in 0..count {
            right[row] *= scale[row];
            for column in 0..count {
                normal[(row, column)] *= scale[row] * scale[column];
            }
        }
        let solved = normal.cholesky()?.solve(&right);
        Some(solved.iter().zip(&scale).map(|(a, b)| a * b).collect())
    }

    pub(super) fn feature(&self, step: Step) -> Vec<f64> {
        let shape = &MissShape::all()[step.shape];
        self.octaves
            .iter()
            .map(|octave| shape.misses(octave - step.octave))
            .collect()
    }

    /// The base and the steps of `sum` except `without`, orthonormal under the weights of `sum`.
    pub(super) fn basis(&self, sum: &Sum, without: Option<usize>) -> Basis {
        let weights: Vec<f64> = sum
            .model
            .iter()
            .zip(&self.ns)
            .map(|(model, ns)| {
                // Points beyond a step that the model lacks are far above the model; the larger of
                // model and point keeps their weights in proportion.
                (model.max(*ns) * self.sigma).recip()
            })
            .collect();
        let mut columns: Vec<Vec<f64>> = Vec::with_capacity(sum.steps.len() + 1);
        let raw = std::iter::once(weights.clone()).chain(
            sum.steps
                .iter()
                .enumerate()
                .filter(|(index, _)| Some(*index) != without)
                .map(|(_, step)| {
                    let mut feature = self.feature(*step);
                    for (value, weight) in feature.iter_mut().zip(&weights) {
                        *value *= weight;
                    }
                    feature
                }),
        );
        for mut column in raw {
            for _ in 0..2 {
                for done in &columns {
                    let along = dot(done, &column);
                    for (value, done) in column.iter_mut().zip(done) {
                        *value -= along * done;
                    }
                }
            }
            let length = dot(&column, &column).sqrt();
            if length > 1e-9 {
                column.iter_mut().for_each(|value| *value /= length);
                columns.push(column);
            }
        }
        let mut rest: Vec<f64> = self
            .ns
            .iter()
            .zip(&weights)
            .map(|(ns, weight)| ns * weight)
            .collect();
        for column in &columns {
            let along = dot(column, &rest);
            for (value, column) in rest.iter_mut().zip(column) {
                *value -= along * column;
            }
        }
        Basis::new(&weights, &rest, &columns)
    }
}

/// Precomputed sums of a curve without one step, from which [`Self::gain`] follows quickly.
pub(super) struct Basis {
    /// Values per point: the weight, the weighted residual, and the orthonormal columns.
    width: usize,
    /// `width` values per point.
    rows: Vec<f64>,
    /// For each point, sums over it and all later points of the weight times each value.
    behind: Vec<f64>,
}

impl Basis {
    fn new(weights: &[f64], rest: &[f64], columns: &[Vec<f64>]) -> Self {
        let width = 2 + columns.len();
        let mut rows = Vec::with_capacity(width * weights.len());
        for (point, (weight, rest)) in weights.iter().zip(rest).enumerate() {
            rows.extend([*weight, *rest]);
            rows.extend(columns.iter().map(|column| column[point]));
        }
        let mut behind = vec![0.0; width * (weights.len() + 1)];
        for (point, weight) in weights.iter().enumerate().rev() {
            for value in 0..width {
                behind[point * width + value] =
                    behind[(point + 1) * width + value] + weight * rows[point * width + value];
            }
        }
        Self {
            width,
            rows,
            behind,
        }
    }

    /// Decrease of the sum of squares by adding `step`; 0 for a step that goes down.
    pub(super) fn gain(&self, search: &Search<'_>, step: Step) -> f64 {
        let shape = &MissShape::all()[step.shape];
        let place = |octaves: f64| {
            let limit = step.octave + octaves;
            search.octaves.partition_point(|octave| *octave < limit)
        };
        let (from, to) = (place(shape.from), place(shape.to));
        // From `to` on everything misses, and the sums are precomputed.
        let mut sums = [0.0; MAX_STEPS + 4];
        let sums = &mut sums[..self.width];
        sums.copy_from_slice(&self.behind[to * self.width..(to + 1) * self.width]);
        for point in from..to {
            let misses = shape.misses(search.octaves[point] - step.octave);
            let row = &self.rows[point * self.width..(point + 1) * self.width];
            let value = misses * row[0];
            sums[0] += value * value;
            for (sum, other) in sums[1..].iter_mut().zip(&row[1..]) {
                *sum += value * other;
            }
        }
        let (square, along) = (sums[0], sums[1]);
        let left = square - sums[2..].iter().map(|known| known * known).sum::<f64>();
        if along <= 0.0 || left <= 1e-9 * square {
            return 0.0;
        }
        along * along / left
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
