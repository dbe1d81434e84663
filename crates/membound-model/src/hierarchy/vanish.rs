//! Tests whether the constants that the paper found to vanish also vanish in the given data.

use membound_types::{ParameterRole, VanishingTest};
use statrs::distribution::{ContinuousCDF as _, FisherSnedecor};

use super::design::Column;
use super::identify::identify;
use super::linear::solution;
use super::problem::{Fitted, Problem};

/// p-value up to which the constants count as different from zero.
const MIN_PROBABILITY: f64 = 0.05;

/// Share of every modelled time below which the constants do not matter even if they exist.
const MIN_SHARE: f64 = 0.02;

/// Tests the constants of all components except the application's together: an F test of the
/// fit without them against the fit with them, both with the weights of the latter and
/// without negative parameters.
///
/// Because constants cannot be negative, data whose constants are zero reach a given F less
/// often than the F distribution says: the test reports constants too rarely, not too
/// often. `None` if there are no such constants, they were not fitted, or the data do not
/// determine them.
pub(super) fn vanishing(
    problem: &Problem<'_>,
    fitted: &Fitted,
    squares: f64,
) -> Option<VanishingTest> {
    let topology = problem.design.topology();
    let is_tested = |place: usize| {
        let term = &problem.design.terms[problem.fitted[place]];
        term.role == ParameterRole::Constant
            && matches!(term.column, Column::Once(component)
                if !topology.components[component].application)
            && !fitted.identified.idle[place]
    };
    let count = problem.fitted.len();
    let tested: Vec<usize> = (0..count).filter(|&place| is_tested(place)).collect();
    let others: Vec<usize> = (0..count).filter(|&place| !is_tested(place)).collect();
    if tested.is_empty() {
        return None;
    }
    let rows = problem.measured.len();
    let matrix = fitted.solved.triangle.matrix();
    let rank = |columns: &[usize]| identify(&matrix.select_columns(columns), rows).rank;
    let all = identify(&matrix, rows).rank;
    // Ranks are found numerically: columns that nearly depend on each other may have more without the others.
    let gained = all.saturating_sub(rank(&others));
    let freedom = rows.checked_sub(all).filter(|&freedom| freedom > 0)?;
    if gained == 0 || gained != rank(&tested) {
        return None;
    }
    let mut without = fitted.linear.clone();
    without.columns = others
        .iter()
        .map(|&place| fitted.linear.columns[place].clone())
        .collect();
    let all_rows = problem.all_rows();
    let triangle = without.triangle(&fitted.solved.scale, &all_rows);
    let model = without.model(&solution(&triangle, rows, None));
    let squares_without: f64 = all_rows
        .iter()
        .map(|&row| ((problem.measured[row] - model[row]) * fitted.solved.scale[row]).powi(2))
        .sum();
    let excess = (squares_without - squares).max(0.0) / gained as f64;
    let noise = squares / freedom as f64;
    let (f, p_value) = if excess == 0.0 {
        (0.0, 1.0)
    } else {
        // Without noise in the data any excess is significant and F infinite; limit it to a number.
        let f = (excess / noise.max(f64::MIN_POSITIVE)).min(f64::MAX);
        let distribution = FisherSnedecor::new(gained as f64, freedom as f64).ok()?;
        (f, distribution.sf(f).clamp(0.0, 1.0))
    };
    let largest_share = largest_share(fitted, &tested, &all_rows);
    Some(VanishingTest {
        symbols: tested
            .iter()
            .map(|&place| problem.design.terms[problem.fitted[place]].symbol.clone())
            .collect(),
        f,
        p_value,
        largest_share,
        vanish: p_value > MIN_PROBABILITY || largest_share < MIN_SHARE,
    })
}

/// The largest share of a modelled time that the `tested` constants make up.
fn largest_share(fitted: &Fitted, tested: &[usize], rows: &[usize]) -> f64 {
    rows.iter()
        .map(|&row| {
            let constants: f64 = tested
                .iter()
                .map(|&place| fitted.linear.columns[place][row] * fitted.solved.values[place])
                .sum();
            if constants > 0.0 {
                constants / fitted.solved.model[row]
            } else {
                0.0
            }
        })
        .fold(0.0, f64::max)
}
