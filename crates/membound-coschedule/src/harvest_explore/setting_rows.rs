//! From runs to figures: medians over rounds, each run compared with the programs by themselves in the same
//! round.

use membound_measure::stats;
use membound_types::{ExploreFigure, ExploreRow, ExploreRun};

use super::sweep_settings::Setting;

/// The median over the successful runs, with its interval; `None` if no run has the value.
pub(super) fn figure(
    runs: &[ExploreRun],
    of: impl Fn(&ExploreRun) -> Option<f64>,
) -> Option<ExploreFigure> {
    let succeeded = runs.iter().filter(|run| run.failed.is_none());
    let values: Vec<f64> = succeeded.filter_map(of).collect();
    let summary = stats::summarize(&values)?;
    Some(ExploreFigure {
        value: summary.median,
        low: summary.low,
        high: summary.high,
    })
}

/// Builds the row of a setting from its runs.
pub(super) fn row(setting: &Setting, runs: Vec<ExploreRun>) -> ExploreRow {
    let failed = match runs.iter().find(|run| run.failed.is_none()) {
        Some(_) => None,
        None => runs.first().map_or_else(
            || Some("it was not run".to_owned()),
            |first| first.failed.clone(),
        ),
    };
    ExploreRow {
        setting: setting.name.clone(),
        at: setting.at,
        series: setting.series.clone(),
        failed,
        primary_s: figure(&runs, |run| run.primary_s),
        slowdown: figure(&runs, slowdown),
        all_s: figure(&runs, |run| run.all_s),
        speedup: figure(&runs, speedup),
        work: figure(&runs, work),
        p95_ns: figure(&runs, |run| run.p95_ns),
        p95_change: figure(&runs, p95_change),
        turn_p50_ns: figure(&runs, |run| run.turn_p50_ns),
        turn_p90_ns: figure(&runs, |run| run.turn_p90_ns),
        within: figure(&runs, |run| run.within),
        yield_ns: figure(&runs, yield_ns),
        loads: figure(&runs, |run| run.loads.map(|loads| loads as f64)),
        same_loads: figure(&runs, same_loads),
        runs,
    }
}

/// How much longer the primary takes than by itself, as a share.
fn slowdown(run: &ExploreRun) -> Option<f64> {
    Some(run.primary_s? / positive(run.alone_s?)? - 1.0)
}

/// Time of all programs one after another over their time together.
fn speedup(run: &ExploreRun) -> Option<f64> {
    Some((run.alone_s? + run.scavengers_alone_s?) / positive(run.all_s?)?)
}

/// Work that scavengers did while the primary ran, in their time by themselves, over the primary's time.
///
/// After the primary's end they run by themselves, so the time that they still take is the work that was
/// left.
fn work(run: &ExploreRun) -> Option<f64> {
    let primary_s = positive(run.primary_s?)?;
    let done_s = match (run.scavengers_alone_s, run.all_s) {
        (Some(alone_s), Some(all_s)) => alone_s - (all_s - primary_s),
        _ => run.scavengers_cpu_s?,
    };
    // Scavengers may slow each other down after the primary's end by more than they did before it.
    Some(done_s.max(0.0) / primary_s)
}

fn p95_change(run: &ExploreRun) -> Option<f64> {
    Some(run.p95_ns? / positive(run.alone_p95_ns?)? - 1.0)
}

/// Increase of the primary's time per time slice, in nanoseconds.
fn yield_ns(run: &ExploreRun) -> Option<f64> {
    /// With fewer time slices, noise of the primary's time would be attributed to them.
    const MIN_SLICES: u64 = 1000;
    let slices = run.turns.filter(|slices| *slices >= MIN_SLICES)? as f64;
    Some((run.primary_s? - run.alone_s?) * 1e9 / slices)
}

/// Similarity of two choices of loads: intersection over union.
fn same_loads(run: &ExploreRun) -> Option<f64> {
    let common = run.common_loads?;
    let either = positive((run.loads? + run.usual_loads? - common) as f64)?;
    Some(common as f64 / either)
}

fn positive(value: f64) -> Option<f64> {
    (value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::super::sweep_settings::{Harvesting, Scheduling};
    use super::*;

    /// A round in which the machine takes `slow` times as long.
    fn run(pair: u32, slow: f64) -> ExploreRun {
        ExploreRun {
            pair,
            alone_s: Some(2.0 * slow),
            scavengers_alone_s: Some(4.0 * slow),
            primary_s: Some(2.5 * slow),
            all_s: Some(4.0 * slow),
            alone_p95_ns: Some(100.0 * slow),
            p95_ns: Some(130.0 * slow),
            turns: Some(1_000_000),
            loads: Some(3),
            common_loads: Some(2),
            usual_loads: Some(3),
            ..ExploreRun::default()
        }
    }

    fn row_of(runs: Vec<ExploreRun>) -> ExploreRow {
        let setting = Setting {
            name: "any".to_owned(),
            at: Some(1.0),
            series: None,
            load: 0,
            scheduling: Scheduling::Harvest(Harvesting::default()),
        };
        row(&setting, runs)
    }

    #[track_caller]
    fn is(figure: Option<ExploreFigure>, value: f64, low: f64, high: f64) {
        let found = figure.unwrap();
        for (found, expected) in [(found.value, value), (found.low, low), (found.high, high)] {
            assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
        }
    }

    #[test]
    fn figures_are_of_pairs_so_that_a_slow_round_changes_none() {
        let row = row_of(vec![run(0, 1.0), run(1, 3.0), run(2, 1.5)]);
        is(row.primary_s, 3.75, 2.5, 7.5);
        is(row.slowdown, 0.25, 0.25, 0.25);
        is(row.speedup, 1.5, 1.5, 1.5);
        // Of 4 s of work 1.5 s was left: 2.5 s was done in 2.5 s.
        is(row.work, 1.0, 1.0, 1.0);
        is(row.p95_change, 0.3, 0.3, 0.3);
        is(row.yield_ns, 750.0, 500.0, 1500.0);
        is(row.same_loads, 0.5, 0.5, 0.5);
        assert_eq!(row.failed, None);
    }

    #[test]
    fn endless_scavengers_are_measured_by_cpu_time() {
        let endless = ExploreRun {
            scavengers_alone_s: None,
            all_s: None,
            scavengers_cpu_s: Some(0.5),
            ..run(0, 1.0)
        };
        let row = row_of(vec![endless]);
        is(row.work, 0.2, 0.2, 0.2);
        assert_eq!((row.speedup, row.all_s), (None, None));
    }

    #[test]
    fn failed_runs_are_in_no_figure_and_rows_of_them_give_the_reason() {
        let failed = ExploreRun {
            failed: Some("a scavenger crashed".to_owned()),
            ..run(1, 9.0)
        };
        let row = row_of(vec![failed.clone(), run(0, 1.0)]);
        is(row.primary_s, 2.5, 2.5, 2.5);
        assert_eq!(row.failed, None);
        let row = row_of(vec![failed]);
        assert_eq!(row.failed.as_deref(), Some("a scavenger crashed"));
        assert_eq!(row.primary_s, None);
        assert_eq!(row_of(Vec::new()).failed.as_deref(), Some("it was not run"));
    }
}
