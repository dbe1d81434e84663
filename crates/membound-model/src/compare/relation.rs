//! Fits how one curve follows from another: later = slope · first + shift, with errors in both.
//!
//! The line is that of York, Evensen, Martínez and De Basabe Delgado (Unified equations for
//! the slope, intercept, and standard errors of the best straight line, 2004), iterated
//! with Tukey's biweight so that single disturbed points have no influence. Document 000 found
//! that runs of its guests differed by a quantity that "shifts the graph up" for any
//! number of accesses: a shift with a slope of 1, which slower memory would not give.

use membound_types::CurveVerdict;

use crate::stats::Z95;
use crate::stats::{MAD_TO_SIGMA, median};

/// Fewest common points for a line with errors in both values.
pub const MIN_PLACES: usize = 4;
/// Significance level of each test. It is low because several hypotheses are tested in
/// turn.
const SIGNIFICANCE_LEVEL: f64 = 0.01;
/// Standard deviations from which a residual has no weight (Tukey's biweight: 95 % as
/// efficient as least squares on normal noise).
const BIWEIGHT_SIGMAS: f64 = 4.685;
/// Ratio of the residuals to the stated noise above which no line describes the difference.
const MAX_RESIDUAL_TO_NOISE: f64 = 2.5;
/// Share of points beyond four standard deviations above which no line describes the difference.
const MAX_STRAY_SHARE: f64 = 0.2;
/// Largest factor between two curves that is still a slope.
const MAX_SLOPE: f64 = 8.0;
const ROUNDS: usize = 60;

/// Scatter between two runs of one machine that all points have in common: the clock settles at
/// another step, or a neighbour is active during a whole part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Standard deviation of the slope.
    pub slope: f64,
    /// Standard deviation of the shift as a share of the first curve's smallest value.
    pub shift: f64,
}

/// The values of two curves at one x, with standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Size in bytes, or number of loads.
    pub x: f64,
    /// Value of the first curve.
    pub first: f64,
    /// Standard deviation of `first`.
    pub first_sigma: f64,
    /// Value of the later curve.
    pub later: f64,
    /// Standard deviation of `later`.
    pub later_sigma: f64,
}

impl Pair {
    /// The difference in units of its standard deviation.
    #[must_use]
    pub fn distance(&self) -> f64 {
        (self.later - self.first) / self.first_sigma.hypot(self.later_sigma)
    }

    fn usable(&self) -> bool {
        [self.x, self.first, self.later]
            .into_iter()
            .all(f64::is_finite)
            && self.first_sigma > 0.0
            && self.later_sigma > 0.0
            && self.first_sigma.is_finite()
            && self.later_sigma.is_finite()
    }
}

/// A value with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimated value.
    pub value: f64,
    /// Standard error of `value`.
    pub error: f64,
}

impl Estimate {
    /// The 95 % interval, for a normal error.
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        (self.value - Z95 * self.error, self.value + Z95 * self.error)
    }

    /// True if a test at [`SIGNIFICANCE_LEVEL`] does not reject `value`.
    fn allows(&self, value: f64) -> bool {
        two_sided((self.value - value) / self.error) > SIGNIFICANCE_LEVEL
    }
}

/// How the later curve follows from the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relation {
    /// Amount added to every value; the slope is 1 if the verdict is a shift.
    pub shift: Estimate,
    /// Factor of every value; the shift is 0 if the verdict is a slope.
    pub slope: Estimate,
    /// Form of the difference.
    pub verdict: CurveVerdict,
    /// Robust ratio of the residuals around the line to the stated noise.
    pub misfit: f64,
}

/// A fitted line and its goodness of fit.
#[derive(Clone, Copy, Debug)]
struct Line {
    shift: f64,
    slope: f64,
    shift_variance: f64,
    slope_variance: f64,
    covariance: f64,
    /// Median absolute standardised residual, as a standard deviation.
    misfit: f64,
    /// Share of points beyond four standard deviations.
    strays: f64,
    /// Sum of the biweight losses of all points.
    loss: f64,
}

/// Variances of shift and slope, and their covariance.
#[derive(Clone, Copy, Debug, Default)]
struct Variances {
    shift: f64,
    slope: f64,
    both: f64,
}

/// The free parameters of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Shift,
    Slope,
    Both,
}

/// Compares two curves. `None` with fewer than [`MIN_PLACES`] usable pairs.
///
/// The verdict, with tests at the 1 % level:
///
/// 1. *other* if no line fits: the residuals exceed 2.5 times the stated noise, or more than a
///    fifth of the points lies beyond four standard deviations, or the slope is beyond a factor
///    of eight;
/// 2. *same* if shift 0 and slope 1 together are not rejected;
/// 3. *shift* if slope 1 is not rejected and shift 0 is; *slope* in the opposite case;
///    *both* if both are rejected;
/// 4. if neither is rejected on its own, the one with the clearly better fit,
///    else *undecided*.
#[must_use]
pub fn relate(pairs: &[Pair], common: Common) -> Option<Relation> {
    let pairs: Vec<Pair> = pairs.iter().copied().filter(Pair::usable).collect();
    if pairs.len() < MIN_PLACES {
        return None;
    }
    let line = fit(&pairs, Form::Both)?;
    let scale = pairs
        .iter()
        .map(|pair| pair.first.abs())
        .fold(f64::INFINITY, f64::min);
    // A scatter above the stated noise widens the errors; a smaller one does not narrow them.
    let widened = line.misfit.max(1.0).powi(2);
    let shift_variance = line.shift_variance * widened + (common.shift * scale).powi(2);
    let slope_variance = line.slope_variance * widened + common.slope.powi(2);
    let covariance = line.covariance * widened;
    let shift = Estimate {
        value: line.shift,
        error: shift_variance.sqrt(),
    };
    let slope = Estimate {
        value: line.slope,
        error: slope_variance.sqrt(),
    };
    let misfit = line.misfit;
    let shifted = fit(&pairs, Form::Shift);
    let scaled = fit(&pairs, Form::Slope);
    // A form whose parameter is not rejected must also fit.
    let serves = |one: Option<Line>| {
        one.is_some_and(|one| one.misfit <= 1.5 * misfit.max(1.0) && one.strays <= MAX_STRAY_SHARE)
    };
    let steep = !(1.0 / MAX_SLOPE..=MAX_SLOPE).contains(&line.slope);
    let bent = misfit > MAX_RESIDUAL_TO_NOISE || line.strays > MAX_STRAY_SHARE;
    let verdict = if bent || (steep && !slope.allows(1.0)) {
        CurveVerdict::Other
    } else if joint(shift, slope, covariance) > SIGNIFICANCE_LEVEL {
        CurveVerdict::Same
    } else {
        match (shift.allows(0.0), slope.allows(1.0)) {
            (false, true) if serves(shifted) => CurveVerdict::Shift,
            (true, false) if serves(scaled) => CurveVerdict::Slope,
            (true, true) => clearly_better(shifted, scaled),
            _ => CurveVerdict::Both,
        }
    };
    // The parameter of the verdict is estimated with the other parameter fixed.
    let shift = match (verdict, shifted) {
        (CurveVerdict::Shift, Some(one)) => Estimate {
            value: one.shift,
            error: (one.shift_variance * widened)
                .sqrt()
                .hypot(common.shift * scale),
        },
        _ => shift,
    };
    let slope = match (verdict, scaled) {
        (CurveVerdict::Slope, Some(one)) => Estimate {
            value: one.slope,
            error: (one.slope_variance * widened).sqrt().hypot(common.slope),
        },
        _ => slope,
    };
    Some(Relation {
        shift,
        slope,
        verdict,
        misfit,
    })
}

/// The form that fits clearly better, if there is one.
fn clearly_better(shifted: Option<Line>, scaled: Option<Line>) -> CurveVerdict {
    let loss = |one: Option<Line>| one.map_or(f64::INFINITY, |one| one.loss);
    let (shifted, scaled) = (loss(shifted), loss(scaled));
    // Like a likelihood ratio: e^(4/2) is seven to one.
    if scaled - shifted > 4.0 {
        CurveVerdict::Shift
    } else if shifted - scaled > 4.0 {
        CurveVerdict::Slope
    } else {
        CurveVerdict::Undecided
    }
}

/// Probability of an estimate at least this far from shift 0 and slope 1 if these were true (Wald,
/// two degrees of freedom).
fn joint(shift: Estimate, slope: Estimate, covariance: f64) -> f64 {
    let (a, b) = (shift.value, slope.value - 1.0);
    let (va, vb) = (shift.error.powi(2), slope.error.powi(2));
    let determinant = va * vb - covariance * covariance;
    if determinant > 1e-12 * va * vb {
        let square = (vb * a * a - 2.0 * covariance * a * b + va * b * b) / determinant;
        (-0.5 * square).exp()
    } else {
        two_sided(b / slope.error).min(two_sided(a / shift.error))
    }
}

fn two_sided(z: f64) -> f64 {
    statrs::function::erf::erfc(z.abs() / std::f64::consts::SQRT_2)
}

/// The line of one form, by iteration over effective variances and biweights.
fn fit(pairs: &[Pair], form: Form) -> Option<Line> {
    let (mut shift, mut slope) = start(pairs, form)?;
    let mut variances = Variances::default();
    for _ in 0..ROUNDS {
        let weights = weights(pairs, shift, slope);
        let total: f64 = weights.iter().sum();
        if total.is_nan() || total <= 0.0 {
            return None;
        }
        let before = (shift, slope);
        match form {
            Form::Shift => {
                shift = mean(pairs, &weights, |pair| pair.later)
                    - mean(pairs, &weights, |pair| pair.first);
                variances.shift = 1.0 / total;
            }
            Form::Slope => (slope, variances) = improved_slope(pairs, &weights, slope)?,
            Form::Both => (shift, slope, variances) = improved_line(pairs, &weights, slope)?,
        }
        if !(shift.is_finite() && slope.is_finite()) {
            return None;
        }
        let still = (slope - before.1).abs() <= 1e-10 * slope.abs()
            && (shift - before.0).abs() <= 1e-10 * (shift.abs() + 1.0);
        if still {
            break;
        }
    }
    let residuals: Vec<f64> = pairs
        .iter()
        .map(|pair| residual(pair, shift, slope))
        .collect();
    let sizes: Vec<f64> = residuals.iter().map(|value| value.abs()).collect();
    let far = sizes.iter().filter(|size| **size > 4.0).count();
    Some(Line {
        shift,
        slope,
        shift_variance: variances.shift,
        slope_variance: variances.slope,
        covariance: variances.both,
        misfit: median(&sizes)? * MAD_TO_SIGMA,
        strays: far as f64 / pairs.len() as f64,
        loss: residuals.iter().map(|value| biweight_loss(*value)).sum(),
    })
}

/// One round of [`Form::Slope`].
fn improved_slope(pairs: &[Pair], weights: &[f64], slope: f64) -> Option<(f64, Variances)> {
    let (mut above, mut below, mut information) = (0.0, 0.0, 0.0);
    for (pair, weight) in pairs.iter().zip(weights) {
        let adjusted = adjusted(pair, 0.0, slope);
        above += weight * adjusted * pair.later;
        below += weight * adjusted * pair.first;
        information += weight * adjusted * adjusted;
    }
    if below.abs() < f64::MIN_POSITIVE {
        return None;
    }
    let variances = Variances {
        slope: 1.0 / information,
        ..Variances::default()
    };
    Some((above / below, variances))
}

/// One round of [`Form::Both`]: the new shift and slope.
fn improved_line(pairs: &[Pair], weights: &[f64], slope: f64) -> Option<(f64, f64, Variances)> {
    let total: f64 = weights.iter().sum();
    let x = mean(pairs, weights, |pair| pair.first);
    let y = mean(pairs, weights, |pair| pair.later);
    let (mut above, mut below) = (0.0, 0.0);
    let mut adjusted = Vec::with_capacity(pairs.len());
    for (pair, weight) in pairs.iter().zip(weights) {
        let (u, v) = (pair.first - x, pair.later - y);
        let beta = share(pair, slope) * u
            + (1.0 - share(pair, slope)) * v / slope.abs().max(1e-9) * slope.signum();
        above += weight * beta * v;
        below += weight * beta * u;
        adjusted.push(x + beta);
    }
    if below.abs() < f64::MIN_POSITIVE {
        return None;
    }
    let slope = above / below;
    let weighted = adjusted.iter().zip(weights);
    let middle: f64 = weighted
        .clone()
        .map(|(value, weight)| value * weight)
        .sum::<f64>()
        / total;
    let spread: f64 = weighted
        .map(|(value, weight)| weight * (value - middle).powi(2))
        .sum();
    let slope_variance = 1.0 / spread;
    let variances = Variances {
        shift: 1.0 / total + middle * middle * slope_variance,
        slope: slope_variance,
        both: -middle * slope_variance,
    };
    Some((y - slope * x, slope, variances))
}

fn mean(pairs: &[Pair], weights: &[f64], value: fn(&Pair) -> f64) -> f64 {
    let sum: f64 = pairs.iter().zip(weights).map(|(p, w)| w * value(p)).sum();
    sum / weights.iter().sum::<f64>()
}

/// Start values that stay reasonable even if up to half of the points are disturbed.
fn start(pairs: &[Pair], form: Form) -> Option<(f64, f64)> {
    match form {
        Form::Shift => {
            let steps: Vec<f64> = pairs.iter().map(|pair| pair.later - pair.first).collect();
            Some((median(&steps)?, 1.0))
        }
        Form::Slope => {
            let ratios: Vec<f64> = pairs
                .iter()
                .filter(|pair| pair.first != 0.0)
                .map(|pair| pair.later / pair.first)
                .collect();
            Some((0.0, median(&ratios)?))
        }
        Form::Both => {
            let mut slopes = Vec::new();
            for (index, one) in pairs.iter().enumerate() {
                for other in &pairs[index + 1..] {
                    let run = other.first - one.first;
                    // Points on one plateau do not determine the slope.
                    if run.abs() > 3.0 * one.first_sigma.hypot(other.first_sigma) {
                        slopes.push((other.later - one.later) / run);
                    }
                }
            }
            let slope = median(&slopes).unwrap_or(1.0);
            let slope = if slope.abs() > 1e-6 { slope } else { 1e-6 };
            let rests: Vec<f64> = pairs
                .iter()
                .map(|pair| pair.later - slope * pair.first)
                .collect();
            Some((median(&rests)?, slope))
        }
    }
}

/// Variance of a residual: the later value's, and the first value's scaled by the slope.
fn variance(pair: &Pair, slope: f64) -> f64 {
    pair.later_sigma.powi(2) + (slope * pair.first_sigma).powi(2)
}

fn residual(pair: &Pair, shift: f64, slope: f64) -> f64 {
    (pair.later - shift - slope * pair.first) / variance(pair, slope).sqrt()
}

/// Share of a residual's variance that is due to the later value's error.
fn share(pair: &Pair, slope: f64) -> f64 {
    pair.later_sigma.powi(2) / variance(pair, slope)
}

/// The first value's best estimate, given the line and both errors.
fn adjusted(pair: &Pair, shift: f64, slope: f64) -> f64 {
    let rest = pair.later - shift - slope * pair.first;
    pair.first + slope * pair.first_sigma.powi(2) * rest / variance(pair, slope)
}

fn weights(pairs: &[Pair], shift: f64, slope: f64) -> Vec<f64> {
    pairs
        .iter()
        .map(|pair| {
            let z = residual(pair, shift, slope) / BIWEIGHT_SIGMAS;
            let kept = if z.abs() < 1.0 {
                (1.0 - z * z).powi(2)
            } else {
                // Not 0, because with a bad start all points could lose their weight.
                1e-6
            };
            kept / variance(pair, slope)
        })
        .collect()
}

/// Twice the biweight's loss; for small residuals this is the square.
fn biweight_loss(residual: f64) -> f64 {
    let z = residual / BIWEIGHT_SIGMAS;
    let most = BIWEIGHT_SIGMAS * BIWEIGHT_SIGMAS / 3.0;
    if z.abs() < 1.0 {
        most * (1.0 - (1.0 - z * z).powi(3))
    } else {
        most
    }
}
