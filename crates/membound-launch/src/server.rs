//! Serves agents: one thread a conversation, none waits for another's.

use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::stat;
use membound_rewrite::image::Identity;
use membound_wire::{Event, TextMode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::area::{self, Area, Bar, NotInstalled};
use crate::channel::{Channel, Listener};
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::exchange::{Left, Paced};
use crate::following::Following;
use crate::harvest::Harvesting;
use crate::hold::Trials;
use crate::ledger::{Ledger, ProcessKey};
use crate::live::Doorbells;
use crate::maps::{self, Mapping};
use crate::modules::{Loaded, Module, Plans};
use crate::orders::NewModules;
use crate::patching::sets_signal_handlers;
use crate::perf_map::{Moment, PerfMap, PerfMaps};
use crate::program::{self, Unpatched};
use crate::records::{Recording, Records};
use crate::settling::{self, Refused, Settling};
use crate::slice;
use crate::standing::Spaces;
use crate::stops::StopLog;
use crate::texts::{Change, Edits, Texts};
use crate::ticks::Ticks;
use crate::timers::{Registers, Standing};
use crate::unwind::{Unwinding, Which};

/// Areas whose memory stays open although their process may have ended: a child that was
/// forked from it may still count in them.
const OPEN_AREAS: usize = 256;

/// Before a change that was refused is asked for again: threads that could not be stopped are to
/// have got on.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// When a program gets the unwind tables of large files that it was not held for. Many end before that.
const TABLES_AFTER: Duration = Duration::from_millis(50);

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

    pub(crate) fn plans(&self) -> &Plans {
        &self.plans
    }

    /// What is loaded in the program that speaks.
    pub(crate) fn loaded(&self, conversation: &Conversation, maps: &[Mapping]) -> Vec<Loaded> {
        self.plans
            .loaded(conversation.pid, maps, &conversation.agent())
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

    /// Accepts conversations until the listener is closed.
    pub(crate) fn run(self: &Arc<Self>, listener: &Listener) {
        while let Ok(channel) = listener.accept() {
            let server = Arc::clone(self);
            let thread = std::thread::Builder::new().name("conversation".to_owned());
            // Without a thread the channel is dropped, and the program runs on as it is.
            let spawned = thread.spawn(move || {
                slice::shorten();
                server.serve(channel);
            });
            if let Err(error) = spawned {
                let missed = format!("a program: nobody could serve it ({error})");
                self.ledger().missed.insert(missed);
            }
        }
    }

    /// Time for which programs were held until now, in nanoseconds: not when control threads spoke,
    /// which hold nobody.
    pub(crate) fn held_ns(&self) -> u64 {
        self.held_ns.load(Ordering::Relaxed)
    }

    fn serve(&self, channel: Channel) {
        let begun = Instant::now();
        // Whoever does not speak our language is no agent of ours.
        let Ok(Some(conversation)) =
            Conversation::begin(channel, Arc::clone(&self.spaces), Arc::clone(&self.stops))
        else {
            return;
        };
        let pid = conversation.pid;
        let event = conversation.hello.event;
        if event == Event::Doorbell as u32 {
            self.plan_ahead(&conversation);
        }
        let own = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|other, turn| *other == pid || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(pid).or_default())
        };
        let mut turn = Some(own.lock().unwrap_or_else(PoisonError::into_inner));
        let Ok(started) = stat::started(pid) else {
            return;
        };
        let key = ProcessKey { pid, started };
        let hold = || {
            if event != Event::Doorbell as u32 {
                let held_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
                self.held_ns.fetch_add(held_ns, Ordering::Relaxed);
            }
        };
        let done = if event == Event::Start as u32 {
            self.start(&conversation, key)
        } else if event == Event::Modules as u32 {
            self.modules(&conversation, key)
        } else if event == Event::Guest as u32 {
            self.guest_maps(&conversation, key)
        } else if event == Event::Writable as u32 {
            self.writable(&conversation)
        } else if let Some(forbidden) = forbidden(event) {
            self.leave(&conversation, key, forbidden)
        } else if event == Event::Doorbell as u32 {
            let exchanged = self.settling.number();
            let refused = self.settling.if_refused(key, exchanged);
            match self.doorbell(&conversation, key, refused) {
                Err(error) if error.is_passing() && refused == Refused::Again => {
                    self.settling.refuse(key, exchanged);
                    conversation.go();
                    drop(turn.take());
                    self.ask_again(exchanged);
                    return;
                }
                done => {
                    match &done {
                        // Its control thread ends where the conversation does: nothing that is
                        // asked of it later would ever be done.
                        Err(error) if error.is_gone() => {
                            self.settling.forget(key);
                            self.texts().forget(key);
                        }
                        _ => self.settling.done(key, exchanged),
                    }
                    done
                }
            }
        } else {
            Ok(())
        };
        if event == Event::Start as u32
            && let Some(ticks) = &self.ticks
            && let Some(reason) = self.ledger().unpatched(key)
        {
            ticks.refuse(pid, reason);
        }
        if event == Event::Start as u32
            && let Some(harvesting) = &self.harvesting
            && harvesting.is_in(key)
        {
            // Guests speak too, while the program waits for them.
            drop(turn.take());
            harvesting.await_guests();
        }
        if event == Event::Doorbell as u32 && done.is_ok() {
            // Other threads of the program may speak meanwhile.
            drop(turn.take());
            self.try_hold(&conversation, key);
        }
        hold();
        match done {
            Ok(()) => conversation.go(),
            // Nobody is there to be let go.
            Err(error) if error.is_gone() => {}
            Err(error) => {
                self.miss(pid, &error);
                if event == Event::Start as u32 {
                    self.ledger().settle(key, Some(error.to_string()));
                }
                conversation.go();
            }
        }
        drop(turn.take());
        if event == Event::Start as u32 && self.owes_tables(pid) {
            std::thread::sleep(TABLES_AFTER);
            if settling::runs(key) {
                self.doorbells.ring();
            }
        }
    }

    /// Whether a process is to get more unwind tables.
    fn owes_tables(&self, pid: u32) -> bool {
        let unwinding = self.unwinding.as_ref();
        unwinding.is_some_and(|unwinding| unwinding.owes(pid))
    }

    /// Remembers that something could not be done in a process.
    fn miss(&self, pid: u32, error: &NotInstalled) {
        let missed = format!("process {pid}: {error}");
        self.ledger().missed.insert(missed);
    }

    /// A new program: everything in it is patched, or nothing.
    fn start(&self, conversation: &Conversation, key: ProcessKey) -> Result<(), NotInstalled> {
        let path = fs::read_link(format!("/proc/{}/exe", key.pid)).unwrap_or_default();
        self.sweep();
        self.ledger().begin(key, path.clone());
        self.texts().forget(key);
        // What ran here before is left, and the new program may have no control thread.
        self.settling.forget(key);
        self.spaces
            .begin(key.pid, key.started, conversation.agent());
        if let Some(emulator) = program::emulator(&path).filter(|_| !self.loads_itself) {
            self.ledger().settle(key, Some(emulator.to_string()));
            return Ok(());
        }
        let exchanged = self.settling.number();
        let mut maps = maps::of(key.pid)?;
        let loaded = self.loaded(conversation, &maps);
        if let Some(tainted) = loaded.iter().find_map(taint) {
            self.ledger().settle(key, Some(tainted.to_string()));
            return Ok(());
        }
        self.begin_records(conversation, &mut maps, key)?;
        if let Some(unwinding) = &self.unwinding {
            let begun = unwinding.begin(&self.plans, conversation, &mut maps, key, &loaded);
            self.pass(key.pid, begun.map_err(Into::into))?;
        }
        if let Some(following) = &self.following {
            let begun = following.begin(conversation, &mut maps, key);
            self.pass(key.pid, begun.map_err(Into::into))?;
        }
        let (signals, others): (Vec<Loaded>, Vec<Loaded>) =
            loaded.into_iter().partition(sets_signal_handlers);
        if let Err(unpatched) = self.hook_signals(conversation, &mut maps, &signals, &path)? {
            self.ledger().settle(key, Some(unpatched.to_string()));
            return Ok(());
        }
        for module in &others {
            self.patch(
                conversation,
                &mut maps,
                module,
                TextMode::Quiet,
                Refused::GivenUp,
            )?;
        }
        let mut left = Left::Nothing;
        for module in signals.iter().chain(&others) {
            if self.add_chosen(conversation, &mut maps, module)? == Left::Some {
                left = Left::Some;
            }
        }
        self.hook_loader(conversation, &mut maps);
        self.remember_late(key, &others);
        let all: Vec<&Loaded> = signals.iter().chain(&others).collect();
        self.begin_harvest(conversation, &mut maps, key, &path, &all)?;
        if let Some(ticks) = &self.ticks {
            ticks.begin(conversation, &mut maps, key)?;
        }
        if self.live == Live::On || self.ticks.is_some() {
            self.listen(conversation, &mut maps)?;
            // Its control thread asks for what is chosen as soon as it runs.
            let done = if left == Left::Nothing { exchanged } else { 0 };
            self.settling.done(key, done);
        }
        self.ledger().settle(key, None);
        self.name_trampolines(conversation, Moment::Start)
    }

    /// Gives a new program rings; without them it runs as well, and what it would have
    /// recorded is missing.
    fn begin_records(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        let Some(records) = &self.records else {
            return Ok(());
        };
        match records.begin(conversation, maps, key) {
            Err(gone @ Failure::Gone(_)) => Err(gone.into()),
            Err(refused) => {
                let missed = format!("records of process {}: {refused}", key.pid);
                self.ledger().missed.insert(missed);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
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

    /// The loader has mapped or unmapped something.
    fn modules(&self, conversation: &Conversation, key: ProcessKey) -> Result<(), NotInstalled> {
        if self.ledger().unpatched(key).is_some() {
            return Ok(());
        }
        let maps = maps::of(key.pid)?;
        self.follow_loader(conversation, key, maps, TextMode::Quiet, Refused::GivenUp)
    }

    /// Patches what the loader has mapped, and takes the trampolines away of what it has unmapped.
    fn follow_loader(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: Vec<Mapping>,
        mode: TextMode,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let areas = area::inherited(&maps, &self.ledger().areas);
        // Guests' modules keep their trampolines for as long as they are there, and get no others.
        let (guests, loaded): (Vec<Loaded>, Vec<Loaded>) = self
            .loaded(conversation, &maps)
            .into_iter()
            .partition(|module| {
                let harvesting = self.harvesting.as_ref();
                harvesting.is_some_and(|harvesting| harvesting.is_guests(module))
            });
        for area in &areas {
            let mut there = loaded.iter().chain(&guests);
            let gone = !there.any(|module| is_in(area, module));
            if gone && !area.loaded.module.is_piece() {
                area.unmap(conversation)?;
            }
        }
        self.add(conversation, key, maps, &loaded, mode, refused)
    }

    /// Patches what of `loaded` is not patched yet, and makes the agent find callers in all of it.
    fn add(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        mut maps: Vec<Mapping>,
        loaded: &[Loaded],
        mode: TextMode,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let areas = area::inherited(&maps, &self.ledger().areas);
        if let Some(unwinding) = &self.unwinding {
            let plans = &self.plans;
            let all = Which::All;
            let updated = unwinding.update(plans, conversation, &mut maps, key, loaded, all);
            self.pass(key.pid, updated.map_err(Into::into))?;
        }
        for module in loaded {
            if !areas.iter().any(|area| is_in(area, module)) {
                self.patch(conversation, &mut maps, module, mode, refused)?;
                if mode == TextMode::Quiet {
                    self.add_chosen(conversation, &mut maps, module)?;
                    self.plant_primary(conversation, &mut maps, key, module)?;
                }
            }
        }
        self.remember_late(key, loaded);
        self.name_trampolines(conversation, Moment::Later)
    }

    /// Patches files that were planned while the program ran.
    fn add_late(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        maps: Vec<Mapping>,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        if !self.plans.has_late() {
            return Ok(());
        }
        let loaded = self.loaded(conversation, &maps);
        let is_new = |it: &Loaded| {
            it.module.is_late() && {
                let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
                !late
                    .iter()
                    .any(|(by, known)| *by == key && Arc::ptr_eq(known, &it.module))
            }
        };
        if !loaded.iter().any(is_new) {
            return Ok(());
        }
        self.add(conversation, key, maps, &loaded, TextMode::Live, refused)
    }

    /// Remembers which late files the program has been given.
    fn remember_late(&self, key: ProcessKey, loaded: &[Loaded]) {
        if !self.plans.has_late() {
            return;
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = loaded.iter().map(|it| &it.module);
        for module in modules.filter(|module| module.is_late()) {
            late.push((key, Arc::clone(module)));
        }
        late.retain(|(by, _)| *by == key || stat::started(by.pid).ok() == Some(by.started));
    }

    /// Makes the plans that the program's exchange needs, which may take seconds: before it has the process's
    /// turn, since the program may be waiting for that.
    fn plan_ahead(&self, conversation: &Conversation) {
        if let Some(unwinding) = &self.unwinding
            && unwinding.owes(conversation.pid)
            && let Ok(maps) = maps::of(conversation.pid)
        {
            unwinding.prepare(&self.plans, &self.loaded(conversation, &maps));
        }
        let choices = Arc::clone(&self.choices());
        self.plan_late(conversation);
        if choices.is_empty() && !conversation.modules_changed() {
            return;
        }
        let Ok(maps) = maps::of(conversation.pid) else {
            return;
        };
        let files: Vec<&Identity> = choices.iter().map(|choice| &choice.file).collect();
        self.plans.await_late(&files);
        for loaded in self.loaded(conversation, &maps) {
            self.chosen(&choices, &loaded);
        }
    }

    /// Writes down for perf what is in the process, if that is wanted.
    fn name_trampolines(
        &self,
        conversation: &Conversation,
        moment: Moment,
    ) -> Result<(), NotInstalled> {
        if let Some(perf_maps) = &self.perf_maps {
            let maps = maps::of(conversation.pid)?;
            let areas = area::inherited(&maps, &self.ledger().areas);
            let mut perf_maps = perf_maps.lock().unwrap_or_else(PoisonError::into_inner);
            perf_maps.write(conversation.hello.pid, &areas, moment);
        }
        Ok(())
    }

    /// What was written for perf.
    pub(crate) fn perf_maps(&self) -> Vec<PerfMap> {
        self.perf_maps.as_ref().map_or_else(Vec::new, |perf_maps| {
            let perf_maps = perf_maps.lock().unwrap_or_else(PoisonError::into_inner);
            perf_maps.all()
        })
    }

    /// The program is about to change text itself.
    fn writable(&self, conversation: &Conversation) -> Result<(), NotInstalled> {
        let [start, end] = conversation.hello.range;
        let range: Range<u64> = start..end;
        let maps = maps::of(conversation.pid)?;
        let areas = area::inherited(&maps, &self.ledger().areas);
        for area in areas {
            if let (true, Ok(plan)) = (area.touches(&range), &area.loaded.module.plan) {
                area.remove(conversation, plan, &range, mode(conversation), Bar::Forever)?;
            }
        }
        Ok(())
    }

    /// The program is about to forbid itself what the agent needs, in words that say how: what is left behind
    /// would have it killed.
    fn leave(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        forbidden: &str,
    ) -> Result<(), NotInstalled> {
        let mut missed = format!(
            "process {}: it {forbidden}: nothing in \
             it is patched from then on, nor in what it executes, and timers inside it are off",
            key.pid
        );
        let harvesting = self.harvesting.as_ref();
        if harvesting.is_some_and(|harvesting| harvesting.is_in(key)) {
            missed.push_str("; its scavengers ended before");
        }
        self.ledger().missed.insert(missed);
        let done = self.writable(conversation);
        // Its control thread ends.
        self.settling.forget(key);
        done
    }

    /// A live process was woken.
    fn doorbell(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
        refused: Refused,
    ) -> Result<(), NotInstalled> {
        let maps = maps::of(conversation.pid)?;
        let behind = self.behind_loader().remove(&key);
        if conversation.modules_changed() || behind {
            // Another module may lie where one was.
            self.texts().forget(key);
            let followed =
                self.follow_loader(conversation, key, maps.clone(), TextMode::Live, refused);
            if followed.as_ref().is_err_and(NotInstalled::is_passing) {
                self.behind_loader().insert(key);
            }
            followed?;
        } else {
            if let Some(unwinding) = &self.unwinding
                && unwinding.owes(key.pid)
            {
                let loaded = self.loaded(conversation, &maps);
                let (plans, maps) = (&self.plans, &mut maps.clone());
                let updated = unwinding.update(plans, conversation, maps, key, &loaded, Which::All);
                self.pass(key.pid, updated.map_err(Into::into))?;
            }
            self.add_late(conversation, key, maps.clone(), refused)?;
        }
        let wanted = match self.wanted.load(Ordering::Relaxed) {
            wanted if wanted == Wanted::Patches as u32 => Edits::In,
            _ => Edits::Out,
        };
        let mut change = Change::new(key, wanted);
        let areas = area::inherited(&maps, &self.ledger().areas);
        for area in areas {
            if area.loaded.module.origin().is_none() {
                change.add(&self.texts(), &area);
            }
        }
        self.change(conversation, change, refused)?;
        self.apply_chosen(conversation, key, refused)?;
        if let Some(harvesting) = &self.harvesting {
            self.plant_late(conversation, harvesting, key, refused)?;
            self.hold_out(conversation, harvesting, key, refused)?;
        }
        Ok(())
    }

    /// Wakes programs once more for what was refused, unless something else is wanted by then.
    fn ask_again(&self, exchange: u64) {
        std::thread::sleep(AGAIN_AFTER);
        if self.settling.number() == exchange {
            self.doorbells.ring();
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

    fn listen(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), NotInstalled> {
        let modules = if self.plans.is_deferring() {
            NewModules::Later
        } else {
            NewModules::HoldProgram
        };
        self.doorbells.hang(conversation, maps, modules)?;
        Ok(())
    }

    /// Lets go of memory that nobody writes any more, when there is much of it.
    fn sweep(&self) {
        let mut ledger = self.ledger();
        if ledger.areas.len() <= OPEN_AREAS {
            return;
        }
        self.texts().retain(settling::runs);
        let used = used_inodes();
        ledger.close(|area| used.contains(&area.inode));
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

/// What `event` says the program forbids itself that the agent needs.
const fn forbidden(event: u32) -> Option<&'static str> {
    const FILTERED: u32 = Event::Filtered as u32;
    const DISPATCHED: u32 = Event::Dispatched as u32;
    const UNTIMED: u32 = Event::Untimed as u32;
    match event {
        FILTERED => Some("put itself behind a filter on its system calls (seccomp)"),
        DISPATCHED => Some(
            "has its system calls dispatched to a handler of its own (PR_SET_SYSCALL_USER_DISPATCH)",
        ),
        UNTIMED => Some("forbade itself to read the time stamp counter (PR_SET_TSC)"),
        _ => None,
    }
}

/// Whether an area belongs to a module, by the session's own plan or by a choice.
fn is_in(area: &Area, module: &Loaded) -> bool {
    let planned = &area.loaded.module;
    let origin = planned.origin().unwrap_or(planned);
    Arc::ptr_eq(origin, &module.module) && area.loaded.bias == module.bias
}

fn taint(loaded: &Loaded) -> Option<Unpatched> {
    let refused = loaded.module.plan.as_ref().err()?;
    refused.taints.then(|| Unpatched::Refused {
        path: loaded.module.path.clone(),
        reason: refused.reason.clone(),
    })
}

/// How text is replaced while the program may be running in it.
const fn mode(conversation: &Conversation) -> TextMode {
    if conversation.threaded() {
        TextMode::Live
    } else {
        TextMode::Quiet
    }
}
