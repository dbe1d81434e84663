//! Invariants of every result, for any input. The fuzzer includes this file too.

use membound_input::{Content, Curve, InputError, curves_of_profile, read};

/// Reads `bytes`, and panics if the result violates an invariant.
pub(crate) fn checked(bytes: &[u8]) -> Result<Content, InputError> {
    let result = read("some\nfile", bytes);
    match &result {
        Ok(Content::Curves(curves)) => {
            assert!(total(curves) >= 2, "{curves:?}");
            sound(curves);
        }
        Ok(Content::Profile(profile)) => sound(&curves_of_profile(profile)),
        Ok(Content::Loaded(curves)) => {
            assert!(curves.iter().map(|curve| curve.points.len()).sum::<usize>() >= 2);
            for curve in curves {
                one_line(&curve.mix);
                curve.notes.iter().for_each(|note| one_line(note));
                for point in &curve.points {
                    assert!(point.gb_s.is_finite() && point.gb_s >= 0.0);
                    assert!(point.ns.is_finite() && point.ns > 0.0);
                }
            }
        }
        Ok(Content::Model(_)) => {}
        Err(error) => one_line(&error.to_string()),
    }
    result
}

fn total(curves: &[Curve]) -> usize {
    curves.iter().map(|curve| curve.observations.len()).sum()
}

fn sound(curves: &[Curve]) {
    for curve in curves {
        assert!(!curve.observations.is_empty());
        assert!(curve.stride_bytes != Some(0));
        one_line(&curve.series);
        curve.notes.iter().for_each(|note| one_line(note));
        for observation in &curve.observations {
            assert!(observation.ns.is_finite() && observation.ns > 0.0);
            assert!(observation.area_bytes > 0);
            if let Some(window_bytes) = observation.window_bytes {
                assert!(window_bytes > 0 && window_bytes <= observation.area_bytes);
            }
            assert_eq!(observation.ns_low.is_some(), observation.ns_high.is_some());
            if let (Some(low), Some(high)) = (observation.ns_low, observation.ns_high) {
                assert!(low <= observation.ns && observation.ns <= high);
            }
        }
        let places: Vec<_> = curve
            .observations
            .iter()
            .map(|observation| (observation.area_bytes, observation.window_bytes))
            .collect();
        assert!(places.is_sorted(), "{places:?}");
    }
}

fn one_line(text: &str) {
    assert!(!text.contains(['\n', '\r']), "{text:?}");
    assert!(text.chars().count() < 1000, "{text:?}");
}
