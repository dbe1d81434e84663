//! Levels of machines without a description, from random windows alone.

use membound_model::hierarchy::{FitError, FitOptions, Known, fit_measured};
use membound_types::{FitData, Model, Observation, Outcome};

use crate::seidl_data::{
    KIB, MIB, NONE, WINDOWS, observation, origin2000, paper_areas, points, truth,
};
use membound_testkit::Random;

/// Size in bytes at which a level ends, and the extra time of a window beyond: nanoseconds per window
/// and per 64 bytes.
type Step = (u64, f64, f64);

/// Caches of 1 MiB and 16 MiB and memory; the core hides the misses of a first cache of
/// 32 KiB except for one per cent.
const LAPTOP: [Step; 3] = [
    (32 * KIB, 0.2, 0.01),
    (MIB, 6.0, 0.5),
    (16 * MIB, 90.0, 5.0),
];

fn laptop(areas_an_octave: u32) -> Vec<Observation> {
    let areas = 18 * areas_an_octave;
    let mut values = Vec::new();
    for window in WINDOWS {
        let lines = window as f64 / 64.0;
        for place in 0..=areas {
            let octave = f64::from(place) / f64::from(areas_an_octave);
            let area = (16384.0 * octave.exp2()) as u64 / window * window;
            let steps = LAPTOP.iter().map(|&(end, once, each)| {
                (once + each * lines) * (1.0 - end as f64 / area as f64).max(0.0)
            });
            let ns = 2.0 + 1.1 * lines + steps.sum::<f64>();
            values.push(observation(Some(window), area, ns));
        }
    }
    values
}

/// Noise of 3 %, and 2 % of the values 1.3 to 3 times too long.
fn disturbed(values: &[Observation], seed: u64) -> Vec<Observation> {
    let mut random = Random::new(seed);
    let disturb = |value: &Observation| {
        let mut ns = value.ns * (1.0 + 0.03 * random.normal());
        if random.unit() < 0.02 {
            ns *= random.log_uniform(1.3, 3.0);
        }
        Observation { ns, ..*value }
    };
    values.iter().map(disturb).collect()
}

fn fitted(values: &[Observation]) -> Model {
    let model: Result<Model, FitError> = fit_measured(
        FitData::Window,
        values,
        &Known::default(),
        Ok,
        &FitOptions::default(),
    );
    model.expect("the values can be fitted")
}

/// Ends of the levels, in bytes.
fn ends(model: &Model) -> Vec<f64> {
    let sizes = model.levels.iter().filter_map(|level| level.reach_bytes);
    sizes.map(|size| size as f64).collect()
}

#[track_caller]
fn has_ends(model: &Model, truth: &[u64], tolerance: f64) {
    assert!(
        are_ends(&ends(model), truth, tolerance),
        "{:?} instead of {truth:?}",
        ends(model)
    );
    assert_eq!(model.levels.len(), truth.len() + 1);
}

fn are_ends(found: &[f64], truth: &[u64], tolerance: f64) -> bool {
    found.len() == truth.len()
        && found
            .iter()
            .zip(truth)
            .all(|(found, &truth)| (found / truth as f64 - 1.0).abs() < tolerance)
}

#[test]
fn an_origin2000_shows_its_caches_its_tlb_and_memory_that_is_not_uniform() {
    let topology = origin2000();
    let mut values = Vec::new();
    for window in WINDOWS {
        values.extend(points(
            &topology,
            &truth(NONE),
            &[window],
            &paper_areas(window),
        ));
    }
    let model = fitted(&values);
    let found = ends(&model);
    // Both caches, and between them the 64 pages of 16 KiB of the TLB.
    assert!(
        are_ends(&found[..3], &[32 * KIB, MIB, 4 * MIB + 32 * KIB], 0.05),
        "{found:?}"
    );
    // Home memory ends at 516 MiB, but the page-table term jumps at 256 MiB: with
    // two areas per octave that edge cannot be distinguished from the routers, each an octave further
    // and a few per cent slower.
    let far = &found[3..];
    assert!(!far.is_empty() && far.len() <= 4, "{found:?}");
    assert!(far.iter().all(|end| *end > 128.0 * MIB as f64), "{found:?}");
    let residual = model.residual.known().expect("a fit");
    assert!(residual.median_relative < 0.005, "{residual:?}");
    assert!(residual.max_relative < 0.02, "{residual:?}");
    let tlb = model.notes.iter().any(|note| note.contains("TLB"));
    assert!(tlb, "{:?}", model.notes);
}

#[test]
fn an_origin2000_without_page_tables_is_described_within_two_per_cent() {
    let mut topology = origin2000();
    topology.page_table = None;
    topology.tlb.clear();
    let mut values = Vec::new();
    for window in WINDOWS {
        values.extend(points(
            &topology,
            &truth(NONE),
            &[window],
            &paper_areas(window),
        ));
    }
    let model = fitted(&values);
    let found = ends(&model);
    assert!(
        are_ends(
            &found[..3],
            &[32 * KIB, 4 * MIB + 32 * KIB, 516 * MIB + 32 * KIB],
            0.05
        ),
        "{found:?}"
    );
    let residual = model.residual.known().expect("a fit");
    assert!(residual.max_relative < 0.02, "{residual:?}");
}

#[test]
fn a_first_cache_whose_misses_the_core_hides_is_no_level() {
    let model = fitted(&laptop(4));
    has_ends(&model, &[MIB, 16 * MIB], 0.02);
    let residual = model.residual.known().expect("a fit");
    assert!(residual.max_relative < 0.02, "{residual:?}");
    let selection = model.method.selection.as_deref();
    assert!(selection.is_some_and(|selection| selection.contains("BIC")));
}

#[test]
fn noise_and_outliers_neither_add_levels_nor_move_them() {
    const SEEDS: u64 = 50;
    let values = laptop(4);
    let mut right = 0;
    let mut left_out = Vec::new();
    let mut wrong = Vec::new();
    for seed in 0..SEEDS {
        let model = fitted(&disturbed(&values, seed));
        let found = ends(&model);
        if are_ends(&found, &[MIB, 16 * MIB], 0.1) {
            right += 1;
        } else {
            wrong.push(found);
        }
        let residual = model.residual.known().expect("a fit");
        left_out.extend(residual.left_out_median_relative);
    }
    assert!(right * 100 >= 95 * SEEDS, "{right} of {SEEDS}: {wrong:?}");
    assert_eq!(left_out.len() as u64, SEEDS);
    let worst = left_out.iter().copied().fold(0.0, f64::max);
    assert!(worst < 0.08, "{worst}");
}

#[test]
fn windows_of_one_size_have_levels_too() {
    let values: Vec<Observation> = laptop(6)
        .into_iter()
        .filter(|value| value.window_bytes == Some(2048))
        .collect();
    has_ends(&fitted(&values), &[MIB, 16 * MIB], 0.02);
}

#[test]
fn smooth_ramps_have_no_levels() {
    for (power, noise) in [(0.3, 0.0), (0.3, 0.02), (0.1, 0.02)] {
        let mut random = Random::new(9);
        let values: Vec<Observation> = laptop(4)
            .iter()
            .map(|value| {
                let windows = value.window_bytes.expect("a window") as f64;
                let ns = windows.sqrt() * (value.area_bytes as f64).powf(power);
                let ns = ns * (1.0 + noise * random.normal());
                Observation { ns, ..*value }
            })
            .collect();
        let model = fitted(&values);
        assert!(model.levels.is_empty(), "{power}: {:?}", ends(&model));
        assert!(matches!(model.residual, Outcome::Missing { .. }));
    }
}

#[test]
fn the_same_levels_are_found_in_thousands_of_values() {
    let values = disturbed(&laptop(200), 1);
    assert!(values.len() > 10_000);
    has_ends(&fitted(&values), &[MIB, 16 * MIB], 0.03);
}
