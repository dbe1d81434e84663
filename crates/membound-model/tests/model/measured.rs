//! Models of machines without a description: levels from the values themselves.

use std::convert::identity;

use membound_model::hierarchy::{FitError, FitOptions, Known, fit_measured};
use membound_types::{
    FitData, Level, LevelKind, Model, Observation, Outcome, ParameterRole, TlbTerm,
};

use membound_testkit::Random;

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

/// Share of accesses that miss a level that ends at `end`.
fn beyond(end: f64, area: f64, steepness: f64) -> f64 {
    (1.0 - (end / area).powf(steepness)).max(0.0)
}

fn observation(window_bytes: Option<u64>, area: f64, ns: f64) -> Observation {
    Observation {
        window_bytes,
        area_bytes: area as u64,
        ns,
        ns_low: None,
        ns_high: None,
    }
}

/// Six areas per octave from 4 KiB to 1 GiB.
fn areas() -> impl Iterator<Item = f64> {
    (0..=108).map(|i| 4.0 * KIB * 2_f64.powf(f64::from(i) / 6.0))
}

/// A chase through caches of 32 KiB and 2 MiB: 1, 5 and 100 ns.
fn chase(steepness: f64, noise: f64, seed: u64) -> Vec<Observation> {
    let mut random = Random::new(seed);
    areas()
        .map(|area| {
            let ns = 1.0
                + 4.0 * beyond(32.0 * KIB, area, steepness)
                + 95.0 * beyond(2.0 * MIB, area, steepness);
            observation(None, area, ns * (1.0 + noise * random.normal()))
        })
        .collect()
}

fn fitted(data: FitData, values: &[Observation], known: &Known) -> Model {
    let model: Result<Model, FitError> = fit_measured(
        data,
        values,
        known,
        |topology| Ok(identity(topology)),
        &FitOptions::default(),
    );
    model.expect("the values can be fitted")
}

#[track_caller]
fn has_levels(model: &Model, truth: &[(Option<f64>, f64)], tolerance: f64) {
    assert_eq!(model.levels.len(), truth.len(), "{:#?}", model.levels);
    for (level, (size, ns)) in model.levels.iter().zip(truth) {
        if let Some(size) = size {
            let found = level.size_bytes.expect("a level with an end") as f64;
            assert!((found / size - 1.0).abs() < 5.0 * tolerance, "{level:?}");
        }
        let found = level.latency_ns.expect("a level with a latency");
        assert!((found / ns - 1.0).abs() < tolerance, "{level:?}");
    }
}

const CHASE: [(Option<f64>, f64); 3] = [
    (Some(32.0 * KIB), 1.0),
    (Some(2.0 * MIB), 5.0),
    (None, 100.0),
];

#[test]
fn exponents_are_fitted_where_the_curve_asks_for_them_only() {
    let exponents = |model: &Model| {
        let parameters = model.parameters.iter();
        parameters
            .filter(|parameter| parameter.role == ParameterRole::Steepness)
            .count()
    };
    let windows = fitted(FitData::Latency, &chase(1.0, 0.02, 1), &Known::default());
    has_levels(&windows, &CHASE, 0.02);
    assert_eq!(exponents(&windows), 0, "{:#?}", windows.parameters);
    let cyclic = fitted(FitData::Latency, &chase(4.0, 0.02, 2), &Known::default());
    has_levels(&cyclic, &CHASE, 0.02);
    assert_eq!(exponents(&cyclic), 2, "{:#?}", cyclic.parameters);
    assert!(cyclic.method.selection.is_some());
}

#[test]
fn a_lonely_disturbed_value_is_left_out_by_name_and_a_wrong_model_is_not_covered_up() {
    let mut values = chase(1.0, 0.01, 3);
    values[40].ns *= 3.0;
    let place = values[40].area_bytes;
    let model = fitted(FitData::Latency, &values, &Known::default());
    has_levels(&model, &CHASE, 0.02);
    assert_eq!(model.points.len(), values.len() - 1);
    let note = model.notes.iter().find(|note| note.contains("left out"));
    let note = note.expect("a note names what was left out");
    let kib = format!("{} KiB", (place as f64 / KIB).round());
    assert!(note.contains("1 of 109") && note.contains(&kib), "{note}");
    // Ten deviating values in a row are no disturbance but part of the curve's shape.
    let mut values = chase(1.0, 0.01, 3);
    for value in &mut values[60..70] {
        value.ns *= 1.5;
    }
    let model = fitted(FitData::Latency, &values, &Known::default());
    assert_eq!(model.points.len(), values.len());
}

#[test]
fn a_ramp_has_no_levels_and_nothing_is_fitted_in_its_stead() {
    for noise in [0.0, 0.02] {
        let mut random = Random::new(4);
        let values: Vec<Observation> = areas()
            .map(|area| {
                let ns = area.powf(0.3) * (1.0 + noise * random.normal());
                observation(None, area, ns)
            })
            .collect();
        let model = fitted(FitData::Latency, &values, &Known::default());
        assert!(model.levels.is_empty(), "{:#?}", model.levels);
        assert!(model.parameters.is_empty());
        assert!(matches!(model.residual, Outcome::Missing { .. }));
        assert_eq!(model.notes.len(), 1);
    }
}

#[test]
fn a_constant_curve_is_one_level() {
    let values: Vec<Observation> = areas().map(|area| observation(None, area, 2.5)).collect();
    let model = fitted(FitData::Latency, &values, &Known::default());
    has_levels(&model, &[(None, 2.5)], 1e-6);
}

fn level(name: &str, kind: LevelKind, size: Option<f64>) -> Level {
    let bytes = size.map(|size| size as u64);
    Level {
        name: name.to_owned(),
        kind,
        size_bytes: bytes,
        size_low_bytes: bytes,
        size_high_bytes: bytes,
        latency_ns: 1.0,
        latency_low_ns: 1.0,
        latency_high_ns: 1.0,
        latency_cycles: 4.0,
        line_bytes: Some(64),
        ..Level::default()
    }
}

/// Windows on a machine with a TLB whose core hides the first cache's misses.
fn windows(known: &Known, noise: f64, seed: u64) -> Vec<Observation> {
    let tlb = &known.tlb[0];
    let reach = (tlb.entries * tlb.page_bytes) as f64;
    let mut random = Random::new(seed);
    let mut values = Vec::new();
    for window in [1024_u64, 2048, 4096] {
        let lines = window as f64 / 64.0;
        for area in areas().filter(|area| *area >= 16.0 * KIB) {
            let ns = 2.0
                + 1.1 * lines
                + (6.0 + 0.3 * lines) * beyond(MIB, area, 1.0)
                + (90.0 + 5.0 * lines) * beyond(16.0 * MIB, area, 1.0)
                + 40.0 * beyond(reach, area, 1.0);
            let ns = ns * (1.0 + noise * random.normal());
            values.push(observation(Some(window), area, ns));
        }
    }
    values
}

#[test]
fn windows_move_the_sizes_that_they_show_and_leave_the_others_to_the_latency_curve() {
    let known = Known {
        levels: vec![
            level("L1", LevelKind::Cache, Some(32.0 * KIB)),
            level("L2", LevelKind::Cache, Some(0.8 * MIB)),
            level("L3", LevelKind::Cache, Some(20.0 * MIB)),
            level("DRAM", LevelKind::Memory, None),
        ],
        tlb: vec![TlbTerm {
            symbol: "t_tlb".to_owned(),
            entries: 96,
            page_bytes: 2 << 20,
            miss_ns: None,
        }],
        ..Known::default()
    };
    let model = fitted(FitData::Window, &windows(&known, 0.01, 5), &known);
    let sizes: Vec<Option<u64>> = model.levels.iter().map(|level| level.size_bytes).collect();
    assert_eq!(sizes[0], Some(32 << 10), "held");
    for (found, truth) in [(sizes[1], MIB), (sizes[2], 16.0 * MIB)] {
        let found = found.expect("a level with an end") as f64;
        assert!((found / truth - 1.0).abs() < 0.05, "{sizes:?}");
    }
    assert!(model.levels[0].size_low_bytes.is_none());
    assert!(model.levels[1].size_low_bytes.is_some());
    let mut inside = [0; 3];
    for seed in 0..40 {
        let model = fitted(FitData::Window, &windows(&known, 0.01, seed), &known);
        let parts = [("t_dram", 5.0), ("t_dram0", 90.0), ("t_tlb", 40.0)];
        for (inside, (symbol, truth)) in inside.iter_mut().zip(parts) {
            let mut parameters = model.parameters.iter();
            let found = parameters
                .find(|parameter| parameter.symbol == symbol)
                .expect("the topology has it");
            let interval = found.low.zip(found.high);
            let (low, high) = interval.expect("an interval");
            assert!((found.value / truth - 1.0).abs() < 0.15, "{found:?}");
            *inside += usize::from((low..=high).contains(&truth));
        }
    }
    assert!(
        inside.iter().all(|inside| *inside >= 36),
        "{inside:?} of 40"
    );
    let note = model
        .notes
        .iter()
        .find(|note| note.contains("the end of L1"));
    assert!(note.is_some(), "{:?}", model.notes);
    let residual = model.residual.known().expect("a fit");
    assert!(residual.median_relative < 0.02);
    assert!(
        residual
            .left_out_median_relative
            .is_some_and(|left| left < 0.02)
    );
}

#[test]
fn levels_of_a_disturbed_latency_curve_give_way_to_those_that_the_windows_show() {
    let sound = Known {
        levels: Vec::new(),
        tlb: vec![TlbTerm {
            symbol: "t_tlb".to_owned(),
            entries: 96,
            page_bytes: 2 << 20,
            miss_ns: None,
        }],
        ..Known::default()
    };
    let values = windows(&sound, 0.01, 6);
    // As a run found them while a neighbour used the third-level cache.
    let disturbed = Known {
        levels: vec![
            level("L1", LevelKind::Cache, Some(32.0 * KIB)),
            level("L2", LevelKind::Cache, Some(2.1 * MIB)),
            level("DRAM", LevelKind::Memory, None),
        ],
        ..sound
    };
    let model = fitted(FitData::Window, &values, &disturbed);
    let residual = model.residual.known().expect("a fit");
    assert!(residual.median_relative < 0.02, "{residual:?}");
    let note = model
        .notes
        .iter()
        .find(|note| note.contains("that the windows show"));
    assert!(note.is_some(), "{:?}", model.notes);
    for truth in [MIB, 16.0 * MIB] {
        let near = |size: u64| (size as f64 / truth - 1.0).abs() < 0.1;
        let mut levels = model.levels.iter();
        assert!(
            levels.any(|level| level.size_bytes.is_some_and(near)),
            "{:#?}",
            model.levels
        );
    }
}
