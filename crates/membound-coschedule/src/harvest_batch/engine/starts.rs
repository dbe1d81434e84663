//! Starts jobs as ordinary processes, and sets of jobs in a harvest.

use std::time::Duration;

use membound_platform::affinity::allowed;
use membound_types::CpuId;

use super::ends::JobEnd;
use super::{Engine, Running, Set, What, unix_s};
use crate::harvest_batch::job_list::Execution;
use crate::harvest_batch::job_outputs::Pair;
use crate::harvest_batch::job_processes::{self, Unstarted};
use crate::harvest_batch::job_sets::JobSet;
use crate::harvest_batch::set_harvest::{Harvest, ScavengerJob};

/// Exit code of a job that could not be started.
const NOT_STARTED: i32 = 126;

impl Engine {
    pub(super) fn start(&mut self, job: usize) {
        let Some(pair) = self.outputs_of(job) else {
            return;
        };
        match job_processes::start(&self.batch.listed[job], &pair) {
            Ok(pid) => self.started(pid, What::Job(job)),
            Err(Unstarted::NoRoom(_)) if !self.running.is_empty() => {
                self.batch.queue.no_room(job, self.running.len());
            }
            Err(Unstarted::NoRoom(error) | Unstarted::Never(error)) => {
                let line = format!("cannot start job {}: {error}", self.number(job));
                self.report(line);
                let end = JobEnd {
                    exit_code: NOT_STARTED,
                    signal: 0,
                    cpu_s: None,
                    set: None,
                };
                self.job_ended(job, &end, Duration::ZERO, unix_s());
            }
        }
    }

    /// Creates the output files of a job. If that fails, no more jobs are started.
    fn outputs_of(&mut self, job: usize) -> Option<Pair> {
        let number = self.number(job);
        let pair = if self.batch.outputs.is_full() {
            Err(std::io::ErrorKind::StorageFull.into())
        } else {
            self.batch.outputs.open(number)
        };
        pair.inspect_err(|error| {
            self.batch.queue.lineup.put_back(job);
            self.cannot_write(error);
        })
        .ok()
    }

    pub(super) fn start_set(&mut self, set: JobSet) {
        let scavenger_jobs: Option<Vec<ScavengerJob>> = set
            .jobs
            .iter()
            .map(|job| self.scavenger_job(*job))
            .collect();
        let prepared = scavenger_jobs.and_then(|scavenger_jobs| {
            let mut harvest = Harvest::prepare(self.batch.outputs.directory()).ok()?;
            let membound = std::env::current_exe().ok()?;
            let machine = self.batch.machine.as_deref()?;
            let mut command = harvest.command(&membound, machine, &scavenger_jobs)?;
            let cpu = self.cpu_of_set()?;
            let pid = job_processes::spawned_on(&mut command, cpu).ok()?;
            Some((pid, harvest, cpu))
        });
        match prepared {
            Some((pid, harvest, cpu)) => {
                let chosen = set;
                self.started(
                    pid,
                    What::Set(Box::new(Set {
                        chosen,
                        harvest,
                        cpu,
                    })),
                );
            }
            None => self.run_alone(&set.jobs),
        }
    }

    /// A set has one slot, and so one CPU: the usable CPU with the fewest sets.
    fn cpu_of_set(&self) -> Option<CpuId> {
        let sets = |cpu: &CpuId| {
            let is_on_it = |it: &&Running| matches!(&it.what, What::Set(set) if set.cpu == *cpu);
            self.running.iter().filter(is_on_it).count()
        };
        allowed().ok()?.into_iter().min_by_key(sets)
    }

    fn scavenger_job(&self, job: usize) -> Option<ScavengerJob> {
        let Execution::Direct { words, .. } = &self.batch.listed[job].execution else {
            return None;
        };
        let words = words.iter().map(|word| word.to_str().map(str::to_owned));
        Some(ScavengerJob {
            words: words.collect::<Option<_>>()?,
            plan: self.batch.jobs[job].plan.clone()?.path,
        })
    }

    /// Puts the jobs of a set back into the lineup, to run as ordinary processes.
    pub(super) fn run_alone(&mut self, jobs: &[usize]) {
        for job in jobs.iter().rev() {
            self.batch.jobs[*job].plan = None;
            self.batch.queue.lineup.put_back(*job);
        }
    }
}
