//! Collects what programs tell of their allocations: rings are drained every few
//! milliseconds, and small blocks followed in part while there are too many.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::stat;
use membound_wire::{ALLOCATION_LEVELS, AllocationKind};

use crate::allocation_memory::{CHAIN_NUMBERS, Drained, Memory, Told};
use crate::allocations::{
    AllocationAction, AllocationEvent, AllocationFunction, AllocationReceiver, Kept, Objects,
};
use crate::allocators::function_of;
use crate::conversation::{Conversation, Failure};
use crate::ledger::ProcessKey;
use crate::maps::Mapping;

/// Between two looks into the rings: while nothing happens, while something does, and while so
/// much does that the rings would not hold it.
const POLL: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(1),
    Duration::from_micros(100),
];
/// Events between two looks that are much.
const MUCH: u64 = 1000;
/// Between two looks for threads that are gone.
const FREE_EVERY: Duration = Duration::from_millis(100);
/// Between two looks for programs that are gone.
const CLOSE_EVERY: Duration = Duration::from_secs(1);
/// Between two decisions how many small blocks are followed.
const WINDOW: Duration = Duration::from_millis(100);
/// Events of a program in a second above which, for long, fewer are followed, and below which
/// more.
const MOST: f64 = 1e6;
const FEW: f64 = 2e5;
/// Events beyond [`MOST`] that are followed all the same: programs that fill their tables when
/// they begin have done so before it matters.
const BURST: f64 = 2e6;
/// Windows with few events before more are followed.
const CALM: u32 = 10;

/// Everything that is followed.
#[derive(Debug)]
pub(crate) struct Following {
    objects: Objects,
    images: Mutex<Vec<Image>>,
    /// How many images each process has had.
    begun: Mutex<HashMap<u32, u32>>,
}

/// One process image, and the children that it forked.
#[derive(Debug)]
struct Image {
    key: ProcessKey,
    /// Its process runs another program by now.
    left: bool,
    memory: Memory,
    /// What is added to numbers of chains, which begin anew in every image.
    base: u32,
    /// When it began, as long as the receiver does not know.
    begun: Option<Instant>,
    processes: Vec<Process>,
    level: u32,
    /// Since when events are counted, and how many there were.
    window: Instant,
    events: u64,
    lost: u64,
    /// Events that may still come before fewer are followed.
    allowance: f64,
    calm: u32,
}

/// What is kept of a process.
#[derive(Debug)]
struct Process {
    number: u32,
    /// Chains that the receiver knows, and the last one met.
    announced: HashSet<u32>,
    last_chain: Option<u32>,
    /// For the receiver.
    new_chains: Vec<u32>,
    batch: Vec<AllocationEvent>,
}

impl Following {
    pub(crate) fn new(objects: Objects) -> Self {
        Self {
            objects,
            images: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    fn images(&self) -> MutexGuard<'_, Vec<Image>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the program that speaks memory to tell of its allocations in.
    pub(crate) fn begin(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), Failure> {
        let memory = Memory::make(conversation, self.objects.every_from_bytes)?;
        memory.hang(conversation, maps)?;
        let mut images = self.images();
        for image in images.iter_mut().filter(|image| image.key == key) {
            image.left = true;
        }
        let base = {
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = begun.entry(key.pid).or_default();
            *begun += 1;
            (*begun - 1).wrapping_mul(CHAIN_NUMBERS)
        };
        images.push(Image {
            key,
            left: false,
            memory,
            base,
            begun: Some(Instant::now()),
            processes: Vec::new(),
            level: 0,
            window: Instant::now(),
            events: 0,
            lost: 0,
            allowance: BURST,
            calm: 0,
        });
        Ok(())
    }

    /// Collects until `stopped` says so.
    pub(crate) fn run(&self, stopped: impl Fn(Duration) -> bool) {
        let mut freed = Instant::now();
        let mut closed = freed;
        let mut poll = POLL[0];
        loop {
            let stop = stopped(poll);
            let now = Instant::now();
            let mut images = self.images();
            let free = now - freed >= FREE_EVERY;
            let mut found = 0;
            for image in images.iter_mut() {
                if stop {
                    image.memory.finish();
                }
                found += image.drain(&self.objects);
                if free {
                    image.free(&self.objects);
                }
                image.decide(now, &self.objects);
            }
            poll = match found {
                0 => POLL[0],
                1..=MUCH => POLL[1],
                _ => POLL[2],
            };
            if free {
                freed = now;
            }
            if now - closed >= CLOSE_EVERY {
                closed = now;
                close(&mut images, &self.objects);
            }
            if stop {
                return;
            }
        }
    }
}

impl Image {
    /// Takes what was told; how much it was.
    fn drain(&mut self, objects: &Objects) -> u64 {
        self.take(objects, |memory, each| memory.drain(each))
    }

    fn free(&mut self, objects: &Objects) {
        self.take(objects, |memory, each| memory.free(each));
    }

    fn take(
        &mut self,
        objects: &Objects,
        take: impl FnOnce(&mut Memory, &mut dyn FnMut(&Told)) -> Drained,
    ) -> u64 {
        let Self {
            memory,
            base,
            level,
            processes,
            ..
        } = self;
        let kept = Kept { level: *level };
        let mut current = 0;
        let drained = take(memory, &mut |told| {
            let Some(mut event) = event(told) else {
                return;
            };
            let allocated = event.action == AllocationAction::Allocated;
            // A thread that had not seen the level yet: nobody will tell when it is freed.
            let late = u32::from(told.what.level) < kept.level
                && allocated
                && event.function != AllocationFunction::Mmap
                && event.size < objects.every_from_bytes
                && !kept.contains(event.address);
            if late {
                return;
            }
            // A ring is one thread's: the next event is nearly always of the same process.
            if processes.get(current).map(|it| it.number) != Some(told.process) {
                current = index_of(processes, told.process);
            }
            let process = &mut processes[current];
            if allocated && process.last_chain != Some(event.chain) {
                process.last_chain = Some(event.chain);
                if process.announced.insert(event.chain) {
                    process.new_chains.push(event.chain);
                }
            }
            event.chain = event.chain.wrapping_add(*base);
            process.batch.push(event);
        });
        self.events += drained.taken;
        self.lost += drained.lost;
        self.pass_on(&*objects.receiver, drained.lost);
        drained.taken + drained.lost
    }

    /// Tells the receiver.
    fn pass_on(&mut self, receiver: &dyn AllocationReceiver, lost: u64) {
        if let Some(since) = self.begun.take() {
            receiver.begun(self.key.pid, since);
        }
        for process in &mut self.processes {
            for chain in process.new_chains.drain(..) {
                let number = chain.wrapping_add(self.base);
                receiver.chain(process.number, number, &self.memory.chain(chain));
            }
            if !process.batch.is_empty() {
                receiver.receive(process.number, &process.batch);
                process.batch.clear();
            }
        }
        if lost > 0 {
            receiver.lost(self.key.pid, lost);
        }
    }

    /// Follows fewer or more of the small blocks.
    fn decide(&mut self, now: Instant, objects: &Objects) {
        let passed = now - self.window;
        if passed < WINDOW {
            return;
        }
        let events = (self.events + self.lost) as f64;
        let rate = events / passed.as_secs_f64();
        let allowance = self.allowance + MOST * passed.as_secs_f64() - events;
        self.allowance = allowance.clamp(0.0, BURST);
        let crowded = allowance < 0.0 || self.lost > 0;
        self.window = now;
        self.events = 0;
        self.lost = 0;
        if crowded && self.level < ALLOCATION_LEVELS {
            self.calm = 0;
            self.level += 1;
            self.memory.set_level(self.level);
            // What was told before the level was raised is to come before this.
            self.drain(objects);
            let kept = Kept { level: self.level };
            for process in &self.processes {
                objects.receiver.narrowed(process.number, kept);
            }
        } else if rate < FEW && self.level > 0 {
            self.calm += 1;
            if self.calm >= CALM {
                self.calm = 0;
                self.level -= 1;
                self.memory.set_level(self.level);
            }
        } else {
            self.calm = 0;
        }
    }
}

/// Where a process stands, which is put there if it is new.
fn index_of(processes: &mut Vec<Process>, number: u32) -> usize {
    let known = processes.iter().position(|it| it.number == number);
    known.unwrap_or_else(|| {
        processes.push(Process {
            number,
            announced: HashSet::new(),
            last_chain: None,
            new_chains: Vec::new(),
            batch: Vec::new(),
        });
        processes.len() - 1
    })
}

/// An event as the receiver gets it; `None` of a record that makes no sense.
fn event(told: &Told) -> Option<AllocationEvent> {
    let action = if told.what.kind == AllocationKind::Allocated as u8 {
        AllocationAction::Allocated
    } else if told.what.kind == AllocationKind::Freed as u8 {
        AllocationAction::Freed
    } else {
        return None;
    };
    Some(AllocationEvent {
        tsc: told.record.tsc,
        thread: told.thread,
        action,
        function: function_of(told.what.function)?,
        address: told.record.address,
        size: told.record.size,
        chain: told.record.chain,
        weight: (1_u32 << told.what.level) as f32,
    })
}

/// Lets go of the memory of programs that have ended, with all the children that shared it.
fn close(images: &mut Vec<Image>, objects: &Objects) {
    let over =
        |image: &Image| image.left || stat::started(image.key.pid).ok() != Some(image.key.started);
    if !images.iter().any(over) {
        return;
    }
    let used = crate::server::used_inodes();
    images.retain_mut(|image| {
        let keep = !over(image) || used.contains(&image.memory.memory.inode);
        if !keep {
            image.memory.finish();
            image.drain(objects);
        }
        keep
    });
}
