//! Profiles the programs and makes plans from the profiles. One profile serves for all plans of a program, so
//! that settings differ in nothing else.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use membound_harvest::Options;
use membound_harvest::distance::{Limits, Rule};
use membound_run::RunData;
use membound_types::{HarvestPlan, HarvestRole, MachineProfile, YieldKind};
use rustix::process::Signal;

use super::child_groups::{self, EndFailure};
use super::sweep_settings::DEFAULT_OVERHEAD_SHARE;
use crate::document_file;
use crate::error::one_line;
use crate::kept_plans::{STARTS_OTHERS, starts_others_as};
use crate::named_programs::Program;
use crate::planning::Files;

/// How long a profiler may take to write its run after it was asked to end.
const PROFILER_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Loads that yield, each as the path of its file and its address.
pub(super) type YieldingLoads = BTreeSet<(String, u64)>;

/// Parameters of plans that settings vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limited {
    /// Maximum time between two yields of a scavenger, in nanoseconds.
    pub(super) distance_ns: f64,
    /// Share of the CPU time that yields may cost on hits; `None`: the default.
    pub(super) max_overhead: Option<f64>,
}

/// Profiles programs and plans them.
#[derive(Debug)]
pub(super) struct Profiler<'a> {
    /// Path of membound's own executable.
    pub(super) membound: PathBuf,
    pub(super) machine: Option<MachineProfile>,
    /// Path of the machine profile.
    pub(super) machine_path: PathBuf,
    pub(super) scratch: PathBuf,
    pub(super) cancel: &'a AtomicBool,
}

impl Profiler<'_> {
    /// Runs a program under the profiler, without output, for at most `limit`; then tells the profiler to
    /// end. Returns what was recorded.
    pub(super) fn record(
        &self,
        program: &Program,
        period: Option<Duration>,
        limit: Duration,
    ) -> Result<RunData, String> {
        let run = self.scratch.join("explore.run");
        let _ = std::fs::remove_file(&run);
        let mut command = Command::new(&self.membound);
        command.args(["profile", "--quiet", "--no-objects", "--machine"]);
        command.arg(&self.machine_path).arg("-o").arg(&run);
        if let Some(period) = period {
            let ms = (period.as_secs_f64() * 1e3).to_string();
            command.args(["--period", &ms]);
        }
        command
            .arg("--")
            .arg(&program.path)
            .args(&program.words[1..]);
        // Not bound to the programs' CPU: recording needs a processor of its own.
        let mut running = child_groups::start(child_groups::silent(&mut command), None)?;
        match running.wait(limit, self.cancel) {
            Err(EndFailure::Late) => {
                running.signal(Signal::TERM);
                let more = running.elapsed() + PROFILER_WRITE_TIMEOUT;
                let ended = running.wait(more, self.cancel);
                ended.map_err(|_| "the profiler did not end when it was asked to")?;
            }
            Err(unended) => return Err(unended.reason(limit)),
            Ok(_) => {}
        }
        RunData::open(&run).map_err(|error| format!("it could not be profiled: {error:#}"))
    }

    /// Makes a plan from a recorded run.
    pub(super) fn plan(
        &self,
        data: &RunData,
        role: HarvestRole,
        distance_ns: Option<f64>,
        max_overhead: Option<f64>,
    ) -> Result<HarvestPlan, String> {
        // As a scavenger it would end with an error of its own, which does not show the reason.
        if starts_others_as(role, data) {
            return Err(STARTS_OTHERS.to_owned());
        }
        let mut options = Options::new(role);
        options.max_overhead = max_overhead.unwrap_or(DEFAULT_OVERHEAD_SHARE);
        options.limits = distance_ns.map(|bound_ns| Limits {
            bound_ns,
            rule: Rule::Max,
        });
        membound_harvest::plan(data, self.machine.as_ref(), &Files, None, &options)
            .map_err(|error| format!("it cannot be planned: {error:#}"))
    }
}

/// The loads that yield according to a plan.
pub(super) fn loads(plan: &HarvestPlan) -> YieldingLoads {
    let chosen = plan
        .sites
        .iter()
        .filter(|site| site.chosen && site.kind == YieldKind::Primary);
    chosen
        .map(|site| (site.module.clone(), site.offset))
        .collect()
}

/// Source of the plans of a program.
#[derive(Debug)]
pub(super) enum Source {
    /// Given files, the same for all settings.
    Given(Vec<PathBuf>),
    /// A recorded run.
    Recorded(Box<RunData>),
    /// None needed, since the program has no time slices.
    NotNeeded,
    /// None, for the reason given.
    None(String),
}

/// A scavenger that ends at once, so that no other program runs in the primary's stalls.
#[derive(Debug)]
pub(super) struct EndedScavenger {
    pub(super) path: PathBuf,
    plan: HarvestPlan,
}

impl EndedScavenger {
    /// Finds the program `true` in the directories of `search`.
    pub(super) fn find(search: Option<&OsStr>) -> Result<Self, String> {
        let found = membound_launch::find(OsStr::new("true"), search);
        let path = found.map(|path| std::fs::canonicalize(&path).unwrap_or(path));
        let path = path.map_err(|error| error.to_string())?;
        let plan = plan_without_yields(&path, HarvestRole::Scavenger)?;
        Ok(Self { path, plan })
    }
}

/// A plan in which the executable never yields.
fn plan_without_yields(path: &Path, role: HarvestRole) -> Result<HarvestPlan, String> {
    let path = std::fs::canonicalize(path).map_err(|error| error.to_string())?;
    let bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
    membound_harvest::by_hand(&path.display().to_string(), &bytes, role, &[])
        .map_err(|error| error.to_string())
}

/// The plans of all programs, written to files.
#[derive(Debug)]
pub(super) struct Plans<'a> {
    pub(super) profiler: Profiler<'a>,
    pub(super) primary: Source,
    /// One for each named scavenger.
    pub(super) scavengers: Vec<Source>,
    /// Plans that were made, or why they could not be, by name ([`made_name`]).
    pub(super) made: RefCell<BTreeMap<String, Result<Made, String>>>,
}

/// A plan that was made here.
#[derive(Clone, Debug)]
pub(super) struct Made {
    path: PathBuf,
    /// Number of loads that yield.
    loads: u64,
}

/// Name of a plan of the primary, or of the scavenger with this index.
fn made_name(
    role: HarvestRole,
    index: usize,
    distance_ns: Option<f64>,
    max_overhead: Option<f64>,
) -> String {
    let distance = distance_ns.unwrap_or(0.0);
    let overhead = max_overhead.unwrap_or(DEFAULT_OVERHEAD_SHARE);
    format!("{role}-{index}-{distance}-{overhead}")
}

impl Plans<'_> {
    /// Paths of the plans for a run with these parameters.
    pub(super) fn files(&self, limited: Limited) -> Result<Vec<PathBuf>, String> {
        let role = HarvestRole::Primary;
        let mut files = self.of(&self.primary, role, 0, None, limited.max_overhead)?;
        files.extend(self.of_scavengers(limited)?);
        Ok(files)
    }

    /// Number of loads of the primary that yield in the plan with this limit of overhead; `None` if its plan
    /// was not made here.
    pub(super) fn yielding_loads(&self, max_overhead: Option<f64>) -> Option<u64> {
        let name = made_name(HarvestRole::Primary, 0, None, max_overhead);
        let made = self.made.borrow();
        let made = made.get(&name)?.as_ref().ok()?;
        Some(made.loads)
    }

    /// Paths of the plans for a run with [`EndedScavenger`].
    pub(super) fn with_ended_scavenger(
        &self,
        ended_scavenger: &EndedScavenger,
    ) -> Result<Vec<PathBuf>, String> {
        let mut files = self.of(&self.primary, HarvestRole::Primary, 0, None, None)?;
        files.push(self.write("nobody", &ended_scavenger.plan)?);
        Ok(files)
    }

    /// As [`Self::files`], with a plan in which the primary never yields.
    pub(super) fn without_yields(
        &self,
        primary: &Path,
        limited: Limited,
    ) -> Result<Vec<PathBuf>, String> {
        let plan = plan_without_yields(primary, HarvestRole::Primary)?;
        let mut files = vec![self.write("without-yields", &plan)?];
        files.extend(self.of_scavengers(limited)?);
        Ok(files)
    }

    fn of_scavengers(&self, limited: Limited) -> Result<Vec<PathBuf>, String> {
        let Limited {
            distance_ns,
            max_overhead,
        } = limited;
        let mut files = Vec::new();
        for (index, source) in self.scavengers.iter().enumerate() {
            let role = HarvestRole::Scavenger;
            files.extend(self.of(source, role, index, Some(distance_ns), max_overhead)?);
        }
        Ok(files)
    }

    /// Whether distances between a scavenger's yields can be varied; the error says why not.
    pub(super) fn distances_vary(&self) -> Result<(), String> {
        let given = |source: &Source| matches!(source, Source::Given(_));
        if self.scavengers.iter().any(given) {
            return Err(
                "a scavenger's plan was given (--plan), which fixes the distance".to_owned(),
            );
        }
        Ok(())
    }

    /// Whether the limit of the overhead of yields can be varied; the error says why not.
    pub(super) fn overheads_vary(&self) -> Result<(), String> {
        match self.primary {
            Source::Given(_) => {
                let why = "the program's plan was given (--plan), which fixes the loads that yield";
                Err(why.to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The loads that yield in the primary's plan with default parameters; none if its plan was not made
    /// here.
    pub(super) fn primary_loads(&self) -> YieldingLoads {
        match &self.primary {
            Source::Recorded(data) => {
                let role = HarvestRole::Primary;
                let plan = self.profiler.plan(data, role, None, None);
                plan.as_ref().map(loads).unwrap_or_default()
            }
            Source::Given(_) | Source::NotNeeded | Source::None(_) => YieldingLoads::new(),
        }
    }

    fn of(
        &self,
        source: &Source,
        role: HarvestRole,
        index: usize,
        distance_ns: Option<f64>,
        max_overhead: Option<f64>,
    ) -> Result<Vec<PathBuf>, String> {
        let data = match source {
            Source::Given(files) => return Ok(files.clone()),
            Source::NotNeeded => return Ok(Vec::new()),
            Source::None(why) => return Err(format!("the {role}: {why}")),
            Source::Recorded(data) => data,
        };
        let name = made_name(role, index, distance_ns, max_overhead);
        if let Some(known) = self.made.borrow().get(&name) {
            return known.clone().map(|made| vec![made.path]);
        }
        let plan = self.profiler.plan(data, role, distance_ns, max_overhead);
        let made = plan.and_then(|plan| {
            Ok(Made {
                path: self.write(&name, &plan)?,
                loads: loads(&plan).len() as u64,
            })
        });
        let made = made.map_err(|why| format!("the {role}: {why}"));
        self.made.borrow_mut().insert(name, made.clone());
        made.map(|made| vec![made.path])
    }

    fn write(&self, name: &str, plan: &HarvestPlan) -> Result<PathBuf, String> {
        let path = self.profiler.scratch.join(format!("{name}.json"));
        document_file::write(&path, plan).map_err(|error| one_line(&error))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use membound_run::{Process, ProcessId, Thread};

    use super::*;

    #[test]
    fn a_program_with_threads_is_no_scavenger_and_the_reason_says_so() {
        let scratch = tempfile::tempdir().unwrap();
        let thread = |tid| Thread {
            process: ProcessId(0),
            tid,
            name: "worker".to_owned(),
            start_ns: 0,
            end_ns: None,
            cpu_ns: None,
        };
        let data = RunData {
            processes: vec![Process {
                pid: 7,
                ..Process::default()
            }],
            threads: vec![thread(7), thread(8)],
            ..RunData::default()
        };
        let plans = Plans {
            profiler: Profiler {
                membound: PathBuf::new(),
                machine: None,
                machine_path: PathBuf::new(),
                scratch: scratch.path().to_owned(),
                cancel: &AtomicBool::new(false),
            },
            primary: Source::NotNeeded,
            scavengers: vec![Source::Recorded(Box::new(data))],
            made: RefCell::default(),
        };
        let limited = Limited {
            distance_ns: 200.0,
            max_overhead: None,
        };
        let why = plans.files(limited).unwrap_err();
        assert_eq!(why, format!("the scavenger: {STARTS_OTHERS}"));
    }
}
