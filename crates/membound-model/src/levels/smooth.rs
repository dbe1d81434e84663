//! Describes curves without levels: polynomials in log₂ of the size.
//!
//! Many small steps can imitate a smooth ramp, so steps count as levels only if they describe a
//! curve better than these polynomials by the same criterion. Both ns and ln(ns) are
//! tried, up to the fifth degree.

use nalgebra::{DMatrix, DVector};

/// Highest degree of a polynomial.
const MAX_DEGREE: usize = 5;

/// Most that one point can cost, in squared standard deviations, as in `steps`.
const MAX_DEVIATION: f64 = 9.0;

/// A smooth curve through the points.
pub(crate) struct Smooth {
    /// Σ min(r²/σ², 9).
    pub(crate) cost: f64,
    /// Schwarz's criterion of the polynomial; lower is better.
    pub(crate) criterion: f64,
}

/// The best smooth curve through ln(ns) `logs` with scatter `sigma`; `None` if no polynomial can
/// be solved.
pub(crate) fn fit(octaves: &[f64], logs: &[f64], sigma: f64) -> Option<Smooth> {
    let price = (logs.len() as f64).ln();
    (1..=MAX_DEGREE)
        .flat_map(|degree| [(degree, false), (degree, true)])
        .filter_map(|(degree, linear)| {
            let cost = cost(octaves, logs, sigma, degree, linear)?;
            Some(Smooth {
                cost,
                criterion: cost + (degree + 1) as f64 * price,
            })
        })
        .min_by(|a, b| a.criterion.total_cmp(&b.criterion))
}

/// Σ min(r²/σ², 9) of the polynomial of a degree in ns (`linear`) or ln(ns).
fn cost(octaves: &[f64], logs: &[f64], sigma: f64, degree: usize, linear: bool) -> Option<f64> {
    let (first, last) = (*octaves.first()?, *octaves.last()?);
    let half = (last - first) / 2.0;
    if half <= 0.0 {
        return None;
    }
    // Legendre polynomials over the range, which keep the system well conditioned.
    let terms = |octave: f64| {
        let x = (octave - first) / half - 1.0;
        let mut terms = [1.0, x, 0.0, 0.0, 0.0, 0.0];
        for next in 2..=MAX_DEGREE {
            let n = next as f64;
            terms[next] = ((2.0 * n - 1.0) * x * terms[next - 1] - (n - 1.0) * terms[next - 2]) / n;
        }
        terms
    };
    let mut model: Vec<f64> = logs.to_vec();
    for _ in 0..3 {
        let mut normal = DMatrix::<f64>::zeros(degree + 1, degree + 1);
        let mut right = DVector::<f64>::zeros(degree + 1);
        for ((octave, log), fitted) in octaves.iter().zip(logs).zip(&model) {
            let off = ((log - fitted) / (3.0 * sigma)).abs().max(1.0);
            let weight = if linear { (-2.0 * fitted).exp() } else { 1.0 } / off;
            let value = if linear { log.exp() } else { *log };
            let terms = terms(*octave);
            for row in 0..=degree {
                right[row] += weight * terms[row] * value;
                for column in 0..=degree {
                    normal[(row, column)] += weight * terms[row] * terms[column];
                }
            }
        }
        let solved = normal.cholesky()?.solve(&right);
        for (octave, fitted) in octaves.iter().zip(&mut model) {
            let terms = terms(*octave);
            let value: f64 = (0..=degree).map(|term| solved[term] * terms[term]).sum();
            *fitted = match linear {
                true if value <= 0.0 => return None,
                true => value.ln(),
                false => value,
            };
        }
    }
    let cost = logs
        .iter()
        .zip(&model)
        .map(|(log, fitted)| ((log - fitted) / sigma).powi(2).min(MAX_DEVIATION))
        .sum();
    Some(cost)
}
