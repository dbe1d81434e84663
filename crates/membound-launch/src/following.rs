//! Collects the allocations that programs report: drains rings every few milliseconds, and samples small
//! blocks while reporting all of them costs too much.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use membound_platform::{cpu_time, stat};
use membound_wire::{AllocationKind, allocation_interval};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::allocation_memory::{CHAIN_NUMBERS, Drained, Memory, ThreadRecord};
use crate::allocations::{AllocationAction, AllocationEvent, AllocationReceiver, Objects};
use crate::allocators::function_of;
use crate::conversation::{Conversation, Failure};
use crate::maps::{self, Mapping};
use crate::pace::{self, Account, Pace, Processors, Window};
use crate::process_key::ProcessKey;

/// Shortest poll interval of the rings unless polls find more than [`FLOOD_EVENTS`].
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Events that the next poll is to find. Each poll wakes a thread, for which a program may have to leave its
/// processor.
const EVENTS_OF_A_POLL: f64 = 500.0;
/// Poll interval while each poll finds more than [`FLOOD_EVENTS`]: otherwise agents would sample blocks to keep
/// rings from overflowing.
const FLOOD_POLL_INTERVAL: Duration = Duration::from_micros(300);
/// Poll interval after the first poll that found nothing. It doubles with each further one, up to
/// [`MAX_POLL_INTERVAL`].
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longest poll interval. A thread that begins to allocate at full speed fills a ring, up to the mark from
/// which the agent samples, in about this time.
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(8);
/// Events at one poll above which the next poll comes early.
const FLOOD_EVENTS: u64 = 1000;
/// Interval between two searches for threads that have ended.
const FREE_EVERY: Duration = Duration::from_millis(100);
/// Interval between two searches for programs that have ended.
const CLOSE_EVERY: Duration = Duration::from_secs(1);
/// Interval between two decisions about the sampling interval.
const WINDOW: Duration = Duration::from_millis(100);
/// The same in a flood of events, which may take half of the program's time until then.
const MIN_WINDOW: Duration = Duration::from_millis(5);
/// CPU time in nanoseconds that an event is assumed to cost the program until one was timed.
const EVENT_NS: f64 = 300.0;
/// Timed allocations that suffice to estimate the cost of an event.
const TIMED: u64 = 100;

/// The followed allocations of all programs.
#[derive(Debug)]
pub(crate) struct Following {
    objects: Objects,
    processors: Processors,
    images: Mutex<Vec<Image>>,
    account: Mutex<Account>,
    /// Number of images that each process has had.
    begun: Mutex<FxHashMap<u32, u32>>,
}

/// One process image, and the children that it has forked.
#[derive(Debug)]
struct Image {
    key: ProcessKey,
    /// True if its process runs another program by now.
    left: bool,
    /// True if its process has ended or left it, and nothing was reported since the last full poll: only
    /// children that it has forked may still report. It is polled only every [`FREE_EVERY`], since there
    /// may be hundreds.
    quiet: bool,
    memory: Memory,
    /// Offset added to numbers of chains, which start again in every image.
    base: u32,
    /// Start of the image, until the receiver has it.
    begun: Option<Instant>,
    processes: Vec<Process>,
    pace: Pace,
    /// Mean bytes between sampling points, as last reported to the receiver.
    known_interval: u64,
    /// Start of the window.
    since: Instant,
    /// Events since then.
    window: Window,
    /// CPU time of all processes that have reported events, at the start of the window.
    cpu_ns: u64,
    /// Events lost in the window.
    lost: u64,
    /// Events that the last poll found.
    found: u64,
    /// Time stamp counter and clock at the start of the image.
    clock: (u64, Instant),
}

/// State of a process.
#[derive(Debug)]
struct Process {
    number: u32,
    /// Chains that were reported to the receiver.
    announced: FxHashSet<u32>,
    /// The last chain of an event.
    last_chain: Option<u32>,
    /// Chains and events that are collected for the receiver.
    new_chains: Vec<u32>,
    batch: Vec<AllocationEvent>,
}

impl Following {
    pub(crate) fn new(objects: Objects) -> Self {
        Self {
            account: Mutex::new(Account::new(objects.max_overhead)),
            objects,
            processors: Processors::here(),
            images: Mutex::default(),
            begun: Mutex::default(),
        }
    }

    fn images(&self) -> MutexGuard<'_, Vec<Image>> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the program of this conversation memory in which it reports allocations.
    pub(crate) fn begin(
        &self,
        conversation: &Conversation,
        maps: &mut Vec<Mapping>,
        key: ProcessKey,
    ) -> Result<(), Failure> {
        let memory = Memory::make(conversation, self.objects.every_from_bytes)?;
        let pace = Pace::begin(&self.account());
        memory.set_level(pace.level());
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
            quiet: false,
            memory,
            base,
            begun: Some(Instant::now()),
            processes: Vec::new(),
            pace,
            known_interval: 0,
            since: Instant::now(),
            window: Window::default(),
            cpu_ns: 0,
            lost: 0,
            found: 0,
            clock: (time_stamp(), Instant::now()),
        });
        Ok(())
    }

    /// Collects until `stopped` returns true.
    pub(crate) fn run(&self, stopped: impl Fn(Duration) -> bool) {
        let mut freed = Instant::now();
        let mut closed = freed;
        let mut poll = IDLE_POLL_INTERVAL;
        let mut receiver_ns = 0;
        let mut poll_cost = PollCost::default();
        loop {
            let stop = stopped(poll);
            let now = Instant::now();
            let mut images = self.images();
            let free = now - freed >= FREE_EVERY;
            let mut found = 0;
            let begun_ns = cpu_time::of_this_thread();
            let busy = |image: &&mut Image| free || stop || !image.quiet;
            for image in images.iter_mut().filter(busy) {
                if stop {
                    image.memory.finish();
                }
                let events = image.drain(&self.objects);
                found += events;
                image.found = events;
                if free {
                    image.free(&self.objects);
                    image.quiet = events == 0 && image.is_over();
                }
                image.decide(now, &self.objects, self.processors, &mut self.account());
            }
            let spent_ns = self.objects.receiver.spent_ns();
            let receiving_ns = spent_ns - std::mem::replace(&mut receiver_ns, spent_ns);
            let own_ns = cpu_time::of_this_thread().saturating_sub(begun_ns);
            let cost = poll_cost.cost(own_ns as f64, found);
            let followed = images.iter().filter(|image| !image.quiet).count().max(1) as f64;
            for image in images.iter_mut().filter(|image| !image.quiet) {
                // The receiver's time was spent on earlier events of unknown programs, so it is divided
                // like the events of this poll.
                let part = match found {
                    0 => 1.0 / followed,
                    found => image.found as f64 / found as f64,
                };
                image.window.reading_ns += part * (cost.reading_ns + receiving_ns as f64);
                image.window.polling_ns += cost.polling_ns / followed;
            }
            poll = next_poll(poll, found);
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

/// Cost of a poll of the rings, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SplitCost {
    /// The part that grows with the number of events.
    reading_ns: f64,
    /// The part that a poll costs by itself.
    polling_ns: f64,
}

/// Separates what polls cost by themselves from what their events cost.
#[derive(Clone, Copy, Debug, Default)]
struct PollCost {
    /// Mean cost of a poll that finds nothing.
    empty_ns: f64,
}

impl PollCost {
    /// Events above which the cost of a poll depends on their number. With fewer, most of it is the wake-up
    /// and the call of the receiver.
    const MANY_EVENTS: u64 = 100;
    /// Weight of a new value in the average.
    const NEW_PART: f64 = 0.1;

    fn cost(&mut self, own_ns: f64, events: u64) -> SplitCost {
        if events == 0 {
            self.empty_ns += Self::NEW_PART * (own_ns - self.empty_ns);
        }
        let polling_ns = match events < Self::MANY_EVENTS {
            true => own_ns,
            false => own_ns.min(self.empty_ns),
        };
        SplitCost {
            reading_ns: own_ns - polling_ns,
            polling_ns,
        }
    }
}

/// Poll interval after a poll that came `interval` after the one before and found this many `events`.
fn next_poll(interval: Duration, events: u64) -> Duration {
    match events {
        0 => (2 * interval).clamp(IDLE_POLL_INTERVAL, MAX_POLL_INTERVAL),
        1..=FLOOD_EVENTS => interval
            .mul_f64(EVENTS_OF_A_POLL / events as f64)
            .clamp(BUSY_POLL_INTERVAL, MAX_POLL_INTERVAL),
        _ => FLOOD_POLL_INTERVAL,
    }
}

impl Image {
    /// True if its process has ended, or runs another program.
    fn is_over(&self) -> bool {
        self.left || stat::started(self.key.pid).ok() != Some(self.key.started)
    }

    /// Passes on all reported events; returns their number.
    fn drain(&mut self, objects: &Objects) -> u64 {
        self.take(objects, |memory, each| memory.drain(each))
    }

    fn free(&mut self, objects: &Objects) {
        self.take(objects, |memory, each| memory.free(each));
    }

    fn take(
        &mut self,
        objects: &Objects,
        take: impl FnOnce(&mut Memory, &mut dyn FnMut(&ThreadRecord)) -> Drained,
    ) -> u64 {
        let Self {
            memory,
            base,
            window,
            processes,
            ..
        } = self;
        let mut current = 0;
        let mut interval = 0;
        let drained = take(memory, &mut |record| {
            let Some(mut event) = event(record) else {
                return;
            };
            // A ring belongs to one thread, so the next event is nearly always of the same process.
            if processes.get(current).map(|it| it.number) != Some(record.process) {
                current = index_of(processes, record.process);
            }
            let process = &mut processes[current];
            if event.action == AllocationAction::Allocated {
                interval = interval.max(allocation_interval(u32::from(record.what.level)));
                window.add(event.size, f64::from(event.weight));
                if process.last_chain != Some(event.chain) {
                    process.last_chain = Some(event.chain);
                    if process.announced.insert(event.chain) {
                        process.new_chains.push(event.chain);
                    }
                }
            }
            event.chain = event.chain.wrapping_add(*base);
            process.batch.push(event);
        });
        self.window.events += (drained.taken + drained.lost) as f64;
        self.lost += drained.lost;
        // Also if the agent has sampled by itself to keep a ring from overflowing.
        self.sampled(objects, interval);
        self.pass_on(&*objects.receiver, drained.lost);
        drained.taken + drained.lost
    }

    /// Tells the receiver the sampling interval, if it is longer than the known one.
    fn sampled(&mut self, objects: &Objects, interval: u64) {
        if interval <= self.known_interval {
            return;
        }
        self.known_interval = interval;
        for process in &self.processes {
            objects.receiver.sampled(process.number, interval);
        }
    }

    /// Passes the collected chains and events on to the receiver.
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

    /// Sets the sampling interval of small blocks.
    fn decide(
        &mut self,
        now: Instant,
        objects: &Objects,
        processors: Processors,
        account: &mut Account,
    ) {
        let passed = now - self.since;
        let event_ns = self.event_ns(now);
        let is_flood = passed >= MIN_WINDOW && self.window.is_flood(event_ns);
        if passed < WINDOW && !is_flood && !self.quiet {
            return;
        }
        let cpu_ns: u64 = self
            .processes
            .iter()
            .filter_map(|process| cpu_time::of_process(process.number))
            .sum();
        // Processes that have ended since are missing.
        let took_ns = cpu_ns.saturating_sub(self.cpu_ns) as f64;
        let mut window = std::mem::take(&mut self.window);
        let busy = took_ns / passed.as_nanos() as f64;
        window.beside = processors.lost_beside(busy);
        window.cpu_ns = took_ns.max(0.0);
        window.event_ns = event_ns;
        if self.lost > 0 {
            // Lost events had blocks and bytes as well.
            let reported = (window.events - self.lost as f64).max(1.0);
            window.blocks *= window.events / reported;
            window.span_bytes *= window.events / reported;
        }
        self.since = now;
        self.cpu_ns = cpu_ns;
        self.lost = 0;
        let before = self.pace.level();
        let level = self.pace.next(account, &window);
        if level != before {
            self.memory.set_level(level);
            self.sampled(objects, allocation_interval(level));
        }
    }

    /// CPU time that reporting an event takes from the program, in nanoseconds.
    fn event_ns(&self, now: Instant) -> f64 {
        let (timed, timed_ticks) = self.memory.timed();
        let (begun_ticks, begun) = self.clock;
        let ticks = time_stamp().saturating_sub(begun_ticks);
        if timed < TIMED || ticks == 0 {
            return EVENT_NS;
        }
        let ns_per_tick = (now - begun).as_nanos() as f64 / ticks as f64;
        timed_ticks as f64 / timed as f64 * ns_per_tick
    }
}

/// The time stamp counter; 0 on machines without one.
fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction reads a counter and nothing else.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return 0;
}

/// Index of a process, which is added if it is new.
fn index_of(processes: &mut Vec<Process>, number: u32) -> usize {
    let known = processes.iter().position(|it| it.number == number);
    known.unwrap_or_else(|| {
        processes.push(Process {
            number,
            announced: FxHashSet::default(),
            last_chain: None,
            new_chains: Vec::new(),
            batch: Vec::new(),
        });
        processes.len() - 1
    })
}

/// The event for the receiver; `None` for a record that makes no sense.
fn event(record: &ThreadRecord) -> Option<AllocationEvent> {
    let action = if record.what.kind == AllocationKind::Allocated as u8 {
        AllocationAction::Allocated
    } else if record.what.kind == AllocationKind::Freed as u8 {
        AllocationAction::Freed
    } else {
        return None;
    };
    Some(AllocationEvent {
        tsc: record.record.tsc,
        thread: record.thread,
        action,
        function: function_of(record.what.function)?,
        address: record.record.address,
        size: record.record.size,
        chain: record.record.chain,
        weight: pace::weight(record.record.size, u32::from(record.what.level)) as f32,
    })
}

/// Frees the memory of programs that have ended, once all children that share it have ended too.
fn close(images: &mut Vec<Image>, objects: &Objects) {
    if !images.iter().any(Image::is_over) {
        return;
    }
    let used = maps::used_inodes();
    images.retain_mut(|image| {
        let keep = !image.is_over() || used.contains(&image.memory.memory.inode);
        if !keep {
            image.memory.finish();
            image.drain(objects);
        }
        keep
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_come_as_often_as_events_require() {
        let mut poll = FLOOD_POLL_INTERVAL;
        let mut after = |events| {
            poll = next_poll(poll, events);
            poll.as_micros()
        };
        let idle = [0; 5].map(&mut after);
        assert_eq!(idle, [2000, 4000, 8000, 8000, 8000]);
        assert_eq!(after(1), 8000);
        assert_eq!(after(1000), 4000);
        assert_eq!(after(FLOOD_EVENTS + 1), 300);
        assert_eq!(after(100), 1500);
        assert_eq!(after(1000), 1000);
        assert_eq!(after(0), 2000);
    }

    #[test]
    fn what_looks_cost_is_no_cost_of_the_events_that_they_find() {
        let mut poll_cost = PollCost::default();
        for _ in 0..200 {
            assert_eq!(poll_cost.cost(20_000.0, 0).reading_ns, 0.0);
        }
        assert_eq!(poll_cost.cost(25_000.0, 3).reading_ns, 0.0);
        let cost = poll_cost.cost(520_000.0, 10_000);
        assert!((cost.reading_ns - 500_000.0).abs() < 1.0, "{cost:?}");
        assert!((cost.polling_ns - 20_000.0).abs() < 1.0, "{cost:?}");
    }
}
