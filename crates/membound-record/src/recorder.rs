//! The public entry point: starts and ends all parts of a recording.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use membound_launch::{
    AllocationReceiver, Bursts, Live, Program, RanProgram, Receiver, Recording, Report, Session,
    ShortLived, TimerReceiver,
};
use membound_platform::{Root, cpu_time};
use membound_rewrite::patch::{self, Hooks};
use membound_run::{Gap, Meta, TimerKind, Writer};

use crate::clock::Clock;
use crate::cut_off::CutOff;
use crate::driver::{Costs, Driver};
use crate::file::RunFile;
use crate::gaps::Gaps;
use crate::groups::FIRST_PERIOD;
use crate::inbox::Inbox;
use crate::nodes::Nodes;
use crate::perf::{self, Bell, Kernel, Sampler};
use crate::sample_period::{self, MIN_PERIOD};
use crate::sampler::Sampling;
use crate::world::World;
use crate::{Error, Latencies, Options, TimerChoice};

/// Threads of a program that can record accesses at the same time.
const RECORDING_THREADS: u32 = 256;
/// Accesses of a module that are recorded in one burst, and the time until the next burst may begin.
const BURST_ACCESSES: u32 = 16_384;
const BURSTS_ANEW: Duration = Duration::from_millis(50);
/// Share of the overhead limit that following allocations may use where hot accesses are patched as well.
const OBJECTS_SHARE: f64 = 0.3;
/// Bytes of text, in all its files that were never planned, for whose plans a program waits: it takes about
/// 10 ms, once a file. What is more is planned while it runs.
const TEXT_AT_START: u64 = 2 << 20;
/// Poll interval of [`Recorder::wait_attached`].
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How the recorded program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// A signal with this number killed it.
    Killed(i32),
    /// It goes on without being recorded.
    Detached,
}

/// Why waiting for attached processes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// A [`Stopper`] was used.
    Stopped,
    /// The requested duration is over.
    Elapsed,
    /// The processes have ended.
    Gone,
}

/// Totals of a finished recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The run file.
    pub path: PathBuf,
    /// Number of timer samples.
    pub samples: u64,
    /// Number of timed accesses.
    pub accesses: u64,
    /// What is missing, and why.
    pub gaps: Vec<Gap>,
}

/// Makes [`Recorder::wait_attached`] return, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<AtomicBool>);

impl Stopper {
    /// Makes it return within one poll interval.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A recording in progress.
#[derive(Debug)]
pub struct Recorder {
    session: Option<Session>,
    driver: JoinHandle<Driver>,
    /// Tells the driver to end.
    stop: Arc<AtomicBool>,
    /// Wakes the sampler's thread, so that the driver notices `stop` at once.
    bell: Option<Arc<Bell>>,
    /// Set by the driver when there is nothing more to record.
    over: Arc<AtomicBool>,
    stopper: Stopper,
    cut_off: CutOff,
    path: PathBuf,
    clock: Clock,
    duration: Option<Duration>,
    /// The program runs without an agent, since none of the requested data needs one.
    untouched: bool,
}

impl Recorder {
    /// Starts `program` and records it.
    ///
    /// # Errors
    /// When the run file cannot be made (the program was not started then), or the program
    /// cannot be started.
    pub fn launch(program: &Program, options: Options) -> Result<Self, Error> {
        let mut gaps = Gaps::default();
        let (options, sample_ns) = with_period(options);
        // Opened before the program starts, so that the program is sampled from its first instruction.
        let sampler = sampler(&options, &mut gaps)?;
        let timer = match sampler {
            Some(_) => TimerKind::CpuClock,
            None => TimerKind::AgentTimer,
        };
        let command = std::iter::once(&program.name).chain(&program.arguments);
        let command = command.map(|word| word.to_string_lossy().into_owned());
        let mut parts = Parts::begin(options, command.collect(), None, timer, gaps, sample_ns)?;
        let untouched = parts.needs_no_agent();
        let session = if untouched {
            Session::start_untouched(program, parts.session_options())?
        } else {
            Session::start(program, parts.session_options())?
        };
        let remote = (!untouched).then(|| session.remote());
        let mut sampling = None;
        if let Some(sampler) = sampler {
            match parts.sample(sampler, remote) {
                Ok(begun) => sampling = Some(begun),
                Err(refused) => parts.gaps.note("samples", refused.to_string(), None),
            }
        }
        if let Some(obstacle) = session.obstacle() {
            parts.unpatched(&obstacle.to_string());
        }
        parts.start(Some(session), sampling)
    }

    /// Records a process that runs already, and its future children.
    ///
    /// # Errors
    /// When the run file cannot be made, or the process cannot be sampled.
    pub fn attach(pid: u32, options: Options) -> Result<Self, Error> {
        let refused = |reason: String| Error::Attach { pid, reason };
        if membound_platform::stat::started(pid).is_err() {
            return Err(refused("there is no such process".to_owned()));
        }
        if options.timer == TimerChoice::Agent {
            let reason = "the agent can only be brought into programs that membound starts";
            return Err(refused(reason.to_owned()));
        }
        let (options, sample_ns) = with_period(options);
        // Attach once before the run file is created, so that a failure leaves no file.
        let config = config(&options);
        drop(Sampler::attach(pid, &config).map_err(|error| refused(error.to_string()))?);
        let timer = TimerKind::CpuClock;
        let gaps = Gaps::default();
        let mut parts = Parts::begin(options, Vec::new(), Some(pid), timer, gaps, sample_ns)?;
        let sampling = parts
            .sample_running(pid)
            .map_err(|error| refused(error.to_string()))?;
        let reason = "a process that runs already has no agent in it";
        let remedy = Some("start the program with membound profile -- COMMAND");
        for about in ["latencies", "objects", "bursts", "blocks"] {
            parts.gaps.note(about, reason, remedy);
        }
        parts.start(None, Some(sampling))
    }

    /// The session of a program that was started.
    #[must_use]
    pub const fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Gives a handle that ends [`Self::wait_attached`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Gives a handle that ends the recording while the program goes on; it works from any thread.
    #[must_use]
    pub fn cut_off(&self) -> CutOff {
        self.cut_off.clone()
    }

    /// Ends the session of a started program, whether its recording was cut off or not. The run file stays as
    /// it is, incomplete.
    #[must_use]
    pub fn close(self) -> Option<Report> {
        self.end_driver();
        // The driver's rows are not written any more.
        drop(self.driver.join());
        self.session.map(Session::finish)
    }

    fn end_driver(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.iter().for_each(|bell| bell.ring());
    }

    /// Waits until the attached processes have ended, the requested duration is over, or a
    /// [`Stopper`] was used.
    #[must_use]
    pub fn wait_attached(&self) -> Over {
        loop {
            if self.stopper.0.load(Ordering::Acquire) {
                return Over::Stopped;
            }
            if self.over.load(Ordering::Acquire) || self.driver.is_finished() {
                let elapsed = self
                    .duration
                    .is_some_and(|limit| u128::from(self.clock.now_ns()) >= limit.as_nanos());
                return if elapsed { Over::Elapsed } else { Over::Gone };
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the recording and completes the run file.
    ///
    /// # Errors
    /// When the run file could not be completed; the rows that it has stay.
    pub fn finish(self, ended: Ended) -> Result<Summary, Error> {
        let elapsed_ns = self.clock.now_ns();
        self.end_driver();
        let output = |reason: String| Error::Output {
            path: self.path.clone(),
            reason,
        };
        let driver = self.driver.join();
        let mut driver = driver.map_err(|_| output("the recorder itself failed".to_owned()))?;
        // Not earlier: until the driver has ended, it exchanges patches and reads counts.
        let report = self.session.map(Session::finish);
        if !driver.is_complete {
            driver.drain();
        }
        if let Some(report) = report.as_ref().filter(|_| !self.untouched) {
            copy_report(report, &mut driver);
        }
        let limit = self
            .duration
            .map_or(u64::MAX, |limit| limit.as_nanos() as u64);
        if !driver.is_complete {
            driver.write_all(elapsed_ns.min(limit));
        }
        match ended {
            Ended::Exited(code) => driver.meta.exit_code = Some(code),
            Ended::Killed(signal) => driver.meta.signal = Some(signal),
            Ended::Detached => {}
        }
        driver.meta.held_ns = report.as_ref().map_or(0, |report| report.held_ns);
        driver
            .file
            .finish(&driver.meta, driver.gaps.all())
            .map_err(output)?;
        Ok(Summary {
            path: self.path,
            samples: driver.samples,
            accesses: driver.accesses,
            gaps: driver.gaps.all().to_vec(),
        })
    }
}

/// Copies the launcher's report into the run.
fn copy_report(report: &Report, driver: &mut Driver) {
    driver.meta.stops.clone_from(&report.stops.counts);
    driver.meta.longest_stop_ns = Some(report.stops.longest_ns);
    if let Some(reason) = &report.unpatched {
        unpatched(&mut driver.gaps, reason);
    }
    for missed in &report.missed {
        driver.gaps.note("processes", missed.clone(), None);
    }
    if let Some(records) = &report.records {
        let remedy = None;
        driver.gaps.count(
            "latencies",
            "the programs' rings were full",
            remedy,
            records.lost.saturating_sub(records.lost_in_bursts),
        );
        let reason = "accesses of code that nobody knows any more";
        driver
            .gaps
            .count("latencies", reason, remedy, records.unattributed);
    }
    let Driver { world, gaps, .. } = driver;
    let mut world = crate::lock(world);
    let images = (0..world.images()).filter_map(|index| u32::try_from(index).ok());
    for process in images.map(membound_run::ProcessId) {
        // A forked process has its parent's patches, or lacks them as its parent does.
        if let Some(parent) = world.forked_from(process) {
            let reason = world.row(parent).unpatched.clone();
            if reason.is_some() {
                world.change(process, |row| row.unpatched = reason);
            }
            continue;
        }
        let row = world.row(process);
        if let Some(reason) = why_unpatched(&report.programs, row.pid, &row.path) {
            unpatched(gaps, &reason);
            world.change(process, |row| row.unpatched = Some(reason));
        }
    }
}

/// Why the program `path` of process `pid` was not patched; `None` if it was. `path` is empty if the process
/// ended before its executable could be read.
fn why_unpatched(programs: &[RanProgram], pid: u32, path: &str) -> Option<String> {
    let program = programs
        .iter()
        .rfind(|it| it.pid == pid && (path.is_empty() || it.path == Path::new(path)));
    match program {
        Some(program) => program.unpatched.clone(),
        None if path.is_empty() => {
            Some(format!("process {pid} ended before it could be looked at"))
        }
        None => membound_launch::examine(Path::new(path)).map(|it| it.to_string()),
    }
}

fn unpatched(gaps: &mut Gaps, reason: &str) {
    for about in ["latencies", "objects", "bursts", "blocks"] {
        gaps.note(about, reason, None);
    }
}

/// Options with a period, and the CPU time in nanoseconds that one of perf's samples costs the sampled thread:
/// 0 where perf may not sample.
fn with_period(mut options: Options) -> (Options, f64) {
    let sample_ns = match options.timer {
        TimerChoice::Agent => None,
        TimerChoice::Auto | TimerChoice::Perf => perf::sample_cost_ns(&config(&options)),
    }
    .unwrap_or(0.0);
    // A harvest that begins in place waits for the plan that these samples are for.
    if options.period.is_none() && options.harvest.is_none() {
        options.period = Some(sample_period::affordable(sample_ns, options.max_overhead));
    }
    (options, sample_ns)
}

fn period(options: &Options) -> Duration {
    options.period.unwrap_or(MIN_PERIOD)
}

fn period_ns(options: &Options) -> u64 {
    u64::try_from(period(options).as_nanos()).unwrap_or(u64::MAX)
}

fn config(options: &Options) -> perf::Config {
    perf::Config {
        period_ns: period_ns(options),
        ..perf::Config::default()
    }
}

/// True if the kernel permits timer samples of programs that are started with these options.
#[must_use]
pub fn can_sample(options: &Options) -> bool {
    Sampler::for_children(&config(options)).is_ok()
}

/// A sampler for programs that the calling thread will start; `None` if the agent takes the samples.
fn sampler(options: &Options, gaps: &mut Gaps) -> Result<Option<Sampler>, Error> {
    if options.timer == TimerChoice::Agent {
        return match membound_launch::AGENT {
            [] => Err(Error::Timer {
                reason: membound_launch::Unpatched::NoAgent.to_string(),
            }),
            _ => Ok(None),
        };
    }
    match Sampler::for_children(&config(options)) {
        Ok(sampler) => {
            if sampler.kernel() == Kernel::Unseen {
                let reason = "time in the kernel is counted, not sampled: kernel.perf_event_paranoid \
                              does not permit it";
                let remedy = Some("set kernel.perf_event_paranoid to 1 or less");
                gaps.note("samples", reason, remedy);
            }
            Ok(Some(sampler))
        }
        // Without an agent, only perf could take samples.
        Err(error) if options.timer == TimerChoice::Perf || membound_launch::AGENT.is_empty() => {
            Err(Error::Timer {
                reason: error.to_string(),
            })
        }
        Err(error) => {
            let reason = format!("samples are the agent's, coarser than perf's: {error}");
            gaps.note("samples", reason, None);
            Ok(None)
        }
    }
}

/// Everything that a recording is built from, before it starts.
struct Parts {
    options: Options,
    clock: Clock,
    meta: Meta,
    file: RunFile,
    world: Arc<Mutex<World>>,
    inbox: Arc<Inbox>,
    gaps: Gaps,
    nodes: Nodes,
    costs: Costs,
}

impl Parts {
    /// Creates the run file and starts the clock.
    fn begin(
        options: Options,
        command: Vec<String>,
        attached: Option<u32>,
        timer: TimerKind,
        gaps: Gaps,
        sample_ns: f64,
    ) -> Result<Self, Error> {
        let root = Root::system();
        let nodes = Nodes::read(&root);
        let own_cpu_before_ns = cpu_time::of_this_process();
        let clock = Clock::begin(None);
        let patched = options.latencies == Latencies::On && attached.is_none();
        let meta = Meta {
            membound_version: options.membound_version.clone(),
            command,
            attached,
            host: root
                .attribute("proc/sys/kernel/hostname")
                .unwrap_or_default(),
            date: membound_platform::date::now_utc(),
            timer,
            period_ns: period_ns(&options),
            site_period: FIRST_PERIOD,
            latencies: patched,
            patch: if patched {
                patch::sampler_identity()
            } else {
                String::new()
            },
            objects_from_bytes: options.objects.filter(|_| attached.is_none()),
            tsc_hz: clock.tsc_hz(),
            cpus: std::thread::available_parallelism()
                .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(1)),
            nodes: u32::try_from(nodes.count()).unwrap_or(1),
            cpu_nodes: nodes.of_cpus().to_vec(),
            machine: options.machine.clone().map(Box::new),
            ..Meta::default()
        };
        let file = create(&options.output, &meta)?;
        Ok(Self {
            options,
            clock,
            meta,
            file: RunFile::new(file),
            world: Arc::default(),
            inbox: Arc::default(),
            gaps,
            nodes,
            costs: Costs {
                // The cost of the agent's own samples is not known.
                sample_ns: if timer == TimerKind::CpuClock {
                    sample_ns
                } else {
                    0.0
                },
                own_cpu_before_ns,
            },
        })
    }

    fn session_options(&self) -> membound_launch::Options {
        let options = &self.options;
        let receiver = Arc::clone(&self.inbox);
        membound_launch::Options {
            plan: patch::Options::bare(Hooks::Plant),
            cache: options.cache.clone(),
            revision: options.revision.clone(),
            live: Live::On,
            text_at_start: options.harvest.is_none().then_some(TEXT_AT_START),
            short_lived: ShortLived::OF_RECORDINGS,
            period: FIRST_PERIOD,
            recording: (options.latencies == Latencies::On).then(|| Recording {
                threads: RECORDING_THREADS,
                // Recording bodies record whenever they are in the text, which windows decide. On a busy
                // machine that is longer than wanted, hence these limits.
                bursts: Some(Bursts {
                    length: BURSTS_ANEW,
                    every: BURSTS_ANEW,
                    accesses: BURST_ACCESSES,
                }),
                receiver: Some(Arc::clone(&receiver) as Arc<dyn Receiver>),
                ..Recording::default()
            }),
            objects: options
                .objects
                .map(|every_from_bytes| membound_launch::Objects {
                    every_from_bytes,
                    max_overhead: match options.latencies {
                        Latencies::On => options.max_overhead * OBJECTS_SHARE,
                        Latencies::Off => options.max_overhead,
                    },
                    others: options.allocators.clone(),
                    receiver: Arc::clone(&receiver) as Arc<dyn AllocationReceiver>,
                }),
            timers: (self.meta.timer == TimerKind::AgentTimer).then(|| membound_launch::Timers {
                period: period(options),
                receiver: receiver as Arc<dyn TimerReceiver>,
            }),
            harvest: options.harvest.clone(),
            directory: options.directory.clone(),
            perf_maps: None,
        }
    }

    /// True if no requested data comes from inside the program.
    fn needs_no_agent(&self) -> bool {
        self.meta.timer == TimerKind::CpuClock
            && self.options.latencies == Latencies::Off
            && self.options.objects.is_none()
    }

    /// Starts the thread that reads `sampler`'s events.
    fn sample(
        &self,
        sampler: Sampler,
        remote: Option<membound_launch::Remote>,
    ) -> Result<Sampling, Refused> {
        let world = Arc::clone(&self.world);
        Ok(Sampling::begin(sampler, self.clock, world, remote)?)
    }

    /// Attaches to a process that runs already.
    fn sample_running(&self, pid: u32) -> Result<Sampling, Refused> {
        let sampler = Sampler::attach(pid, &config(&self.options))?;
        {
            // The kernel does not report mappings from before the attach: read them now.
            let now_ns = self.clock.now_ns();
            let mut world = crate::lock(&self.world);
            world.threads.begin_at_present(pid);
            let process = world.image(pid, now_ns);
            world.threads.look(process, pid, now_ns);
        }
        self.sample(sampler, None)
    }

    fn unpatched(&mut self, reason: &str) {
        unpatched(&mut self.gaps, reason);
        if self.meta.timer == TimerKind::AgentTimer {
            self.gaps.note("samples", reason, None);
        }
    }

    fn start(
        self,
        session: Option<Session>,
        sampling: Option<Sampling>,
    ) -> Result<Recorder, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let over = Arc::new(AtomicBool::new(false));
        let session_with_agent = session.as_ref().filter(|_| !self.needs_no_agent());
        let remote = session_with_agent.map(Session::remote);
        let (path, duration) = (self.options.output.clone(), self.options.duration);
        let clock = self.clock;
        let untouched = self.needs_no_agent();
        let bell = sampling.as_ref().map(Sampling::bell);
        let cut_off = CutOff::default();
        let mut driver = Driver::new(
            self.options,
            self.clock,
            self.meta,
            self.world,
            self.inbox,
            remote,
            sampling,
            self.file,
            self.gaps,
            self.nodes,
        );
        driver.costs = self.costs;
        let thread = std::thread::Builder::new().name("recorder".to_owned());
        let driver = {
            let (stop, over) = (Arc::clone(&stop), Arc::clone(&over));
            let cut_off = cut_off.clone();
            thread.spawn(move || {
                membound_launch::slice::shorten();
                driver.run(&stop, &over, &cut_off);
                driver
            })
        };
        Ok(Recorder {
            session,
            driver: driver.map_err(Error::Thread)?,
            stop,
            bell,
            over,
            stopper: Stopper::default(),
            cut_off,
            path,
            clock,
            duration,
            untouched,
        })
    }
}

/// Why a process cannot be sampled.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Perf(#[from] perf::Error),
    #[error("no thread can be started for samples: {0}")]
    Thread(#[from] std::io::Error),
}

fn create(path: &Path, meta: &Meta) -> Result<Writer, Error> {
    Writer::create(path, meta).map_err(|error| Error::Output {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_at_once_is_known_by_its_number() {
        let program = |pid, path: &str, unpatched: Option<&str>| RanProgram {
            pid,
            path: path.into(),
            unpatched: unpatched.map(str::to_owned),
        };
        let programs = [
            program(7, "/bin/patched", None),
            program(8, "/bin/sh", None),
            program(8, "/bin/static", Some("it is static")),
        ];
        let why = |pid, path| why_unpatched(&programs, pid, path);
        assert_eq!(why(7, "/bin/patched"), None);
        assert_eq!(why(7, ""), None);
        assert_eq!(why(8, "/bin/sh"), None);
        assert_eq!(why(8, "").as_deref(), Some("it is static"));
        let unknown = why(9, "").unwrap();
        assert!(unknown.contains("process 9 ended"), "{unknown}");
    }
}
