//! Programs that run inside the command's process, at its yields.
//!
//! Only the process that a session starts has guests: what it executes later, and its children,
//! run as they are. A guest's modules are patched when it has mapped them and before they run, with
//! the scavengers' choices; everything else that is loaded with the primary's.

use std::ffi::OsStr;
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use membound_rewrite::patch::{Body, Plan, Yield};
use membound_wire::{
    Board, CREDIT_UNITS_PER_NS, GuestPlace, GuestRequest, GuestState, Idle, TIME_CLASSES, TextMode,
    class_begin,
};

use membound_platform::threads::Scheduled;
use rustix::process::{Pid, Signal, kill_process};

use crate::area::{Area, NotInstalled};
use crate::choice::Choice;
use crate::conversation::{Conversation, Failure};
use crate::ledger::ProcessKey;
use crate::maps::{self, Mapping};
use crate::marks::RequestsBy;
use crate::memory::Shared;
use crate::modules::{Loaded, Module};
use crate::patching::Outcome;
use crate::planting::{LatePlantings, Planting};
use crate::requests::{Requested, Requesting};
use crate::server::Server;
use crate::settling::Refused;
use crate::withdraw::{Withdrawn, YieldPlace};

/// Between two looks whether guests are ready.
const LOOK: Duration = Duration::from_millis(1);
/// Parts of the whole that the board's share counts in.
const WHOLE: f64 = 1024.0;
/// The agent's looks in a phase with guests or without, where requests are told, at first and at most:
/// 20 ms and 500 ms.
const REQUEST_LOOKS: u32 = 10;
const MOST_LOOKS: f64 = 250.0;
/// Time between two of the agent's looks, in nanoseconds.
const LOOK_NS: f64 = 2e6;
/// CPU time of a guest that has come to no yield, after which the command begins all the same: it may be
/// preparing its data for seconds.
const PREPARES_NS: u64 = 50_000_000;

/// What a session harvests.
#[derive(Clone, Debug)]
pub struct Harvest {
    /// The programs that run in the command's stalls.
    pub guests: Vec<Guest>,
    /// Yields of the command.
    pub primary: Vec<Planting>,
    /// Yields of the guests.
    pub scavengers: Vec<Planting>,
    /// Time from a yield of the command until its data are there, in nanoseconds.
    pub span_ns: f64,
    /// Whether the process stays, when the command ends it, until all guests have ended.
    pub finish: bool,
    /// Most guests that a thread is given at one time.
    pub per_thread: u32,
    /// Whether what guests map may have huge pages.
    pub huge_pages: bool,
    /// What becomes of guests without a thread.
    pub idle: Idle,
    /// Whether guests run in short waits of the command's threads, where they may in idle time.
    pub waits: bool,
    /// Share of the time in which guests are let in; in the rest yields are only counted.
    pub share: f64,
    /// Whether the command is [`crate::host()`]: then guests keep the priority of ordinary programs.
    pub peers: bool,
    /// Bytes of memory that all guests together may have.
    pub memory_bytes: u64,
    /// Ticks of the time stamp counter in a nanosecond.
    pub ticks_per_ns: f64,
    /// How requests of the command are told, if they are to be.
    pub requests: Option<RequestsBy>,
    /// How long the command waits for its guests to come to a yield.
    pub patience: Duration,
    /// Where guests begin.
    pub begins: GuestPlace,
}

impl Harvest {
    /// Whether threads of the command's yield where they would wait.
    pub(crate) fn in_waits(&self) -> bool {
        self.waits && self.idle == Idle::Harvest
    }
}

/// A program that runs inside another one.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments, the name that it is called by first.
    pub arguments: Vec<std::ffi::OsString>,
    /// `NAME=value` and whatever else stands in an environment.
    pub environment: Vec<std::ffi::OsString>,
    /// Where standard output goes; nowhere if there is none.
    pub output: Option<PathBuf>,
    /// Where standard error goes.
    pub errors: Option<PathBuf>,
    /// Bytes of addresses that it may map.
    pub memory_bytes: u64,
    /// Bytes of its stack.
    pub stack_bytes: u64,
}

/// What came of a harvest so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Harvested {
    /// Why the command has no lanes, if it has none.
    pub refused: Option<String>,
    /// Threads that were given a lane.
    pub threads: u64,
    /// Yields of the command at which somebody could run, and CPU time of its threads meanwhile.
    pub with: Turns,
    /// The same while nobody was let in.
    pub without: Turns,
    /// Guests that were taken from a thread that waited, and from one that ended.
    pub steals: u64,
    /// See `steals`.
    pub reclaimed: u64,
    /// Guests that left a thread for a system call, and for a signal to the command.
    pub calls: u64,
    /// See `calls`.
    pub interrupted: u64,
    /// Guests that were called out of a turn that did not end.
    pub overdue: u64,
    /// Turns in short waits of the command's threads, and how long these were, in nanoseconds.
    pub waits: Turns,
    /// Turns that were to be timed, and that scavengers skipped to wait for what they had asked for.
    pub skipped: u64,
    /// Turns that were timed, their sum, and the longest, in nanoseconds.
    pub timed: u64,
    /// See `timed`.
    pub timed_ns: u64,
    /// See `timed`.
    pub longest_ns: u64,
    /// Of these, how many lasted from one nanosecond to another: (from, to, count).
    pub times: Vec<(u64, u64, u64)>,
    /// Its guests, in their order.
    pub guests: Vec<GuestStatus>,
    /// Yields that could not be had, and why.
    pub missed: Vec<String>,
    /// Requests of the command, where they are told.
    pub requested: Option<Requested>,
    /// Yields of the command that are out of its text.
    pub withdrawn: Vec<YieldPlace>,
}

/// Turns, and CPU time of the threads that took them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// How many.
    pub count: u64,
    /// In nanoseconds.
    pub cpu_ns: u64,
}

/// How far a guest has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestStatus {
    /// Its state; `None` before it was started.
    pub state: Option<GuestState>,
    /// Exit code, signal or error number, as the state says.
    pub code: u32,
    /// Its thread in the program's namespace.
    pub thread: u32,
    /// CPU time of its own thread when it ended, in nanoseconds; 0 before.
    pub cpu_ns: u64,
    /// System calls that it has made.
    pub calls: u64,
    /// Times that it left its own thread.
    pub parks: u64,
    /// Time that others' threads had it, in nanoseconds.
    pub away_ns: u64,
    /// Loads with a yield that it came by.
    pub progress: u64,
}

/// A harvest as the server carries it out.
#[derive(Debug)]
pub(crate) struct Harvesting {
    wanted: Harvest,
    /// The process that has the guests.
    process: OnceLock<ProcessKey>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    board: Option<Shared>,
    /// By guest: its request, once it was started.
    requests: Vec<Option<Shared>>,
    /// What guests have mapped.
    spans: Vec<Range<u64>>,
    refused: Option<String>,
    missed: Vec<String>,
    requesting: Requesting,
    withdrawn: Withdrawn,
    late: LatePlantings,
}

impl Harvesting {
    pub(crate) fn new(wanted: Harvest) -> Self {
        Self {
            wanted,
            process: OnceLock::new(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process with the guests, and it has lanes.
    pub(crate) fn is_in(&self, key: ProcessKey) -> bool {
        self.process.get() == Some(&key) && self.state().board.is_some()
    }

    /// The process with the guests is another program now, and they are no more.
    fn say_executed(&self, path: &Path) {
        let missed = format!(
            "the command executed {}: scavengers ended with what ran before, and nothing was harvested of \
             this (run it itself)",
            path.display()
        );
        self.state().missed.push(missed);
    }

    /// Whether a module is a guest's.
    pub(crate) fn is_guests(&self, module: &Loaded) -> bool {
        let span = module.span();
        let state = self.state();
        state
            .spans
            .iter()
            .any(|guests| guests.start < span.end && span.start < guests.end)
    }

    /// Something is loaded beside the guests, or by one of them.
    fn heed_exceptions(&self, module: &Loaded) {
        if module.module.reads_exceptions()
            && let Some(board) = &self.state().board
        {
            let word = board.word32(offset_of!(Board, own_exceptions));
            word.store(1, Ordering::Relaxed);
        }
    }

    /// Gives the program lanes. Without them it runs as it is, and has no guests.
    fn open_lanes(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<bool, Failure> {
        let opened = self.board().and_then(|board| {
            let at = board.hang(conversation, maps)?;
            conversation.lanes(at, size_of::<Board>() as u64)?;
            Ok(board)
        });
        let mut state = self.state();
        match opened {
            Ok(board) => {
                state.board = Some(board);
                Ok(true)
            }
            Err(gone @ Failure::Gone(_)) => Err(gone),
            Err(refused) => {
                state.refused = Some(refused.to_string());
                Ok(false)
            }
        }
    }

    fn board(&self) -> Result<Shared, Failure> {
        let board = Shared::zeroed("membound-lanes", size_of::<Board>())?;
        let wanted = &self.wanted;
        let word = |offset: usize, value: u32| {
            board.word32(offset).store(value, Ordering::Relaxed);
        };
        word(
            offset_of!(Board, span),
            units(wanted.span_ns).cast_unsigned(),
        );
        word(offset_of!(Board, per_thread), wanted.per_thread);
        word(offset_of!(Board, finish), u32::from(wanted.finish));
        word(offset_of!(Board, huge_pages), u32::from(wanted.huge_pages));
        word(offset_of!(Board, peers), u32::from(wanted.peers));
        word(offset_of!(Board, idle), wanted.idle as u32);
        word(offset_of!(Board, share), parts(wanted.share));
        if wanted.requests.is_some() {
            word(offset_of!(Board, phase_looks), REQUEST_LOOKS);
        }
        let long = |offset: usize, value: u64| {
            board.word64(offset).store(value, Ordering::Relaxed);
        };
        long(offset_of!(Board, memory), wanted.memory_bytes);
        let guests = wanted.guests.len().max(1) as u64;
        long(
            offset_of!(Board, memory_each),
            wanted.memory_bytes / 2 / guests,
        );
        word(
            offset_of!(Board, ticks),
            (wanted.ticks_per_ns * 1024.0).max(1.0) as u32,
        );
        Ok(board)
    }

    /// Begins turns with this much time until the command's data are there, in nanoseconds, and has
    /// scavengers skip so many after a miss of their own.
    pub(crate) fn set_turns(&self, span_ns: f64, skips: u32) {
        if let Some(board) = &self.state().board {
            let word = |offset, value| board.word32(offset).store(value, Ordering::Relaxed);
            word(offset_of!(Board, span), units(span_ns).cast_unsigned());
            word(offset_of!(Board, skips), skips);
        }
    }

    /// Makes phases with guests and without so long, in nanoseconds, if they are not already.
    pub(crate) fn lengthen_phases(&self, length_ns: f64) {
        if let Some(board) = &self.state().board {
            let looks = (length_ns / LOOK_NS).clamp(1.0, MOST_LOOKS) as u32;
            let word = board.word32(offset_of!(Board, phase_looks));
            word.fetch_max(looks, Ordering::Relaxed);
        }
    }

    /// Ticks of the time stamp counter in a nanosecond.
    pub(crate) const fn ticks_per_ns(&self) -> f64 {
        self.wanted.ticks_per_ns
    }

    /// Changes what is known of them.
    pub(crate) fn of_requests<T>(&self, change: impl FnOnce(&mut Requesting) -> T) -> T {
        change(&mut self.state().requesting)
    }

    /// Whether what stands in a module is yields of the command.
    pub(crate) fn yields_by(&self, module: &Module) -> bool {
        let is_here = |planting: &Planting| planting.is_in(module);
        let late = |late: &mut LatePlantings| late.primary.iter().any(is_here);
        self.wanted.primary.iter().any(is_here) || self.of_late(late)
    }

    /// Whether what stands in a module is a harvest's: yields, or what tells requests.
    pub(crate) fn owns(&self, module: &Module) -> bool {
        let is_mark = |choice: &Choice| module.is_chosen(&choice.file, &choice.options);
        if self.of_requests(|requesting| requesting.marks.iter().any(is_mark)) {
            return true;
        }
        let is_here = |planting: &Planting| planting.is_in(module);
        self.yields_by(module) || self.wanted.scavengers.iter().any(is_here)
    }

    /// Changes what is known of the yields that were planned while the command ran.
    pub(crate) fn of_late<T>(&self, change: impl FnOnce(&mut LatePlantings) -> T) -> T {
        change(&mut self.state().late)
    }

    /// All yields of the command, those included that were planned while it ran.
    fn primary(&self) -> Vec<Planting> {
        let late = self.of_late(|late| late.primary.clone());
        self.wanted.primary.iter().cloned().chain(late).collect()
    }

    /// Notes something that could not be had.
    pub(crate) fn miss(&self, missed: String) {
        self.state().missed.push(missed);
    }

    /// Changes what is known of the yields that are taken out.
    pub(crate) fn of_withdrawn<T>(&self, change: impl FnOnce(&mut Withdrawn) -> T) -> T {
        change(&mut self.state().withdrawn)
    }

    /// Sets where each guest runs, in the order of the guests.
    pub(crate) fn set_places(&self, places: &[GuestPlace]) {
        let state = self.state();
        for (request, &place) in state.requests.iter().zip(places) {
            if let Some(request) = request {
                let word = request.word32(offset_of!(GuestRequest, place));
                word.store(place as u32, Ordering::Relaxed);
            }
        }
    }

    /// Lets guests in for this share of the time from now on.
    pub(crate) fn let_in(&self, share: f64) {
        if let Some(board) = &self.state().board {
            let word = board.word32(offset_of!(Board, share));
            word.store(parts(share), Ordering::Relaxed);
        }
    }

    fn start_guests(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
    ) -> Result<(), Failure> {
        for guest in &self.wanted.guests {
            let started = request(guest, self.wanted.begins)
                .map_err(Failure::from)
                .and_then(|request| {
                    let at = request.memory.hang(conversation, maps)?;
                    conversation.guest(at, request.length)?;
                    Ok(request.memory)
                });
            let mut state = self.state();
            match started {
                Ok(request) => state.requests.push(Some(request)),
                Err(gone @ Failure::Gone(_)) => return Err(gone),
                Err(refused) => {
                    state.requests.push(None);
                    let path = guest.path.display();
                    state.missed.push(format!("{path}: {refused}"));
                }
            }
        }
        Ok(())
    }

    /// Waits until every guest has come to a yield, has run for long without one, or has ended, for as long
    /// as is wished.
    pub(crate) fn await_guests(&self) {
        let begun = Instant::now();
        let pid = self.process.get().map(|key| key.pid);
        let prepares = |thread: u32| {
            let scheduled = pid.and_then(|pid| Scheduled::of(pid, thread));
            scheduled.is_some_and(|it| it.cpu_ns >= PREPARES_NS)
        };
        while begun.elapsed() < self.wanted.patience && !self.wanted.peers {
            let ready = {
                let state = self.state();
                let mut requests = state.requests.iter().flatten();
                requests.all(|request| {
                    let guest = status(Some(request));
                    guest.parks > 0
                        || guest.state == Some(GuestState::Runs) && prepares(guest.thread)
                        || !matches!(guest.state, Some(GuestState::Starting | GuestState::Runs))
                })
            };
            if ready {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What came of it so far.
    pub(crate) fn harvested(&self) -> Harvested {
        let state = self.state();
        let mut harvested = Harvested {
            refused: state.refused.clone(),
            guests: (0..self.wanted.guests.len())
                .map(|index| status(state.requests.get(index).and_then(Option::as_ref)))
                .collect(),
            missed: state.missed.clone(),
            requested: self
                .wanted
                .requests
                .as_ref()
                .map(|_| state.requesting.requested()),
            withdrawn: state.withdrawn.places(),
            ..Harvested::default()
        };
        let Some(board) = &state.board else {
            return harvested;
        };
        let word = |offset: usize| board.word64(offset).load(Ordering::Relaxed);
        harvested.threads = word(offset_of!(Board, adopted));
        harvested.with = Turns {
            count: word(offset_of!(Board, turns_with)),
            cpu_ns: word(offset_of!(Board, cpu_with_ns)),
        };
        harvested.without = Turns {
            count: word(offset_of!(Board, turns_without)),
            cpu_ns: word(offset_of!(Board, cpu_without_ns)),
        };
        harvested.waits = Turns {
            count: word(offset_of!(Board, wait_turns)),
            cpu_ns: word(offset_of!(Board, waited_ns)),
        };
        harvested.steals = word(offset_of!(Board, steals));
        harvested.reclaimed = word(offset_of!(Board, reclaimed));
        harvested.calls = word(offset_of!(Board, calls));
        harvested.interrupted = word(offset_of!(Board, interrupted));
        harvested.overdue = word(offset_of!(Board, overdue));
        harvested.skipped = word(offset_of!(Board, skipped));
        harvested.timed = word(offset_of!(Board, timed));
        harvested.timed_ns = word(offset_of!(Board, timed_ns));
        harvested.longest_ns = word(offset_of!(Board, longest_ns));
        harvested.times = board.classes(offset_of!(Board, times), TIME_CLASSES, class_begin);
        harvested
    }
}

/// Credit for a time in nanoseconds.
fn units(ns: f64) -> i32 {
    let units = ns * f64::from(CREDIT_UNITS_PER_NS);
    units.clamp(0.0, f64::from(i32::MAX / 2)) as i32
}

fn parts(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * WHOLE).round() as u32
}

fn status(request: Option<&Shared>) -> GuestStatus {
    let Some(request) = request else {
        return GuestStatus {
            state: None,
            code: 0,
            thread: 0,
            cpu_ns: 0,
            calls: 0,
            parks: 0,
            away_ns: 0,
            progress: 0,
        };
    };
    let word = |offset: usize| request.word32(offset).load(Ordering::Acquire);
    let long = |offset: usize| request.word64(offset).load(Ordering::Relaxed);
    let state = word(offset_of!(GuestRequest, state));
    GuestStatus {
        state: GuestState::from_number(state),
        code: word(offset_of!(GuestRequest, code)),
        thread: word(offset_of!(GuestRequest, thread)),
        cpu_ns: long(offset_of!(GuestRequest, cpu_ns)),
        calls: long(offset_of!(GuestRequest, calls)),
        parks: long(offset_of!(GuestRequest, parks)),
        away_ns: long(offset_of!(GuestRequest, away_ns)),
        progress: long(offset_of!(GuestRequest, progress)),
    }
}

/// A request, and its bytes.
struct Request {
    memory: Shared,
    length: u64,
}

/// What the agent is to know of a guest.
fn request(guest: &Guest, begins: GuestPlace) -> io::Result<Request> {
    let path = |path: &Option<PathBuf>| {
        let bytes = path.as_deref().map(|path| path.as_os_str().as_bytes());
        bytes.unwrap_or_default().to_vec()
    };
    let mut strings = vec![
        guest.path.as_os_str().as_bytes().to_vec(),
        path(&guest.output),
        path(&guest.errors),
    ];
    let words = guest.arguments.iter().chain(&guest.environment);
    strings.extend(words.map(|word| OsStr::as_bytes(word).to_vec()));
    let mut text = Vec::new();
    for string in strings {
        if string.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        text.extend(string);
        text.push(0);
    }
    let length = size_of::<GuestRequest>() + text.len();
    let memory = Shared::zeroed("membound-guest", length)?;
    let count = |count: usize| u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput);
    let word = |offset: usize, value: u32| memory.word32(offset).store(value, Ordering::Relaxed);
    word(
        offset_of!(GuestRequest, arguments),
        count(guest.arguments.len())?,
    );
    word(
        offset_of!(GuestRequest, variables),
        count(guest.environment.len())?,
    );
    word(offset_of!(GuestRequest, strings), count(text.len())?);
    let long = |offset: usize, value: u64| memory.word64(offset).store(value, Ordering::Relaxed);
    long(offset_of!(GuestRequest, memory), guest.memory_bytes);
    long(offset_of!(GuestRequest, stack), guest.stack_bytes);
    word(offset_of!(GuestRequest, place), begins as u32);
    memory.write(size_of::<GuestRequest>() as u64, &text)?;
    Ok(Request {
        memory,
        length: length as u64,
    })
}

impl Server {
    /// Gives the program at `path` its lanes, yields and guests, if it is the one that is to have them.
    pub(crate) fn begin_harvest(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        path: &Path,
        loaded: &[&Loaded],
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if harvesting.process.set(key).is_err() {
            if harvesting.process.get() == Some(&key) {
                harvesting.say_executed(path);
            }
            return Ok(());
        }
        if !self.begin_requests(conversation, maps, loaded)? {
            // It has not begun, and would run for nothing.
            if let Some(pid) = i32::try_from(key.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            return Ok(());
        }
        if !harvesting.open_lanes(conversation, maps)? {
            return Ok(());
        }
        let primary = harvesting.primary();
        for module in loaded {
            self.plant(conversation, maps, module, &primary)?;
        }
        harvesting.start_guests(conversation, maps)?;
        Ok(())
    }

    /// Puts the primary's yields, and what tells its requests, into a module that was loaded later.
    pub(crate) fn plant_primary(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
        module: &Loaded,
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if harvesting.process.get() == Some(&key) {
            self.mark_requests(conversation, maps, module)?;
        }
        if harvesting.is_in(key) {
            self.plant(conversation, maps, module, &harvesting.primary())?;
            self.hold_out_at_first(conversation, harvesting, key, module)?;
        }
        Ok(())
    }

    /// How requests are told, where they are.
    pub(crate) fn requesting(&self) -> Option<(&Harvesting, &RequestsBy)> {
        let harvesting = self.harvesting.as_ref()?;
        Some((harvesting, harvesting.wanted.requests.as_ref()?))
    }

    /// A guest has mapped text.
    pub(crate) fn guest_maps(
        &self,
        conversation: &Conversation,
        key: ProcessKey,
    ) -> Result<(), NotInstalled> {
        let Some(harvesting) = &self.harvesting else {
            return Ok(());
        };
        if !harvesting.is_in(key) {
            return Ok(());
        }
        let [start, end] = conversation.hello.range;
        let span = start..end;
        harvesting.state().spans.push(span.clone());
        let mut maps = maps::of(key.pid)?;
        for module in self.loaded(conversation, &maps) {
            let of_module = module.span();
            if of_module.start < span.end && span.start < of_module.end {
                let scavengers = &harvesting.wanted.scavengers;
                self.plant(conversation, &mut maps, &module, scavengers)?;
            }
        }
        Ok(())
    }

    /// Puts yields into a module that does not run yet.
    fn plant(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        module: &Loaded,
        plantings: &[Planting],
    ) -> Result<(), NotInstalled> {
        if let Some(harvesting) = &self.harvesting {
            harvesting.heed_exceptions(module);
        }
        for planting in plantings.iter().filter(|it| it.is_of(module)) {
            let mut lost = None;
            for choice in planting.choices() {
                lost = self.plant_choice(conversation, maps, module, choice)?;
                match &lost {
                    Some(Lost::All(_)) => {}
                    _ => break,
                }
            }
            if let (Some(lost), Some(harvesting)) = (lost, &self.harvesting) {
                let path = module.module.path.display();
                let (Lost::All(what) | Lost::Some(what)) = lost;
                let missed = format!("yields in {path}: {what}");
                harvesting.state().missed.push(missed);
            }
        }
        Ok(())
    }

    /// Without one of the yields that give a guest its own thread pointer back, which stand there
    /// for the sake of others, there are none.
    fn plant_choice(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        module: &Loaded,
        choice: &Choice,
    ) -> Result<Option<Lost>, NotInstalled> {
        let chosen = self.chosen(std::slice::from_ref(choice), module);
        let Some(chosen) = chosen.first() else {
            return Ok(None);
        };
        let outcome = self.patch(
            conversation,
            maps,
            chosen,
            TextMode::Quiet,
            Refused::GivenUp,
        )?;
        let area = match outcome {
            Outcome::LeftAlone(reason) => return Ok(Some(Lost::All(reason))),
            Outcome::Patched(area) => area,
        };
        let Ok(plan) = &chosen.module.plan else {
            return Ok(None);
        };
        let lost = lost(plan, &area);
        if lost.iter().any(|address| gives_back(choice, *address)) {
            self.take_back(conversation, &area)?;
            let what = "one that others need has no place".to_owned();
            return Ok(Some(Lost::All(what)));
        }
        Ok((!lost.is_empty()).then(|| Lost::Some(no_place(&lost))))
    }
}

/// Yields that could not be had, in words.
enum Lost {
    All(String),
    Some(String),
}

/// Addresses in the file of the sites of a plan that the text of an area does not lead to.
pub(crate) fn lost(plan: &Plan, area: &Area) -> Vec<u64> {
    plan.sites()
        .filter(|site| site.number.is_ok() && !area.holds(std::iter::once(site.address)))
        .map(|site| site.address)
        .collect()
}

/// That there is no place for yields at these addresses, in words.
pub(crate) fn no_place(lost: &[u64]) -> String {
    let at: Vec<String> = lost.iter().map(|at| format!("{at:#x}")).collect();
    format!("no place for {}", at.join(", "))
}

/// Whether what stands at an address gives a guest its own thread pointer back.
fn gives_back(choice: &Choice, address: u64) -> bool {
    let bodies = &choice.options.bodies;
    let body = bodies
        .binary_search_by_key(&address, |(at, _)| *at)
        .map_or(choice.options.body, |at| bodies[at].1);
    body == Body::Yield(Yield::Base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Guest {
        Guest {
            path: "/bin/scan".into(),
            arguments: vec!["scan".into(), "-n".into()],
            environment: vec!["A=b".into()],
            output: Some("/tmp/out".into()),
            errors: None,
            memory_bytes: 1 << 30,
            stack_bytes: 1 << 20,
        }
    }

    #[test]
    fn a_request_has_its_strings_behind_it() {
        let request = request(&guest(), GuestPlace::Lanes).unwrap();
        let expected = b"/bin/scan\0/tmp/out\0\0scan\0-n\0A=b\0";
        let mut text = vec![0; expected.len()];
        let begin = size_of::<GuestRequest>() as u64;
        request.memory.read(begin, &mut text).unwrap();
        assert_eq!(text, expected);
        assert_eq!(request.length, begin + expected.len() as u64);
        let status = status(Some(&request.memory));
        assert_eq!(status.state, Some(GuestState::Starting));
        let word = offset_of!(GuestRequest, arguments);
        assert_eq!(request.memory.word32(word).load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_word_with_a_zero_byte_is_no_argument() {
        let mut guest = guest();
        guest.arguments.push("a\0b".into());
        assert!(request(&guest, GuestPlace::Lanes).is_err());
    }

    #[test]
    fn shares_are_counted_in_parts() {
        assert_eq!([0.0, 0.5, 1.0, 7.0].map(parts), [0, 512, 1024, 1024]);
    }
}
