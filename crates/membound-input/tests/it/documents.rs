//! membound's own documents, and the errors of those that cannot be read.

use membound_input::{Content, Curve, curves_of_profile};
use membound_types::{
    Cache, CacheKind, Disturbance, FitData, Latency, MachineProfile, Outcome, Pattern,
    PrefetchTaint, Window,
};
use serde_json::{Value, json};

use crate::invariants::checked;
use crate::samples::{self, latency, load, some_loads, some_windows, windows};

fn curves(text: &str) -> Vec<Curve> {
    match checked(text.as_bytes()) {
        Ok(Content::Curves(curves)) => curves,
        other => panic!("expected curves: {other:?}"),
    }
}

fn profile() -> MachineProfile {
    MachineProfile {
        latency: Outcome::Known(Latency {
            points: some_loads(),
            ..Latency::default()
        }),
        window: Outcome::Known(Window {
            points: some_windows(),
            ..Window::default()
        }),
        elapsed_s: 1.0,
        ..MachineProfile::unmeasured(samples::machine())
    }
}

#[test]
fn a_latency_document_becomes_a_curve_for_each_set_of_conditions() {
    let curves = curves(&samples::json(&latency(some_loads())));
    let found: Vec<_> = curves
        .iter()
        .map(|curve| (curve.series.as_str(), curve.observations.len()))
        .collect();
    assert_eq!(
        found,
        [
            (
                "random, clean, thp, node local, cpu 1, 1 thread, prefetch default, stride 64",
                4
            ),
            (
                "random, clean, 4k, node local, cpu 1, 1 thread, prefetch l2_stream, stride 64",
                1
            ),
        ]
    );
    let first = curves[0].observations[0];
    assert_eq!((first.area_bytes, first.ns), (1 << 14, 0.96));
    assert_eq!(first.ns_low, Some(0.96 * 0.99));
    assert_eq!(curves[0].stride_bytes, Some(64));
}

#[test]
fn a_window_document_becomes_a_curve_for_each_set_of_conditions() {
    let mut document = windows(some_windows());
    document.machine.caches = vec![Cache {
        level: 2,
        kind: CacheKind::Unified,
        size_bytes: 1 << 20,
        line_bytes: Some(64),
        ways: None,
        shared_by: Vec::new(),
        source: "sysfs".to_owned(),
    }];
    let curves = curves(&samples::json(&document));
    // After which levels found in the windows are named.
    assert!(
        curves
            .iter()
            .all(|curve| curve.caches == document.machine.caches)
    );
    let found: Vec<_> = curves
        .iter()
        .map(|curve| (curve.series.as_str(), curve.observations.len()))
        .collect();
    assert_eq!(
        found,
        [
            ("vector, thp, node local, cpu 1", 3),
            ("vector, thp, node local, cpu 1, initialised by cpu 0", 1),
        ]
    );
    assert_eq!(curves[0].data, FitData::Window);
    assert_eq!(curves[0].observations[0].window_bytes, Some(1024));
}

#[test]
fn marks_of_points_are_counted_and_the_points_kept() {
    let mut points = vec![load(4096, 1.0), load(8192, 1.1), load(16384, 1.2)];
    points[0].prefetch_taint = Some(PrefetchTaint {
        against: Pattern::Indexed,
        ratio: 0.5,
    });
    points[1].batches.disturbed = Disturbance {
        slow_mode: Some(2.0),
        ..Disturbance::default()
    };
    points[1].page_share = Some(0.5);
    points[2].ns_low = 1.3;
    let mut document = latency(points);
    document.incomplete = true;
    let curves = curves(&samples::json(&document));
    assert_eq!(curves[0].observations.len(), 3);
    assert_eq!(curves[0].observations[2].ns_low, None);
    let notes = curves[0].notes.join("\n");
    for part in [
        "1 of 3 values were shortened by a prefetcher",
        "1 of 3 values have a disturbance left",
        "1 of 3 values lie on the page kind in part",
        "1 of 3 values lie outside their own interval",
        "cut short",
    ] {
        assert!(notes.contains(part), "{notes}");
    }
}

#[test]
fn a_profile_comes_whole_and_gives_its_curves() {
    let written = profile();
    let Ok(Content::Profile(read)) = checked(samples::json(&written).as_bytes()) else {
        panic!("expected a profile");
    };
    assert_eq!(*read, written);
    let data: Vec<FitData> = curves_of_profile(&read)
        .iter()
        .map(|curve| curve.data)
        .collect();
    use FitData::{Latency, Window};
    assert_eq!(data, [Latency, Latency, Window, Window]);
}

#[test]
fn a_profile_read_part_by_part_is_what_the_type_itself_reads() {
    let text = samples::file("machine.json");
    let Ok(Content::Profile(read)) = checked(&text) else {
        panic!("expected a profile");
    };
    assert_eq!(*read, serde_json::from_slice(&text).unwrap());
}

#[test]
fn points_that_cannot_be_are_left_out_of_a_profile_that_was_not_read() {
    let mut profile = profile();
    if let Outcome::Known(latency) = &mut profile.latency {
        latency.points[0].ns = f64::NAN;
    }
    let curves = curves_of_profile(&profile);
    assert_eq!(curves[0].observations.len(), 3);
    assert!(curves[0].notes.iter().any(|note| note.contains("1 point ")));
}

/// Sets the value at `pointer` in `document`, and compares the message.
#[track_caller]
fn check(mut document: Value, pointer: &str, value: Value, message: &str) {
    *document.pointer_mut(pointer).unwrap() = value;
    let text = serde_json::to_string(&document).unwrap();
    let error = checked(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(message), "{error}\nlacks {message}");
}

#[test]
fn a_field_that_cannot_be_used_is_named_by_its_path() {
    let document = || serde_json::to_value(latency(some_loads())).unwrap();
    for (pointer, value, message) in [
        (
            "/points/2/ns",
            json!("x"),
            "points[2].ns: invalid type: string",
        ),
        (
            "/points/2/ns",
            json!(null),
            "points[2].ns: invalid type: null",
        ),
        ("/points/2/ns", json!(-1.0), "points[2].ns: -1 is negative"),
        ("/points/2/ns", json!(0), "points[2].ns: 0 is no time"),
        (
            "/points/2/ns",
            json!(1e9),
            "points[2].ns: 1000000000 ns would be",
        ),
        (
            "/points/0/size_bytes",
            json!(0),
            "points[0].size_bytes: 0 bytes",
        ),
        (
            "/points/0/size_bytes",
            json!(1.5),
            "points[0].size_bytes: invalid",
        ),
        (
            "/points/0/stride_bytes",
            json!(0),
            "points[0].stride_bytes: 0",
        ),
        (
            "/points/0/page",
            json!("64k"),
            "points[0].page: unknown variant `64k`",
        ),
        (
            "/points/0/node",
            json!({}),
            "points[0].node: expected `local`",
        ),
        ("/points/0", json!({}), "points[0]: missing field"),
        (
            "/points/0/threads",
            json!(0),
            "points[0].threads: 0 threads",
        ),
        (
            "/points/0/ns",
            json!(1e300),
            "points[0].ns: 1e300 ns would be 1e294 ms",
        ),
        (
            "/points/0/ns_low",
            json!("x"),
            "points[0].ns_low: invalid type",
        ),
        ("/points/0/cpu", json!("x"), "points[0].cpu: invalid type"),
        (
            "/points/0/batches/disturbed",
            json!(7),
            "points[0].batches.disturbed: invalid type",
        ),
        ("/points", json!([]), "holds no points"),
        (
            "/kind",
            json!("doctor"),
            "kind: `doctor` holds nothing to fit; accepted are `machine`",
        ),
        (
            "/kind",
            json!("a\nb"),
            r"kind: `a\nb` is not known here; accepted are",
        ),
        ("/kind", json!(7), "kind: `7` is no kind"),
        ("/kind", json!(null), "kind: is missing"),
        (
            "/schema_version",
            json!(2),
            "schema_version: 2 was written by a newer membound; this one reads 1",
        ),
        (
            "/schema_version",
            json!(0),
            "schema_version: 0 was written by an older membound; this one reads 1",
        ),
        (
            "/schema_version",
            json!("1"),
            "schema_version: `\"1\"` is no version",
        ),
        ("/schema_version", json!(null), "schema_version: is missing"),
    ] {
        check(document(), pointer, value, message);
    }
}

/// The points of a document with nothing but a version, a kind and these points.
fn of_fewest_fields(kind: &str, points: Value) -> Vec<Curve> {
    curves(&json!({"schema_version": 1, "kind": kind, "points": points}).to_string())
}

#[test]
fn a_document_of_another_program_needs_sizes_and_times_only() {
    let loads = of_fewest_fields(
        "latency",
        json!([{"size_bytes": 8192, "ns": 1.5}, {"size_bytes": 4096, "ns": 1.0}]),
    );
    assert_eq!(loads.len(), 1);
    assert_eq!(
        (loads[0].series.as_str(), loads[0].stride_bytes),
        ("", None)
    );
    assert!(loads[0].notes.is_empty(), "{:?}", loads[0].notes);
    let found: Vec<_> = loads[0]
        .observations
        .iter()
        .map(|point| (point.area_bytes, point.ns, point.ns_low))
        .collect();
    assert_eq!(found, [(4096, 1.0, None), (8192, 1.5, None)]);

    let windows = of_fewest_fields(
        "window",
        json!([
            {"window_bytes": 1024, "area_bytes": 4096, "seconds_per_window": 1e-7},
            {"window_bytes": 1024, "area_bytes": 8192, "seconds_per_window": 2e-7},
        ]),
    );
    assert_eq!(windows[0].data, FitData::Window);
    assert_eq!(windows[0].observations.len(), 2);
}

#[test]
fn the_fields_that_other_programs_rely_on_are_enough() {
    let point = |size_bytes: u64, threads: u32| {
        json!({
            "size_bytes": size_bytes, "stride_bytes": 64, "pattern": "random",
            "access": "clean", "page": "4k", "cpu": 0, "node": "local",
            "prefetch": "default", "threads": threads, "ns": 1.0, "ns_low": 0.9,
            "ns_high": 1.1, "cycles": 4.0, "samples": 3,
        })
    };
    let curves = of_fewest_fields(
        "latency",
        json!([point(4096, 1), point(8192, 1), point(4096, 2)]),
    );
    let series: Vec<_> = curves.iter().map(|curve| curve.series.as_str()).collect();
    assert_eq!(
        series,
        [
            "random, clean, 4k, node local, cpu 0, 1 thread, prefetch default, stride 64",
            "random, clean, 4k, node local, cpu 0, 2 threads, prefetch default, stride 64",
        ]
    );
    assert_eq!(curves[0].observations[0].ns_high, Some(1.1));
}

#[test]
fn a_window_that_cannot_be_is_named_by_its_path() {
    let document = || serde_json::to_value(windows(some_windows())).unwrap();
    for (pointer, value, message) in [
        (
            "/points/1/window_bytes",
            json!(1u64 << 30),
            "points[1].window_bytes: 1073741824 bytes do not fit",
        ),
        (
            "/points/1/area_bytes",
            json!(0),
            "points[1].area_bytes: 0 bytes",
        ),
        (
            "/points/1/seconds_per_window",
            json!(53.0),
            "points[1].seconds_per_window: 53 would be 53 s for 1024 bytes: are these nanoseconds?",
        ),
    ] {
        check(document(), pointer, value, message);
    }
}

#[test]
fn a_profile_says_which_field_of_which_part_is_wrong() {
    let document = || serde_json::to_value(profile()).unwrap();
    for (pointer, value, message) in [
        (
            "/latency/points/1/ns",
            json!("x"),
            "latency.points[1].ns: invalid type: string",
        ),
        (
            "/latency/points/1/ns",
            json!(-2),
            "latency.points[1].ns: -2 is negative",
        ),
        (
            "/window/elapsed_s",
            json!([]),
            "window.elapsed_s: invalid type",
        ),
        ("/window", json!(3), "window: invalid type"),
        (
            "/host",
            json!(3),
            "invalid type: integer `3`, expected a string",
        ),
        ("/levels", json!({}), "levels: invalid type"),
    ] {
        check(document(), pointer, value, message);
    }
}

#[test]
fn a_document_that_was_cut_off_says_where() {
    let text = samples::json(&profile());
    for end in [1, 2, 30, text.len() / 3, text.len() / 2, text.len() - 2] {
        let error = checked(&text.as_bytes()[..end]).unwrap_err().to_string();
        assert!(error.contains(": line "), "{error}");
        assert!(error.contains("cut off"), "{error}");
    }
}

#[test]
fn a_model_whose_parts_do_not_belong_together_is_refused() {
    let document = || serde_json::from_slice::<Value>(&samples::file("model.json")).unwrap();
    for (pointer, value, message) in [
        (
            "/covariance",
            json!([[1.0, 0.0]]),
            "covariance: has 1 rows, but there are 2 parameters",
        ),
        (
            "/covariance/1",
            json!([1.0]),
            "covariance[1]: has 1 columns",
        ),
        (
            "/combinations/0/coefficients",
            json!([1.0]),
            "combinations[0].coefficients: there are 1, but 2 symbols",
        ),
        (
            "/topology/levels/0/path",
            json!({"t_x": 1}),
            "topology.levels[0].path: names the component `t_x`, which is none",
        ),
        (
            "/levels/0/ns_per_line",
            json!(1.0),
            "levels[0].ns_per_line: neither a value of the right form nor",
        ),
    ] {
        check(document(), pointer, value, message);
    }
}

#[test]
fn the_line_of_a_part_is_that_of_the_document() {
    let text = samples::json(&profile()).replacen("1.1e-7", "\"1.1e-7\"", 1);
    let line = text
        .lines()
        .position(|line| line.contains("\"1.1e-7\""))
        .unwrap()
        + 1;
    let error = checked(text.as_bytes()).unwrap_err().to_string();
    let expected = format!(": line {line}: window.points[2].seconds_per_window: invalid type");
    assert!(error.contains(&expected), "{error}\nlacks {expected}");
}

#[test]
fn a_model_of_a_curve_without_levels_is_read() {
    let mut document: Value = serde_json::from_slice(&samples::file("model.json")).unwrap();
    for pointer in ["/topology/levels", "/levels"] {
        *document.pointer_mut(pointer).unwrap() = json!([]);
    }
    let text = serde_json::to_string(&document).unwrap();
    assert!(matches!(checked(text.as_bytes()), Ok(Content::Model(_))));
}
