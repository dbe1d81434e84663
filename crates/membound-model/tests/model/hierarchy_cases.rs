//! The fit of document 002's model: given values, weights, data that do
//! not determine it, and invalid input.

use std::collections::BTreeMap;

use membound_model::hierarchy::{FitError, FitOptions, LeftOut, Steepness, fit, predict};
use membound_types::{
    Component, FitData, LevelKind, Model, Observation, Parameter, SizeMeaning, SizeMode, Topology,
    TopologyLevel, Weights,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::seidl_data::{
    GIB, KIB, MIB, NONE, Random, SIZES, SOME, WINDOWS, areas, expected_ns, noisy, observation,
    origin2000, points, truth,
};

pub(crate) fn fit_with(points: &[Observation], options: &FitOptions) -> Result<Model, FitError> {
    fit(&origin2000(), FitData::Window, points, options)
}

fn fixed(pairs: &[(&str, f64)]) -> FitOptions {
    FitOptions {
        fixed: pairs
            .iter()
            .map(|&(symbol, value)| (symbol.to_owned(), value))
            .collect(),
        ..FitOptions::default()
    }
}

pub(crate) fn parameter<'a>(model: &'a Model, symbol: &str) -> &'a Parameter {
    let mut parameters = model.parameters.iter();
    parameters
        .find(|parameter| parameter.symbol == symbol)
        .expect("a symbol of the topology")
}

pub(crate) fn close(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found - expected).abs() <= tolerance * expected.abs().max(1e-300),
        "{found} is not {expected}"
    );
}

/// Points without noise, in 60 areas.
pub(crate) fn clean(constants: [f64; 5]) -> Vec<Observation> {
    points(&origin2000(), &truth(constants), &WINDOWS, &areas(60))
}

#[test]
fn a_given_memory_time_makes_both_hubs_identifiable() {
    for spelling in ["t_m", "t_m,1", "t_{m,1}", "t_m1"] {
        let options = fixed(&[(spelling, 400.0), ("t_{m,0}", 0.0)]);
        let model = fit_with(&clean(NONE), &options).unwrap();
        assert!(model.combinations.is_empty(), "{:?}", model.combinations);
        for (symbol, expected) in [("t_hh", 178.0), ("t_hr", 426.0), ("t_s", 53.0)] {
            let found = parameter(&model, symbol);
            assert!(found.identifiable && !found.fixed, "{found:?}");
            close(found.value, expected, 1e-6);
        }
        let memory = parameter(&model, "t_m");
        assert!(memory.fixed && memory.std_error.is_none() && memory.reason.is_none());
        close(memory.value, 400.0, 0.0);
    }
}

#[test]
fn a_component_fixed_by_the_topology_is_not_fitted_by_default() {
    let mut topology = origin2000();
    let memory = topology.components.last_mut().unwrap();
    (memory.per_line_ns, memory.constant_ns, memory.fixed) = (Some(468.0), Some(0.0), true);
    let data = clean(NONE);
    let model = fit(&topology, FitData::Window, &data, &FitOptions::default()).unwrap();
    close(parameter(&model, "t_hh").value, 110.0, 1e-6);
    let model = fit(&topology, FitData::Window, &data, &fixed(&[("t_m", 478.0)])).unwrap();
    close(parameter(&model, "t_hh").value, 100.0, 1e-6);
}

#[test]
fn one_window_size_determines_sums_of_constants_and_lines() {
    let data = points(&origin2000(), &truth(SOME), &[1024], &areas(60));
    let model = fit_with(&data, &FitOptions::default()).unwrap();
    let sums: Vec<(Vec<&str>, &[f64])> = model
        .combinations
        .iter()
        .map(|sum| {
            let symbols = sum.symbols.iter().map(String::as_str).collect();
            (symbols, sum.coefficients.as_slice())
        })
        .collect();
    assert_eq!(
        sums,
        [
            (vec!["t_o0", "t_o"], &[1.0, 128.0][..]),
            (vec!["t_s0", "t_s"], &[1.0, 32.0][..]),
            (
                vec!["t_hh0", "t_hh", "t_m0", "t_m"],
                &[1.0, 8.0, 1.0, 8.0][..]
            ),
            (
                vec!["t_hr0", "t_hr", "t_m0", "t_m"],
                &[1.0, 8.0, 1.0, 8.0][..]
            ),
            (vec!["t_r0", "t_r"], &[1.0, 8.0][..]),
        ]
    );
    close(model.combinations[1].value, 150.0 + 32.0 * 53.0, 1e-6);
    assert!(model.vanishing.is_none());
    assert!(parameter(&model, "t_tlb").identifiable);
    let reason = parameter(&model, "t_s0").reason.as_deref();
    assert_eq!(reason, Some("cannot be distinguished from t_s"));
    // The measured window is determined, others are not.
    let truth = expected_ns(&origin2000(), &truth(SOME), Some(1024), 3 * MIB);
    close(
        predict(&model, Some(1024), 3 * MIB)
            .ns
            .known()
            .unwrap()
            .value,
        truth,
        1e-6,
    );
    let unknown = predict(&model, Some(2048), 3 * MIB);
    let reason = &unknown.ns.why_missing().unwrap().reason;
    assert!(
        reason.starts_with("the data do not determine t_o"),
        "{reason}"
    );
}

#[test]
fn areas_inside_the_first_level_leave_all_else_unknown() {
    let data = points(
        &origin2000(),
        &truth(NONE),
        &WINDOWS,
        &[4 * KIB, 8 * KIB, 16 * KIB],
    );
    let model = fit_with(&data, &FitOptions::default()).unwrap();
    for parameter in &model.parameters {
        let is_program = parameter.symbol.starts_with("t_o");
        assert_eq!(parameter.identifiable, is_program, "{parameter:?}");
        assert!(is_program || parameter.value == 0.0, "{parameter:?}");
    }
    assert!(model.combinations.is_empty());
    let reason = |symbol| parameter(&model, symbol).reason.clone().unwrap();
    assert_eq!(reason("t_s"), "no area is large enough to reach `SL cache`");
    assert_eq!(
        reason("t_r0"),
        "no area is large enough to reach `same corner`"
    );
    assert_eq!(
        reason("t_tlb"),
        "no area exceeds the 1 MiB that this TLB reaches"
    );
    assert!(predict(&model, Some(1024), 24 * KIB).ns.known().is_some());
    let beyond = predict(&model, Some(1024), MIB).ns;
    assert_eq!(
        beyond.why_missing().unwrap().reason,
        "the data do not determine t_s0, t_s"
    );
}

#[test]
fn the_papers_weights_are_biased_low_at_high_noise_and_the_default_is_not() {
    let clean = points(&origin2000(), &truth(SOME), &WINDOWS, &areas(334));
    let mean = |weights| {
        let options = FitOptions {
            weights,
            left_out: LeftOut::Skip,
            ..FitOptions::default()
        };
        let mut random = Random::new(3);
        let trials = 100;
        let sum: f64 = (0..trials)
            .map(|_| {
                let model = fit_with(&noisy(&mut random, &clean, 0.2), &options).unwrap();
                model
                    .points
                    .iter()
                    .zip(&clean)
                    .map(|(point, clean)| point.model_ns / clean.ns - 1.0)
                    .sum::<f64>()
                    / clean.len() as f64
            })
            .sum();
        sum / f64::from(trials)
    };
    // The bias is about twice the square of the noise, noise of 20 %: between 5 and 12 %.
    let (paper, default) = (mean(Weights::Measured), mean(Weights::Model));
    assert!((-0.12..-0.05).contains(&paper), "{paper}");
    assert!(default.abs() < 0.005, "{default}");
}

#[test]
fn order_repetition_and_units_do_not_matter() {
    let mut random = Random::new(11);
    let data = noisy(&mut random, &clean(SOME), 0.03);
    let first = fit_with(&data, &FitOptions::default()).unwrap();
    let mut reversed = data.clone();
    reversed.reverse();
    reversed.rotate_left(17);
    let doubled = [data.clone(), data.clone()].concat();
    for (points, times) in [(reversed, 1.0), (doubled, 1.0)] {
        compare(
            &first,
            &fit_with(&points, &FitOptions::default()).unwrap(),
            times,
        );
    }
    for unit in [1e-9, 1e9] {
        let points: Vec<Observation> = data
            .iter()
            .map(|point| observation(point.window_bytes, point.area_bytes, point.ns * unit))
            .collect();
        compare(
            &first,
            &fit_with(&points, &FitOptions::default()).unwrap(),
            unit,
        );
    }
}

/// Fits the same values in another unit of time.
fn compare(first: &Model, second: &Model, unit: f64) {
    assert_eq!(first.method.rank, second.method.rank);
    for (left, right) in first.parameters.iter().zip(&second.parameters) {
        assert_eq!(left.identifiable, right.identifiable);
        let scale = left.value.abs().max(1.0);
        let difference = (right.value / unit - left.value).abs();
        assert!(difference < 1e-8 * scale, "{left:?} {right:?}");
    }
    for (left, right) in first.combinations.iter().zip(&second.combinations) {
        assert_eq!(left.symbols, right.symbols);
        assert_eq!(left.coefficients, right.coefficients);
        let scale = left.value.abs().max(1.0);
        let difference = (right.value / unit - left.value).abs();
        assert!(difference < 1e-8 * scale, "{left:?} {right:?}");
    }
}

/// A hierarchy of caches in front of memory, for loads.
pub(crate) fn chain(sizes: &[u64], lines: u32) -> Topology {
    let symbols: Vec<String> = (1..=sizes.len() + 1)
        .map(|level| format!("l{level}"))
        .collect();
    Topology {
        name: "chain".to_owned(),
        sizes: SizeMeaning::Reach,
        components: symbols
            .iter()
            .map(|symbol| Component {
                symbol: symbol.clone(),
                name: symbol.clone(),
                line_bytes: lines,
                application: false,
                per_line_ns: None,
                constant_ns: None,
                fixed: false,
            })
            .collect(),
        levels: symbols
            .iter()
            .enumerate()
            .map(|(index, symbol)| TopologyLevel {
                name: symbol.to_uppercase(),
                kind: if index < sizes.len() {
                    LevelKind::Cache
                } else {
                    LevelKind::Memory
                },
                size_bytes: sizes.get(index).copied(),
                path: symbols[..=index]
                    .iter()
                    .map(|symbol| (symbol.clone(), 1))
                    .collect(),
                steepness: 1.0,
            })
            .collect(),
        bytes_per_operation: 8,
        ..Topology::default()
    }
}

pub(crate) fn loads(topology: &Topology, times: &[f64], areas: &[u64]) -> Vec<Observation> {
    let mut truth: BTreeMap<String, f64> = (1..)
        .zip(times)
        .map(|(level, &time)| (format!("l{level}"), time))
        .collect();
    truth.insert("t_tlb".to_owned(), 25.0);
    areas
        .iter()
        .map(|&area| observation(None, area, expected_ns(topology, &truth, None, area)))
        .collect()
}

#[test]
fn nearly_equal_sizes_and_times_far_apart_are_still_solved() {
    // Two level sizes differ by a thousandth, so their columns differ by as little.
    let sizes = [32 * KIB, 32 * KIB + 32, 64 * MIB];
    let topology = chain(&sizes, 64);
    let areas: Vec<u64> = (12..30)
        .flat_map(|shift| [1 << shift, 3 << (shift - 1)])
        .collect();
    for times in [
        [1.0, 3.0, 10.0, 80.0],
        [1e-9, 3.0, 1e3, 1e9],
        [1e9, 1e7, 1e8, 1e9],
    ] {
        let data = loads(&topology, &times, &areas);
        let model = fit(&topology, FitData::Latency, &data, &FitOptions::default()).unwrap();
        assert_eq!(model.method.rank, 4, "{model:?}");
        let residual = model.residual.known().unwrap();
        assert!(residual.max_relative < 1e-9, "{residual:?}");
        assert!(model.method.condition > 1e3);
        for (parameter, expected) in model.parameters.iter().zip(times) {
            assert!(parameter.identifiable);
            // The error of a value is relative to the size of the times around it.
            let around = 1e-9
                * times
                    .iter()
                    .copied()
                    .fold(0.0, f64::max)
                    .min(expected * 1e9);
            assert!(
                (parameter.value - expected).abs() <= 1e-6 * expected + around,
                "{times:?}: {parameter:?}"
            );
        }
    }
}

#[test]
fn exponents_are_found_with_the_sizes() {
    let mut real = chain(&[48 * KIB, 2 * MIB], 64);
    let areas: Vec<u64> = (0..120)
        .map(|step| (8192.0 * 2.0_f64.powf(f64::from(step) / 7.0)) as u64)
        .collect();
    // expected_ns knows only γ = 1; equation 5 with γ by hand.
    let data: Vec<Observation> = areas
        .iter()
        .map(|&area| {
            let leave = |size: u64, steepness: f64| {
                (1.0 - (size as f64 / area as f64).powf(steepness)).max(0.0)
            };
            let ns = 1.0 + 3.0 * leave(48 * KIB, 2.5) + 90.0 * leave(2 * MIB, 1.5);
            observation(None, area, ns)
        })
        .collect();
    real.levels[0].size_bytes = Some(40 * KIB);
    real.levels[1].size_bytes = Some(3 * MIB);
    let options = FitOptions {
        sizes: SizeMode::Free,
        steepness: Steepness::Free,
        ..FitOptions::default()
    };
    let model = fit(&real, FitData::Latency, &data, &options).unwrap();
    for (symbol, expected) in [
        ("l1", 1.0),
        ("l2", 3.0),
        ("l3", 90.0),
        ("s1", 49_152.0),
        ("s2", 2_097_152.0),
        ("g1", 2.5),
        ("g2", 1.5),
    ] {
        close(parameter(&model, symbol).value, expected, 1e-3);
    }
    assert_eq!(parameter(&model, "s1").unit, "bytes");
    assert_eq!(parameter(&model, "g1").unit, "1");
    close(
        model.topology.levels[1].size_bytes.unwrap() as f64,
        2_097_152.0,
        1e-3,
    );
    close(model.topology.levels[0].steepness, 2.5, 1e-3);
    // A prediction at the found sizes, between the points.
    let area = 5_000_000;
    let expected = 1.0
        + 3.0 * (1.0 - (49_152.0 / area as f64).powf(2.5))
        + 90.0 * (1.0 - (2_097_152.0 / area as f64).powf(1.5));
    close(
        predict(&model, None, area).ns.known().unwrap().value,
        expected,
        1e-3,
    );
}

#[test]
fn constants_vanish_or_do_not() {
    let mut random = Random::new(13);
    let vanishing = |data: &[Observation]| {
        let model = fit_with(data, &FitOptions::default()).unwrap();
        model.vanishing.unwrap()
    };
    let zero = clean(NONE);
    let trials = 200;
    let mut believed = 0;
    for _ in 0..trials {
        let without = vanishing(&noisy(&mut random, &zero, 0.03));
        assert_eq!(without.symbols, ["t_s0", "t_hh0", "t_hr0", "t_r0", "t_m0"]);
        believed += usize::from(without.vanish);
    }
    // The test may err in at most one of twenty.
    assert!(believed * 100 >= trials * 93, "{believed} of {trials}");
    let with = vanishing(&noisy(&mut random, &clean(SOME), 0.03));
    assert!(!with.vanish && with.p_value < 1e-3, "{with:?}");
    assert!((0.05..0.5).contains(&with.largest_share), "{with:?}");
    // Significant even in the smallest amount, but too small to matter.
    let tiny = vanishing(&clean([0.5, 0.5, 0.5, 0.5, 0.5]));
    assert!(
        tiny.vanish && tiny.p_value < 1e-3 && tiny.largest_share < 0.02,
        "{tiny:?}"
    );
    assert!(vanishing(&clean(NONE)).vanish);
    let given = fixed(&[
        ("t_s0", 0.0),
        ("t_hh0", 0.0),
        ("t_hr0", 0.0),
        ("t_r0", 0.0),
        ("t_m0", 0.0),
    ]);
    assert_eq!(fit_with(&clean(NONE), &given).unwrap().vanishing, None);
}

#[test]
fn assumptions_are_noted() {
    let mut data = clean(NONE);
    for point in data.iter_mut().step_by(40) {
        point.ns *= 3.0;
    }
    let notes = fit_with(&data, &FitOptions::default()).unwrap().notes;
    assert!(
        notes
            .iter()
            .any(|note| note.contains("slower than modelled; none of these was left out")),
        "{notes:?}"
    );
    let far = points(
        &origin2000(),
        &truth(NONE),
        &WINDOWS,
        &[MIB, GIB, 8 * GIB, 32 * GIB, 64 * GIB],
    );
    let notes = fit_with(&far, &FitOptions::default()).unwrap().notes;
    assert_eq!(
        notes,
        [
            "areas go up to 64 GiB, but the levels hold 8 GiB together: \
          `spatial diagonal` is taken to go on"
        ]
    );
    assert!(
        fit_with(&clean(NONE), &FitOptions::default())
            .unwrap()
            .notes
            .is_empty()
    );
}

#[test]
fn unfittable_data_are_refused_in_one_line() {
    let good = clean(NONE);
    let refused = |points: &[Observation], options: &FitOptions| {
        let error = fit_with(points, options).unwrap_err().to_string();
        assert!(!error.contains('\n') && !error.contains("  "), "{error}");
        error
    };
    let default = FitOptions::default();
    assert_eq!(refused(&[], &default), "no points to fit to");
    assert_eq!(
        refused(&good[..1], &default),
        "1 point is too few: they determine 1 parameters of topology `origin2000`, and at least \
         2 are needed to see how well"
    );
    for ns in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        let mut bad = good.clone();
        bad[4].ns = ns;
        let error = refused(&bad, &default);
        assert_eq!(
            error,
            format!(
                "point 5 (area {} bytes) takes {ns} ns, which is no time",
                bad[4].area_bytes
            )
        );
    }
    let changed = |change: &dyn Fn(&mut Observation)| {
        let mut bad = good.clone();
        change(&mut bad[2]);
        refused(&bad, &default)
    };
    assert_eq!(
        changed(&|point| point.area_bytes = 0),
        "point 3 has an area of 0 bytes"
    );
    assert_eq!(
        changed(&|point| point.window_bytes = Some(0)),
        "point 3 has a window of 0 bytes"
    );
    assert_eq!(
        changed(&|point| point.window_bytes = None),
        "point 3 has no window, but the data are declared to be of kind `window`"
    );
    assert_eq!(
        changed(&|point| point.area_bytes = 512),
        "point 3 has a window of 1024 bytes in an area of 512 bytes"
    );
    let known = "t_o0, t_o, t_s0, t_s, t_hh0, t_hh, t_hr0, t_hr, t_r0, t_r, t_m0, t_m, t_tlb, t_pt";
    assert_eq!(
        refused(&good, &fixed(&[("t_x", 1.0)])),
        format!("`t_x` is no parameter of topology `origin2000`: there are {known}")
    );
    assert_eq!(
        refused(&good, &fixed(&[("t_m", -1.0)])),
        "`t_m` cannot be fixed at -1: use a number of nanoseconds from 0 on"
    );
    refused(&good, &fixed(&[("t_m", f64::NAN)]));
    assert_eq!(
        refused(&good, &fixed(&[("t_m", 1.0), ("t_m,1", 2.0)])),
        "`t_m` and `t_m,1` are the same parameter: give one value"
    );
    let alone = FitOptions {
        steepness: Steepness::Free,
        ..FitOptions::default()
    };
    refused(&good, &alone);
    let mut sizeless = origin2000();
    sizeless.levels[2].size_bytes = None;
    sizeless.levels[4].size_bytes = None;
    let error = fit(&sizeless, FitData::Window, &good, &default).unwrap_err();
    assert_eq!(
        error.to_string(),
        "topology `origin2000` does not say how large `home memory`, `neighbour corner` are: \
         give their sizes (`--sizes`)"
    );
}

/// Points of any kind, most of them valid.
fn any_point() -> impl Strategy<Value = Observation> {
    let ns = prop_oneof![
        10 => 1e-3..1e9_f64,
        2 => prop::num::f64::POSITIVE | prop::num::f64::NORMAL,
        1 => Just(1e-12),
        1 => Just(1e21),
    ];
    (0_u32..4, 0_u32..64, 0..1024_u64, ns).prop_map(|(window, octave, part, ns)| {
        let area = (1_u64 << octave).saturating_add(part << octave.saturating_sub(10));
        observation(Some(512 << window), area.max(512 << window), ns)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_finite_input_makes_a_fit_panic_or_speak_nonsense(
        points in vec(any_point(), 0..60),
        weights in 0..3_usize,
        free in any::<bool>(),
    ) {
        let options = FitOptions {
            weights: [Weights::Model, Weights::Measured, Weights::Equal][weights],
            sizes: if free && points.len() < 30 { SizeMode::Free } else { SizeMode::Fixed },
            ..FitOptions::default()
        };
        if let Ok(model) = fit_with(&points, &options) {
            for parameter in &model.parameters {
                prop_assert!(parameter.value.is_finite() && parameter.value >= 0.0, "{:?}", parameter);
                prop_assert_eq!(parameter.std_error.is_some(), parameter.identifiable);
                prop_assert_eq!(parameter.reason.is_some(), !parameter.identifiable);
                prop_assert!(parameter.low.is_none_or(|low| low <= parameter.value));
                prop_assert!(parameter.high.is_none_or(|high| high >= parameter.value));
            }
            for point in &points {
                let predicted = predict(&model, point.window_bytes, point.area_bytes);
                if let Some(figure) = predicted.ns.known() {
                    prop_assert!(figure.low <= figure.value && figure.value <= figure.high);
                }
            }
        }
    }
}

#[test]
fn sizes_outside_of_the_data_stay_with_a_reason() {
    let data = points(&origin2000(), &truth(NONE), &WINDOWS, &areas(60)[..40]);
    let options = FitOptions {
        sizes: SizeMode::Free,
        ..FitOptions::default()
    };
    let model = fit_with(&data, &options).unwrap();
    let beyond = parameter(&model, "s6");
    assert!(
        !beyond.identifiable && beyond.reason.is_some(),
        "{beyond:?}"
    );
    close(beyond.value, SIZES[5] as f64, 1e-6);
    close(parameter(&model, "s2").value, SIZES[1] as f64, 0.01);
}
