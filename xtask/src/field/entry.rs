//! An entry of the field: one foreign program, read from `field/NAME.toml`.
//!
//! Commands are lists of words (run as they are) or shell scripts (run by `sh`). In both,
//! `{inputs}` stands for `field/inputs` of this repository, `{target}` for `target/field`,
//! `{work}` for the entry's own directory below that, in which every command runs, and
//! `{port}` for the port that the entry's server may use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use regex::Regex;
use serde::Deserialize;

use crate::run::root;

/// One foreign program: how it is obtained, prepared, run and checked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// Unique; also the name of its directory below `target/field`.
    pub(crate) name: String,
    /// What the program does, in one line.
    pub(crate) about: String,
    pub(crate) kind: Kind,
    pub(crate) threads: Threads,
    /// True if its threads wait for each other without giving up their CPU: on one CPU they wait for the end of
    /// a time slice each time, so that its run time there says nothing. No batch has it.
    #[serde(default)]
    pub(crate) spins: bool,
    /// Areas of membound that the program exercises, from `field/areas/areas.toml`; every
    /// area when empty.
    #[serde(default)]
    pub(crate) touches: Vec<String>,
    /// Programs (on PATH, or with a slash: files) without which the entry is skipped.
    pub(crate) needs: Vec<String>,
    #[serde(default)]
    pub(crate) obtain: Obtain,
    /// Shell scripts that make the inputs; they run again only when
    /// the scripts, the sources or the inputs change.
    #[serde(default)]
    pub(crate) prepare: Vec<String>,
    pub(crate) run: Option<Run>,
    pub(crate) server: Option<Server>,
    #[serde(default)]
    pub(crate) output: Output,
    pub(crate) truth: Option<Truth>,
    /// What a profile must find, if that is known.
    pub(crate) expect: Option<Expect>,
    /// Number of processes that a run starts; if given, the cost per process is judged.
    pub(crate) processes: Option<u32>,
    /// Timeout of a run, in seconds.
    #[serde(default = "default_limit_s")]
    pub(crate) limit_s: u64,
}

const fn default_limit_s() -> u64 {
    60
}

/// What the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Server,
    Store,
    Compiler,
    Runtime,
    Tool,
    Numeric,
    Game,
    ShortProcesses,
    /// Written for the field to have a truth, in a language whose code others would run.
    Truth,
}

/// How the program uses the processors, which decides the limit for its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Threads {
    Single,
    AllCpus,
    Server,
    ShortProcesses,
}

/// Sources from which the program is installed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Obtain {
    pub(crate) debian: Vec<String>,
    /// Into `target/field/venv`.
    pub(crate) pip: Vec<String>,
    /// Into `target/field/npm`.
    pub(crate) npm: Vec<String>,
    /// `module@version`, into `target/field/bin`.
    pub(crate) go: Vec<String>,
    /// `crate@version`, into `target/field/bin`.
    pub(crate) cargo: Vec<String>,
    /// `group:artifact:version`, into `target/field/maven`.
    pub(crate) maven: Vec<String>,
}

/// A program that runs to its end.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Shell script before every run, not timed.
    pub(crate) before: Option<String>,
}

/// A program that serves until it is stopped.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    /// Shell script before every start, not timed.
    pub(crate) before: Option<String>,
    /// Shell script that exits with 0 as soon as the server answers.
    pub(crate) ready: String,
    /// Shell script that generates the load and prints its measurements.
    pub(crate) load: String,
    /// Signal that stops the server.
    #[serde(default)]
    pub(crate) stop: StopSignal,
    /// Regular expression whose first group is the throughput, per second.
    pub(crate) throughput: String,
    /// Regular expression whose first group is the 99th percentile of the requests' times,
    /// in any unit.
    pub(crate) p99: Option<String>,
}

/// Signal that stops a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum StopSignal {
    #[default]
    #[serde(rename = "TERM")]
    Term,
    #[serde(rename = "INT")]
    Int,
}

/// Which parts of the program's output are compared with the run without membound.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Output {
    /// Whether stdout is compared.
    pub(crate) stdout: bool,
    /// Lines of stdout that may differ, as regular expressions.
    pub(crate) ignore: Vec<String>,
    /// Files that the program writes, which are compared.
    pub(crate) files: Vec<String>,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            stdout: true,
            ignore: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// What is known of the share of CPU time that waits for memory, and its source.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Truth {
    /// The same operations on data that fit the second cache: 1 − t_small/t_large.
    FitsCachePair {
        /// The program on data that fit.
        small: Vec<String>,
        /// Regular expression: time of one operation, in any unit, on stdout.
        per_operation: String,
        /// Regular expression: seconds that the operations took together, on stdout. The
        /// remaining time may have any share.
        phase_s: String,
    },
    /// The program runs both sizes, or phases, and prints the share of its time itself.
    OwnStopwatch {
        /// Regular expression: the share, 0 to 1, of the phase's time, on stdout.
        share: String,
        /// Regular expression: seconds of the phase, on stdout; the whole run without it.
        phase_s: Option<String>,
    },
    /// Cachegrind's misses, each multiplied by its maximum cost: an upper bound.
    Cachegrind {
        /// A shorter run of the program.
        command: Vec<String>,
    },
    /// A build without the fault: the share is at least the cost of the fault.
    PairedBuild {
        /// The repaired program, which does the same work.
        mended: Vec<String>,
    },
}

impl Truth {
    /// The name as in the entry's file.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::FitsCachePair { .. } => "fits-cache-pair",
            Self::OwnStopwatch { .. } => "own-stopwatch",
            Self::Cachegrind { .. } => "cachegrind",
            Self::PairedBuild { .. } => "paired-build",
        }
    }
}

/// What a profile must name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// Part of the name of the function with the largest stall.
    pub(crate) function: Option<String>,
    /// Part of the name of the object with the largest stall.
    pub(crate) object: Option<String>,
}

/// Which changed files affect which entries.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Areas {
    /// Beginnings of paths in the repository, by area.
    pub(crate) areas: BTreeMap<String, Vec<String>>,
}

/// The folder of the entries.
pub(crate) fn folder() -> PathBuf {
    root().join("field")
}

/// Every entry, by name.
pub(crate) fn all() -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for path in std::fs::read_dir(folder())
        .with_context(|| format!("cannot read {}", folder().display()))?
    {
        let path = path?.path();
        if path.extension().is_some_and(|it| it == "toml") {
            entries.push(read(&path)?);
        }
    }
    entries.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(entries)
}

/// Reads and checks one entry.
fn read(path: &Path) -> Result<Entry> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let entry: Entry = toml::from_str(&text).with_context(|| path.display().to_string())?;
    entry.check().with_context(|| path.display().to_string())?;
    ensure!(
        path.file_stem()
            .is_some_and(|stem| stem == entry.name.as_str()),
        "{}: the name is `{}`",
        path.display(),
        entry.name
    );
    Ok(entry)
}

/// The areas of `field/areas/areas.toml`.
pub(crate) fn areas() -> Result<Areas> {
    let path = folder().join("areas/areas.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

impl Areas {
    /// Entries that the changed files affect. A change to an entry affects that entry; a change to
    /// a file of no area, in a crate, affects every entry.
    pub(crate) fn concerned<'a>(&self, entries: &'a [Entry], changed: &[String]) -> Vec<&'a Entry> {
        let mut names = BTreeSet::new();
        let mut touched = BTreeSet::new();
        let mut every = false;
        for file in changed {
            if let Some(name) = file
                .strip_prefix("field/")
                .and_then(|file| file.strip_suffix(".toml"))
            {
                names.insert(name.to_owned());
                continue;
            }
            let areas: Vec<&String> = self
                .areas
                .iter()
                .filter(|(_, paths)| paths.iter().any(|path| file.starts_with(path.as_str())))
                .map(|(area, _)| area)
                .collect();
            every |= areas.is_empty() && file.starts_with("crates/") && file.contains("/src/");
            touched.extend(areas);
        }
        entries
            .iter()
            .filter(|entry| {
                every
                    || names.contains(&entry.name)
                    || (entry.touches.is_empty() && !touched.is_empty())
                    || entry.touches.iter().any(|area| touched.contains(area))
            })
            .collect()
    }
}

impl Entry {
    /// Checks that the entry is consistent.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.run.is_some() != self.server.is_some(),
            "an entry has either [run] or [server]"
        );
        ensure!(
            self.server.is_some() == (self.threads == Threads::Server),
            "threads = \"server\" goes with [server]"
        );
        ensure!(
            self.processes.is_some() == (self.threads == Threads::ShortProcesses),
            "threads = \"short-processes\" goes with processes"
        );
        ensure!(!self.needs.is_empty(), "an entry needs some program");
        for expression in self.expressions() {
            let expression =
                Regex::new(expression).with_context(|| format!("bad expression `{expression}`"))?;
            drop(expression);
        }
        for expression in self.captures() {
            ensure!(
                Regex::new(expression)?.captures_len() == 2,
                "`{expression}` must have one group"
            );
        }
        Ok(())
    }

    fn expressions(&self) -> Vec<&str> {
        let mut found: Vec<&str> = self.output.ignore.iter().map(String::as_str).collect();
        found.extend(self.captures());
        found
    }

    fn captures(&self) -> Vec<&str> {
        let mut found = Vec::new();
        if let Some(server) = &self.server {
            found.push(server.throughput.as_str());
            found.extend(server.p99.as_deref());
        }
        match &self.truth {
            Some(Truth::FitsCachePair {
                per_operation,
                phase_s,
                ..
            }) => found.extend([per_operation.as_str(), phase_s]),
            Some(Truth::OwnStopwatch { share, phase_s }) => {
                found.push(share);
                found.extend(phase_s.as_deref());
            }
            Some(Truth::Cachegrind { .. } | Truth::PairedBuild { .. }) | None => {}
        }
        found
    }
}

/// The first group of `expression` in `text`, as a number; the last match counts, because
/// load generators repeat their figures while they run.
pub(crate) fn number(expression: &str, text: &str) -> Option<f64> {
    let expression = Regex::new(expression).ok()?;
    let found = expression.captures_iter(text).last()?;
    found.get(1)?.as_str().replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_parses_and_enough_have_a_truth() {
        let entries = all().unwrap();
        let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names.len(), entries.len(), "names are unique");
        assert!(entries.len() >= 40, "{} entries", entries.len());
        let truths = entries.iter().filter(|entry| entry.truth.is_some()).count();
        assert!(truths >= 25, "{truths} entries with a truth");
    }

    #[test]
    fn entries_touch_areas_that_exist_and_areas_are_folders_that_exist() {
        let areas = areas().unwrap();
        for entry in all().unwrap() {
            for area in &entry.touches {
                assert!(areas.areas.contains_key(area), "{}: {area}", entry.name);
            }
        }
        for path in areas.areas.values().flatten() {
            let (folder, beginning) = path.rsplit_once('/').unwrap();
            let exists = std::fs::read_dir(root().join(folder)).unwrap().any(|file| {
                file.unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with(beginning)
            });
            assert!(exists, "{path}");
        }
    }

    fn entry(name: &str, touches: &[&str]) -> Entry {
        let text = format!(
            "name = \"{name}\"\nabout = \"\"\nkind = \"tool\"\nthreads = \"single\"\n\
             needs = [\"true\"]\ntouches = {touches:?}\n[run]\ncommand = [\"true\"]\n"
        );
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn changed_files_choose_the_entries_of_their_areas() {
        let areas = Areas {
            areas: [("alloc".to_owned(), vec!["crates/a/src/alloc".to_owned()])].into(),
        };
        let entries = [
            entry("both", &[]),
            entry("alloc", &["alloc"]),
            entry("jit", &["jit"]),
        ];
        let check = |changed: &[&str], expected: &[&str]| {
            let changed: Vec<String> = changed.iter().map(ToString::to_string).collect();
            let chosen: Vec<&str> = areas
                .concerned(&entries, &changed)
                .into_iter()
                .map(|entry| entry.name.as_str())
                .collect();
            assert_eq!(chosen, expected, "{changed:?}");
        };
        check(&["crates/a/src/allocations.rs"], &["both", "alloc"]);
        check(&["field/jit.toml"], &["jit"]);
        check(&["crates/b/src/lib.rs"], &["both", "alloc", "jit"]);
        check(&["README.md"], &[]);
    }

    #[test]
    fn unknown_fields_are_refused() {
        let text = "name = \"x\"\nabout = \"\"\nkind = \"tool\"\nthreads = \"single\"\n\
                    needs = [\"true\"]\nspeed = 3\n";
        assert!(toml::from_str::<Entry>(text).is_err());
    }

    #[test]
    fn the_last_number_counts_and_may_have_separators() {
        assert_eq!(
            number(r"(\S+) requests", "1 requests\n2,500.5 requests\n"),
            Some(2500.5)
        );
        assert_eq!(number(r"(\S+) requests", "none"), None);
    }
}
