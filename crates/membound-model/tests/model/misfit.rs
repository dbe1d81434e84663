//! Models that do not describe their data: the notes must say so.

use membound_model::hierarchy::{FitError, FitOptions, Known, fit_measured};
use membound_types::{FitData, Model, Observation, Weights};

use crate::hierarchy_cases::{clean, fit_with};
use crate::seidl_data::{NONE, SIZES, origin2000};
use membound_testkit::Random;

const MISFIT: &str = "does not describe these values";
const BIAS: &str = "too low at a noise";

fn says(model: &Model, what: &str) -> bool {
    model.notes.iter().any(|note| note.contains(what))
}

/// Windows on the Origin2000 with relative noise.
fn windows(noise: f64) -> Vec<Observation> {
    let mut random = Random::new(7);
    let mut data = clean(NONE);
    for point in &mut data {
        point.ns *= 1.0 + noise * random.normal();
    }
    data
}

#[test]
fn a_value_that_contradicts_the_data_is_noticed() {
    for noise in [0.0, 0.03, 0.2] {
        let free = fit_with(&windows(noise), &FitOptions::default()).expect("a fit");
        assert!(!says(&free, MISFIT), "{noise}: {:?}", free.notes);
    }
    let mut options = FitOptions::default();
    options.fixed.insert("t_s".to_owned(), 500.0);
    let model = fit_with(&windows(0.03), &options).expect("a fit");
    assert!(says(&model, MISFIT), "{:?}", model.notes);
}

#[test]
fn wrong_sizes_are_noticed() {
    let mut topology = origin2000();
    topology.levels[1].size_bytes = Some(SIZES[1] * 16);
    let fitted = membound_model::hierarchy::fit(
        &topology,
        FitData::Window,
        &windows(0.03),
        &FitOptions::default(),
    );
    let model = fitted.expect("a fit");
    assert!(says(&model, MISFIT), "{:?}", model.notes);
}

#[test]
fn the_papers_weights_are_called_biased_where_they_are() {
    let options = FitOptions {
        weights: Weights::Measured,
        ..FitOptions::default()
    };
    for (noise, biased) in [(0.0, false), (0.02, false), (0.2, true)] {
        let model = fit_with(&windows(noise), &options).expect("a fit");
        assert_eq!(says(&model, BIAS), biased, "{noise}: {:?}", model.notes);
    }
}

/// A latency curve with `ns` as a function of octaves beyond 4 KiB, six areas per octave.
fn curve(ns: impl Fn(f64) -> f64) -> Model {
    let mut random = Random::new(11);
    let values: Vec<Observation> = (0..=108)
        .map(|index| {
            let octaves = f64::from(index) / 6.0;
            Observation {
                window_bytes: None,
                area_bytes: (4096.0 * octaves.exp2()) as u64,
                ns: ns(octaves) * (1.0 + 0.03 * random.normal()),
                ns_low: None,
                ns_high: None,
            }
        })
        .collect();
    let fitted: Result<Model, FitError> = fit_measured(
        FitData::Latency,
        &values,
        &Known::default(),
        Ok,
        &FitOptions::default(),
    );
    fitted.expect("the values can be fitted")
}

#[test]
fn a_curve_that_climbs_or_falls_smoothly_is_not_one_level_of_its_mean() {
    for (what, model) in [
        ("falling", curve(|octaves| 100.0 * (-octaves / 6.0).exp())),
        ("rising", curve(|octaves| 3.0 * (octaves / 6.0).exp())),
        ("linear", curve(|octaves| 3.0 + octaves)),
        ("saturating", curve(|octaves| 2.0 - (-octaves / 5.0).exp())),
    ] {
        assert!(model.levels.is_empty(), "{what}: {:#?}", model.levels);
        assert!(model.residual.known().is_none(), "{what}");
    }
}
