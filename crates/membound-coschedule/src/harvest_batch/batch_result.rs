//! Results of a batch at its end: the document and the exit code.

use membound_types::{
    BatchCounts, BatchOptions, BatchOrder, HarvestBatch, Kind, MachineInfo, SCHEMA_VERSION,
};

use super::batch_config::BatchConfig;
use super::engine::Outcome;

/// Exit code where the job log or outputs could not be written: GNU parallel's for other errors.
const EXIT_CODE_WRITE_FAILED: u8 = 255;
/// Exit code if more than 100 jobs failed.
const EXIT_CODE_OVER_100_FAILURES: u8 = 101;
/// Exit code with which a shell reports a command whose reader is gone (SIGPIPE).
const EXIT_CODE_READER_GONE: u8 = 141;

/// What the batch was given to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchScope {
    /// Number of commands in the list.
    pub(super) listed: usize,
    /// Number of commands that an earlier batch had run.
    pub(super) skipped: usize,
    pub(super) slots: usize,
    pub(super) order: BatchOrder,
}

/// The exit code of a batch.
pub(super) fn exit_code(outcome: &Outcome) -> u8 {
    if outcome.is_troubled {
        return EXIT_CODE_WRITE_FAILED;
    }
    if let Some(signal) = outcome.interrupted {
        return 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0));
    }
    match outcome.failed {
        0 if outcome.is_unread => EXIT_CODE_READER_GONE,
        failed @ 0..=100 => u8::try_from(failed).unwrap_or(EXIT_CODE_OVER_100_FAILURES),
        _ => EXIT_CODE_OVER_100_FAILURES,
    }
}

/// The document of a batch on this `machine` that began at `date`.
pub(super) fn document(
    config: &BatchConfig,
    given: BatchScope,
    outcome: &Outcome,
    machine: MachineInfo,
    date: String,
) -> HarvestBatch {
    let count = |number: usize| number as u64;
    let by_themselves = outcome.succeeded + outcome.failed;
    let started = by_themselves + outcome.ended;
    let not_started = (given.listed - given.skipped).saturating_sub(started);
    HarvestBatch {
        schema_version: SCHEMA_VERSION,
        kind: Kind::HarvestBatch,
        incomplete: not_started + outcome.ended > 0,
        membound_version: machine.membound_version,
        date,
        host: machine.host,
        cpu: machine.cpu.model_name,
        list: config.list.display().to_string(),
        options: BatchOptions {
            at_once: count(given.slots),
            harvest: config.harvest,
            halt: config.halt.map(|halt| halt.to_string()),
        },
        order: given.order,
        wall_s: outcome.wall_s,
        cpu_s: outcome.cpu_s,
        jobs_per_s: (by_themselves > 0 && outcome.wall_s > 0.0)
            .then(|| by_themselves as f64 / outcome.wall_s),
        jobs: BatchCounts {
            listed: count(given.listed),
            skipped: count(given.skipped),
            succeeded: count(outcome.succeeded),
            failed: count(outcome.failed),
            ended: count(outcome.ended),
            not_started: count(not_started),
        },
        sets: outcome.sets.clone(),
        results: outcome.results.clone(),
        notes: outcome.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_gnu_parallels() {
        let failed = |failed| Outcome {
            failed,
            ..Outcome::default()
        };
        for (jobs, code) in [(0, 0), (1, 1), (100, 100), (101, 101), (5000, 101)] {
            assert_eq!(exit_code(&failed(jobs)), code, "{jobs}");
        }
        let mut outcome = failed(3);
        outcome.is_unread = true;
        assert_eq!(exit_code(&outcome), 3);
        outcome.interrupted = Some(2);
        assert_eq!(exit_code(&outcome), 130);
        outcome.is_troubled = true;
        assert_eq!(exit_code(&outcome), 255);
        let unread = Outcome {
            is_unread: true,
            ..failed(0)
        };
        assert_eq!(exit_code(&unread), 141);
    }
}
