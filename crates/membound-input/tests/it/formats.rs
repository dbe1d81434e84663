//! Files of other programs and hand-written tables, with the expected curves.

use membound_input::{Content, Curve, LoadedCurve, curves_of_profile};
use membound_types::FitData;

use crate::invariants::checked;
use crate::samples::file;

fn curves(bytes: &[u8]) -> Vec<Curve> {
    match checked(bytes) {
        Ok(Content::Curves(curves)) => curves,
        other => panic!("expected curves: {other:?}"),
    }
}

/// A curve's series and stride, and its points as size and nanoseconds.
type Shape<'a> = (&'a str, Option<u64>, &'a [(u64, f64)]);

fn check(name: &str, expected: &[Shape]) -> Vec<Curve> {
    let curves = curves(&file(name));
    assert_eq!(curves.len(), expected.len(), "{name}");
    for (curve, (series, stride_bytes, points)) in curves.iter().zip(expected) {
        let found: Vec<(u64, f64)> = curve
            .observations
            .iter()
            .map(|observation| (observation.area_bytes, observation.ns))
            .collect();
        assert_eq!(found, *points, "{name}");
        assert_eq!(curve.series, *series, "{name}");
        assert_eq!(curve.stride_bytes, *stride_bytes, "{name}");
        assert_eq!(curve.data, FitData::Latency, "{name}");
    }
    curves
}

#[track_caller]
fn notes(curve: &Curve, parts: &[&str]) {
    assert_eq!(curve.notes.len(), parts.len(), "{:?}", curve.notes);
    for (note, part) in curve.notes.iter().zip(parts) {
        assert!(note.contains(part), "{note:?} lacks {part:?}");
    }
}

#[test]
fn a_latency_table_in_any_order() {
    let curves = check(
        "plain_latency.csv",
        &[(
            "",
            None,
            &[
                (16 << 10, 0.96),
                (256 << 10, 3.4),
                (4 << 20, 12.5),
                (128 << 20, 160.0),
            ],
        )],
    );
    notes(&curves[0], &[]);
}

#[test]
fn a_table_as_a_spreadsheet_saves_it() {
    check(
        "excel.csv",
        &[("", None, &[(16 << 10, 0.96), (256 << 10, 3.4)])],
    );
}

#[test]
fn columns_are_known_in_any_case() {
    let curves = curves(b"Size_Bytes,NS,Page\n4096,1,4k\n8192,2,4k\n");
    assert_eq!(curves[0].series, "4k");
    assert_eq!(curves[0].observations[1].ns, 2.0);
}

#[test]
fn lines_that_end_in_carriage_returns_alone() {
    let table = curves(b"size_bytes,ns\r4096,1\r8192,2\r");
    assert_eq!(table[0].observations.len(), 2);
}

#[test]
fn the_documented_loop_of_multichase() {
    let mut text = String::new();
    for octave in 0..18 {
        for quarter in 4_u64..8 {
            let kib = quarter << octave;
            text.push_str(&format!("{kib}k 1.{quarter}\n"));
        }
    }
    let curves = curves(text.as_bytes());
    let sizes: Vec<u64> = curves[0]
        .observations
        .iter()
        .map(|it| it.area_bytes)
        .collect();
    assert_eq!(sizes.len(), 72);
    assert_eq!((sizes[0], sizes[71]), (4 << 10, 896 << 20));
}

#[test]
fn a_window_table() {
    let curves = curves(&file("window.csv"));
    assert_eq!(curves.len(), 1);
    assert_eq!(curves[0].data, FitData::Window);
    let found: Vec<_> = curves[0]
        .observations
        .iter()
        .map(|observation| {
            let tenths = (observation.ns * 10.0).round();
            (observation.window_bytes, observation.area_bytes, tenths)
        })
        .collect();
    assert_eq!(
        found,
        [
            (Some(1024), 1 << 16, 1100.0),
            (Some(4096), 1 << 16, 4200.0),
            (Some(1024), 1 << 24, 4400.0),
            (Some(4096), 1 << 24, 16100.0),
        ]
    );
}

#[test]
fn columns_that_separate_curves() {
    let curves = curves(
        b"size_bytes,page,ns,threads,disturbed\n4096,4k,1,1,true\n8192,4k,1,1,false\n\
          4096,thp,1,2,false\n4096,4k,1.5,1,false\n",
    );
    let found: Vec<_> = curves
        .iter()
        .map(|curve| (curve.series.as_str(), curve.observations.len()))
        .collect();
    assert_eq!(found, [("4k, 1 thread", 3), ("thp, 2 threads", 1)]);
    notes(
        &curves[0],
        &[
            "1 of 3 values saw a disturbance",
            "1 of 3 values repeat a size that came before",
        ],
    );
}

#[test]
fn lat_mem_rd_with_two_strides_and_what_a_terminal_adds() {
    let curves = check(
        "lat_mem_rd.txt",
        &[
            (
                "stride 64",
                Some(64),
                &[
                    (512, 1.071),
                    (1024, 1.071),
                    (2048, 1.072),
                    (3072, 1.071),
                    (32 << 10, 1.071),
                    (48 << 10, 2.31),
                    (1 << 20, 3.442),
                    (8 << 20, 9.876),
                ],
            ),
            (
                "stride 256",
                Some(256),
                &[
                    (512, 1.071),
                    (1024, 1.071),
                    (32 << 10, 1.071),
                    (1 << 20, 4.002),
                    (8 << 20, 18.5),
                ],
            ),
        ],
    );
    notes(
        &curves[1],
        &["first core cycle", "order", "2 lines that do not belong"],
    );
}

#[test]
fn multichase_in_a_loop() {
    let points: &[(u64, f64)] = &[
        (16 << 10, 0.985),
        (256 << 10, 3.31),
        (4 << 20, 11.25),
        (128 << 20, 160.3),
    ];
    let curves = check("multichase_loop.txt", &[("", None, points)]);
    notes(&curves[0], &["does not say the stride"]);
    check("multichase_lines.txt", &[("", None, &points[..3])]);
}

#[test]
fn multichase_with_its_command_lines() {
    check(
        "multichase_trace.txt",
        &[(
            "stride 128",
            Some(128),
            &[(64 << 10, 1.31), (64 << 20, 142.7), (256 << 20, 151.9)],
        )],
    );
}

#[test]
fn multichase_with_its_settings() {
    let curves = check(
        "multichase_verbose.txt",
        &[(
            "simple, 1 thread, stride 64",
            Some(64),
            &[(64 << 10, 1.31), (64 << 20, 142.7)],
        )],
    );
    notes(&curves[0], &[]);
}

#[test]
fn multichase_that_overlaps_its_loads_is_told() {
    let curves =
        curves(b"$ multichase -m 1m -c parallel4\n 2.0\n$ multichase -m 2m -c parallel4\n 2.1\n");
    notes(&curves[0], &["no latencies"]);
}

#[test]
fn mlc_one_buffer_size_after_the_other() {
    let curves = check(
        "mlc_idle.txt",
        &[(
            "",
            None,
            &[(30 << 10, 1.9), (10 << 20, 12.6), (2000 << 20, 87.4)],
        )],
    );
    notes(&curves[0], &["prefetchers"]);
}

#[test]
fn mlc_tables_beside_a_curve_are_passed_over() {
    let mut bytes = file("mlc_idle.txt");
    bytes.extend(file("mlc_matrix.txt"));
    let curves = curves(&bytes);
    assert_eq!(curves[0].observations.len(), 3);
    assert!(
        curves[0].notes[1].contains("a latency matrix"),
        "{:?}",
        curves[0].notes
    );
}

/// A mix, and its points as 10⁹ bytes per second and nanoseconds.
type Loaded<'a> = (&'a str, &'a [(f64, f64)]);

#[track_caller]
fn check_loaded(name: &str, expected: &[Loaded]) -> Vec<LoadedCurve> {
    let Ok(Content::Loaded(curves)) = checked(&file(name)) else {
        panic!("expected latency beside traffic");
    };
    let mixes: Vec<&str> = curves.iter().map(|curve| curve.mix.as_str()).collect();
    let expected_mixes: Vec<&str> = expected.iter().map(|(mix, _)| *mix).collect();
    assert_eq!(mixes, expected_mixes);
    for (curve, (mix, points)) in curves.iter().zip(expected) {
        assert_eq!(curve.points.len(), points.len(), "{mix}");
        for (point, (gb_s, ns)) in curve.points.iter().zip(*points) {
            assert!((point.gb_s - gb_s).abs() < 1e-9, "{mix}: {point:?}");
            assert_eq!(point.ns, *ns, "{mix}");
        }
    }
    curves
}

#[test]
fn mlc_latencies_beside_traffic() {
    let curves = check_loaded(
        "mlc_loaded.txt",
        &[
            (
                "1:0",
                &[(241.8703, 231.4), (230.1449, 158.22), (1.3017, 91.05)],
            ),
            // Stores alone: half of the bytes at memory are read before they are written.
            ("0:1", &[(90.0, 288.0), (0.9, 92.0)]),
            ("0:1 non-temporal", &[(90.0, 350.0), (0.9, 93.0)]),
        ],
    );
    let converted = |curve: &LoadedCurve| curve.notes[0].contains("counts the bytes at memory");
    assert!(!converted(&curves[0]) && converted(&curves[1]) && !converted(&curves[2]));
}

#[test]
fn mess_by_reads_at_memory() {
    let curves = check_loaded(
        "mess.csv",
        &[
            ("1:0", &[(120.0, 240.0), (60.0, 110.0), (1.5, 88.0)]),
            ("1:1", &[(64.32, 300.0), (0.804, 89.0)]),
        ],
    );
    assert!(curves[0].notes[0].contains("1 row without a value"));
}

#[test]
fn a_table_of_mess_behind_a_comment() {
    let table = b"# node 0\n\"pause\",read_pct_rounded,bandwidth_mean,latency_mean\n0,100,10,90\n# idle\n9,100,1,80\n";
    let Ok(Content::Loaded(curves)) = checked(table) else {
        panic!("expected latency beside traffic");
    };
    assert_eq!(curves[0].points.len(), 2);
}

#[test]
fn mess_by_loads_of_the_program() {
    let curves = check_loaded(
        "mess_program.json",
        &[
            ("1:0", &[(120.0, 240.0), (1.5, 88.0)]),
            ("0:1", &[(40.0, 400.0), (1.0, 90.0)]),
        ],
    );
    assert!(curves[0].notes[0].contains("loads of the program"));
}

#[test]
fn a_comment_that_names_another_program_does_not_decide_the_format() {
    let curves = curves(b"# measured with multichase -m\nsize_bytes,ns\n4096,1\n8192,1\n");
    assert_eq!(curves[0].observations.len(), 2);
}

#[test]
fn kept_documents_of_every_accepted_kind() {
    assert_eq!(curves(&file("latency.json")).len(), 2);
    assert_eq!(curves(&file("window.json")).len(), 2);
    let Ok(Content::Profile(profile)) = checked(&file("machine.json")) else {
        panic!("expected a profile");
    };
    assert_eq!(curves_of_profile(&profile).len(), 4);
    let Ok(Content::Model(model)) = checked(&file("model.json")) else {
        panic!("expected a model");
    };
    assert_eq!(profile.model.known(), Some(&*model));
}
