//! Runs programs for the parts of the bench: alone, harvested, and with plans that are made once.
//!
//! Everything, membound included, runs on one processor, with a timeout. Every run is kept for the
//! raw results.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use membound_types::{
    HarvestPart, HarvestPlan, HarvestRole, HarvestRun, IdlePolicy, MachineProfile, ScavengerState,
};
use serde_json::{Value, json};

use super::super::harvest_programs::Programs;
use super::args::Args;
use super::arithmetic::{distance_ns, scaled};
use super::progress::{Progress, VARIABLE, Watch};
use crate::run::{note, program, stdout_of};

/// Timeout of a run in seconds; a longer run hangs.
const LIMIT_S: &str = "900";
/// Time for which programs are recorded to make plans, in seconds.
const PROFILE_S: &str = "20";
/// Share of the time for which scavengers may run on their home threads; beyond it, their work does
/// not come from the primary's stalls.
const OWN_THREAD_SHARE: f64 = 0.05;
/// Minimum share of the primary's time in which all programs must be working for a rate.
const MIN_SHARE: f64 = 0.2;
/// `--max-overhead` where the overhead is not measured: the command's own default.
pub(super) const OVERHEAD: &str = "5%";

/// Everything that running programs needs.
pub(super) struct Bed<'a> {
    /// The command to measure.
    pub(super) membound: &'a Path,
    /// The other hardware thread of the core that everything runs on, if there is one.
    pub(super) sibling: Option<u32>,
    /// Directory for files.
    pub(super) scratch: &'a Path,
    /// The programs, built.
    pub(super) programs: Programs,
    /// The machine profile, and the latency of its memory in nanoseconds.
    pub(super) machine: (PathBuf, f64),
    /// Arguments of the bench.
    pub(super) args: &'a Args,
    /// Files made so far, by description.
    pub(super) made: RefCell<BTreeMap<String, PathBuf>>,
    /// Every run, for the raw results.
    pub(super) raw: RefCell<Vec<Value>>,
}

/// A command line, the program first.
pub(super) type Words = Vec<String>;

/// A scavenger: a command without an end for runs, and one with an end to be profiled.
#[derive(Clone, Debug)]
pub(super) struct Endless {
    /// Its name among the programs.
    pub(super) name: &'static str,
    /// The command that never ends.
    pub(super) words: Words,
    profiled: Words,
}

/// One harvest: primary, scavenger and options.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The program whose stalls are harvested.
    pub(super) primary: Words,
    /// Command from which the primary's plan is made: the same program with other arguments, or the
    /// primary itself.
    pub(super) profiled: Words,
    /// The scavenger, with its command for profiling.
    pub(super) scavenger: Endless,
    /// Copies of the scavenger, all of them for the one thread.
    pub(super) copies: u32,
    /// What scavengers do while the primary blocks.
    pub(super) idle: IdlePolicy,
    /// `--bound-ns`.
    pub(super) bound_ns: Option<f64>,
    /// `--max-overhead`.
    pub(super) max_overhead: &'static str,
    /// `--without`.
    pub(super) without: &'static [HarvestPart],
}

/// Numbers that a program printed, by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Said(BTreeMap<String, f64>);

impl Said {
    /// Reads `name value` lines; other lines are skipped.
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        });
        Self(pairs.collect())
    }

    /// The number with this name.
    pub(super) fn get(&self, name: &str) -> Result<f64> {
        let value = self.0.get(name).copied();
        value.with_context(|| format!("the program did not say {name}"))
    }

    /// Seconds from the beginning to the end of what the program measured.
    pub(super) fn seconds(&self) -> Result<f64> {
        Ok((self.get("ended_ns")? - self.get("began_ns")?) * 1e-9)
    }
}

/// Result of a run beside scavengers.
pub(super) struct Ran {
    /// What the primary printed.
    pub(super) said: Said,
    /// The document of `membound harvest run`; `None` without membound.
    pub(super) document: Option<HarvestRun>,
    progress: Progress,
}

impl Ran {
    /// Units of work that all scavengers did while the primary measured. The primary must not count
    /// work itself.
    pub(super) fn units(&self) -> Result<f64> {
        self.progress
            .units(self.said.get("began_ns")?, self.said.get("ended_ns")?)
    }

    /// Units of work per second of all `count` programs that count work, the primary included, from
    /// when the last of them had prepared itself until the primary's end; and the share of the
    /// primary's time that this was.
    ///
    /// An error if the last program never began, or began so late that too little remained to
    /// measure.
    pub(super) fn all_units_per_s(&self, count: usize) -> Result<(f64, f64)> {
        let (began, ended) = (self.said.get("began_ns")?, self.said.get("ended_ns")?);
        let from = self.progress.all_work_from_ns(count);
        let from = from.filter(|from| *from < ended);
        let from = from.with_context(|| format!("not all {count} programs came to work"))?;
        let from = from.max(began);
        let share = (ended - from) / (ended - began);
        ensure!(
            share >= MIN_SHARE,
            "scavengers prepared themselves in {:.0} % of the primary's time",
            (1.0 - share) * 100.0
        );
        let units = self.progress.units(from, ended)?;
        Ok((units / (ended - from) * 1e9, share))
    }

    /// Units of work of the scavengers per second.
    pub(super) fn units_per_s(&self) -> Result<f64> {
        Ok(self.units()? / self.said.seconds()?)
    }
}

impl Bed<'_> {
    /// The command line of a program of `bench/harvest/`.
    pub(super) fn words<const N: usize>(&self, name: &str, words: [&str; N]) -> Words {
        let path = self.programs.programs[name].display().to_string();
        let words = words.into_iter().map(str::to_owned);
        std::iter::once(path).chain(words).collect()
    }

    /// `amount` times the requested scale, as an argument.
    pub(super) fn amount(&self, amount: u64) -> String {
        scaled(amount, self.args.scale).to_string()
    }

    /// A scavenger by its name; chases go over `area`.
    pub(super) fn scavenger(&self, name: &'static str, area: &str) -> Endless {
        let (words, profiled) = match name {
            "schase" => (
                self.words(name, [area]),
                self.words(name, [area, &self.amount(60_000_000)]),
            ),
            "graph" => (
                self.words(name, []),
                self.words(name, ["1048576", &self.amount(40)]),
            ),
            "compute" => (
                self.words(name, []),
                self.words(name, [&self.amount(80_000)]),
            ),
            _ => (
                self.words(name, []),
                self.words(name, [&self.amount(1_500_000)]),
            ),
        };
        Endless {
            name,
            words,
            profiled,
        }
    }

    /// A scavenger that ends at once.
    pub(super) fn empty(&self) -> Endless {
        let scan = self.scavenger("scan", "");
        Endless {
            words: self.words("scan", ["1"]),
            ..scan
        }
    }

    /// `command` on the one processor, with the timeout.
    fn pinned(&self, command: &[String]) -> Command {
        let mut pinned = program("timeout");
        pinned.args(["--kill-after=10", LIMIT_S, "taskset", "--cpu-list"]);
        pinned.arg(self.args.cpu.to_string()).args(command);
        pinned
    }

    /// Runs a program by itself.
    pub(super) fn alone(&self, words: &[String]) -> Result<Said> {
        let said = Said::parse(&stdout_of(&mut self.pinned(words))?);
        self.keep(json!({ "alone": shown(words), "said": said.0 }));
        Ok(said)
    }

    /// Units of work that a scavenger run alone does in a second of CPU time.
    pub(super) fn units_per_s(&self, scavenger: &Endless) -> Result<f64> {
        let object = self.programs.objects[scavenger.name].display().to_string();
        let milliseconds = self.amount(3000);
        let mut words = self.words("alone", [&milliseconds, "any", &object]);
        words.extend(scavenger.words[1..].iter().cloned());
        self.alone(&words)?.get("alone_work_per_cpu_s")
    }

    /// The recorded run of a program with these words, recorded once.
    pub(super) fn recorded(&self, words: &[String], options: &[&str]) -> Result<PathBuf> {
        self.made(&format!("run {options:?} {words:?}"), |path| {
            note(format_args!("profiling {}", shown(words)));
            let mut command = vec![self.membound.display().to_string()];
            let given = ["profile", "--quiet", "--duration", PROFILE_S, "--machine"];
            command.extend(given.map(str::to_owned));
            command.extend([self.machine.0.display().to_string(), "-o".to_owned()]);
            command.push(path.display().to_string());
            command.extend(options.iter().map(|&word| word.to_owned()));
            command.push("--".to_owned());
            command.extend_from_slice(words);
            // Recording needs a processor of its own.
            let mut limited = program("timeout");
            limited.args(["--kill-after=10", LIMIT_S]).args(&command);
            stdout_of(&mut limited).map(drop)
        })
    }

    /// The plan of a run, made once, with additional options of `harvest plan`.
    pub(super) fn planned(
        &self,
        run: &Path,
        role: HarvestRole,
        options: &[&str],
    ) -> Result<PathBuf> {
        self.made(&format!("plan {role:?} {options:?} {run:?}"), |path| {
            let mut command = program(self.membound);
            command.args(["harvest", "plan", "--role", role.name()]);
            command.arg("--machine").arg(&self.machine.0);
            command.args(options).arg("--json").arg(path).arg(run);
            stdout_of(&mut command)?;
            // Without levels nothing would yield, and the results would not be those of a harvest.
            let plan: HarvestPlan = read(path)?;
            match plan.missing.iter().find(|it| it.table == "levels") {
                Some(levels) => bail!("{}", levels.why.reason),
                None => Ok(()),
            }
        })
    }

    /// The file that `make` writes to the given path, or wrote before under this description.
    fn made(&self, what: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        if let Some(path) = self.made.borrow().get(what) {
            return Ok(path.clone());
        }
        let path = self
            .scratch
            .join(format!("made-{}", self.made.borrow().len()));
        make(&path)?;
        self.made.borrow_mut().insert(what.to_owned(), path.clone());
        Ok(path)
    }

    /// The plans of primary and scavenger.
    pub(super) fn plans(&self, asked: &Asked) -> Result<[PathBuf; 2]> {
        let overhead = ["--max-overhead", asked.max_overhead];
        let primary = self.recorded(&asked.profiled, &[])?;
        let primary = self.planned(&primary, HarvestRole::Primary, &overhead)?;
        let scavenger = self.recorded(&asked.scavenger.profiled, &[])?;
        let distance = asked
            .bound_ns
            .map(|bound| distance_ns(bound, self.machine.1).to_string());
        let mut options = overhead.to_vec();
        if let Some(distance) = &distance {
            options.extend(["--bound-ns", distance]);
        }
        let scavenger = self.planned(&scavenger, HarvestRole::Scavenger, &options)?;
        Ok([primary, scavenger])
    }

    /// Runs a primary under `membound harvest run`. An error if the primary never yielded although
    /// its plan has yields, or if a scavenger could not run.
    pub(super) fn harvested(&self, asked: &Asked) -> Result<Ran> {
        let plans = self.plans(asked)?;
        let yields = chosen(&plans[0])?.len();
        let json = self.scratch.join("harvest.json");
        let scavenger: Vec<String> = asked
            .scavenger
            .words
            .iter()
            .map(|word| format!("'{word}'"))
            .collect();
        let mut words = vec![self.membound.display().to_string()];
        words.extend(["harvest", "run", "--quiet", "--machine"].map(str::to_owned));
        words.push(self.machine.0.display().to_string());
        for (option, value) in [
            ("--scavenger", scavenger.join(" ")),
            ("--copies", asked.copies.to_string()),
            ("--per-thread", asked.copies.to_string()),
            ("--idle", asked.idle.name().to_owned()),
            ("--max-overhead", asked.max_overhead.to_owned()),
            ("--plan", plans[0].display().to_string()),
            ("--plan", plans[1].display().to_string()),
            ("--json", json.display().to_string()),
        ] {
            words.extend([option.to_owned(), value]);
        }
        if let Some(bound) = asked.bound_ns {
            words.extend(["--bound-ns".to_owned(), bound.to_string()]);
        }
        for part in asked.without {
            words.extend(["--without".to_owned(), part.name().to_owned()]);
        }
        words.push("--".to_owned());
        words.extend_from_slice(&asked.primary);

        let watch = Watch::begin(&self.scratch.join("progress"))?;
        let mut command = self.pinned(&words);
        command.env(VARIABLE, watch.path());
        let text = stdout_of(&mut command);
        let progress = watch.end()?;
        let said = Said::parse(&text?);
        let document: HarvestRun = read(&json)?;
        self.keep_run(asked, &said, &document);
        let gives_way = yields > 0 && !asked.without.contains(&HarvestPart::Switch);
        works(&document, gives_way)?;
        Ok(Ran {
            said,
            document: Some(document),
            progress,
        })
    }

    /// Runs a primary beside a scavenger that the kernel schedules, started with the command `how`
    /// on processor `cpu`.
    pub(super) fn beside(
        &self,
        primary: &[String],
        scavenger: &Endless,
        how: &[&str],
        cpu: u32,
    ) -> Result<Ran> {
        let watch = Watch::begin(&self.scratch.join("progress"))?;
        let mut words: Words = how.iter().map(|&word| word.to_owned()).collect();
        words.extend_from_slice(&scavenger.words);
        // Without `timeout`, which would leave the program running after a kill.
        let mut command = program("taskset");
        command.arg("--cpu-list").arg(cpu.to_string());
        let mut other = command
            .args(&words)
            .env(VARIABLE, watch.path())
            .spawn()
            .with_context(|| format!("cannot start {}", words[0]))?;
        let text = stdout_of(&mut self.pinned(primary));
        let running = other.try_wait();
        // It may have ended by itself, which is reported below.
        drop(other.kill());
        other.wait().context("cannot wait for the scavenger")?;
        let progress = watch.end()?;
        ensure!(running?.is_none(), "the scavenger ended before the primary");
        let said = Said::parse(&text?);
        self.keep(json!({ "beside": shown(&words), "primary": shown(primary), "said": said.0 }));
        Ok(Ran {
            said,
            document: None,
            progress,
        })
    }

    /// Keeps the description and results of a run.
    fn keep_run(&self, asked: &Asked, said: &Said, document: &HarvestRun) {
        let mut document = document.clone();
        document.host.clear();
        self.keep(json!({
            "harvested": shown(&asked.primary), "scavenger": shown(&asked.scavenger.words),
            "said": said.0, "document": document,
        }));
    }

    /// Keeps a run for the raw results.
    fn keep(&self, run: Value) {
        self.raw.borrow_mut().push(run);
    }

    /// The machine's memory latency in nanoseconds, as `harvest run` reads it from the profile.
    pub(super) fn latency_of(machine: &MachineProfile) -> Result<f64> {
        let level = machine.levels.last();
        Ok(level
            .context("the machine profile has no levels")?
            .latency_ns)
    }
}

/// Runs every case `repeat` times, upwards and downwards in turn, so that a slow phase of the
/// machine affects all of them. A case that fails is not run again.
pub(super) fn alternate<C, T>(
    repeat: usize,
    cases: &[C],
    run: impl Fn(&C) -> Result<T>,
) -> Vec<Result<Vec<T>>> {
    let mut found: Vec<Result<Vec<T>>> = cases.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..repeat {
        for step in 0..cases.len() {
            let place = if round % 2 == 0 {
                step
            } else {
                cases.len() - 1 - step
            };
            note(format_args!("round {round}, case {place}"));
            if let Ok(values) = &mut found[place] {
                match run(&cases[place]) {
                    Ok(value) => values.push(value),
                    Err(error) => found[place] = Err(error),
                }
            }
        }
    }
    found
}

/// Reads a document from its file.
pub(super) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is another document", path.display()))
}

/// The primary yields that a plan has chosen: module and address of each.
pub(super) fn chosen(plan: &Path) -> Result<BTreeSet<(String, u64)>> {
    let plan: HarvestPlan = read(plan)?;
    let sites = plan.sites.into_iter().filter(|site| site.chosen);
    Ok(sites.map(|site| (site.module, site.offset)).collect())
}

/// An error if a run was no harvest.
fn works(document: &HarvestRun, planned: bool) -> Result<()> {
    for scavenger in &document.scavengers {
        if matches!(
            scavenger.state,
            ScavengerState::Crashed | ScavengerState::Refused
        ) {
            bail!(
                "scavenger {} {}: {}",
                scavenger.copy,
                scavenger.state.name(),
                scavenger.reason.as_deref().unwrap_or("no reason given")
            );
        }
    }
    let was_there = |one: &membound_types::Scavenger| one.state == ScavengerState::Unfinished;
    if planned && document.primary.yields == 0 && document.scavengers.iter().any(was_there) {
        let why = document.notes.join("; ");
        bail!(
            "the primary never gave way{}{why}",
            if why.is_empty() { "" } else { ": " }
        );
    }
    Ok(())
}

/// Whether scavengers ran on their home threads for so long in `seconds`, and in `rest_s` before,
/// that their work does not come from stalls.
pub(super) fn ran_apart(document: &HarvestRun, seconds: f64, rest_s: f64) -> bool {
    let own: f64 = document.scavengers.iter().map(|one| one.own_thread_s).sum();
    own > rest_s + OWN_THREAD_SHARE * seconds
}

/// A command as a person would type it, its program without a path.
fn shown(words: &[String]) -> String {
    let mut command = Command::new(&words[0]);
    crate::run::shown(command.args(&words[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_heard_by_name() {
        let said = Said::parse("began_ns 1000000000\nended_ns 3500000000\nport\nx y\nbusy 0.5\n");
        assert_eq!(said.get("busy").unwrap(), 0.5);
        assert_eq!(said.seconds().unwrap(), 2.5);
        assert!(said.get("x").is_err());
    }

    #[test]
    fn cases_take_turns_and_one_that_fails_is_left_out() {
        let seen = RefCell::new(Vec::new());
        let found = alternate(3, &[1, 2, 3], |case| {
            seen.borrow_mut().push(*case);
            ensure!(*case != 2, "two");
            Ok(*case * 10)
        });
        assert_eq!(*seen.borrow(), [1, 2, 3, 3, 1, 1, 3]);
        assert_eq!(*found[0].as_ref().unwrap(), [10, 10, 10]);
        assert_eq!(found[1].as_ref().unwrap_err().to_string(), "two");
    }
}
