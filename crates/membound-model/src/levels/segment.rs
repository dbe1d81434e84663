//! Finds plateaus by penalised segmentation.
//!
//! Every point belongs to a plateau or to a climb. A plateau costs the sum of its squared
//! deviations (in standard errors, capped so that an outlier costs no more than a climb of
//! some points) from a straight line in log-log space whose tilt is limited, plus a
//! constant; a point in a climb costs another constant. Both constants follow the idea
//! of a Bayesian information criterion: a plateau has a level, a tilt and two
//! ends as parameters, a point in a climb its own value. Dynamic programming over all pairs of ends
//! finds the cheapest division exactly. Plateaus that are not different levels (too near in
//! latency, or joined by a climb that is too gentle) are then merged, and plateaus that end too
//! soon after the one below are removed as flat parts of its climb.

use std::ops::RangeInclusive;

use super::clean::Prepared;
use super::input::LevelOptions;
use crate::stats::median;

/// Cost of a plateau, besides its deviations.
const PLATEAU_COST: f64 = 6.0;

/// Cost of a point in a climb.
const CLIMB_COST: f64 = 4.0;

/// Most that one point can add to the cost of a plateau.
const MAX_DEVIATION: f64 = 9.0;

/// Octaves from which a plateau may have the steepest tilt; for shorter ones the limit is lower in
/// proportion, because a short tilted run would be a piece of a ramp.
const FULL_TILT_OCTAVES: f64 = 1.5;

/// Most that the latency of a level is, as a multiple of the next inner one's: third caches take up to twelve times as long
/// as second ones, and memory up to fifteen times as long as third ones.
const MAX_LEVEL_RATIO: f64 = 16.0;

/// Least extent in octaves of a plateau that is found as the flat part of a climb.
const MIN_CLIMB_OCTAVES: f64 = 0.9;

/// Largest slope of such a part, as a share of the slopes of the climbs on both sides.
const MAX_FLAT_CLIMB_SHARE: f64 = 0.5;

/// Fewest points of a plateau.
const MIN_POINTS: usize = 4;

/// A plateau as a range of points.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flat {
    /// Index of the first point.
    pub(crate) first: usize,
    /// Index of the last point.
    pub(crate) last: usize,
    /// Fitted ln(ns) at the first point.
    start: f64,
    /// Fitted ln(ns) at the last point.
    end: f64,
}

impl Flat {
    /// Fitted ln(ns) in the middle.
    const fn middle(&self) -> f64 {
        f64::midpoint(self.start, self.end)
    }
}

/// The plateaus of `points`, innermost first.
pub(crate) fn plateaus(points: &[Prepared], options: &LevelOptions) -> Vec<Flat> {
    // best[i]: least cost of points 0..i, and the plateau that ends at i - 1 if one does.
    let mut best: Vec<(f64, Option<Flat>)> = Vec::with_capacity(points.len() + 1);
    best.push((0.0, None));
    for end in 1..=points.len() {
        let mut cheapest = (best[end - 1].0 + CLIMB_COST, None);
        for first in 0..end.saturating_sub(MIN_POINTS - 1) {
            let last = end - 1;
            if points[last].octave - points[first].octave < options.least_span_octaves {
                break;
            }
            let Some((cost, flat)) = fit(points, first, last, options.steepest_plateau) else {
                continue;
            };
            let total = best[first].0 + PLATEAU_COST + cost;
            if total < cheapest.0 {
                cheapest = (total, Some(flat));
            }
        }
        best.push(cheapest);
    }
    let mut found = Vec::new();
    let mut end = points.len();
    while end > 0 {
        match best[end].1.take() {
            Some(flat) => {
                end = flat.first;
                found.push(flat);
            }
            None => end -= 1,
        }
    }
    found.reverse();
    with_flat_climbs(points, merge(points, found, options))
}

/// Adds a plateau between two others whose latencies differ too much for neighbouring levels: the flattest part of the
/// climb from one to the other.
///
/// If other programs use a changing part of a cache, the curve has no plateau for it, only a slope between two steeper
/// ones. A climb that becomes less steep all the way has no such slope: there the share of misses grows.
fn with_flat_climbs(points: &[Prepared], found: Vec<Flat>) -> Vec<Flat> {
    let mut filled: Vec<Flat> = Vec::new();
    for flat in found {
        if let Some(previous) = filled.last() {
            let is_too_high = flat.middle() - previous.middle() >= MAX_LEVEL_RATIO.ln();
            let between = is_too_high.then(|| flat_climb(points, previous, &flat));
            filled.extend(between.flatten());
        }
        filled.push(flat);
    }
    filled
}

/// The flattest part of the climb from `lower` to `upper`, if it is much flatter than the rest.
fn flat_climb(points: &[Prepared], lower: &Flat, upper: &Flat) -> Option<Flat> {
    let slope = |from: usize, to: usize| {
        (points[to].log_ns - points[from].log_ns) / (points[to].octave - points[from].octave)
    };
    let inside = lower.last + 1..upper.first;
    let ranges = inside.clone().flat_map(|first| {
        let ends = first + MIN_POINTS - 1..inside.end;
        ends.map(move |last| (first, last))
    });
    let is_flat = |&(first, last): &(usize, usize)| {
        let steeper = slope(lower.last, first).min(slope(last, upper.first));
        points[last].octave - points[first].octave >= MIN_CLIMB_OCTAVES
            && slope(first, last).max(0.0) <= MAX_FLAT_CLIMB_SHARE * steeper
    };
    let (first, last) = ranges
        .filter(is_flat)
        .min_by(|a, b| slope(a.0, a.1).total_cmp(&slope(b.0, b.1)))?;
    Some(Flat {
        first,
        last,
        start: points[first].log_ns,
        end: points[last].log_ns,
    })
}

/// Cost of points `first..=last` as one plateau, and the plateau. `None` if the points
/// rise too steeply for one.
fn fit(points: &[Prepared], first: usize, last: usize, steepest: f64) -> Option<(f64, Flat)> {
    let inside = &points[first..=last];
    let span = inside[inside.len() - 1].octave - inside[0].octave;
    let steepest = steepest * (span / FULL_TILT_OCTAVES).min(1.0);
    let middle = f64::midpoint(inside[0].octave, inside[inside.len() - 1].octave);
    let (mut level, mut tilt) = resistant_line(inside, middle);
    for _ in 0..2 {
        // Weighted least squares, with weights that fall with the distance from the previous
        // line (Tukey's biweight at six standard errors).
        let (mut w, mut wx, mut wy, mut wxx, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for point in inside {
            let x = point.octave - middle;
            let distance = (point.log_ns - level - tilt * x) / (6.0 * point.sigma);
            let weight = (1.0 - distance * distance).max(0.0).powi(2) / point.sigma.powi(2);
            w += weight;
            wx += weight * x;
            wy += weight * point.log_ns;
            wxx += weight * x * x;
            wxy += weight * x * point.log_ns;
        }
        let spread = w * wxx - wx * wx;
        if w <= 0.0 || spread <= 0.0 {
            break;
        }
        tilt = (w * wxy - wx * wy) / spread;
        if tilt > steepest {
            return None;
        }
        tilt = tilt.max(0.0);
        level = (wy - tilt * wx) / w;
    }
    let cost = inside
        .iter()
        .map(|point| {
            let deviation = (point.log_ns - level - tilt * (point.octave - middle)) / point.sigma;
            (deviation * deviation).min(MAX_DEVIATION)
        })
        .sum();
    let flat = Flat {
        first,
        last,
        start: level + tilt * (inside[0].octave - middle),
        end: level + tilt * (inside[inside.len() - 1].octave - middle),
    };
    Some((cost, flat))
}

/// A first line that is resistant to outliers: through the medians of the outer thirds
/// (Tukey's resistant line). Returns the level at `middle` and the tilt.
fn resistant_line(inside: &[Prepared], middle: f64) -> (f64, f64) {
    let third = inside.len().div_ceil(3);
    let of = |range: &[Prepared]| {
        let x: Vec<f64> = range.iter().map(|point| point.octave).collect();
        let y: Vec<f64> = range.iter().map(|point| point.log_ns).collect();
        (median(&x).unwrap_or(0.0), median(&y).unwrap_or(0.0))
    };
    let (left, right) = (of(&inside[..third]), of(&inside[inside.len() - third..]));
    let run = right.0 - left.0;
    let tilt = if run > 0.0 {
        (right.1 - left.1) / run
    } else {
        0.0
    };
    (
        f64::midpoint(left.1, right.1) + tilt * (middle - f64::midpoint(left.0, right.0)),
        tilt,
    )
}

/// Joins neighbouring plateaus that are one level.
fn merge(points: &[Prepared], found: Vec<Flat>, options: &LevelOptions) -> Vec<Flat> {
    let mut merged: Vec<Flat> = Vec::new();
    for flat in found {
        match merged.last_mut() {
            Some(previous) if !is_step(points, previous, &flat, options) => {
                previous.last = flat.last;
                previous.end = flat.end;
            }
            _ => merged.push(flat),
        }
    }
    // From the innermost out, so that one flat part of a ramp cannot hide the next.
    let mut index = 1;
    while index + 1 < merged.len() {
        let ends = points[merged[index].last].octave - points[merged[index - 1].last].octave;
        if ends < options.least_separation_octaves {
            merged.remove(index);
        } else {
            index += 1;
        }
    }
    merged
}

/// True if two plateaus are different levels.
fn is_step(points: &[Prepared], lower: &Flat, upper: &Flat, options: &LevelOptions) -> bool {
    upper.start - lower.end >= options.least_ratio.ln()
        && steepest_climb(points, lower.last..=upper.first) >= options.least_climb
}

/// The steepest slope of the curve in `range`, over half an octave or, if the
/// climb is shorter, over all of it.
fn steepest_climb(points: &[Prepared], range: RangeInclusive<usize>) -> f64 {
    let climb = &points[range];
    let whole = climb[climb.len() - 1].octave - climb[0].octave;
    let window = whole.min(0.5);
    let mut steepest = 0.0_f64;
    for (index, from) in climb.iter().enumerate() {
        // Near the end of the climb the window extends into the next plateau.
        let to = climb[index..]
            .iter()
            .find(|to| to.octave - from.octave >= window - 1e-9)
            .unwrap_or(&climb[climb.len() - 1]);
        let run = (to.octave - from.octave).max(window);
        if run > 0.0 {
            steepest = steepest.max((to.log_ns - from.log_ns) / run);
        }
    }
    steepest
}
