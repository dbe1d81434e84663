//! Finds the levels of a machine without a description from its random windows alone.
//!
//! Windows are independent draws, so equation 5 of document 002 holds as it stands: every
//! level that ends at `e` adds a step times max(0, 1 − e/a), and a step is a constant plus a part
//! per byte of the window. All windows can therefore be fitted at once. Ends are added one at a
//! time, each time the one that explains most of the residual; then all ends are moved to where
//! they explain more. The search stops when Schwarz's criterion (BIC) finds a further end not worth
//! its three parameters, and at last tries to remove each end again. The curve of a single window
//! size would show fewer levels, because the program's own time makes all its steps small.
//!
//! An unknown TLB enters the time in the same way (equation 6) and cannot be distinguished from a
//! level here: its reach is then found as the end of a level. A TLB's time does not grow with the
//! window, but neither does the constant part of a cache.
//!
//! Areas and windows are in bytes, times in nanoseconds.

use membound_types::{Level, LevelKind, Observation, TlbTerm};

use super::linear::{Linear, solution};
use super::thin::thin_windows;
use crate::stats::{median, robust_sigma};

/// Most level ends of one machine: seven levels inside the last, which has no end.
const MAX_ENDS: usize = 7;

/// Least ratio of neighbouring ends: half an octave.
const MIN_RATIO: f64 = std::f64::consts::SQRT_2;

/// Fewest distinct areas between two ends, so that a level's time is more than a guess.
const AREAS_INSIDE: usize = 2;

/// Fewest distinct areas beyond the last end, because accesses leave a level only gradually.
const AREAS_BEYOND: usize = 3;

/// Least step at the end of a level, as a share of the time of the levels inside.
const MIN_STEP: f64 = 0.03;

/// Lower limit of the relative scatter in the criterion: rounding of times and the model's own form.
const MIN_SCATTER: f64 = 1e-3;

/// Robust standard deviations at which a residual is cut.
const CUT_SIGMAS: f64 = 3.0;

/// Log residual below which nothing is cut: where most times are exact, a missing level shows in
/// few residuals, and they must not pass as disturbances.
const MIN_CUT_LOG_RESIDUAL: f64 = 0.1;

/// Share by which a value must exceed the range between its neighbours to be pulled back into it:
/// time only grows with the area, so such a value is disturbed.
const MIN_OUTLIER_EXCESS: f64 = 0.05;

/// Candidates for a new end that are fitted, after projection has ranked them all.
const FITTED_CANDIDATES: usize = 6;

/// Steps in ln(end) when an end is moved to where it explains most.
const MOVES: [f64; 4] = [0.17, 0.06, 0.02, 0.007];

/// Most rounds over all ends with one step length.
const MAX_ROUNDS: usize = 4;

/// Text in the model: how this search chose the number of levels.
pub(super) const SELECTION: &str = "sums of steps over all windows at once (equation 5), one end \
     added after the other and each tried for being left out, their number by Schwarz's \
     criterion (BIC) and against smooth ramps";

/// Text in the model: how this search found that there are no levels.
pub(super) const RAMP: &str = "a smooth ramp describes the windows better than any sum of steps by \
     Schwarz's criterion (BIC): no levels";

/// Note for levels found without a known TLB.
pub(super) const TLB_NOTE: &str = "windows alone cannot tell the reach of a TLB from the end of a \
     level: one of these levels may end where a TLB's reach does";

/// Levels in the windows, innermost first, and a text on how their number was chosen.
///
/// The last level has no end. Empty when a smooth ramp describes the windows better, or with too
/// few values.
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

/// The windows to be described, as parallel vectors.
struct Search {
    /// Window sizes divided by the median window size.
    windows: Vec<f64>,
    areas: Vec<f64>,
    ns: Vec<f64>,
    /// Distinct areas in bytes, ascending; areas within 5 % count as one.
    distinct: Vec<f64>,
    /// Parameters that one step adds, including its end.
    step_parameters: usize,
    tlb_reaches: Vec<f64>,
    rows: Vec<usize>,
}

/// Level ends with the linear fit at these ends.
#[derive(Clone)]
struct Trial {
    /// In bytes, ascending.
    ends: Vec<f64>,
    /// Constant and per-window time of the innermost level, then of every step, then TLB times.
    values: Vec<f64>,
    model: Vec<f64>,
    /// Weighted sum of squared residuals.
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
            ns: clamp_outliers(observations),
            distinct,
            step_parameters: if several { 3 } else { 2 },
            tlb_reaches: tlb
                .iter()
                .map(|term| term.entries as f64 * term.page_bytes as f64)
                .collect(),
            rows: (0..observations.len()).collect(),
        }
    }

    /// The ends that describe the windows best; `None` with too few values or when numbers overflow.
    fn best(&self) -> Option<Trial> {
        if self.ns.len() < 2 * self.step_parameters || self.windows.len() != self.ns.len() {
            return None;
        }
        let mut best = self.settled(Vec::new(), None)?;
        // A removed end may have occupied the place of a better one, so ends are added once more.
        for _ in 0..2 {
            let added = self.forward(&mut best);
            let removed = self.backward(&mut best);
            if !(added && removed) {
                break;
            }
        }
        Some(best)
    }

    /// Adds ends as long as they lower the criterion; true if it added one.
    fn forward(&self, best: &mut Trial) -> bool {
        let mut added = false;
        while best.ends.len() < MAX_ENDS {
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

    /// Removes ends as long as that lowers the criterion; true if it removed one.
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

    /// The measured areas, and midpoints between them, at which an end would explain most of the
    /// residual of `best`: the residual is projected on the part of the new columns that the columns
    /// of `best` do not span.
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

    /// True if enough areas lie between the ends, and the ends are far enough apart.
    fn is_placed(&self, ends: &[f64]) -> bool {
        let upto = |end: f64| {
            self.distinct
                .partition_point(|area| *area <= end * (1.0 + 1e-9))
        };
        let mut before = 0;
        for (place, &end) in ends.iter().enumerate() {
            let inside = upto(end);
            if inside < before + AREAS_INSIDE || place > 0 && end < ends[place - 1] * MIN_RATIO {
                return false;
            }
            before = inside;
        }
        ends.is_empty() || self.distinct.len() >= before + AREAS_BEYOND
    }

    /// True if every step is at least [`MIN_STEP`] of the time inside.
    fn is_sound(&self, trial: &Trial) -> bool {
        let mut inside = trial.values[0] + trial.values[1];
        trial.values[2..2 + 2 * trial.ends.len()]
            .chunks_exact(2)
            .all(|step| {
                let step = step[0] + step[1];
                let large = step >= MIN_STEP * inside;
                inside += step;
                large
            })
    }

    /// Moves the ends one at a time to where they explain more.
    fn refined(&self, start: Trial) -> Option<Trial> {
        let mut best = self.settled(start.ends.clone(), Some(&start))?;
        for length in MOVES {
            let scale = self.scale(&best);
            best = self.fitted(best.ends, &scale)?;
            for _ in 0..MAX_ROUNDS {
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

    /// The fit at `ends` with model weights, which start at those of `near`.
    fn settled(&self, ends: Vec<f64>, near: Option<&Trial>) -> Option<Trial> {
        let scale = match near {
            Some(near) => self.scale(near),
            None => self.ns.iter().map(|ns| 1.0 / ns).collect(),
        };
        let first = self.fitted(ends, &scale)?;
        let scale = self.scale(&first);
        self.fitted(first.ends, &scale)
    }

    /// Weights of the residuals: 1 ÷ model, and less for residuals beyond the cut.
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
            columns.push(self.shares_beyond(reach));
        }
        columns
    }

    fn step_columns(&self, end: f64) -> [Vec<f64>; 2] {
        let once = self.shares_beyond(end);
        let each = once.iter().zip(&self.windows);
        let each = each.map(|(once, window)| once * window).collect();
        [once, each]
    }

    /// Share of each area that lies beyond `end`.
    fn shares_beyond(&self, end: f64) -> Vec<f64> {
        let areas = self.areas.iter();
        areas.map(|area| (1.0 - end / area).max(0.0)).collect()
    }

    /// ln(measured ÷ modelled) of each observation.
    fn residuals(&self, trial: &Trial) -> Vec<f64> {
        let pairs = self.ns.iter().zip(&trial.model);
        pairs
            .map(|(ns, model)| (ns / model.max(1e-3 * ns)).ln())
            .collect()
    }

    /// Schwarz's criterion, plus a penalty for choosing each end among many areas: noise has as many
    /// chances to look like an end as there are areas.
    fn criterion(&self, trial: &Trial) -> f64 {
        let parameters = self.step_parameters * (trial.ends.len() + 1);
        let choices = 2.0 * (self.distinct.len() as f64).ln();
        schwarz(&self.residuals(trial), parameters) + choices * trial.ends.len() as f64
    }

    /// Schwarz's criterion of a smooth ramp: for each window size, ln(time) is a parabola in ln(area).
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

/// `ends` with `end` inserted in ascending order.
fn with(ends: &[f64], end: f64) -> Vec<f64> {
    let mut ends = ends.to_vec();
    ends.insert(ends.partition_point(|held| *held < end), end);
    ends
}

/// Times of `observations`; a time outside the range of both its neighbours in area by more than
/// [`MIN_OUTLIER_EXCESS`] is pulled back into that range.
fn clamp_outliers(observations: &[Observation]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..observations.len()).collect();
    order.sort_by_key(|&index| {
        (
            observations[index].window_bytes,
            observations[index].area_bytes,
        )
    });
    let mut clamped: Vec<f64> = observations.iter().map(|point| point.ns).collect();
    for three in order.windows(3) {
        let [before, here, after] = [0, 1, 2].map(|place| observations[three[place]]);
        if before.window_bytes != after.window_bytes {
            continue;
        }
        let (least, most) = (before.ns.min(after.ns), before.ns.max(after.ns));
        if here.ns > most * (1.0 + MIN_OUTLIER_EXCESS)
            || here.ns < least / (1.0 + MIN_OUTLIER_EXCESS)
        {
            clamped[three[1]] = here.ns.clamp(least, most);
        }
    }
    clamped
}

/// Absolute log residual at which residuals are cut.
fn cut(residuals: &[f64]) -> f64 {
    let scatter = robust_sigma(residuals).unwrap_or(0.0);
    (CUT_SIGMAS * scatter).max(MIN_CUT_LOG_RESIDUAL)
}

/// Schwarz's criterion of log residuals, cut at [`cut`].
fn schwarz(residuals: &[f64], parameters: usize) -> f64 {
    let count = residuals.len() as f64;
    let cut = cut(residuals);
    let squares: f64 = residuals
        .iter()
        .map(|residual| residual.abs().min(cut).powi(2))
        .sum();
    count * (squares / count + MIN_SCATTER * MIN_SCATTER).ln() + parameters as f64 * count.ln()
}

/// Adds to `basis` the unit vector of the part of `column` that `basis` does not span, if any.
fn push_orthogonal(basis: &mut Vec<Vec<f64>>, mut column: Vec<f64>) {
    let whole = dot(&column, &column);
    // Two passes of Gram-Schmidt suffice (Kahan).
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
