//! The hardware threads beside those that the command runs on, and which scavengers have them.
//!
//! A scavenger that has one is bound to it, and runs there on its own thread. The others are bound to
//! what is left: where scavengers are to have no hardware thread beside the command's, that is all but
//! these, since one that works slows its neighbour down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use membound_launch::{GuestPlace, GuestState, Harvested, Remote};
use membound_platform::threads::{self, Thread};
use membound_platform::{Root, affinity};
use membound_types::CpuId;

/// Looks for which a thread of the command's that does not run any more still counts as one that may at
/// any moment.
const RECENT: u32 = 20;
/// Names of the agent's threads.
const AGENTS: [&str; 3] = ["membound-agent", "membound-guest", "membound-lanes"];
/// Part of the time that goes into looking at threads, as its inverse: of a thousand it takes long.
const SPARSELY: u32 = 50;

/// Whether scavengers are to have hardware threads beside the command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Give,
    KeepFree,
}

/// Binds scavengers to CPUs.
#[derive(Debug)]
pub(super) struct Beside {
    /// CPUs that share a core, a list each, of those that may be used.
    cores: Vec<Vec<CpuId>>,
    /// All that may be used.
    allowed: Vec<CpuId>,
    /// Scavengers that may have one at most.
    most: usize,
    /// Threads of the command's, by number.
    ran: BTreeMap<u32, Ran>,
    /// By scavenger.
    places: Vec<Place>,
    looked: Option<Instant>,
    /// What was to be done when threads were looked at last, and when they are to be again.
    due: Option<(Use, Instant)>,
    given: Given,
}

/// What was given so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Given {
    /// Wall time in which a scavenger had a hardware thread beside the command's, in seconds.
    pub(super) wall_s: f64,
    /// CPU time that scavengers had there, in seconds.
    pub(super) cpu_s: f64,
    /// Which they were.
    pub(super) cpus: BTreeSet<CpuId>,
}

/// When a thread was seen to run.
#[derive(Clone, Copy, Debug)]
struct Ran {
    ticks: u64,
    cpu: CpuId,
    /// Looks since then.
    ago: u32,
}

/// Where a scavenger runs.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The CPU beside the command's that it has.
    beside: Option<CpuId>,
    /// What it is bound to; empty: nothing was changed yet.
    bound: Vec<CpuId>,
    /// CPU time of its own thread at the last look, in seconds.
    own_s: f64,
}

impl Beside {
    /// Of a machine with these `cores`, whose CPUs are all among those that are `allowed`. No more than
    /// `most` scavengers have a hardware thread at one time.
    pub(super) fn new(cores: Vec<Vec<CpuId>>, allowed: Vec<CpuId>, most: usize) -> Self {
        Self {
            cores,
            allowed,
            most,
            ran: BTreeMap::new(),
            places: Vec::new(),
            looked: None,
            due: None,
            given: Given::default(),
        }
    }

    /// Whether a scavenger has a hardware thread beside the command's.
    pub(super) fn is_given(&self) -> bool {
        self.places.iter().any(|place| place.beside.is_some())
    }

    /// What was given so far.
    pub(super) const fn given(&self) -> &Given {
        &self.given
    }

    /// Looks where the command, of process `pid`, runs, and binds scavengers. `own_s` is the CPU time of
    /// each one's own thread.
    pub(super) fn look(
        &mut self,
        remote: &Remote,
        pid: u32,
        harvested: &Harvested,
        own_s: &[f64],
        to: Use,
    ) {
        self.places.resize(harvested.guests.len(), Place::default());
        self.count(own_s);
        let begun = Instant::now();
        if self.due.is_some_and(|(was, due)| was == to && begun < due) {
            return;
        }
        let runs = self.runs_on(&threads::of(&Root::system(), pid), harvested);
        self.due = Some((to, begun + begun.elapsed() * SPARSELY));
        let free = beside(&self.cores, &runs);
        let lives = harvested.guests.iter().map(|guest| {
            let lives = matches!(guest.state, Some(GuestState::Starting | GuestState::Runs));
            lives && guest.thread != 0
        });
        let lives: Vec<bool> = lives.collect();
        let had: Vec<Option<CpuId>> = self.places.iter().map(|place| place.beside).collect();
        let most = match to {
            Use::Give => self.most,
            Use::KeepFree => 0,
        };
        let has = assigned(&had, &lives, &free, most);
        let rest = self.rest(&free, to);
        for (index, place) in self.places.iter_mut().enumerate() {
            let bound = has[index].map_or_else(|| rest.clone(), |cpu| vec![cpu]);
            place.beside = has[index];
            let is_new = place.bound != bound && !(place.bound.is_empty() && bound == self.allowed);
            if lives[index] && is_new {
                // One that has ended meanwhile needs none.
                let done = affinity::bind(harvested.guests[index].thread, &bound);
                place.beside = has[index].filter(|_| done.is_ok());
                place.bound = bound;
            }
        }
        let has: Vec<Option<CpuId>> = self.places.iter().map(|place| place.beside).collect();
        self.given.cpus.extend(has.iter().flatten());
        if has != had {
            let place = |has: &Option<CpuId>| match has {
                Some(_) => GuestPlace::Own,
                None => GuestPlace::Lanes,
            };
            let places: Vec<GuestPlace> = has.iter().map(place).collect();
            remote.set_places(&places);
        }
    }

    /// CPUs of those scavengers that have none beside the command's.
    fn rest(&self, free: &[CpuId], to: Use) -> Vec<CpuId> {
        let left = |cpu: &CpuId| to == Use::Give || !free.contains(cpu);
        let rest: Vec<CpuId> = self.allowed.iter().copied().filter(left).collect();
        if rest.is_empty() {
            self.allowed.clone()
        } else {
            rest
        }
    }

    /// Counts what was given since the last look.
    fn count(&mut self, own_s: &[f64]) {
        let now = Instant::now();
        if let Some(before) = self.looked.replace(now)
            && self.is_given()
        {
            self.given.wall_s += (now - before).as_secs_f64();
        }
        for (place, &own_s) in self.places.iter_mut().zip(own_s) {
            if place.beside.is_some() {
                self.given.cpu_s += (own_s - place.own_s).max(0.0);
            }
            place.own_s = own_s;
        }
    }

    /// The CPUs on which threads of the command ran lately.
    fn runs_on(&mut self, threads: &[Thread], harvested: &Harvested) -> BTreeSet<CpuId> {
        let is_guest = |id: u32| harvested.guests.iter().any(|guest| guest.thread == id);
        let before = std::mem::take(&mut self.ran);
        for thread in threads {
            if is_guest(thread.id) || AGENTS.contains(&thread.name.as_str()) {
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
        let recent = self.ran.values().filter(|ran| ran.ago < RECENT);
        recent.map(|ran| ran.cpu).collect()
    }
}

/// The CPUs that share a core with one of those that `runs` has, and are none of them.
fn beside(cores: &[Vec<CpuId>], runs: &BTreeSet<CpuId>) -> Vec<CpuId> {
    let shared = cores
        .iter()
        .filter(|core| core.iter().any(|cpu| runs.contains(cpu)));
    shared
        .flatten()
        .copied()
        .filter(|cpu| !runs.contains(cpu))
        .collect()
}

/// Who has which of the CPUs that are `free`, at most `most` of those who live: who `had` one keeps it
/// where it can be. Others are taken from the last on: lanes take them from the first.
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
    use membound_launch::GuestStatus;

    use super::*;

    fn cpus(numbers: &[u32]) -> Vec<CpuId> {
        numbers.iter().copied().map(CpuId).collect()
    }

    fn on(numbers: &[u32]) -> BTreeSet<CpuId> {
        cpus(numbers).into_iter().collect()
    }

    #[test]
    fn what_lies_beside_is_on_a_core_of_the_commands_and_free() {
        let cores = [cpus(&[0, 4]), cpus(&[1, 5]), cpus(&[2, 6, 8])];
        assert_eq!(beside(&cores, &on(&[0])), cpus(&[4]));
        assert_eq!(beside(&cores, &on(&[0, 4, 6, 3])), cpus(&[2, 8]));
        assert_eq!(beside(&cores, &on(&[])), []);
    }

    #[test]
    fn who_has_one_keeps_it() {
        let [a, b] = [CpuId(4), CpuId(5)];
        let lives = [true; 4];
        let first = assigned(&[None; 4], &lives, &[a, b], usize::MAX);
        assert_eq!(first, [None, None, Some(b), Some(a)]);
        assert_eq!(assigned(&first, &lives, &[b, a], usize::MAX), first);
        // One is taken away, and one has ended.
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
        let mut beside = Beside::new(Vec::new(), cpus(&[0, 1]), 1);
        let guest = GuestStatus {
            state: Some(GuestState::Runs),
            code: 0,
            thread: 8,
            cpu_ns: 0,
            calls: 0,
            parks: 0,
            away_ns: 0,
            progress: 0,
        };
        let harvested = Harvested {
            guests: vec![guest],
            ..Harvested::default()
        };
        let mut seen = vec![
            thread(7, "server", 5, 3),
            thread(8, "renamed", 5, 1),
            thread(9, "membound-lanes", 5, 2),
        ];
        for _ in 0..RECENT {
            assert_eq!(beside.runs_on(&seen, &harvested), on(&[3]));
        }
        assert_eq!(beside.runs_on(&seen, &harvested), on(&[]));
        seen[0].ticks += 1;
        assert_eq!(beside.runs_on(&seen, &harvested), on(&[3]));
    }

    #[test]
    fn the_others_are_kept_off_where_none_is_to_be_used() {
        let beside = Beside::new(vec![cpus(&[0, 1])], cpus(&[0, 1]), 1);
        assert_eq!(beside.rest(&cpus(&[1]), Use::Give), cpus(&[0, 1]));
        assert_eq!(beside.rest(&cpus(&[1]), Use::KeepFree), cpus(&[0]));
        // They have to run somewhere.
        assert_eq!(beside.rest(&cpus(&[0, 1]), Use::KeepFree), cpus(&[0, 1]));
    }
}
