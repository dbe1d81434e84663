//! Describes the curve as a sum of steps, one per level.
//!
//! ```text
//! t(a) = t₁ + Σᵢ (tᵢ₊₁ − tᵢ)·mᵢ(a/Sᵢ)
//! ```
//!
//! mᵢ is the share of accesses that miss what levels 1…i hold (`leaving` has the shapes that
//! are tried). Given sizes and shapes the model is linear, so a single projection gives the gain of
//! a further step at any size. Sizes are searched over a grid, one after the
//! other, shapes first for the whole curve and then for single steps. The number of steps
//! is that with the least value of Schwarz's criterion,
//!
//! ```text
//! Σ min(r²/σ², 9) + p·ln n
//! ```
//!
//! with r the residuals of ln t, σ the scatter of neighbouring points about their own trend (which
//! depends on no model), and p two per step and one for the base. The sum is compared with smooth
//! curves (`smooth`), which have no levels, and with the scatter: if neither the sum of steps
//! nor a smooth curve describes the points within it, the model does not apply to the curve and
//! the answer is [`Answer::Neither`].

use std::cmp::Ordering;

use nalgebra::{DMatrix, DVector};

use super::LevelOptions;
use super::clean::Prepared;
use super::estimate::Found;
use super::leaving::MissShape;

/// Steps per octave of the grid on which sizes are searched, and the stride in that grid of the
/// search for a further step.
const GRID_STEPS_PER_OCTAVE: f64 = 12.0;
const COARSE_STRIDE: usize = 2;

/// Most steps of a sum.
const MAX_STEPS: usize = 10;

/// Least distance between the sizes of neighbouring levels, in octaves. Caches differ by a
/// factor of four and more; steps within a factor of three are parts of one climb.
const MIN_SEPARATION: f64 = 1.6;

/// Most that one point can cost, in squared standard deviations.
pub(super) const MAX_DEVIATION: f64 = 9.0;

/// Fewest points to which the model is applied.
const MIN_POINTS: usize = 12;

/// Fewest points below the first size and beyond the last.
const MIN_BESIDE: usize = 4;

/// Fewest points per octave: with fewer the scatter is not known, and every bend looks like a step.
const MIN_DENSITY: f64 = 3.0;

/// Cost of a step with another shape than the first step has, besides its parameters.
const OTHER_SHAPE_COST: f64 = 6.0;

/// Like [`MAX_EXCESS`], before shapes are chosen per step: above it other shapes do not help.
const MAX_EXCESS_COMMON: f64 = 5.0;

/// Largest ratio of the residuals' variance to the scatter's variance.
const MAX_EXCESS: f64 = 1.6;

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
    criterion: f64,
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
    price: f64,
}

/// Result of reading a curve as a sum of steps.
pub(crate) enum Answer {
    /// The sum of steps with these levels describes the curve.
    Levels(Vec<Found>),
    /// A smooth ramp describes the curve, better than steps do: it has no level.
    Ramp,
    /// Neither describes the curve.
    Neither,
}

/// Reads `points` as a sum of steps; `sigma` is their scatter in ln(ns).
pub(crate) fn fit(points: &[Prepared], sigma: f64, options: &LevelOptions) -> Answer {
    let Some((first, last)) = points.first().zip(points.last()) else {
        return Answer::Neither;
    };
    let needed = MIN_DENSITY * (last.octave - first.octave);
    if points.len() < MIN_POINTS || (points.len() as f64) < needed {
        return Answer::Neither;
    }
    let search = Search {
        octaves: points.iter().map(|point| point.octave).collect(),
        ns: points.iter().map(|point| point.log_ns.exp()).collect(),
        logs: points.iter().map(|point| point.log_ns).collect(),
        sigma,
        options,
        price: (points.len() as f64).ln(),
    };
    let most = MAX_EXCESS * points.len() as f64;
    let best = search.best();
    let least = best.as_ref().map_or(f64::INFINITY, |sum| sum.criterion);
    if let Some(smooth) = super::smooth::fit(&search.octaves, &search.logs, sigma)
        && smooth.criterion < least
    {
        let half = points.len() / 2;
        let rise = search.logs[half..].iter().sum::<f64>() / (points.len() - half) as f64
            - search.logs[..half].iter().sum::<f64>() / half as f64;
        // The means of its two halves differ by half of the whole rise of a ramp.
        return if smooth.cost <= most && 2.0 * rise >= options.least_ratio.ln() {
            Answer::Ramp
        } else {
            Answer::Neither
        };
    }
    match best {
        Some(best) if best.cost <= most && search.bends(&best) => {
            Answer::Levels(search.levels(&best))
        }
        _ => Answer::Neither,
    }
}

impl Search<'_> {
    fn best(&self) -> Option<Sum> {
        let mut common: Vec<Sum> = (0..MissShape::all().len())
            .filter(|&shape| MissShape::all()[shape].common)
            .filter_map(|shape| self.of_one_shape(shape))
            .collect();
        common.sort_by(by_criterion);
        common.truncate(2);
        common.retain(|sum| sum.cost <= MAX_EXCESS_COMMON * self.ns.len() as f64);
        common
            .into_iter()
            .filter_map(|sum| self.polish(sum))
            .min_by(by_criterion)
    }

    /// The best sum of steps that all have the shape `shape`.
    fn of_one_shape(&self, shape: usize) -> Option<Sum> {
        let mut sum = self.solve(Vec::new(), None)?;
        let mut best = sum.clone();
        let mut worse = 0;
        while sum.steps.len() < MAX_STEPS && worse < 2 {
            let Some(next) = self.with_another(&sum, &[shape]) else {
                break;
            };
            sum = self.settle(next, 2);
            if sum.criterion < best.criterion - 1e-9 {
                best = sum.clone();
                worse = 0;
            } else {
                worse += 1;
            }
        }
        Some(self.prune(best, &[]))
    }

    /// Chooses the shape of each step, then adds and removes steps until the criterion stops falling.
    fn polish(&self, sum: Sum) -> Option<Sum> {
        let every: Vec<usize> = (0..MissShape::all().len()).collect();
        let common: Vec<usize> = every
            .iter()
            .copied()
            .filter(|&shape| MissShape::all()[shape].common)
            .collect();
        let mut best = self.prune(self.settle_shapes(sum, &every), &every);
        for _ in 0..3 {
            let Some(more) = self.with_another(&best, &common) else {
                break;
            };
            let more = self.prune(self.settle_shapes(self.settle(more, 1), &every), &every);
            if more.criterion >= best.criterion - 1e-9 {
                break;
            }
            best = more;
        }
        Some(best)
    }

    /// `sum` with the further step that explains most; `None` if no step fits or gains.
    fn with_another(&self, sum: &Sum, shapes: &[usize]) -> Option<Sum> {
        let basis = self.basis(sum, None);
        let (first, last) = (self.octaves[0], self.octaves[self.octaves.len() - 1]);
        let count = ((last - first) * GRID_STEPS_PER_OCTAVE) as usize;
        let mut best: Option<(f64, Step)> = None;
        for cell in (0..=count).step_by(COARSE_STRIDE) {
            let octave = first + cell as f64 / GRID_STEPS_PER_OCTAVE;
            if !self.within(octave)
                || sum
                    .steps
                    .iter()
                    .any(|step| (step.octave - octave).abs() < MIN_SEPARATION)
            {
                continue;
            }
            for &shape in shapes {
                let gain = basis.gain(self, Step { octave, shape });
                if best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, Step { octave, shape }));
                }
            }
        }
        let (gain, step) = best?;
        if gain <= 0.0 {
            return None;
        }
        let mut steps = sum.steps.clone();
        steps.push(step);
        self.solve(steps, Some(&sum.model))
    }

    /// True if a size leaves enough points on either side.
    fn within(&self, octave: f64) -> bool {
        octave >= self.octaves[MIN_BESIDE - 1]
            && octave <= self.octaves[self.octaves.len() - MIN_BESIDE]
    }

    /// Moves one size after the other to where it explains most, at most `rounds` times.
    fn settle(&self, mut sum: Sum, rounds: usize) -> Sum {
        for _ in 0..rounds {
            let before = sum.cost;
            for index in 0..sum.steps.len() {
                let shapes = [sum.steps[index].shape];
                self.move_step(&mut sum, index, &shapes);
            }
            if sum.cost > before - 0.1 {
                break;
            }
        }
        sum
    }

    /// Like `settle`, also choosing among shapes.
    fn settle_shapes(&self, mut sum: Sum, shapes: &[usize]) -> Sum {
        for _ in 0..3 {
            let before = sum.criterion;
            for index in 0..sum.steps.len() {
                self.move_step(&mut sum, index, shapes);
            }
            if sum.criterion > before - 0.1 {
                break;
            }
        }
        sum
    }

    /// Moves step `index` to the best of the sizes around it and of the shapes `shapes`.
    fn move_step(&self, sum: &mut Sum, index: usize, shapes: &[usize]) {
        let basis = self.basis(sum, Some(index));
        let here = sum.steps[index];
        let mut best = (basis.gain(self, here), here);
        for cell in -9_i32..=9 {
            let octave = here.octave + f64::from(cell) / GRID_STEPS_PER_OCTAVE;
            let crowded = sum.steps.iter().enumerate().any(|(other, step)| {
                other != index && (step.octave - octave).abs() < MIN_SEPARATION
            });
            if crowded || !self.within(octave) {
                continue;
            }
            for &shape in shapes {
                let candidate = Step { octave, shape };
                let mut gain = basis.gain(self, candidate);
                if shape != here.shape {
                    gain -= 0.5;
                }
                if gain > best.0 {
                    best = (gain, candidate);
                }
            }
        }
        if best.1 == here {
            return;
        }
        let mut steps = sum.steps.clone();
        steps[index] = best.1;
        if let Some(moved) = self.solve(steps, Some(&sum.model))
            && moved.criterion < sum.criterion
        {
            *sum = moved;
        }
    }

    /// Removes steps as long as that improves the criterion or a step is too low for a level.
    /// If `shapes` is not empty, the neighbours of a removed step may change their shape.
    fn prune(&self, mut sum: Sum, shapes: &[usize]) -> Sum {
        loop {
            let lowest = self.lowest(&sum);
            let fewer = (0..sum.steps.len())
                .filter(|&index| lowest.is_none_or(|lowest| lowest == index))
                .filter_map(|index| {
                    let mut steps = sum.steps.clone();
                    steps.remove(index);
                    let mut fewer = self.solve(steps, Some(&sum.model))?;
                    if !shapes.is_empty() {
                        for near in [index.checked_sub(1), Some(index)].into_iter().flatten() {
                            if near < fewer.steps.len() {
                                self.move_step(&mut fewer, near, shapes);
                            }
                        }
                    }
                    Some(self.settle(fewer, 2))
                })
                .min_by(by_criterion);
            match fewer {
                Some(fewer) if lowest.is_some() || fewer.criterion <= sum.criterion => sum = fewer,
                _ => return sum,
            }
        }
    }

    /// Index of the lowest step if it is too low for a level.
    fn lowest(&self, sum: &Sum) -> Option<usize> {
        let mut below = sum.heights[0];
        let mut ratios = Vec::new();
        for height in &sum.heights[1..] {
            ratios.push((below + height) / below);
            below += height;
        }
        let (index, ratio) = ratios
            .into_iter()
            .enumerate()
            .min_by(|a, b| a.1.total_cmp(&b.1))?;
        (ratio.is_nan() || ratio < self.options.least_step).then_some(index)
    }

    /// Fits the heights of `steps` with weights relative to the model, which starts as `model`;
    /// `None` if a height is not positive.
    fn solve(&self, mut steps: Vec<Step>, model: Option<&[f64]>) -> Option<Sum> {
        steps.sort_by(|a, b| a.octave.total_cmp(&b.octave));
        let count = steps.len() + 1;
        let features: Vec<Vec<f64>> = steps.iter().map(|step| self.feature(*step)).collect();
        let mut model: Vec<f64> = model.unwrap_or(&self.ns).to_vec();
        let mut heights = Vec::new();
        for _ in 0..2 {
            let weights: Vec<f64> = model
                .iter()
                .zip(&self.ns)
                .map(|(model, ns)| {
                    // An outlier gets less weight; without this the weight of a point far below the model
                    // would stay high.
                    let off = ((ns / model).ln() / (4.0 * self.sigma)).abs().max(1.0);
                    (model * model * off).recip()
                })
                .collect();
            let mut normal = DMatrix::<f64>::zeros(count, count);
            let mut right = DVector::<f64>::zeros(count);
            let at = |column: usize, point: usize| match column {
                0 => 1.0,
                _ => features[column - 1][point],
            };
            for (point, (weight, ns)) in weights.iter().zip(&self.ns).enumerate() {
                for row in 0..count {
                    let weighted = weight * at(row, point);
                    right[row] += weighted * ns;
                    for column in 0..=row {
                        normal[(row, column)] += weighted * at(column, point);
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
            heights = (0..count)
                .map(|index| solved[index] * scale[index])
                .collect();
            let least = heights[0].max(self.ns.iter().copied().fold(f64::INFINITY, f64::min) / 4.0);
            for (point, value) in model.iter_mut().enumerate() {
                let sum: f64 = (0..count)
                    .map(|column| heights[column] * at(column, point))
                    .sum();
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

fn by_criterion(a: &Sum, b: &Sum) -> Ordering {
    a.criterion.total_cmp(&b.criterion)
}
