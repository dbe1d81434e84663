//! Runs the programs of an exploration: by themselves, and once under a setting.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use membound_platform::disturb::ThreadUsage;
use membound_types::{
    CpuId, ExploreRun, HarvestPart, HarvestRole, HarvestRun, IdlePolicy, Latencies, MachineProfile,
    ScavengerState,
};

use super::child_groups::{self, EndFailure, Running};
use super::explored_profiles::{EndedScavenger, Limited, Plans, YieldingLoads, loads};
use super::sweep_settings::{Harvesting, ScavengerSet, Scheduling};
use crate::named_programs::Program;
use crate::slice_timing::Timing;

/// Limit of a run's time, as a multiple of the programs' time one after another.
const MAX_TIME_FACTOR: f64 = 20.0;
/// Time added to that limit.
const EXTRA_TIME: Duration = Duration::from_secs(60);

/// Inputs that all settings share.
#[derive(Clone)]
pub(super) struct TestBench<'a> {
    /// Path of membound's own executable.
    pub(super) membound: PathBuf,
    /// `PATH`, in which programs are looked up.
    pub(super) search: Option<OsString>,
    /// Path of the machine profile.
    pub(super) machine_path: PathBuf,
    pub(super) machine: Option<MachineProfile>,
    pub(super) scratch: PathBuf,
    pub(super) primary: Program,
    pub(super) scavengers: Vec<Program>,
    /// The scavengers as values of `--scavenger`.
    pub(super) lines: Vec<String>,
    pub(super) copies: u32,
    /// `--idle`.
    pub(super) idle: IdlePolicy,
    /// True if no scavenger was named: the scavenger is the primary's program, and takes the primary's time.
    pub(super) own_scavenger: bool,
    pub(super) cpu: CpuId,
    /// `--requests`.
    pub(super) requests: Option<String>,
    pub(super) cancel: &'a AtomicBool,
}

/// When a harvest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finish {
    Primary,
    /// After the primary and all scavengers have ended.
    All,
}

/// How the programs behave by themselves.
#[derive(Clone, Debug)]
pub(super) struct AloneRuns {
    /// How the primary ended.
    pub(super) primary_end: ExitStatus,
    /// How each scavenger ended; `None` if it does not end by itself.
    pub(super) scavenger_ends: Vec<Option<ExitStatus>>,
    /// Maximum time of a run.
    pub(super) limit: Duration,
}

impl AloneRuns {
    /// Whether all scavengers end by themselves.
    pub(super) fn all_end(&self) -> bool {
        self.scavenger_ends.iter().all(Option::is_some)
    }
}

/// Times of the programs by themselves in one round, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Baseline {
    pub(super) primary_s: f64,
    /// Sum over all scavengers and copies; `None` if one does not end.
    pub(super) scavengers_s: Option<f64>,
    /// The first scavenger alone.
    pub(super) first_s: Option<f64>,
    pub(super) p95_ns: Option<f64>,
    /// The primary on any CPU, the reference for profiled runs.
    pub(super) unbound_s: Option<f64>,
}

/// The limit for runs of programs that take `all_s` seconds one after another.
pub(super) fn limit(all_s: f64) -> Duration {
    EXTRA_TIME + Duration::from_secs_f64(all_s * MAX_TIME_FACTOR)
}

/// The command that runs a program unchanged, preceded by the words `before`.
pub(super) fn as_it_is(program: &Program, before: &[&str]) -> Command {
    let mut words = before.iter();
    let mut command = match words.next() {
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(&program.path);
            command
        }
        None => Command::new(&program.path),
    };
    command.args(&program.words[1..]);
    command
}

impl TestBench<'_> {
    /// Runs the primary by itself, with our stdout and stderr.
    pub(super) fn first(&self) -> Result<(ExitStatus, f64), EndFailure> {
        let mut command = as_it_is(&self.primary, &[]);
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let started = child_groups::start(&mut command, Some(self.cpu));
        let mut running = started.map_err(EndFailure::NotStarted)?;
        let (status, wall) = running.wait(Duration::MAX, self.cancel)?;
        Ok((status, wall.as_secs_f64()))
    }

    /// Runs a program by itself, without output. Returns how it ended, and its wall time in seconds.
    pub(super) fn run_alone(
        &self,
        program: &Program,
        cpu: Option<CpuId>,
        limit: Duration,
    ) -> Result<(ExitStatus, f64), EndFailure> {
        let mut command = as_it_is(program, &[]);
        let started = child_groups::start(child_groups::silent(&mut command), cpu);
        let mut running = started.map_err(EndFailure::NotStarted)?;
        let (status, wall) = running.wait(limit, self.cancel)?;
        Ok((status, wall.as_secs_f64()))
    }

    /// Runs a setting once, and adds the baseline of the same round to the result.
    pub(super) fn run(
        &self,
        scheduling: &Scheduling,
        known: &AloneRuns,
        plans: &Plans<'_>,
        usual: &YieldingLoads,
        baseline: &Baseline,
    ) -> ExploreRun {
        let found = match scheduling {
            Scheduling::Alone => Ok(ExploreRun {
                primary_s: Some(baseline.primary_s),
                p95_ns: baseline.p95_ns,
                ..ExploreRun::default()
            }),
            Scheduling::OneAfterAnother => Ok(ExploreRun {
                primary_s: Some(baseline.primary_s),
                all_s: baseline.scavengers_s.map(|it| it + baseline.primary_s),
                p95_ns: baseline.p95_ns,
                ..ExploreRun::default()
            }),
            Scheduling::Kernel(before) => self.run_as_processes(before, self.cpu, known, plans),
            Scheduling::Sibling(Some(cpu)) => self.run_as_processes(&[], *cpu, known, plans),
            Scheduling::Sibling(None) => {
                let why = "no core has a second hardware thread that may be used";
                Err(format!("{why}: CPU {} has none beside it", self.cpu.0))
            }
            Scheduling::Harvest(how) => self.harvest(how, known, plans),
            Scheduling::Profiled(period) => self.profiled(*period, known, plans, usual, baseline),
        };
        let mut run = found.unwrap_or_else(|why| ExploreRun {
            failed: Some(why),
            ..ExploreRun::default()
        });
        let is_profiled = matches!(scheduling, Scheduling::Profiled(_));
        run.alone_s = if is_profiled {
            baseline.unbound_s
        } else {
            Some(baseline.primary_s)
        };
        run.alone_p95_ns = baseline.p95_ns;
        run.scavengers_alone_s = match scheduling {
            Scheduling::Alone | Scheduling::Profiled(_) => None,
            Scheduling::Harvest(how) => match how.scavengers {
                ScavengerSet::Named => baseline.scavengers_s,
                ScavengerSet::CopiesOfFirst(copies) => {
                    baseline.first_s.map(|first| first * f64::from(copies))
                }
                ScavengerSet::Waiting | ScavengerSet::EndedScavenger => None,
            },
            _ => baseline.scavengers_s,
        };
        run
    }

    /// Runs the primary alongside scavengers as processes of their own, started by the command `before`.
    fn run_as_processes(
        &self,
        before: &[&str],
        cpu: CpuId,
        known: &AloneRuns,
        plans: &Plans<'_>,
    ) -> Result<ExploreRun, String> {
        let mut scavengers = Vec::new();
        let json = self.scratch.join("processes.json");
        let mut command = match self.requests {
            Some(_) => self.latency_observed(plans, &json)?,
            None => as_it_is(&self.primary, &[]),
        };
        let mut primary = child_groups::start(child_groups::silent(&mut command), Some(self.cpu))?;
        for program in &self.scavengers {
            for _ in 0..self.copies {
                let mut command = as_it_is(program, before);
                scavengers.push(child_groups::start(
                    child_groups::silent(&mut command),
                    Some(cpu),
                )?);
            }
        }
        let ended = primary.wait(known.limit, self.cancel);
        let (status, wall) = ended.map_err(|unended| unended.reason(known.limit))?;
        if let Some(why) = child_groups::differs(status, known.primary_end) {
            return Err(format!("the program: {why}"));
        }
        let mut run = ExploreRun {
            primary_s: Some(wall.as_secs_f64()),
            ..ExploreRun::default()
        };
        if self.requests.is_some() {
            run.p95_ns = p95_ns(&read(&json)?);
        }
        self.let_finish(scavengers, known, &mut run, &primary)?;
        Ok(run)
    }

    /// Waits for the scavengers, or kills them if they do not end by themselves.
    fn let_finish(
        &self,
        scavengers: Vec<Running>,
        known: &AloneRuns,
        run: &mut ExploreRun,
        primary: &Running,
    ) -> Result<(), String> {
        if !known.all_end() {
            let before_s = ThreadUsage::of_children().cpu_s();
            drop(scavengers);
            run.scavengers_cpu_s = Some(ThreadUsage::of_children().cpu_s() - before_s);
            return Ok(());
        }
        let ends = known
            .scavenger_ends
            .iter()
            .flat_map(|end| std::iter::repeat_n(*end, self.copies as usize));
        for (mut scavenger, end) in scavengers.into_iter().zip(ends) {
            let ended = scavenger.wait(known.limit, self.cancel);
            let (status, _) = ended.map_err(|unended| unended.reason(known.limit))?;
            if let Some(why) = end.and_then(|end| child_groups::differs(status, end)) {
                return Err(format!("a scavenger: {why}"));
            }
        }
        run.all_s = Some(primary.elapsed().as_secs_f64());
        Ok(())
    }

    /// The command that runs the primary under membound, which observes its requests and gives no time slice
    /// to a scavenger.
    fn latency_observed(&self, plans: &Plans<'_>, json: &Path) -> Result<Command, String> {
        let how = Harvesting {
            // A scavenger is present as in a harvest, since it decides which threads' requests are counted.
            scavengers: ScavengerSet::Waiting,
            without: vec![HarvestPart::Waits],
            ..Harvesting::default()
        };
        let files = plans.without_yields(&self.primary.code, self.limited(&how))?;
        Ok(self.harvest_command(&how, &files, json, None, Finish::Primary))
    }

    /// The 95th percentile of the primary's request durations without scavengers, in nanoseconds.
    pub(super) fn alone_p95_ns(&self, known: &AloneRuns, plans: &Plans<'_>) -> Result<f64, String> {
        let json = self.scratch.join("alone.json");
        let mut command = self.latency_observed(plans, &json)?;
        let mut running = child_groups::start(child_groups::silent(&mut command), Some(self.cpu))?;
        let ended = running.wait(known.limit, self.cancel);
        ended.map_err(|unended| unended.reason(known.limit))?;
        p95_ns(&read(&json)?).ok_or_else(|| "no request was observed".to_owned())
    }

    fn limited(&self, how: &Harvesting) -> Limited {
        let goes_with = Timing::of(how.bound_ns, self.machine.as_ref()).distance_ns;
        Limited {
            distance_ns: how.distance_ns.unwrap_or(goes_with),
            max_overhead: how.max_overhead,
        }
    }

    fn harvest(
        &self,
        how: &Harvesting,
        known: &AloneRuns,
        plans: &Plans<'_>,
    ) -> Result<ExploreRun, String> {
        let json = self.scratch.join("harvest.json");
        let _ = std::fs::remove_file(&json);
        let ended_scavenger = match how.scavengers {
            ScavengerSet::EndedScavenger => Some(EndedScavenger::find(self.search.as_deref())?),
            _ => None,
        };
        let files = match &ended_scavenger {
            Some(ended_scavenger) => plans.with_ended_scavenger(ended_scavenger)?,
            None => plans.files(self.limited(how))?,
        };
        let finish = if known.all_end() && ended_scavenger.is_none() {
            Finish::All
        } else {
            Finish::Primary
        };
        let mut command =
            self.harvest_command(how, &files, &json, ended_scavenger.as_ref(), finish);
        let mut running = child_groups::start(child_groups::silent(&mut command), Some(self.cpu))?;
        let ended = running.wait(known.limit, self.cancel);
        let (status, _) = ended.map_err(|unended| unended.reason(known.limit))?;
        if let Some(why) = child_groups::differs(status, known.primary_end) {
            return Err(format!("the program: {why}"));
        }
        let document = read(&json)?;
        if let Some(why) = self.complaint(&document, how, known) {
            return Err(why);
        }
        let mut run = harvested(&document, finish);
        run.loads = plans.yielding_loads(how.max_overhead);
        if ended_scavenger.is_some() {
            run.scavengers_cpu_s = None;
        }
        Ok(run)
    }

    /// Why the figures of a harvest are invalid, if they are.
    fn complaint(
        &self,
        document: &HarvestRun,
        how: &Harvesting,
        known: &AloneRuns,
    ) -> Option<String> {
        let wanted = match how.scavengers {
            ScavengerSet::EndedScavenger => return None,
            ScavengerSet::CopiesOfFirst(copies) => copies as usize,
            ScavengerSet::Named | ScavengerSet::Waiting => {
                self.copies as usize * self.scavengers.len()
            }
        };
        complaint(document, known, wanted)
    }

    /// The command `membound harvest run` with the primary; `ended_scavenger` replaces the scavengers if
    /// given.
    fn harvest_command(
        &self,
        how: &Harvesting,
        plans: &[PathBuf],
        json: &Path,
        ended_scavenger: Option<&EndedScavenger>,
        finish: Finish,
    ) -> Command {
        let mut command = Command::new(&self.membound);
        command.args(["harvest", "run", "--quiet", "--machine"]);
        command.arg(&self.machine_path).arg("--json").arg(json);
        let (copies, idle) = match how.scavengers {
            ScavengerSet::Named => (self.copies, self.idle),
            ScavengerSet::CopiesOfFirst(copies) => (copies, IdlePolicy::Stop),
            ScavengerSet::Waiting => (self.copies, IdlePolicy::Stop),
            ScavengerSet::EndedScavenger => (1, IdlePolicy::Stop),
        };
        command.args(["--copies", &copies.to_string(), "--idle", idle.name()]);
        match (how.scavengers, ended_scavenger) {
            (_, Some(ended_scavenger)) => {
                command.arg("--scavenger").arg(&ended_scavenger.path);
            }
            (ScavengerSet::CopiesOfFirst(copies), None) => {
                command.args(["--per-thread", &copies.to_string()]);
                command.args(["--scavenger", &self.lines[0]]);
            }
            (_, None) => {
                for line in &self.lines {
                    command.arg("--scavenger").arg(line);
                }
            }
        }
        for plan in plans {
            command.arg("--plan").arg(plan);
        }
        for part in &how.without {
            command.args(["--without", part.name()]);
        }
        let numbers = [("--bound-ns", how.bound_ns), ("--slo-p95", how.slo_p95_ns)];
        for (option, number) in numbers {
            if let Some(number) = number {
                command.args([option, &number.to_string()]);
            }
        }
        if let Some(requests) = &self.requests {
            command.args(["--requests", requests]);
        }
        if finish == Finish::All {
            command.arg("--finish");
        }
        command.arg("--").args(&self.primary.words);
        command
    }

    fn profiled(
        &self,
        period: Option<Duration>,
        known: &AloneRuns,
        plans: &Plans<'_>,
        usual: &YieldingLoads,
        baseline: &Baseline,
    ) -> Result<ExploreRun, String> {
        let Some(period) = period else {
            return Ok(ExploreRun {
                primary_s: baseline.unbound_s,
                ..ExploreRun::default()
            });
        };
        let profiler = &plans.profiler;
        let data = profiler.record(&self.primary, Some(period), known.limit)?;
        let plan = profiler.plan(&data, HarvestRole::Primary, None, None)?;
        let found = loads(&plan);
        Ok(ExploreRun {
            primary_s: Some(data.meta.elapsed_ns as f64 * 1e-9),
            loads: Some(found.len() as u64),
            common_loads: Some(found.intersection(usual).count() as u64),
            usual_loads: Some(usual.len() as u64),
            ..ExploreRun::default()
        })
    }
}

fn read(json: &Path) -> Result<HarvestRun, String> {
    let text = std::fs::read(json).map_err(|_| "`harvest run` left no document".to_owned())?;
    serde_json::from_slice(&text)
        .map_err(|error| format!("`harvest run` left no document: {error}"))
}

/// The 95th percentile of the phases, with or without scavengers, that have the most requests.
fn p95_ns(document: &HarvestRun) -> Option<f64> {
    let latency = document.primary.latency.as_ref()?;
    let both = [&latency.with, &latency.without];
    let measured = both.into_iter().flatten();
    let most = measured.max_by_key(|it: &&Latencies| it.requests)?;
    Some(most.p95_ns)
}

/// Why the figures of a harvest with `wanted` scavengers are invalid, if they are.
fn complaint(document: &HarvestRun, known: &AloneRuns, wanted: usize) -> Option<String> {
    if document.scavengers.len() < wanted {
        return Some("a scavenger was left out".to_owned());
    }
    let codes: Vec<Option<i32>> = known
        .scavenger_ends
        .iter()
        .map(|end| end.and_then(|end| end.code()))
        .collect();
    document.scavengers.iter().find_map(|scavenger| {
        let why = scavenger.reason.as_deref().unwrap_or("no reason given");
        match scavenger.state {
            ScavengerState::Refused => Some(format!("a scavenger was refused: {why}")),
            ScavengerState::Crashed => Some(format!("a scavenger crashed: {why}")),
            ScavengerState::Finished if !codes.contains(&scavenger.exit_code) => {
                let code = scavenger.exit_code.unwrap_or(-1);
                Some(format!(
                    "a scavenger ended with code {code}, but alone with another code"
                ))
            }
            ScavengerState::Unfinished if known.all_end() => {
                Some("a scavenger did not finish".to_owned())
            }
            _ => None,
        }
    })
}

/// The figures of a harvest's document.
fn harvested(document: &HarvestRun, finish: Finish) -> ExploreRun {
    let all_end = finish == Finish::All;
    let distance = &document.distance_ns;
    let cpu: Option<Vec<f64>> = document.scavengers.iter().map(|it| it.cpu_s).collect();
    ExploreRun {
        primary_s: document.primary.wall_s,
        all_s: all_end.then_some(document.wall_s),
        scavengers_cpu_s: cpu.filter(|_| !all_end).map(|cpu| cpu.iter().sum()),
        p95_ns: p95_ns(document),
        turn_p50_ns: distance.p50,
        turn_p90_ns: distance.p90,
        within: distance.within_bound,
        turns: Some(document.primary.yields),
        ..ExploreRun::default()
    }
}
