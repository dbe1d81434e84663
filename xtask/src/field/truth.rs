//! The true share of CPU time for which a program waits for memory, from sources other than
//! membound.
//!
//! Every truth is a band, not a number: uncertainty of the source (the time outside of the timed
//! phase, the spread of repeated runs, a one-sided bound) widens the band. A profile's interval
//! holds the truth if the interval and the band overlap; the error is the distance of the profile's
//! share from the band.

use anyhow::{Context as _, Result, bail};
use membound_model::stats::median;
use serde::{Deserialize, Serialize};

use super::entry::{Truth, number};
use super::statistics::Interval;

/// Maximum cost of an access that misses the last-level cache: a DRAM latency with a walk of the
/// page table, in nanoseconds.
const MEMORY_NS: f64 = 150.0;
/// Maximum cost of an access that only misses the first cache, in nanoseconds.
const LAST_LEVEL_NS: f64 = 30.0;

/// A share that is known within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Band {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Band {
    fn clamped(low: f64, high: f64) -> Self {
        Self {
            low: low.clamp(0.0, 1.0),
            high: high.clamp(0.0, 1.0),
        }
    }

    /// Whether the interval of a share overlaps the band.
    pub(crate) fn is_held_by(self, [_, low, high]: [f64; 3]) -> bool {
        low <= self.high && high >= self.low
    }

    /// Distance of the share from the band.
    pub(crate) fn error_of(self, [share, _, _]: [f64; 3]) -> f64 {
        (self.low - share).max(share - self.high).max(0.0)
    }
}

/// One run of a program, with or without membound.
pub(crate) struct ProgramRun {
    pub(crate) stdout: String,
    pub(crate) program_s: f64,
}

/// The band of `truth`. `plain` are the entry's own runs without membound, `other` those of the
/// truth's other command; for cachegrind, the first of these is native and the second's stdout
/// holds cachegrind's output.
///
/// `recorded` are the program's recorded runs, which the profile describes. The time outside of a
/// timed phase (page faults) differs between runs by more than any error, so the phase's part is
/// theirs. And recording can reduce the contention for a line: the faulty build is then faster than
/// alone, and loses less of its time. The band of a paired build therefore reaches down to the fastest
/// of all runs of the faulty build. A run that recording slows down changes nothing.
pub(crate) fn band(
    truth: &Truth,
    plain: &[ProgramRun],
    recorded: &[ProgramRun],
    other: &[ProgramRun],
) -> Result<Band> {
    let all = |runs: &[ProgramRun], expression: &str| -> Result<Vec<f64>> {
        runs.iter()
            .map(|run| {
                number(expression, &run.stdout)
                    .with_context(|| format!("the program did not say `{expression}`"))
            })
            .collect()
    };
    let phase_part = |expression: &str| -> Result<f64> {
        let runs = if recorded.is_empty() { plain } else { recorded };
        let phases_s = all(runs, expression)?;
        let parts = runs.iter().zip(phases_s);
        let parts: Vec<f64> = parts
            .map(|(run, phase_s)| (phase_s / run.program_s).min(1.0))
            .collect();
        median(&parts).context("no run says what the truth needs")
    };
    match truth {
        Truth::FitsCachePair {
            per_operation,
            phase_s,
            ..
        } => {
            let large = all(plain, per_operation)?;
            let small = all(other, per_operation)?;
            let (low_large, high_large) = ends(&large)?;
            let (low_small, high_small) = ends(&small)?;
            let share = (1.0 - high_small / low_large, 1.0 - low_small / high_large);
            Ok(widened(share, phase_part(phase_s)?))
        }
        Truth::OwnStopwatch { share, phase_s } => {
            let share = ends(&all(plain, share)?)?;
            let part = phase_s.as_ref().map_or(Ok(1.0), |it| phase_part(it))?;
            Ok(widened(share, part))
        }
        Truth::Cachegrind { .. } => {
            let [native, simulated] = other else {
                bail!("cachegrind needs a native and a simulated run");
            };
            let misses = |expression: &str| {
                number(expression, &simulated.stdout)
                    .with_context(|| format!("cachegrind did not say `{expression}`"))
            };
            let first = misses(r"D1\s+misses:\s+(\S+)")?;
            let last = misses(r"LLd misses:\s+(\S+)")?;
            let wait_s = (last * MEMORY_NS + (first - last).max(0.0) * LAST_LEVEL_NS) / 1e9;
            Ok(Band::clamped(0.0, wait_s / native.program_s))
        }
        Truth::PairedBuild { .. } => {
            let times = |runs: &[ProgramRun]| -> Vec<f64> {
                runs.iter().map(|run| run.program_s).collect()
            };
            let faulty = [times(plain), times(recorded)].concat();
            let mended = times(other);
            let (low_faulty, _) = ends(&faulty)?;
            let (_, high_mended) = ends(&mended)?;
            Ok(Band::clamped(1.0 - high_mended / low_faulty, 1.0))
        }
    }
}

/// Share of its time that the repaired build saves, negative if it takes longer, with an interval: some builds
/// take several times as long in one run as in the next. `None` without such a build.
pub(crate) fn saved(truth: &Truth, plain: &[ProgramRun], other: &[ProgramRun]) -> Option<Interval> {
    if !matches!(truth, Truth::PairedBuild { .. }) {
        return None;
    }
    let middle = |runs: &[ProgramRun]| {
        let times: Vec<f64> = runs.iter().map(|run| run.program_s).collect();
        median(&times)
    };
    let pairs = plain.iter().zip(other);
    let savings: Vec<f64> = pairs
        .map(|(plain, other)| 1.0 - other.program_s / plain.program_s)
        .collect();
    let usual = 1.0 - middle(other)? / middle(plain)?;
    Interval::of(&savings).map(|spread| Interval {
        median: usual,
        low: spread.low.min(usual),
        high: spread.high.max(usual),
    })
}

/// Minimum and maximum.
fn ends(values: &[f64]) -> Result<(f64, f64)> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !low.is_finite() || !high.is_finite() || low > high {
        bail!("no run says what the truth needs");
    }
    Ok((low, high))
}

/// The band of the whole run, from the share that waits in its timed phase, between `low` and `high`. `part` is the
/// phase's part of the run's time; the remaining time may wait for memory throughout, or never.
fn widened((low, high): (f64, f64), part: f64) -> Band {
    Band::clamped(low.max(0.0) * part, high * part + (1.0 - part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stdout: &str, program_s: f64) -> ProgramRun {
        ProgramRun {
            stdout: stdout.to_owned(),
            program_s,
        }
    }

    #[track_caller]
    fn check(truth: &str, plain: &[ProgramRun], other: &[ProgramRun], low: f64, high: f64) {
        let truth: Truth = toml::from_str(truth).unwrap();
        let band = band(&truth, plain, &[], other).unwrap();
        assert!((band.low - low).abs() < 1e-9, "{band:?}");
        assert!((band.high - high).abs() < 1e-9, "{band:?}");
    }

    #[test]
    fn a_pair_knows_nothing_of_the_time_outside_its_phase() {
        check(
            "kind = \"fits-cache-pair\"\nsmall = [\"x\"]\nper_operation = 'op (\\S+)'\nphase_s = 'phase (\\S+)'",
            &[run("op 10\nphase 4", 5.0)],
            &[run("op 2\nphase 1", 1.0)],
            0.64,
            0.84,
        );
    }

    #[test]
    fn the_time_outside_a_phase_is_that_of_the_recorded_run() {
        let pair: Truth = toml::from_str(
            "kind = \"fits-cache-pair\"\nsmall = [\"x\"]\nper_operation = 'op (\\S+)'\nphase_s = 'phase (\\S+)'",
        )
        .unwrap();
        let plain = [run("op 10\nphase 4", 5.0)];
        let recorded = [run("op 11\nphase 4", 8.0)];
        let band = band(&pair, &plain, &recorded, &[run("op 2\nphase 1", 1.0)]).unwrap();
        assert!((band.low - 0.4).abs() < 1e-9, "{band:?}");
        assert!((band.high - 0.9).abs() < 1e-9, "{band:?}");
    }

    #[test]
    fn repeated_runs_widen_the_band() {
        check(
            "kind = \"own-stopwatch\"\nshare = 'share (\\S+)'",
            &[run("share 0.5", 1.0), run("share 0.6", 1.0)],
            &[],
            0.5,
            0.6,
        );
    }

    #[test]
    fn cachegrind_bounds_from_above() {
        check(
            "kind = \"cachegrind\"\ncommand = [\"x\"]",
            &[],
            &[
                run("", 1.0),
                run(
                    "==1== D1  misses:  3,000,000\n==1== LLd misses:  1,000,000 (",
                    50.0,
                ),
            ],
            0.0,
            0.21,
        );
    }

    #[test]
    fn a_mended_build_may_save_less_than_nothing() {
        let paired: Truth = toml::from_str("kind = \"paired-build\"\nmended = [\"x\"]").unwrap();
        let saved = saved(&paired, &[run("", 2.0)], &[run("", 2.5)]).unwrap();
        assert!((saved.median + 0.25).abs() < 1e-9);
        let runs = |times: [f64; 3]| times.map(|s| run("", s));
        let unsteady = super::saved(&paired, &runs([2.0, 2.0, 1.0]), &runs([1.0, 1.0, 1.0]));
        let unsteady = unsteady.unwrap();
        assert_eq!((unsteady.low, unsteady.high), (0.0, 0.5));
        let own = toml::from_str("kind = \"own-stopwatch\"\nshare = 'share (\\S+)'").unwrap();
        assert_eq!(super::saved(&own, &[run("", 2.0)], &[]), None);
    }

    #[test]
    fn a_mended_build_bounds_from_below() {
        check(
            "kind = \"paired-build\"\nmended = [\"x\"]",
            &[run("", 2.0)],
            &[run("", 0.5)],
            0.75,
            1.0,
        );
    }

    #[test]
    fn a_fight_that_recording_makes_milder_costs_the_recorded_run_less() {
        let paired: Truth = toml::from_str("kind = \"paired-build\"\nmended = [\"x\"]").unwrap();
        let band = |recorded_s: f64| {
            let recorded = [run("", recorded_s)];
            band(&paired, &[run("", 2.0)], &recorded, &[run("", 0.5)]).unwrap()
        };
        assert!((band(1.0).low - 0.5).abs() < 1e-9);
        assert!((band(2.5).low - 0.75).abs() < 1e-9);
    }

    #[test]
    fn an_interval_holds_a_band_that_it_meets() {
        let band = Band {
            low: 0.4,
            high: 0.5,
        };
        assert!(band.is_held_by([0.35, 0.3, 0.41]));
        assert!(!band.is_held_by([0.35, 0.3, 0.39]));
        assert!((band.error_of([0.35, 0.3, 0.39]) - 0.05).abs() < 1e-12);
        assert!(band.error_of([0.45, 0.3, 0.6]) < 1e-12);
    }
}
