//! One harvest from start to document: with a command, or without one.

use std::cell::LazyCell;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use membound_control::{
    Controller, FIRST_SPAN_NS, Interleaving, Limits, MAX_ADMITTED_SHARE, MAX_SKIPS, SiblingControl,
    SliceControl,
};
use membound_launch::{Harvest, Idle, Live, ScavengerPlacement, Session, ShortLived};
use membound_platform::disturb::ThreadUsage;
use membound_platform::{Root, affinity, memory};
use membound_record::{Blocks, Bursts, Options, Recorder, TimerChoice};
use membound_rewrite::patch::{self, Hooks};
use membound_types::{
    FollowedPlan, HarvestPart, HarvestPlan, HarvestRun, HarvestRunOptions, IdlePolicy, MachineInfo,
    Scavenger,
};

use super::choices::{Choices, PlannedYield, host_yield};
use super::control_trace::{ControlSettings, ControlTrace};
use super::copies::Member;
use super::ended::EndWatch;
use super::follower::{Follower, Observed, OtherProcesses, figures};
use super::in_place::{Adopted, InPlace};
use super::off_switch::{HarvestSwitch, OffSwitch};
use super::ordinary::Processes;
use super::role_assignment::{self, RoleAssignment};
use super::roles::{self, RunQueueLayout};
use super::run_config::RunConfig;
use super::run_document::{self, Facts};
use super::running::{EndedCommand, Running, StartedCommand};
use super::slots::{self, Slots};
use crate::environment::Environment;
use crate::error::Error;
use crate::kept_plans::{PlanMaker, PlanWithOrigin};
use crate::named_programs::{Program, texts};
use crate::slice_timing::{Timing, ticks_per_ns};

/// How long the command waits for its scavengers to reach their first yield before it begins.
const FIRST_YIELD_TIMEOUT: Duration = Duration::from_secs(20);

/// Reason in the report: the run ended before a plan of the command was made.
pub(super) const TOO_SHORT: &str = "the command ended before a plan could be made";

/// Document of the run, and how the command ended.
pub(super) type Done = (HarvestRun, ExitStatus);

/// Inputs that all variants of a harvest share.
pub(super) struct Stage<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) maker: Arc<PlanMaker>,
    timing: Timing,
    off: &'a OffSwitch,
    /// Read when it is first needed: reading it takes some milliseconds, and programs would start later.
    pub(super) info: LazyCell<MachineInfo, Box<dyn FnOnce() -> MachineInfo>>,
    pub(super) start: Instant,
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
    pub(super) fn new(
        config: &'a RunConfig,
        maker: Arc<PlanMaker>,
        timing: Timing,
        off: &'a OffSwitch,
    ) -> Self {
        let environment = maker.environment.clone();
        Self {
            config,
            maker,
            timing,
            off,
            info: LazyCell::new(Box::new(move || environment.machine_info())),
            start: Instant::now(),
            cpu_before_s: ThreadUsage::of_children().cpu_s(),
        }
    }

    pub(super) fn environment(&self) -> &Environment {
        &self.maker.environment
    }

    pub(super) fn processors(&self) -> usize {
        affinity::allowed().map_or(1, |cpus| cpus.len().max(1))
    }

    /// Runs scavengers interleaved with each other where that is expected to beat running them one after
    /// another.
    pub(super) fn without_command(
        &self,
        mut command: Program,
        mut assignment: RoleAssignment,
    ) -> Result<Done, Error> {
        let processors = self.processors();
        let ordinary = std::mem::take(&mut assignment.ordinary);
        let mut processes = Processes::start(ordinary, processors);
        // Read while the processes run.
        let _ = LazyCell::force(&self.info);
        assignment.learn_all(&mut processes);
        let layout = run_queue_layout(
            self.config,
            assignment.harvested.len(),
            processes.count(),
            processors,
        );
        if layout.threads == 0 {
            for member in assignment.harvested.drain(..) {
                processes.add(role_assignment::ordinary(member, ON_ITS_OWN));
            }
            let ordinary = processes.end(true, processors);
            return Ok(self.without_harvest(ordinary, assignment.followed));
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
    fn without_harvest(&self, ordinary: Vec<Scavenger>, followed: Vec<PlanWithOrigin>) -> Done {
        let plans = followed.into_iter().map(|it| it.from).collect();
        let end = ExitStatus::default();
        let document = run_document::document(Facts {
            wall_s: self.start.elapsed().as_secs_f64(),
            options: run_options(self.config, 0, plans),
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
    ) -> Result<Done, Error> {
        let harvested = assignment.harvested;
        let per_thread = match &without_command {
            Some(without_command) => without_command.layout.per_thread,
            None => per_thread(self.config, harvested.len()),
        };
        let mut setup = self.setup(assignment.followed, per_thread)?;
        let mut harvest = self.wanted(&harvested, &mut setup.choices, per_thread);
        if in_place.is_some() {
            // Until there is a plan, scavengers run as ordinary processes would, and the command does not
            // wait for them.
            harvest.begins = ScavengerPlacement::Own;
            harvest.patience = Duration::ZERO;
        }
        let stand_in = (self.environment().stand_in)()?;
        let mut ordinary = Some(assignment.ordinary);
        let mut begin = || Processes::start_with_command(ordinary.take().unwrap_or_default());
        // Started before the command: processes that this thread starts later would be sampled with the
        // command.
        let before = in_place.is_some().then(&mut begin);
        let running = self.start(&command, harvest, &setup.choices, in_place.as_ref())?;
        let session = running.session()?;
        let processes = match without_command {
            Some(without_command) => without_command.processes,
            None => before.unwrap_or_else(begin),
        };
        if let Some(obstacle) = session.obstacle() {
            let line = format!("runs without scavengers: {obstacle}");
            self.environment().complain(&line);
        }
        let started = StartedCommand {
            running,
            stand_in,
            processes,
            in_place,
        };
        let ended = self.follow(started, &setup.choices.yields, harvested.len())?;
        Ok(self.report(&command, harvested, setup, ended))
    }

    fn setup(&self, followed: Vec<PlanWithOrigin>, per_thread: u32) -> Result<HarvestSetup, Error> {
        let (origins, plans): (Vec<_>, Vec<HarvestPlan>) = followed
            .into_iter()
            .map(|followed| (followed.from, followed.plan))
            .unzip();
        let mut choices = Choices::of(&plans, &self.config.without, self.live())?;
        if self.config.no_primary {
            choices.primary.push(host_yield()?);
        }
        Ok(HarvestSetup {
            per_thread,
            origins,
            plans,
            choices,
        })
    }

    /// Starts the command; where it has no plan, it is recorded `in_place`.
    fn start(
        &self,
        command: &Program,
        harvest: Harvest,
        choices: &Choices,
        in_place: Option<&InPlace>,
    ) -> Result<Running, Error> {
        let arguments = command.words.get(1..).unwrap_or_default();
        let environment = self.environment();
        let program = environment.program(command.path.as_os_str(), arguments);
        if let Some(in_place) = in_place {
            let options = Options {
                machine: self.maker.machine.clone(),
                timer: TimerChoice::Perf,
                objects: None,
                blocks: Blocks::Off,
                bursts: Bursts::Off,
                harvest: Some(harvest),
                ..environment.recording(in_place.run_file())
            };
            let recorder = Recorder::launch(&program, options)?;
            return Ok(Running::Recorded(Box::new(recorder)));
        }
        // The off switch also removes yields, except in loops that run at that time: without a slowdown
        // limit, loops are patched as a whole.
        let live = match choices.yields.is_empty() || self.config.no_primary {
            true => Live::Off,
            false => Live::On,
        };
        let options = session_options(environment, harvest, live);
        Ok(Running::Plain(Session::start(&program, options)?))
    }

    /// Follows the started command to its end.
    ///
    /// # Errors
    /// If it cannot be waited for, or its requests cannot be observed.
    fn follow(
        &self,
        started: StartedCommand,
        yields: &[PlannedYield],
        scavengers: usize,
    ) -> Result<EndedCommand, Error> {
        let config = self.config;
        let processors = self.processors();
        let running = started.running;
        let session = running.session()?;
        let slots = Slots::new(config, &self.info.cpu, scavengers);
        let controller = self.controller(yields, &slots);
        let in_place = started.in_place.map(|it| it.follow(running.cut_off()));
        // A plan that is adopted during the run changes the controller's settings.
        let trace = match in_place {
            None => self.control_trace(yields, &slots),
            Some(_) => None,
        };
        let follower = Follower::begin(
            (session.remote(), session.pid()),
            (controller, yields.to_vec(), trace),
            slots,
            OtherProcesses::new(started.processes, processors),
            (self.off, HarvestSwitch::new(config, yields, scavengers)),
            (self.start, in_place),
        );
        let watch = config
            .finish
            .then(|| EndWatch::begin(session.pid(), self.start));
        let end = started.stand_in.follow(session)?;
        let primary_wall = watch.and_then(EndWatch::end);
        let was_in_place = running.is_recorded();
        let (observed, processes) = follower.end();
        if let Some(why) = observed.prevented() {
            return Err(Error::Refused(format!("--requests: {why}")));
        }
        let ordinary = processes.end(config.finish || config.no_primary, processors);
        let wall_s = self.start.elapsed().as_secs_f64();
        let process_cpu_s = self.process_cpu_s(&ordinary);
        Ok(EndedCommand {
            end,
            wall_s,
            primary_wall,
            process_cpu_s,
            observed,
            ordinary,
            was_in_place,
            report: running.finish(),
        })
    }

    fn report(
        &self,
        command: &Program,
        harvested: Vec<Member>,
        mut setup: HarvestSetup,
        mut ended: EndedCommand,
    ) -> Done {
        let config = self.config;
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
        missed.extend(ended.observed.untraced.clone());
        let primary_wall_s = ended
            .primary_wall
            .map_or(ended.wall_s, |wall| wall.as_secs_f64());
        let document = run_document::document(Facts {
            wall_s: ended.wall_s,
            primary_wall_s: (!config.no_primary).then_some(primary_wall_s),
            process_cpu_s: ended.process_cpu_s,
            options: run_options(config, setup.per_thread, setup.origins),
            requests: config.requests.as_ref(),
            command: if config.no_primary {
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
        let config = self.config;
        Harvest {
            scavengers: harvested
                .iter()
                .map(|(scavenger, _)| scavenger.clone())
                .collect(),
            primary: std::mem::take(&mut choices.primary),
            scavenger_yields: std::mem::take(&mut choices.scavengers),
            span_ns: match config.bound_ns {
                Some(_) => FIRST_SPAN_NS,
                None => self.timing.span_ns,
            },
            per_thread,
            huge_pages: !config.without.contains(&HarvestPart::HugePages),
            finish: config.finish,
            idle: match config.idle {
                IdlePolicy::Harvest => Idle::Harvest,
                IdlePolicy::Steal => Idle::Steal,
                IdlePolicy::Stop => Idle::Stop,
            },
            waits: !config.without.contains(&HarvestPart::Waits),
            // Phases without scavengers show how fast the command is without them.
            share: if config.no_primary {
                1.0
            } else {
                MAX_ADMITTED_SHARE
            },
            peers: config.no_primary,
            // Without a command to wait for, the follower decides which scavengers run first.
            begins: match config.no_primary {
                true => ScavengerPlacement::Held,
                false => ScavengerPlacement::RunQueues,
            },
            // Memory that scavengers use is not available to the command, and where memory runs out the
            // kernel would end the command together with its scavengers.
            memory_bytes: config
                .memory_bytes
                .unwrap_or_else(|| memory::available_bytes(&Root::system()) / 2)
                .max(1),
            ticks_per_ns: ticks_per_ns(self.maker.machine.as_ref()),
            requests: config.requests.clone(),
            patience: FIRST_YIELD_TIMEOUT,
        }
    }

    fn controller(&self, yields: &[PlannedYield], slots: &Slots) -> Controller {
        let config = self.config;
        let limits = self.limits();
        let siblings = || SiblingControl::new(limits);
        Controller::new(limits, &figures(yields))
            .with_slices(self.slice_control())
            .with_siblings(slots.are_controlled().then(siblings))
            .with_interleaving(config.no_primary.then(Interleaving::default))
    }

    fn slice_control(&self) -> Option<SliceControl> {
        let ([bound_ns, hidden_ns, max_ns], most_skips) = self.slice_bounds()?;
        Some(SliceControl::new(bound_ns, hidden_ns, max_ns).skipping(most_skips))
    }

    /// Bound, duration of the hidden load and maximum span of time slices in nanoseconds, and the maximum number of
    /// skips; `None` if slices have no bound.
    fn slice_bounds(&self) -> Option<([f64; 3], u32)> {
        let most_skips = if self.config.without.contains(&HarvestPart::Skips) {
            0
        } else {
            MAX_SKIPS
        };
        let timing = &self.timing;
        let bound_ns = self.config.bound_ns?;
        Some(([bound_ns, timing.hidden_ns, timing.span_ns], most_skips))
    }

    const fn limits(&self) -> Limits {
        Limits {
            max_slowdown: self.config.max_slowdown,
            slo_p95_ns: self.config.slo_p95_ns,
        }
    }

    /// The trace of a controller that decides by these yields from the beginning.
    fn control_trace(&self, yields: &[PlannedYield], slots: &Slots) -> Option<ControlTrace> {
        let settings = ControlSettings {
            limits: self.limits(),
            yields: &figures(yields),
            slices: self.slice_bounds(),
            has_siblings: slots.are_controlled(),
            has_interleaving: self.config.no_primary,
        };
        let path = self.config.control_trace.clone()?;
        Some(ControlTrace::begin(path, settings))
    }

    /// CPU time of the command's process in seconds: that of all children but the ordinary processes.
    pub(super) fn process_cpu_s(&self, ordinary: &[Scavenger]) -> f64 {
        let ordinary_s: f64 = ordinary.iter().map(|it| it.own_thread_s).sum();
        let children_s = ThreadUsage::of_children().cpu_s() - self.cpu_before_s;
        (children_s - ordinary_s).max(0.0)
    }

    /// Whether yields of the command must be removable from its text while it runs.
    pub(super) const fn live(&self) -> Live {
        match self.config.max_slowdown {
            // The slowdown guard removes yields.
            Some(_) => Live::On,
            None => Live::Off,
        }
    }
}

/// Maximum number of scavengers in one run queue; with idle-time execution one scavenger is kept out of it.
fn per_thread(config: &RunConfig, harvested: usize) -> u32 {
    config.per_thread.unwrap_or_else(|| {
        let all = u32::try_from(harvested).unwrap_or(u32::MAX);
        let kept = u32::from(config.idle == IdlePolicy::Harvest && all > 1);
        all.saturating_sub(kept).max(1)
    })
}

/// The options of the run as the document records them.
pub(super) fn run_options(
    config: &RunConfig,
    per_thread: u32,
    plans: Vec<FollowedPlan>,
) -> HarvestRunOptions {
    HarvestRunOptions {
        per_thread,
        idle: config.idle,
        smt: config.smt,
        siblings: slots::sibling_lists(config),
        bound_ns: config.bound_ns,
        max_overhead: config.max_overhead,
        max_slowdown: config.max_slowdown,
        requests: config.requests.as_ref().map(ToString::to_string),
        slo_p95_ns: config.slo_p95_ns,
        finish: config.finish,
        without: config.without.clone(),
        plans,
    }
}

/// Reason in the report: scavengers that could interleave run as ordinary processes, since there are
/// processors enough.
const ON_ITS_OWN: &str = "it has a processor of its own, so time slices would gain nothing";

/// How many run queues a harvest without a command has, and how many scavengers each holds.
fn run_queue_layout(
    config: &RunConfig,
    harvested: usize,
    ordinary: usize,
    processors: usize,
) -> RunQueueLayout {
    let [harvested, ordinary, processors] =
        [harvested, ordinary, processors].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut layout = roles::run_queue_layout(harvested, ordinary, processors);
    if let Some(per_thread) = config.per_thread {
        layout.threads = layout.threads.max(1);
        layout.per_thread = per_thread;
    }
    layout
}

fn session_options(
    environment: &Environment,
    harvest: Harvest,
    live: Live,
) -> membound_launch::Options {
    membound_launch::Options {
        plan: patch::Options::bare(Hooks::Plant),
        cache: environment.patch_plans(),
        revision: environment.revision.clone(),
        live,
        text_at_start: None,
        short_lived: ShortLived::All,
        period: 1,
        recording: None,
        objects: None,
        timers: None,
        harvest: Some(harvest),
        directory: environment.temporary.clone(),
        perf_maps: None,
    }
}
