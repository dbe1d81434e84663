//! The figures of document 003 for the user's own program (`membound harvest explore`). Runs the program with
//! one setting after another through `membound harvest run`, and under the kernel's scheduler.

mod child_groups;
mod explore_config;
mod explored_profiles;
mod load;
mod loads;
mod prepare;
mod setting_rows;
mod sweep_settings;
mod test_bench;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use membound_measure::Progress;
use membound_types::{
    ExploreAlone, ExploreRow, ExploreRun, ExploreSweep, ExploredSweep, HarvestExplore, Kind,
    MachineProfile, NotMeasured, SCHEMA_VERSION,
};

pub use explore_config::{BoundNs, ExploreConfig};
pub use load::Load;
pub use prepare::CheckedExploration;

use crate::environment::Environment;
use crate::error::Error;
use child_groups::{EndFailure, INTERRUPTED};
use explored_profiles::{Plans, YieldingLoads};
use prepare::{Case, Prepared};
use sweep_settings::{Setting, SweepInputs};
use test_bench::Baseline;

/// The result of an exploration.
#[derive(Debug)]
pub struct Explored {
    /// What was measured.
    pub document: HarvestExplore,
    /// Why not everything was measured.
    pub ended_early: Option<EndedEarly>,
}

/// Why not everything was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedEarly {
    /// The user ended it.
    Interrupted,
    /// A program by itself did not end, for this reason.
    Failed(String),
}

impl fmt::Display for EndedEarly {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Interrupted => INTERRUPTED,
            Self::Failed(why) => why,
        })
    }
}

impl CheckedExploration {
    /// Runs and profiles each program once, and then runs every setting in each round, until `cancel` is set.
    /// `machine` is the profile of this machine, without which no plan can be made. `progress` is shown once
    /// settings are run.
    ///
    /// # Errors
    /// [`Error::FailsAlone`] and [`Error::Interrupted`] where nothing was measured; if a program cannot be started.
    pub fn run(
        &self,
        machine: Option<MachineProfile>,
        cancel: &AtomicBool,
        progress: &dyn Progress,
    ) -> Result<Explored, Error> {
        let config = &self.config;
        let prepared = self.prepare(machine, cancel)?;
        let tables = tables(config, &prepared);
        let wanted = distinct_settings(&tables);
        if !config.quiet {
            announce(config, &self.environment, &prepared, &wanted);
        }
        let found = rounds(config, &prepared, &wanted, progress);
        Ok(Explored {
            ended_early: found.ended_early.clone(),
            document: document(config, &prepared, &tables, found, self.started),
        })
    }
}

/// A requested table: its settings, or why it has none.
type Table = (ExploreSweep, Result<Vec<Setting>, NotMeasured>);

fn tables(config: &ExploreConfig, prepared: &Prepared<'_>) -> Vec<Table> {
    let loads = prepared.cases.iter().filter_map(|case| case.load.as_ref());
    let inputs = SweepInputs {
        bounds: config.bounds.clone(),
        overheads: config.overheads.clone(),
        sibling: prepared.sibling,
        alone_p95_ns: prepared.main_case().first.p95_ns,
        loads: loads.cloned().collect(),
    };
    let table = |&sweep: &ExploreSweep| match why_impossible(sweep, prepared) {
        Some(reason) => {
            let remedy = None;
            (sweep, Err(NotMeasured { reason, remedy }))
        }
        None => (sweep, Ok(sweep_settings::of_sweep(sweep, &inputs))),
    };
    prepared.sweeps.iter().map(table).collect()
}

/// Why a table cannot be measured with these programs; `None` if it can.
fn why_impossible(sweep: ExploreSweep, prepared: &Prepared<'_>) -> Option<String> {
    let Case { known, first, .. } = prepared.main_case();
    match sweep {
        ExploreSweep::Distance | ExploreSweep::PartsByDistance => prepared.plans.distances_vary().err(),
        ExploreSweep::Overhead => prepared.plans.overheads_vary().err(),
        ExploreSweep::Chases if !known.all_end() => Some(
            "a scavenger does not end by itself, so there is no time at which all programs have ended".to_owned(),
        ),
        ExploreSweep::Slo if first.p95_ns.is_none() => {
            Some("no request was observed in a run without scavengers".to_owned())
        }
        _ => None,
    }
}

/// The settings without duplicates, in the order of the tables.
fn distinct_settings(tables: &[Table]) -> Vec<Setting> {
    let all = tables.iter().filter_map(|(_, rows)| rows.as_ref().ok());
    let mut wanted: Vec<Setting> = Vec::new();
    for setting in all.flatten() {
        if !wanted.iter().any(|known| known.key() == setting.key()) {
            wanted.push(setting.clone());
        }
    }
    wanted
}

/// Prints how long the measurement will take, estimated from the first runs of the programs by themselves.
fn announce(
    config: &ExploreConfig,
    environment: &Environment,
    prepared: &Prepared<'_>,
    wanted: &[Setting],
) {
    let cases = &prepared.cases;
    let scavengers_s = cases[0].first.scavengers_s.unwrap_or(0.0);
    let settings_s: f64 = wanted
        .iter()
        .map(|setting| {
            let primary_s = cases[setting.load].first.primary_s;
            setting.scheduling.estimate_s(primary_s, scavengers_s)
        })
        .sum();
    let primaries_s: f64 = cases.iter().map(|case| case.first.primary_s).sum();
    let by_themselves_s = primaries_s + scavengers_s;
    let seconds = f64::from(config.pairs) * (settings_s + by_themselves_s);
    let less = if config.pairs > 1 {
        "; --pairs 1 for less"
    } else {
        ""
    };
    environment.complain(&format!(
        "{} settings, {}: about {}{less}",
        wanted.len(),
        match config.pairs {
            1 => "each once".to_owned(),
            pairs => format!("each {pairs} times"),
        },
        format_duration(seconds)
    ));
}

/// A duration in seconds, or in minutes from 90 s on.
fn format_duration(seconds: f64) -> String {
    const MINUTE_S: f64 = 60.0;
    if seconds < 1.5 * MINUTE_S {
        format!("{:.0} s", seconds.max(1.0))
    } else {
        format!("{:.0} minutes", seconds / MINUTE_S)
    }
}

/// Results of all rounds: runs by the keys of their settings, and the programs by themselves.
struct RoundResults {
    runs: BTreeMap<String, Vec<ExploreRun>>,
    /// By round, then by load.
    baselines: Vec<Vec<Baseline>>,
    /// Why not all rounds were run.
    ended_early: Option<EndedEarly>,
}

/// Runs each setting once in each round, in alternating order, so that a machine that becomes faster or
/// slower favours no setting.
fn rounds(
    config: &ExploreConfig,
    prepared: &Prepared<'_>,
    wanted: &[Setting],
    progress: &dyn Progress,
) -> RoundResults {
    let mut found = RoundResults {
        runs: BTreeMap::new(),
        baselines: Vec::new(),
        ended_early: None,
    };
    let usual = prepared.plans.primary_loads();
    let all = (config.pairs as usize * wanted.len()).max(1);
    'rounds: for pair in 0..config.pairs {
        match baselines(prepared) {
            Ok(baselines) => found.baselines.push(baselines),
            Err(why) => {
                found.ended_early = Some(why);
                break;
            }
        }
        let mut order: Vec<&Setting> = wanted.iter().collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for (index, setting) in order.into_iter().enumerate() {
            let done = pair as usize * wanted.len() + index;
            progress.at(done as f64 / all as f64, &setting.name);
            let baseline = &found.baselines[pair as usize][setting.load];
            let mut run = run_setting(prepared, setting, &usual, baseline);
            if prepared.main_case().bench.cancel.load(Ordering::Relaxed)
                || run.failed.as_deref() == Some(INTERRUPTED)
            {
                found.ended_early = Some(EndedEarly::Interrupted);
                break 'rounds;
            }
            run.pair = pair;
            found.runs.entry(setting.key()).or_default().push(run);
        }
    }
    found
}

fn run_setting(
    prepared: &Prepared<'_>,
    setting: &Setting,
    usual: &YieldingLoads,
    baseline: &Baseline,
) -> ExploreRun {
    let Case { bench, known, .. } = &prepared.cases[setting.load];
    bench.run(&setting.scheduling, known, &prepared.plans, usual, baseline)
}

/// Times the programs by themselves for one round, the primary at each load; fails with the reason why one
/// did not end.
fn baselines(prepared: &Prepared<'_>) -> Result<Vec<Baseline>, EndedEarly> {
    let needs_unbound = prepared.sweeps.contains(&ExploreSweep::Periods);
    let why = |unended| match unended {
        EndFailure::Interrupted => EndedEarly::Interrupted,
        other => {
            let limit = prepared.main_case().known.limit;
            let why = other.reason(limit);
            EndedEarly::Failed(format!("a program by itself: {why}"))
        }
    };
    let scavengers_s = named_scavengers_s(prepared.main_case()).map_err(why)?;
    let baseline = |case| measure_baseline(case, &prepared.plans, needs_unbound, &scavengers_s);
    let baselines: Result<_, _> = prepared.cases.iter().map(baseline).collect();
    baselines.map_err(why)
}

/// Times of the named scavengers by themselves; none if one does not end or none is named.
fn named_scavengers_s(case: &Case<'_>) -> Result<Vec<f64>, EndFailure> {
    let Case { bench, known, .. } = case;
    if !known.all_end() || bench.own_scavenger {
        return Ok(Vec::new());
    }
    let alone = |scavenger| bench.run_alone(scavenger, Some(bench.cpu), known.limit);
    let scavengers = bench.scavengers.iter();
    scavengers
        .map(|it| alone(it).map(|(_, time_s)| time_s))
        .collect()
}

fn measure_baseline(
    case: &Case<'_>,
    plans: &Plans<'_>,
    needs_unbound: bool,
    scavengers_s: &[f64],
) -> Result<Baseline, EndFailure> {
    let Case { bench, known, .. } = case;
    let alone = |cpu| bench.run_alone(&bench.primary, cpu, known.limit);
    let (_, primary_s) = alone(Some(bench.cpu))?;
    let own = [primary_s];
    let each = if bench.own_scavenger {
        &own[..]
    } else {
        scavengers_s
    };
    let unbound_s = match needs_unbound {
        true => Some(alone(None)?.1),
        false => None,
    };
    let p95_ns = match bench.requests {
        Some(_) => bench.alone_p95_ns(known, plans).ok(),
        None => None,
    };
    Ok(Baseline {
        primary_s,
        scavengers_s: (!each.is_empty())
            .then(|| each.iter().sum::<f64>() * f64::from(bench.copies)),
        first_s: each.first().copied(),
        p95_ns,
        unbound_s,
    })
}

fn document(
    config: &ExploreConfig,
    prepared: &Prepared<'_>,
    tables: &[Table],
    found: RoundResults,
    started: Instant,
) -> HarvestExplore {
    let sweep = |(sweep, rows): &Table| {
        let of = |setting: &Setting| {
            let runs = found.runs.get(&setting.key());
            setting_rows::row(setting, runs.cloned().unwrap_or_default())
        };
        ExploredSweep {
            sweep: *sweep,
            rows: rows.iter().flatten().map(of).collect(),
            missing: rows.as_ref().err().cloned(),
        }
    };
    let sweeps: Vec<ExploredSweep> = tables.iter().map(sweep).collect();
    let mut notes = prepared.notes.clone();
    notes.extend(failures(&sweeps));
    notes.extend(notes_on_few_slices(&sweeps));
    let info = &prepared.info;
    HarvestExplore {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestExplore,
        incomplete: found.ended_early.is_some(),
        membound_version: info.membound_version.clone(),
        date: info.date.clone(),
        host: info.host.clone(),
        cpu: info.cpu.model_name.clone(),
        wall_s: started.elapsed().as_secs_f64(),
        options: prepared.options(config),
        alone: alone_times(prepared.main_case(), &found.baselines),
        sweeps,
        notes,
    }
}

/// Figures of the programs by themselves. Those of the primary depend on the load, and are in the table of
/// loads where there are any.
fn alone_times(main_case: &Case<'_>, baselines: &[Vec<Baseline>]) -> ExploreAlone {
    let figure = |of: fn(&Baseline) -> Option<f64>| {
        let run = |of_loads: &Vec<Baseline>| ExploreRun {
            primary_s: of_loads.first().and_then(of),
            ..ExploreRun::default()
        };
        let runs: Vec<ExploreRun> = baselines.iter().map(run).collect();
        setting_rows::figure(&runs, |run| run.primary_s)
    };
    let of_primary = |of: fn(&Baseline) -> Option<f64>| match main_case.load {
        None => figure(of),
        Some(_) => None,
    };
    ExploreAlone {
        exit_code: main_case.known.primary_end.code(),
        primary_s: of_primary(|it| Some(it.primary_s)),
        scavengers_s: figure(|it| it.scavengers_s),
        p95_ns: of_primary(|it| it.p95_ns),
    }
}

/// A note for each setting with both failed and successful runs: its row shows the successful ones only.
fn failures(sweeps: &[ExploredSweep]) -> Vec<String> {
    let mut notes = Vec::new();
    let rows = sweeps.iter().flat_map(|sweep| &sweep.rows);
    for row in rows.filter(|row| row.failed.is_none()) {
        let failed: Vec<&String> = row
            .runs
            .iter()
            .filter_map(|run| run.failed.as_ref())
            .collect();
        if let Some(first) = failed.first() {
            notes.push(format!(
                "{}: {} of {} runs failed: {first}",
                row.setting,
                failed.len(),
                row.runs.len()
            ));
        }
    }
    notes
}

/// Notes for settings with runs that had hardly any time slice while other runs had many: in those runs the
/// harvest did not begin in time, so their figures do not describe the setting.
fn notes_on_few_slices(sweeps: &[ExploredSweep]) -> Vec<String> {
    /// Share of the largest number of slices in a run below which a run had hardly any.
    const MIN_SLICE_SHARE: f64 = 0.001;
    let rows = || sweeps.iter().flat_map(|sweep| &sweep.rows);
    let slice_counts = |row: &ExploreRow| -> Vec<u64> {
        let slices = row.runs.iter().filter_map(|run| run.turns);
        slices.collect()
    };
    let most = rows().flat_map(slice_counts).max().unwrap_or(0) as f64;
    let mut notes = Vec::new();
    for row in rows() {
        let counts = slice_counts(row);
        let few = counts
            .iter()
            .filter(|count| (**count as f64) < most * MIN_SLICE_SHARE);
        let count = few.count();
        // A row in which no run had a time slice ran without scavengers, so none of them came too late.
        if count > 0 && counts.iter().any(|count| *count > 0) {
            notes.push(format!(
                "{}: in {count} of {} runs the primary gave hardly any turn, so that scavengers ran after it \
                 (they did not come to a yield in time)",
                row.setting,
                counts.len()
            ));
        }
    }
    notes.sort();
    notes.dedup();
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_seconds_or_minutes() {
        assert_eq!(format_duration(0.2), "1 s");
        assert_eq!(format_duration(80.0), "80 s");
        assert_eq!(format_duration(250.0), "4 minutes");
    }

    #[test]
    fn runs_with_few_slices_are_noted_once() {
        let run = |turns| ExploreRun {
            turns: Some(turns),
            ..ExploreRun::default()
        };
        let row = |setting: &str, turns: [u64; 3]| ExploreRow {
            setting: setting.to_owned(),
            runs: turns.map(run).to_vec(),
            ..ExploreRow::default()
        };
        let sweep = |sweep| ExploredSweep {
            sweep,
            rows: vec![
                row("none", [4_000_000, 4, 3_900_000]),
                row("200 ns", [3_000_000, 100_000, 3_100_000]),
                row("switch", [0, 0, 0]),
            ],
            missing: None,
        };
        let notes =
            notes_on_few_slices(&[sweep(ExploreSweep::Bound), sweep(ExploreSweep::Distance)]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].starts_with("none: in 1 of 3 runs"), "{notes:?}");
    }

    #[test]
    fn failed_runs_are_noted() {
        let run = |failed: Option<&str>| ExploreRun {
            failed: failed.map(str::to_owned),
            ..ExploreRun::default()
        };
        let sweep = ExploredSweep {
            sweep: ExploreSweep::Bound,
            rows: vec![ExploreRow {
                setting: "200 ns".to_owned(),
                runs: vec![run(None), run(Some("it crashed"))],
                ..ExploreRow::default()
            }],
            missing: None,
        };
        assert_eq!(
            failures(&[sweep]),
            ["200 ns: 1 of 2 runs failed: it crashed"]
        );
    }
}
