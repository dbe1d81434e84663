//! What is known of the programs of a batch before they run: their identity, times from earlier batches, and
//! kept harvest plans.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use membound_types::{HarvestModule, HarvestRole, HarvestTotals, Kind};
use serde::Deserialize;

use super::batch_history::Record;
use super::job_list::{Execution, Listed};
use super::lineup::Expected;
use crate::document_file;

/// Larger files are identified by name, size and time instead of by content.
const MAX_BINARY_BYTES: u64 = 64 << 20;
/// Maximum number of kept plans that are read, latest first, and of their bytes together: reading them takes
/// 50 ms at most.
const MAX_PLANS: usize = 500;
const MAX_PLAN_BYTES: u64 = 32 << 20;

/// What is known of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    /// Key of its program in the record.
    pub(super) key: String,
    pub(super) expected: Expected,
    /// The plan with which it could be a scavenger.
    pub(super) plan: Option<Plan>,
}

/// A kept plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) path: PathBuf,
    /// Share of its CPU time that others can use, less the cost of its yields.
    pub(super) gain_fraction: f64,
}

/// A plan in the cache.
#[derive(Clone, Debug)]
struct CachedPlan {
    path: PathBuf,
    head: Head,
}

/// The fields of a plan that matter here: all but its sites and functions, which make up most of it.
#[derive(Clone, Debug, Deserialize)]
struct Head {
    role: HarvestRole,
    command: Vec<String>,
    modules: Vec<HarvestModule>,
    totals: HarvestTotals,
}

impl Head {
    /// Share of the CPU time that others can use, less the cost of bound yields.
    fn gain_fraction(&self) -> f64 {
        self.totals.gain_fraction - self.totals.bound_cost_fraction
    }
}

/// A program's file.
#[derive(Clone, Debug)]
struct Binary {
    /// Whether it runs with the rights of its file's owner or group, which a scavenger cannot have.
    raises_rights: bool,
    /// `build-id:…` or `sha256:…` of an executable, otherwise a name that is used in the record only.
    identity: String,
    /// Its canonical path.
    path: String,
}

/// What is known of every job of the list, with plans from the directory `kept`.
pub(super) fn jobs(listed: &[Listed], record: &Record, kept: Option<&Path>) -> Vec<Job> {
    let plans = kept.map(plans_in).unwrap_or_default();
    let mut binaries: HashMap<&Path, Binary> = HashMap::new();
    listed
        .iter()
        .map(|listed| {
            let Execution::Direct { path, words } = &listed.execution else {
                return of_shell(listed, record);
            };
            let binary = binaries.entry(path).or_insert_with(|| binary(path));
            let key = key(&binary.identity, words);
            let (plan, stall) = planned(&plans, binary, words);
            Job {
                expected: Expected {
                    wall_s: record.program(&key).map(|known| known.wall_s),
                    stall,
                },
                key,
                plan,
            }
        })
        .collect()
}

/// A line that needs a shell is identified as a whole.
fn of_shell(listed: &Listed, record: &Record) -> Job {
    let key = format!("sh#{:016x}", hash(listed.line.as_bytes()));
    Job {
        expected: Expected {
            wall_s: record.program(&key).map(|known| known.wall_s),
            stall: None,
        },
        key,
        plan: None,
    }
}

/// Key of a program with its first argument.
fn key(identity: &str, words: &[OsString]) -> String {
    match words.get(1) {
        Some(first) => format!("{identity}#{:016x}", hash(first.as_bytes())),
        None => identity.to_owned(),
    }
}

/// The hash may change between builds of membound; keys from other builds are then not found, and times are
/// learned again.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    hash.finish()
}

fn binary(path: &Path) -> Binary {
    const SETUID_OR_SETGID: u32 = 0o6000;
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let found = fs::metadata(&path).ok();
    let mode = found.as_ref().map_or(0, MetadataExt::mode);
    let identity = found
        .as_ref()
        .filter(|found| found.is_file() && found.len() <= MAX_BINARY_BYTES)
        .and_then(|_| membound_launch::map_file(&path).ok())
        .and_then(|bytes| membound_harvest::identify(&bytes));
    let identity = identity.unwrap_or_else(|| {
        let size_and_time = found.map(|found| (found.len(), found.modified().ok()));
        let text = format!("{}{size_and_time:?}", path.display());
        format!("file#{:016x}", hash(text.as_bytes()))
    });
    Binary {
        raises_rights: mode & SETUID_OR_SETGID != 0,
        identity,
        path: path.display().to_string(),
    }
}

/// The plan with which a program can be a scavenger, preferably one made with the same arguments, and the
/// share of its time that it waits for memory, from any plan of it.
fn planned(
    plans: &[CachedPlan],
    binary: &Binary,
    words: &[OsString],
) -> (Option<Plan>, Option<f64>) {
    let is_of_it = |plan: &&CachedPlan| {
        let is_it = |module: &HarvestModule| {
            module.path == binary.path && module.identity == binary.identity
        };
        plan.head.modules.iter().any(is_it)
    };
    let has_other_arguments = |plan: &&CachedPlan| {
        let made = plan.head.command.iter().skip(1).map(OsStr::new);
        !made.eq(words.iter().skip(1).map(OsString::as_os_str))
    };
    let mut of_it: Vec<&CachedPlan> = plans.iter().filter(is_of_it).collect();
    of_it.sort_by_key(has_other_arguments);
    let stall = of_it.first().map(|plan| plan.head.totals.stall_fraction);
    let scavenger_plan = of_it
        .iter()
        .find(|plan| plan.head.role == HarvestRole::Scavenger);
    let plan = scavenger_plan.map(|plan| Plan {
        path: plan.path.clone(),
        gain_fraction: plan.head.gain_fraction(),
    });
    // The harvest takes its commands as text, which cannot hold other bytes.
    let is_text = words.iter().all(|word| word.to_str().is_some());
    let can_be_scavenger = is_text && !binary.raises_rights;
    (plan.filter(|_| can_be_scavenger), stall)
}

/// Reads the plans in a directory, latest first.
fn plans_in(directory: &Path) -> Vec<CachedPlan> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let found = entry.metadata().ok()?;
            Some((found.modified().ok()?, found.len(), entry.path()))
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    files.truncate(MAX_PLANS);
    let mut room_bytes = MAX_PLAN_BYTES;
    let mut plans = Vec::new();
    for (_, len_bytes, path) in files {
        let Some(left_bytes) = room_bytes.checked_sub(len_bytes) else {
            break;
        };
        room_bytes = left_bytes;
        if let Ok(Ok(head)) = document_file::read::<Head>(&path, Kind::HarvestPlan, "plan") {
            plans.push(CachedPlan { path, head });
        }
    }
    plans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harvest_batch::job_list;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn find(name: &OsStr) -> Option<PathBuf> {
        job_list::find(name, std::env::var_os("PATH").as_deref())
    }

    /// A small program that every system has.
    fn shell() -> PathBuf {
        find(OsStr::new("sh")).unwrap()
    }

    #[test]
    fn programs_are_identified_by_file_and_first_argument() {
        let own = binary(&shell());
        let is_named = own.identity.starts_with("build-id:") || own.identity.starts_with("sha256:");
        assert!(is_named, "{own:?}");
        let of = |words_: &[&str]| key(&own.identity, &words(words_));
        assert_eq!(of(&["a", "x", "1"]), of(&["b", "x", "2"]));
        assert_ne!(of(&["a", "x"]), of(&["a", "y"]));
        assert_ne!(of(&["a"]), of(&["a", ""]));
        let script = tempfile::NamedTempFile::new().unwrap();
        fs::write(script.path(), "#!/bin/sh\n").unwrap();
        assert!(binary(script.path()).identity.starts_with("file#"));
    }

    #[test]
    fn expectations_come_from_earlier_batches() {
        let listed = job_list::parse(b"sh x\necho a\nnone-such\nsh", &find).unwrap();
        let mut record = Record::default();
        let keys: Vec<String> = jobs(&listed, &record, None)
            .into_iter()
            .map(|job| job.key)
            .collect();
        record.ran(&keys[0], 3.0, 2.0, 1);
        record.ran(&keys[1], 1.0, 1.0, 1);
        let expected: Vec<_> = jobs(&listed, &record, None)
            .into_iter()
            .map(|job| job.expected.wall_s)
            .collect();
        assert_eq!(expected, [Some(3.0), Some(1.0), None, None]);
    }

    #[test]
    fn a_plan_is_for_a_program_and_best_for_its_arguments() {
        let bytes = fs::read(shell()).unwrap();
        let own = binary(&shell());
        let place = tempfile::tempdir().unwrap();
        for (name, role, argument, gain) in [
            ("a.json", HarvestRole::Scavenger, "x", 0.5),
            ("b.json", HarvestRole::Scavenger, "y", 0.7),
            ("c.json", HarvestRole::Primary, "z", 0.9),
        ] {
            let mut plan = membound_harvest::by_hand(&own.path, &bytes, role, &[]).unwrap();
            plan.command = vec!["it".to_owned(), argument.to_owned()];
            plan.totals.gain_fraction = gain;
            plan.totals.stall_fraction = gain;
            let text = serde_json::to_string(&plan).unwrap();
            fs::write(place.path().join(name), text).unwrap();
        }
        fs::write(place.path().join("d.json"), "{}").unwrap();
        let kept = plans_in(place.path());
        assert_eq!(kept.len(), 3);
        let check = |argument: &str, gain: f64, share: f64| {
            let (plan, stall) = planned(&kept, &own, &words(&["it", argument]));
            let found = (plan.unwrap().gain_fraction, stall.unwrap());
            assert_eq!(found, (gain, share), "{argument}");
        };
        check("x", 0.5, 0.5);
        check("y", 0.7, 0.7);
        // A plan as a primary has the stall share, a plan as a scavenger its suitability.
        let (plan, stall) = planned(&kept, &own, &words(&["it", "z"]));
        assert!(plan.is_some());
        assert_eq!(stall, Some(0.9));
        let other = Binary {
            identity: "build-id:00".to_owned(),
            ..own
        };
        assert_eq!(planned(&kept, &other, &words(&["it", "x"])), (None, None));
    }
}
