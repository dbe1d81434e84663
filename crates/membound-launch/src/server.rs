//! Serves agents: one thread a conversation, none waits for another's.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use membound_rewrite::patch::{HookState, HookView};
use membound_wire::{Event, Protection, TextMode};

use crate::area::{self, Area, Bar, Common, NotInstalled};
use crate::channel::{Channel, Listener};
use crate::conversation::{Conversation, Failure};
use crate::exchange::Choice;
use crate::hook;
use crate::ledger::{Ledger, ProcessKey};
use crate::live::Doorbells;
use crate::maps::{self, Mapping};
use crate::modules::{Loaded, Plans};
use crate::perf_map::{Moment, PerfMap, PerfMaps};
use crate::program::Unpatched;
use crate::records::{Recording, Records};

/// Areas whose memory stays open although their process may have ended: a child that was
/// forked from it may still count in them.
const OPEN_AREAS: usize = 256;

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
    /// The original text.
    Original = 1,
}

/// What became of a module.
pub(crate) enum Outcome {
    Patched(Arc<Area>),
    LeftAlone(String),
}

/// What all conversations share.
#[derive(Debug)]
pub(crate) struct Server {
    plans: Plans,
    live: Live,
    period: u32,
    /// Where programs record accesses, if they do.
    pub(crate) records: Option<Records>,
    ledger: Mutex<Ledger>,
    /// Conversations of one process take turns.
    turns: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
    pub(crate) doorbells: Doorbells,
    perf_maps: Option<Mutex<PerfMaps>>,
    wanted: AtomicU32,
    choices: Mutex<Arc<Vec<Choice>>>,
}

impl Server {
    pub(crate) fn new(
        plans: Plans,
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
            turns: Mutex::default(),
            doorbells: Doorbells::default(),
            perf_maps: perf_maps.map(|directory| Mutex::new(PerfMaps::new(directory))),
            wanted: AtomicU32::new(Wanted::Patches as u32),
            choices: Mutex::default(),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn choices(&self) -> MutexGuard<'_, Arc<Vec<Choice>>> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn plans(&self) -> &Plans {
        &self.plans
    }

    /// What is loaded in the program that speaks.
    pub(crate) fn loaded(&self, conversation: &Conversation, maps: &[Mapping]) -> Vec<Loaded> {
        self.plans
            .loaded(conversation.pid, maps, &conversation.agent())
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
            let spawned = thread.spawn(move || server.serve(channel));
            if let Err(error) = spawned {
                let missed = format!("a program: nobody could serve it ({error})");
                self.ledger().missed.insert(missed);
            }
        }
    }

    fn serve(&self, channel: Channel) {
        // Whoever does not speak our language is no agent of ours.
        let Ok(Some(conversation)) = Conversation::begin(channel) else {
            return;
        };
        let pid = conversation.pid;
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|other, turn| *other == pid || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(pid).or_default())
        };
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(started) = maps::started(pid) else {
            return;
        };
        let key = ProcessKey { pid, started };
        let event = conversation.hello.event;
        let done = if event == Event::Start as u32 {
            self.start(&conversation, key)
        } else if event == Event::Modules as u32 {
            self.modules(&conversation, key)
        } else if event == Event::Writable as u32 {
            self.writable(&conversation)
        } else if event == Event::Doorbell as u32 {
            self.doorbell(&conversation)
        } else {
            Ok(())
        };
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
        let mut maps = maps::of(key.pid)?;
        let loaded = self.loaded(conversation, &maps);
        if let Some(tainted) = loaded.iter().find_map(taint) {
            self.ledger().settle(key, Some(tainted.to_string()));
            return Ok(());
        }
        self.begin_records(conversation, &mut maps, key)?;
        let (signals, others): (Vec<Loaded>, Vec<Loaded>) =
            loaded.into_iter().partition(sets_signal_handlers);
        if let Err(unpatched) = self.hook_signals(conversation, &mut maps, &signals, &path)? {
            self.ledger().settle(key, Some(unpatched.to_string()));
            return Ok(());
        }
        for module in &others {
            self.patch(conversation, &mut maps, module, TextMode::Quiet)?;
        }
        for module in signals.iter().chain(&others) {
            self.add_chosen(conversation, &mut maps, module)?;
        }
        self.hook_loader(conversation, &mut maps);
        if self.live == Live::On {
            self.listen(conversation, &mut maps)?;
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
    pub(crate) fn collect(&self, stopped: impl Fn(std::time::Duration) -> bool) {
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

    fn common(&self, conversation: &Conversation) -> Common {
        Common {
            entries: conversation.hello.entries,
            period: self.period,
            burst: self.records.as_ref().map_or(0, Records::burst),
            // perf asks for names only where there is no file at all, also none without a name.
            code: match self.perf_maps {
                Some(_) => Protection::READ_EXECUTE | Protection::FILLED,
                None => Protection::READ_EXECUTE,
            },
        }
    }

    /// Patches the modules through which signal handlers are set, and takes over those that
    /// are set already. When that cannot be had, everything is as it was.
    fn hook_signals(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        signals: &[Loaded],
        path: &std::path::Path,
    ) -> Result<Result<(), Unpatched>, NotInstalled> {
        let mut installed = Vec::new();
        let mut unpatched = None;
        for module in signals {
            let Ok(plan) = &module.module.plan else {
                continue;
            };
            let name = module.module.path.display().to_string();
            if plan
                .hooks()
                .any(|hook| is_signal_hook(&hook) && hook.state != HookState::Hooked)
            {
                unpatched = Some(Unpatched::NoSignalHook(name));
                break;
            }
            match self.patch(conversation, maps, module, TextMode::Quiet)? {
                Outcome::Patched(area) => {
                    let hooks = plan.hooks().filter(is_signal_hook);
                    if !area.holds(hooks.map(|hook| hook.address)) {
                        unpatched = Some(Unpatched::NoSignalHook(name));
                    }
                    installed.push(area);
                }
                Outcome::LeftAlone(reason) => {
                    unpatched = Some(Unpatched::Refused {
                        path: module.module.path.clone(),
                        reason,
                    });
                }
            }
            if unpatched.is_some() {
                break;
            }
        }
        if signals.is_empty() {
            unpatched = Some(Unpatched::NoSignalHook(path.display().to_string()));
        }
        if unpatched.is_none() {
            match conversation.adopt_signals() {
                Ok(()) => return Ok(Ok(())),
                Err(gone @ Failure::Gone(_)) => return Err(gone.into()),
                Err(refused) => unpatched = Some(Unpatched::Agent(refused.to_string())),
            }
        }
        for area in installed {
            self.take_back(conversation, &area)?;
        }
        Ok(match unpatched {
            Some(unpatched) => Err(unpatched),
            None => Ok(()),
        })
    }

    /// Patches one module; why it is left alone otherwise.
    pub(crate) fn patch(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        loaded: &Loaded,
        mode: TextMode,
    ) -> Result<Outcome, NotInstalled> {
        let path = &loaded.module.path;
        let plan = match &loaded.module.plan {
            Ok(plan) => plan,
            Err(refused) => {
                let reason = refused.reason.clone();
                self.ledger().leave_alone(path.clone(), reason.clone());
                return Ok(Outcome::LeftAlone(reason));
            }
        };
        let common = self.common(conversation);
        let records = self.records.as_ref();
        let number = records.map_or(0, |records| records.number(maps, &loaded.module));
        match Area::install(conversation, maps, loaded, plan, common, number, mode) {
            Ok(area) => {
                let area = Arc::new(area);
                self.ledger().areas.push(Arc::clone(&area));
                Ok(Outcome::Patched(area))
            }
            Err(gone) if gone.is_gone() => Err(gone),
            Err(error) => {
                let reason = error.to_string();
                self.ledger().leave_alone(path.clone(), reason.clone());
                Ok(Outcome::LeftAlone(reason))
            }
        }
    }

    /// Makes the text of an area what it was, and lets go of it.
    fn take_back(&self, conversation: &Conversation, area: &Area) -> Result<(), NotInstalled> {
        if let Ok(plan) = &area.loaded.module.plan {
            let everywhere = 0..u64::MAX;
            area.remove(
                conversation,
                plan,
                &everywhere,
                TextMode::Quiet,
                Bar::Forever,
            )?;
        }
        area.unmap(conversation)?;
        Ok(())
    }

    /// The loader has mapped or unmapped something.
    fn modules(&self, conversation: &Conversation, key: ProcessKey) -> Result<(), NotInstalled> {
        if self.ledger().unpatched(key).is_some() {
            return Ok(());
        }
        let mut maps = maps::of(key.pid)?;
        let areas = area::inherited(&maps, &self.ledger().areas);
        let loaded = self.loaded(conversation, &maps);
        let same = |area: &Area, module: &Loaded| {
            let planned = &area.loaded.module;
            let origin = planned.origin().unwrap_or(planned);
            Arc::ptr_eq(origin, &module.module) && area.loaded.bias == module.bias
        };
        for area in &areas {
            let gone = !loaded.iter().any(|module| same(area, module));
            if gone && !area.loaded.module.is_piece() {
                area.unmap(conversation)?;
            }
        }
        maps = maps::of(key.pid)?;
        for module in &loaded {
            if !areas.iter().any(|area| same(area, module)) {
                self.patch(conversation, &mut maps, module, TextMode::Quiet)?;
                self.add_chosen(conversation, &mut maps, module)?;
            }
        }
        self.name_trampolines(conversation, Moment::Later)
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

    /// A live process was woken.
    fn doorbell(&self, conversation: &Conversation) -> Result<(), NotInstalled> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let maps = maps::of(conversation.pid)?;
        let areas = area::inherited(&maps, &self.ledger().areas);
        for area in areas {
            let module = &area.loaded.module;
            let (Ok(plan), None) = (&module.plan, module.origin()) else {
                continue;
            };
            let changed = if wanted == Wanted::Patches as u32 {
                area.restore(conversation, plan, TextMode::Live)
            } else {
                let span = area.loaded.span();
                area.remove(conversation, plan, &span, TextMode::Live, Bar::No)
            };
            self.pass(conversation.pid, changed)?;
        }
        self.apply_chosen(conversation)
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

    /// Makes the loader's announcement of new objects a call into the agent. Without it,
    /// what is opened later runs unpatched.
    fn hook_loader(&self, conversation: &Conversation, maps: &mut Vec<Mapping>) {
        let common = self.common(conversation);
        match hook::loader(conversation, maps, common) {
            Ok(area) => self.ledger().areas.push(Arc::new(area)),
            Err(error) if error.is_gone() => {}
            Err(error) => self.ledger().leave_alone(
                PathBuf::from("what is opened while the program runs"),
                error.to_string(),
            ),
        }
    }

    fn listen(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), NotInstalled> {
        let at = self.doorbells.hang(conversation, maps)?;
        conversation.listen(at)?;
        Ok(())
    }

    /// Lets go of memory that nobody writes any more, when there is much of it.
    fn sweep(&self) {
        let mut ledger = self.ledger();
        if ledger.areas.len() <= OPEN_AREAS {
            return;
        }
        let used = used_inodes();
        ledger.close(|area| used.contains(&area.inode));
    }
}

/// Inodes of all files without a name that are mapped and shared in any process that can be
/// looked into.
pub(crate) fn used_inodes() -> HashSet<u64> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| maps::of(pid).ok())
        .flatten()
        .filter(|map| map.shared && map.deleted())
        .map(|map| map.inode)
        .collect()
}

fn taint(loaded: &Loaded) -> Option<Unpatched> {
    let refused = loaded.module.plan.as_ref().err()?;
    refused.taints.then(|| Unpatched::Refused {
        path: loaded.module.path.clone(),
        reason: refused.reason.clone(),
    })
}

fn sets_signal_handlers(loaded: &Loaded) -> bool {
    let plan = loaded.module.plan.as_ref();
    plan.is_ok_and(|plan| plan.hooks().any(|hook| is_signal_hook(&hook)))
}

/// Whether a system call is known to be `rt_sigaction`.
fn is_signal_hook(hook: &HookView) -> bool {
    const RT_SIGACTION: u32 = 13;
    hook.number == Some(RT_SIGACTION)
}

/// How text is replaced while the program may be running in it.
const fn mode(conversation: &Conversation) -> TextMode {
    if conversation.threaded() {
        TextMode::Live
    } else {
        TextMode::Quiet
    }
}
