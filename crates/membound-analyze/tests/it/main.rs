//! Analyses runs with a known truth, and checks the results.

mod compare;
mod edges;
mod gate;
mod objects;
mod other_machines;
mod placement;
mod random_runs;
mod selection;
mod sharing;
mod stalls;
mod synthetic;
mod traffic;
mod unattributed;

use membound_analyze::{Options, Views, analyze};
use membound_run::RunData;

/// Analyses `run` with default options.
fn views(run: &RunData) -> Views {
    analyze(run, &Options::default())
}

/// Asserts that `value` is within `tolerance` of `expected`.
#[track_caller]
fn near(value: f64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (value - expected).abs() <= tolerance,
        "{what}: {value} is not within {tolerance} of {expected}"
    );
}
