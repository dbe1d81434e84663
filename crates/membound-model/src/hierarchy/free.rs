//! Fits effective level sizes, and the exponents γ, around the linear model.
//!
//! The time depends on a size through the shares of the levels, so each trial size has its own
//! linear fit (variable projection, G. H. Golub and V. Pereyra 1973, with L. Kaufman's approximate
//! Jacobian of 1975), and the search covers only the logarithms of sizes and exponents: steps of
//! Levenberg and Marquardt from several starts, one of them a scan of each size by itself. The
//! minimised function has a kink where a size passes a measured area, so the search also tries the
//! other side of the kinks next to the best answer. With [`Weights::Model`] the minimised function
//! is the deviance whose estimating equations those weights solve, 2·Σ(y/m − 1 − ln y/m).

use membound_types::Weights;
use nalgebra::DVector;

use super::design::Edges;
use super::identify::identify;
use super::linear::{Linear, Solved, WEIGHT_TOLERANCE};
use super::options::{FitError, Start, Steepness};
use super::problem::{Fitted, Problem};
use super::solve::{Triangle, lengths, scaled, spectrum};

/// Most steps of one descent.
const MAX_STEPS: usize = 60;

/// Factors on all reaches at the start of a descent, besides a scan of each reach.
const START_REACH_FACTORS: [f64; 3] = [1.0, 0.75, 1.35];

/// Most rounds in which kinks are crossed.
const MAX_CROSSINGS: usize = 4;

/// Relative change of weights below which a trial fit counts as settled.
const TRIAL_WEIGHT_TOLERANCE: f64 = 1e-6;

/// Factors that the scan tries on each size: up to an octave down and up.
const REACH_SCAN_FACTORS: [f64; 10] = [0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.4, 1.7, 2.0];

/// Most steps of a descent from beyond a kink, or from a start that is near.
const MAX_SHORT_DESCENT_STEPS: usize = 6;

/// Relative gain below which a descent from a near start ends: sizes are known far less precisely.
const NEAR_GAIN: f64 = 1e-7;

/// Relative distance beyond a kink at which a descent begins.
const RELATIVE_KINK_OVERSHOOT: f64 = 1e-6;

/// Factors that the scan tries on each exponent.
const STEEPNESS_SCAN_FACTORS: [f64; 4] = [0.6, 0.8, 1.3, 1.8];

/// Least ratio of the reach of a level to that of the next inner level.
const MIN_RATIO: f64 = 1.001;

/// Range of exponents: a cyclic chase never hits more often than independent draws do (1), and an
/// exponent above the upper limit is a step at any resolution of areas.
const EXPONENTS: (f64, f64) = (1.0, 200.0);

/// Largest change of one logarithm in a step.
const MAX_STEP: f64 = 0.7;

/// Squared relative residual per value that is rounding error.
const ROUNDING: f64 = 1e-26;

/// The quantity that one non-linear column of the joint problem moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeParameter {
    /// Logarithm of the reach of a level.
    Reach(usize),
    /// Logarithm of the exponent of a level.
    Exponent(usize),
}

/// The searched quantities: reaches of all levels but the last, and their exponents if free.
pub(super) fn free_parameters(problem: &Problem<'_>, edges: &Edges) -> Vec<FreeParameter> {
    let fixed_levels = &problem.options.fixed_levels;
    let levels = (0..edges.reach.len()).filter(|level| !fixed_levels.contains(level));
    let mut parameters: Vec<FreeParameter> = levels.clone().map(FreeParameter::Reach).collect();
    if problem.options.steepness == Steepness::Free {
        parameters.extend(levels.map(FreeParameter::Exponent));
    }
    parameters
}

/// Sizes and exponents with the linear fit at them.
struct Trial {
    edges: Edges,
    linear: Linear,
    solved: Solved,
    merit: f64,
}

/// Fits sizes and linear parameters, starting from the sizes in `start`.
pub(super) fn fit_free(problem: &Problem<'_>, start: Edges) -> Result<Fitted, FitError> {
    let rows = problem.all_rows();
    let first = |factor: f64| {
        let mut wanted = start.clone();
        for reach in &mut wanted.reach {
            *reach *= factor;
        }
        let wanted = bounded(problem, &start, wanted);
        trial(problem, wanted, &rows, None, TRIAL_WEIGHT_TOLERANCE)
    };
    let given = first(1.0).ok_or(FitError::Overflow)?;
    if problem.options.start == Start::Near {
        let (best, steps) = descend(problem, given, &rows, MAX_SHORT_DESCENT_STEPS);
        return finished(problem, best, steps, &rows);
    }
    let scanned = scan(problem, scan(problem, given, &rows), &rows);
    let (mut best, mut iterations) = descend(problem, scanned, &rows, MAX_STEPS);
    for factor in START_REACH_FACTORS {
        let Some(first) = first(factor) else {
            continue;
        };
        let (found, steps) = descend(problem, first, &rows, MAX_STEPS);
        iterations += steps;
        if found.merit < best.merit {
            best = found;
        }
    }
    for _ in 0..MAX_CROSSINGS {
        let before = best.merit;
        if before <= ROUNDING * rows.len() as f64 {
            break;
        }
        let crossed = cross(problem, best, &rows);
        let (found, steps) = descend(problem, crossed, &rows, MAX_STEPS);
        best = found;
        iterations += steps;
        if best.merit >= before * (1.0 - 1e-9) {
            break;
        }
    }
    finished(problem, best, iterations, &rows)
}

/// Repeats the fit at the sizes of `best` with the strict tolerance of a reported fit.
fn finished(
    problem: &Problem<'_>,
    best: Trial,
    iterations: usize,
    rows: &[usize],
) -> Result<Fitted, FitError> {
    let best = trial(
        problem,
        best.edges,
        rows,
        Some(&best.solved.scale),
        WEIGHT_TOLERANCE,
    )
    .ok_or(FitError::Overflow)?;
    let joint = joint(problem, &best, rows);
    Ok(Fitted {
        identified: identify(&joint.matrix(), rows.len()),
        edges: best.edges,
        linear: best.linear,
        iterations: iterations + best.solved.iterations,
        solved: best.solved,
    })
}

/// |model ÷ measured − 1| at the rows in `out`, which are excluded from the fit.
///
/// Sizes are fitted again to `kept`, starting from those of `fitted`. `None` when numbers overflow.
pub(super) fn errors_without(
    problem: &Problem<'_>,
    fitted: &Fitted,
    kept: &[usize],
    out: &[usize],
) -> Option<Vec<f64>> {
    let start = fitted.edges.clone();
    let first = trial(
        problem,
        start,
        kept,
        Some(&fitted.solved.scale),
        TRIAL_WEIGHT_TOLERANCE,
    )?;
    let most = match problem.options.start {
        Start::Wide => MAX_STEPS,
        Start::Near => MAX_SHORT_DESCENT_STEPS,
    };
    let (found, _) = descend(problem, first, kept, most);
    Some(
        out.iter()
            .map(|&row| (found.solved.model[row] / problem.measured[row] - 1.0).abs())
            .collect(),
    )
}

/// The linear fit for `edges`; `None` when numbers overflow.
fn trial(
    problem: &Problem<'_>,
    edges: Edges,
    rows: &[usize],
    scale: Option<&[f64]>,
    still: f64,
) -> Option<Trial> {
    let linear = problem.linear(&edges);
    let weights = problem.options.weights;
    let solved = linear.solve(weights, rows, scale, still)?;
    let merit = rows
        .iter()
        .map(|&row| deviance(weights, problem.measured[row], solved.model[row]))
        .sum::<f64>();
    merit.is_finite().then_some(Trial {
        edges,
        linear,
        solved,
        merit,
    })
}

/// Tries other edges from the weights of `best`, to the precision that a comparison needs.
fn trial_near(problem: &Problem<'_>, best: &Trial, wanted: Edges, rows: &[usize]) -> Option<Trial> {
    let scale = Some(best.solved.scale.as_slice());
    trial(problem, wanted, rows, scale, TRIAL_WEIGHT_TOLERANCE)
}

/// Contribution of one point to the minimised function.
fn deviance(weights: Weights, measured: f64, model: f64) -> f64 {
    match weights {
        Weights::Equal => (measured - model).powi(2),
        Weights::Measured => (model / measured - 1.0).powi(2),
        Weights::Model => {
            let excess = measured / model.max(1e-3 * measured) - 1.0;
            // The direct formula x − ln(1 + x) loses all digits for small x.
            if excess.abs() < 1e-4 {
                excess * excess * (1.0 - excess * (2.0 / 3.0))
            } else {
                2.0 * (excess - excess.ln_1p())
            }
        }
    }
}

/// Limits `wanted` to valid values: reaches ascend, and stay within the measured areas if they
/// started there; exponents stay within [`EXPONENTS`]; held levels keep the values in `edges`.
fn bounded(problem: &Problem<'_>, edges: &Edges, wanted: Edges) -> Edges {
    let least = problem.areas.iter().copied().fold(f64::INFINITY, f64::min);
    let most = problem.areas.iter().copied().fold(0.0, f64::max);
    let mut wanted = wanted;
    for level in 0..wanted.reach.len() {
        let from = edges.reach[level];
        if from > least && from < most {
            wanted.reach[level] = wanted.reach[level].clamp(least, most);
        } else {
            // No data lie on both sides of it, so the fit does not depend on it.
            wanted.reach[level] = from;
        }
        if level > 0 {
            wanted.reach[level] = wanted.reach[level].max(wanted.reach[level - 1] * MIN_RATIO);
        }
        wanted.steepness[level] = wanted.steepness[level].clamp(EXPONENTS.0, EXPONENTS.1);
    }
    for &level in fixed_levels(problem, edges) {
        wanted.reach[level] = edges.reach[level];
        wanted.steepness[level] = edges.steepness[level];
        let inside = &mut wanted.reach[..level];
        let mut most = edges.reach[level];
        for reach in inside.iter_mut().rev() {
            most /= MIN_RATIO;
            *reach = reach.min(most);
        }
    }
    wanted
}

/// Indices of levels whose sizes and exponents do not change.
fn fixed_levels<'a>(problem: &Problem<'a>, edges: &Edges) -> impl Iterator<Item = &'a usize> {
    let levels = edges.reach.len();
    problem
        .options
        .fixed_levels
        .iter()
        .filter(move |&&level| level < levels)
}

/// Tries fixed factors on each size and exponent by itself.
fn scan(problem: &Problem<'_>, mut best: Trial, rows: &[usize]) -> Trial {
    for parameter in free_parameters(problem, &best.edges) {
        let centre = best.edges.clone();
        let factors: &[f64] = match parameter {
            FreeParameter::Reach(_) => &REACH_SCAN_FACTORS,
            FreeParameter::Exponent(_) => &STEEPNESS_SCAN_FACTORS,
        };
        for factor in factors {
            let mut wanted = centre.clone();
            match parameter {
                FreeParameter::Reach(level) => wanted.reach[level] *= factor,
                FreeParameter::Exponent(level) => wanted.steepness[level] *= factor,
            }
            let wanted = bounded(problem, &centre, wanted);
            if wanted == centre {
                continue;
            }
            let found = trial_near(problem, &best, wanted, rows);
            if let Some(found) = found.filter(|found| found.merit < best.merit) {
                best = found;
            }
        }
    }
    best
}

/// Tries, for each reach, a short descent from just beyond the next larger measured area and one
/// from just below the next smaller: the slope changes there.
fn cross(problem: &Problem<'_>, mut best: Trial, rows: &[usize]) -> Trial {
    for level in 0..best.edges.reach.len() {
        let centre = best.edges.clone();
        let reach = centre.reach[level];
        let areas = || rows.iter().map(|&row| problem.areas[row]);
        let above = areas()
            .filter(|&area| area > reach)
            .fold(f64::INFINITY, f64::min);
        let below = areas().filter(|&area| area < reach).fold(0.0, f64::max);
        for kink in [
            above * (1.0 + RELATIVE_KINK_OVERSHOOT),
            below * (1.0 - RELATIVE_KINK_OVERSHOOT),
        ] {
            if !(kink.is_finite() && kink > 0.0) {
                continue;
            }
            let mut wanted = centre.clone();
            wanted.reach[level] = kink;
            let wanted = bounded(problem, &centre, wanted);
            let found = trial_near(problem, &best, wanted, rows);
            let Some((found, _)) =
                found.map(|found| descend(problem, found, rows, MAX_SHORT_DESCENT_STEPS))
            else {
                continue;
            };
            if found.merit < best.merit {
                best = found;
            }
        }
    }
    best
}

/// Descends from `best` with Levenberg-Marquardt steps; also returns their number.
fn descend(problem: &Problem<'_>, mut best: Trial, rows: &[usize], most: usize) -> (Trial, usize) {
    let mut damping = 1e-3;
    let least_gain = match problem.options.start {
        Start::Wide => 1e-12,
        Start::Near => NEAR_GAIN,
    };
    for step in 0..most {
        if best.merit <= ROUNDING * rows.len() as f64 {
            return (best, step);
        }
        let Some(direction) = Projected::of(problem, &best, rows) else {
            return (best, step);
        };
        let before = best.merit;
        let mut moved_by = 0.0;
        loop {
            let change = direction.step(damping);
            let wanted = bounded(problem, &best.edges, direction.apply(&best.edges, &change));
            let found = trial_near(problem, &best, wanted, rows);
            if let Some(found) = found.filter(|found| found.merit < best.merit) {
                moved_by = change.amax();
                best = found;
                damping = (damping / 10.0).max(1e-12);
                break;
            }
            damping *= 10.0;
            if damping > 1e8 {
                break;
            }
        }
        if before - best.merit <= least_gain * before || moved_by < 1e-12 {
            return (best, step + 1);
        }
    }
    (best, most)
}

/// The projected problem: sizes and exponents move, and the linear parameters follow.
struct Projected {
    parameters: Vec<FreeParameter>,
    lengths: Vec<f64>,
    spectrum: super::solve::Spectrum,
    right: DVector<f64>,
}

impl Projected {
    fn of(problem: &Problem<'_>, trial: &Trial, rows: &[usize]) -> Option<Self> {
        let parameters = free_parameters(problem, &trial.edges);
        // The columns of positive parameters are independent, because a non-negative solution has only
        // independent ones.
        let used: Vec<usize> = (0..trial.linear.columns.len())
            .filter(|&column| trial.solved.values[column] > 0.0)
            .collect();
        let slopes = slopes(problem, trial, &parameters);
        let columns: Vec<&[f64]> = used
            .iter()
            .map(|&column| trial.linear.columns[column].as_slice())
            .chain(slopes.iter().map(Vec::as_slice))
            .collect();
        let residuals: Vec<f64> = problem
            .measured
            .iter()
            .zip(&trial.solved.model)
            .map(|(measured, model)| measured - model)
            .collect();
        let triangle = Triangle::of(&columns, &residuals, &trial.solved.scale, rows);
        if !triangle.is_finite() {
            return None;
        }
        let (skip, count) = (used.len(), parameters.len());
        let matrix = triangle
            .matrix()
            .view((skip, skip), (count, count))
            .into_owned();
        let right = triangle.right().rows(skip, count).into_owned();
        let lengths = lengths(&matrix);
        Some(Self {
            spectrum: spectrum(&scaled(matrix, &lengths)),
            parameters,
            lengths,
            right,
        })
    }

    /// Change of the logarithms in one step.
    fn step(&self, damping: f64) -> DVector<f64> {
        let mut change = DVector::zeros(self.parameters.len());
        for (place, value) in self.spectrum.values.iter().enumerate() {
            let square = value * value + damping;
            let along = self.spectrum.images.column(place).dot(&self.right) / square;
            change.axpy(along, &self.spectrum.vectors.column(place), 1.0);
        }
        for (change, length) in change.iter_mut().zip(&self.lengths) {
            *change = (*change / length).clamp(-MAX_STEP, MAX_STEP);
        }
        change
    }

    fn apply(&self, edges: &Edges, change: &DVector<f64>) -> Edges {
        let mut edges = edges.clone();
        for (parameter, change) in self.parameters.iter().zip(change.iter()) {
            match *parameter {
                FreeParameter::Reach(level) => edges.reach[level] *= change.exp(),
                FreeParameter::Exponent(level) => edges.steepness[level] *= change.exp(),
            }
        }
        edges
    }
}

/// Derivatives of the modelled times by the logarithms in `parameters`, one column each.
fn slopes(problem: &Problem<'_>, trial: &Trial, parameters: &[FreeParameter]) -> Vec<Vec<f64>> {
    parameters
        .iter()
        .map(|&parameter| {
            let (FreeParameter::Reach(level) | FreeParameter::Exponent(level)) = parameter;
            // The extra time of the next level is a linear function of the window.
            let at = |window: f64| step_time(problem, &trial.solved.values, level, window);
            let (once, each) = (at(0.0), at(1.0) - at(0.0));
            let reach = trial.edges.reach[level];
            let steepness = trial.edges.steepness[level];
            problem
                .areas
                .iter()
                .zip(&problem.windows)
                .map(|(&area, window)| {
                    if area <= reach {
                        return 0.0;
                    }
                    let step = once + each * window.unwrap_or(0.0);
                    let by_reach = -steepness * trial.edges.hits(level, area) * step;
                    match parameter {
                        FreeParameter::Reach(_) => by_reach,
                        FreeParameter::Exponent(_) => by_reach * (reach / area).ln(),
                    }
                })
                .collect()
        })
        .collect()
}

/// Time that a window of `window` bytes takes more in the next outer level than in `level`.
fn step_time(problem: &Problem<'_>, values: &DVector<f64>, level: usize, window: f64) -> f64 {
    let factors = problem.design.step(level, Some(window));
    let fitted: f64 = problem
        .fitted
        .iter()
        .zip(values.iter())
        .map(|(&term, value)| factors[term] * value)
        .sum();
    let given: f64 = factors
        .iter()
        .zip(&problem.given)
        .map(|(factor, given)| factor * given.unwrap_or(0.0))
        .sum();
    fitted + given
}

/// The triangle of all columns, linear columns and slopes, with the weights of the fit.
fn joint(problem: &Problem<'_>, trial: &Trial, rows: &[usize]) -> Triangle {
    let slopes = slopes(problem, trial, &free_parameters(problem, &trial.edges));
    let columns: Vec<&[f64]> = trial
        .linear
        .columns
        .iter()
        .chain(&slopes)
        .map(Vec::as_slice)
        .collect();
    Triangle::of(&columns, &problem.measured, &trial.solved.scale, rows)
}
