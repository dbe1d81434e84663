//! Serves agents: one thread a conversation, none waits for another's.

mod conversations;
mod exchanging;
mod leaving;
mod loading;
mod starting;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use membound_rewrite::image::Identity;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::area::{self, NotInstalled};
use crate::choice::Choice;
use crate::conversation::Conversation;
use crate::exchange::Paced;
use crate::following::Following;
use crate::harvest::Harvesting;
use crate::hold::Trials;
use crate::ledger::{Ledger, ProcessKey};
use crate::live::Doorbells;
use crate::maps::{self, Mapping};
use crate::modules::{Loaded, Module, Plans};
use crate::perf_map::PerfMaps;
use crate::records::{Recording, Records};
use crate::settling::{Refused, Settling};
use crate::standing::Spaces;
use crate::stops::StopLog;
use crate::texts::Texts;
use crate::ticks::Ticks;
use crate::timers::{Registers, Standing};
use crate::unwind::Unwinding;

/// Whether patches change while programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Live {
    /// What is put in when a module is loaded stays.
    #[default]
    Off,
    /// Every process has a control thread that waits for changes.
    On,
}

/// What should stand in the text of live processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The patches.
    Patches = 0,
    /// The original text, but for the system calls by which the agent keeps the process itself.
    Original = 1,
}

/// What all conversations share.
#[derive(Debug)]
pub(crate) struct Server {
    plans: Arc<Plans>,
    live: Live,
    pub(crate) period: u32,
    /// Where programs record accesses, if they do.
    pub(crate) records: Option<Records>,
    ledger: Mutex<Ledger>,
    texts: Mutex<Texts>,
    /// Conversations of one process take turns.
    turns: Mutex<FxHashMap<u32, Arc<Mutex<()>>>>,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) perf_maps: Option<Mutex<PerfMaps>>,
    wanted: AtomicU32,
    /// Time for which programs were held in conversations, in nanoseconds.
    held_ns: AtomicU64,
    /// Files that were planned while their programs ran, and the programs that have been given them.
    late: Mutex<Vec<(ProcessKey, Arc<Module>)>>,
    /// Programs that go on with modules which could not be patched yet: threads of theirs were in the way.
    behind_loader: Mutex<FxHashSet<ProcessKey>>,
    choices: Mutex<Arc<Vec<Choice>>>,
    paces: Mutex<VecDeque<Paced>>,
    pub(crate) settling: Settling,
    spaces: Arc<Spaces>,
    pub(crate) stops: Arc<StopLog>,
    /// What programs tell of their allocations, if they do.
    pub(crate) following: Option<Following>,
    /// What programs sample of themselves, if they do.
    pub(crate) ticks: Option<Ticks>,
    /// Gives agents what they find callers by, where they are to.
    pub(crate) unwinding: Option<Unwinding>,
    /// What programs run inside the command, if any do.
    pub(crate) harvesting: Option<Harvesting>,
    /// The trial that is to be made, or was.
    pub(crate) trials: Trials,
    /// Statically linked programs bring the agent in by themselves.
    pub(crate) loads_itself: bool,
}

impl Server {
    pub(crate) fn new(
        plans: Arc<Plans>,
        doorbells: Arc<Doorbells>,
        live: Live,
        period: u32,
        records: Option<Recording>,
        perf_maps: Option<PathBuf>,
    ) -> Self {
        Self {
            plans,
            live,
            period,
            records: records.map(Records::new),
            ledger: Mutex::default(),
            texts: Mutex::default(),
            turns: Mutex::default(),
            doorbells,
            late: Mutex::default(),
            perf_maps: perf_maps.map(|directory| Mutex::new(PerfMaps::new(directory))),
            wanted: AtomicU32::new(Wanted::Patches as u32),
            held_ns: AtomicU64::new(0),
            behind_loader: Mutex::default(),
            choices: Mutex::default(),
            paces: Mutex::default(),
            settling: Settling::default(),
            spaces: Arc::default(),
            stops: Arc::default(),
            following: None,
            ticks: None,
            unwinding: None,
            harvesting: None,
            trials: Trials::default(),
            loads_itself: false,
        }
    }

    pub(crate) fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How sites of choices are to be sampled, the latest last.
    pub(crate) fn paces(&self) -> MutexGuard<'_, VecDeque<Paced>> {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn choices(&self) -> MutexGuard<'_, Arc<Vec<Choice>>> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn behind_loader(&self) -> MutexGuard<'_, FxHashSet<ProcessKey>> {
        let behind = self.behind_loader.lock();
        behind.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn plans(&self) -> &Arc<Plans> {
        &self.plans
    }

    /// What is loaded in the program that speaks.
    pub(crate) fn loaded(&self, conversation: &Conversation, maps: &[Mapping]) -> Vec<Loaded> {
        self.plans
            .loaded(conversation.pid, maps, &conversation.agent())
    }

    /// The same of the files of `choices`, as far as they were loaded before. A program can have hundreds of others.
    pub(crate) fn loaded_of(
        &self,
        conversation: &Conversation,
        maps: &[Mapping],
        choices: &[Choice],
    ) -> Vec<Loaded> {
        let files: Vec<&Identity> = choices.iter().map(|choice| &choice.file).collect();
        let inodes = self.plans.inodes(&files);
        let is_needed = |map: &&Mapping| inodes.contains(&map.inode) || map.exposes_text();
        let maps: Vec<Mapping> = maps.iter().filter(is_needed).cloned().collect();
        self.loaded(conversation, &maps)
    }

    /// Puts the registers of a thread back to what they would be in the original program.
    pub(crate) fn standing(
        &self,
        pid: u32,
        registers: &mut Registers,
        read: &dyn Fn(u64) -> Option<u64>,
    ) -> Standing {
        self.spaces.standing(pid, registers, read, || {
            let maps = maps::of(pid).ok()?;
            let areas = area::inherited(&maps, &self.ledger().areas);
            let trampolines = areas.iter().map(|area| Arc::clone(&area.trampolines));
            Some(trampolines.collect())
        })
    }

    /// Says what should stand in the text of live processes, and wakes them.
    pub(crate) fn want(&self, wanted: Wanted) {
        self.wanted.store(wanted as u32, Ordering::Relaxed);
        self.doorbells.ring();
    }

    /// Time for which programs were held until now, in nanoseconds: not when control threads spoke,
    /// which hold nobody.
    pub(crate) fn held_ns(&self) -> u64 {
        self.held_ns.load(Ordering::Relaxed)
    }

    /// Remembers that something could not be done in a process.
    fn miss(&self, pid: u32, error: &NotInstalled) {
        let missed = format!("process {pid}: {error}");
        self.ledger().missed.insert(missed);
    }

    /// Collects what programs record until `stopped` says so.
    pub(crate) fn collect(&self, stopped: &dyn Fn(Duration) -> bool) {
        if let Some(records) = &self.records {
            records.run(stopped, |burst| {
                let areas = self.ledger().areas.clone();
                for area in areas {
                    // Memory of our own: it can be written.
                    let _ = area.set_burst(burst);
                }
            });
        }
    }

    /// As [`Self::pass`], but for what is to be tried again.
    pub(crate) fn pass_or(
        &self,
        pid: u32,
        done: Result<(), NotInstalled>,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        match done {
            Err(error) if error.is_passing() && refused == Refused::Again => Err(error),
            other => self.pass(pid, other),
        }
    }

    /// Remembers what could not be done, as long as the program is there.
    pub(crate) fn pass(
        &self,
        pid: u32,
        done: Result<(), NotInstalled>,
    ) -> Result<(), NotInstalled> {
        match done {
            Err(error) if !error.is_gone() => {
                self.miss(pid, &error);
                Ok(())
            }
            other => other,
        }
    }
}

/// Inodes of all files without a name that are mapped and shared in any process that can be
/// looked into.
pub(crate) fn used_inodes() -> FxHashSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| maps::of(pid).ok())
        .flatten()
        .filter(|map| map.shared && map.deleted())
        .map(|map| map.inode)
        .collect()
}
