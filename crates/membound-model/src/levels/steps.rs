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
//! the answer is [`CurveReading::Neither`].

use std::cmp::Ordering;

use super::clean::Prepared;
use super::estimate::Found;
use super::input::LevelOptions;
use super::leaving::MissShape;
use super::sum::{MAX_STEPS, Search, Step, Sum};

/// Steps per octave of the grid on which sizes are searched, and the stride in that grid of the
/// search for a further step.
const GRID_STEPS_PER_OCTAVE: f64 = 12.0;
const COARSE_STRIDE: usize = 2;

/// Least distance between the sizes of neighbouring levels, in octaves. Caches differ by a
/// factor of four and more; steps within a factor of three are parts of one climb.
const MIN_SEPARATION: f64 = 1.6;

/// Fewest points to which the model is applied.
const MIN_POINTS: usize = 12;

/// Fewest points below the first size and beyond the last.
const MIN_POINTS_OUTSIDE: usize = 4;

/// Fewest points per octave: with fewer the scatter is not known, and every bend looks like a step.
const MIN_DENSITY: f64 = 3.0;

/// Like [`MAX_EXCESS`], before shapes are chosen per step: above it other shapes do not help.
const MAX_EXCESS_COMMON: f64 = 5.0;

/// Largest ratio of the residuals' variance to the scatter's variance.
const MAX_EXCESS: f64 = 1.6;

/// Result of reading a curve as a sum of steps.
pub(crate) enum CurveReading {
    /// The sum of steps with these levels describes the curve.
    Levels(Vec<Found>),
    /// A smooth ramp describes the curve, better than steps do: it has no level.
    Ramp,
    /// Neither describes the curve.
    Neither,
}

/// Reads `points` as a sum of steps; `sigma` is their scatter in ln(ns).
pub(crate) fn fit(points: &[Prepared], sigma: f64, options: &LevelOptions) -> CurveReading {
    let Some((first, last)) = points.first().zip(points.last()) else {
        return CurveReading::Neither;
    };
    let needed = MIN_DENSITY * (last.octave - first.octave);
    if points.len() < MIN_POINTS || (points.len() as f64) < needed {
        return CurveReading::Neither;
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
            CurveReading::Ramp
        } else {
            CurveReading::Neither
        };
    }
    match best {
        Some(best) if best.cost <= most && search.bends(&best) => {
            CurveReading::Levels(search.levels(&best))
        }
        _ => CurveReading::Neither,
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
        octave >= self.octaves[MIN_POINTS_OUTSIDE - 1]
            && octave <= self.octaves[self.octaves.len() - MIN_POINTS_OUTSIDE]
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
}

fn by_criterion(a: &Sum, b: &Sum) -> Ordering {
    a.criterion.total_cmp(&b.criterion)
}
