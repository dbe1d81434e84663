//! Collects what programs record while they run: drains rings every few milliseconds, and switches bursts
//! on and off.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::stat;
use membound_wire::Record;
use rustc_hash::FxHashSet;

use crate::conversation::Conversation;
use crate::maps::{self, Mapping};
use crate::modules::ModulePlan;
use crate::process_key::ProcessKey;
use crate::rings::{Drained, Origin, Rings};
use crate::samples::{Access, Receiver, Recorded, Samples, Source};

/// Longest poll interval of empty rings, as a multiple of the shortest.
const MAX_POLLS: u32 = 8;
/// Interval between two searches for threads that have ended.
const FREE_EVERY: Duration = Duration::from_millis(100);
/// Interval between two searches for programs that have ended.
const CLOSE_EVERY: Duration = Duration::from_secs(1);

/// How recorded accesses are collected.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Threads of a program that can record at the same time; records of further threads are lost and
    /// counted. Each takes up to 512 KiB, as far as that is used.
    pub threads: u32,
    /// Poll interval of the rings, which hold 16382 accesses for each thread, while they have records.
    /// While they have none it doubles, up to eight times as much.
    pub poll: Duration,
    /// When recording bodies record; `None`: never.
    pub bursts: Option<Bursts>,
    /// Receives every access, in addition to the sums that are always kept.
    pub receiver: Option<Arc<dyn Receiver>>,
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            threads: 128,
            poll: Duration::from_millis(2),
            bursts: None,
            receiver: None,
        }
    }
}

/// Schedule of bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Length of a burst.
    pub length: Duration,
    /// Time from the start of one burst to the start of the next.
    pub every: Duration,
    /// Approximate limit of the accesses of one module in one burst; `u32::MAX`: no limit.
    pub accesses: u32,
}

impl Default for Bursts {
    fn default() -> Self {
        Self {
            length: Duration::from_millis(10),
            every: Duration::from_millis(100),
            accesses: u32::MAX,
        }
    }
}

/// Totals of a session's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordTotals {
    /// Accesses that were collected.
    pub recorded: u64,
    /// Accesses that were to be recorded and found no room.
    pub lost: u64,
    /// Part of these that belongs to bursts, which record until their rings are full.
    pub lost_in_bursts: u64,
    /// Collected accesses by code that is not known any more.
    pub unattributed: u64,
}

/// Sums of a module's accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfModule {
    pub(crate) recorded: Recorded,
}

/// All records.
#[derive(Debug)]
pub(crate) struct Records {
    options: Recording,
    state: Mutex<State>,
    burst: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    images: Vec<Image>,
    /// Number of images so far.
    begun: usize,
    modules: Vec<(Arc<ModulePlan>, Recorded)>,
    sources: Vec<Source>,
    lines: usize,
    totals: RecordTotals,
    /// Collected for the receiver.
    batch: Vec<Access>,
}

/// One process image, and the children that it has forked.
#[derive(Debug)]
struct Image {
    number: usize,
    key: ProcessKey,
    /// True if its process runs another program by now.
    left: bool,
    /// True if its process has ended or left it, and nothing was written since the last full poll: only
    /// children that it has forked may still write. It is polled only every [`FREE_EVERY`], since there may
    /// be hundreds.
    quiet: bool,
    rings: Rings,
    /// Indices of [`State::modules`], by the module's number minus one.
    modules: Vec<usize>,
}

impl Image {
    /// True if its process has ended, or runs another program.
    fn is_over(&self) -> bool {
        self.left || stat::started(self.key.pid).ok() != Some(self.key.started)
    }
}

impl Records {
    pub(crate) fn new(options: Recording) -> Self {
        Self {
            options,
            state: Mutex::default(),
            burst: AtomicU32::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the program of this conversation rings to record into.
    pub(crate) fn begin(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), crate::conversation::Failure> {
        let rings = Rings::make(conversation, self.options.threads)?;
        rings.hang(conversation, maps)?;
        let mut state = self.state();
        let number = state.begun;
        for image in state.images.iter_mut().filter(|image| image.key == key) {
            image.left = true;
        }
        state.begun += 1;
        state.images.push(Image {
            number,
            key,
            left: false,
            quiet: false,
            rings,
            modules: Vec::new(),
        });
        Ok(())
    }

    /// Number of `module` for the records of a process; 0 (no module) if the process has no rings, or if
    /// all numbers are used.
    pub(crate) fn number(&self, maps: &[Mapping], module: &Arc<ModulePlan>) -> u32 {
        let mut state = self.state();
        let State {
            images,
            modules,
            sources,
            ..
        } = &mut *state;
        let known = modules.iter().position(|(it, _)| Arc::ptr_eq(it, module));
        let index = known.unwrap_or_else(|| {
            modules.push((Arc::clone(module), Recorded::default()));
            sources.push(Source {
                path: module.path.clone(),
            });
            modules.len() - 1
        });
        let of_process = |image: &&mut Image| {
            maps.iter()
                .any(|map| map.inode == image.rings.memory.inode && map.shared && map.deleted())
        };
        // Mostly the image that began last.
        let Some(image) = images.iter_mut().rev().find(of_process) else {
            return 0;
        };
        if image.modules.len() >= usize::from(u16::MAX) {
            return 0;
        }
        image.modules.push(index);
        u32::try_from(image.modules.len()).unwrap_or(0)
    }

    /// The present value for [`membound_wire::Slots::burst`].
    pub(crate) fn burst(&self) -> u32 {
        self.burst.load(Ordering::Relaxed)
    }

    /// Collects until `stopped` returns true; `switch` starts or ends a burst in all programs.
    pub(crate) fn run(&self, stopped: impl Fn(Duration) -> bool, switch: impl Fn(u32)) {
        let mut freed = Instant::now();
        let mut closed = freed;
        let mut edge: Option<Instant> = None;
        let mut poll = self.options.poll;
        loop {
            let stop = stopped(poll);
            let now = Instant::now();
            if let Some(bursts) = self.options.bursts {
                self.poll(bursts, now, stop, &mut edge, &switch);
            }
            let mut state = self.state();
            let before = state.totals;
            if stop {
                state.drain_last();
            } else {
                state.drain();
            }
            // A wake-up takes some 15 µs of a processor, perhaps of the program's only one.
            poll = if state.totals == before {
                (poll * 2).min(self.options.poll * MAX_POLLS)
            } else {
                self.options.poll
            };
            if now - freed >= FREE_EVERY {
                freed = now;
                state.free();
            }
            if now - closed >= CLOSE_EVERY {
                closed = now;
                state.close();
            }
            state.pass_on(self.options.receiver.as_deref());
            if stop {
                return;
            }
        }
    }

    /// Switches bursts; the first one starts with the first program.
    fn poll(
        &self,
        bursts: Bursts,
        now: Instant,
        stop: bool,
        edge: &mut Option<Instant>,
        switch: &impl Fn(u32),
    ) {
        let on = self.burst() != 0;
        let due = match edge {
            Some(edge) => now >= *edge,
            None => !self.state().images.is_empty(),
        };
        let next = match (on, stop, due) {
            (true, true, _) | (true, _, true) => 0,
            (false, false, true) => bursts.accesses.max(1),
            _ => return,
        };
        *edge = Some(
            now + if on {
                bursts.every.saturating_sub(bursts.length)
            } else {
                bursts.length
            },
        );
        self.burst.store(next, Ordering::Relaxed);
        switch(next);
    }

    pub(crate) fn totals(&self) -> RecordTotals {
        self.state().totals
    }

    /// Sums of a module's accesses; `None` if it never got a number.
    pub(crate) fn of(&self, module: &Arc<ModulePlan>) -> Option<OfModule> {
        let state = self.state();
        let found = state.modules.iter().find(|(it, _)| Arc::ptr_eq(it, module));
        found.map(|(_, recorded)| OfModule {
            recorded: recorded.clone(),
        })
    }
}

impl OfModule {
    /// Sums of the accesses by the site with this number.
    pub(crate) fn site(&self, number: u32) -> Samples {
        self.recorded
            .sites
            .get(&number)
            .cloned()
            .unwrap_or_default()
    }
}

impl State {
    fn drain(&mut self) {
        self.each_image(|image| !image.quiet, |rings, each| rings.drain(each));
    }

    fn free(&mut self) {
        for image in &mut self.images {
            image.quiet = image.is_over();
        }
        self.each_image(|image| image.quiet, |rings, each| rings.drain(each));
        self.each_image(|_| true, |rings, each| rings.free(each));
    }

    /// Drains the rings of all images, including those that threads have just begun to use.
    fn drain_last(&mut self) {
        self.each_image(
            |_| true,
            |rings, each| {
                rings.find_all();
                rings.drain(each)
            },
        );
    }

    fn each_image(
        &mut self,
        wanted: impl Fn(&Image) -> bool,
        take: impl Fn(&mut Rings, &mut dyn FnMut(Origin, &Record)) -> Drained,
    ) {
        let mut images = std::mem::take(&mut self.images);
        for image in images.iter_mut().filter(|image| wanted(image)) {
            let (number, modules) = (image.number, &image.modules);
            let drained = take(&mut image.rings, &mut |origin, record| {
                self.add(number, modules, origin, record);
            });
            image.quiet &= drained.taken == 0;
            self.totals.recorded += drained.taken;
            self.totals.lost += drained.lost;
            self.totals.lost_in_bursts += drained.lost_in_bursts;
        }
        self.images = images;
    }

    fn add(&mut self, image: usize, numbers: &[usize], origin: Origin, record: &Record) {
        const STORE: u16 = 1;
        const TIMED: u16 = 2;
        const AFTER_GAP: u16 = 4;
        const BURST: u16 = 8;
        let number = usize::from(record.module).checked_sub(1);
        let index = number.and_then(|number| numbers.get(number).copied());
        let found = index.and_then(|index| {
            let (module, recorded) = self.modules.get_mut(index)?;
            Some((index, module.site(record.site)?, recorded))
        });
        let Some((index, site, recorded)) = found else {
            self.totals.unattributed += 1;
            return;
        };
        let access = Access {
            pid: origin.process,
            thread: origin.thread,
            module: index,
            site,
            address: record.address,
            ticks: (record.flags & TIMED != 0).then_some(record.ticks),
            hit: (record.flags & TIMED != 0).then_some(u32::from(record.hit)),
            drain: (record.flags & BURST == 0).then_some(u32::from(record.drain)),
            tsc: record.tsc,
            store: record.flags & STORE != 0,
            after_gap: record.flags & AFTER_GAP != 0,
            burst: record.flags & BURST != 0,
        };
        recorded.add(image, record.site, &access, &mut self.lines);
        self.batch.push(access);
    }

    fn pass_on(&mut self, receiver: Option<&dyn Receiver>) {
        if let (Some(receiver), false) = (receiver, self.batch.is_empty()) {
            receiver.receive(&self.sources, &self.batch);
        }
        self.batch.clear();
    }

    /// Frees the rings of programs that have ended, once all children that share them have ended too.
    fn close(&mut self) {
        if !self.images.iter().any(Image::is_over) {
            return;
        }
        let used: FxHashSet<u64> = maps::used_inodes();
        // Records written between the last poll and the end are drained first.
        self.drain_last();
        self.images
            .retain(|image| !image.is_over() || used.contains(&image.rings.memory.inode));
    }
}
