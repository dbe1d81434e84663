//! Puts together what the samplers and the launcher tell, in the order of time, and decides
//! what is patched when.
//!
//! Samples, accesses and allocations come from different rings and a little late. They wait
//! until nothing earlier can come any more; only then are addresses looked up, so that a
//! block that was freed a moment later is still found, and one that came later is not.

mod allocation_cost;
mod look;
mod pending;
mod settle;
mod suspect;
mod unseen;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use membound_launch::{Access, AllocationEvent, Processors, Remote};
use membound_platform::{Root, cpu_time};
use membound_rewrite::stall::Effective;
use membound_run::{BlockCount, Frame, Meta, ProcessId, ThreadId, TimerKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::budget::{Beside, Work};
use crate::bursts::Collector;
use crate::chooser::Chooser;
use crate::clock::{Clock, Reading};
use crate::cpu_time::CpuTime;
use crate::cut_off::CutOff;
use crate::dilation::{Dilation, Telling, Waiting};
use crate::file::RunFile;
use crate::gaps::Gaps;
use crate::groups::{Threads, Wanted};
use crate::holding::Trials;
use crate::inbox::{Inbox, Told};
use crate::laps::LapCounter;
use crate::modules::Module;
use crate::nodes::Nodes;
use crate::objects::Objects;
use crate::others::Others;
use crate::pages::Pages;
use crate::patcher::Running;
use crate::rows::Rows;
use crate::sampler::{Batch, Sampling};
use crate::sampling::{Patched, Taken, Whose};
use crate::sites::{self, Sites};
use crate::stays::Stays;
use crate::traffic::TrafficCounters;
use crate::waited::Waited;
use crate::watching::Watching;
use crate::windows::{Closed, Now, Wants, Windows};
use crate::world::World;
use crate::{Blocks, Bursts, Latencies, Options, Watch};
use allocation_cost::AllocationCost;
use pending::Pending;
use unseen::Unseen;

/// How long events wait for earlier ones that come later.
const DELAY_NS: u64 = 50_000_000;
/// How long after the end of a recording what was recorded may still come.
const LATEST_NS: u64 = 4 * DELAY_NS;
/// CPU time in samples after which a program has run long enough for names to be read before its end.
const FIRST_NAMES_NS: u64 = 150_000_000;
/// Between two turns.
const TURN: Duration = Duration::from_millis(8);
/// The same while programs are only sampled.
const CALM_TURN: Duration = Duration::from_millis(40);
/// The same while a window is open or about to be: it is to close in time.
const SHORT_TURN: Duration = Duration::from_millis(1);
/// The same while the program makes a trial, which a turn would disturb.
const TRIAL_TURN: Duration = Duration::from_millis(8);
/// Events that are gone on with in a millisecond's turn while a window is open.
const SETTLED_A_MS: usize = 500;
/// Between two looks at what programs lose.
const BESIDE_EVERY_NS: u64 = 25_000_000;
/// Between two transactions.
const WRITE_EVERY_NS: u64 = 500_000_000;
/// The same while somebody reads the file to plan a harvest of the program.
const PLANNED_WRITE_EVERY_NS: u64 = 150_000_000;
/// Between two looks at processes and threads.
const TIDY_EVERY_NS: u64 = 100_000_000;
/// Processes whose threads are looked at in one turn.
const LOOKED_AT: usize = 64;
/// Time in samples before sites are chosen for the first time.
const FIRST_CHOICE_NS: u64 = 100_000_000;
/// Threads that were sampled this long ago run at the same time as those sampled now.
const TOGETHER_NS: u64 = 500_000_000;

/// What costs are reckoned with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// CPU time that a sample takes of a thread, in nanoseconds.
    pub(crate) sample_ns: f64,
    /// The recorder's CPU time before it began.
    pub(crate) own_cpu_before_ns: u64,
}

/// Something that happened.
#[derive(Debug)]
enum Happened {
    /// With the address that it waited for, and since when no patch stood in the text.
    Sampled(Box<Taken>, Option<Effective>, Option<u64>),
    Accessed(Access),
    /// Process, number and return addresses of a call chain.
    Chained(u32, u32, Vec<u64>),
    Allocated(u32, AllocationEvent),
}

/// The driver's state.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Options,
    pub(crate) clock: Clock,
    pub(crate) meta: Meta,
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) remote: Option<Remote>,
    pub(crate) sampling: Option<Sampling>,
    pub(crate) file: RunFile,
    pub(crate) rows: Rows,
    pub(crate) sites: Sites,
    pub(crate) objects: Objects,
    pub(crate) gaps: Gaps,
    pub(crate) pages: Pages,
    traffic: TrafficCounters,
    windows: Windows,
    dilation: Dilation,
    bursts: Collector,
    laps: LapCounter,
    watching: Option<Watching>,
    trials: Trials,
    chooser: Chooser,
    cpu_time: CpuTime,
    /// What the program loses by what is done beside it, and own CPU time before that.
    beside: Beside,
    own_before_ns: u64,
    /// What the program has lost by that until now.
    lost_beside_ns: f64,
    waited: Waited,
    others: Others,
    allocation_cost: AllocationCost,
    /// When it was last looked at what the programs lose.
    looked_beside_ns: u64,
    /// Programs use all processors, and have lost as much by what is done beside them as they may.
    in_the_way: bool,
    /// CPU time that programs lost by setting timers at each switch of threads.
    switching_ns: f64,
    /// CPU time of samples that lay in the agent while nothing was patched in windows: what following allocations costs.
    in_hooks_ns: f64,
    /// CPU time in samples at which the names of sampled modules are read next.
    read_names_at_ns: u64,
    pending: Pending<Happened>,
    sources: Vec<PathBuf>,
    source_modules: FxHashMap<usize, Arc<Module>>,
    /// When each thread was sampled last.
    recent: FxHashMap<ThreadId, (u64, ProcessId)>,
    stays: Stays,
    sampled_ns: u64,
    /// What samples of the agent's should stand for.
    covered: CpuTime,
    covered_ns: u64,
    /// Until when all samples are there.
    sampled_until_ns: u64,
    unseen: Unseen,
    written_ns: u64,
    tidied_ns: u64,
    look_from: usize,
    /// Samples in the file.
    pub(crate) samples: u64,
    /// Longest interval, in bytes, at which small blocks were sampled; 0: none were.
    sampled_interval_bytes: u64,
    /// Timed accesses in the file.
    pub(crate) accesses: u64,
    /// Whether everything that was sampled has ended.
    over: bool,
    /// When recording ended although programs went on.
    elapsed_ns: Option<u64>,
    /// Everything that was recorded is in the file, which is complete.
    pub(crate) is_complete: bool,
    pub(crate) costs: Costs,
}

impl Driver {
    /// One that has nothing yet.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another party of the recording"
    )]
    pub(crate) fn new(
        options: Options,
        clock: Clock,
        meta: Meta,
        world: Arc<Mutex<World>>,
        inbox: Arc<Inbox>,
        remote: Option<Remote>,
        sampling: Option<Sampling>,
        file: RunFile,
        gaps: Gaps,
        nodes: Nodes,
    ) -> Self {
        let others = options
            .allocators
            .iter()
            .map(|(allocates, _)| allocates.clone())
            .collect();
        let wanted = |yes: bool| if yes { Wanted::Yes } else { Wanted::No };
        let wants = Wants {
            blocks: wanted(options.blocks == Blocks::On),
            bursts: wanted(options.bursts == Bursts::On),
        };
        let telling = match meta.timer {
            TimerKind::AgentTimer => Telling::Instructions,
            TimerKind::CpuClock | TimerKind::Cycles | TimerKind::None => Telling::Patches,
        };
        // Those of perf say how far they are.
        let sampled_until_ns = match sampling {
            Some(_) => 0,
            None => u64::MAX,
        };
        let windows = Windows::new(options.max_overhead, wants);
        let caches = options.machine.iter().flat_map(|it| &it.machine.caches);
        let line_bytes = caches.filter_map(|cache| cache.line_bytes).max();
        let trials = Trials::new(line_bytes.map(u64::from));
        let watching =
            (options.watch == Watch::On).then(|| Watching::new(line_bytes.map(u64::from)));
        let beside = Beside::new(Processors::here(), options.max_overhead);
        let mut gaps = gaps;
        let traffic = TrafficCounters::open(&Root::system(), clock.now_ns(), &mut gaps);
        Self {
            options,
            clock,
            meta,
            world,
            inbox,
            remote,
            sampling,
            file,
            rows: Rows::default(),
            sites: Sites::default(),
            objects: Objects::new(others),
            gaps,
            pages: Pages::new(nodes),
            traffic,
            windows,
            dilation: Dilation::new(telling),
            bursts: Collector::default(),
            laps: LapCounter::default(),
            watching,
            trials,
            chooser: Chooser::default(),
            cpu_time: CpuTime::default(),
            beside,
            own_before_ns: cpu_time::of_this_process(),
            lost_beside_ns: 0.0,
            waited: Waited::default(),
            others: Others::here(),
            allocation_cost: AllocationCost::default(),
            in_the_way: false,
            looked_beside_ns: 0,
            switching_ns: 0.0,
            in_hooks_ns: 0.0,
            read_names_at_ns: FIRST_NAMES_NS,
            pending: Pending::default(),
            sources: Vec::new(),
            source_modules: FxHashMap::default(),
            recent: FxHashMap::default(),
            stays: Stays::default(),
            sampled_ns: 0,
            covered: CpuTime::default(),
            covered_ns: 0,
            sampled_until_ns,
            unseen: Unseen::default(),
            written_ns: 0,
            tidied_ns: 0,
            look_from: 0,
            samples: 0,
            sampled_interval_bytes: 0,
            accesses: 0,
            over: false,
            elapsed_ns: None,
            is_complete: false,
            costs: Costs::default(),
        }
    }

    /// Drives until `stop` is set, or the time asked for is over, which `ended` then says.
    pub(crate) fn run(&mut self, stop: &AtomicBool, ended: &AtomicBool, cut_off: &CutOff) {
        while !stop.load(Ordering::Acquire) {
            self.wait();
            if cut_off.is_wanted() {
                self.halt();
                cut_off.is_done();
                return;
            }
            self.turn();
            let limit = self.options.duration.map(|limit| limit.as_nanos() as u64);
            let late = limit.is_some_and(|limit| self.clock.now_ns() >= limit);
            if late {
                self.end_early();
            }
            if late || self.over {
                ended.store(true, Ordering::Release);
            }
        }
        self.halt();
    }

    /// Ends recording although programs go on, and completes the file when all that was recorded has come.
    fn end_early(&mut self) {
        let now_ns = self.clock.now_ns();
        match self.elapsed_ns {
            None => {
                self.halt();
                self.elapsed_ns = Some(now_ns);
            }
            Some(elapsed_ns) if !self.is_complete && now_ns >= elapsed_ns + LATEST_NS => {
                self.drain();
                self.write_all(elapsed_ns);
                let Self {
                    file, meta, gaps, ..
                } = self;
                file.complete(meta, gaps.all());
            }
            Some(_) => {}
        }
    }

    /// Writes everything that was recorded until then, with names and code.
    pub(crate) fn write_all(&mut self, until_ns: u64) {
        self.write(until_ns);
        self.complete();
        self.rows.write(
            &mut self.file,
            &self.world,
            &mut self.sites,
            &mut self.objects,
        );
        self.meta.lost_cpu_ns = self.lost_outside_ns() as u64;
        self.meta.own_cpu_ns =
            cpu_time::of_this_process().saturating_sub(self.costs.own_cpu_before_ns);
        self.is_complete = true;
    }

    /// Between two transactions.
    const fn write_every_ns(&self) -> u64 {
        match self.options.harvest {
            Some(_) => PLANNED_WRITE_EVERY_NS,
            None => WRITE_EVERY_NS,
        }
    }

    /// Whether programs make trials: not with scavengers inside, which they would hold as well.
    const fn may_try(&self) -> bool {
        self.options.harvest.is_none()
    }

    /// The next turn while a window is open, or about to be.
    fn window_turn(&self) -> Duration {
        self.windows.until_look().clamp(SHORT_TURN, TURN)
    }

    /// Lets some time pass, and takes what perf's samples have told meanwhile.
    fn wait(&mut self) {
        let turn = if self.trials.is_trying() {
            TRIAL_TURN
        } else if self.over {
            SHORT_TURN
        } else if self.windows.is_open() {
            self.window_turn()
        } else if self.remote.is_none() {
            CALM_TURN
        } else {
            TURN
        };
        let first = match &self.sampling {
            Some(sampling) => sampling.batches.recv_timeout(turn),
            None => Err(RecvTimeoutError::Disconnected),
        };
        // Who has nothing more to tell is not waited for: without a pause, looking after a
        // program that is about to be gone would keep the kernel from letting go of it.
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            std::thread::sleep(turn);
        }
        if let Ok(batch) = first {
            self.batch(batch);
        }
        let rest: Vec<Batch> = self
            .sampling
            .iter()
            .flat_map(|sampling| sampling.batches.try_iter())
            .collect();
        for batch in rest {
            self.batch(batch);
        }
    }

    fn batch(&mut self, batch: Batch) {
        self.over |= batch.over;
        let until_ns = match batch.over {
            true => u64::MAX,
            false => batch.until_ns,
        };
        let remedy = Some("sample less often with --period");
        self.gaps
            .count("samples", "perf's rings were full", remedy, batch.lost);
        self.switching_ns += batch.switching_ns;
        self.sampled_until_ns = until_ns.max(self.sampled_until_ns);
        for taken in batch.samples {
            self.sampled(taken);
        }
    }

    /// One turn: takes what was told, goes on with what is old enough, exchanges patches.
    fn turn(&mut self) {
        let reading = Reading::take();
        self.clock.refine(reading);
        let now_ns = self.clock.of_raw(reading.raw_ns);
        // First, and with what was known a turn ago: what takes long keeps no window open.
        if self.elapsed_ns.is_none() {
            self.step_windows(now_ns);
        }
        let told = self.inbox.take();
        self.told(told, now_ns);
        let most = if self.windows.is_open() {
            SETTLED_A_MS * self.window_turn().as_millis() as usize
        } else {
            usize::MAX
        };
        if now_ns >= self.looked_beside_ns + BESIDE_EVERY_NS {
            self.look_beside(now_ns);
        }
        self.look(now_ns);
        let horizon_ns = now_ns.saturating_sub(DELAY_NS);
        // What a sample waited for is looked for among the blocks that there were then.
        let first_ns = self.unseen.first_ns().unwrap_or(u64::MAX);
        self.settle(horizon_ns.min(first_ns.saturating_sub(1)), most);
        // In a trial threads read the line themselves, which is no access of the program's.
        let may_begin = !self.trials.is_trying();
        let watching = self.watching.as_mut().filter(|_| self.elapsed_ns.is_none());
        if let Some(watching) = watching.filter(|it| may_begin || it.is_watching()) {
            watching.step(
                &self.world,
                &self.clock,
                self.remote.as_ref(),
                &mut self.rows.watched,
                &mut self.gaps,
            );
        }
        if now_ns >= self.tidied_ns + TIDY_EVERY_NS {
            self.tidied_ns = now_ns;
            self.tidy(now_ns);
        }
        if now_ns >= self.written_ns + self.write_every_ns() && !self.is_complete {
            self.written_ns = now_ns;
            self.write(now_ns);
        }
    }

    /// Puts what is known into the file.
    pub(crate) fn write(&mut self, now_ns: u64) {
        self.pages
            .look(&self.world, now_ns, &mut self.rows, &mut self.gaps);
        self.rows.write(
            &mut self.file,
            &self.world,
            &mut self.sites,
            &mut self.objects,
        );
        self.count_traffic(now_ns);
        self.meta.elapsed_ns = now_ns;
        self.meta.tsc_hz = self.clock.tsc_hz();
        let meta = &self.meta;
        self.file.put(|writer| writer.meta(meta));
    }

    fn told(&mut self, told: Told, now_ns: u64) {
        self.sources.extend(told.sources);
        let lost = told.lost;
        let reason = "they came faster than they could be kept";
        let remedy = Some("follow larger blocks only (--object-size)");
        self.gaps.count("objects", reason, remedy, lost.allocations);
        self.gaps.count("latencies", reason, None, lost.accesses);
        self.gaps.count("samples", reason, None, lost.samples);
        for (pid, _, reason) in told.refused {
            self.gaps
                .note("samples", format!("process {pid}: {reason}"), None);
        }
        // Perf tells both by itself.
        if self.meta.timer == TimerKind::AgentTimer {
            for (pid, since) in told.begun {
                let t_ns = now_ns.saturating_sub(since.elapsed().as_nanos() as u64);
                crate::lock(&self.world).begun(pid, t_ns);
            }
            let covered = told.covered;
            let ask = |pid: u32| covered.get(&pid).copied();
            self.covered_ns = self.covered.of_with(covered.keys().copied(), ask);
        }
        // A chain belongs to the program that allocated by it, which may have been started so
        // lately that perf has not told of it yet.
        let mut first: FxHashMap<(u32, u32), u64> = FxHashMap::default();
        for (pid, event) in &told.allocations {
            first.entry((*pid, event.chain)).or_insert(event.tsc);
        }
        for (pid, number, addresses) in told.chains {
            let first = first.get(&(pid, number));
            let t_ns = first.map_or(now_ns, |tsc| self.clock.of_tsc(*tsc));
            let chained = Happened::Chained(pid, number, addresses);
            self.pending.push(t_ns, chained);
        }
        for (pid, event) in told.allocations {
            let t_ns = self.clock.of_tsc(event.tsc);
            self.pending.push(t_ns, Happened::Allocated(pid, event));
        }
        self.sampled_interval_bytes = self.sampled_interval_bytes.max(told.sampled_interval_bytes);
        for (pid, sample) in told.samples {
            let t_ns = self.clock.of_tsc(sample.tsc);
            let taken = crate::lock(&self.world).take_told(pid, &sample, t_ns);
            self.sampled(taken);
        }
        for access in told.accesses {
            let t_ns = self.clock.of_tsc(access.tsc);
            self.pending.push(t_ns, Happened::Accessed(access));
        }
    }

    /// Takes a sample.
    fn sampled(&mut self, taken: Taken) {
        // What scavengers inside a command do says nothing of the command.
        if self.elapsed_ns.is_some() || taken.whose == Whose::Guest {
            return;
        }
        self.sampled_ns += taken.weight_ns;
        // The agent's thread executes no patches: no count races with it.
        if taken.whose == Whose::Program {
            self.recent
                .insert(taken.thread, (taken.t_ns, taken.process));
            if let Some(cpu) = taken.cpu {
                self.stays.seen(taken.thread, taken.t_ns, cpu);
            }
        }
        let clear_since_ns = self.windows.clear_since_ns(taken.t_ns);
        self.unseen.push(taken, clear_since_ns);
    }

    /// Finds out what a sample waited for: what is patched next depends on it.
    fn find_wait(&mut self, taken: Taken, clear_since_ns: Option<u64>) {
        let mut effective = None;
        if let Some((module, address, bias)) = &taken.code {
            let world = &self.world;
            let intern = |frame| crate::lock(world).interner.frame(frame);
            let waits = self.sites.waits(taken.leaf, module, *address, intern);
            for wait in waits.iter() {
                if let Some(site) = wait.site {
                    let weight_ns = taken.weight_ns as f64 * wait.share;
                    self.chooser.add(site, weight_ns);
                    self.windows.lost(site, weight_ns);
                }
            }
            // What lies in a patch is of our making, and blocks begin behind it that are none
            // of the program's.
            let clear = taken.patched == Patched::No && clear_since_ns.is_some();
            if clear && !waits.is_empty() {
                let weight_ns = taken.weight_ns as f64;
                self.chooser.sampled(weight_ns);
                if let Some(before) = self.sites.before(taken.leaf, module, *address, intern) {
                    self.chooser.add_before(&before, weight_ns);
                    if self.chooser.puts_off() {
                        for site in before.iter() {
                            self.windows.lost(*site, weight_ns / before.len() as f64);
                        }
                    }
                }
            }
            effective = sites::effective(&waits, module, *address, *bias, &taken.registers);
        }
        let t_ns = taken.t_ns;
        let sampled = Happened::Sampled(Box::new(taken), effective, clear_since_ns);
        self.pending.push(t_ns, sampled);
    }

    fn step_windows(&mut self, now_ns: u64) {
        let Some(remote) = &self.remote else { return };
        if self.options.latencies == Latencies::Off || self.sampled_ns < FIRST_CHOICE_NS {
            return;
        }
        let now = now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
        // One budget for all: windows have what samples and allocations leave of it.
        self.windows
            .lost_otherwise(self.lost_outside_ns() + self.in_hooks_ns);
        let running = Running {
            remote,
            clock: self.clock,
        };
        if self.over {
            self.trials.stop(&mut self.windows, now);
            if let Some(closed) = self.windows.stop(&running, now) {
                self.closed(closed);
            }
            return;
        }
        // Where it takes long to plan a program's libraries, what the loader does meanwhile is hot
        // long before anything can be patched. That says nothing against its accesses.
        if !self.windows.is_open() && !remote.takes_part() {
            return;
        }
        let is_watching = self.watching.as_ref().is_some_and(Watching::is_watching);
        if self.may_try() && (self.trials.is_trying() || !is_watching) {
            let rows = &mut self.rows.holds;
            self.trials.step(&running, &mut self.windows, now, rows);
        }
        let hot = if self.windows.is_open() {
            Vec::new()
        } else {
            self.chooser.hot()
        };
        let closed = self.windows.step(&running, now, &hot, &mut self.sites);
        if let Some(since_ns) = self.windows.take_burst() {
            self.bursts.window(since_ns);
        }
        if let Some(closed) = closed {
            self.closed(closed);
        }
    }

    /// What came of a window waits until its samples are there.
    fn closed(&mut self, closed: Closed) {
        let (from_ns, to_ns) = (closed.from_ns, closed.to_ns);
        if closed.work == Work::Record {
            return;
        }
        let mut world = crate::lock(&self.world);
        let blocks = closed
            .blocks
            .iter()
            .map(|(module, block, count)| BlockCount {
                frame: world.interner.frame(Frame {
                    module: Some(*module),
                    address: block.start,
                }),
                length: block.length,
                from_ns,
                to_ns,
                count: *count,
            });
        let blocks = blocks.collect();
        drop(world);
        let waiting = Waiting::new(
            closed.work,
            (from_ns, to_ns),
            closed.cost_ns,
            closed.sites.into_iter().collect(),
            closed.executions,
            blocks,
        );
        self.dilation.wait(waiting);
    }

    fn count_traffic(&mut self, now_ns: u64) {
        let moved = self.traffic.read(now_ns);
        self.file.put(|writer| writer.traffic(&moved));
    }

    fn tidy(&mut self, now_ns: u64) {
        self.count_traffic(now_ns);
        if self.sampled_ns >= self.read_names_at_ns && !self.in_the_way {
            self.read_names_at_ns = 2 * self.sampled_ns;
            self.read_names();
        }
        self.chooser.cool(now_ns);
        self.recent
            .retain(|_, (t_ns, _)| now_ns.saturating_sub(*t_ns) < TOGETHER_NS);
        self.stays.tidy(now_ns);
        let mut world = crate::lock(&self.world);
        world.tidy(now_ns);
        let alive = world.alive();
        if alive.is_empty() {
            // What is attached to has ended, where no sampler says so.
            self.over |= world.images() > 0;
            return;
        }
        for turn in 0..alive.len().min(LOOKED_AT) {
            let (pid, process) = alive[(self.look_from + turn) % alive.len()];
            world.threads.look(process, pid, now_ns);
        }
        self.look_from = (self.look_from + LOOKED_AT) % alive.len();
    }

    /// Ends what changes programs and what samples them.
    fn halt(&mut self) {
        let now_ns = self.clock.now_ns();
        self.look_beside(now_ns);
        self.in_the_way = false;
        membound_launch::hold_planning(false);
        membound_launch::lack_processors(false);
        if let Some(remote) = &self.remote {
            let now = now(&self.world, &mut self.cpu_time, &self.recent, now_ns);
            let running = Running {
                remote,
                clock: self.clock,
            };
            self.trials.stop(&mut self.windows, now);
            if let Some(closed) = self.windows.stop(&running, now) {
                self.closed(closed);
            }
        }
        self.trials.tell(&mut self.gaps);
        if let Some(sampling) = self.sampling.take() {
            let (counted_ns, batches) = sampling.end();
            for batch in batches {
                self.batch(batch);
            }
            self.look_at_all();
            self.unsampled(counted_ns);
            self.sampled_until_ns = u64::MAX;
        }
        if let Some(mut watching) = self.watching.take() {
            watching.end(
                &self.world,
                &self.clock,
                self.remote.as_ref(),
                &mut self.rows.watched,
                &mut self.gaps,
            );
        }
        if self.chooser.puts_off() {
            let reason = "timer interrupts are put off until a block of code begins, as emulators \
                          do: which access was waited for is not known, and all of hot blocks \
                          were timed";
            self.gaps.note("samples", reason, None);
        }
        if self.windows.unsettled > 0 {
            let reason = "programs did not exchange their patches in time";
            self.gaps.count(
                "latencies",
                reason,
                None,
                std::mem::take(&mut self.windows.unsettled),
            );
        }
        let stuck = std::mem::take(&mut self.windows.stuck);
        let reason = "patches were taken out early because programs made no progress with them";
        self.gaps.count("latencies", reason, None, stuck);
        let blurred = std::mem::take(&mut self.windows.blurred);
        let reason = "counts of executions were read too late to be of use: the machine was busy";
        self.gaps.count("latencies", reason, None, blurred);
        let given_up = std::mem::take(&mut self.windows.given_up);
        let reason = "hot accesses could be patched in no program: their file has lost its name, \
                      or is not patched at all";
        self.gaps.count("latencies", reason, None, given_up);
    }

    /// Says how much CPU time the kernel counted that no sample stands for.
    fn unsampled(&mut self, counted_ns: u64) {
        const NOTED: f64 = 0.05;
        let missing = counted_ns.saturating_sub(self.sampled_ns);
        if missing as f64 > NOTED * counted_ns as f64 && missing > self.meta.period_ns * 10 {
            let reason = "milliseconds of CPU time are in no sample: of threads shorter than the \
                          period, and of the kernel where it may not be seen";
            let remedy = Some("sample more often with --period");
            self.gaps
                .count("samples", reason, remedy, missing / 1_000_000);
        }
    }

    /// Takes everything that is still on its way.
    pub(crate) fn drain(&mut self) {
        let now_ns = self.clock.now_ns();
        let told = self.inbox.take();
        self.told(told, now_ns);
        self.look_at_all();
        self.settle(u64::MAX, usize::MAX);
        self.laps.end(&self.sites, &mut self.rows.laps);
        if self.sampled_interval_bytes > 0 {
            let wanted = self.options.objects.unwrap_or(u64::MAX);
            let from = membound_launch::certain_from_bytes(self.sampled_interval_bytes, wanted);
            let reason = format!(
                "blocks below {from} bytes were sampled, on average once in up to {} bytes, because \
                 there were too many to follow all: their counts and bytes are estimates",
                self.sampled_interval_bytes
            );
            self.gaps.note("objects", reason, None);
        }
        let unkept = self.objects.unkept();
        let reason = "there were too many blocks to keep";
        let remedy = Some("follow larger blocks only (--object-size)");
        self.gaps.count("objects", reason, remedy, unkept);
        let shortened = crate::lock(&self.world).interner.shortened;
        let reason = "call chains beyond the first four millions are known by their innermost \
                      frames only";
        self.gaps.count("samples", reason, None, shortened);
        self.unsampled(self.covered_ns);
        if self.meta.timer == TimerKind::AgentTimer && self.samples == 0 {
            self.gaps.note(
                "samples",
                "the agent took none: the program was too short, or the agent is not in it",
                None,
            );
        }
    }
}

fn now(
    world: &Mutex<World>,
    cpu_time: &mut CpuTime,
    recent: &FxHashMap<ThreadId, (u64, ProcessId)>,
    now_ns: u64,
) -> Now {
    let pids: FxHashSet<u32> = crate::lock(world)
        .alive()
        .into_iter()
        .map(|(pid, _)| pid)
        .collect();
    let mut seen = FxHashSet::default();
    let several = recent
        .values()
        .filter(|(t_ns, _)| now_ns.saturating_sub(*t_ns) < TOGETHER_NS)
        .any(|(_, process)| !seen.insert(*process));
    Now {
        t_ns: now_ns,
        cpu_ns: cpu_time.of(pids),
        threads: if several {
            Threads::Several
        } else {
            Threads::One
        },
    }
}
