//! Properties that hold for any points, including nonsense.

use membound_model::mlp::{RulePoint, read_rule};
use membound_model::stats::isotonic_median;
use membound_model::{CurvePoint, LevelOptions, find_levels, suggest_refinement};
use proptest::collection::vec;
use proptest::prelude::*;

/// A point that a measurement could produce, or a broken one.
fn point() -> impl Strategy<Value = CurvePoint> {
    let time = prop_oneof![
        20 => 1e-3..1e4_f64,
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(0.0),
        1 => Just(-1.0),
    ];
    (0..40_u32, 0..1024_u64, time, 0.0..0.5_f64).prop_map(|(octave, part, ns, half)| CurvePoint {
        size_bytes: (1 << octave) / 1024 * (1024 + part),
        ns,
        ns_low: ns * (1.0 - half),
        ns_high: ns * (1.0 + half),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn levels_of_anything_are_ordered_and_finite(curve in vec(point(), 0..60)) {
        let found = find_levels(&curve, &LevelOptions::default());
        prop_assert_eq!(found.end.is_some(), !found.plateaus.is_empty());
        for pair in found.plateaus.windows(2) {
            prop_assert!(pair[0].to_bytes < pair[1].from_bytes);
        }
        for (index, plateau) in found.plateaus.iter().enumerate() {
            let latency = plateau.latency_ns;
            prop_assert!(latency.value.is_finite() && latency.value > 0.0);
            prop_assert!(latency.low <= latency.value && latency.value <= latency.high);
            if let Some((size, _)) = plateau.size {
                prop_assert!(size.value.is_finite());
                prop_assert!(size.low <= size.value && size.value <= size.high);
            } else {
                prop_assert_eq!(index + 1, found.plateaus.len());
            }
        }
    }

    #[test]
    fn refinement_lies_strictly_between_points(curve in vec(point(), 0..60), most in 0..20_usize) {
        let new = suggest_refinement(&curve, most);
        prop_assert!(new.len() <= most);
        let mut sorted = new.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), new.len());
        for size in new {
            prop_assert!(curve.iter().all(|point| point.size_bytes != size || !point.ns.is_finite() || point.ns <= 0.0));
            prop_assert!(curve.iter().any(|point| point.size_bytes < size));
            prop_assert!(curve.iter().any(|point| point.size_bytes > size));
        }
    }

    #[test]
    fn isotonic_regression_is_monotone_and_keeps_to_the_values(values in vec(0.0..1e6_f64, 0..50)) {
        let fitted = isotonic_median(&values);
        prop_assert_eq!(fitted.len(), values.len());
        prop_assert!(fitted.windows(2).all(|pair| pair[0] <= pair[1]));
        prop_assert!(fitted.iter().all(|value| values.contains(value)));
    }

    #[test]
    fn the_rule_stays_between_one_and_the_loads_measured(
        cycles in vec(1.0..2000.0_f64, 1..40),
        pair in 1.0..2000.0_f64,
    ) {
        let table: Vec<RulePoint> = (2..).zip(cycles).map(RulePoint::from).collect();
        if let Some(found) = read_rule(&table, pair, 0.0).known() {
            let parallelism = found.parallelism;
            prop_assert!(parallelism >= 1.0 && parallelism <= table.len() as f64);
        }
    }
}
