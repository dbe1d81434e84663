//! Records of a session: programs, their trampolines, and their counts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use membound_rewrite::patch::{Plan, Refusal};
use membound_wire::{COUNT_APART, Probe};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::area::{Area, sampled};
use crate::modules::ModulePlan;
use crate::process_key::ProcessKey;

/// One program of the run; an `exec` begins a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Number of its process.
    pub pid: u32,
    /// Path of its executable.
    pub path: PathBuf,
    /// Why it has no patches; `None`: it has some, or may get them.
    pub unpatched: Option<String>,
}

/// All records of a session.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) programs: Vec<Program>,
    /// Programs that were begun in processes: index in `programs`, and when.
    running: FxHashMap<ProcessKey, (usize, Instant)>,
    /// Indices of the `programs` for which [`Self::settle`] was not called yet.
    unsettled: FxHashSet<usize>,
    /// Areas whose memory is still open.
    pub(crate) areas: Vec<Arc<Area>>,
    /// Areas whose memory was closed, summed by file.
    closed: Vec<Totals>,
    /// Files that were not patched, with the reason.
    left_alone: BTreeMap<PathBuf, String>,
    /// Failures: observations that were not completed, with reasons.
    pub(crate) missed: BTreeSet<String>,
}

/// Sums over the areas of one file.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    pub(crate) module: Arc<ModulePlan>,
    /// Executions of each site, if its body counts.
    pub(crate) executions: Option<Vec<u64>>,
    /// Sites refused when they were placed, by reason: the most of any placement.
    pub(crate) lost: BTreeMap<Refusal, u64>,
    pub(crate) placements: u64,
}

impl Ledger {
    /// Records that a new program runs in `key`.
    pub(crate) fn begin(&mut self, key: ProcessKey, path: PathBuf) {
        let program = (self.programs.len(), Instant::now());
        self.running.insert(key, program);
        self.unsettled.insert(self.programs.len());
        self.programs.push(Program {
            pid: key.pid,
            path,
            unpatched: Some("it was not patched to its end".to_owned()),
        });
    }

    /// Records whether the program in `key` is patched.
    pub(crate) fn settle(&mut self, key: ProcessKey, unpatched: Option<String>) {
        if let Some((program, _)) = self.running.get(&key) {
            self.unsettled.remove(program);
            self.programs[*program].unpatched = unpatched;
        }
    }

    /// When the program in `key` began; `None` if the process inherited it.
    pub(crate) fn begun(&self, key: ProcessKey) -> Option<Instant> {
        self.running.get(&key).map(|(_, begun)| *begun)
    }

    /// Why the program in `key` is not patched. A process that inherited its patches counts as patched.
    pub(crate) fn unpatched(&self, key: ProcessKey) -> Option<&str> {
        let program = &self.programs[self.running.get(&key)?.0];
        program.unpatched.as_deref()
    }

    /// Why the first program that is not patched, and will not be, was given up.
    pub(crate) fn given_up(&self) -> Option<&str> {
        let programs = self.programs.iter().enumerate();
        let mut settled = programs.filter(|(index, _)| !self.unsettled.contains(index));
        settled.find_map(|(_, program)| program.unpatched.as_deref())
    }

    /// Records why a file is not patched.
    pub(crate) fn leave_alone(&mut self, path: PathBuf, reason: String) {
        self.left_alone.entry(path).or_insert(reason);
    }

    pub(crate) fn left_alone(&self) -> &BTreeMap<PathBuf, String> {
        &self.left_alone
    }

    /// Reads the counts of areas and releases their memory, except for those that may still be written, for
    /// which `keep` is true.
    pub(crate) fn close(&mut self, keep: impl Fn(&Area) -> bool) {
        for area in std::mem::take(&mut self.areas) {
            if keep(&area) {
                self.areas.push(area);
            } else {
                self.add(&area);
            }
        }
    }

    fn add(&mut self, area: &Area) {
        let module = &area.loaded.module;
        let executions = match (area.words(), &module.plan) {
            (Ok(words), Ok(plan)) => executions(plan, &words),
            _ => {
                self.missed
                    .insert(format!("counters of {}", module.path.display()));
                None
            }
        };
        let known = self
            .closed
            .iter_mut()
            .find(|totals| Arc::ptr_eq(&totals.module, module));
        let Some(totals) = known else {
            self.closed.push(Totals {
                module: Arc::clone(module),
                executions,
                lost: area.lost.clone(),
                placements: 1,
            });
            return;
        };
        totals.placements += 1;
        match (&mut totals.executions, executions) {
            (Some(sums), Some(new)) => {
                for (sum, new) in sums.iter_mut().zip(new) {
                    *sum = sum.saturating_add(new);
                }
            }
            (none @ None, new) => *none = new,
            (Some(_), None) => {}
        }
        for (reason, count) in &area.lost {
            let most = totals.lost.entry(*reason).or_default();
            *most = (*most).max(*count);
        }
    }

    /// The first module accepted by `is_meant` that was placed anywhere.
    pub(crate) fn module(&self, is_meant: impl Fn(&ModulePlan) -> bool) -> Option<&ModulePlan> {
        let open = self.areas.iter().map(|area| &area.loaded.module);
        let closed = self.closed.iter().map(|totals| &totals.module);
        open.chain(closed)
            .map(Arc::as_ref)
            .find(|module| is_meant(module))
    }

    /// Counts of a module's sites so far, in areas that are open and that were closed; `None` if it has no
    /// areas, or does not count.
    pub(crate) fn executions_of(
        &self,
        mut is_meant: impl FnMut(&ModulePlan) -> bool,
    ) -> Option<(Arc<ModulePlan>, Vec<u64>)> {
        let closed = self.closed.iter().find(|totals| is_meant(&totals.module));
        let mut found = closed
            .and_then(|totals| Some((Arc::clone(&totals.module), totals.executions.clone()?)));
        for area in self.areas.iter().filter(|it| is_meant(&it.loaded.module)) {
            let module = &area.loaded.module;
            let (Ok(words), Ok(plan)) = (area.words(), &module.plan) else {
                continue;
            };
            let new = executions(plan, &words)?;
            match &mut found {
                Some((_, sums)) => {
                    for (sum, new) in sums.iter_mut().zip(new) {
                        *sum = sum.saturating_add(new);
                    }
                }
                None => found = Some((Arc::clone(module), new)),
            }
        }
        found
    }

    /// All counts. Areas that are still open are read as they are now.
    pub(crate) fn totals(&mut self) -> &[Totals] {
        self.close(|_| false);
        &self.closed
    }
}

/// Executions of every numbered site, from an area's data; `None` if its body does not count.
fn executions(plan: &Plan, data: &[u8]) -> Option<Vec<u64>> {
    plan.data_words(0)?;
    (0..plan.numbered_sites())
        .map(|site| {
            let words = data.get(plan.data_words(site)?)?;
            if words.len() == size_of::<Probe>() {
                return Some(sampled(words));
            }
            let counts = words.chunks(COUNT_APART);
            counts
                .map(|line| line.first_chunk().copied().map(u64::from_ne_bytes))
                .sum()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_counts_what_was_done_and_what_is_under_way() {
        let probe = |countdown: i32, armed: i32, done: u64| {
            let mut words = Vec::new();
            words.extend(countdown.to_ne_bytes());
            words.extend(armed.to_ne_bytes());
            words.extend(done.to_ne_bytes());
            sampled(&words)
        };
        assert_eq!(probe(0, 0, 0), 0);
        assert_eq!(probe(990, 1000, 0), 10);
        assert_eq!(probe(7, 500, 2000), 2493);
        assert_eq!(probe(-1, 3, 10), 14);
    }

    #[test]
    fn a_program_that_is_being_patched_is_not_given_up() {
        let key = |pid: u32| ProcessKey { pid, started: 7 };
        let mut ledger = Ledger::default();
        ledger.begin(key(1), PathBuf::from("a"));
        ledger.begin(key(2), PathBuf::from("b"));
        assert_eq!(ledger.given_up(), None);
        assert!(ledger.unpatched(key(1)).is_some());
        ledger.settle(key(1), None);
        assert_eq!(ledger.given_up(), None);
        ledger.settle(key(2), Some("it is static".to_owned()));
        assert_eq!(ledger.given_up(), Some("it is static"));
    }
}
