//! The environment of runs: programs built once, their loads, and their outputs alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use membound_harvest::{by_hand, loads};
use membound_types::{HarvestRole, MachineInfo, MachineProfile, YieldKind};

use super::draw::{Case, Primary, Scavenger};
use crate::bench::harvest_programs::{self, Programs};
use crate::campaign::outcome::{Ending, Outcome};
use crate::run::{program, root, stdout_of};
use membound_testkit::Random;

/// Sources of fixtures, and whether each is also a scavenger.
const FIXTURES: [(&str, bool); 10] = [
    ("processes.c", false),
    ("threads.c", false),
    ("exceptions.cc", true),
    ("state.c", false),
    ("signals.c", false),
    ("victim.c", false),
    ("changes.c", false),
    ("ends.c", false),
    ("filters.c", false),
    ("scavenger.c", true),
];
const INTERFERENCE: &str = "interference.c";

/// Names of lines whose values are known beforehand; the values of other lines are measurements.
const KNOWN: [&str; 11] = [
    "hops",
    "checksum",
    "matches",
    "operations",
    "rounds",
    "sum",
    "taken",
    "requests",
    "replies",
    "wrong",
    "work",
];

/// Everything that runs share.
pub(super) struct Field {
    scratch: tempfile::TempDir,
    pub(super) membound: PathBuf,
    machine: PathBuf,
    built: Programs,
    fixtures: BTreeMap<(&'static str, bool), PathBuf>,
    loads: RefCell<BTreeMap<PathBuf, Vec<u64>>>,
    alone: RefCell<BTreeMap<String, Outcome>>,
    pub(super) patience: Duration,
}

impl Field {
    /// Builds all programs and fixtures.
    pub(super) fn new(membound: PathBuf, patience: Duration) -> Result<Self> {
        let scratch = tempfile::tempdir().context("cannot create a temporary directory")?;
        let directory = scratch.path();
        let storm = directory.join("storm.o");
        let source = root().join("bench/harvest/storm.c");
        let mut compiler = program("gcc");
        compiler.args(["-O2", "-g", "-Wall", "-Wextra", "-fPIC", "-c", "-o"]);
        stdout_of(compiler.arg(&storm).arg(source))?;
        let built = harvest_programs::build_with(directory, Some(&storm))?;
        let mut fixtures = BTreeMap::new();
        for (source, is_object) in
            FIXTURES
                .into_iter()
                .chain([(INTERFERENCE, true)])
                .flat_map(|(source, both)| {
                    [(source, false), (source, true)]
                        .into_iter()
                        .take(1 + usize::from(both))
                })
        {
            let path = fixture(directory, source, is_object)?;
            fixtures.insert((source, is_object), path);
        }
        let machine = directory.join("machine.json");
        let profile = MachineProfile::unmeasured(MachineInfo::default());
        std::fs::write(&machine, serde_json::to_string(&profile)?)?;
        Ok(Self {
            membound,
            machine,
            built,
            fixtures,
            loads: RefCell::default(),
            alone: RefCell::default(),
            patience,
            scratch,
        })
    }

    /// Creates an empty directory for one run.
    pub(super) fn room(&self, seed: u64) -> Result<PathBuf> {
        let room = self.scratch.path().join(format!("run-{seed:x}"));
        if room.exists() {
            std::fs::remove_dir_all(&room)?;
        }
        std::fs::create_dir(&room)?;
        Ok(room)
    }

    /// The executable of a primary.
    pub(super) fn primary(&self, primary: &Primary) -> &Path {
        self.fixtures
            .get(&(primary.name, false))
            .unwrap_or_else(|| &self.built.programs[primary.name])
    }

    /// The executable or shared object of a scavenger.
    pub(super) fn scavenger(&self, scavenger: &Scavenger) -> &Path {
        let of_bench = if scavenger.is_object {
            &self.built.objects
        } else {
            &self.built.programs
        };
        self.fixtures
            .get(&(scavenger.name, scavenger.is_object))
            .unwrap_or_else(|| &of_bench[scavenger.name])
    }

    /// The `membound harvest run` command of a case.
    pub(super) fn command(&self, case: &Case, room: &Path) -> Result<Command> {
        let mut random = Random::new(!case.seed);
        let mut command = self.environment(&self.membound, room, case.primary.storm_text());
        command.args(["harvest", "run", "--quiet", "--machine"]);
        command.arg(&self.machine).args(&case.options);
        let output = room.join("output");
        std::fs::create_dir(&output)?;
        command.arg("--output").arg(output);
        command.arg("--json").arg(room.join("harvest.json"));
        let [of_primary, of_scavengers] = case.densities;
        let primary = self.primary(&case.primary);
        let plan = room.join("primary.json");
        self.plan(
            primary,
            HarvestRole::Primary,
            of_primary,
            &mut random,
            &plan,
        )?;
        command.arg("--plan").arg(plan);
        let mut planned: Vec<&Path> = Vec::new();
        for (index, scavenger) in case.scavengers.iter().enumerate() {
            let path = self.scavenger(scavenger);
            if !planned.contains(&path) {
                planned.push(path);
                let plan = room.join(format!("scavenger-{index}.json"));
                let role = HarvestRole::Scavenger;
                self.plan(path, role, of_scavengers, &mut random, &plan)?;
                command.arg("--plan").arg(plan);
            }
            let words = scavenger.words.join(" ");
            let line = format!("{} {words}", path.display());
            command.arg("--scavenger").arg(line);
        }
        command.arg("--").arg(primary).args(&case.primary.words);
        Ok(command)
    }

    /// The command of a case's primary, without membound.
    pub(super) fn alone(&self, case: &Case, room: &Path) -> Command {
        let primary = self.primary(&case.primary);
        let mut command = self.environment(primary, room, case.primary.storm_text());
        command.args(&case.primary.words);
        command
    }

    /// Output of a scavenger that runs by itself.
    pub(super) fn output_of(&self, scavenger: &Scavenger, room: &Path) -> Result<Vec<u8>> {
        let path = self.scavenger(&Scavenger {
            is_object: false,
            ..scavenger.clone()
        });
        let key = format!("{} {}", path.display(), scavenger.words.join(" "));
        if let Some(known) = self.alone.borrow().get(&key) {
            return Ok(known.stdout.clone());
        }
        let mut command = self.environment(path, room, None);
        command.args(&scavenger.words).stderr(Stdio::null());
        let output = command.output()?;
        let outcome = Outcome {
            ending: Ending::from(output.status),
            stdout: output.stdout,
            stderr: Vec::new(),
            files: Vec::new(),
            elapsed_s: 0.0,
        };
        let stdout = outcome.stdout.clone();
        self.alone.borrow_mut().insert(key, outcome);
        Ok(stdout)
    }

    /// A command in the environment that all runs have, alone and with scavengers.
    fn environment(&self, path: &Path, room: &Path, storm: Option<String>) -> Command {
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", room)
            .env("XDG_CACHE_HOME", self.scratch.path().join("cache"))
            .current_dir(room)
            .stdin(Stdio::null())
            .process_group(0);
        if let Some(storm) = storm {
            command.env("HARVEST_STORM", storm);
        }
        command
    }

    /// Writes a plan in which `density` of 1000 loads of a file yield.
    fn plan(
        &self,
        path: &Path,
        role: HarvestRole,
        density: u64,
        random: &mut Random,
        to: &Path,
    ) -> Result<()> {
        let bytes =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.display().to_string();
        let mut known = self.loads.borrow_mut();
        if !known.contains_key(path) {
            known.insert(
                path.to_owned(),
                loads(&name, &bytes, |name| is_own(path, name))?,
            );
        }
        let sites: Vec<(u64, YieldKind)> = known[path]
            .iter()
            .filter(|_| random.below(1000) < density)
            .map(|&address| (address, YieldKind::Primary))
            .collect();
        // The other yields are bound yields.
        let bounds = |random: &mut Random| role == HarvestRole::Scavenger && random.once_in(3);
        let sites: Vec<_> = sites
            .into_iter()
            .map(|(address, kind)| {
                let kind = if bounds(random) {
                    YieldKind::Scavenger
                } else {
                    kind
                };
                (address, kind)
            })
            .collect();
        let plan = by_hand(&name, &bytes, role, &sites)?;
        std::fs::write(to, serde_json::to_string(&plan)?)
            .with_context(|| format!("cannot write {}", to.display()))
    }
}

impl Primary {
    fn storm_text(&self) -> Option<String> {
        self.storm.as_ref().map(super::draw::Storm::text)
    }

    /// The lines of its output that are the same in every run.
    pub(super) fn kept(&self, text: &[u8]) -> Vec<String> {
        let text = String::from_utf8_lossy(text);
        let is_known = |line: &&str| {
            self.is_fixture() || KNOWN.contains(&line.split(' ').next().unwrap_or_default())
        };
        text.lines().filter(is_known).map(str::to_owned).collect()
    }
}

/// Whether a function comes from the program's sources, rather than from Rust's libraries: there is
/// no room for yields at all loads of those.
fn is_own(path: &Path, function: Option<&str>) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let of_storm = ["handle", "chase", "come_and_go"];
    !["join", "compute"].contains(&&*stem)
        || function.is_some_and(|name| {
            name.contains(&format!("{}{stem}", stem.len())) || of_storm.contains(&name)
        })
}

/// Builds a fixture of the tests.
fn fixture(directory: &Path, source: &str, is_object: bool) -> Result<PathBuf> {
    let ending = if is_object { "-fixture.so" } else { "-fixture" };
    let path = directory.join(format!("{source}{ending}"));
    let mut compiler = program(if source.ends_with(".cc") {
        "g++"
    } else {
        "gcc"
    });
    compiler.args(["-O2", "-g", "-pthread", "-fstack-protector-all"]);
    if is_object {
        compiler.args(["-shared", "-fPIC"]);
    }
    let source = root()
        .join("crates/membound/tests/harvest/fixtures")
        .join(source);
    compiler.arg("-o").arg(&path).arg(source).arg("-lm");
    stdout_of(&mut compiler)?;
    Ok(path)
}

/// Creates a file of a run for an output stream.
pub(super) fn stream(room: &Path, name: &str) -> Result<File> {
    let path = room.join(name);
    File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_left_out_of_what_is_compared() {
        let primary = |name| Primary {
            name,
            words: Vec::new(),
            storm: None,
        };
        let text = b"hops 5\nns_per_hop 1.5\nchecksum 7\n";
        assert_eq!(primary("chase").kept(text), ["hops 5", "checksum 7"]);
        assert_eq!(primary("ends.c").kept(b"ns 4\n"), ["ns 4"]);
    }
}
