//! Verdicts on curves that are shifted, scaled or bent.

use membound_model::compare::relation::{Common, Pair, relate};
use membound_model::stats::Z95;
use membound_types::CurveVerdict;

use membound_testkit::Random;

/// Trials of a verdict, and how many must be right.
const TRIALS: usize = 400;
const RIGHT: f64 = 0.95;
/// The scatter between runs that `compare` assumes for tables of loads.
const COMMON: Common = Common {
    slope: 0.06,
    shift: 0.04,
};

/// T(N) of two runs: N cycles each, `M` for every load after the first.
fn table_of(random: &mut Random, noise: f64, later: impl Fn(f64, f64) -> f64) -> Vec<Pair> {
    (1..=20)
        .map(|n| {
            let n = f64::from(n);
            let truth = 200.0 + 22.0 * n;
            let target = later(n, truth);
            Pair {
                x: n,
                first: truth * (1.0 + noise * random.normal()),
                first_sigma: truth * noise,
                later: target * (1.0 + noise * random.normal()),
                later_sigma: target * noise,
            }
        })
        .collect()
}

/// Counts the noisy curves of a known relation that get the right verdict.
fn check_verdict(what: &str, right: CurveVerdict, later: impl Fn(f64, f64) -> f64 + Copy) {
    let mut random = Random::new(17);
    for noise in [0.005, 0.02] {
        let mut hits = 0;
        let mut others = Vec::new();
        for trial in 0..TRIALS {
            let mut pairs = table_of(&mut random, noise, later);
            if trial % 2 == 0 {
                // A single disturbed cell must have no influence.
                pairs[7].later *= 1.6;
            }
            let found = relate(&pairs, COMMON).expect("twenty places").verdict;
            if found == right {
                hits += 1;
            } else {
                others.push(found);
            }
        }
        let share = hits as f64 / TRIALS as f64;
        assert!(
            share >= RIGHT,
            "{what} at {noise}: {share}, else {others:?}"
        );
    }
}

#[test]
fn curves_that_follow_from_each_other_get_their_verdict() {
    check_verdict("the same", CurveVerdict::Same, |_, t| t);
    check_verdict("a shift", CurveVerdict::Shift, |_, t| t + 60.0);
    check_verdict("a factor", CurveVerdict::Slope, |_, t| 1.25 * t);
    check_verdict("both", CurveVerdict::Both, |_, t| 1.6 * t - 150.0);
    check_verdict("another shape", CurveVerdict::Other, |n, t| {
        if n > 10.0 { 1.5 * t } else { t }
    });
}

#[test]
fn the_stated_intervals_of_shift_and_slope_hold_the_truth() {
    let mut random = Random::new(5);
    let (mut shifts, mut slopes) = (0, 0);
    for _ in 0..TRIALS {
        let pairs = table_of(&mut random, 0.01, |_, t| 1.3 * t + 40.0);
        let found = relate(&pairs, COMMON).unwrap();
        shifts += usize::from((found.shift.value - 40.0).abs() < Z95 * found.shift.error);
        slopes += usize::from((found.slope.value - 1.3).abs() < Z95 * found.slope.error);
    }
    let share = |hits: usize| hits as f64 / TRIALS as f64;
    assert!(share(shifts) > 0.94, "{}", share(shifts));
    assert!(share(slopes) > 0.94, "{}", share(slopes));
}

#[test]
fn few_or_broken_pairs_have_no_verdict() {
    let mut random = Random::new(1);
    let pairs = table_of(&mut random, 0.01, |_, t| t);
    assert_eq!(relate(&pairs[..3], COMMON), None);
    assert_eq!(relate(&[], COMMON), None);
    let mut broken = pairs.clone();
    for pair in &mut broken[3..] {
        pair.later = f64::NAN;
    }
    assert_eq!(relate(&broken, COMMON), None);
    // All values are equal, so a shift and a factor explain them equally well.
    let flat: Vec<Pair> = (0..6)
        .map(|n| Pair {
            x: f64::from(n),
            first: 100.0,
            first_sigma: 1.0,
            later: 150.0,
            later_sigma: 1.0,
        })
        .collect();
    if let Some(found) = relate(&flat, COMMON) {
        assert_eq!(found.verdict, CurveVerdict::Undecided);
    }
}
