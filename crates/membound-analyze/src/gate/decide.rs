//! Decides whether the change between two sides exceeds a limit.
//!
//! The test is against the limit itself, not against "no change": a gate fails if the whole 98 % interval
//! of the change lies above the limit, passes if it lies below, and is undecided if the interval contains
//! the limit. A change of exactly the limit therefore fails in 1 of 100 comparisons, and equal programs
//! fail less often than that under any limit from 0 up.
//!
//! Growth is a ratio with Fieller's interval: the ratios r for which new − r · base does not differ
//! significantly from 0. It has no upper end if the base does not differ significantly from 0.

use membound_types::{ComparedValue, GateLimit, GateVerdict};

use crate::spread::{Contrast, Estimate, runs_needed};

/// Probability that the true change lies beyond one end of its interval.
pub(super) const TAIL_PROBABILITY: f64 = 0.01;

/// Share of the comparisons of equal programs that should pass with the recommended number of runs.
const POWER: f64 = 0.95;

/// Result of testing a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decision {
    pub verdict: GateVerdict,
    /// Change in the unit of the limit; `None` if the base is 0, so that growth is undefined.
    pub change: Option<ComparedValue>,
    pub runs_needed: Option<u32>,
}

/// Tests the growth of `new` over `base` against a limit. Growth by less than `least`, in the unit of the
/// sides, does not count.
pub(super) fn decide(
    base: &Estimate,
    new: &Estimate,
    limit_of: GateLimit,
    limit: f64,
    least: f64,
) -> Decision {
    let relative = limit_of == GateLimit::Growth;
    let (factor, allowed) = if relative {
        (1.0 + limit, 0.0)
    } else {
        (1.0, limit)
    };
    let contrast = Contrast::new(base, new, factor);
    let half = contrast.half(TAIL_PROBABILITY);
    let difference = Contrast::new(base, new, 1.0);
    let negligible = relative && difference.value + difference.half(TAIL_PROBABILITY) < least;
    let is_large_enough = !relative || difference.value >= least;
    let verdict = if contrast.value - half > allowed && is_large_enough {
        GateVerdict::Failed
    } else if contrast.value + half < allowed || negligible {
        GateVerdict::Passed
    } else {
        GateVerdict::Undecided
    };
    let change = if relative {
        growth(base, new, half / contrast.error)
    } else {
        Some(ComparedValue {
            value: contrast.value,
            low: Some(contrast.value - half),
            high: Some(contrast.value + half),
        })
    };
    let smallest_difference = if relative {
        (limit * base.mean).max(least)
    } else {
        limit
    };
    let variance = factor * factor * base.variance_of_a_run() + new.variance_of_a_run();
    let undecided = verdict == GateVerdict::Undecided;
    let needed = if undecided && smallest_difference > 0.0 {
        runs_needed(variance, smallest_difference, TAIL_PROBABILITY, POWER)
    } else {
        None
    };
    // If that many runs exist already, more would not help: the change itself is close to the limit.
    let at_hand = base.runs.min(new.runs);
    let runs_needed = needed.filter(|needed| *needed as usize > at_hand);
    Decision {
        verdict,
        change,
        runs_needed,
    }
}

/// new ÷ base − 1 with Fieller's interval of `reach` standard errors to each side; `None` if the base is
/// not positive.
fn growth(base: &Estimate, new: &Estimate, reach: f64) -> Option<ComparedValue> {
    if base.mean <= 0.0 {
        return None;
    }
    let square = |estimate: &Estimate| {
        (
            estimate.mean * estimate.mean,
            (reach * estimate.error).powi(2),
        )
    };
    let ((base_square, base_error), (new_square, new_error)) = (square(base), square(new));
    // The ratios r with a·r² − 2·b·r + c ≤ 0.
    let a = base_square - base_error;
    let b = base.mean * new.mean;
    let c = new_square - new_error;
    let root = (b * b - a * c).max(0.0).sqrt();
    let low = if c <= 0.0 { 0.0 } else { c / (b + root) };
    let high = (a > 0.0).then(|| (b + root) / a);
    Some(ComparedValue {
        value: new.mean / base.mean - 1.0,
        low: Some(low - 1.0),
        high: high.map(|high| high - 1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Observation;

    fn side(values: &[f64]) -> Estimate {
        let runs: Vec<Observation> = values
            .iter()
            .map(|value| Observation {
                value: *value,
                low: *value - 0.001,
                high: *value + 0.001,
                sampling: 0.0005,
            })
            .collect();
        Estimate::of(&runs).unwrap()
    }

    const BASE: [f64; 5] = [0.30, 0.31, 0.29, 0.30, 0.30];

    fn shifted(by: f64) -> [f64; 5] {
        BASE.map(|value| value + by)
    }

    #[test]
    fn the_interval_is_held_to_the_limit_and_not_to_nothing() {
        for (by, expected) in [
            (0.10, GateVerdict::Failed),
            // A significant change that is smaller than the limit.
            (0.015, GateVerdict::Passed),
            (0.03, GateVerdict::Undecided),
            (0.0, GateVerdict::Passed),
            (-0.2, GateVerdict::Passed),
        ] {
            let decision = decide(
                &side(&BASE),
                &side(&shifted(by)),
                GateLimit::Share,
                0.03,
                0.005,
            );
            assert_eq!(decision.verdict, expected, "{by}: {decision:?}");
            let change = decision.change.unwrap();
            assert!((change.value - by).abs() < 1e-12);
            // s = 0.00707 on both sides, t(8) at 99 % = 2.896: 2.896 · √(2 · s² ÷ 5).
            assert!((change.high.unwrap() - by - 0.012_95).abs() < 1e-4);
            // The change equals the limit: more runs would not decide.
            assert_eq!(decision.runs_needed, None);
        }
    }

    #[test]
    fn runs_are_called_for_where_they_spread() {
        let noisy = side(&[0.25, 0.35, 0.30]);
        let decision = decide(&noisy, &noisy, GateLimit::Share, 0.03, 0.005);
        assert_eq!(decision.verdict, GateVerdict::Undecided);
        // (2.326 + 1.645)² · 2 · 0.05² ÷ 0.03² = 87.6, and a little for small samples.
        assert_eq!(decision.runs_needed, Some(89));
        // With a limit of 0 no number of runs suffices.
        let decision = decide(&noisy, &noisy, GateLimit::Share, 0.0, 0.005);
        assert_eq!(decision.runs_needed, None);
    }

    #[test]
    fn growth_is_a_ratio_with_an_interval() {
        let of = |by: f64, limit: f64| {
            let new = BASE.map(|value| value * by);
            decide(&side(&BASE), &side(&new), GateLimit::Growth, limit, 0.005)
        };
        for (by, limit, expected) in [
            (1.2, 0.10, GateVerdict::Failed),
            (1.0, 0.10, GateVerdict::Passed),
            (1.1, 0.10, GateVerdict::Undecided),
        ] {
            let decision = of(by, limit);
            assert_eq!(decision.verdict, expected, "{by}: {decision:?}");
            let change = decision.change.unwrap();
            assert!((change.value - (by - 1.0)).abs() < 1e-12);
            let (low, high) = (change.low.unwrap(), change.high.unwrap());
            assert!(low < change.value && change.value < high);
            // The interval and the verdict must agree.
            assert_eq!(low > limit, expected == GateVerdict::Failed);
            assert_eq!(high < limit, expected == GateVerdict::Passed);
        }
    }

    #[test]
    fn growth_from_nothing_is_reported_if_large_enough() {
        let nothing = side(&[0.0, 0.0, 0.0]);
        let grown = decide(
            &nothing,
            &side(&[0.1, 0.11, 0.1]),
            GateLimit::Growth,
            0.1,
            0.005,
        );
        assert_eq!((grown.verdict, grown.change), (GateVerdict::Failed, None));
        // Twice a negligible value is negligible.
        let least = decide(
            &side(&[0.0005, 0.0005, 0.0005]),
            &side(&[0.001, 0.001, 0.001]),
            GateLimit::Growth,
            0.1,
            0.005,
        );
        assert_eq!(least.verdict, GateVerdict::Passed);
    }

    #[test]
    fn a_base_within_noise_of_zero_leaves_growth_undecided() {
        let decision = decide(
            &side(&[0.0, 0.02, 0.001]),
            &side(&[0.05, 0.05, 0.051]),
            GateLimit::Growth,
            5.0,
            0.005,
        );
        assert_eq!(decision.verdict, GateVerdict::Undecided);
        assert_eq!(decision.change.unwrap().high, None);
    }
}
