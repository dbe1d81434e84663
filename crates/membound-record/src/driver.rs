//! Puts together what the samplers and the launcher tell, in the order of time, and decides
//! what is patched when.
//!
//! Samples, accesses and allocations come from different rings and a little late. They wait
//! until nothing earlier can come any more; only then are addresses looked up, so that a
//! block that was freed a moment later is still found, and one that came later is not.

mod allocation_cost;
mod ending;
mod look;
mod patching;
mod pending;
mod settle;
mod suspect;
mod taking;
mod unseen;

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

use crate::budget::Beside;
use crate::bursts::Collector;
use crate::chooser::Chooser;
use crate::clock::{Clock, Reading};
use crate::cpu_time::CpuTime;
use crate::cut_off::CutOff;
use crate::dilation::{Dilation, Telling};
use crate::file::RunFile;
use crate::gaps::Gaps;
use crate::groups::Wanted;
use crate::holding::Trials;
use crate::inbox::Inbox;
use crate::laps::LapCounter;
use crate::modules::Module;
use crate::nodes::Nodes;
use crate::objects::Objects;
use crate::others::Others;
use crate::pages::Pages;
use crate::rows::Rows;
use crate::sampler::{Batch, Sampling};
use crate::sampling::Taken;
use crate::sites::Sites;
use crate::stays::Stays;
use crate::traffic::TrafficCounters;
use crate::waited::Waited;
use crate::watching::Watching;
use crate::windows::{Wants, Windows};
use crate::world::World;
use crate::{Blocks, Bursts, Options, Watch};
use allocation_cost::AllocationCost;
use pending::Pending;
use unseen::Unseen;

/// How long events wait for earlier ones that come later.
const DELAY_NS: u64 = 50_000_000;
/// How long events wait at most for what perf tells of processes until then: which program a process ran decides whose
/// the events are. A sampler that gets no processor is late.
const LONGEST_DELAY_NS: u64 = 2_000_000_000;
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

    /// Between two transactions.
    const fn write_every_ns(&self) -> u64 {
        match self.options.harvest {
            Some(_) => PLANNED_WRITE_EVERY_NS,
            None => WRITE_EVERY_NS,
        }
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
        let horizon_ns = horizon_ns(now_ns, self.sampled_until_ns);
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
}

/// Until when events can be gone on with at `now_ns`, when all that perf has told until `told_until_ns` was taken.
fn horizon_ns(now_ns: u64, told_until_ns: u64) -> u64 {
    let told_ns = told_until_ns.max(now_ns.saturating_sub(LONGEST_DELAY_NS));
    now_ns.saturating_sub(DELAY_NS).min(told_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_for_what_perf_tells_of_processes_but_not_for_ever() {
        let ms = 1_000_000;
        assert_eq!(horizon_ns(3000 * ms, u64::MAX), 2950 * ms);
        assert_eq!(horizon_ns(3000 * ms, 2990 * ms), 2950 * ms);
        assert_eq!(horizon_ns(3000 * ms, 2000 * ms), 2000 * ms);
        assert_eq!(horizon_ns(3000 * ms, 0), 1000 * ms);
        assert_eq!(horizon_ns(10 * ms, 0), 0);
    }
}
