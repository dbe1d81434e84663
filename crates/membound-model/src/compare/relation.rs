//! How one curve follows from another: later = slope · first + shift, with errors in both.
//!
//! The line is that of York, Evensen, Martínez and De Basabe Delgado (Unified equations for
//! the slope, intercept, and standard errors of the best straight line, 2004), iterated
//! with Tukey's biweight so that single disturbed points have no say. Document 000 found
//! that runs of its guests differed by a quantity that "shifts the graph up" whatever the
//! number of accesses: a shift with a slope of 1, which is not what a slower memory does.

use membound_types::CurveVerdict;

use super::noise::Z95;
use crate::stats::{MAD_TO_SIGMA, median};

/// Fewest common places that a line with two errors is fitted to.
pub const LEAST_PLACES: usize = 4;
/// Probability below which a hypothesis is given up. Low, because several are tried in
/// turn.
const LEVEL: f64 = 0.01;
/// Residuals of so many standard deviations have no weight (Tukey's biweight: 95 % as
/// efficient as least squares on normal noise).
const BIWEIGHT: f64 = 4.685;
/// A line is not the form of the difference when so many times the stated noise is left.
const MISFIT: f64 = 2.5;
/// … or when so large a share of the points lies beyond four standard deviations.
const STRAY_SHARE: f64 = 0.2;
/// A slope beyond this factor joins curves that have little to do with each other.
const STEEPEST: f64 = 8.0;
const ROUNDS: usize = 60;

/// What two runs of one machine differ by at all places at once: the clock settles at
/// another step, a neighbour is awake during a whole part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Common {
    /// Standard deviation of the slope.
    pub slope: f64,
    /// Standard deviation of the shift as a share of the first curve's smallest value.
    pub shift: f64,
}

/// Two values at one place with standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Place.
    pub x: f64,
    /// The first curve's value.
    pub first: f64,
    /// Its standard deviation.
    pub first_sigma: f64,
    /// The later curve's value.
    pub later: f64,
    /// Its standard deviation.
    pub later_sigma: f64,
}

impl Pair {
    /// The difference in standard deviations.
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
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    /// The 95 % interval.
    #[must_use]
    pub fn interval(&self) -> (f64, f64) {
        (self.value - Z95 * self.error, self.value + Z95 * self.error)
    }

    /// Whether `value` is not excluded.
    fn allows(&self, value: f64) -> bool {
        two_sided((self.value - value) / self.error) > LEVEL
    }
}

/// How the later curve follows from the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relation {
    /// Added to every value; with a slope of 1 where the verdict is a shift.
    pub shift: Estimate,
    /// Factor of every value; with a shift of 0 where the verdict is a slope.
    pub slope: Estimate,
    /// What the two come to.
    pub verdict: CurveVerdict,
    /// Residuals around the line over the stated noise (robust).
    pub misfit: f64,
}

/// A fitted line and how well it fits.
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
    /// Biweight loss.
    loss: f64,
}

/// Which parameters are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Shift,
    Slope,
    Both,
}

/// Sets two curves against each other. `None` with fewer than [`LEAST_PLACES`] usable pairs.
///
/// The verdict, at 1 % a test:
///
/// 1. *other* where no line fits: the residuals are 2.5 times the stated noise, or a fifth
///    of the points lies beyond four standard deviations, or the slope is beyond a factor
///    of eight;
/// 2. *same* where shift 0 and slope 1 together are not excluded;
/// 3. *shift* where the slope of 1 is not excluded and a shift of 0 is; *slope* the other
///    way round; *both* where both are excluded;
/// 4. where neither is excluded by itself, that of the two with the clearly better fit,
///    else *undecided*.
#[must_use]
pub fn relate(pairs: &[Pair], common: Common) -> Option<Relation> {
    let pairs: Vec<Pair> = pairs.iter().copied().filter(Pair::usable).collect();
    if pairs.len() < LEAST_PLACES {
        return None;
    }
    let line = fit(&pairs, Form::Both)?;
    let scale = pairs
        .iter()
        .map(|pair| pair.first.abs())
        .fold(f64::INFINITY, f64::min);
    // More scatter than was stated widens the errors; less does not narrow them.
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
    // A form that is not excluded by its parameter must still fit.
    let serves = |one: Option<Line>| {
        one.is_some_and(|one| one.misfit <= 1.5 * misfit.max(1.0) && one.strays <= STRAY_SHARE)
    };
    let steep = !(1.0 / STEEPEST..=STEEPEST).contains(&line.slope);
    let bent = misfit > MISFIT || line.strays > STRAY_SHARE;
    let verdict = if bent || (steep && !slope.allows(1.0)) {
        CurveVerdict::Other
    } else if joint(shift, slope, covariance) > LEVEL {
        CurveVerdict::Same
    } else {
        match (shift.allows(0.0), slope.allows(1.0)) {
            (false, true) if serves(shifted) => CurveVerdict::Shift,
            (true, false) if serves(scaled) => CurveVerdict::Slope,
            (true, true) => {
                let loss = |one: Option<Line>| one.map_or(f64::INFINITY, |one| one.loss);
                let (shifted, scaled) = (loss(shifted), loss(scaled));
                // As a likelihood ratio: e^(4/2) is seven to one.
                if scaled - shifted > 4.0 {
                    CurveVerdict::Shift
                } else if shifted - scaled > 4.0 {
                    CurveVerdict::Slope
                } else {
                    CurveVerdict::Undecided
                }
            }
            _ => CurveVerdict::Both,
        }
    };
    // What the verdict names is given as its form has it, the other parameter held.
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

/// Probability of an estimate so far from shift 0 and slope 1 if these were true (Wald,
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
    let mut variances = (0.0, 0.0, 0.0);
    for _ in 0..ROUNDS {
        let weights = weights(pairs, shift, slope);
        let total: f64 = weights.iter().sum();
        if total.is_nan() || total <= 0.0 {
            return None;
        }
        let before = (shift, slope);
        let mean = |value: fn(&Pair) -> f64| {
            let sum: f64 = pairs.iter().zip(&weights).map(|(p, w)| w * value(p)).sum();
            sum / total
        };
        match form {
            Form::Shift => {
                shift = mean(|pair| pair.later) - mean(|pair| pair.first);
                variances = (1.0 / total, 0.0, 0.0);
            }
            Form::Slope => {
                let (mut above, mut below, mut information) = (0.0, 0.0, 0.0);
                for (pair, weight) in pairs.iter().zip(&weights) {
                    let adjusted = adjusted(pair, 0.0, slope);
                    above += weight * adjusted * pair.later;
                    below += weight * adjusted * pair.first;
                    information += weight * adjusted * adjusted;
                }
                if below.abs() < f64::MIN_POSITIVE {
                    return None;
                }
                slope = above / below;
                variances = (0.0, 1.0 / information, 0.0);
            }
            Form::Both => {
                let (x, y) = (mean(|pair| pair.first), mean(|pair| pair.later));
                let (mut above, mut below) = (0.0, 0.0);
                let mut adjusted = Vec::with_capacity(pairs.len());
                for (pair, weight) in pairs.iter().zip(&weights) {
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
                slope = above / below;
                shift = y - slope * x;
                let middle: f64 = adjusted
                    .iter()
                    .zip(&weights)
                    .map(|(value, weight)| value * weight)
                    .sum::<f64>()
                    / total;
                let spread: f64 = adjusted
                    .iter()
                    .zip(&weights)
                    .map(|(value, weight)| weight * (value - middle).powi(2))
                    .sum();
                let slope_variance = 1.0 / spread;
                variances = (
                    1.0 / total + middle * middle * slope_variance,
                    slope_variance,
                    -middle * slope_variance,
                );
            }
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
        shift_variance: variances.0,
        slope_variance: variances.1,
        covariance: variances.2,
        misfit: median(&sizes)? * MAD_TO_SIGMA,
        strays: far as f64 / pairs.len() as f64,
        loss: residuals.iter().map(|value| biweight_loss(*value)).sum(),
    })
}

/// A start that half of the points may spoil.
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
                    // Points of one plateau say nothing of the slope.
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

/// Variance of a residual: both errors as the line sees them.
fn variance(pair: &Pair, slope: f64) -> f64 {
    pair.later_sigma.powi(2) + (slope * pair.first_sigma).powi(2)
}

fn residual(pair: &Pair, shift: f64, slope: f64) -> f64 {
    (pair.later - shift - slope * pair.first) / variance(pair, slope).sqrt()
}

/// Share of a residual that is the later value's error.
fn share(pair: &Pair, slope: f64) -> f64 {
    pair.later_sigma.powi(2) / variance(pair, slope)
}

/// The first value moved to where the line and both errors want it.
fn adjusted(pair: &Pair, shift: f64, slope: f64) -> f64 {
    let rest = pair.later - shift - slope * pair.first;
    pair.first + slope * pair.first_sigma.powi(2) * rest / variance(pair, slope)
}

fn weights(pairs: &[Pair], shift: f64, slope: f64) -> Vec<f64> {
    pairs
        .iter()
        .map(|pair| {
            let z = residual(pair, shift, slope) / BIWEIGHT;
            let kept = if z.abs() < 1.0 {
                (1.0 - z * z).powi(2)
            } else {
                // Not quite nothing, or a bad start could lose every point.
                1e-6
            };
            kept / variance(pair, slope)
        })
        .collect()
}

/// Twice the biweight's loss, which is the square of small residuals.
fn biweight_loss(residual: f64) -> f64 {
    let z = residual / BIWEIGHT;
    let most = BIWEIGHT * BIWEIGHT / 3.0;
    if z.abs() < 1.0 {
        most * (1.0 - (1.0 - z * z).powi(3))
    } else {
        most
    }
}
