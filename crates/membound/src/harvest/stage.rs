//! One harvest from start to document: with a command, without one, or a command's first run, from which its
//! plan is made.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use membound_control::{
    Controller, FIRST_SPAN_NS, Interleaving, Limits, MAX_ADMITTED_SHARE, MAX_SKIPS, SiblingControl,
    SliceControl,
};
use membound_launch::{Harvest, Idle, Live, ScavengerPlacement, ShortLived};
use membound_platform::disturb::ThreadUsage;
use membound_platform::{Root, affinity, memory};
use membound_rewrite::patch::{self, Hooks};
use membound_types::{
    FollowedPlan, HarvestPart, HarvestPlan, HarvestRun, HarvestRunOptions, IdlePolicy, MachineInfo,
    Scavenger, Timer,
};

use super::args::RunArgs;
use super::cast::{self, RoleAssignment};
use super::choices::{Choices, PlannedYield, host_yield};
use super::copies::Member;
use super::document::{self, Facts};
use super::ended::EndWatch;
use super::follow::{Follower, Observed, OtherProcesses, figures};
use super::in_place::{Adopted, InPlace};
use super::learning::{self, Learning, Observation, ObservationTask, file_bytes};
use super::off_switch::{HarvestSwitch, Switch};
use super::ordinary::Processes;
use super::plans::{PlanMaker, PlanWithOrigin};
use super::programs::{Program, texts};
use super::roles::{self, RunQueueLayout};
use super::running::{EndedCommand, Running, StartedCommand};
use super::slots::{self, Slots};
use super::timing::{Timing, ticks_per_ns};
use crate::job::{self, Job};
use crate::profile::{self, Recorded};
use crate::{launching, output, version};

/// How long the command waits for its scavengers to reach their first yield before it begins.
const FIRST_YIELD_TIMEOUT: Duration = Duration::from_secs(20);
/// Time between two polls of the ordinary processes alongside a command that is profiled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Reason in the report: the run ended before a plan of the command was made.
const TOO_SHORT: &str = "the command ended before a plan could be made";
/// Reasons why a command without a plan can be harvested only in its next run.
const NO_HARVESTED_SCAVENGER: &str = "no scavenger has a plan that gives it time slices";
const IS_SCRIPT: &str =
    "it is a script, and the programs that it executes would end the scavengers";
const NO_SAMPLES: &str = "the kernel does not permit timer samples (perf_event_paranoid)";
const TOO_LARGE: &str = "its file is so large that the command would have to wait for its patches";
/// Size of a command's file above which it is not planned while it runs, in bytes: the command would be held
/// for some tenths of a second until all its text is analysed.
const MAX_BYTES: u64 = 8 << 20;

/// Document of the run and how the command ended, or an exit code whose reason was already printed.
pub(super) type Done = Result<(HarvestRun, job::End), ExitCode>;

/// Inputs that all variants of a harvest share.
pub(super) struct Stage<'a> {
    args: &'a RunArgs,
    maker: Arc<PlanMaker>,
    timing: Timing,
    /// Read when it is first needed: reading it takes some milliseconds, and programs would start later.
    info: LazyCell<MachineInfo>,
    start: Instant,
    /// CPU time of child processes that had ended before this harvest began, in seconds.
    cpu_before_s: f64,
}

/// Run queues of a harvest without a command, and the ordinary processes that were started alongside them.
pub(super) struct WithoutCommand {
    layout: RunQueueLayout,
    processes: Processes,
}

/// The plans that a harvest follows, and the yields that it has by them.
struct HarvestSetup {
    /// Maximum number of scavengers in one run queue.
    per_thread: u32,
    origins: Vec<FollowedPlan>,
    plans: Vec<HarvestPlan>,
    choices: Choices,
}

impl HarvestSetup {
    /// Adds the plan that was made during the run and adopted at `after`.
    fn adopt(&mut self, adopted: Adopted, after: Duration) {
        let Adopted { followed, choices } = adopted;
        self.origins.push(FollowedPlan {
            planted_after_s: Some(after.as_secs_f64()),
            ..followed.from
        });
        self.plans.push(followed.plan);
        self.choices.left_out.extend(choices.left_out);
        self.choices.yields = choices.yields;
    }
}

impl<'a> Stage<'a> {
    pub(super) fn new(args: &'a RunArgs, maker: Arc<PlanMaker>, timing: Timing) -> Self {
        Self {
            args,
            maker,
            timing,
            info: LazyCell::new(|| {
                version::machine(&Root::system(), Timer::default(), BTreeMap::new())
            }),
            start: Instant::now(),
            cpu_before_s: ThreadUsage::of_children().cpu_s(),
        }
    }

    fn processors(&self) -> usize {
        affinity::allowed().map_or(1, |cpus| cpus.len().max(1))
    }

    /// Runs scavengers interleaved with each other where that is expected to beat running them one after
    /// another.
    pub(super) fn without_command(
        &self,
        mut command: Program,
        mut assignment: RoleAssignment,
    ) -> anyhow::Result<Done> {
        let processors = self.processors();
        let ordinary = std::mem::take(&mut assignment.ordinary);
        let mut processes = Processes::start(ordinary, processors);
        // Read while the processes run.
        let _ = LazyCell::force(&self.info);
        assignment.learn_all(&mut processes);
        let layout = run_queue_layout(
            self.args,
            assignment.harvested.len(),
            processes.count(),
            processors,
        );
        if layout.threads == 0 {
            for member in assignment.harvested.drain(..) {
                processes.add(cast::ordinary(member, ON_ITS_OWN));
            }
            let ordinary = processes.end(true, processors);
            return Ok(Ok(self.without_harvest(ordinary, assignment.followed)));
        }
        if processors == 1 {
            // The run queue has the only processor until its scavengers have ended.
            processes.hold_back();
        }
        command.words.push(layout.threads.to_string().into());
        self.harvest(
            command,
            assignment,
            Some(WithoutCommand { layout, processes }),
            None,
        )
    }

    /// The document of a harvest in which all scavengers ran as ordinary processes.
    fn without_harvest(
        &self,
        ordinary: Vec<Scavenger>,
        followed: Vec<PlanWithOrigin>,
    ) -> (HarvestRun, job::End) {
        let plans = followed.into_iter().map(|it| it.from).collect();
        let end = job::End::Exited(0);
        let document = document::document(Facts {
            wall_s: self.start.elapsed().as_secs_f64(),
            options: run_options(self.args, 0, plans),
            ordinary,
            ..Facts::nothing(&self.info, &Observed::default(), end)
        });
        (document, end)
    }

    /// Runs the command with scavengers in its time slices.
    pub(super) fn harvest(
        &self,
        command: Program,
        assignment: RoleAssignment,
        without_command: Option<WithoutCommand>,
        in_place: Option<InPlace>,
    ) -> anyhow::Result<Done> {
        let harvested = assignment.harvested;
        let per_thread = match &without_command {
            Some(without_command) => without_command.layout.per_thread,
            None => per_thread(self.args, harvested.len()),
        };
        let mut setup = self.setup(assignment.followed, per_thread)?;
        let mut harvest = self.wanted(&harvested, &mut setup.choices, per_thread);
        if in_place.is_some() {
            // Until there is a plan, scavengers run as ordinary processes would, and the command does not
            // wait for them.
            harvest.begins = ScavengerPlacement::Own;
            harvest.patience = Duration::ZERO;
        }
        let switch = Switch::listen().context("cannot listen for SIGUSR2")?;
        let job = Job::prepare()?;
        let mut ordinary = Some(assignment.ordinary);
        let mut begin = || Processes::start_with_command(ordinary.take().unwrap_or_default());
        // Started before the command: processes that this thread starts later would be sampled with the
        // command.
        let before = in_place.is_some().then(&mut begin);
        let running = match self.start(&command, harvest, &setup.choices, in_place.as_ref())? {
            Ok(running) => running,
            Err(code) => return Ok(Err(code)),
        };
        let session = running.session()?;
        let processes = match without_command {
            Some(without_command) => without_command.processes,
            None => before.unwrap_or_else(begin),
        };
        if let Some(obstacle) = session.obstacle() {
            output::complain(&format!("runs without scavengers: {obstacle}"));
        }
        let started = StartedCommand {
            running,
            job,
            switch,
            processes,
            in_place,
        };
        Ok(self
            .follow(started, &setup.choices.yields, harvested.len())?
            .map(|ended| self.report(&command, harvested, setup, ended)))
    }

    fn setup(
        &self,
        followed: Vec<PlanWithOrigin>,
        per_thread: u32,
    ) -> anyhow::Result<HarvestSetup> {
        let (origins, plans): (Vec<_>, Vec<HarvestPlan>) = followed
            .into_iter()
            .map(|followed| (followed.from, followed.plan))
            .unzip();
        let mut choices = Choices::of(&plans, &self.args.without, self.live())?;
        if self.args.no_primary {
            choices.primary.push(host_yield()?);
        }
        Ok(HarvestSetup {
            per_thread,
            origins,
            plans,
            choices,
        })
    }

    /// Starts the command; the error is the exit code if it cannot be run.
    fn start(
        &self,
        command: &Program,
        harvest: Harvest,
        choices: &Choices,
        in_place: Option<&InPlace>,
    ) -> anyhow::Result<Result<Running, ExitCode>> {
        let arguments = command.words.get(1..).unwrap_or_default();
        let program = launching::program(command.path.as_os_str(), arguments);
        if let Some(in_place) = in_place {
            let machine = self.maker.machine.clone();
            let recorder = profile::for_harvest(&program, in_place.run_file(), machine, harvest)?;
            return Ok(recorder.map(|it| Running::Recorded(Box::new(it))));
        }
        // The off switch also removes yields, except in loops that run at that time: without a slowdown
        // limit, loops are patched as a whole.
        let live = match choices.yields.is_empty() || self.args.no_primary {
            true => Live::Off,
            false => Live::On,
        };
        let session = launching::start(&program, session_options(harvest, live))?;
        Ok(session.map(Running::Plain))
    }

    /// Follows the started command to its end; the error is the exit code if requests cannot be observed.
    fn follow(
        &self,
        started: StartedCommand,
        yields: &[PlannedYield],
        scavengers: usize,
    ) -> anyhow::Result<Result<EndedCommand, ExitCode>> {
        let args = self.args;
        let processors = self.processors();
        let running = started.running;
        let session = running.session()?;
        let slots = Slots::new(args, &self.info.cpu, scavengers);
        let controller = self.controller(yields, &slots);
        let in_place = started.in_place.map(|it| it.follow(running.cut_off()));
        let follower = Follower::begin(
            (session.remote(), session.pid()),
            (controller, yields.to_vec()),
            slots,
            OtherProcesses::new(started.processes, processors),
            (started.switch, HarvestSwitch::new(args, yields, scavengers)),
            (self.start, in_place),
        );
        let watch = args
            .finish
            .then(|| EndWatch::begin(session.pid(), self.start));
        let end = started.job.follow(session)?;
        let primary_wall = watch.and_then(EndWatch::end);
        let was_in_place = running.is_recorded();
        let (observed, processes) = follower.end();
        if let Some(why) = observed.prevented() {
            output::complain(&format!("--requests: {why}"));
            return Ok(Err(ExitCode::FAILURE));
        }
        let ordinary = processes.end(args.finish || args.no_primary, processors);
        let wall_s = self.start.elapsed().as_secs_f64();
        let process_cpu_s = self.process_cpu_s(&ordinary);
        Ok(Ok(EndedCommand {
            end,
            wall_s,
            primary_wall,
            process_cpu_s,
            observed,
            ordinary,
            was_in_place,
            report: running.finish(),
        }))
    }

    fn report(
        &self,
        command: &Program,
        harvested: Vec<Member>,
        mut setup: HarvestSetup,
        mut ended: EndedCommand,
    ) -> (HarvestRun, job::End) {
        let args = self.args;
        let report = ended.report;
        let mut missed: Vec<String> = report.iter().flat_map(|it| it.missed.clone()).collect();
        missed.extend(report.and_then(|it| it.unpatched));
        match ended.observed.learned.take() {
            Some(Ok((adopted, after))) => setup.adopt(*adopted, after),
            Some(Err(why)) => {
                missed.push(format!("the command was profiled, but has no plan: {why}"))
            }
            None if ended.was_in_place => missed.push(TOO_SHORT.to_owned()),
            None => {}
        }
        missed.extend(ended.observed.off.clone());
        let primary_wall_s = ended
            .primary_wall
            .map_or(ended.wall_s, |wall| wall.as_secs_f64());
        let document = document::document(Facts {
            wall_s: ended.wall_s,
            primary_wall_s: (!args.no_primary).then_some(primary_wall_s),
            process_cpu_s: ended.process_cpu_s,
            options: run_options(args, setup.per_thread, setup.origins),
            requests: args.requests.as_ref(),
            command: if args.no_primary {
                Vec::new()
            } else {
                texts(&command.words)
            },
            scavengers: harvested
                .into_iter()
                .map(|(_, copy_request)| copy_request)
                .collect(),
            ordinary: ended.ordinary,
            plans: &setup.plans,
            left_out: setup.choices.left_out,
            yields: &setup.choices.yields,
            missed,
            ..Facts::nothing(&self.info, &ended.observed, ended.end)
        });
        (document, ended.end)
    }

    /// The harvest that the launcher is asked to run.
    fn wanted(&self, harvested: &[Member], choices: &mut Choices, per_thread: u32) -> Harvest {
        let args = self.args;
        Harvest {
            scavengers: harvested
                .iter()
                .map(|(scavenger, _)| scavenger.clone())
                .collect(),
            primary: std::mem::take(&mut choices.primary),
            scavenger_yields: std::mem::take(&mut choices.scavengers),
            span_ns: match args.bound_ns {
                Some(_) => FIRST_SPAN_NS,
                None => self.timing.span_ns,
            },
            per_thread,
            huge_pages: !args.without.contains(&HarvestPart::HugePages),
            finish: args.finish,
            idle: match args.idle {
                IdlePolicy::Harvest => Idle::Harvest,
                IdlePolicy::Steal => Idle::Steal,
                IdlePolicy::Stop => Idle::Stop,
            },
            waits: !args.without.contains(&HarvestPart::Waits),
            // Phases without scavengers show how fast the command is without them.
            share: if args.no_primary {
                1.0
            } else {
                MAX_ADMITTED_SHARE
            },
            peers: args.no_primary,
            // Without a command to wait for, the follower decides which scavengers run first.
            begins: match args.no_primary {
                true => ScavengerPlacement::Held,
                false => ScavengerPlacement::RunQueues,
            },
            // Memory that scavengers use is not available to the command, and where memory runs out the
            // kernel would end the command together with its scavengers.
            memory_bytes: args
                .memory
                .unwrap_or_else(|| memory::available_bytes(&Root::system()) / 2)
                .max(1),
            ticks_per_ns: ticks_per_ns(self.maker.machine.as_ref()),
            requests: args.requests.clone(),
            patience: FIRST_YIELD_TIMEOUT,
        }
    }

    fn controller(&self, yields: &[PlannedYield], slots: &Slots) -> Controller {
        let args = self.args;
        let limits = Limits {
            max_slowdown: args.max_slowdown,
            slo_p95_ns: args.slo_p95,
        };
        let siblings = || SiblingControl::new(limits);
        Controller::new(limits, &figures(yields))
            .with_slices(self.slice_control())
            .with_siblings(slots.are_controlled().then(siblings))
            .with_interleaving(args.no_primary.then(Interleaving::default))
    }

    fn slice_control(&self) -> Option<SliceControl> {
        let most_skips = if self.args.without.contains(&HarvestPart::Skips) {
            0
        } else {
            MAX_SKIPS
        };
        let timing = &self.timing;
        self.args.bound_ns.map(|bound_ns| {
            SliceControl::new(bound_ns, timing.hidden_ns, timing.span_ns).skipping(most_skips)
        })
    }

    /// CPU time of the command's process in seconds: that of all children but the ordinary processes.
    fn process_cpu_s(&self, ordinary: &[Scavenger]) -> f64 {
        let ordinary_s: f64 = ordinary.iter().map(|it| it.own_thread_s).sum();
        let children_s = ThreadUsage::of_children().cpu_s() - self.cpu_before_s;
        (children_s - ordinary_s).max(0.0)
    }

    /// Whether yields of the command must be removable from its text while it runs.
    const fn live(&self) -> Live {
        match self.args.max_slowdown {
            // The slowdown guard removes yields.
            Some(_) => Live::On,
            None => Live::Off,
        }
    }

    /// Runs a command that has no plan yet.
    pub(super) fn first_run(
        &self,
        command: Program,
        assignment: RoleAssignment,
        task: ObservationTask,
    ) -> anyhow::Result<Done> {
        if let Some(obstacle) = membound_launch::examine(&command.path) {
            return self.profiled_run(command, assignment, task, &obstacle.to_string());
        }
        if is_script(&command.path) {
            return self.profiled_run(command, assignment, task, IS_SCRIPT);
        }
        if assignment.harvested.is_empty() {
            return self.profiled_run(command, assignment, task, NO_HARVESTED_SCAVENGER);
        }
        if !profile::can_sample() {
            return self.profiled_run(command, assignment, task, NO_SAMPLES);
        }
        if file_bytes(&command.path) > MAX_BYTES {
            return self.profiled_run(command, assignment, task, TOO_LARGE);
        }
        let without = self.args.without.clone();
        let in_place = InPlace::begin(task, without, self.live(), assignment.harvested.len());
        self.harvest(command, assignment, None, in_place.ok())
    }

    /// Runs a command that has no plan and profiles it for the next run. Scavengers run as ordinary
    /// processes; `why` is the reason, shown to the user, for giving them no time slices in this run.
    fn profiled_run(
        &self,
        command: Program,
        mut assignment: RoleAssignment,
        task: ObservationTask,
        why: &str,
    ) -> anyhow::Result<Done> {
        let Ok(mut learning) = Learning::begin(task) else {
            return self.harvest(command, assignment, None, None);
        };
        let mut processes = Processes::start_with_command(assignment.all_ordinary());
        let run = learning.run_file();
        let (stop, stopped) = mpsc::channel::<()>();
        let looking = std::thread::spawn(move || {
            let mut learned = None;
            while stopped.recv_timeout(POLL_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                processes.poll();
                learned = learned.or_else(|| learning.poll(false));
            }
            (processes, learning, learned)
        });
        let maker = &self.maker;
        let recorded =
            profile::in_place(&command.words, run, maker.machine.clone(), maker.duration);
        let wall_s = self.start.elapsed().as_secs_f64();
        drop(stop);
        let looked = looking.join();
        let (processes, mut learning, mut learned) =
            looked.map_err(|_| anyhow::anyhow!("the thread that watches scavengers failed"))?;
        let end = match recorded? {
            Recorded::NotStarted(code) => return Ok(Err(code)),
            Recorded::Whole(end) | Recorded::Failed(end, _) => end,
        };
        let ordinary = processes.end(self.args.finish, self.processors());
        let deadline = Instant::now() + learning::planning_time(self.start.elapsed());
        while learned.is_none() && !learning.is_over() && Instant::now() < deadline {
            learned = learning.poll(true);
            std::thread::sleep(Duration::from_millis(2));
        }
        let note = match learned {
            Some(Observation::Plan(_)) => {
                format!(
                    "the command was profiled in this run, and nobody took turns, since {why}: the next run \
                     follows the plan that was made (--rehearse makes it beforehand)"
                )
            }
            Some(Observation::NoPlan(why)) => {
                format!("the command was profiled, but has no plan: {why}")
            }
            None | Some(Observation::Timed(_)) => TOO_SHORT.to_owned(),
        };
        let document = document::document(Facts {
            wall_s: self.start.elapsed().as_secs_f64(),
            primary_wall_s: Some(wall_s),
            process_cpu_s: self.process_cpu_s(&ordinary),
            options: run_options(self.args, 0, Vec::new()),
            command: texts(&command.words),
            ordinary,
            missed: vec![note],
            ..Facts::nothing(&self.info, &Observed::default(), end)
        });
        Ok(Ok((document, end)))
    }
}

/// Whether the kernel runs the file with an interpreter, that is, whether it starts with `#!`.
fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

/// Maximum number of scavengers in one run queue; with idle-time execution one scavenger is kept out of it.
fn per_thread(args: &RunArgs, harvested: usize) -> u32 {
    args.per_thread.unwrap_or_else(|| {
        let all = u32::try_from(harvested).unwrap_or(u32::MAX);
        let kept = u32::from(args.idle == IdlePolicy::Harvest && all > 1);
        all.saturating_sub(kept).max(1)
    })
}

/// The options of the run as the document records them.
fn run_options(args: &RunArgs, per_thread: u32, plans: Vec<FollowedPlan>) -> HarvestRunOptions {
    HarvestRunOptions {
        per_thread,
        idle: args.idle,
        smt: args.smt,
        siblings: slots::sibling_lists(args),
        bound_ns: args.bound_ns,
        max_overhead: args.max_overhead,
        max_slowdown: args.max_slowdown,
        requests: args.requests.as_ref().map(ToString::to_string),
        slo_p95_ns: args.slo_p95,
        finish: args.finish,
        without: args.without.clone(),
        plans,
    }
}

/// Reason in the report: scavengers that could interleave run as ordinary processes, since there are
/// processors enough.
const ON_ITS_OWN: &str = "it has a processor of its own, so time slices would gain nothing";

/// How many run queues a harvest without a command has, and how many scavengers each holds.
fn run_queue_layout(
    args: &RunArgs,
    harvested: usize,
    ordinary: usize,
    processors: usize,
) -> RunQueueLayout {
    let [harvested, ordinary, processors] =
        [harvested, ordinary, processors].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut layout = roles::run_queue_layout(harvested, ordinary, processors);
    if let Some(per_thread) = args.per_thread {
        layout.threads = layout.threads.max(1);
        layout.per_thread = per_thread;
    }
    layout
}

fn session_options(harvest: Harvest, live: Live) -> membound_launch::Options {
    membound_launch::Options {
        plan: patch::Options::bare(Hooks::Plant),
        cache: launching::cache(),
        revision: launching::revision(),
        live,
        large_text_bytes: None,
        short_lived: ShortLived::All,
        period: 1,
        recording: None,
        objects: None,
        timers: None,
        harvest: Some(harvest),
        directory: launching::directory(),
        perf_maps: None,
    }
}
