//! Fits curves without supervision: excludes single disturbed values and lists them in a note, and
//! frees the exponents only where the data require it.

use membound_types::{FitData, Model, Observation, Topology};

use super::fit;
use super::options::{FitError, FitOptions, KeepPoints, LeftOut, Start, Steepness};
use crate::declared::bytes;
use crate::stats::robust_sigma;

/// Robust standard deviations between the residuals of an outlier and of both its neighbours.
const FAR_SIGMAS: f64 = 6.0;
/// Least share by which an outlier exceeds the range between its neighbours. A wrong model is wrong
/// for several values in a row, and a value on a steep rise lies between its neighbours.
const MIN_SHARE: f64 = 0.1;
/// Robust standard deviations at which a residual is cut in the criterion.
const CUT_SIGMAS: f64 = 3.0;
/// Largest share of the values that may be excluded.
const MAX_SHARE: f64 = 0.05;

/// Most excluded areas that the note lists.
const MAX_NAMED: usize = 8;

/// Fits `observations` without single outliers; exponents are free if the criterion prefers that.
/// The excluded areas are listed in the model's notes.
///
/// # Errors
/// The errors of [`fit()`].
pub(super) fn fit_robustly(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<Model, FitError> {
    let model = preferred(topology, data, observations, options)?;
    let isolated = isolated_outliers(&model);
    if isolated.is_empty() {
        return Ok(model);
    }
    let kept: Vec<Observation> = observations
        .iter()
        .enumerate()
        .filter(|(index, _)| !isolated.contains(index))
        .map(|(_, observation)| *observation)
        .collect();
    let mut model = preferred(topology, data, &kept, options)?;
    let mut places: Vec<String> = isolated
        .iter()
        .take(MAX_NAMED)
        .map(|&index| bytes(observations[index].area_bytes))
        .collect();
    if isolated.len() > MAX_NAMED {
        places.push(format!("and {} more", isolated.len() - MAX_NAMED));
    }
    model.notes.push(format!(
        "{} of {} values are far off the curve while their neighbours are not, and were left \
         out as disturbed: at {}",
        isolated.len(),
        observations.len(),
        places.join(", ")
    ));
    Ok(model)
}

/// The fit with given or free exponents, whichever has the lower Schwarz criterion (BIC).
fn preferred(
    topology: &Topology,
    data: FitData,
    observations: &[Observation],
    options: &FitOptions,
) -> Result<Model, FitError> {
    let with = |steepness, left_out| {
        let options = FitOptions {
            steepness,
            left_out,
            points: KeepPoints::Keep,
            ..options.clone()
        };
        fit(topology, data, observations, &options)
    };
    let decided = match (options.start, data) {
        // The fit that produced these start values has already chosen.
        (Start::Near, _) => options.steepness,
        (Start::Wide, FitData::Window) => Steepness::Given,
        (Start::Wide, FitData::Latency) => {
            let given = with(Steepness::Given, LeftOut::Skip)?;
            let free = with(Steepness::Free, LeftOut::Skip)?;
            if criterion(&free) < criterion(&given) {
                Steepness::Free
            } else {
                Steepness::Given
            }
        }
    };
    with(decided, options.left_out)
}

/// Schwarz's criterion of a fit with relative errors, from the spread of its residuals.
fn criterion(model: &Model) -> f64 {
    let residuals = residuals(model);
    let count = residuals.len() as f64;
    // The robust spread: a few disturbed values must not decide about the exponents.
    let spread = robust_sigma(&residuals).unwrap_or(f64::INFINITY).max(1e-9);
    let scale: f64 = residuals
        .iter()
        .map(|residual| {
            let sigmas = (residual / spread).abs().min(CUT_SIGMAS);
            sigmas * sigmas
        })
        .sum::<f64>()
        * spread
        * spread
        / count;
    count * scale.ln() + model.method.rank as f64 * count.ln()
}

/// ln(measured ÷ modelled) of each observation.
fn residuals(model: &Model) -> Vec<f64> {
    let points = model.points.iter();
    points
        .map(|point| (point.measured.ns / point.model_ns.max(f64::MIN_POSITIVE)).ln())
        .collect()
}

/// Groups the indices in `order` by window and area, and sorts each group by time.
fn grouped(model: &Model, order: &[usize]) -> Vec<Vec<usize>> {
    let place = |index: usize| {
        let measured = &model.points[index].measured;
        (measured.window_bytes, measured.area_bytes)
    };
    let ns = |index: &usize| model.points[*index].measured.ns;
    order
        .chunk_by(|one, other| place(*one) == place(*other))
        .map(|group| {
            let mut group = group.to_vec();
            group.sort_by(|one, other| ns(one).total_cmp(&ns(other)));
            group
        })
        .collect()
}

/// Indices of isolated outliers: values far above or far below both of their neighbours.
/// Empty when more than [`MAX_SHARE`] of the values would be outliers.
fn isolated_outliers(model: &Model) -> Vec<usize> {
    let residuals = residuals(model);
    let Some(sigma) = robust_sigma(&residuals).filter(|sigma| *sigma > 0.0) else {
        return Vec::new();
    };
    let mut order: Vec<usize> = (0..residuals.len()).collect();
    order.sort_by_key(|&index| {
        let measured = &model.points[index].measured;
        (measured.window_bytes, measured.area_bytes)
    });
    let window = |index: usize| model.points[index].measured.window_bytes;
    let ns = |index: usize| model.points[index].measured.ns;
    // Repeated measurements of one area are kept or excluded together, by their median.
    let groups = grouped(model, &order);
    let order: Vec<usize> = groups.iter().map(|group| group[group.len() / 2]).collect();
    let neighbour = |index: usize, place: Option<usize>| {
        let other = *order.get(place?)?;
        (window(other) == window(index)).then_some(other)
    };
    let mut found: Vec<usize> = order
        .iter()
        .enumerate()
        .filter(|&(place, &index)| {
            let before = neighbour(index, place.checked_sub(1));
            let after = neighbour(index, Some(place + 1));
            // The first and last value are compared with the next two on their only side.
            let pair = match (before, after) {
                (Some(before), Some(after)) => Some((before, after)),
                (Some(near), None) => neighbour(index, place.checked_sub(2)).map(|far| (near, far)),
                (None, Some(near)) => neighbour(index, Some(place + 2)).map(|far| (near, far)),
                (None, None) => None,
            };
            pair.is_some_and(|(one, other)| {
                let offs = [one, other].map(|near| residuals[index] - residuals[near]);
                let above = ns(index) > ns(one).max(ns(other)) * (1.0 + MIN_SHARE);
                let below = ns(index) < ns(one).min(ns(other)) / (1.0 + MIN_SHARE);
                above && offs.iter().all(|off| *off > FAR_SIGMAS * sigma)
                    || below && offs.iter().all(|off| *off < -FAR_SIGMAS * sigma)
            })
        })
        .flat_map(|(place, _)| groups[place].iter().copied())
        .collect();
    if found.len() as f64 > (MAX_SHARE * residuals.len() as f64).max(1.0) {
        found.clear();
    }
    found.sort_unstable();
    found
}
