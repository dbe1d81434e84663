//! Predicts times of windows and loads that were not measured, with the interval in which a
//! measurement would lie.
//!
//! A prediction needs only what the data determine: a sum of parameters can be known even if its
//! terms are not. A time that is not determined is missing, and its reason names the unknown
//! parameters.

use std::collections::BTreeMap;

use membound_types::{
    Basis, ExpectedHits, Figure, FitData, Model, Outcome, ParameterRole, PredictedPoint,
    SizeMeaning, Weights,
};

use super::design::{AccessPosition, Design, Edges, shares};
use super::stride::{HitShare, ReplacementAssumption, Spread, hit_share};
use crate::declared::bytes;
use crate::stats::student_95;

/// Factor, relative to the largest of its row, that may be rounding error of a zero.
const ROUNDING: f64 = 1e-8;

const NO_LEVELS: &str = "the model has no levels";

/// A 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Interval {
    /// The interval of a value that cannot be negative.
    pub(super) fn of(value: f64, error: f64, student: f64) -> Self {
        let Self { low, high } = Self::unlimited(value, error, student);
        Self {
            low: low.max(0.0).min(value),
            high,
        }
    }

    /// The interval of a value whose logarithm is normally distributed, about, with the relative error.
    pub(super) fn to_a_factor(value: f64, error: f64, student: f64) -> Self {
        if value <= 0.0 {
            return Self::of(value, error, student);
        }
        // The limit keeps exp() finite; larger factors say no more.
        let factor = (error / value * student).min(700.0).exp();
        Self {
            low: value / factor,
            high: (value * factor).min(f64::MAX),
        }
    }

    /// The interval of a value that can be negative.
    pub(super) fn unlimited(value: f64, error: f64, student: f64) -> Self {
        let half = error * student;
        Self {
            low: value - half,
            high: value + half,
        }
    }
}

/// Degrees of freedom of the fit of `model`, at least one.
fn freedom(model: &Model) -> usize {
    model.method.points.saturating_sub(model.method.rank).max(1)
}

/// A linear combination of the parameters of `model`, symbol → factor, with its 95 %
/// interval. Missing if the data do not determine it, or a symbol is not a parameter.
pub(super) fn estimate(model: &Model, factors: &BTreeMap<String, f64>) -> Outcome<Figure> {
    let mut row = vec![0.0; model.parameters.len()];
    for (symbol, &factor) in factors {
        let place = model
            .parameters
            .iter()
            .position(|parameter| parameter.symbol == *symbol);
        match place {
            Some(place) => row[place] = factor,
            None => return Outcome::missing(format!("the model has no parameter `{symbol}`")),
        }
    }
    let variance = match variance(model, &row) {
        Ok(variance) => variance,
        Err(unknown) => return not_determined(&unknown),
    };
    let value = value(model, &row);
    let student = student_95(freedom(model));
    let interval = if row.iter().any(|&factor| factor < 0.0) {
        Interval::unlimited(value, variance.sqrt(), student)
    } else {
        Interval::of(value, variance.sqrt(), student)
    };
    Outcome::Known(Figure {
        value,
        low: interval.low,
        high: interval.high,
        basis: Basis::Estimated,
    })
}

fn not_determined(unknown: &[&str]) -> Outcome<Figure> {
    Outcome::missing(format!("the data do not determine {}", unknown.join(", ")))
}

/// Sum of the linear parameters times their factors in `row`.
fn value(model: &Model, row: &[f64]) -> f64 {
    model
        .parameters
        .iter()
        .zip(row)
        .filter(|(parameter, _)| is_linear(parameter.role))
        .map(|(parameter, factor)| parameter.value * factor)
        .sum()
}

fn is_linear(role: ParameterRole) -> bool {
    !matches!(role, ParameterRole::Size | ParameterRole::Steepness)
}

/// Variance of the sum with factors `row`, or the parameters that leave it undetermined: those
/// whose factors remain after subtracting the determined combinations.
fn variance<'a>(model: &'a Model, row: &[f64]) -> Result<f64, Vec<&'a str>> {
    let parameters = &model.parameters;
    let place = |symbol: &String| {
        parameters
            .iter()
            .position(|parameter| parameter.symbol == *symbol)
    };
    let mut rest: Vec<f64> = parameters
        .iter()
        .zip(row)
        .map(|(parameter, &factor)| if parameter.identifiable { 0.0 } else { factor })
        .collect();
    let limit = ROUNDING
        * row
            .iter()
            .fold(0.0_f64, |most, factor| most.max(factor.abs()));
    for combination in &model.combinations {
        // The echelon form guarantees that the first symbol of a combination occurs in no other one.
        let (Some(symbol), Some(&first)) = (
            combination.symbols.first(),
            combination.coefficients.first(),
        ) else {
            continue;
        };
        let times = place(symbol).map_or(0.0, |place| rest[place]) / first;
        for (symbol, factor) in combination.symbols.iter().zip(&combination.coefficients) {
            if let Some(place) = place(symbol) {
                rest[place] -= times * factor;
            }
        }
    }
    let unknown: Vec<&str> = parameters
        .iter()
        .zip(&rest)
        .filter(|(_, rest)| rest.abs() > limit)
        .map(|(parameter, _)| parameter.symbol.as_str())
        .collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let mut variance = 0.0;
    for (covariances, &factor) in model.covariance.iter().zip(row) {
        if factor != 0.0 {
            let along: f64 = covariances.iter().zip(row).map(|(a, b)| a * b).sum();
            variance += factor * along;
        }
    }
    Ok(variance.max(0.0))
}

/// Predicts the time of a window, or of one load, with the 95 % interval of a measurement.
///
/// `window_bytes` is `None` for a model of latencies, which predicts the time of one load. The
/// interval includes the uncertainty of the parameters and the scatter of the points.
///
/// The time is missing for a window in a model of loads and the other way round, for a window
/// larger than the area, and if the data do not determine the sum of parameters at this point.
#[must_use]
pub fn predict(model: &Model, window_bytes: Option<u64>, area_bytes: u64) -> PredictedPoint {
    let mut point = PredictedPoint {
        window_bytes,
        area_bytes,
        stride_bytes: None,
        ns: Outcome::missing(""),
        expected: Vec::new(),
        caution: None,
    };
    let refusal = match (model.method.data, window_bytes) {
        _ if model.topology.levels.is_empty() => Some(NO_LEVELS),
        _ if area_bytes == 0 => Some("there is no area of 0 bytes"),
        (FitData::Latency, Some(_)) => Some("the model is of loads, not of windows"),
        (FitData::Window, None) => Some("the model is of windows: say of how many bytes"),
        (FitData::Window, Some(0)) => Some("there is no window of 0 bytes"),
        (FitData::Window, Some(window)) if window > area_bytes => {
            Some("the window is larger than the area")
        }
        _ => None,
    };
    if let Some(refusal) = refusal {
        point.ns = Outcome::missing(refusal);
        return point;
    }
    let spread = Spread {
        span: area_bytes as f64,
        spacing: 0.0,
    };
    locate(model, &mut point, spread);
    point.caution = extrapolation_note(model, window_bytes, area_bytes);
    point
}

/// Predicts one load of a random chase through `size_bytes` with elements `stride_bytes` apart,
/// from a model of latencies.
///
/// Every element is visited once a cycle, in an order that no prefetcher follows. For strides
/// other than the line:
///
/// - With elements m lines apart only one set in g is used, g the largest power of two in m, so
///   the elements occupy as much of a cache as g times as many lines. For the value, g is at most a
///   base page of lines (4096 ÷ line), since beyond a page frames can be random and the slices of
///   a last level hashed. The interval extends from evenly used sets (g = 1) to sets given by all
///   address bits, in a cache that keeps nothing of a cycle that does not fit.
/// - k elements of one line share its visits: with least recently used replacement a level that
///   holds a share r of the lines serves 1 − (1 − r)^(1 − 1/k) of the accesses. The interval
///   extends from this share to independent draws, for which the level serves r.
///
/// Strides up to a page touch all pages; longer ones leave some pages out, which lowers the TLB
/// term. The page-table term depends on the whole size.
#[must_use]
pub fn predict_stride(model: &Model, size_bytes: u64, stride_bytes: u64) -> PredictedPoint {
    let mut point = PredictedPoint {
        window_bytes: None,
        area_bytes: size_bytes,
        stride_bytes: Some(stride_bytes),
        ns: Outcome::missing(""),
        expected: Vec::new(),
        caution: None,
    };
    let refusal = if model.topology.levels.is_empty() {
        Some(NO_LEVELS)
    } else if model.method.data == FitData::Window {
        Some("the model is of windows: strides need one of loads")
    } else if stride_bytes == 0 {
        Some("there is no stride of 0 bytes")
    } else if size_bytes < stride_bytes {
        Some("the stride is larger than the buffer")
    } else {
        None
    };
    if let Some(refusal) = refusal {
        point.ns = Outcome::missing(refusal);
        return point;
    }
    let spread = Spread {
        span: size_bytes as f64,
        spacing: stride_bytes as f64,
    };
    locate(model, &mut point, spread);
    point.caution = extrapolation_note(model, None, size_bytes);
    point
}

/// Fills the time and the level shares of a point with accesses distributed as in `spread`.
fn locate(model: &Model, point: &mut PredictedPoint, spread: Spread) {
    let Some(edges) = Edges::of(&model.topology) else {
        point.ns = Outcome::missing("the model does not say how large its levels are");
        return;
    };
    let design = Design::new(&model.topology, model.method.data);
    let window = point.window_bytes.map(|bytes| bytes as f64);
    let mut stated: Option<Figure> = None;
    for assumption in ReplacementAssumption::ALL {
        let hit_shares: Vec<HitShare> = (0..edges.reach.len())
            .map(|level| hit_share(&edges, level, spread, line_of(model, level), assumption))
            .collect();
        let shares = shares(hit_shares.iter().map(|of_level| of_level.hits));
        if point.expected.is_empty() {
            let levels = model.topology.levels.iter().zip(&shares);
            point.expected = levels
                .map(|(level, &share)| ExpectedHits {
                    level: level.name.clone(),
                    share,
                })
                .collect();
        }
        let place = AccessPosition {
            window,
            shares: &shares,
            span: spread.span,
            spacing: spread.spacing,
        };
        let figure = match figure(model, &design, &place, &hit_shares) {
            Outcome::Known(figure) => figure,
            missing @ Outcome::Missing { .. } => {
                point.ns = missing;
                return;
            }
        };
        // The interval covers the results of all assumptions.
        stated = Some(stated.map_or(figure, |stated| Figure {
            low: stated.low.min(figure.low),
            high: stated.high.max(figure.high),
            ..stated
        }));
    }
    if let Some(figure) = stated {
        point.ns = Outcome::Known(figure);
    }
}

/// The time at `place`, with the interval of a measurement.
fn figure(
    model: &Model,
    design: &Design<'_>,
    place: &AccessPosition<'_>,
    hit_shares: &[HitShare],
) -> Outcome<Figure> {
    let mut row = vec![0.0; model.parameters.len()];
    for term in &design.terms {
        let mut parameters = model.parameters.iter();
        match parameters.position(|parameter| parameter.symbol == term.symbol) {
            Some(found) => row[found] = design.entry(term, place),
            None => {
                return Outcome::missing(format!("the model has no parameter `{}`", term.symbol));
            }
        }
    }
    let value = value(model, &row);
    slopes(model, design, place.window, hit_shares, &mut row);
    let sigma = match &model.residual {
        Outcome::Known(residual) => residual.sigma,
        Outcome::Missing { not_measured } => {
            return Outcome::Missing {
                not_measured: not_measured.clone(),
            };
        }
    };
    let variance = match variance(model, &row) {
        Ok(variance) => variance,
        Err(unknown) => return not_determined(&unknown),
    };
    let scatter = match model.method.weights {
        Weights::Equal => sigma,
        Weights::Model | Weights::Measured => sigma * value,
    };
    let error = variance.sqrt().hypot(scatter);
    let interval = Interval::of(value, error, student_95(freedom(model)));
    Outcome::Known(Figure {
        value,
        low: interval.low,
        high: interval.high,
        basis: Basis::Modelled,
    })
}

/// Bytes that are moved at once into the caches up to `level`: the longest line on the path to
/// the next level.
fn line_of(model: &Model, level: usize) -> f64 {
    let topology = &model.topology;
    let Some(next) = topology.levels.get(level + 1) else {
        return 1.0;
    };
    topology
        .components
        .iter()
        .filter(|component| !component.application && next.path.contains_key(&component.symbol))
        .map(|component| f64::from(component.line_bytes))
        .fold(1.0, f64::max)
}

/// Puts the derivatives of the time by fitted sizes and exponents, in their units, into `row`.
fn slopes(
    model: &Model,
    design: &Design<'_>,
    window: Option<f64>,
    hit_shares: &[HitShare],
    row: &mut [f64],
) {
    let sizes = role_places(model, ParameterRole::Size);
    let exponents = role_places(model, ParameterRole::Steepness);
    if sizes.iter().chain(&exponents).all(Option::is_none) {
        return;
    }
    for (level, hit_share) in hit_shares.iter().enumerate() {
        let step: f64 = design
            .step(level, window)
            .iter()
            .zip(&design.terms)
            .map(|(factor, term)| {
                let mut parameters = model.parameters.iter();
                factor
                    * parameters
                        .find(|parameter| parameter.symbol == term.symbol)
                        .map_or(0.0, |parameter| parameter.value)
            })
            .sum();
        if let Some(place) = exponents[level] {
            row[place] -= step * hit_share.by_steepness;
        }
        let by_reach = -step * hit_share.by_reach;
        // If sizes are own bytes, an inner size also moves this edge, unless a level between is held.
        let inner = match model.topology.sizes {
            SizeMeaning::Reach => level,
            SizeMeaning::Own => 0,
        };
        for place in sizes[inner..=level].iter().rev().map_while(|place| *place) {
            row[place] += by_reach;
        }
    }
}

/// Index of each level's parameter of the given role, if it has one.
fn role_places(model: &Model, role: ParameterRole) -> Vec<Option<usize>> {
    model
        .topology
        .levels
        .iter()
        .map(|level| {
            let mut parameters = model.parameters.iter();
            parameters
                .position(|parameter| parameter.role == role && parameter.related_to == level.name)
        })
        .collect()
}

/// A caution for a point outside the measured range.
fn extrapolation_note(model: &Model, window_bytes: Option<u64>, area_bytes: u64) -> Option<String> {
    let areas = model.points.iter().map(|point| point.measured.area_bytes);
    let (Some(least), Some(most)) = (areas.clone().min(), areas.max()) else {
        return Some(
            "the model was kept without its points, so nothing says whether this lies among them"
                .to_owned(),
        );
    };
    let windows = model
        .points
        .iter()
        .filter_map(|point| point.measured.window_bytes);
    let mut parts = Vec::new();
    if !(least..=most).contains(&area_bytes) {
        parts.push(beyond_range("area", area_bytes, least, most));
    }
    if let (Some(window), Some(least), Some(most)) =
        (window_bytes, windows.clone().min(), windows.max())
        && !(least..=most).contains(&window)
    {
        parts.push(beyond_range("window", window, least, most));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn beyond_range(what: &str, size: u64, least: u64, most: u64) -> String {
    format!(
        "the {what} of {} lies outside of those measured ({} to {})",
        bytes(size),
        bytes(least),
        bytes(most)
    )
}
