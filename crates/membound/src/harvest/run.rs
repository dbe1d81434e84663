//! `membound harvest run`: a program, and others in the time that it waits for memory.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use membound_harvest::Options;
use membound_harvest::distance::{Limits, Rule};
use membound_launch::{Guest, Harvest, Idle, Live, environment};
use membound_measure::Clock;
use membound_platform::disturb::ThreadUsage;
use membound_platform::{Root, memory};
use membound_rewrite::patch::{self, Hooks};
use membound_types::{
    FollowedPlan, HarvestPart, HarvestPlan, HarvestRole, HarvestRun, HarvestRunOptions, IdlePolicy,
    MachineInfo, MachineProfile, Timer,
};

use super::args::RunArgs;
use super::balance::Balance;
use super::choices::{Choices, host_yield};
use super::document::{self, Facts};
use super::ended::EndWatch;
use super::follow::{Follower, Seen, Together};
use super::guard;
use super::ordinary::{Ordinary, Processes};
use super::plan::USUAL_BOUND_NS;
use super::plans::{self, Followed, Maker};
use super::programs::{self, Asked, Wanted};
use super::roles::{self, Rings};
use super::slots::{self, Slots};
use super::span::SpanControl;
use crate::job::{self, Job};
use crate::launching;
use crate::output::{self, Target, Usage};
use crate::profile::machine;
use crate::version;

/// Time until data of memory are there where no machine profile says it, in nanoseconds.
const USUAL_LATENCY_NS: f64 = 100.0;
/// Bytes of addresses that a scavenger may map.
const MEMORY_BYTES: u64 = 1 << 40;
const STACK_BYTES: u64 = 8 << 20;
/// How long the command waits for its scavengers to come to a yield before it begins.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs what was asked for, says what it came to, and passes the command's end on.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let outputs = Outputs {
        json: args.json.as_deref().map(Target::open).transpose()?,
        html: args.html.as_deref().map(Target::page).transpose()?,
    };
    let mut command = match programs::primary(args) {
        Ok(command) => command,
        Err(refused) => {
            output::complain(&refused.to_string());
            return Ok(ExitCode::from(refused.code()));
        }
    };
    let scavengers = programs::scavengers(&args.scavenger).map_err(Usage)?;
    if let Some(complaint) = contradiction(args) {
        return Err(Usage(complaint).into());
    }
    let given = args
        .plan
        .iter()
        .map(|path| plans::read(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let planned = scavengers.iter().filter(|it| it.no_guest.is_none());
    for program in std::iter::once(&command).chain(planned) {
        // A plan of what has changed since is refused before anything runs.
        for known in &given {
            plans::is_for(&known.plan, &program.code)?;
        }
    }
    prepare_outputs(args, scavengers.len())?;
    let profile = machine::profile(args.machine.as_deref())?;
    let timing = Timing::of(args.bound_ns, profile.as_ref());
    let Cast {
        followed,
        turns,
        ordinary,
    } = cast(
        args,
        &timing,
        profile.as_ref(),
        &command,
        &scavengers,
        given,
    )?;
    let (options, plans): (Vec<_>, Vec<HarvestPlan>) = followed
        .into_iter()
        .map(|followed| (followed.from, followed.plan))
        .unzip();
    let info = version::machine(&Root::system(), Timer::default(), Default::default());
    let mut guests = guests(args, &turns)?;
    let mut processes = Vec::new();
    for (scavenger, why) in &ordinary {
        for (guest, asked) in self::guests(args, std::slice::from_ref(scavenger))? {
            let why = why.clone();
            processes.push(Ordinary { guest, asked, why });
        }
    }
    let processors = info.cpu.allowed.len().max(1);
    // How many ordinary processes run at one time beside those that take turns.
    let mut beside = usize::MAX;
    let per_thread = if args.no_primary {
        let rings = rings(args, guests.len(), processes.len(), processors);
        if rings.threads == 0 {
            processes.extend(guests.drain(..).map(|(guest, asked)| Ordinary {
                guest,
                asked,
                why: ON_ITS_OWN.to_owned(),
            }));
            let document = one_by_one(args, &info, processes, processors, options);
            return conclude(args, outputs, document, job::End::Exited(0));
        }
        beside = processors.saturating_sub(rings.threads as usize);
        command.words.push(rings.threads.to_string().into());
        rings.per_thread
    } else {
        args.per_thread.unwrap_or_else(|| {
            let all = u32::try_from(guests.len()).unwrap_or(u32::MAX);
            let kept = u32::from(args.idle == IdlePolicy::Harvest && all > 1);
            all.saturating_sub(kept).max(1)
        })
    };
    let live = match args.max_slowdown {
        // Its guard takes yields out.
        Some(_) => Live::On,
        None => Live::Off,
    };
    let mut choices = Choices::of(&plans, &args.without, live)?;
    if args.no_primary {
        choices.primary.push(host_yield()?);
    }
    let harvest = Harvest {
        guests: guests.iter().map(|(guest, _)| guest.clone()).collect(),
        primary: choices.primary,
        scavengers: choices.scavengers,
        span_ns: match args.bound_ns {
            Some(_) => SpanControl::FIRST,
            None => timing.span_ns,
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
        // Phases without scavengers show what the command is without them.
        share: if args.no_primary { 1.0 } else { guard::MOST },
        peers: args.no_primary,
        // What scavengers take the command cannot have: the kernel would end them together.
        memory_bytes: args
            .memory
            .unwrap_or_else(|| memory::available_bytes(&Root::system()) / 2)
            .max(1),
        ticks_per_ns: ticks_per_ns(profile.as_ref()),
        requests: args.requests.clone(),
        patience: PATIENCE,
    };
    let arguments = command.words.get(1..).unwrap_or_default();
    let program = launching::program(command.path.as_os_str(), arguments);
    let job = Job::prepare()?;
    let begun = Instant::now();
    let cpu_before_s = ThreadUsage::of_children().cpu_s();
    let live = if choices.yields.is_empty() {
        Live::Off
    } else {
        live
    };
    let session = match launching::start(&program, session_options(harvest, live))? {
        Ok(session) => session,
        Err(code) => return Ok(code),
    };
    let processes = Processes::start(processes, beside, !args.no_primary);
    if let Some(obstacle) = session.obstacle() {
        output::complain(&format!("runs without scavengers: {obstacle}"));
    }
    let most_skips = if args.without.contains(&HarvestPart::Skips) {
        0
    } else {
        SpanControl::MOST_SKIPS
    };
    let span = args.bound_ns.map(|bound_ns| {
        SpanControl::new(bound_ns, timing.hidden_ns, timing.span_ns).skipping(most_skips)
    });
    let limits = guard::Limits {
        max_slowdown: args.max_slowdown,
        slo_p95_ns: args.slo_p95,
    };
    let yields = choices.yields.clone();
    let slots = Slots::new(args, &info.cpu, guests.len(), limits);
    let follower = Follower::begin(
        session.remote(),
        session.pid(),
        limits,
        yields,
        span,
        slots,
        Together::new(
            args.no_primary.then(|| Balance::new(processors)),
            processes,
            processors,
        ),
    );
    let watch = args.finish.then(|| EndWatch::begin(session.pid(), begun));
    let end = job.follow(&session)?;
    let primary_wall = watch.and_then(EndWatch::end);
    let (seen, processes) = follower.end();
    if let Some(why) = seen.prevented() {
        output::complain(&format!("--requests: {why}"));
        return Ok(ExitCode::FAILURE);
    }
    let ordinary = processes.end(args.finish || args.no_primary, processors);
    let wall_s = begun.elapsed().as_secs_f64();
    let ordinary_cpu_s: f64 = ordinary.iter().map(|it| it.own_thread_s).sum();
    let children_cpu_s = ThreadUsage::of_children().cpu_s() - cpu_before_s;
    let process_cpu_s = (children_cpu_s - ordinary_cpu_s).max(0.0);
    let report = session.finish();
    let mut missed = report.missed.clone();
    missed.extend(report.unpatched.iter().cloned());
    let document = document::document(Facts {
        machine: &info,
        wall_s,
        primary_wall_s: (!args.no_primary)
            .then(|| primary_wall.map_or(wall_s, |wall| wall.as_secs_f64())),
        process_cpu_s,
        options: asked(args, per_thread, options),
        requests: args.requests.as_ref(),
        command: if args.no_primary {
            Vec::new()
        } else {
            texts(&command.words)
        },
        end,
        scavengers: guests.into_iter().map(|(_, asked)| asked).collect(),
        ordinary,
        seen: &seen,
        plans: &plans,
        left_out: choices.left_out,
        yields: &choices.yields,
        missed,
    });
    conclude(args, outputs, document, end)
}

/// Runs programs of which none takes turns, so many at a time, and says what became of them.
fn one_by_one(
    args: &RunArgs,
    info: &MachineInfo,
    processes: Vec<Ordinary>,
    processors: usize,
    plans: Vec<FollowedPlan>,
) -> HarvestRun {
    let begun = Instant::now();
    let ordinary = Processes::start(processes, processors, false).end(true, processors);
    document::document(Facts {
        machine: info,
        wall_s: begun.elapsed().as_secs_f64(),
        primary_wall_s: None,
        process_cpu_s: 0.0,
        options: asked(args, 0, plans),
        requests: None,
        command: Vec::new(),
        end: job::End::Exited(0),
        scavengers: Vec::new(),
        ordinary,
        seen: &Seen::default(),
        plans: &[],
        left_out: Vec::new(),
        yields: &[],
        missed: Vec::new(),
    })
}

/// Where the document goes.
struct Outputs {
    json: Option<Target>,
    html: Option<Target>,
}

/// What was asked for, as a document has it.
fn asked(args: &RunArgs, per_thread: u32, plans: Vec<FollowedPlan>) -> HarvestRunOptions {
    HarvestRunOptions {
        per_thread,
        idle: args.idle,
        smt: args.smt,
        siblings: slots::given(args),
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

/// Shows and writes the document, and passes the command's end on.
fn conclude(
    args: &RunArgs,
    outputs: Outputs,
    document: HarvestRun,
    end: job::End,
) -> anyhow::Result<ExitCode> {
    let Outputs { mut json, mut html } = outputs;
    if !args.quiet && !json.as_ref().is_some_and(Target::is_stdout) {
        let style = output::error_style();
        output::tell(&membound_report::text::harvest_run(&document, style));
    }
    let mut failed = None;
    if let Some(target) = &mut json {
        let written = output::json(&document).and_then(|text| target.write(&text));
        failed = failed.or(written.err());
    }
    if let Some(target) = &mut html {
        let written = target.write(&membound_report::page::harvest_run(&document));
        failed = failed.or(written.err());
    }
    if let Some(error) = failed {
        let code = output::fail(&error);
        // The program's own failure says more than ours.
        if end == job::End::Exited(0) {
            return Ok(code);
        }
    }
    Ok(job::end_like(end))
}

/// What is asked for and cannot be had together, if anything.
fn contradiction(args: &RunArgs) -> Option<String> {
    if args.slo_p95.is_some() && args.requests.is_none() {
        return Some("--slo-p95 needs --requests, which says what a request is".to_owned());
    }
    if args.requests.is_some() && args.no_primary {
        let told = "--requests is of the command, of which there is none with --no-primary";
        return Some(told.to_owned());
    }
    slots::complaint(args)
}

/// Part of the bound that a turn may have used up by its reckoning and go on.
const SPAN: f64 = 0.75;
/// Part of the bound that there may be from one yield of a scavenger to the next.
const DISTANCE: f64 = 0.5;

/// How long turns may last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// What a load from memory takes.
    hidden_ns: f64,
    /// Until the command's data are there.
    span_ns: f64,
    /// From one yield of a scavenger to the next.
    pub(super) distance_ns: f64,
}

impl Timing {
    pub(super) fn of(bound_ns: Option<f64>, machine: Option<&MachineProfile>) -> Self {
        let latency_ns = machine
            .and_then(|machine| machine.levels.last())
            .map_or(USUAL_LATENCY_NS, |level| level.latency_ns);
        let (span_ns, distance_ns) = match bound_ns {
            None => (latency_ns, USUAL_BOUND_NS),
            // A turn lasts the span, and then up to the next yield. Most of these are far nearer than the longest
            // way: whether both together are too long is what is measured.
            Some(bound_ns) => {
                let distance_ns = bound_ns - latency_ns.min(bound_ns * DISTANCE);
                (latency_ns.min(bound_ns * SPAN), distance_ns)
            }
        };
        Self {
            hidden_ns: latency_ns,
            span_ns,
            distance_ns,
        }
    }
}

/// Why scavengers that could take turns do not, where there are as many processors.
const ON_ITS_OWN: &str = "it has a processor to itself, where turns would give it nothing";

/// How scavengers without a command take turns.
fn rings(args: &RunArgs, turns: usize, ordinary: usize, processors: usize) -> Rings {
    let [turns, ordinary, processors] =
        [turns, ordinary, processors].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let mut rings = roles::rings(turns, ordinary, processors);
    if let Some(per_thread) = args.per_thread {
        rings.threads = rings.threads.max(1);
        rings.per_thread = per_thread;
    }
    rings
}

/// Who does what.
struct Cast {
    /// The plans that are followed.
    followed: Vec<Followed>,
    /// Scavengers that take turns.
    turns: Vec<Wanted>,
    /// Those that run as ordinary processes, and why.
    ordinary: Vec<(Wanted, String)>,
}

/// Finds plans of all programs: those that were given, others made. A program of which none can be made runs
/// as it is.
fn cast(
    args: &RunArgs,
    timing: &Timing,
    machine: Option<&MachineProfile>,
    command: &Wanted,
    scavengers: &[Wanted],
    given: Vec<Followed>,
) -> anyhow::Result<Cast> {
    let mut primary = Options::new(HarvestRole::Primary);
    primary.max_overhead = args.max_overhead;
    let mut scavenger = Options::new(HarvestRole::Scavenger);
    scavenger.max_overhead = args.max_overhead;
    scavenger.limits = asks_for_latency(args).then_some(Limits {
        bound_ns: timing.distance_ns,
        rule: Rule::Max,
    });
    let maker = Maker {
        machine,
        machine_path: args.machine.as_deref(),
        duration: args.profile_s,
        primary,
        scavenger,
        quiet: args.quiet,
    };
    let mut cast = Cast {
        followed: given,
        turns: Vec::new(),
        ordinary: Vec::new(),
    };
    if !args.no_primary
        && let Err(error) = cast.plan(&maker, HarvestRole::Primary, command)
    {
        let name = command.path.display();
        let told = format!("{name} runs without yields of its own: {error:#}");
        output::complain(&told.replace('\n', " "));
    }
    let mut known: Vec<(&Wanted, Option<String>)> = Vec::new();
    for scavenger in scavengers {
        let same = known
            .iter()
            .find(|(other, _)| other.words == scavenger.words);
        let why = match same {
            Some((_, why)) => why.clone(),
            None => cast.why_ordinary(&maker, scavenger, !args.no_primary),
        };
        match why.clone() {
            None => cast.turns.push(scavenger.clone()),
            Some(why) => cast.ordinary.push((scavenger.clone(), why)),
        }
        known.push((scavenger, why));
    }
    Ok(cast)
}

impl Cast {
    /// Has a plan of the program among those that are followed, and returns it.
    fn plan(
        &mut self,
        maker: &Maker<'_>,
        role: HarvestRole,
        program: &Wanted,
    ) -> anyhow::Result<&HarvestPlan> {
        let mut found = None;
        for (at, known) in self.followed.iter().enumerate() {
            if known.plan.role == role && plans::is_for(&known.plan, &program.code)? {
                found.get_or_insert(at);
            }
        }
        let at = match found {
            Some(at) => at,
            None => {
                let plan = maker.plan(role, &program.path, &program.code, &program.words)?;
                self.followed.push(plan);
                self.followed.len() - 1
            }
        };
        Ok(&self.followed[at].plan)
    }

    /// Why a scavenger is to run as an ordinary process; `None`: it takes turns.
    fn why_ordinary(
        &mut self,
        maker: &Maker<'_>,
        scavenger: &Wanted,
        beside_command: bool,
    ) -> Option<String> {
        if let Some(why) = &scavenger.no_guest {
            return Some(why.clone());
        }
        match self.plan(maker, HarvestRole::Scavenger, scavenger) {
            Ok(plan) => roles::takes_no_turns(plan, beside_command),
            Err(error) => Some(format!("{error:#}").replace('\n', " ")),
        }
    }
}

/// Whether the command's latency is to be kept low: then yields bound the time of turns.
const fn asks_for_latency(args: &RunArgs) -> bool {
    args.bound_ns.is_some() || args.slo_p95.is_some() || args.max_slowdown.is_some()
}

/// Makes the directory for what `scavengers` write, and finds all files there writable.
fn prepare_outputs(args: &RunArgs, scavengers: usize) -> anyhow::Result<()> {
    let Some(directory) = &args.output else {
        return Ok(());
    };
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    for number in 1..=scavengers {
        for copy in 0..args.copies {
            for ending in [OUT, ERR] {
                Target::open(&directory.join(output_name(number, copy, ending)))?;
            }
        }
    }
    Ok(())
}

/// Endings of files for what a scavenger writes to stdout and stderr.
const OUT: &str = "out";
const ERR: &str = "err";

fn output_name(number: usize, copy: u32, ending: &str) -> String {
    format!("{number}-{copy}.{ending}")
}

/// The scavengers with all copies, and what was asked of each.
fn guests(args: &RunArgs, scavengers: &[Wanted]) -> anyhow::Result<Vec<(Guest, Asked)>> {
    let directory = args
        .output
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let mut guests = Vec::new();
    for scavenger in scavengers {
        let number = scavenger.number;
        for copy in 0..args.copies {
            let place = |ending: &str| {
                directory
                    .as_ref()
                    .map(|directory| directory.join(output_name(number, copy, ending)))
            };
            let output = place(OUT);
            let asked = Asked {
                words: texts(&scavenger.words),
                copy,
                output: output.as_ref().map(|path| path.display().to_string()),
            };
            let guest = Guest {
                path: scavenger.path.clone(),
                arguments: scavenger.words.clone(),
                environment: environment(),
                output,
                errors: place(ERR),
                memory_bytes: MEMORY_BYTES,
                stack_bytes: STACK_BYTES,
            };
            guests.push((guest, asked));
        }
    }
    Ok(guests)
}

/// Words as documents have them.
pub(super) fn texts(words: &[OsString]) -> Vec<String> {
    let texts = words.iter().map(|word| word.to_string_lossy());
    texts.map(std::borrow::Cow::into_owned).collect()
}

fn session_options(harvest: Harvest, live: Live) -> membound_launch::Options {
    membound_launch::Options {
        plan: patch::Options::bare(Hooks::Plant),
        cache: launching::cache(),
        revision: launching::revision(),
        live,
        large_text_bytes: None,
        period: 1,
        recording: None,
        objects: None,
        timers: None,
        harvest: Some(harvest),
        directory: launching::directory(),
        perf_maps: None,
    }
}

/// Ticks of the time stamp counter in a nanosecond: the machine profile's, or found out.
fn ticks_per_ns(machine: Option<&MachineProfile>) -> f64 {
    const LOOK: Duration = Duration::from_millis(10);
    /// Where the counter is not one to measure by.
    const USUAL: f64 = 2.0;
    let rate =
        |timer: &Timer| (timer.name == "tsc" && timer.rate_hz > 0.0).then_some(timer.rate_hz);
    let known = machine.and_then(|machine| rate(&machine.machine.timer));
    let found = || rate(&Clock::calibrate(LOOK).describe(0.0));
    known.or_else(found).map_or(USUAL, |hz| hz * 1e-9)
}
