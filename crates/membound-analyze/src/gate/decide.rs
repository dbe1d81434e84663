//! From two sides and a limit to a verdict.
//!
//! The limit is tested itself, not "no change": a gate fails when the whole 98 % interval of the
//! change lies above the limit, passes when it lies below, and is undecided while the interval
//! holds the limit. A change of exactly the limit therefore fails in 1 of 100 comparisons, and
//! equal programs fail less often than that under any limit from 0 up.
//!
//! Growth is a ratio, whose interval is Fieller's: the ratios r for which new − r · base is not
//! told from 0. It has no upper end where the base is not told from 0.

use membound_types::{ComparedValue, GateLimit, GateVerdict};

use crate::spread::{Contrast, Estimate, runs_needed};

/// Probability that the true change lies beyond one given end of its interval.
pub(super) const TAIL: f64 = 0.01;

/// Share of the comparisons of equal programs that are to pass with the runs that are
/// recommended.
const POWER: f64 = 0.95;

/// What came of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decision {
    pub verdict: GateVerdict,
    /// In the unit of the limit; `None` where there is nothing to grow from.
    pub change: Option<ComparedValue>,
    pub runs_needed: Option<u32>,
}

/// Holds `new` to a limit of its growth over `base`. Growth by less than `least`, in the unit of
/// the sides, is none.
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
    let half = contrast.half(TAIL);
    let difference = Contrast::new(base, new, 1.0);
    let negligible = relative && difference.value + difference.half(TAIL) < least;
    let worth_telling = !relative || difference.value >= least;
    let verdict = if contrast.value - half > allowed && worth_telling {
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
    let asked = if relative {
        (limit * base.mean).max(least)
    } else {
        limit
    };
    let variance = factor * factor * base.variance_of_a_run() + new.variance_of_a_run();
    let undecided = verdict == GateVerdict::Undecided;
    let needed = if undecided && asked > 0.0 {
        runs_needed(variance, asked, TAIL, POWER)
    } else {
        None
    };
    // With as many runs at hand it is the change that is close to the limit.
    let at_hand = base.runs.min(new.runs);
    let runs_needed = needed.filter(|needed| *needed as usize > at_hand);
    Decision {
        verdict,
        change,
        runs_needed,
    }
}

/// new ÷ base − 1 with Fieller's interval, `reach` standard errors wide to each side.
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
            // More than nothing beyond doubt, and less than is asked for.
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
            // Where it is undecided more runs would not tell.
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
        // Without a limit above 0 there is nothing to be seen.
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
            // The interval and the verdict are one statement.
            assert_eq!(low > limit, expected == GateVerdict::Failed);
            assert_eq!(high < limit, expected == GateVerdict::Passed);
        }
    }

    #[test]
    fn growth_from_nothing_is_told_where_it_matters() {
        let nothing = side(&[0.0, 0.0, 0.0]);
        let grown = decide(
            &nothing,
            &side(&[0.1, 0.11, 0.1]),
            GateLimit::Growth,
            0.1,
            0.005,
        );
        assert_eq!((grown.verdict, grown.change), (GateVerdict::Failed, None));
        // Twice next to nothing is next to nothing.
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
    fn a_base_that_is_not_told_from_nothing_leaves_growth_open() {
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
