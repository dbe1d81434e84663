//! Everything that is done before the first setting is run. Requests that cannot work are refused here, the
//! cheapest checks first.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use membound_platform::affinity;
use membound_types::{
    CpuId, ExploreOptions, ExploreSweep, HarvestRole, MachineInfo, MachineProfile,
};
use tempfile::TempDir;

use super::child_groups::{self, EndFailure};
use super::explore_config::ExploreConfig;
use super::explored_profiles::{Plans, Profiler, Source};
use super::load::Load;
use super::loads;
use super::test_bench::{self, AloneRuns, Baseline, TestBench};
use crate::document_file;
use crate::environment::Environment;
use crate::error::{At as _, Error};
use crate::kept_plans::{self, PlanWithOrigin};
use crate::named_programs::{self, Program, texts};

/// How long to wait before a scavenger counts as one that does not end: a multiple of the primary's time, and
/// a minimum.
const ENDLESS_TIME_FACTOR: f64 = 5.0;
const MIN_ENDLESS_TIME: Duration = Duration::from_secs(10);

/// Everything that rounds need.
pub(super) struct Prepared<'a> {
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

/// A request that was checked without running any program.
#[derive(Debug)]
pub struct CheckedExploration {
    pub(super) config: ExploreConfig,
    pub(super) environment: Environment,
    pub(super) started: Instant,
    sweeps: Vec<ExploreSweep>,
    cpu: CpuId,
    primary: Program,
    scavengers: Vec<Program>,
    lines: Vec<String>,
    given: Vec<(PathBuf, PlanWithOrigin)>,
    loads: Vec<Load>,
}

impl<'a> Prepared<'a> {
    /// The programs at the largest load, which the primary is profiled with.
    pub(super) fn main_case(&self) -> &Case<'a> {
        main_case(&self.cases)
    }

    /// The options of the request as the document records them.
    pub(super) fn options(&self, config: &ExploreConfig) -> ExploreOptions {
        let bench = &self.main_case().bench;
        let scavengers = bench.scavengers.iter();
        let loads = self.cases.iter().filter_map(|case| case.load.as_ref());
        ExploreOptions {
            command: texts(&config.command),
            scavengers: scavengers.map(|it| texts(&it.words)).collect(),
            own_scavenger: bench.own_scavenger,
            copies: config.copies,
            idle: config.idle,
            pairs: config.pairs,
            on_cpu: bench.cpu,
            requests: bench.requests.clone(),
            plans: config
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

impl CheckedExploration {
    /// Checks a request without running any program.
    ///
    /// # Errors
    /// [`Error::CannotRun`] if the command is not found, [`Error::Usage`] if options contradict each other; if a
    /// plan cannot be used.
    pub fn new(config: ExploreConfig, environment: Environment) -> Result<Self, Error> {
        let started = Instant::now();
        let search = environment.search.as_deref();
        let primary = named_programs::command(&config.command, search)?;
        let sweeps = sweeps(&config).map_err(Error::Usage)?;
        let loads = loads::of_request(&config, &sweeps).map_err(Error::Usage)?;
        let cpu = cpu(&config)?;
        let lines = lines(&config).map_err(Error::Usage)?;
        let scavengers = named_programs::scavengers(&lines, search).map_err(Error::Usage)?;
        let mut given = Vec::new();
        for path in &config.plan {
            let followed = kept_plans::read(path)?;
            let mut fits = false;
            let runnable = scavengers.iter().filter(|it| it.no_scavenger.is_none());
            for program in std::iter::once(&primary).chain(runnable) {
                fits |= kept_plans::is_for(&followed.plan, &program.code)?;
            }
            if !fits {
                let path = path.display();
                return Err(Error::Refused(format!(
                    "{path} is not a plan of any of these programs"
                )));
            }
            given.push((path.clone(), followed));
        }
        Ok(Self {
            config,
            environment,
            started,
            sweeps,
            cpu,
            primary,
            scavengers,
            lines,
            given,
            loads,
        })
    }

    /// Runs and profiles each program once.
    ///
    /// # Errors
    /// If the request cannot be carried out here.
    pub(super) fn prepare<'a>(
        &self,
        machine: Option<MachineProfile>,
        cancel: &'a AtomicBool,
    ) -> Result<Prepared<'a>, Error> {
        let info = self.environment.machine_info();
        let scratch = tempfile::tempdir_in(&self.environment.temporary)
            .at(|| "there is no directory for the files of the exploration".to_owned())?;
        let bench = self.bench(machine, &info, &scratch, cancel)?;
        let cpu = bench.cpu;
        let (mut cases, mut notes) = by_themselves(&bench, &self.loads)?;
        let plans = self.sources(&main_case(&cases).bench, &mut notes);
        if let Some(case) = cases.last_mut()
            && case.bench.requests.is_some()
        {
            match case.bench.alone_p95_ns(&case.known, &plans) {
                Ok(ns) => case.first.p95_ns = Some(ns),
                Err(why) => notes.push(format!("requests without scavengers: {why}")),
            }
        }
        Ok(Prepared {
            sweeps: self.sweeps.clone(),
            cases,
            plans,
            sibling: sibling(cpu, &info),
            info,
            notes,
            _scratch: scratch,
        })
    }

    /// The bench on which all programs run, with the machine profile in a file of its own.
    fn bench<'a>(
        &self,
        machine: Option<MachineProfile>,
        info: &MachineInfo,
        scratch: &TempDir,
        cancel: &'a AtomicBool,
    ) -> Result<TestBench<'a>, Error> {
        let config = &self.config;
        let machine_path = scratch.path().join("machine.json");
        let written = machine
            .clone()
            .unwrap_or_else(|| MachineProfile::unmeasured(info.clone()));
        document_file::write(&machine_path, &written)?;
        Ok(TestBench {
            membound: std::env::current_exe().at(|| "membound has no file".to_owned())?,
            search: self.environment.search.clone(),
            machine_path,
            machine,
            scratch: scratch.path().to_owned(),
            primary: self.primary.clone(),
            scavengers: self.scavengers.clone(),
            lines: self.lines.clone(),
            copies: config.copies,
            idle: config.idle,
            own_scavenger: config.scavenger.is_empty(),
            cpu: self.cpu,
            requests: config.requests.as_ref().map(ToString::to_string),
            cancel,
        })
    }

    /// The source of plans for each program: given files, or a profile.
    fn sources<'a>(&self, bench: &TestBench<'a>, notes: &mut Vec<String>) -> Plans<'a> {
        let config = &self.config;
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
                    && kept_plans::is_for(&followed.plan, &program.code).unwrap_or(false)
            };
            let files: Vec<_> = self
                .given
                .iter()
                .filter(|(_, followed)| is_of(followed))
                .map(|(path, _)| path.clone())
                .collect();
            if !files.is_empty() {
                return Source::Given(files);
            }
            if !config.quiet {
                let name = program.path.display();
                let most = config.profile_time.as_secs_f64();
                self.environment
                    .complain(&format!("profiling {name} as {role} for up to {most:.0} s"));
            }
            match profiler.record(program, None, config.profile_time) {
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
}

/// The other permitted hardware thread of the core of `cpu`.
fn sibling(cpu: CpuId, info: &MachineInfo) -> Option<CpuId> {
    let has_cpu = |core: &&Vec<CpuId>| core.contains(&cpu);
    let core = info.cpu.smt_siblings.iter().find(has_cpu).cloned();
    let mut others = core.into_iter().flatten();
    others.find(|other| *other != cpu && info.cpu.allowed.contains(other))
}

/// The requested tables without duplicates.
fn sweeps(config: &ExploreConfig) -> Result<Vec<ExploreSweep>, String> {
    let applies = |sweep: &ExploreSweep| *sweep != ExploreSweep::Slo || config.requests.is_some();
    if config.sweep.is_empty() && !config.loads.is_empty() {
        return Ok(vec![ExploreSweep::Load]);
    }
    if config.sweep.is_empty() {
        // The others need loads, or take as long as all of these together.
        let is_default =
            |it: &ExploreSweep| !matches!(it, ExploreSweep::Load | ExploreSweep::PartsByDistance);
        let all = ExploreSweep::ALL.into_iter().filter(is_default);
        return Ok(all.filter(applies).collect());
    }
    if !config.sweep.iter().all(applies) {
        return Err("--sweep slo needs --requests, which says what a request is".to_owned());
    }
    let mut sweeps = Vec::new();
    for sweep in &config.sweep {
        if !sweeps.contains(sweep) {
            sweeps.push(*sweep);
        }
    }
    Ok(sweeps)
}

/// The CPU that all programs share: by default the last one, since the first has most interrupts.
fn cpu(config: &ExploreConfig) -> Result<CpuId, Error> {
    let allowed = affinity::allowed()?;
    match config.cpu {
        Some(cpu) if allowed.contains(&cpu) => Ok(cpu),
        Some(cpu) => Err(Error::Usage(format!(
            "CPU {} may not be used (--cpu)",
            cpu.0
        ))),
        None => {
            let last = allowed.last().copied();
            last.ok_or_else(|| Error::Refused("there is no CPU to run on".to_owned()))
        }
    }
}

/// The scavengers as values of `--scavenger`: the command itself if none is named.
fn lines(config: &ExploreConfig) -> Result<Vec<String>, String> {
    if !config.scavenger.is_empty() {
        return Ok(config.scavenger.clone());
    }
    let words: Option<Vec<&str>> = config.command.iter().map(|word| word.to_str()).collect();
    let words =
        words.ok_or("the command is not valid UTF-8: name a scavenger with --scavenger \"CMD\"")?;
    let line = shlex::try_join(words).map_err(|error| format!("the command: {error}"))?;
    Ok(vec![line])
}

/// Runs each program by itself, the primary once at each load and the first time with our stdout and stderr.
fn by_themselves<'a>(
    bench: &TestBench<'a>,
    loads: &[Load],
) -> Result<(Vec<Case<'a>>, Vec<String>), Error> {
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
            limit: test_bench::limit(primary.alone_s + sum),
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
fn primaries<'a>(bench: &TestBench<'a>, loads: &[Load]) -> Result<Vec<AlonePrimary<'a>>, Error> {
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
            let how = child_groups::describe_end(end);
            let at = load.map_or_else(String::new, |load| format!(" at load {}", load.text));
            return Err(Error::FailsAlone {
                what: format!("the program fails by itself{at} ({how})"),
                code: end.code().and_then(|code| u8::try_from(code).ok()),
            });
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

/// Why nothing was measured.
fn stopped(unended: EndFailure) -> Error {
    match unended {
        EndFailure::NotStarted(what) => Error::FailsAlone { what, code: None },
        EndFailure::Late | EndFailure::Interrupted => Error::Interrupted,
    }
}

#[cfg(test)]
mod tests {
    use membound_launch::RequestsBy;

    use super::*;

    fn config(command: &[&str]) -> ExploreConfig {
        ExploreConfig {
            command: command.iter().map(Into::into).collect(),
            ..ExploreConfig::default()
        }
    }

    #[test]
    fn tables_are_all_that_apply_or_those_asked_for() {
        let none = config(&["true"]);
        assert_eq!(sweeps(&none).unwrap().len(), ExploreSweep::ALL.len() - 3);
        let with_requests = ExploreConfig {
            requests: Some(RequestsBy::Sockets),
            ..none.clone()
        };
        assert_eq!(sweeps(&with_requests).unwrap().len(), 8);
        let of = |sweep: &[ExploreSweep]| ExploreConfig {
            sweep: sweep.to_vec(),
            ..none.clone()
        };
        let (kernel, bound) = (ExploreSweep::Kernel, ExploreSweep::Bound);
        assert_eq!(
            sweeps(&of(&[kernel, bound, kernel])).unwrap(),
            [kernel, bound]
        );
        let with_loads = ExploreConfig {
            loads: ["1", "2"].map(|text| text.parse().unwrap()).to_vec(),
            ..none.clone()
        };
        assert_eq!(sweeps(&with_loads).unwrap(), [ExploreSweep::Load]);
        let refused = sweeps(&of(&[ExploreSweep::Slo])).unwrap_err();
        assert!(refused.contains("--requests"), "{refused}");
    }

    #[test]
    fn a_program_without_scavengers_is_its_own_with_its_words() {
        let mut config = config(&["prog", "a b", "--x"]);
        assert_eq!(lines(&config).unwrap(), ["prog 'a b' --x"]);
        config.scavenger = vec!["other 1".to_owned()];
        assert_eq!(lines(&config).unwrap(), ["other 1"]);
    }
}
