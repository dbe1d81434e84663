//! Notes on a fit: sentences that a reader needs besides the figures.

use membound_types::{SizeMeaning, Weights};

use super::misfit::{Miss, misfit};
use super::problem::{Fitted, Problem};
use crate::declared::bytes;
use crate::stats::robust_sigma;

/// Robust standard deviations beyond which a residual is an outlier.
const OUTLYING_SIGMAS: f64 = 5.0;
/// Relative residual below which no point is an outlier: data may be rounded or computed.
const MIN_OUTLIER_RESIDUAL: f64 = 0.01;
/// Share of outliers above which there is a note.
const MAX_UNREPORTED_OUTLIER_SHARE: f64 = 0.01;

/// Relative noise above which the paper's weights shift values by more than their errors.
const MIN_BIASING_NOISE: f64 = 0.05;

/// All notes on a fit.
pub(super) fn notes(problem: &Problem<'_>, fitted: &Fitted) -> Vec<String> {
    let topology = problem.design.topology();
    let mut notes = Vec::new();
    let largest = problem.areas.iter().copied().fold(0.0, f64::max);
    let inner = fitted.edges.reach.last().copied().unwrap_or(0.0);
    if let Some(last) = topology.levels.last()
        && let Some(size) = last.size_bytes
    {
        let capacity = match topology.sizes {
            SizeMeaning::Own => inner + size as f64,
            SizeMeaning::Reach => size as f64,
        };
        if largest > capacity {
            notes.push(format!(
                "areas go up to {}, but the levels hold {} together: `{}` is taken to go on",
                bytes(largest as u64),
                bytes(capacity as u64),
                last.name
            ));
        }
    }
    if !fitted.solved.settled {
        notes.push(format!(
            "weights did not converge in {} iterations: \
             the values depend on their starting point",
            fitted.solved.iterations
        ));
    }
    notes.extend(biased(problem, fitted));
    notes.extend(poor(problem, fitted));
    notes.extend(outliers(problem, fitted));
    notes
}

/// A note on the paper's weights if the noise makes them biased.
fn biased(problem: &Problem<'_>, fitted: &Fitted) -> Option<String> {
    if problem.options.weights != Weights::Measured {
        return None;
    }
    let values = fitted.solved.model.iter().zip(&problem.measured);
    let relative: Vec<f64> = values
        .map(|(model, measured)| measured / model - 1.0)
        .collect();
    let noise = robust_sigma(&relative).filter(|noise| *noise > MIN_BIASING_NOISE)?;
    Some(format!(
        "dividing by measured values, as the paper does, takes all times about {:.1} % too low at \
         a noise of {:.0} %, which the intervals do not hold; `--weights model` does not",
        noise * noise * 100.0,
        noise * 100.0
    ))
}

/// A note on a model that does not describe its data.
fn poor(problem: &Problem<'_>, fitted: &Fitted) -> Option<String> {
    let places = problem.windows.iter().zip(&problem.areas);
    let values = fitted.solved.model.iter().zip(&problem.measured);
    let mut misses: Vec<Miss> = places
        .zip(values)
        .map(|((window, &area), (model, measured))| Miss {
            window: window.unwrap_or(0.0),
            area,
            relative: model / measured - 1.0,
        })
        .collect();
    let typical = misfit(&mut misses)?;
    let given = match problem.options.fixed.is_empty() {
        true => "the topology or its sizes are",
        false => "the topology, its sizes or the values given are",
    };
    Some(format!(
        "this model does not describe these values: half of them are off by more than {:.1} %, \
         neighbours the same way; {given} not those of the machine",
        typical * 100.0
    ))
}

/// A note on points far from the model, if there are many.
fn outliers(problem: &Problem<'_>, fitted: &Fitted) -> Option<String> {
    let residuals: Vec<f64> = fitted
        .solved
        .model
        .iter()
        .zip(&problem.measured)
        .map(|(model, measured)| measured / model.max(1e-3 * measured) - 1.0)
        .collect();
    let sigma = robust_sigma(&residuals)?;
    let limit = (OUTLYING_SIGMAS * sigma).max(MIN_OUTLIER_RESIDUAL);
    let outlying = residuals
        .iter()
        .filter(|residual| residual.abs() > limit)
        .count();
    if outlying as f64 <= MAX_UNREPORTED_OUTLIER_SHARE * residuals.len() as f64 {
        return None;
    }
    let (worst, residual) = residuals
        .iter()
        .enumerate()
        .max_by(|left, right| left.1.abs().total_cmp(&right.1.abs()))?;
    Some(format!(
        "{outlying} of {} points lie more than {:.1} % from the model (5 robust standard \
         deviations), most of all at an area of {}, measured {:.0} % {} than modelled; none of \
         these was left out",
        residuals.len(),
        limit * 100.0,
        bytes(problem.areas[worst] as u64),
        residual.abs() * 100.0,
        if *residual > 0.0 { "slower" } else { "faster" },
    ))
}
