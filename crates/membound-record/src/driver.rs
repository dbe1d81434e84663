//! Merges what samplers and the launcher report in time order, and decides what is patched when.
//!
//! Samples, accesses and allocations come from different rings and a little late. They are held back until no
//! earlier event can arrive; only then are addresses looked up. So a block that was freed a moment later is
//! still found, and a block allocated later is not.

mod accepting;
mod allocation_cost;
mod ending;
mod examining;
mod patching;
mod pending;
mod serving;
mod settle;
mod suspect;
mod unexamined;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use membound_launch::{Access, AllocationEvent, Processors, Remote};
use membound_platform::{Root, cpu_time};
use membound_rewrite::stall::Effective;
use membound_run::{Meta, ProcessId, ThreadId, TimerKind};
use rustc_hash::FxHashMap;

use crate::budget::Interference;
use crate::bursts::Collector;
use crate::chooser::Chooser;
use crate::clock::{Clock, Reading};
use crate::cpu_time::CpuTime;
use crate::cut_off::CutOff;
use crate::dilation::{Dilation, PatchVisibility};
use crate::file::RunFile;
use crate::gaps::Gaps;
use crate::groups::Wanted;
use crate::holding::Trials;
use crate::inbox::Inbox;
use crate::iterations::IterationCounter;
use crate::modules::CodeModule;
use crate::nodes::Nodes;
use crate::objects::Objects;
use crate::others::Others;
use crate::pages::Pages;
use crate::residency::Residencies;
use crate::rows::Rows;
use crate::sampler::{Batch, CALM_INTERVAL, Sampling};
use crate::sampling::ResolvedSample;
use crate::sites::Sites;
use crate::traffic::TrafficCounters;
use crate::waited::Waited;
use crate::watching::Watching;
use crate::windows::{Wants, Windows};
use crate::world::World;
use crate::{Blocks, Bursts, Options, Watch};
use allocation_cost::AllocationCost;
use pending::Pending;
use serving::{Occupation, Serving};
use unexamined::Unexamined;

/// How long an event is held back for earlier events that arrive later.
const DELAY_NS: u64 = 50_000_000;
/// The same while programs are easily disturbed, and what they report is collected rarely.
const CALM_DELAY_NS: u64 = 200_000_000;
/// Upper limit of that delay while perf's reports of processes lag behind. They decide which program an event
/// belongs to, and a sampler that gets no processor reports late.
const MAX_DELAY_NS: u64 = 2_000_000_000;
/// Time from the start after which names are first read; the time is doubled each time. Reading them slows a program,
/// because it uses caches and memory; a program that ends sooner is not slowed, and its names are read at the end.
const FIRST_NAMES_NS: u64 = 1_000_000_000;
/// Longest time between two iterations of the driver's loop.
const ITERATION_INTERVAL: Duration = Duration::from_millis(8);
/// Shortest time between two iterations, while a window is open or opening: the window must close in time.
const MIN_ITERATION_INTERVAL: Duration = Duration::from_millis(1);
/// The same while the program makes a trial: each iteration takes a processor, which perturbs the trial.
const TRIAL_ITERATION_INTERVAL: Duration = Duration::from_millis(8);
/// Events processed per millisecond between two iterations while a window is open.
const SETTLED_A_MS: usize = 500;
/// Interval at which the programs' loss of CPU time is updated.
const INTERFERENCE_INTERVAL_NS: u64 = 25_000_000;
/// Interval between two transactions on the file.
const WRITE_EVERY_NS: u64 = 500_000_000;
/// The same while a harvest is planned from the file as it is written.
const PLANNED_WRITE_EVERY_NS: u64 = 150_000_000;
/// Interval at which processes and threads are polled.
const TIDY_EVERY_NS: u64 = 100_000_000;
/// Processes whose threads are read in one such poll.
const LOOKED_AT: usize = 64;
/// Threads of one process that were both sampled within this time count as running concurrently.
const TOGETHER_NS: u64 = 500_000_000;

/// Figures from which the cost of recording is computed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    /// CPU time that one sample takes from the sampled thread, in nanoseconds.
    pub(crate) sample_ns: f64,
    /// CPU time of this process before recording began.
    pub(crate) own_cpu_before_ns: u64,
}

/// An event that waits to be processed.
#[derive(Debug)]
enum PendingEvent {
    /// A sample, the address it waited for, and since when no patch was in the text (`None`: one was).
    Sampled(Box<ResolvedSample>, Option<Effective>, Option<u64>),
    Accessed(Access),
    /// Process, number and return addresses of a call chain.
    Chained(u32, u32, Vec<u64>),
    Allocated(u32, AllocationEvent),
}

/// State of the driver, which runs on its own thread.
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
    iterations: IterationCounter,
    watching: Option<Watching>,
    trials: Trials,
    pub(crate) chooser: Chooser,
    cpu_time: CpuTime,
    /// Estimates what the recorder's own CPU time costs the programs; below, the CPU time before that.
    interference: Interference,
    own_before_ns: u64,
    /// CPU time in samples of the agent's own threads.
    agent_threads_ns: u64,
    /// CPU time that the programs have lost so far to the recorder running beside them.
    lost_beside_ns: f64,
    waited: Waited,
    others: Others,
    allocation_cost: AllocationCost,
    /// When that loss was updated last.
    interference_read_ns: u64,
    /// True while programs use all processors and have lost to the recorder as much as they may.
    in_the_way: bool,
    /// CPU time that programs lost because the kernel sets the sampling timer at each context switch.
    switching_ns: f64,
    /// CPU time of samples in the agent outside windows: the cost of following allocations.
    in_hooks_ns: f64,
    /// Time from the start at which names are read next.
    read_names_at_ns: u64,
    pending: Pending<PendingEvent>,
    sources: Vec<PathBuf>,
    source_modules: FxHashMap<usize, Arc<CodeModule>>,
    /// When each thread was sampled last, and its process.
    recent: FxHashMap<ThreadId, (u64, ProcessId)>,
    residencies: Residencies,
    pub(crate) sampled_ns: u64,
    /// Sum of the squares of what its samples stand for.
    sampled_squares_ns2: f64,
    /// CPU time that samples of the agent's timers should account for.
    covered: CpuTime,
    covered_ns: u64,
    /// Time until which all samples have arrived.
    sampled_until_ns: u64,
    unexamined: Unexamined,
    written_ns: u64,
    tidied_ns: u64,
    /// How long an event is held back.
    delay_ns: u64,
    look_from: usize,
    serving: Serving,
    /// Samples in the file.
    pub(crate) samples: u64,
    /// Longest interval, in bytes, at which small blocks were sampled; 0: none were.
    sampled_interval_bytes: u64,
    /// Timed accesses in the file.
    pub(crate) accesses: u64,
    /// True once everything that was sampled has ended.
    over: bool,
    /// When recording ended, if programs continued after it.
    elapsed_ns: Option<u64>,
    /// True once everything that was recorded is in the file, and the file is complete.
    pub(crate) is_complete: bool,
    pub(crate) costs: Costs,
}

impl Driver {
    /// Creates a driver that has received nothing yet.
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
        let visibility = match meta.timer {
            TimerKind::AgentTimer => PatchVisibility::Instructions,
            TimerKind::CpuClock | TimerKind::Cycles | TimerKind::None => PatchVisibility::Patches,
        };
        // Perf's batches report up to when they are complete; the agent's samples need no such wait.
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
        let interference = Interference::new(Processors::here(), options.max_overhead);
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
            dilation: Dilation::new(visibility),
            bursts: Collector::default(),
            iterations: IterationCounter::default(),
            watching,
            trials,
            chooser: Chooser::default(),
            cpu_time: CpuTime::default(),
            interference,
            own_before_ns: cpu_time::of_this_process(),
            agent_threads_ns: 0,
            lost_beside_ns: 0.0,
            waited: Waited::default(),
            others: Others::here(),
            allocation_cost: AllocationCost::default(),
            in_the_way: false,
            interference_read_ns: 0,
            switching_ns: 0.0,
            in_hooks_ns: 0.0,
            read_names_at_ns: FIRST_NAMES_NS,
            pending: Pending::default(),
            sources: Vec::new(),
            source_modules: FxHashMap::default(),
            recent: FxHashMap::default(),
            residencies: Residencies::default(),
            sampled_ns: 0,
            sampled_squares_ns2: 0.0,
            covered: CpuTime::default(),
            covered_ns: 0,
            sampled_until_ns,
            unexamined: Unexamined::default(),
            written_ns: 0,
            tidied_ns: 0,
            delay_ns: DELAY_NS,
            look_from: 0,
            serving: Serving::default(),
            samples: 0,
            sampled_interval_bytes: 0,
            accesses: 0,
            over: false,
            elapsed_ns: None,
            is_complete: false,
            costs: Costs::default(),
        }
    }

    /// Runs until `stop` is set; sets `ended` when all programs have ended or the requested duration is over.
    pub(crate) fn run(&mut self, stop: &AtomicBool, ended: &AtomicBool, cut_off: &CutOff) {
        while !stop.load(Ordering::Acquire) {
            self.wait();
            if cut_off.is_wanted() {
                self.halt();
                cut_off.is_done();
                return;
            }
            self.iterate();
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

    /// Interval between two transactions on the file.
    const fn write_every_ns(&self) -> u64 {
        match self.options.harvest {
            Some(_) => PLANNED_WRITE_EVERY_NS,
            None => WRITE_EVERY_NS,
        }
    }

    /// Time until the next iteration while a window is open or opening.
    fn window_interval(&self) -> Duration {
        self.windows
            .until_look()
            .clamp(MIN_ITERATION_INTERVAL, ITERATION_INTERVAL)
    }

    /// True if an iteration for each of perf's batches is enough.
    fn is_calm(&self) -> bool {
        self.sampling.is_some()
            && self.options.harvest.is_none()
            && (self.remote.is_none() || self.is_left_in_peace())
    }

    /// True while nothing is patched in programs from which each wake-up of the recorder takes too much.
    fn is_left_in_peace(&self) -> bool {
        self.prefers_peace() && (self.windows.is_clear() || self.trials.is_trying())
    }

    fn prefers_peace(&self) -> bool {
        self.is_easily_disturbed() || self.in_the_way
    }

    /// True for programs that serve requests, and for those whose threads switch often.
    fn is_easily_disturbed(&self) -> bool {
        let switches_often = self.sampling.as_ref().is_some_and(Sampling::switches_often);
        self.windows.is_limited() || switches_often
    }

    /// Waits for one iteration, and accepts perf's batches that arrive meanwhile.
    fn wait(&mut self) {
        let interval = if self.trials.is_trying() {
            TRIAL_ITERATION_INTERVAL
        } else if self.over {
            MIN_ITERATION_INTERVAL
        } else if self.windows.is_open() {
            self.window_interval()
        } else if self.is_calm() {
            CALM_INTERVAL
        } else {
            ITERATION_INTERVAL
        };
        let first = match &self.sampling {
            Some(sampling) => sampling.batches.recv_timeout(interval),
            None => Err(RecvTimeoutError::Disconnected),
        };
        // A disconnected sampler is not waited for, but the pause stays: polling a program that is about to
        // exit without a pause would keep the kernel from releasing it.
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            std::thread::sleep(interval);
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

    /// One iteration: drains the inbox, processes events that are old enough, exchanges patches.
    fn iterate(&mut self) {
        let reading = Reading::take();
        self.clock.refine(reading);
        let now_ns = self.clock.of_raw(reading.raw_ns);
        // Windows first, with the data of the previous iteration, so that slow work below keeps no window
        // open.
        if self.elapsed_ns.is_none() {
            self.step_windows(now_ns);
        }
        if let Some(remote) = &self.remote {
            remote.set_calm(self.is_left_in_peace());
        }
        let reports = self.inbox.take();
        self.accept_reports(reports, now_ns);
        let most = if self.windows.is_open() {
            SETTLED_A_MS * self.window_interval().as_millis() as usize
        } else {
            usize::MAX
        };
        if now_ns >= self.interference_read_ns + INTERFERENCE_INTERVAL_NS {
            self.update_interference(now_ns);
        }
        self.examine(now_ns);
        if self.prefers_peace() {
            // For good: what was collected rarely until now arrives that late once more.
            self.delay_ns = CALM_DELAY_NS;
        }
        let horizon_ns = horizon_ns(now_ns, self.delay_ns, self.sampled_until_ns);
        // A sample is matched with the blocks of its own time: events do not overtake unexamined samples.
        let first_ns = self.unexamined.first_ns().unwrap_or(u64::MAX);
        self.settle(horizon_ns.min(first_ns.saturating_sub(1)), most);
        // In a trial held threads read the line themselves; that is no access of the program's.
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

    /// Writes all pending rows, the traffic counters and the metadata to the file.
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

    fn count_traffic(&mut self, now_ns: u64) {
        let moved = self.traffic.read(now_ns);
        self.file.put(|writer| writer.traffic(&moved));
    }

    fn tidy(&mut self, now_ns: u64) {
        self.count_traffic(now_ns);
        // Each time that a thread of an easily disturbed program wakes up, it would have to displace the reader.
        if now_ns >= self.read_names_at_ns && !self.prefers_peace() {
            self.read_names_at_ns = 2 * now_ns;
            self.read_names();
        }
        self.chooser.cool(now_ns);
        self.recent
            .retain(|_, (t_ns, _)| now_ns.saturating_sub(*t_ns) < TOGETHER_NS);
        self.residencies.tidy(now_ns);
        let mut world = crate::lock(&self.world);
        world.tidy(now_ns);
        let alive = world.alive();
        let pids: Vec<u32> = alive.iter().map(|(pid, _)| *pid).collect();
        let occupation = self.serving.look(now_ns, &pids);
        self.windows.defer(occupation == Occupation::Undecided);
        let serves = occupation == Occupation::Serves;
        if serves != self.windows.is_limited() {
            if serves {
                self.windows.limit(self.cpu_time.of(pids));
            } else {
                self.windows.lift_limit();
            }
            if let Some(sampling) = &self.sampling {
                sampling.serves(serves);
            }
        }
        if alive.is_empty() {
            // An attached program has ended, and no sampler reports it.
            self.over |= world.images() > 0;
            return;
        }
        for offset in 0..alive.len().min(LOOKED_AT) {
            let (pid, process) = alive[(self.look_from + offset) % alive.len()];
            world.threads.look(process, pid, now_ns);
        }
        self.look_from = (self.look_from + LOOKED_AT) % alive.len();
    }
}

/// Time until which events can be processed at `now_ns`, if they arrive up to `delay_ns` late and perf has
/// reported until `told_until_ns`.
fn horizon_ns(now_ns: u64, delay_ns: u64, told_until_ns: u64) -> u64 {
    let told_ns = told_until_ns.max(now_ns.saturating_sub(MAX_DELAY_NS));
    now_ns.saturating_sub(delay_ns).min(told_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_what_perf_tells_of_processes_but_not_for_ever() {
        let ms = 1_000_000;
        assert_eq!(horizon_ns(3000 * ms, DELAY_NS, u64::MAX), 2950 * ms);
        assert_eq!(horizon_ns(3000 * ms, DELAY_NS, 2990 * ms), 2950 * ms);
        assert_eq!(horizon_ns(3000 * ms, DELAY_NS, 2000 * ms), 2000 * ms);
        assert_eq!(horizon_ns(3000 * ms, DELAY_NS, 0), 1000 * ms);
        assert_eq!(horizon_ns(10 * ms, DELAY_NS, 0), 0);
    }
}
