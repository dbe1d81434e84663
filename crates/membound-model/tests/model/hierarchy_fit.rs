//! The fit of document 002's model to data with known truth.

use std::collections::BTreeMap;

use membound_model::hierarchy::{FitOptions, KeepPoints, LeftOut, bundled, fit};
use membound_types::{FitData, Model, Observation, Parameter, ParameterRole, SizeMode, Topology};

use crate::seidl_data::{
    NONE, Random, SIZES, SOME, WINDOWS, areas, noisy, origin2000, paper_areas, points, truth,
};

/// The paper's own grid.
fn paper_points(topology: &Topology, truth: &BTreeMap<String, f64>) -> Vec<Observation> {
    WINDOWS
        .iter()
        .flat_map(|&window| points(topology, truth, &[window], &paper_areas(window)))
        .collect()
}

fn window_fit(topology: &Topology, points: &[Observation]) -> Model {
    fit(topology, FitData::Window, points, &FitOptions::default()).expect("sound points")
}

/// Compares every identifiable parameter and every combination with `truth`, within `tolerance`
/// of its value, or of a nanosecond for 0.
fn check_values(model: &Model, truth: &BTreeMap<String, f64>, tolerance: f64) {
    for parameter in model.parameters.iter().filter(|known| known.identifiable) {
        let expected = truth[&parameter.symbol];
        assert!(
            (parameter.value - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{} is {}, not {expected}",
            parameter.symbol,
            parameter.value
        );
    }
    for combination in &model.combinations {
        let expected = sum(&combination.symbols, &combination.coefficients, truth);
        assert!(
            (combination.value - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{:?} is {}, not {expected}",
            combination.symbols,
            combination.value
        );
    }
}

fn sum(symbols: &[String], factors: &[f64], truth: &BTreeMap<String, f64>) -> f64 {
    symbols
        .iter()
        .zip(factors)
        .map(|(symbol, factor)| truth[symbol] * factor)
        .sum()
}

fn value(model: &Model, symbol: &str) -> f64 {
    model
        .parameters
        .iter()
        .find(|parameter| parameter.symbol == symbol)
        .expect("a symbol of the topology")
        .value
}

/// Combinations as text: `t_hh + t_m`.
fn combinations(model: &Model) -> Vec<String> {
    model
        .combinations
        .iter()
        .map(|combination| {
            let terms: Vec<String> = combination
                .symbols
                .iter()
                .zip(&combination.coefficients)
                .map(|(symbol, &factor)| {
                    if (factor - 1.0).abs() < 1e-15 {
                        symbol.clone()
                    } else {
                        format!("{factor} {symbol}")
                    }
                })
                .collect();
            terms.join(" + ")
        })
        .collect()
}

#[test]
fn noise_free_origin2000_recovers_its_parameters() {
    let topology = origin2000();
    for constants in [NONE, SOME] {
        let truth = truth(constants);
        let model = window_fit(&topology, &paper_points(&topology, &truth));
        check_values(&model, &truth, 1e-6);
        assert_eq!(
            combinations(&model),
            ["t_hh0 + t_m0", "t_hr0 + t_m0", "t_hh + t_m", "t_hr + t_m"]
        );
        let unknown: Vec<&str> = model
            .parameters
            .iter()
            .filter(|parameter| !parameter.identifiable)
            .map(|parameter| parameter.symbol.as_str())
            .collect();
        assert_eq!(unknown, ["t_hh0", "t_hh", "t_hr0", "t_hr", "t_m0", "t_m"]);
        assert_eq!(model.method.rank, 12);
        let residual = model.residual.known().unwrap();
        assert!(residual.max_relative < 1e-9);
        assert!(residual.left_out_median_relative.unwrap() < 1e-9);
    }
}

#[test]
fn noise_free_data_of_any_sizes_and_grid_recover_their_parameters() {
    let mut random = Random::new(41);
    for _ in 0..100 {
        let mut topology = origin2000();
        let mut size = 8192.0 * (1.0 + 7.0 * random.unit());
        for level in &mut topology.levels {
            level.size_bytes = Some(size as u64);
            size *= 1.2 + 20.0 * random.unit() * random.unit();
        }
        let mut constant = || 600.0 * (random.unit() - 0.4).max(0.0);
        let constants = std::array::from_fn(|_| constant());
        let truth = truth(constants);
        // With few areas some level sizes have no area between them.
        let grid = areas(12 + (60.0 * random.unit()) as u32);
        let windows = &WINDOWS[..2 + usize::from(random.unit() < 0.5)];
        let model = window_fit(&topology, &points(&topology, &truth, windows, &grid));
        check_values(&model, &truth, 1e-6);
        let determined = model.parameters.iter().filter(|known| known.identifiable);
        assert_eq!(
            determined.count() + model.combinations.len(),
            model.method.rank
        );
    }
}

#[test]
fn table_1_is_the_minimum_norm_answer() {
    let topology = origin2000();
    let truth = truth(NONE);
    let model = window_fit(&topology, &paper_points(&topology, &truth));
    for symbol in ["t_s", "t_hh", "t_hr", "t_r", "t_m", "t_tlb", "t_pt"] {
        let (found, published) = (value(&model, symbol), truth[symbol]);
        assert!(
            (found / published - 1.0).abs() < 1e-6,
            "{symbol} {found} {published}"
        );
    }
}

#[test]
fn the_bundled_topology_gives_table_2_from_a_fit() {
    let bundled = bundled("origin2000").unwrap();
    let (topology, _) = membound_model::hierarchy::with_sizes(&bundled, &SIZES[2..]).unwrap();
    let truth = truth(NONE);
    let model = window_fit(&topology, &paper_points(&origin2000(), &truth));
    check_values(&model, &truth, 1e-6);
    assert_eq!(combinations(&model).len(), 4);
    let rates: Vec<String> = model
        .levels
        .iter()
        .filter_map(|level| level.rate_mops.known())
        .map(|rate| format!("{:.1}", rate.value))
        .collect();
    assert_eq!(rates, ["75.5", "20.3", "14.5", "13.6", "12.9", "12.2"]);
}

/// 1 if the interval of an identifiable parameter contains `truth`, else 0.
fn holds(parameter: &Parameter, truth: f64) -> f64 {
    let low = parameter.low.expect("identifiable");
    let high = parameter.high.expect("identifiable");
    f64::from(u8::from((low..=high).contains(&truth)))
}

/// Trials in which an interval contained the truth, by parameter or combination.
fn coverage(constants: [f64; 5], noise: f64, trials: u32) -> BTreeMap<String, f64> {
    let topology = origin2000();
    let truth = truth(constants);
    let clean = points(&topology, &truth, &WINDOWS, &areas(334));
    let options = FitOptions {
        left_out: LeftOut::Skip,
        points: KeepPoints::Drop,
        ..FitOptions::default()
    };
    let mut random = Random::new(2026);
    let mut coverage: BTreeMap<String, f64> = BTreeMap::new();
    for _ in 0..trials {
        let noisy = noisy(&mut random, &clean[..1000], noise);
        let model = fit(&topology, FitData::Window, &noisy, &options).expect("sound points");
        for parameter in model.parameters.iter().filter(|known| known.identifiable) {
            let truth = truth[&parameter.symbol];
            *coverage.entry(parameter.symbol.clone()).or_default() += holds(parameter, truth);
        }
        for (combination, name) in model.combinations.iter().zip(combinations(&model)) {
            let truth = sum(&combination.symbols, &combination.coefficients, &truth);
            let inside = combination.low <= truth && truth <= combination.high;
            *coverage.entry(name).or_default() += f64::from(u8::from(inside));
        }
    }
    for share in coverage.values_mut() {
        *share /= f64::from(trials);
    }
    coverage
}

#[test]
fn intervals_hold_the_truth_at_any_noise() {
    for constants in [NONE, SOME] {
        for noise in [0.03, 0.2] {
            let covered = coverage(constants, noise, 1000);
            assert_eq!(covered.len(), 12, "{covered:?}");
            for (what, share) in &covered {
                assert!(*share >= 0.93, "{what} at {noise}: {share} of {covered:?}");
            }
        }
    }
}

/// Level sizes in bytes in the model after the fit.
fn sizes(model: &Model) -> Vec<f64> {
    model
        .parameters
        .iter()
        .filter(|parameter| parameter.role == ParameterRole::Size)
        .map(|parameter| parameter.value)
        .collect()
}

/// `truth` with the sizes too.
fn with_sizes(truth: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let mut all = truth.clone();
    all.extend(
        (1..)
            .zip(SIZES)
            .map(|(level, size)| (format!("s{level}"), size as f64)),
    );
    all
}

#[test]
fn free_sizes_are_found_from_ones_a_third_off() {
    let real = origin2000();
    let truth = truth(SOME);
    let data = paper_points(&real, &truth);
    let options = FitOptions {
        sizes: SizeMode::Free,
        ..FitOptions::default()
    };
    for factors in [[1.3; 6], [0.7; 6], [1.3, 0.7, 1.3, 0.7, 1.3, 0.7]] {
        let mut topology = real.clone();
        for (level, factor) in topology.levels.iter_mut().zip(factors) {
            level.size_bytes = level.size_bytes.map(|size| (size as f64 * factor) as u64);
        }
        let model = fit(&topology, FitData::Window, &data, &options).unwrap();
        for (found, expected) in sizes(&model).iter().zip(SIZES) {
            let error = found / expected as f64 - 1.0;
            assert!(error.abs() < 0.01, "{factors:?}: {:?}", sizes(&model));
        }
        check_values(&model, &with_sizes(&truth), 1e-3);
    }
}

#[test]
fn intervals_of_free_sizes_hold_the_truth() {
    let topology = origin2000();
    let mut truth = truth(NONE);
    // The levels differ by more than a router, so every size is visible at this noise.
    truth.insert("t_r".to_owned(), 400.0);
    let clean = points(&topology, &truth, &WINDOWS, &areas(120));
    let truth = with_sizes(&truth);
    let options = FitOptions {
        sizes: SizeMode::Free,
        left_out: LeftOut::Skip,
        ..FitOptions::default()
    };
    let mut random = Random::new(7);
    let mut coverage: BTreeMap<String, f64> = BTreeMap::new();
    let trials = 60;
    for _ in 0..trials {
        let model = fit(
            &topology,
            FitData::Window,
            &noisy(&mut random, &clean, 0.01),
            &options,
        )
        .unwrap();
        for parameter in model.parameters.iter().filter(|known| known.identifiable) {
            let truth = truth[&parameter.symbol];
            *coverage.entry(parameter.symbol.clone()).or_default() += holds(parameter, truth);
        }
    }
    for (what, count) in &coverage {
        assert!(count / f64::from(trials) >= 0.85, "{what}: {coverage:?}");
    }
}
