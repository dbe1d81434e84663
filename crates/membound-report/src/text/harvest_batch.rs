//! Result of a batch on a terminal: one table, and warnings.

use membound_types::{BatchOrder, BatchSet, HarvestBatch};

use super::Style;
use super::out::Out;
use super::table::Table;
use crate::facts::run::NONE;
use crate::units;

/// Formats a batch: how jobs ended, and the gain of harvested sets.
#[must_use]
pub fn harvest_batch(batch: &HarvestBatch, style: Style) -> String {
    let mut out = Out::new(style);
    let order = match batch.order {
        BatchOrder::Given => "in the order of the list",
        BatchOrder::LongestFirst => "the longest first",
        BatchOrder::Spread => "memory-bound with compute-bound jobs, the longest first",
    };
    let at_once = units::count(batch.options.at_once);
    out.heading(
        "membound: batch",
        &format!("{at_once} at one time, {order}"),
    );
    warnings(&mut out, batch);
    let jobs = &batch.jobs;
    let mut table = Table::new();
    for title in [
        "jobs",
        "failed",
        "wall",
        "CPU",
        "jobs/s",
        "harvested sets",
        "gained",
    ] {
        table = table.figures(title);
    }
    table.row([
        units::count(jobs.succeeded + jobs.failed),
        units::count(jobs.failed),
        units::seconds(batch.wall_s),
        units::seconds(batch.cpu_s),
        batch.jobs_per_s.map_or(NONE.to_owned(), units::number),
        units::count(batch.sets.len() as u64),
        gained(&batch.sets).map_or(NONE.to_owned(), |gain| format!("{}×", units::number(gain))),
    ]);
    out.table(&table);
    out.finish()
}

fn warnings(out: &mut Out, batch: &HarvestBatch) {
    let jobs = &batch.jobs;
    let named = |number: u64| units::plural(number as usize, "job");
    if jobs.skipped > 0 {
        out.note(&format!(
            "{} skipped: run by an earlier batch",
            named(jobs.skipped)
        ));
    }
    if jobs.ended > 0 {
        out.warning(&format!("{} ended by the batch", named(jobs.ended)));
    }
    if jobs.not_started > 0 {
        out.warning(&format!("{} not started", named(jobs.not_started)));
    }
}

/// Gain: ordinary time ÷ harvested time, summed over sets with both; the smaller of the ratios of wall and
/// CPU time.
fn gained(sets: &[BatchSet]) -> Option<f64> {
    let measured = || sets.iter().filter(|set| set.gain.is_some());
    let sum = |part: fn(&BatchSet) -> Option<f64>| measured().filter_map(part).sum::<f64>();
    let wall = sum(|set| set.alone_wall_s) / sum(|set| Some(set.wall_s));
    let cpu = sum(|set| set.alone_cpu_s) / sum(|set| Some(set.cpu_s));
    Some(wall.min(cpu)).filter(|gain| gain.is_finite())
}

#[cfg(test)]
mod tests {
    use membound_types::{BatchCounts, BatchOptions, BatchSetReason, Kind, SCHEMA_VERSION};

    use super::*;

    fn set(alone_s: Option<f64>, wall_s: f64) -> BatchSet {
        BatchSet {
            jobs: vec![1, 2],
            why: BatchSetReason::Measured,
            wall_s,
            cpu_s: wall_s,
            alone_wall_s: alone_s,
            alone_cpu_s: alone_s,
            gain: alone_s.map(|alone_s| alone_s / wall_s),
        }
    }

    fn batch(sets: Vec<BatchSet>, jobs: BatchCounts) -> HarvestBatch {
        HarvestBatch {
            schema_version: SCHEMA_VERSION,
            kind: Kind::HarvestBatch,
            incomplete: false,
            membound_version: String::new(),
            date: String::new(),
            host: String::new(),
            cpu: String::new(),
            list: "list".to_owned(),
            options: BatchOptions {
                at_once: 2,
                ..BatchOptions::default()
            },
            order: BatchOrder::LongestFirst,
            wall_s: 4000.25,
            cpu_s: 7900.5,
            jobs_per_s: Some(1.024),
            jobs,
            sets,
            results: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_batch_is_one_table() {
        let jobs = BatchCounts {
            succeeded: 4090,
            failed: 6,
            ..BatchCounts::default()
        };
        let sets = vec![set(Some(12.0), 6.0), set(None, 5.0)];
        assert_eq!(
            harvest_batch(&batch(sets, jobs), Style::default()),
            "membound: batch  2 at one time, the longest first\n\
             jobs  failed    wall     CPU  jobs/s  harvested sets  gained\n\
             4096       6  4000 s  7900 s    1.02               2   2.00×\n"
        );
    }
}
