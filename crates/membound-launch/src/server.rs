//! Serves agents: one thread for each conversation, so that none waits for another.

mod conversations;
mod exchanging;
mod leaving;
mod loading;
mod starting;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use membound_rewrite::image::Identity;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::area::{self, NotInstalled};
use crate::choice::{Choice, Paced};
use crate::collecting::Pacing;
use crate::conversation::Conversation;
use crate::following::Following;
use crate::harvest::Harvesting;
use crate::ledger::Ledger;
use crate::live::Doorbells;
use crate::maps::{self, Mapping};
use crate::modules::{Loaded, ModulePlan, Plans};
use crate::perf_map::PerfMaps;
use crate::process_key::ProcessKey;
use crate::records::{Recording, Records};
use crate::settling::{Refused, Settling};
use crate::short_lived::Draw;
use crate::standing::Spaces;
use crate::stops::StopLog;
use crate::texts::Texts;
use crate::ticks::Ticks;
use crate::timers::{Registers, Standing};
use crate::trials::Trials;
use crate::unwind::Unwinding;

/// Whether patches change while programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Live {
    /// Patches stay as they were installed when a module was loaded.
    #[default]
    Off,
    /// Every process has a control thread that waits for changes.
    On,
}

/// Which text live processes should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Text with the session's patches.
    Patches = 0,
    /// The original text, except for the system calls that the agent hooks for itself.
    Original = 1,
}

/// State shared by all conversations.
#[derive(Debug)]
pub(crate) struct Server {
    plans: Arc<Plans>,
    live: Live,
    pub(crate) period: u32,
    /// Recorded accesses, if programs record.
    pub(crate) records: Option<Records>,
    ledger: Mutex<Ledger>,
    texts: Mutex<Texts>,
    /// Locks that let only one conversation of a process act at a time, by process number.
    turns: Mutex<FxHashMap<u32, Arc<Mutex<()>>>>,
    pub(crate) doorbells: Arc<Doorbells>,
    pub(crate) perf_maps: Option<Mutex<PerfMaps>>,
    wanted: AtomicU32,
    /// Time for which programs were held in conversations, in nanoseconds.
    held_ns: AtomicU64,
    /// Files that were planned while their programs ran, and the programs in which they are patched.
    late: Mutex<Vec<(ProcessKey, Arc<ModulePlan>)>>,
    /// Programs that run on with modules that could not be patched yet, because threads were in the way.
    behind_loader: Mutex<FxHashSet<ProcessKey>>,
    choices: Mutex<Arc<Vec<Choice>>>,
    paces: Mutex<VecDeque<Paced>>,
    pub(crate) settling: Settling,
    spaces: Arc<Spaces>,
    pub(crate) stops: Arc<StopLog>,
    /// Reported allocations, if they are followed.
    pub(crate) following: Option<Following>,
    /// Timer samples, if agents take them.
    pub(crate) ticks: Option<Ticks>,
    /// Unwind tables for agents, if they need them.
    pub(crate) unwinding: Option<Unwinding>,
    /// The harvest, if the command has scavengers.
    pub(crate) harvesting: Option<Harvesting>,
    /// Which processes of short-lived executables are patched.
    pub(crate) draw: Draw,
    /// The trial that is requested, or was made.
    pub(crate) trials: Trials,
    /// How often what programs report is collected.
    pub(crate) pacing: Arc<Pacing>,
    /// True if statically linked programs load the agent by themselves.
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
            draw: Draw::default(),
            trials: Trials::default(),
            pacing: Arc::default(),
            loads_itself: false,
        }
    }

    pub(crate) fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Paces of chosen sites, the latest last.
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

    /// The modules of the program of this conversation.
    pub(crate) fn loaded(&self, conversation: &Conversation, maps: &[Mapping]) -> Vec<Loaded> {
        self.plans
            .loaded(conversation.pid, maps, &conversation.agent())
    }

    /// The same, restricted to files of `choices` that were loaded before. A program can have hundreds of
    /// others.
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

    /// Restores the registers that a thread would have in the original program.
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

    /// Sets which text live processes should have, and wakes them.
    pub(crate) fn want(&self, wanted: Wanted) {
        self.wanted.store(wanted as u32, Ordering::Relaxed);
        self.doorbells.ring();
    }

    /// Time for which programs were held so far, in nanoseconds, without conversations of control threads,
    /// which hold no program.
    pub(crate) fn held_ns(&self) -> u64 {
        self.held_ns.load(Ordering::Relaxed)
    }

    /// Records a failure in a process.
    fn miss(&self, pid: u32, error: &NotInstalled) {
        let missed = format!("process {pid}: {error}");
        self.ledger().missed.insert(missed);
    }

    /// Collects records of programs until `stopped` returns true.
    pub(crate) fn collect(&self, stopped: &dyn Fn(Duration) -> bool) {
        if let Some(records) = &self.records {
            records.run(stopped, |burst| {
                let areas = self.ledger().areas.clone();
                for area in areas {
                    // The memory is the launcher's own, so writing cannot fail.
                    let _ = area.set_burst(burst);
                }
            });
        }
    }

    /// As [`Self::pass`], except for failures after which it is tried again.
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

    /// Records a failure, unless the program has ended.
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
