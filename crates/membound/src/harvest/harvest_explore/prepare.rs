//! Everything that is done before the first setting is run. Requests that cannot work are refused here, the
//! cheapest checks first.

use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use membound_platform::output_file::replace;
use membound_platform::{Root, affinity};
use membound_types::{
    CpuId, ExploreOptions, ExploreSweep, HarvestRole, MachineInfo, MachineProfile, Timer,
};
use tempfile::TempDir;

use super::args::ExploreArgs;
use super::bed::{self, AloneRuns, Baseline, TestBench};
use super::children::{self, EndFailure};
use super::load::Load;
use super::loads;
use super::profiles::{Plans, Profiler, Source};
use crate::harvest::plans::{self, PlanWithOrigin};
use crate::harvest::programs::texts;
use crate::harvest::programs::{self, Program};
use crate::output::{self, Target, Usage};
use crate::profile::machine;
use crate::version;

/// How long to wait before a scavenger counts as one that does not end: a multiple of the primary's time, and
/// a minimum.
const ENDLESS_TIME_FACTOR: f64 = 5.0;
const MIN_ENDLESS_TIME: Duration = Duration::from_secs(10);

/// Everything that rounds need.
pub(super) struct Prepared<'a> {
    pub(super) json: Option<Target>,
    pub(super) html: Option<Target>,
    pub(super) sweeps: Vec<ExploreSweep>,
    /// The programs at each load in ascending order; one entry without loads.
    pub(super) cases: Vec<Case<'a>>,
    pub(super) plans: Plans<'a>,
    /// The SMT sibling of the CPU that all programs share.
    pub(super) sibling: Option<CpuId>,
    pub(super) info: MachineInfo,
    pub(super) notes: Vec<String>,
    /// Directory of all temporary files, removed with this value.
    _scratch: TempDir,
}

/// The programs with one load on the primary.
pub(super) struct Case<'a> {
    /// `None` without `--loads`.
    pub(super) load: Option<Load>,
    pub(super) bench: TestBench<'a>,
    pub(super) known: AloneRuns,
    /// Times of the first runs of the programs by themselves.
    pub(super) first: Baseline,
}

/// Nothing is explored; holds the exit code.
pub(super) struct Stop(pub(super) ExitCode);

/// The request, checked without running any program.
struct Checked {
    json: Option<Target>,
    html: Option<Target>,
    sweeps: Vec<ExploreSweep>,
    cpu: CpuId,
    primary: Program,
    scavengers: Vec<Program>,
    lines: Vec<String>,
    given: Vec<(std::path::PathBuf, PlanWithOrigin)>,
    loads: Vec<Load>,
}

impl<'a> Prepared<'a> {
    /// The programs at the largest load, which the primary is profiled with.
    pub(super) fn main_case(&self) -> &Case<'a> {
        main_case(&self.cases)
    }

    /// The options of the request as the document records them.
    pub(super) fn options(&self, args: &ExploreArgs) -> ExploreOptions {
        let bench = &self.main_case().bench;
        let scavengers = bench.scavengers.iter();
        let loads = self.cases.iter().filter_map(|case| case.load.as_ref());
        ExploreOptions {
            command: texts(&args.command),
            scavengers: scavengers.map(|it| texts(&it.words)).collect(),
            own_scavenger: bench.own_scavenger,
            copies: args.copies,
            idle: args.idle,
            pairs: args.pairs,
            on_cpu: bench.cpu,
            requests: bench.requests.clone(),
            plans: args
                .plan
                .iter()
                .map(|path| path.display().to_string())
                .collect(),
            loads: loads.map(|load| load.text.clone()).collect(),
        }
    }
}

fn main_case<'c, 'a>(cases: &'c [Case<'a>]) -> &'c Case<'a> {
    cases.last().expect("there is a case without loads, too")
}

/// Checks the request, then runs and profiles each program once.
///
/// # Errors
/// If the request is invalid or cannot be carried out here.
pub(super) fn all<'a>(
    args: &ExploreArgs,
    cancel: &'a AtomicBool,
) -> anyhow::Result<Result<Prepared<'a>, Stop>> {
    let primary = match programs::command(&args.command) {
        Ok(primary) => primary,
        Err(refused) => {
            output::complain(&refused.to_string());
            return Ok(Err(Stop(ExitCode::from(refused.code()))));
        }
    };
    let checked = check(args, primary)?;
    let machine = machine::profile(args.machine.as_deref())?;
    let info = version::machine(&Root::system(), Timer::default(), Default::default());
    let scratch =
        tempfile::tempdir().context("there is no directory for the files of the exploration")?;
    let machine_path = scratch.path().join("machine.json");
    let written = machine
        .clone()
        .unwrap_or_else(|| MachineProfile::unmeasured(info.clone()));
    replace(&machine_path, &output::json(&written)?)?;
    let bench = TestBench {
        membound: std::env::current_exe().context("membound has no file")?,
        machine_path,
        machine,
        scratch: scratch.path().to_owned(),
        primary: checked.primary,
        scavengers: checked.scavengers,
        lines: checked.lines,
        copies: args.copies,
        idle: args.idle,
        own_scavenger: args.scavenger.is_empty(),
        cpu: checked.cpu,
        requests: args.requests.as_ref().map(ToString::to_string),
        cancel,
    };
    let cpu = bench.cpu;
    let (mut cases, mut notes) = match by_themselves(&bench, &checked.loads) {
        Ok(found) => found,
        Err(stop) => return Ok(Err(stop)),
    };
    let plans = sources(args, &main_case(&cases).bench, &checked.given, &mut notes);
    if let Some(case) = cases.last_mut()
        && case.bench.requests.is_some()
    {
        match case.bench.alone_p95_ns(&case.known, &plans) {
            Ok(ns) => case.first.p95_ns = Some(ns),
            Err(why) => notes.push(format!("requests without scavengers: {why}")),
        }
    }
    let has_bench_cpu = |core: &&Vec<CpuId>| core.contains(&cpu);
    let core = info.cpu.smt_siblings.iter().find(has_bench_cpu).cloned();
    let mut others = core.into_iter().flatten();
    let sibling = others.find(|other| *other != cpu && info.cpu.allowed.contains(other));
    Ok(Ok(Prepared {
        json: checked.json,
        html: checked.html,
        sweeps: checked.sweeps,
        cases,
        plans,
        sibling,
        info,
        notes,
        _scratch: scratch,
    }))
}

fn check(args: &ExploreArgs, primary: Program) -> anyhow::Result<Checked> {
    let sweeps = sweeps(args).map_err(Usage)?;
    let loads = loads::of_request(args, &sweeps).map_err(Usage)?;
    let cpu = cpu(args)?;
    let json = args.json.as_deref().map(Target::open).transpose()?;
    let html = args.html.as_deref().map(Target::page).transpose()?;
    let lines = lines(args).map_err(Usage)?;
    let scavengers = programs::scavengers(&lines).map_err(Usage)?;
    let mut given = Vec::new();
    for path in &args.plan {
        let followed = plans::read(path)?;
        let mut fits = false;
        let runnable = scavengers.iter().filter(|it| it.no_scavenger.is_none());
        for program in std::iter::once(&primary).chain(runnable) {
            fits |= plans::is_for(&followed.plan, &program.code)?;
        }
        if !fits {
            bail!("{} is not a plan of any of these programs", path.display());
        }
        given.push((path.clone(), followed));
    }
    Ok(Checked {
        json,
        html,
        sweeps,
        cpu,
        primary,
        scavengers,
        lines,
        given,
        loads,
    })
}

/// The requested tables without duplicates.
fn sweeps(args: &ExploreArgs) -> Result<Vec<ExploreSweep>, String> {
    let applies = |sweep: &ExploreSweep| *sweep != ExploreSweep::Slo || args.requests.is_some();
    if args.sweep.is_empty() && !args.loads.is_empty() {
        return Ok(vec![ExploreSweep::Load]);
    }
    if args.sweep.is_empty() {
        // The others need loads, or take as long as all of these together.
        let is_default =
            |it: &ExploreSweep| !matches!(it, ExploreSweep::Load | ExploreSweep::PartsByDistance);
        let all = ExploreSweep::ALL.into_iter().filter(is_default);
        return Ok(all.filter(applies).collect());
    }
    if !args.sweep.iter().all(applies) {
        return Err("--sweep slo needs --requests, which says what a request is".to_owned());
    }
    let mut sweeps = Vec::new();
    for sweep in &args.sweep {
        if !sweeps.contains(sweep) {
            sweeps.push(*sweep);
        }
    }
    Ok(sweeps)
}

/// The CPU that all programs share: by default the last one, since the first has most interrupts.
fn cpu(args: &ExploreArgs) -> anyhow::Result<CpuId> {
    let allowed = affinity::allowed()?;
    match args.cpu.map(CpuId) {
        Some(cpu) if allowed.contains(&cpu) => Ok(cpu),
        Some(cpu) => Err(Usage(format!("CPU {} may not be used (--cpu)", cpu.0)).into()),
        None => allowed.last().copied().context("there is no CPU to run on"),
    }
}

/// The scavengers as values of `--scavenger`: the command itself if none is named.
fn lines(args: &ExploreArgs) -> Result<Vec<String>, String> {
    if !args.scavenger.is_empty() {
        return Ok(args.scavenger.clone());
    }
    let words: Option<Vec<&str>> = args.command.iter().map(|word| word.to_str()).collect();
    let words =
        words.ok_or("the command is not valid UTF-8: name a scavenger with --scavenger \"CMD\"")?;
    let line = shlex::try_join(words).map_err(|error| format!("the command: {error}"))?;
    Ok(vec![line])
}

/// Runs each program by itself, the primary once at each load and the first time with our stdout and stderr.
fn by_themselves<'a>(
    bench: &TestBench<'a>,
    loads: &[Load],
) -> Result<(Vec<Case<'a>>, Vec<String>), Stop> {
    let primaries = primaries(bench, loads)?;
    let longest_s = primaries.iter().map(|it| it.alone_s).fold(0.0, f64::max);
    let mut notes = Vec::new();
    let mut ends = Vec::new();
    let mut each = Vec::new();
    let patience = Duration::from_secs_f64(longest_s * ENDLESS_TIME_FACTOR).max(MIN_ENDLESS_TIME);
    for scavenger in &bench.scavengers {
        if bench.own_scavenger {
            ends.push(primaries.first().map(|it| it.end));
            each.push(longest_s);
            continue;
        }
        match bench.run_alone(scavenger, Some(bench.cpu), patience) {
            Ok((end, seconds)) => {
                ends.push(Some(end));
                each.push(seconds);
            }
            Err(EndFailure::Late) => {
                notes.push(format!(
                    "{} did not end by itself within {:.0} s: the work of scavengers is told by their CPU \
                     time, which counts their own waiting, and there is no time in which all are done",
                    scavenger.path.display(),
                    patience.as_secs_f64()
                ));
                ends.push(None);
            }
            Err(unended) => return Err(stopped(unended)),
        }
    }
    let sum: f64 = each.iter().sum::<f64>() * f64::from(bench.copies);
    let case = |primary: AlonePrimary<'a>| {
        let known = AloneRuns {
            limit: bed::limit(primary.alone_s + sum),
            primary_end: primary.end,
            scavenger_ends: ends.clone(),
        };
        let first = Baseline {
            primary_s: primary.alone_s,
            scavengers_s: known.all_end().then_some(sum),
            first_s: each.first().copied(),
            ..Baseline::default()
        };
        Case {
            load: primary.load,
            bench: primary.bench,
            known,
            first,
        }
    };
    Ok((primaries.into_iter().map(case).collect(), notes))
}

/// The primary with one load, and its first run by itself.
struct AlonePrimary<'a> {
    load: Option<Load>,
    bench: TestBench<'a>,
    end: ExitStatus,
    alone_s: f64,
}

/// Runs the primary by itself, once with each load.
fn primaries<'a>(bench: &TestBench<'a>, loads: &[Load]) -> Result<Vec<AlonePrimary<'a>>, Stop> {
    let loads: Vec<Option<&Load>> = match loads {
        [] => vec![None],
        loads => loads.iter().map(Some).collect(),
    };
    let mut primaries = Vec::new();
    for load in loads {
        let mut bench = bench.clone();
        if let Some(load) = load {
            bench.primary = loads::with_load(&bench.primary, load);
        }
        let ran = match primaries.is_empty() {
            true => bench.first(),
            false => bench.run_alone(&bench.primary, Some(bench.cpu), Duration::MAX),
        };
        let (end, alone_s) = ran.map_err(stopped)?;
        if !end.success() {
            let how = children::describe_end(end);
            let at = load.map_or_else(String::new, |load| format!(" at load {}", load.text));
            output::complain(&format!(
                "the program fails by itself{at} ({how}): nothing was explored"
            ));
            let code = end.code().and_then(|code| u8::try_from(code).ok());
            return Err(Stop(ExitCode::from(code.unwrap_or(1))));
        }
        primaries.push(AlonePrimary {
            load: load.cloned(),
            bench,
            end,
            alone_s,
        });
    }
    Ok(primaries)
}

/// Says why nothing was measured.
fn stopped(unended: EndFailure) -> Stop {
    if let EndFailure::NotStarted(why) = unended {
        output::complain(&format!("{why}: nothing was explored"));
        return Stop(ExitCode::FAILURE);
    }
    output::complain("interrupted: nothing was measured");
    Stop(ExitCode::from(children::ENDED_BY_USER))
}

/// The source of plans for each program: given files, or a profile.
fn sources<'a>(
    args: &ExploreArgs,
    bench: &TestBench<'a>,
    given: &[(std::path::PathBuf, PlanWithOrigin)],
    notes: &mut Vec<String>,
) -> Plans<'a> {
    let profiler = Profiler {
        membound: bench.membound.clone(),
        machine: bench.machine.clone(),
        machine_path: bench.machine_path.clone(),
        scratch: bench.scratch.clone(),
        cancel: bench.cancel,
    };
    let mut source = |role: HarvestRole, program: &Program| {
        if let Some(why) = &program.no_scavenger {
            let name = program.path.display();
            notes.push(format!("{name} runs as an ordinary process: {why}"));
            return Source::NotNeeded;
        }
        let is_of = |followed: &PlanWithOrigin| {
            followed.plan.role == role
                && plans::is_for(&followed.plan, &program.code).unwrap_or(false)
        };
        let files: Vec<_> = given
            .iter()
            .filter(|(_, followed)| is_of(followed))
            .map(|(path, _)| path.clone())
            .collect();
        if !files.is_empty() {
            return Source::Given(files);
        }
        if !args.quiet {
            let name = program.path.display();
            let most = args.profile_s.as_secs_f64();
            output::complain(&format!("profiling {name} as {role} for up to {most:.0} s"));
        }
        match profiler.record(program, None, args.profile_s) {
            Ok(data) => Source::Recorded(Box::new(data)),
            Err(why) => {
                notes.push(format!("{}: {why}", program.path.display()));
                Source::None(why)
            }
        }
    };
    let primary = source(HarvestRole::Primary, &bench.primary);
    let scavengers = bench
        .scavengers
        .iter()
        .map(|program| source(HarvestRole::Scavenger, program))
        .collect();
    Plans {
        profiler,
        primary,
        scavengers,
        made: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ExploreArgs,
    }

    fn args(words: &[&str]) -> ExploreArgs {
        let words = ["explore"].iter().chain(words);
        Line::try_parse_from(words).unwrap().args
    }

    #[test]
    fn tables_are_all_that_apply_or_those_asked_for() {
        let found = |words: &[&str]| sweeps(&args(words));
        assert_eq!(found(&["true"]).unwrap().len(), ExploreSweep::ALL.len() - 3);
        assert_eq!(found(&["--requests", "sockets", "true"]).unwrap().len(), 8);
        assert_eq!(
            found(&["--sweep", "kernel,bound,kernel", "true"]).unwrap(),
            [ExploreSweep::Kernel, ExploreSweep::Bound]
        );
        assert_eq!(
            found(&["--loads", "1,2", "true"]).unwrap(),
            [ExploreSweep::Load]
        );
        let refused = found(&["--sweep", "slo", "true"]).unwrap_err();
        assert!(refused.contains("--requests"), "{refused}");
    }

    #[test]
    fn a_program_without_scavengers_is_its_own_with_its_words() {
        assert_eq!(
            lines(&args(&["prog", "a b", "--x"])).unwrap(),
            ["prog 'a b' --x"]
        );
        assert_eq!(
            lines(&args(&["--scavenger", "other 1", "prog"])).unwrap(),
            ["other 1"]
        );
    }
}
