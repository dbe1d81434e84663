//! The output of `membound-report` is read back unchanged.

use membound_input::{Content, Curve};
use membound_types::{Latency, Timer, Window};
use proptest::prelude::*;

use crate::invariants::checked;
use crate::samples::{self, latency, load, some_loads, some_windows, window, windows};

/// Curves without their notes: JSON has more fields per point than CSV.
fn curves(text: &str) -> Vec<Curve> {
    match checked(text.as_bytes()) {
        Ok(Content::Curves(mut curves)) => {
            curves.iter_mut().for_each(|curve| curve.notes.clear());
            curves
        }
        other => panic!("expected curves: {other:?}"),
    }
}

#[test]
fn csv_and_json_of_one_part_give_the_same_curves() {
    let document = latency(some_loads());
    let csv = membound_report::csv::latency(&document.part);
    assert_eq!(curves(&csv), curves(&samples::json(&document)));
    let document = windows(some_windows());
    let csv = membound_report::csv::window(&document.part);
    assert_eq!(curves(&csv), curves(&samples::json(&document)));
}

#[test]
fn a_part_without_points_is_read_as_such() {
    for csv in [
        membound_report::csv::latency(&Latency::default()),
        membound_report::csv::window(&Window::default()),
    ] {
        let error = checked(csv.as_bytes()).unwrap_err().to_string();
        assert!(error.ends_with("holds no points"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn latency_tables_are_read_back(
        points in prop::collection::vec((8u64..1 << 40, 0.1f64..1e5), 2..40)
    ) {
        let points: Vec<_> = points.into_iter().map(|(size, ns)| load(size, ns)).collect();
        let mut expected: Vec<_> = points.iter().map(|p| (p.size_bytes, p.ns)).collect();
        expected.sort_by_key(|(size, _)| *size);
        let part = Latency { points, ..Latency::default() };
        let found: Vec<_> = curves(&membound_report::csv::latency(&part))[0]
            .observations
            .iter()
            .map(|observation| (observation.area_bytes, observation.ns))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn window_tables_are_read_back(
        points in prop::collection::vec((3u32..20, 0u32..20, 1e-9f64..1e-4), 2..40)
    ) {
        let points: Vec<_> = points
            .into_iter()
            .map(|(shift, more, seconds)| window(1 << shift, 1 << (shift + more), seconds))
            .collect();
        let part = Window { points, ..Window::default() };
        let document = windows(part.points.clone());
        prop_assert_eq!(
            curves(&membound_report::csv::window(&part)),
            curves(&samples::json(&document))
        );
    }

    #[test]
    fn lat_mem_rd_columns_are_read_back(
        points in prop::collection::vec((1u64..1 << 20, 0.5f64..1e4), 2..40)
    ) {
        let points: Vec<_> = points
            .into_iter()
            .map(|(lines, ns)| load(lines * 64, ns))
            .collect();
        let mut expected: Vec<_> = points.iter().map(|p| (p.size_bytes, p.ns)).collect();
        expected.sort_by_key(|(size, _)| *size);
        let part = Latency { points, ..Latency::default() };
        let timer = Timer { core_clock_hz: 4e9, ..Timer::default() };
        let text = membound_report::lat_mem_rd::render(&part, &timer).unwrap();
        let curves = curves(&text);
        prop_assert_eq!(curves[0].stride_bytes, Some(64));
        for (observation, (size, ns)) in curves[0].observations.iter().zip(expected) {
            prop_assert_eq!(observation.area_bytes, size);
            // Three digits, and one cycle of a quarter of a nanosecond less.
            prop_assert!((observation.ns + 0.25 - ns).abs() <= 0.0005 + 1e-9);
        }
    }
}
