//! Accounts for jobs that ended: prints their output, logs them, and keeps their times for later batches.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use membound_types::{BatchJob, BatchSet};

use super::{Batch, Engine, Running, What};
use crate::harvest_batch::batch_display::aside;
use crate::harvest_batch::job_processes::Ended;
use crate::harvest_batch::job_sets::{self, JobSet};
use crate::harvest_batch::joblog::Entry;
use crate::harvest_batch::set_harvest::{self, End, Harvest};

/// Exit code in the results for a scavenger whose end is not known.
const EXIT_CODE_UNKNOWN_END: i32 = 255;

/// How a job ended.
pub(super) struct JobEnd {
    pub(super) exit_code: i32,
    /// The signal that ended it, or 0.
    pub(super) signal: i32,
    pub(super) cpu_s: Option<f64>,
    /// Index of the set that it ran in; `None` for an ordinary process.
    pub(super) set: Option<u64>,
}

impl Engine {
    pub(super) fn process_ended(&mut self, running: Running, ended: &Ended) {
        let wall = running.start.elapsed();
        match running.what {
            What::Job(job) => {
                let end = JobEnd {
                    exit_code: ended.exit_code,
                    signal: ended.signal,
                    cpu_s: Some(ended.cpu_s),
                    set: None,
                };
                if (end.exit_code, end.signal, self.is_ending) == (0, 0, false) {
                    let key = &self.batch.jobs[job].key;
                    self.batch.keeper.ran(key, wall.as_secs_f64(), ended.cpu_s);
                }
                self.job_ended(job, &end, wall, running.started_unix_s);
            }
            What::Set(set) => {
                self.set_ended(
                    &set.chosen,
                    &set.harvest,
                    ended,
                    wall,
                    running.started_unix_s,
                );
            }
        }
    }

    fn set_ended(
        &mut self,
        chosen: &JobSet,
        harvest: &Harvest,
        ended: &Ended,
        wall: Duration,
        started_unix_s: f64,
    ) {
        let ends = harvest.ends(ended.exit_code, ended.signal);
        let all_succeeded = ends.iter().all(|end| {
            matches!(
                end,
                End::Ended {
                    exit_code: 0,
                    signal: 0,
                    ..
                }
            )
        });
        let set = self.account_set(chosen, ended, wall, all_succeeded);
        let mut alone = Vec::new();
        for (job, end) in chosen.jobs.iter().zip(ends) {
            let (exit_code, signal, cpu_s, stdout) = match end {
                End::NotBegun => {
                    alone.push(*job);
                    continue;
                }
                End::Lost if ended.signal != 0 => (0, ended.signal, None, None),
                End::Lost => (EXIT_CODE_UNKNOWN_END, 0, None, None),
                End::Ended {
                    exit_code,
                    signal,
                    cpu_s,
                    stdout,
                } => (exit_code, signal, cpu_s, stdout),
            };
            if let Some(stdout) = stdout {
                self.take_outputs(*job, &stdout);
            }
            let end = JobEnd {
                exit_code,
                signal,
                cpu_s,
                set: Some(set),
            };
            self.job_ended(*job, &end, wall, started_unix_s);
        }
        if !alone.is_empty() {
            let complaint = harvest.complaint();
            self.outcome.notes.push(format!(
                "{} of {} jobs of a set run as ordinary processes: {}",
                alone.len(),
                chosen.jobs.len(),
                complaint.as_deref().unwrap_or("the harvest left them out")
            ));
        }
        self.run_alone(&alone);
    }

    /// Accounts for a set, and returns its number, from 0.
    fn account_set(
        &mut self,
        chosen: &JobSet,
        ended: &Ended,
        wall: Duration,
        all_succeeded: bool,
    ) -> u64 {
        let record = &self.batch.keeper.known;
        let known = |job: &usize| record.program(&self.batch.jobs[*job].key);
        let alone: Option<Vec<_>> = chosen.jobs.iter().map(known).collect();
        let wall_s = wall.as_secs_f64();
        let alone_wall_s = alone
            .as_ref()
            .map(|all| all.iter().map(|it| it.wall_s).sum());
        let alone_cpu_s = alone
            .as_ref()
            .map(|all| all.iter().map(|it| it.cpu_s).sum());
        let gain = alone_wall_s
            .zip(alone_cpu_s)
            .filter(|_| all_succeeded)
            .and_then(|(all_wall_s, all_cpu_s)| {
                job_sets::gain((all_wall_s, wall_s), (all_cpu_s, ended.cpu_s))
            });
        // A program that fails as a scavenger may succeed alone: a set with a failure counts as gain 0, so
        // that it is not tried again.
        let counted = if all_succeeded { gain } else { Some(0.0) };
        if let Some(gain) = counted
            && !self.is_ending
        {
            self.batch.keeper.harvested(&chosen.key, gain);
        }
        self.outcome.sets.push(BatchSet {
            jobs: chosen.jobs.iter().map(|job| self.number(*job)).collect(),
            why: chosen.why,
            wall_s,
            cpu_s: ended.cpu_s,
            alone_wall_s,
            alone_cpu_s,
            gain,
        });
        self.outcome.sets.len() as u64 - 1
    }

    /// Moves a scavenger's outputs to the batch's outputs. Errors are ignored: a job that printed nothing has
    /// no file.
    fn take_outputs(&self, job: usize, stdout: &Path) {
        let number = self.number(job);
        let _ = std::fs::rename(stdout, self.batch.outputs.path(number, "out"));
        let stderr = set_harvest::stderr_path(stdout);
        let _ = std::fs::rename(stderr, self.batch.outputs.path(number, "err"));
    }

    pub(super) fn job_ended(
        &mut self,
        job: usize,
        end: &JobEnd,
        wall: Duration,
        started_unix_s: f64,
    ) {
        let number = self.number(job);
        let wall_s = wall.as_secs_f64();
        let ended = self.is_ending;
        match (ended, end.exit_code, end.signal) {
            (true, _, _) => self.outcome.ended += 1,
            (false, 0, 0) => self.outcome.succeeded += 1,
            (false, _, _) => self.outcome.failed += 1,
        }
        let command = &self.batch.listed[job].line;
        let has_code = end.signal == 0;
        self.outcome.results.push(BatchJob {
            number,
            command: command.to_string_lossy().into_owned(),
            exit_code: has_code.then_some(end.exit_code),
            signal: (!has_code).then_some(end.signal),
            ended,
            started_unix_s,
            wall_s,
            cpu_s: end.cpu_s,
            set: end.set,
        });
        let entry = Entry {
            number,
            started_unix_s,
            wall_s,
            output_bytes: self.batch.outputs.len(number),
            exit_code: end.exit_code,
            signal: end.signal,
            ended,
            command: command.as_bytes().to_vec(),
        };
        if end.set.is_none() {
            let expected_s = self.batch.queue.lineup.expected_s(job);
            self.batch.pace.ended(wall_s, expected_s);
        }
        self.print(number);
        self.log(&entry);
        self.stop_where_asked();
    }

    fn print(&mut self, number: u64) {
        let Batch {
            display, outputs, ..
        } = &mut self.batch;
        let display = &**display;
        let printed = aside(display, || outputs.ended(number, display));
        self.printed(printed);
        if self.batch.outputs.is_full() {
            self.cannot_write(&io::ErrorKind::StorageFull.into());
        }
    }
}
