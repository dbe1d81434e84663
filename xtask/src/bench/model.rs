//! Time of a fit of the hierarchy model, and how often its intervals contain the truth. The data
//! are those of the tests' Origin2000, with noise of a fixed seed: only the time depends on the
//! machine. The timed code is compiled into this program, so it must be a release build.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use membound_model::hierarchy::{FitOptions, KeepPoints, LeftOut, fit};
use membound_types::{Doctor, FitData, Model, Observation};
use serde_json::{Value, json};

use super::common::{document, median, verdict};
use crate::results::Kept;
use crate::run::{note, program, say};

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../../../crates/membound-model/tests/model/seidl_data.rs"]
mod seidl_data;

use seidl_data::{NONE, Random, SOME, WINDOWS, areas, noisy, origin2000, points, truth};

const TIME_TARGET_MS: f64 = 50.0;
const COVERAGE_TARGET: f64 = 0.93;
const POINTS: usize = 10_000;
const COVERAGE_POINTS: usize = 1_000;

/// Arguments of `bench model`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fits to time.
    #[arg(long, default_value_t = 50)]
    runs: usize,
    /// Fits of other noise for each coverage.
    #[arg(long, default_value_t = 1000)]
    trials: usize,
}

pub(super) fn run(membound: &Path, args: &Args) -> Result<Kept> {
    ensure!(
        !cfg!(debug_assertions),
        "this bench times its own code, which was built with checks: \
         use `cargo run --release --package xtask -- bench model`"
    );
    ensure!(args.runs > 0 && args.trials > 0, "no run was asked for");
    let doctor: Doctor = document(program(membound).args(["doctor", "--json", "-"]))?;
    let mut summary = Vec::new();
    let mut raw = Vec::new();
    say("what                                          found      target");
    for (what, left_out) in [
        ("10000 points, 14 parameters", LeftOut::Skip),
        ("the same with points left out", LeftOut::Check),
    ] {
        let times = times(args.runs, left_out)?;
        let found = median(&times).context("no run was asked for")?;
        let judged = verdict(found < TIME_TARGET_MS);
        say(format_args!(
            "{what:<46}{found:>6.1} ms  {TIME_TARGET_MS} ms {judged}"
        ));
        summary.push(json!({ "what": what, "median_ms": found, "target_ms": TIME_TARGET_MS }));
        raw.push(json!({ "what": what, "times_ms": times }));
    }
    for (constants, name) in [(NONE, "no constants"), (SOME, "constants")] {
        for noise in [0.03, 0.2] {
            note(format_args!("coverage at {noise} noise, {name}"));
            let held = coverage(constants, noise, args.trials)?;
            let least = held.values().copied().fold(1.0, f64::min);
            let what = format!("least coverage at {} % noise, {name}", noise * 100.0);
            let judged = verdict(least >= COVERAGE_TARGET);
            say(format_args!(
                "{what:<46}{:>6.1} %   {} % {judged}",
                least * 100.0,
                COVERAGE_TARGET * 100.0
            ));
            summary.push(json!({ "what": what, "least": least, "target": COVERAGE_TARGET }));
            raw.push(json!({ "what": what, "held": held }));
        }
    }
    Ok(Kept {
        bench: "model",
        machine: doctor.machine,
        summary: summary.into(),
        raw: Value::from(raw),
    })
}

/// Milliseconds of `runs` fits of points with 3 % noise, all in different areas.
fn times(runs: usize, left_out: LeftOut) -> Result<Vec<f64>> {
    let topology = origin2000();
    let clean = points(&topology, &truth(SOME), &WINDOWS, &areas(3334));
    let noisy = noisy(&mut Random::new(1), &clean[..POINTS], 0.03);
    let options = FitOptions {
        left_out,
        ..FitOptions::default()
    };
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            let model = fit(&topology, FitData::Window, &noisy, &options)?;
            let elapsed = start.elapsed();
            ensure!(model.parameters.len() == 14, "another topology");
            Ok(elapsed.as_secs_f64() * 1e3)
        })
        .collect()
}

/// Share of `trials` in which each interval contains the truth.
fn coverage(constants: [f64; 5], noise: f64, trials: usize) -> Result<BTreeMap<String, f64>> {
    let topology = origin2000();
    let truth = truth(constants);
    let clean = points(&topology, &truth, &WINDOWS, &areas(334));
    let options = FitOptions {
        left_out: LeftOut::Skip,
        points: KeepPoints::Drop,
        ..FitOptions::default()
    };
    let mut random = Random::new(2026);
    let mut held: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..trials {
        let noisy: Vec<Observation> = noisy(&mut random, &clean[..COVERAGE_POINTS], noise);
        let model = fit(&topology, FitData::Window, &noisy, &options)?;
        for (name, inside) in judged(&model, &truth) {
            *held.entry(name).or_default() += usize::from(inside);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer trials than 2^53")]
    let share = |count: usize| count as f64 / trials as f64;
    Ok(held
        .into_iter()
        .map(|(name, count)| (name, share(count)))
        .collect())
}

/// Whether each interval of `model` contains the truth.
fn judged(model: &Model, truth: &BTreeMap<String, f64>) -> Vec<(String, bool)> {
    let parameters = model.parameters.iter().filter_map(|parameter| {
        let interval = parameter.low?..=parameter.high?;
        let inside = interval.contains(truth.get(&parameter.symbol)?);
        Some((parameter.symbol.clone(), inside))
    });
    let combinations = model.combinations.iter().map(|sum| {
        let terms = sum.symbols.iter().zip(&sum.coefficients);
        let truth: f64 = terms
            .map(|(symbol, factor)| factor * truth.get(symbol).copied().unwrap_or(f64::NAN))
            .sum();
        (
            sum.symbols.join(" + "),
            (sum.low..=sum.high).contains(&truth),
        )
    });
    parameters.chain(combinations).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_and_sum_is_judged() {
        let held = coverage(NONE, 0.03, 2).unwrap();
        assert_eq!(held.len(), 12, "{held:?}");
        assert!(held.values().all(|share| (0.0..=1.0).contains(share)));
    }
}
