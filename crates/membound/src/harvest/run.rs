//! `membound harvest run`: a program, and others in the time that it waits for memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use membound_harvest::distance::{Limits, Rule};
use membound_harvest::{Jumps, Options, Yields, is_wanted};
use membound_launch::{
    Choice, Guest, Harvest, Headers, Idle, Live, Planting, YieldPlace, environment,
};
use membound_measure::Clock;
use membound_platform::disturb::ThreadUsage;
use membound_platform::{Root, machine_info, memory};
use membound_rewrite::image::{Identity, Image};
use membound_rewrite::patch::{self, Groundwork, Hooks, Sites};
use membound_types::{
    HarvestPart, HarvestPlan, HarvestRole, HarvestRunOptions, IdlePolicy, MachineProfile, Timer,
};

use super::args::RunArgs;
use super::document::{self, Asked, Facts, Held};
use super::follow::Follower;
use super::guard;
use super::plan::USUAL_BOUND_NS;
use super::plans::{self, Followed, Maker};
use super::span::SpanControl;
use super::worth::PlannedYield;
use crate::job::{self, Job};
use crate::launching;
use crate::output::{self, Target};
use crate::profile::machine;

/// Time until data of memory are there where no machine profile says it, in nanoseconds.
const USUAL_LATENCY_NS: f64 = 100.0;
/// Bytes of addresses that a scavenger may map.
const MEMORY_BYTES: u64 = 1 << 40;
const STACK_BYTES: u64 = 8 << 20;
/// How long the command waits for its scavengers to come to a yield before it begins.
const PATIENCE: Duration = Duration::from_secs(20);

/// A scavenger as it was asked for: its executable, and the words that it is called with.
#[derive(Clone, Debug)]
struct Wanted {
    /// What is executed.
    path: PathBuf,
    /// What its plan must be for: the same, or the shared object that it runs.
    code: PathBuf,
    words: Vec<OsString>,
}

/// Runs what was asked for, says what it came to, and passes the command's end on.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let mut json = args.json.as_deref().map(Target::open).transpose()?;
    let mut html = args.html.as_deref().map(Target::open).transpose()?;
    let command = match primary(args) {
        Ok(command) => command,
        Err(refused) => {
            output::complain(&refused.to_string());
            return Ok(ExitCode::from(refused.code()));
        }
    };
    let scavengers = match scavengers(&args.scavenger) {
        Ok(scavengers) => scavengers,
        Err(complaint) => {
            output::complain(&complaint);
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(complaint) = contradiction(args) {
        output::complain(complaint);
        return Ok(ExitCode::from(2));
    }
    let profile = machine::profile(args.machine.as_deref())?;
    let timing = Timing::of(args.bound_ns, profile.as_ref());
    let given = args
        .plan
        .iter()
        .map(|path| plans::read(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let followed = followed(
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
    let mut choices = Choices::of(&plans, &args.without)?;
    if args.no_primary {
        choices.primary.push(host_yield(&command)?);
    }
    let info = machine_info(&Root::system(), Timer::default(), Default::default());
    let guests = guests(args, &scavengers)?;
    let per_thread = args.per_thread.unwrap_or_else(|| {
        let all = u32::try_from(guests.len()).unwrap_or(u32::MAX);
        let kept = u32::from(args.idle == IdlePolicy::Harvest && all > 1);
        all.saturating_sub(kept).max(1)
    });
    let harvest = Harvest {
        guests: guests.iter().map(|(guest, _)| guest.clone()).collect(),
        primary: choices.primary,
        scavengers: choices.scavengers,
        span_ns: match args.bound_ns {
            Some(_) => SpanControl::first(timing.span_ns),
            None => timing.span_ns,
        },
        per_thread,
        finish: args.finish,
        idle: match args.idle {
            IdlePolicy::Harvest => Idle::Harvest,
            IdlePolicy::Steal => Idle::Steal,
            IdlePolicy::Stop => Idle::Stop,
        },
        share: guard::MOST,
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
    let cpu_before_s = children_cpu_s();
    let live = match args.max_slowdown {
        // Its guard takes yields out.
        Some(_) if !choices.yields.is_empty() => Live::On,
        _ => Live::Off,
    };
    let session = match launching::start(&program, session_options(harvest, live))? {
        Ok(session) => session,
        Err(code) => return Ok(code),
    };
    if let Some(obstacle) = session.obstacle() {
        output::complain(&format!("runs without scavengers: {obstacle}"));
    }
    let span = args
        .bound_ns
        .map(|bound_ns| SpanControl::new(bound_ns, timing.span_ns));
    let limits = guard::Limits {
        max_slowdown: args.max_slowdown,
        slo_p95_ns: args.slo_p95,
    };
    let yields = choices.yields.clone();
    let follower = Follower::begin(session.remote(), session.pid(), limits, yields, span);
    let end = job.follow(&session)?;
    let seen = follower.end();
    if let Some(why) = seen.prevented() {
        output::complain(&format!("--requests: {why}"));
        return Ok(ExitCode::FAILURE);
    }
    let wall_s = begun.elapsed().as_secs_f64();
    let process_cpu_s = children_cpu_s() - cpu_before_s;
    let report = session.finish();
    let mut missed = report.missed.clone();
    missed.extend(report.unpatched.iter().cloned());
    let document = document::document(Facts {
        machine: &info,
        wall_s,
        process_cpu_s,
        options: HarvestRunOptions {
            per_thread,
            idle: args.idle,
            bound_ns: args.bound_ns,
            max_overhead: args.max_overhead,
            max_slowdown: args.max_slowdown,
            requests: args.requests.as_ref().map(ToString::to_string),
            slo_p95_ns: args.slo_p95,
            finish: args.finish,
            without: args.without.clone(),
            plans: options,
        },
        requests: args.requests.as_ref(),
        command: if args.no_primary {
            Vec::new()
        } else {
            texts(&command.words)
        },
        end,
        scavengers: guests.into_iter().map(|(_, asked)| asked).collect(),
        seen: &seen,
        plans: &plans,
        left_out: choices.left_out,
        yields: &choices.yields,
        slots: document::slots(
            info.cpu.smt_siblings.iter().any(|core| core.len() > 1),
            match args.slo_p95 {
                Some(_) => Held::Yes,
                None => Held::No,
            },
        ),
        missed,
    });
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
const fn contradiction(args: &RunArgs) -> Option<&'static str> {
    if args.slo_p95.is_some() && args.requests.is_none() {
        return Some("--slo-p95 needs --requests, which says what a request is");
    }
    if args.requests.is_some() && args.no_primary {
        return Some("--requests is of the command, of which there is none with --no-primary");
    }
    None
}

/// The program whose stalls are harvested.
fn primary(args: &RunArgs) -> Result<Wanted, membound_launch::CannotRun> {
    if args.no_primary {
        let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("membound"));
        return Ok(Wanted {
            code: path.clone(),
            words: vec![path.clone().into_os_string(), "__harvest-host".into()],
            path,
        });
    }
    let words = args.command.clone();
    let name = words.first().cloned().unwrap_or_default();
    let path = membound_launch::find(&name, std::env::var_os("PATH").as_deref())?;
    Ok(Wanted {
        code: path.clone(),
        path,
        words,
    })
}

/// The programs that are to run in them.
fn scavengers(commands: &[String]) -> Result<Vec<Wanted>, String> {
    if commands.is_empty() {
        return Err("there is no scavenger: name one with --scavenger \"CMD\"".to_owned());
    }
    commands
        .iter()
        .map(|command| {
            let words = shlex::split(command)
                .filter(|words| !words.is_empty())
                .ok_or_else(|| {
                    format!("`{command}` is no command: a quote is open, or it is empty")
                })?;
            let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            let given = words[0].clone();
            let path = find(&given)?;
            is_for_this_machine(&path)?;
            if is_object(&path) {
                let host = std::env::current_exe().map_err(|error| error.to_string())?;
                let object = std::path::absolute(&path).map_err(|error| error.to_string())?;
                words[0] = object.clone().into_os_string();
                words.insert(0, "__run-object".into());
                words.insert(0, host.clone().into_os_string());
                return Ok(Wanted {
                    path: host,
                    code: object,
                    words,
                });
            }
            Ok(Wanted {
                code: path.clone(),
                path,
                words,
            })
        })
        .collect()
}

/// An executable by its name, or a shared object by its path.
fn find(name: &OsString) -> Result<PathBuf, String> {
    let path = Path::new(name);
    if path.components().count() > 1 && is_object(path) {
        return Ok(path.to_owned());
    }
    let found = membound_launch::find(name, std::env::var_os("PATH").as_deref());
    let found = found.map_err(|error| error.to_string())?;
    std::path::absolute(&found).map_err(|error| error.to_string())
}

/// Refuses what is no executable of this machine: what a script's interpreter executes is not the script's.
fn is_for_this_machine(path: &Path) -> Result<(), String> {
    let refused = |why: &dyn Display| format!("{} cannot be a scavenger: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| refused(&error))?;
    if bytes.starts_with(b"#!") {
        return Err(refused(&"it is a script; name its interpreter before it"));
    }
    let image = Image::parse(&bytes);
    image.map(drop).map_err(|error| refused(&error))
}

/// Whether a file is a shared object that no loader would run.
fn is_object(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut start));
    // e_type 3: a shared object, or an executable without a fixed place.
    read.is_ok()
        && start.get(16..18) == Some(&[3, 0])
        && Headers::parse(&start).is_some_and(|headers| !headers.has_interpreter())
        && !is_static_executable(&start)
}

/// A static executable without a fixed place has an entry; a shared object begins nowhere.
fn is_static_executable(start: &[u8]) -> bool {
    start.get(24..32).is_some_and(|entry| entry != [0; 8])
}

/// How long turns may last.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Until the command's data are there.
    span_ns: f64,
    /// From one yield of a scavenger to the next.
    distance_ns: f64,
}

impl Timing {
    fn of(bound_ns: Option<f64>, machine: Option<&MachineProfile>) -> Self {
        let latency_ns = machine
            .and_then(|machine| machine.levels.last())
            .map_or(USUAL_LATENCY_NS, |level| level.latency_ns);
        match bound_ns {
            None => Self {
                span_ns: latency_ns,
                distance_ns: USUAL_BOUND_NS,
            },
            // A turn lasts the span, and then up to the next yield.
            Some(bound_ns) => {
                let span_ns = latency_ns.min(bound_ns / 2.0);
                Self {
                    span_ns,
                    distance_ns: bound_ns - span_ns,
                }
            }
        }
    }
}

/// The plans of all programs: those that were given, others made.
fn followed(
    args: &RunArgs,
    timing: &Timing,
    machine: Option<&MachineProfile>,
    command: &Wanted,
    scavengers: &[Wanted],
    given: Vec<Followed>,
) -> anyhow::Result<Vec<Followed>> {
    let mut primary = Options::new(HarvestRole::Primary);
    primary.max_overhead = args.max_overhead;
    let mut scavenger = Options::new(HarvestRole::Scavenger);
    scavenger.max_overhead = args.max_overhead;
    scavenger.limits = Some(Limits {
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
    let mut followed: Vec<Followed> = given;
    let mut wanted = Vec::new();
    if !args.no_primary {
        wanted.push((HarvestRole::Primary, command));
    }
    for scavenger in scavengers {
        let known = wanted
            .iter()
            .any(|(role, other)| *role == HarvestRole::Scavenger && other.words == scavenger.words);
        if !known {
            wanted.push((HarvestRole::Scavenger, scavenger));
        }
    }
    for (role, program) in wanted {
        let mut is_there = false;
        for known in followed.iter().filter(|known| known.plan.role == role) {
            is_there |= plans::is_for(&known.plan, &program.code)?;
        }
        if !is_there {
            followed.push(maker.plan(role, &program.path, &program.code, &program.words)?);
        }
    }
    Ok(followed)
}

/// What is patched where.
#[derive(Debug, Default)]
struct Choices {
    primary: Vec<Planting>,
    scavengers: Vec<Planting>,
    /// Sites without a yield: whose, path, address, reason.
    left_out: Vec<(HarvestRole, String, u64, String)>,
    /// Yields of the command.
    yields: Vec<PlannedYield>,
}

impl Choices {
    fn of(plans: &[HarvestPlan], without: &[HarvestPart]) -> anyhow::Result<Self> {
        let mut choices = Self::default();
        // What two plans say of one file, the first one has: they are of the same program.
        let mut known = BTreeMap::new();
        for plan in plans {
            for module in &plan.modules {
                let key = (plan.role as u8, module.identity.clone());
                let planned = plan
                    .sites
                    .iter()
                    .any(|site| is_wanted(site, without) && site.module == module.path);
                if !planned || known.insert(key, ()).is_some() {
                    continue;
                }
                choices.add(plan, &module.path, without)?;
            }
        }
        Ok(choices)
    }

    fn add(
        &mut self,
        plan: &HarvestPlan,
        path: &str,
        without: &[HarvestPart],
    ) -> anyhow::Result<()> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
        membound_harvest::check(plan, path, &bytes)?;
        let image = Image::parse(&bytes).with_context(|| path.to_owned())?;
        let groundwork = Groundwork::of(&image, &membound_harvest::groundwork_options());
        let settle = |jumps| membound_harvest::yields(plan, &image, &groundwork, jumps, without);
        let yields = settle(Jumps::Any)?;
        let left_out = yields.left_out.iter().map(|left| {
            (
                plan.role,
                path.to_owned(),
                left.address,
                left.why.to_string(),
            )
        });
        self.left_out.extend(left_out);
        if matches!(&yields.options.sites, Sites::Instructions(sites) if sites.is_empty()) {
            return Ok(());
        }
        let choice = |yields: Yields| Choice {
            file: image.identity().clone(),
            options: yields.options,
        };
        match plan.role {
            HarvestRole::Primary => {
                if let Sites::Instructions(stand) = &yields.options.sites {
                    let planned = planned(plan, path, image.identity());
                    let stands = |it: &PlannedYield| stand.contains(&it.place.address);
                    self.yields.extend(planned.filter(stands));
                }
                self.primary.push(Planting {
                    choice: choice(yields),
                    otherwise: None,
                });
            }
            HarvestRole::Scavenger => {
                // It takes its time, and where every jump is sure comes to the same.
                let sure = yields.unsure.then(|| settle(Jumps::Sure));
                self.scavengers.push(Planting {
                    otherwise: sure.transpose()?.map(choice),
                    choice: choice(yields),
                });
            }
        }
        Ok(())
    }
}

/// What a plan says of the sites in one of its files.
fn planned<'a>(
    plan: &'a HarvestPlan,
    path: &'a str,
    file: &'a Identity,
) -> impl Iterator<Item = PlannedYield> + 'a {
    let sites = plan.sites.iter();
    let of_file = sites.filter(move |site| site.module == path);
    of_file.map(|site| PlannedYield {
        module: path.to_owned(),
        place: YieldPlace {
            file: file.clone(),
            address: site.offset,
        },
        gain: site.predicted_gain,
        hit_cost: site.hit_cost,
        rate: site
            .executions
            .map(|executions| executions / plan.totals.cpu_s)
            .filter(|rate| rate.is_finite()),
    })
}

/// The yield of a program that does nothing else.
fn host_yield(host: &Wanted) -> anyhow::Result<Planting> {
    let bytes = std::fs::read(&host.path).context("membound cannot read itself")?;
    let image = Image::parse(&bytes).context("membound cannot read itself")?;
    let load = membound_launch::host_load().context("membound does not find itself in memory")?;
    let mut options = membound_harvest::groundwork_options();
    options.sites = Sites::Instructions(vec![load]);
    Ok(Planting {
        choice: Choice {
            file: image.identity().clone(),
            options,
        },
        otherwise: None,
    })
}

/// The scavengers with all copies, and what was asked of each.
fn guests(args: &RunArgs, scavengers: &[Wanted]) -> anyhow::Result<Vec<(Guest, Asked)>> {
    if let Some(directory) = &args.output
        && !directory.is_dir()
    {
        bail!("--output {} is no directory", directory.display());
    }
    let directory = args
        .output
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let mut guests = Vec::new();
    for (number, scavenger) in (1..).zip(scavengers) {
        for copy in 0..args.copies {
            let place = |ending: &str| {
                directory
                    .as_ref()
                    .map(|directory| directory.join(format!("{number}-{copy}.{ending}")))
            };
            let output = place("out");
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
                errors: place("err"),
                memory_bytes: MEMORY_BYTES,
                stack_bytes: STACK_BYTES,
            };
            guests.push((guest, asked));
        }
    }
    Ok(guests)
}

/// Words as documents have them.
fn texts(words: &[OsString]) -> Vec<String> {
    let texts = words.iter().map(|word| word.to_string_lossy());
    texts.map(std::borrow::Cow::into_owned).collect()
}

fn session_options(harvest: Harvest, live: Live) -> membound_launch::Options {
    membound_launch::Options {
        plan: patch::Options::bare(Hooks::Plant),
        cache: launching::cache(),
        revision: launching::revision(),
        live,
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

/// CPU time of children that have ended, in seconds.
fn children_cpu_s() -> f64 {
    let usage = ThreadUsage::of_children();
    (usage.user_us + usage.system_us) as f64 * 1e-6
}
