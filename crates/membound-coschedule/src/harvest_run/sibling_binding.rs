//! SMT siblings of the hardware threads that the command runs on, and which scavengers run there.
//!
//! A scavenger that has an SMT sibling is bound to it, and runs there on its home thread. The others are
//! bound to the remaining CPUs: where scavengers may not use SMT siblings, these are all but the siblings,
//! since a busy sibling slows the command down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use membound_launch::{Harvested, Remote, ScavengerPlacement, ScavengerProcessState};
use membound_platform::threads::{self, Thread};
use membound_platform::{Root, affinity};
use membound_types::CpuId;

/// Polls for which a thread of the command's that no longer runs still counts as one that may run again at
/// any moment.
const RECENT_POLLS: u32 = 20;
/// Names of the agent's threads, which are not the command's.
const AGENTS: [&str; 3] = ["membound-agent", "membound-guest", "membound-lanes"];
/// Inverse of the share of the time that goes into polling threads: reading the state of a thousand threads
/// takes long.
const ELAPSED_PER_POLL_TIME: u32 = 50;

/// Whether scavengers may use the SMT siblings of the command's hardware threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SiblingUse {
    Give,
    KeepFree,
}

/// Binds scavengers to CPUs, and counts the time that they spend on SMT siblings.
#[derive(Debug)]
pub(super) struct SiblingBinding {
    /// Usable CPUs by core: one list for each core.
    cores: Vec<Vec<CpuId>>,
    /// All CPUs that may be used.
    allowed: Vec<CpuId>,
    /// Maximum number of scavengers on SMT siblings at one time.
    most: usize,
    /// Threads of the command, by thread ID.
    ran: BTreeMap<u32, Ran>,
    /// One for each scavenger.
    places: Vec<CpuBinding>,
    looked: Option<Instant>,
    /// The use and the time for which threads are polled again.
    due: Option<(SiblingUse, Instant)>,
    given: SiblingTime,
}

/// SMT sibling time that scavengers were given so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SiblingTime {
    /// Wall time in which at least one scavenger had an SMT sibling, in seconds.
    pub(super) wall_s: f64,
    /// CPU time that scavengers used there, in seconds.
    pub(super) cpu_s: f64,
    /// The CPUs that were given.
    pub(super) cpus: BTreeSet<CpuId>,
}

/// When and where a thread was last seen running.
#[derive(Clone, Copy, Debug)]
struct Ran {
    ticks: u64,
    cpu: CpuId,
    /// Polls since then.
    ago: u32,
}

/// Where a scavenger runs.
#[derive(Clone, Debug, Default)]
struct CpuBinding {
    /// The SMT sibling of the command's that it has.
    sibling: Option<CpuId>,
    /// The CPUs that it is bound to; empty if its affinity was never changed.
    bound: Vec<CpuId>,
    /// CPU time of its home thread at the last poll, in seconds.
    own_s: f64,
}

impl SiblingBinding {
    /// For a machine with these `cores`, whose CPUs are all among `allowed`. At most `most` scavengers have
    /// an SMT sibling at one time.
    pub(super) fn new(cores: Vec<Vec<CpuId>>, allowed: Vec<CpuId>, most: usize) -> Self {
        Self {
            cores,
            allowed,
            most,
            ran: BTreeMap::new(),
            places: Vec::new(),
            looked: None,
            due: None,
            given: SiblingTime::default(),
        }
    }

    /// Whether a scavenger has an SMT sibling now.
    pub(super) fn is_given(&self) -> bool {
        self.places.iter().any(|place| place.sibling.is_some())
    }

    /// The SMT sibling time given so far.
    pub(super) const fn given(&self) -> &SiblingTime {
        &self.given
    }

    /// Finds the CPUs on which the command, process `pid`, runs, and binds scavengers. `own_s` holds the CPU
    /// time of each scavenger's home thread in seconds.
    pub(super) fn poll(
        &mut self,
        remote: &Remote,
        pid: u32,
        harvested: &Harvested,
        own_s: &[f64],
        to: SiblingUse,
    ) {
        self.places
            .resize(harvested.scavengers.len(), CpuBinding::default());
        self.count(own_s);
        let started = Instant::now();
        if self
            .due
            .is_some_and(|(was, due)| was == to && started < due)
        {
            return;
        }
        let runs = self.runs_on(&threads::of(&Root::system(), pid), harvested);
        self.due = Some((to, started + started.elapsed() * ELAPSED_PER_POLL_TIME));
        let free = free_siblings(&self.cores, &runs);
        let lives = harvested.scavengers.iter().map(|scavenger| {
            let lives = matches!(
                scavenger.state,
                Some(ScavengerProcessState::Starting | ScavengerProcessState::Runs)
            );
            lives && scavenger.thread != 0
        });
        let lives: Vec<bool> = lives.collect();
        let had: Vec<Option<CpuId>> = self.places.iter().map(|place| place.sibling).collect();
        let most = match to {
            SiblingUse::Give => self.most,
            SiblingUse::KeepFree => 0,
        };
        let has = assigned(&had, &lives, &free, most);
        let rest = self.cpus_without_sibling(&free, to);
        for (index, place) in self.places.iter_mut().enumerate() {
            let bound = has[index].map_or_else(|| rest.clone(), |cpu| vec![cpu]);
            place.sibling = has[index];
            let is_new = place.bound != bound && !(place.bound.is_empty() && bound == self.allowed);
            if lives[index] && is_new {
                // A thread that has ended meanwhile cannot be bound, and needs not be.
                let done = affinity::bind(harvested.scavengers[index].thread, &bound);
                place.sibling = has[index].filter(|_| done.is_ok());
                place.bound = bound;
            }
        }
        let has: Vec<Option<CpuId>> = self.places.iter().map(|place| place.sibling).collect();
        self.given.cpus.extend(has.iter().flatten());
        if has != had {
            let place = |has: &Option<CpuId>| match has {
                Some(_) => ScavengerPlacement::Own,
                None => ScavengerPlacement::RunQueues,
            };
            let places: Vec<ScavengerPlacement> = has.iter().map(place).collect();
            remote.set_places(&places);
        }
    }

    /// CPUs for the scavengers that have no SMT sibling.
    fn cpus_without_sibling(&self, free: &[CpuId], to: SiblingUse) -> Vec<CpuId> {
        let left = |cpu: &CpuId| to == SiblingUse::Give || !free.contains(cpu);
        let rest: Vec<CpuId> = self.allowed.iter().copied().filter(left).collect();
        if rest.is_empty() {
            self.allowed.clone()
        } else {
            rest
        }
    }

    /// Adds the wall time and CPU time since the last poll.
    fn count(&mut self, own_s: &[f64]) {
        let now = Instant::now();
        if let Some(before) = self.looked.replace(now)
            && self.is_given()
        {
            self.given.wall_s += (now - before).as_secs_f64();
        }
        for (place, &own_s) in self.places.iter_mut().zip(own_s) {
            if place.sibling.is_some() {
                self.given.cpu_s += (own_s - place.own_s).max(0.0);
            }
            place.own_s = own_s;
        }
    }

    /// The CPUs on which threads of the command ran lately.
    fn runs_on(&mut self, threads: &[Thread], harvested: &Harvested) -> BTreeSet<CpuId> {
        let is_scavenger = |id: u32| {
            harvested
                .scavengers
                .iter()
                .any(|scavenger| scavenger.thread == id)
        };
        let before = std::mem::take(&mut self.ran);
        for thread in threads {
            if is_scavenger(thread.id) || AGENTS.contains(&thread.name.as_str()) {
                continue;
            }
            let known = before.get(&thread.id);
            let ran = thread.runs || known.is_none_or(|known| known.ticks != thread.ticks);
            let ago = match known {
                Some(known) if !ran => known.ago.saturating_add(1),
                _ => 0,
            };
            let now = Ran {
                ticks: thread.ticks,
                cpu: thread.cpu,
                ago,
            };
            self.ran.insert(thread.id, now);
        }
        let recent = self.ran.values().filter(|ran| ran.ago < RECENT_POLLS);
        recent.map(|ran| ran.cpu).collect()
    }
}

/// The SMT siblings of the CPUs in `runs` that are not in `runs` themselves.
fn free_siblings(cores: &[Vec<CpuId>], runs: &BTreeSet<CpuId>) -> Vec<CpuId> {
    let shared = cores
        .iter()
        .filter(|core| core.iter().any(|cpu| runs.contains(cpu)));
    shared
        .flatten()
        .copied()
        .filter(|cpu| !runs.contains(cpu))
        .collect()
}

/// Assigns the CPUs in `free` to at most `most` of the scavengers that live. A scavenger keeps the CPU that
/// it `had` if it can. Others are chosen from the last on, because run queues are filled from the first on.
fn assigned(
    had: &[Option<CpuId>],
    lives: &[bool],
    free: &[CpuId],
    most: usize,
) -> Vec<Option<CpuId>> {
    let mut left: Vec<CpuId> = free.to_vec();
    let mut count = 0;
    let mut has = vec![None; had.len()];
    for ((has, had), _) in has
        .iter_mut()
        .zip(had)
        .zip(lives)
        .filter(|(_, lives)| **lives)
    {
        if let Some(at) = left.iter().position(|cpu| Some(*cpu) == *had)
            && count < most
        {
            *has = Some(left.remove(at));
            count += 1;
        }
    }
    let mut left = left.into_iter();
    for (has, _) in has.iter_mut().zip(lives).rev().filter(|(_, lives)| **lives) {
        if count < most && has.is_none() {
            *has = left.next();
            count += usize::from(has.is_some());
        }
    }
    has
}

#[cfg(test)]
mod tests {
    use membound_launch::ScavengerStatus;

    use super::*;

    fn cpus(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().copied().map(CpuId).collect()
    }

    fn on(numbers: &[u32]) -> BTreeSet<CpuId> {
        cpus(numbers).into_iter().collect()
    }

    #[test]
    fn free_siblings_are_on_a_core_of_the_command() {
        let cores = [cpus(&[0, 4]), cpus(&[1, 5]), cpus(&[2, 6, 8])];
        assert_eq!(free_siblings(&cores, &on(&[0])), cpus(&[4]));
        assert_eq!(free_siblings(&cores, &on(&[0, 4, 6, 3])), cpus(&[2, 8]));
        assert_eq!(free_siblings(&cores, &on(&[])), []);
    }

    #[test]
    fn a_scavenger_keeps_its_sibling() {
        let [a, b] = [CpuId(4), CpuId(5)];
        let lives = [true; 4];
        let first = assigned(&[None; 4], &lives, &[a, b], usize::MAX);
        assert_eq!(first, [None, None, Some(b), Some(a)]);
        assert_eq!(assigned(&first, &lives, &[b, a], usize::MAX), first);
        // One sibling is no longer free, and one scavenger has ended.
        assert_eq!(
            assigned(&first, &lives, &[b], usize::MAX),
            [None, None, Some(b), None]
        );
        assert_eq!(
            assigned(&first, &[true, true, false, true], &[a, b], usize::MAX),
            [None, Some(b), None, Some(a)]
        );
        assert_eq!(
            assigned(&first, &lives, &[a, b], 1),
            [None, None, Some(b), None]
        );
        assert_eq!(assigned(&first, &lives, &[a, b], 0), [None; 4]);
    }

    fn thread(id: u32, name: &str, ticks: u64, cpu: u32) -> Thread {
        Thread {
            id,
            name: name.to_owned(),
            runs: false,
            ticks,
            cpu: CpuId(cpu),
        }
    }

    #[test]
    fn a_thread_counts_for_a_while_after_it_ran_and_scavengers_never_do() {
        let mut binding = SiblingBinding::new(Vec::new(), cpus(&[0, 1]), 1);
        let scavenger = ScavengerStatus {
            state: Some(ScavengerProcessState::Runs),
            code: 0,
            thread: 8,
            cpu_ns: 0,
            calls: 0,
            parks: 0,
            away_ns: 0,
            progress: 0,
        };
        let harvested = Harvested {
            scavengers: vec![scavenger],
            ..Harvested::default()
        };
        let mut threads = vec![
            thread(7, "server", 5, 3),
            thread(8, "renamed", 5, 1),
            thread(9, "membound-lanes", 5, 2),
        ];
        for _ in 0..RECENT_POLLS {
            assert_eq!(binding.runs_on(&threads, &harvested), on(&[3]));
        }
        assert_eq!(binding.runs_on(&threads, &harvested), on(&[]));
        threads[0].ticks += 1;
        assert_eq!(binding.runs_on(&threads, &harvested), on(&[3]));
    }

    #[test]
    fn the_others_are_kept_off_where_none_is_to_be_used() {
        let binding = SiblingBinding::new(vec![cpus(&[0, 1])], cpus(&[0, 1]), 1);
        assert_eq!(
            binding.cpus_without_sibling(&cpus(&[1]), SiblingUse::Give),
            cpus(&[0, 1])
        );
        assert_eq!(
            binding.cpus_without_sibling(&cpus(&[1]), SiblingUse::KeepFree),
            cpus(&[0])
        );
        // Without any other CPU, they run on the siblings all the same.
        assert_eq!(
            binding.cpus_without_sibling(&cpus(&[0, 1]), SiblingUse::KeepFree),
            cpus(&[0, 1])
        );
    }
}
