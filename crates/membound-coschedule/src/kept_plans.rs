//! The plans of a harvest: read from files, found in the cache, or made from a short profile.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use membound_harvest::Options;
use membound_platform::output_file::replace;
use membound_rewrite::image::Image;
use membound_run::RunData;
use membound_types::{FollowedPlan, HarvestPlan, HarvestRole, Kind, MachineProfile, PlanSource};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::document_file;
use crate::environment::Environment;
use crate::error::{At as _, Error};
use crate::planning::Files;

/// How long a profiler may take to write its run after it was asked to end.
const PROFILER_WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason in the report: a program that starts others has no time slices.
pub(crate) const STARTS_OTHERS: &str =
    "it starts threads or processes, which a scavenger cannot do";
/// File name extension of kept refusals, which say why a program cannot be planned.
const REFUSED: &str = "refused";
/// File name extension of what is kept of programs that were timed.
const TIMED: &str = "timed";

/// True if a recorded program had several threads and is to be a scavenger: see [`STARTS_OTHERS`].
pub(crate) fn starts_others_as(role: HarvestRole, run: &RunData) -> bool {
    role == HarvestRole::Scavenger && run.own_threads().count() > 1
}

/// A plan and its origin.
#[derive(Debug)]
pub(crate) struct PlanWithOrigin {
    pub(crate) plan: HarvestPlan,
    pub(crate) from: FollowedPlan,
}

/// Makes plans and keeps them in the cache.
#[derive(Clone, Debug)]
pub(crate) struct PlanMaker {
    pub(crate) environment: Environment,
    pub(crate) machine: Option<MachineProfile>,
    /// Path of the machine profile, if one was named.
    pub(crate) machine_path: Option<PathBuf>,
    pub(crate) duration: Duration,
    /// Options for plans of the command.
    pub(crate) primary: Options,
    /// Options for plans of scavengers.
    pub(crate) scavenger: Options,
    pub(crate) quiet: bool,
}

/// A program for which a plan is wanted.
#[derive(Clone, Debug)]
pub(crate) struct PlanRequest {
    pub(crate) role: HarvestRole,
    /// The executable.
    pub(crate) path: PathBuf,
    /// The file that its plan must be for: the executable itself, or the shared object that it runs.
    pub(crate) code: PathBuf,
    pub(crate) words: Vec<OsString>,
}

/// What is known of a program before it runs.
#[derive(Debug)]
pub(crate) enum CacheEntry {
    Plan(Box<PlanWithOrigin>),
    /// It was profiled before and cannot be planned, for the reason given.
    Refused(String),
    /// It was timed before, as an ordinary process.
    Timed(Timed),
    Nothing,
}

/// A program that ran as an ordinary process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    /// CPU time of its last run, in seconds.
    pub(crate) cpu_s: f64,
    /// Bytes of code that it mapped.
    pub(crate) code_bytes: u64,
}

impl Timed {
    /// Parses the kept form: time and bytes.
    fn parse(text: &str) -> Option<Self> {
        let (cpu_s, code_bytes) = text.trim_end().split_once(' ')?;
        Some(Self {
            cpu_s: cpu_s.parse().ok()?,
            code_bytes: code_bytes.parse().ok()?,
        })
    }
}

/// Reads a plan from a file that the user gave.
pub(crate) fn read(path: &Path) -> Result<PlanWithOrigin, Error> {
    const WHAT: &str = "plan of a harvest";
    let read = document_file::read(path, Kind::HarvestPlan, WHAT)?;
    let plan: HarvestPlan = read.map_err(|_| {
        Error::Refused(format!(
            "{} is no {WHAT}: `membound harvest plan RUN --json FILE` writes one",
            path.display()
        ))
    })?;
    Ok(PlanWithOrigin {
        from: FollowedPlan {
            role: plan.role,
            source: PlanSource::Given,
            path: Some(path.display().to_string()),
            command: plan.command.clone(),
            planted_after_s: None,
        },
        plan,
    })
}

/// Whether a plan is for the executable at `path`. No plan is for a file that cannot be patched (a script, a
/// Go program).
///
/// # Errors
/// If the file cannot be read, or was changed since it was profiled.
pub(crate) fn is_for(plan: &HarvestPlan, path: &Path) -> Result<bool, Error> {
    let bytes = membound_launch::map_file(path).at(|| format!("cannot read {}", path.display()))?;
    let name = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = name.display().to_string();
    match membound_harvest::check(plan, &name, &bytes) {
        Ok(()) => Ok(true),
        Err(membound_harvest::Error::Unplanned { .. }) => Ok(false),
        Err(membound_harvest::Error::Image { .. })
            if plan.modules.iter().all(|module| module.path != name) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether all files of a plan are still those that were profiled.
fn holds(plan: &HarvestPlan) -> bool {
    plan.modules.iter().all(|module| {
        let planned = plan.sites.iter().any(|site| site.module == module.path);
        let file = || membound_launch::map_file(Path::new(&module.path));
        let check = |bytes: &[u8]| membound_harvest::check(plan, &module.path, bytes).is_ok();
        !planned || file().is_ok_and(|bytes| check(&bytes))
    })
}

impl PlanMaker {
    const fn options(&self, role: HarvestRole) -> &Options {
        match role {
            HarvestRole::Primary => &self.primary,
            HarvestRole::Scavenger => &self.scavenger,
        }
    }

    /// What the cache knows of a program: an entry is valid for the same file, arguments and options.
    pub(crate) fn known(&self, plan_request: &PlanRequest) -> CacheEntry {
        let Some(kept) = self.cache_file(plan_request) else {
            return CacheEntry::Nothing;
        };
        let is_still_of = |known: &PlanWithOrigin| {
            is_for(&known.plan, &plan_request.code).unwrap_or(false) && holds(&known.plan)
        };
        if let Some(known) = read(&kept).ok().filter(is_still_of) {
            return CacheEntry::Plan(Box::new(from_own_plan(known.plan)));
        }
        let text = |extension| std::fs::read_to_string(kept.with_extension(extension)).ok();
        if let Some(why) = text(REFUSED) {
            return CacheEntry::Refused(why);
        }
        (self.timed(plan_request)).map_or(CacheEntry::Nothing, CacheEntry::Timed)
    }

    /// What is kept of the program's last run as an ordinary process.
    pub(crate) fn timed(&self, plan_request: &PlanRequest) -> Option<Timed> {
        let kept = self.cache_file(plan_request)?.with_extension(TIMED);
        Timed::parse(&std::fs::read_to_string(kept).ok()?)
    }

    /// Runs the program once beforehand, without its output, to plan it.
    pub(crate) fn rehearse(&self, plan_request: &PlanRequest) -> Result<PlanWithOrigin, Error> {
        let path = &plan_request.path;
        if !self.quiet {
            self.environment.complain(&format!(
                "profiling {} for up to {:.0} s (--plan FILE uses an existing plan)",
                path.display(),
                self.duration.as_secs_f64()
            ));
        }
        let scratch = tempfile::tempdir_in(&self.environment.temporary)
            .at(|| "there is no directory for the run file".to_owned())?;
        let run = scratch.path().join("harvest.run");
        self.profile(path, &plan_request.words, &run)?;
        let data = membound_run::RunData::open(&run)
            .at(|| format!("{} could not be profiled", path.display()))?;
        let followed = self.plan_of(plan_request, &data)?;
        self.keep(plan_request, &followed.plan);
        Ok(followed)
    }

    /// Makes the plan from a run of the program.
    pub(crate) fn plan_of(
        &self,
        plan_request: &PlanRequest,
        run: &RunData,
    ) -> Result<PlanWithOrigin, Error> {
        if starts_others_as(plan_request.role, run) {
            return Err(Error::Refused(STARTS_OTHERS.to_owned()));
        }
        let options = self.options(plan_request.role);
        let plan = membound_harvest::plan(run, self.machine.as_ref(), &Files, None, options)
            .at(|| format!("{} cannot be planned", plan_request.path.display()))?;
        Ok(from_own_plan(plan))
    }

    /// Keeps a plan for later runs. Errors are ignored: the plan is then made again.
    pub(crate) fn keep(&self, plan_request: &PlanRequest, plan: &HarvestPlan) {
        if let Some(kept) = self.file_to_write(plan_request) {
            let _ = document_file::write(&kept, plan);
        }
    }

    /// Keeps why a program cannot be planned, so that it is not profiled again.
    pub(crate) fn keep_refusal(&self, plan_request: &PlanRequest, why: &str) {
        self.keep_text(plan_request, REFUSED, why);
    }

    /// Keeps the time of a program.
    pub(crate) fn keep_time(&self, plan_request: &PlanRequest, timed: Timed) {
        let Timed { cpu_s, code_bytes } = timed;
        self.keep_text(plan_request, TIMED, &format!("{cpu_s:.3} {code_bytes}\n"));
    }

    fn keep_text(&self, plan_request: &PlanRequest, extension: &str, text: &str) {
        if let Some(kept) = self.file_to_write(plan_request) {
            let _ = replace(&kept.with_extension(extension), text);
        }
    }

    /// As [`Self::cache_file`], in a directory that exists.
    fn file_to_write(&self, plan_request: &PlanRequest) -> Option<PathBuf> {
        let kept = self.cache_file(plan_request)?;
        let _ = std::fs::create_dir_all(kept.parent()?);
        Some(kept)
    }

    fn cache_file(&self, plan_request: &PlanRequest) -> Option<PathBuf> {
        cache_file(
            &self.environment.harvest_plans()?,
            (&plan_request.code, &plan_request.words),
            self.options(plan_request.role),
        )
    }

    /// The command that profiles a program into the file `run`, without its allocations; the caller appends
    /// further options and the program's words.
    ///
    /// # Errors
    /// If the path of membound's own executable cannot be determined.
    pub(crate) fn profiler(&self, run: &Path) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["profile", "--quiet", "--leave-plans", "--no-objects", "-o"]);
        command.arg(run);
        if let Some(machine) = &self.machine_path {
            command.arg("--machine").arg(machine);
        }
        Ok(command)
    }

    /// Runs the program under the profiler for at most the profiling time, with its output thrown away.
    fn profile(&self, path: &Path, words: &[OsString], run: &Path) -> Result<(), Error> {
        let mut command = self
            .profiler(run)
            .at(|| "membound has no file".to_owned())?;
        command
            .arg("--")
            .arg(path)
            .args(words.get(1..).unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command
            .spawn()
            .at(|| "the profiler cannot be started".to_owned())?;
        let ended = await_end(&mut child, self.duration)?;
        if !ended {
            signal_group(&child, Signal::TERM);
            if !await_end(&mut child, PROFILER_WRITE_TIMEOUT)? {
                signal_group(&child, Signal::KILL);
                let _ = child.wait();
                return Err(Error::Refused(format!(
                    "{} did not end when it was asked to: profile it with `membound profile` and \
                     pass its plan",
                    path.display()
                )));
            }
        }
        if !run.exists() {
            let name = path.display();
            return Err(Error::Refused(format!(
                "{name} could not be profiled: `membound profile -- {name}` says why"
            )));
        }
        Ok(())
    }
}

/// A plan that this program made, now or earlier.
fn from_own_plan(plan: HarvestPlan) -> PlanWithOrigin {
    PlanWithOrigin {
        from: FollowedPlan {
            role: plan.role,
            source: PlanSource::Made,
            path: None,
            command: plan.command.clone(),
            planted_after_s: None,
        },
        plan,
    }
}

fn await_end(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

fn signal_group(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The group may have ended just now.
        let _ = kill_process_group(group, signal);
    }
}

/// Path of a kept plan in `directory`: its name is a hash of the binary's identity, the arguments and the options.
fn cache_file(
    directory: &Path,
    (path, words): (&Path, &[OsString]),
    options: &Options,
) -> Option<PathBuf> {
    let bytes = membound_launch::map_file(path).ok()?;
    let identity = Image::identify(&bytes).ok()?;
    let mut hash = DefaultHasher::new();
    let arguments = words.get(1..);
    (identity, arguments, format!("{options:?}")).hash(&mut hash);
    // The hash may differ between builds of membound. A wrong match is harmless: plans are checked.
    Some(directory.join(format!("{:016x}.json", hash.finish())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_distinguished_by_arguments_and_options() {
        let path = Path::new("/proc/self/exe");
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let options = Options::new(HarvestRole::Primary);
        let name = |given: &[&str], options: &Options| {
            cache_file(Path::new("/cache"), (path, &words(given)), options)
        };
        let first = name(&["a", "1"], &options);
        assert!(first.is_some());
        assert_eq!(first, name(&["b", "1"], &options));
        assert_ne!(first, name(&["a", "1", "2"], &options));
        assert_ne!(
            name(&["a", "12"], &options),
            name(&["a", "1", "2"], &options)
        );
        let mut other = options;
        other.max_overhead = 0.01;
        assert_ne!(first, name(&["a", "1"], &other));
    }

    #[test]
    fn a_file_that_is_no_plan_is_a_one_line_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        std::fs::write(&path, r#"{"schema_version":1,"kind":"machine"}"#).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("is no plan of a harvest"), "{error}");
        let error = read(&directory.path().join("none")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read"), "{error}");
    }
}
