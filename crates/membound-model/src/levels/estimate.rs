//! Evaluates a sum of steps: latencies and sizes with their intervals, and which steps are levels.
//!
//! A latency's error follows from the derivatives of the model by heights, sizes and
//! shapes. A size's error follows from the likelihood over sizes and shapes with the other steps
//! unchanged, or from derivatives if that is wider.

use nalgebra::DMatrix;

use super::leaving::MissShape;
use super::plateaus::{Interval, Knee};
use super::sum::{MAX_DEVIATION, Search, Step, Sum};

/// Steps per octave of the grid of sizes for the final interval.
const FINE_STEPS_PER_OCTAVE: f64 = 24.0;

/// Largest slope at the flattest point between two steps, as a share of the second's steepest slope.
const MAX_FLATTEST: f64 = 0.6;

/// Share of misses from which a point shows the latency of the next level.
const REACHED_SHARE: f64 = 0.6;

/// Fewest points that must show the latency of the last level.
const MIN_REACHING: usize = 2;

/// Penalty of another shape than the chosen one in the likelihood for a size's interval.
const OTHER_SHAPE_COST: f64 = 2.0;

/// Standard deviation of a step's shape, as a share of the distance to its neighbour.
const SHAPE_ERROR: f64 = 0.7;

/// A level found by the sum of steps.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Latency in nanoseconds.
    pub(crate) latency: Interval,
    /// Size in bytes at which accesses leave the level; `None` if the curve ends on it.
    pub(crate) size: Option<(Interval, Knee)>,
}

impl Search<'_> {
    /// True if the curve bends upward at every step: between two steps it must be flatter than
    /// where the second rises, or both are pieces of one ramp.
    pub(super) fn bends(&self, sum: &Sum) -> bool {
        const EIGHTH: f64 = 0.125;
        let at = |octave: f64| {
            let risen: f64 = sum
                .steps
                .iter()
                .zip(&sum.heights[1..])
                .map(|(step, height)| {
                    height * MissShape::all()[step.shape].misses(octave - step.octave)
                })
                .sum();
            (sum.heights[0] + risen).ln()
        };
        let slopes = |from: f64, to: f64| {
            let count = ((to - from) / EIGHTH).max(1.0) as u32;
            (0..count).map(move |eighth| {
                let octave = from + f64::from(eighth) * EIGHTH;
                at(octave + EIGHTH) - at(octave)
            })
        };
        sum.steps.windows(2).all(|pair| {
            let (inner, outer) = (pair[0].octave, pair[1].octave);
            let flattest = slopes(inner, outer).fold(f64::INFINITY, f64::min);
            let steepest = slopes(outer - 2.0 * EIGHTH, outer + 1.0).fold(0.0, f64::max);
            flattest <= MAX_FLATTEST * steepest
        })
    }

    /// Latencies and sizes of the levels of a sum, with intervals.
    pub(super) fn levels(&self, sum: &Sum) -> Vec<Found> {
        let (latency_errors, octave_errors) = self.errors(sum);
        let mut latency = sum.heights[0];
        let mut found = Vec::new();
        let interval = |value: f64, error: f64| Interval {
            value,
            low: (value - 1.96 * error).max(value / 4.0),
            high: value + 1.96 * error,
        };
        let mut inner = interval(latency, latency_errors[0]);
        for (index, step) in sum.steps.iter().enumerate() {
            let height = sum.heights[index + 1];
            if self.is_level(sum, index, latency) {
                let size = self.size(sum, index, octave_errors[index]);
                found.push(Found {
                    latency: inner,
                    size: Some((size, MissShape::all()[step.shape].knee)),
                });
                inner = interval(latency + height, latency_errors[index + 1]);
            }
            latency += height;
        }
        if self.reaches_last(sum) {
            found.push(Found {
                latency: inner,
                size: None,
            });
        }
        found
    }

    /// True if the curve extends far enough beyond the last step to show its latency.
    fn reaches_last(&self, sum: &Sum) -> bool {
        sum.steps.last().is_none_or(|step| {
            let shape = &MissShape::all()[step.shape];
            self.octaves
                .iter()
                .filter(|octave| shape.misses(*octave - step.octave) >= REACHED_SHARE)
                .count()
                >= MIN_REACHING
        })
    }

    /// True if a step ends a level. If most steps are steep, a step that rises slowly is the reach of
    /// a TLB; if most rise slowly, as with random windows, it is a level.
    fn is_level(&self, sum: &Sum, index: usize, below: f64) -> bool {
        let gentle = |step: &Step| MissShape::all()[step.shape].gentle;
        let gentle_steps = sum.steps.iter().filter(|step| gentle(step)).count();
        if index == 0 || !gentle(&sum.steps[index]) || 2 * gentle_steps > sum.steps.len() {
            return true;
        }
        let shape = &MissShape::all()[sum.steps[index].shape];
        let height = sum.heights[index + 1];
        let climb = (0..8)
            .map(|eighth| {
                let from = f64::from(eighth - 4) / 8.0;
                let at = |octaves: f64| (below + height * shape.misses(octaves)).ln();
                (at(from + 0.5) - at(from)) / 0.5
            })
            .fold(0.0, f64::max);
        climb >= self.options.least_climb
    }

    /// Standard errors of the latencies in nanoseconds and of log₂ of the sizes, from derivatives.
    fn errors(&self, sum: &Sum) -> (Vec<f64>, Vec<f64>) {
        let count = sum.steps.len();
        let excess = (sum.cost / self.ns.len() as f64).max(1.0);
        let features: Vec<Vec<f64>> = sum.steps.iter().map(|step| self.feature(*step)).collect();
        let smooth: Vec<usize> = (0..count)
            .filter(|&index| MissShape::all()[sum.steps[index].shape].smooth)
            .collect();
        let shapes = 1 + count + smooth.len();
        let columns = shapes + count;
        let mut normal = DMatrix::<f64>::zeros(columns, columns);
        let mut row = vec![0.0; columns];
        for (point, &model) in sum.model.iter().enumerate() {
            let off = (self.logs[point] - model.ln()) / self.sigma;
            if off * off > MAX_DEVIATION {
                continue;
            }
            let scale = (model * self.sigma).recip();
            row[0] = scale * sum.heights[0];
            for index in 0..count {
                row[1 + index] = scale * sum.heights[1 + index] * features[index][point];
            }
            for (place, &index) in smooth.iter().enumerate() {
                const HALF: f64 = 1.0 / 24.0;
                let shape = &MissShape::all()[sum.steps[index].shape];
                let at = self.octaves[point] - sum.steps[index].octave;
                let slope = (shape.misses(at - HALF) - shape.misses(at + HALF)) / (2.0 * HALF);
                row[1 + count + place] = scale * sum.heights[1 + index] * slope;
            }
            for (index, step) in sum.steps.iter().enumerate() {
                let at = self.octaves[point] - step.octave;
                let like = &MissShape::all()[MissShape::all()[step.shape].neighbour];
                let other = like.misses(at) - features[index][point];
                row[shapes + index] = scale * sum.heights[1 + index] * other;
            }
            for first in 0..columns {
                for second in 0..columns {
                    normal[(first, second)] += row[first] * row[second];
                }
            }
        }
        for column in 0..columns {
            normal[(column, column)] += 1e-9 * normal[(column, column)] + 1e-12;
        }
        for index in 0..count {
            normal[(shapes + index, shapes + index)] += SHAPE_ERROR.powi(-2);
        }
        let Some(inverse) = normal.cholesky().map(|factor| factor.inverse()) else {
            return (vec![0.0; count + 1], vec![0.0; count]);
        };
        let latencies = (0..=count)
            .map(|level| {
                let mut variance = 0.0;
                for first in 0..=level {
                    for second in 0..=level {
                        variance +=
                            sum.heights[first] * sum.heights[second] * inverse[(first, second)];
                    }
                }
                (excess * variance.max(0.0)).sqrt()
            })
            .collect();
        let mut octaves = vec![0.0; count];
        for (place, &index) in smooth.iter().enumerate() {
            let at = 1 + count + place;
            octaves[index] = (excess * inverse[(at, at)]).sqrt();
        }
        (latencies, octaves)
    }

    /// Size of step `index`: mean and 95 % of the likelihood over sizes and shapes with the other
    /// steps unchanged, no narrower than the standard error `error` (in octaves) gives.
    fn size(&self, sum: &Sum, index: usize, error: f64) -> Interval {
        let basis = self.basis(sum, Some(index));
        let here = sum.steps[index];
        let excess = (sum.cost / self.ns.len() as f64).max(1.0);
        let cells = FINE_STEPS_PER_OCTAVE as i32;
        let mut places: Vec<(f64, f64)> = Vec::new();
        let mut all: Vec<(f64, f64)> = Vec::new();
        for cell in -cells..=cells {
            let octave = here.octave + f64::from(cell) / FINE_STEPS_PER_OCTAVE;
            for shape in 0..MissShape::all().len() {
                let gain = basis.gain(self, Step { octave, shape }) / excess;
                let cost = if shape == here.shape {
                    0.0
                } else {
                    OTHER_SHAPE_COST
                };
                all.push((octave, gain - cost));
            }
        }
        let most = all.iter().map(|(_, gain)| *gain).fold(0.0, f64::max);
        for (octave, gain) in all {
            let weight = ((gain - most) / 2.0).exp();
            match places.last_mut() {
                Some((last, sum)) if *last == octave => *sum += weight,
                _ => places.push((octave, weight)),
            }
        }
        let total: f64 = places.iter().map(|(_, weight)| weight).sum();
        let mean = places
            .iter()
            .map(|(octave, weight)| octave * weight)
            .sum::<f64>()
            / total;
        let quantile = |share: f64| {
            let mut sum = 0.0;
            places
                .iter()
                .find(|(_, weight)| {
                    sum += weight;
                    sum >= share * total
                })
                .map_or(mean, |(octave, _)| *octave)
        };
        let half = 0.5 / FINE_STEPS_PER_OCTAVE;
        Interval {
            value: mean.exp2(),
            low: (quantile(0.025) - half).min(mean - 1.96 * error).exp2(),
            high: (quantile(0.975) + half).max(mean + 1.96 * error).exp2(),
        }
    }
}
