//! Levels of a machine that nobody has described, from its random windows alone.
//!
//! Windows are independent draws, so equation 5 of document 002 holds as it stands: every
//! level that ends at `e` adds a step times max(0, 1 − e/a), and a step is a constant and a
//! part for every byte of the window. All windows are therefore described at once, and ends
//! are chosen one after the other: the one that explains most of what is left, then all
//! ends moved to where they explain more, until Schwarz's criterion (BIC) finds a further
//! one not worth its three parameters; at last each is tried for being left out again.
//! A curve of one window alone, in which the program's own time makes all steps small,
//! would show fewer.
//!
//! A TLB that is not known enters the time in the same way (equation 6) and cannot be told
//! from a level here: its reach is then found as the end of one. Only its time not growing
//! with the window could tell, and that of a cache's constant part does not grow either.
//!
//! Areas and windows are in bytes, times in nanoseconds.

use membound_types::{Level, LevelKind, Observation, TlbTerm};

use super::linear::{Linear, solution};
use super::thin::thin_windows;
use crate::stats::{median, robust_sigma};

/// Ends that are looked for at most: seven and memory.
const MOST_ENDS: usize = 7;

/// Least ratio of neighbouring ends: half an octave.
const LEAST_RATIO: f64 = std::f64::consts::SQRT_2;

/// Areas that must lie on a level for its time to be more than a guess.
const AREAS_INSIDE: usize = 2;

/// Areas that must lie beyond the last end, where accesses leave it only by and by.
const AREAS_BEYOND: usize = 3;

/// Least step at the end of a level, as a share of the time inside.
const LEAST_STEP: f64 = 0.03;

/// Relative scatter that is never undercut: rounding of times and a model's own shape.
const LEAST_SCATTER: f64 = 1e-3;

/// Robust standard deviations beyond which a residual counts no more …
const CUT_SIGMAS: f64 = 3.0;

/// … unless it is smaller than this: where most times are exact, a missing level shows in
/// few residuals, and they must not pass for disturbances.
const NEVER_CUT: f64 = 0.1;

/// Share by which a value leaves the range between its neighbours to be pulled back there:
/// time only grows with the area, so nothing but a disturbance looks like that.
const LONELY_SHARE: f64 = 0.05;

/// Candidates of a search that are fitted after all have been ranked by projection.
const FITTED_CANDIDATES: usize = 6;

/// Steps of the logarithm of an end on its way to where it explains most.
const MOVES: [f64; 4] = [0.17, 0.06, 0.02, 0.007];

/// Rounds over all ends with one length of step.
const MOST_ROUNDS: usize = 4;

/// How the number of levels was chosen, when it was here.
pub(super) const SELECTION: &str = "sums of steps over all windows at once (equation 5), one end \
     added after the other and each tried for being left out, their number by Schwarz's \
     criterion (BIC) and against smooth ramps";

/// How it was found that there are none.
pub(super) const RAMP: &str = "a smooth ramp describes the windows better than any sum of steps by \
     Schwarz's criterion (BIC): no levels";

/// What is to be said of levels found without a known TLB.
pub(super) const TLB_NOTE: &str = "windows alone cannot tell the reach of a TLB from the end of a \
     level: one of these levels may end where a TLB's reach does";

/// Levels that windows show, innermost first, and how their number was chosen. The last is
/// without end. Empty where a smooth ramp says as much, or with too few values.
pub(super) fn levels_of_windows(
    observations: &[Observation],
    tlb: &[TlbTerm],
) -> (Vec<Level>, &'static str) {
    let search = Search::new(&thin_windows(observations), tlb);
    let Some(best) = search.best() else {
        return (Vec::new(), SELECTION);
    };
    if search
        .ramp_criterion()
        .is_some_and(|ramp| ramp < search.criterion(&best))
    {
        return (Vec::new(), RAMP);
    }
    (search.levels(&best), SELECTION)
}

/// Windows to be described.
struct Search {
    /// In units of the median window.
    windows: Vec<f64>,
    areas: Vec<f64>,
    ns: Vec<f64>,
    /// Different areas, ascending.
    distinct: Vec<f64>,
    /// Parameters of a step, its end included.
    step_parameters: usize,
    tlb_reaches: Vec<f64>,
    rows: Vec<usize>,
}

/// Ends with the linear fit that belongs to them.
#[derive(Clone)]
struct Trial {
    /// Ascending.
    ends: Vec<f64>,
    /// Constant and window's part of the innermost level, then of every step.
    values: Vec<f64>,
    model: Vec<f64>,
    /// Weighted squares of the residuals.
    squares: f64,
}

impl Search {
    fn new(observations: &[Observation], tlb: &[TlbTerm]) -> Self {
        let windows = || observations.iter().filter_map(|point| point.window_bytes);
        let all: Vec<f64> = windows().map(|bytes| bytes as f64).collect();
        let unit = median(&all).unwrap_or(1.0).max(1.0);
        let several = windows().max() != windows().min();
        let mut distinct: Vec<f64> = observations
            .iter()
            .map(|point| point.area_bytes as f64)
            .collect();
        let areas = distinct.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup_by(|next, kept| *next < *kept * 1.05);
        Self {
            windows: all.iter().map(|window| window / unit).collect(),
            areas,
            ns: calm(observations),
            distinct,
            step_parameters: if several { 3 } else { 2 },
            tlb_reaches: tlb
                .iter()
                .map(|term| term.entries as f64 * term.page_bytes as f64)
                .collect(),
            rows: (0..observations.len()).collect(),
        }
    }

    /// The ends that describe the windows best; `None` with too few values or numbers that
    /// overflow.
    fn best(&self) -> Option<Trial> {
        if self.ns.len() < 2 * self.step_parameters || self.windows.len() != self.ns.len() {
            return None;
        }
        let mut best = self.settled(Vec::new(), None)?;
        // What was left out may have stood where a better one belongs.
        for _ in 0..2 {
            let added = self.forward(&mut best);
            let removed = self.backward(&mut best);
            if !(added && removed) {
                break;
            }
        }
        Some(best)
    }

    /// Adds ends as long as they are worth it; whether one was.
    fn forward(&self, best: &mut Trial) -> bool {
        let mut added = false;
        while best.ends.len() < MOST_ENDS {
            let scale = self.scale(best);
            let found = self
                .promising(best, &scale)
                .into_iter()
                .filter_map(|end| self.fitted(with(&best.ends, end), &scale))
                .min_by(|one, other| one.squares.total_cmp(&other.squares))
                .and_then(|found| self.refined(found))
                .filter(|found| self.is_sound(found))
                .filter(|found| self.criterion(found) < self.criterion(best));
            let Some(found) = found else {
                break;
            };
            *best = found;
            added = true;
        }
        added
    }

    /// Leaves out ends that are not worth it; whether there was one.
    fn backward(&self, best: &mut Trial) -> bool {
        let mut removed = false;
        while !best.ends.is_empty() {
            let without = (0..best.ends.len()).filter_map(|place| {
                let mut ends = best.ends.clone();
                ends.remove(place);
                self.refined(self.settled(ends, Some(best))?)
            });
            let criteria = without.map(|found| (self.criterion(&found), found));
            let Some((criterion, found)) = criteria.min_by(|one, other| one.0.total_cmp(&other.0))
            else {
                break;
            };
            if criterion >= self.criterion(best) {
                break;
            }
            *best = found;
            removed = true;
        }
        removed
    }

    /// Areas, and the places half-way between two of them, at which an end explains most of
    /// what `best` leaves, by projection on what its columns do not span.
    fn promising(&self, best: &Trial, scale: &[f64]) -> Vec<f64> {
        let weighted = |column: &[f64]| -> Vec<f64> {
            column
                .iter()
                .zip(scale)
                .map(|(entry, scale)| entry * scale)
                .collect()
        };
        let mut basis: Vec<Vec<f64>> = Vec::new();
        for column in self.columns(&best.ends) {
            push_orthogonal(&mut basis, weighted(&column));
        }
        let residual: Vec<f64> = self
            .ns
            .iter()
            .zip(&best.model)
            .zip(scale)
            .map(|((ns, model), scale)| (ns - model) * scale)
            .collect();
        let spanned = basis.len();
        let mut ranked: Vec<(f64, f64)> = Vec::new();
        for end in self.candidates() {
            if !self.is_placed(&with(&best.ends, end)) {
                continue;
            }
            for column in self.step_columns(end) {
                push_orthogonal(&mut basis, weighted(&column));
            }
            let gain = basis[spanned..]
                .iter()
                .map(|direction| dot(direction, &residual).powi(2))
                .sum();
            basis.truncate(spanned);
            ranked.push((gain, end));
        }
        ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
        ranked.truncate(FITTED_CANDIDATES);
        ranked.into_iter().map(|(_, end)| end).collect()
    }

    fn candidates(&self) -> impl Iterator<Item = f64> + '_ {
        let between = self.distinct.windows(2);
        let between = between.map(|pair| (pair[0] * pair[1]).sqrt());
        self.distinct.iter().copied().chain(between)
    }

    /// Whether enough areas lie between the ends, which are not too near to each other.
    fn is_placed(&self, ends: &[f64]) -> bool {
        let upto = |end: f64| {
            self.distinct
                .partition_point(|area| *area <= end * (1.0 + 1e-9))
        };
        let mut before = 0;
        for (place, &end) in ends.iter().enumerate() {
            let inside = upto(end);
            if inside < before + AREAS_INSIDE || place > 0 && end < ends[place - 1] * LEAST_RATIO {
                return false;
            }
            before = inside;
        }
        ends.is_empty() || self.distinct.len() >= before + AREAS_BEYOND
    }

    /// Whether every step is large enough to be one.
    fn is_sound(&self, trial: &Trial) -> bool {
        let mut inside = trial.values[0] + trial.values[1];
        trial.values[2..2 + 2 * trial.ends.len()]
            .chunks_exact(2)
            .all(|step| {
                let step = step[0] + step[1];
                let large = step >= LEAST_STEP * inside;
                inside += step;
                large
            })
    }

    /// Moves the ends one by one to where they explain more.
    fn refined(&self, start: Trial) -> Option<Trial> {
        let mut best = self.settled(start.ends.clone(), Some(&start))?;
        for length in MOVES {
            let scale = self.scale(&best);
            best = self.fitted(best.ends, &scale)?;
            for _ in 0..MOST_ROUNDS {
                let before = best.squares;
                for place in 0..best.ends.len() {
                    for factor in [length.exp(), (-length).exp()] {
                        let mut ends = best.ends.clone();
                        ends[place] *= factor;
                        if !self.is_placed(&ends) {
                            continue;
                        }
                        if let Some(found) = self.fitted(ends, &scale)
                            && found.squares < best.squares
                        {
                            best = found;
                        }
                    }
                }
                if best.squares >= before * (1.0 - 1e-6) {
                    break;
                }
            }
        }
        self.settled(best.ends.clone(), Some(&best))
    }

    /// The fit with the weights that belong to it, beginning at those of `near`.
    fn settled(&self, ends: Vec<f64>, near: Option<&Trial>) -> Option<Trial> {
        let scale = match near {
            Some(near) => self.scale(near),
            None => self.ns.iter().map(|ns| 1.0 / ns).collect(),
        };
        let first = self.fitted(ends, &scale)?;
        let scale = self.scale(&first);
        self.fitted(first.ends, &scale)
    }

    /// Factors of the residuals: relative to the model, and less for those that lie far off.
    fn scale(&self, trial: &Trial) -> Vec<f64> {
        let residuals = self.residuals(trial);
        let cut = cut(&residuals);
        residuals
            .iter()
            .zip(trial.model.iter().zip(&self.ns))
            .map(|(residual, (model, ns))| {
                let far = (residual.abs() / cut).max(1.0);
                1.0 / (model.max(1e-3 * ns) * far.sqrt())
            })
            .collect()
    }

    fn fitted(&self, ends: Vec<f64>, scale: &[f64]) -> Option<Trial> {
        let linear = Linear::new(
            self.columns(&ends),
            vec![0.0; self.ns.len()],
            self.ns.clone(),
        );
        let triangle = linear.triangle(scale, &self.rows);
        if !triangle.is_finite() {
            return None;
        }
        let values = solution(&triangle, self.rows.len(), None);
        let model = linear.model(&values);
        let squares = model
            .iter()
            .zip(&self.ns)
            .zip(scale)
            .map(|((model, ns), scale)| ((ns - model) * scale).powi(2))
            .sum();
        Some(Trial {
            ends,
            values: values.as_slice().to_vec(),
            model,
            squares,
        })
    }

    fn columns(&self, ends: &[f64]) -> Vec<Vec<f64>> {
        let mut columns = vec![vec![1.0; self.ns.len()], self.windows.clone()];
        for &end in ends {
            columns.extend(self.step_columns(end));
        }
        for &reach in &self.tlb_reaches {
            columns.push(self.beyond(reach));
        }
        columns
    }

    fn step_columns(&self, end: f64) -> [Vec<f64>; 2] {
        let once = self.beyond(end);
        let each = once.iter().zip(&self.windows);
        let each = each.map(|(once, window)| once * window).collect();
        [once, each]
    }

    /// Share of windows that lie beyond `end`.
    fn beyond(&self, end: f64) -> Vec<f64> {
        let areas = self.areas.iter();
        areas.map(|area| (1.0 - end / area).max(0.0)).collect()
    }

    /// Measured ÷ modelled, as logarithms.
    fn residuals(&self, trial: &Trial) -> Vec<f64> {
        let pairs = self.ns.iter().zip(&trial.model);
        pairs
            .map(|(ns, model)| (ns / model.max(1e-3 * ns)).ln())
            .collect()
    }

    /// Schwarz's criterion. Noise has as many chances to look like an end as there are
    /// areas to choose from, which each end has to outweigh.
    fn criterion(&self, trial: &Trial) -> f64 {
        let parameters = self.step_parameters * (trial.ends.len() + 1);
        let choices = 2.0 * (self.distinct.len() as f64).ln();
        schwarz(&self.residuals(trial), parameters) + choices * trial.ends.len() as f64
    }

    /// Schwarz's criterion of a parabola in ln(area) for the logarithm of each window's
    /// times.
    fn ramp_criterion(&self) -> Option<f64> {
        let mut windows = self.windows.clone();
        windows.sort_by(f64::total_cmp);
        windows.dedup();
        let mut residuals = Vec::with_capacity(self.ns.len());
        for &window in &windows {
            let here = |row: &&usize| (self.windows[**row] - window).abs() < f64::EPSILON;
            let rows: Vec<usize> = self.rows.iter().filter(here).copied().collect();
            let column = |power| -> Vec<f64> {
                let areas = rows.iter().map(|&row| self.areas[row].log2() / 20.0);
                areas.map(|area: f64| area.powi(power)).collect()
            };
            let mut basis = Vec::new();
            for power in 0..3 {
                push_orthogonal(&mut basis, column(power));
            }
            let mut left: Vec<f64> = rows.iter().map(|&row| self.ns[row].ln()).collect();
            for direction in &basis {
                let along = dot(direction, &left);
                for (left, entry) in left.iter_mut().zip(direction) {
                    *left -= along * entry;
                }
            }
            residuals.extend(left);
        }
        let ramp = schwarz(&residuals, 3 * windows.len());
        ramp.is_finite().then_some(ramp)
    }

    fn levels(&self, trial: &Trial) -> Vec<Level> {
        let mut ns = 0.0;
        trial.values[..2 + 2 * trial.ends.len()]
            .chunks_exact(2)
            .enumerate()
            .map(|(index, step)| {
                ns += step[0] + step[1];
                let size = trial.ends.get(index).map(|end| end.round() as u64);
                Level {
                    name: format!("L{}", index + 1),
                    kind: LevelKind::Cache,
                    size_bytes: size,
                    size_low_bytes: size,
                    size_high_bytes: size,
                    latency_ns: ns,
                    latency_low_ns: ns,
                    latency_high_ns: ns,
                    latency_cycles: 0.0,
                    line_bytes: None,
                    line_basis: None,
                    declared_bytes: None,
                    note: None,
                }
            })
            .collect()
    }
}

/// `ends` and one more, ascending.
fn with(ends: &[f64], end: f64) -> Vec<f64> {
    let mut ends = ends.to_vec();
    ends.insert(ends.partition_point(|held| *held < end), end);
    ends
}

/// Times of `observations` with those that leave the range of both their neighbours in
/// area pulled back to it.
fn calm(observations: &[Observation]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..observations.len()).collect();
    order.sort_by_key(|&index| {
        (
            observations[index].window_bytes,
            observations[index].area_bytes,
        )
    });
    let mut calm: Vec<f64> = observations.iter().map(|point| point.ns).collect();
    for three in order.windows(3) {
        let [before, here, after] = [0, 1, 2].map(|place| observations[three[place]]);
        if before.window_bytes != after.window_bytes {
            continue;
        }
        let (least, most) = (before.ns.min(after.ns), before.ns.max(after.ns));
        if here.ns > most * (1.0 + LONELY_SHARE) || here.ns < least / (1.0 + LONELY_SHARE) {
            calm[three[1]] = here.ns.clamp(least, most);
        }
    }
    calm
}

/// Size beyond which residuals count no more.
fn cut(residuals: &[f64]) -> f64 {
    let scatter = robust_sigma(residuals).unwrap_or(0.0);
    (CUT_SIGMAS * scatter).max(NEVER_CUT)
}

/// Schwarz's criterion; residuals far off count as if they lay at the cut.
fn schwarz(residuals: &[f64], parameters: usize) -> f64 {
    let count = residuals.len() as f64;
    let cut = cut(residuals);
    let squares: f64 = residuals
        .iter()
        .map(|residual| residual.abs().min(cut).powi(2))
        .sum();
    count * (squares / count + LEAST_SCATTER * LEAST_SCATTER).ln() + parameters as f64 * count.ln()
}

/// Adds the direction of `column` that `basis` does not span, of length 1, if there is one.
fn push_orthogonal(basis: &mut Vec<Vec<f64>>, mut column: Vec<f64>) {
    let whole = dot(&column, &column);
    // Twice is enough (Kahan).
    for _ in 0..2 {
        for direction in basis.iter() {
            let along = dot(direction, &column);
            for (entry, other) in column.iter_mut().zip(direction) {
                *entry -= along * other;
            }
        }
    }
    let left = dot(&column, &column);
    if left > 1e-16 * whole {
        let length = left.sqrt();
        column.iter_mut().for_each(|entry| *entry /= length);
        basis.push(column);
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(one, other)| one * other).sum()
}
