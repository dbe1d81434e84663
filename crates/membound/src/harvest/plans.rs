//! The plans of a harvest: read from files, found in the cache, or made from a short profile.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use etcetera::BaseStrategy;
use membound_harvest::Options;
use membound_rewrite::image::Image;
use membound_types::{FollowedPlan, HarvestPlan, HarvestRole, Kind, MachineProfile, PlanSource};
use rustix::process::{Pid, Signal, kill_process_group};

use super::plan::Files;
use crate::{documents, output};

/// How long a profiler has to write its run after it was told to end.
const GRACE: Duration = Duration::from_secs(30);

/// A plan, and where it comes from.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) plan: HarvestPlan,
    pub(super) from: FollowedPlan,
}

/// What plans are made with.
#[derive(Debug)]
pub(super) struct Maker<'a> {
    pub(super) machine: Option<&'a MachineProfile>,
    /// The machine profile's file, if one was named.
    pub(super) machine_path: Option<&'a Path>,
    pub(super) duration: Duration,
    /// How the command is planned.
    pub(super) primary: Options,
    /// How scavengers are.
    pub(super) scavenger: Options,
    pub(super) quiet: bool,
}

/// Reads a plan from a file.
pub(super) fn read(path: &Path) -> anyhow::Result<Followed> {
    const WHAT: &str = "plan of a harvest";
    let read = documents::read(path, Kind::HarvestPlan, WHAT)?;
    let plan: HarvestPlan = read.map_err(|_| {
        anyhow!(
            "{} is no {WHAT}: `membound harvest plan RUN --json FILE` writes one",
            path.display()
        )
    })?;
    Ok(Followed {
        from: FollowedPlan {
            role: plan.role,
            source: PlanSource::Given,
            path: Some(path.display().to_string()),
            command: plan.command.clone(),
        },
        plan,
    })
}

/// Whether a plan is for the executable at `path`.
///
/// # Errors
/// When the executable was changed since it was profiled.
pub(super) fn is_for(plan: &HarvestPlan, path: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = name.display().to_string();
    match membound_harvest::check(plan, &name, &bytes) {
        Ok(()) => Ok(true),
        Err(membound_harvest::Error::Unplanned { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether all files of a plan are still those that were profiled.
fn holds(plan: &HarvestPlan) -> bool {
    plan.modules.iter().all(|module| {
        let planned = plan.sites.iter().any(|site| site.module == module.path);
        let check = |bytes: Vec<u8>| membound_harvest::check(plan, &module.path, &bytes).is_ok();
        !planned || std::fs::read(&module.path).is_ok_and(check)
    })
}

impl Maker<'_> {
    /// The plan of a command, which executes the file at `path` for the sake of the one at `code`:
    /// from the cache when it was made before of the same file, with the same arguments and wishes.
    pub(super) fn plan(
        &self,
        role: HarvestRole,
        path: &Path,
        code: &Path,
        words: &[OsString],
    ) -> anyhow::Result<Followed> {
        let options = match role {
            HarvestRole::Primary => &self.primary,
            HarvestRole::Scavenger => &self.scavenger,
        };
        let kept = cache_file(code, words, options);
        let known = kept.as_deref().and_then(|kept| read(kept).ok());
        let known =
            known.filter(|known| is_for(&known.plan, code).unwrap_or(false) && holds(&known.plan));
        let plan = match known {
            Some(known) => known.plan,
            None => self.make(path, words, options, kept.as_deref())?,
        };
        Ok(Followed {
            from: FollowedPlan {
                role,
                source: PlanSource::Made,
                path: None,
                command: plan.command.clone(),
            },
            plan,
        })
    }

    fn make(
        &self,
        path: &Path,
        words: &[OsString],
        options: &Options,
        kept: Option<&Path>,
    ) -> anyhow::Result<HarvestPlan> {
        if !self.quiet {
            output::complain(&format!(
                "profiling {} for up to {:.0} s (--plan takes one that is there)",
                path.display(),
                self.duration.as_secs_f64()
            ));
        }
        let scratch = tempfile::tempdir().context("there is no room for a run")?;
        let run = scratch.path().join("harvest.run");
        self.profile(path, words, &run)?;
        let data = membound_run::RunData::open(&run)
            .with_context(|| format!("{} could not be profiled", path.display()))?;
        if options.role == HarvestRole::Scavenger {
            ensure!(
                data.own_threads().count() <= 1,
                "it starts threads or processes of its own, which a guest cannot"
            );
        }
        let plan = membound_harvest::plan(&data, self.machine, &Files, None, options)
            .with_context(|| format!("{} cannot be planned", path.display()))?;
        if let Some(kept) = kept
            && let Some(directory) = kept.parent()
        {
            // Without a place for it, it is made again next time.
            let _ = std::fs::create_dir_all(directory);
            let _ = output::json(&plan).and_then(|text| output::replace(kept, &text));
        }
        Ok(plan)
    }

    /// Runs the command under the profiler, for as long as is permitted, with its output thrown
    /// away.
    fn profile(&self, path: &Path, words: &[OsString], run: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(std::env::current_exe().context("membound has no file")?);
        command.arg("profile").arg("--quiet").arg("--no-objects");
        command.arg("-o").arg(run);
        if let Some(machine) = self.machine_path {
            command.arg("--machine").arg(machine);
        }
        command
            .arg("--")
            .arg(path)
            .args(words.get(1..).unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().context("the profiler cannot be started")?;
        let ended = await_end(&mut child, self.duration)?;
        if !ended {
            signal_group(&child, Signal::TERM);
            if !await_end(&mut child, GRACE)? {
                signal_group(&child, Signal::KILL);
                let _ = child.wait();
                bail!(
                    "{} did not end when it was asked to: profile it with `membound profile` and \
                     pass its plan",
                    path.display()
                );
            }
        }
        ensure!(
            run.exists(),
            "{} could not be profiled: `membound profile -- {}` says why",
            path.display(),
            path.display()
        );
        Ok(())
    }
}

fn await_end(child: &mut Child, limit: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(false)
}

fn signal_group(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended just now.
        let _ = kill_process_group(group, signal);
    }
}

/// Where a plan is kept: named by the binary's identity, its arguments, and what it was made with.
fn cache_file(path: &Path, words: &[OsString], options: &Options) -> Option<PathBuf> {
    let bytes = std::fs::read(path).ok()?;
    let image = Image::parse(&bytes).ok()?;
    let mut hash = DefaultHasher::new();
    let arguments = words.get(1..);
    (image.identity(), arguments, format!("{options:?}")).hash(&mut hash);
    let directories = etcetera::choose_base_strategy().ok()?;
    let directory = directories.cache_dir().join("membound").join("harvest");
    // Another build may name it otherwise; what is in it is held to its binary anyway.
    Some(directory.join(format!("{:016x}.json", hash.finish())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_wishes_tell_plans_apart() {
        let path = Path::new("/proc/self/exe");
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let options = Options::new(HarvestRole::Primary);
        let name = |given: &[&str], options: &Options| cache_file(path, &words(given), options);
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
    fn what_is_no_plan_is_said_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        std::fs::write(&path, r#"{"schema_version":1,"kind":"machine"}"#).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("is no plan of a harvest"), "{error}");
        let error = read(&directory.path().join("none")).unwrap_err();
        assert!(error.to_string().starts_with("cannot read"), "{error}");
    }
}
