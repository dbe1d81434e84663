//! Batches of randomly drawn programs: a harvest of them against the kernel's scheduling.
//!
//! Every batch runs one program after another and as a harvest on one CPU, and side by side and as
//! a harvest on all CPUs. The first harvest of a batch knows no program; the others follow the
//! plans that it made. The seed decides which programs are drawn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use membound_model::stats::median;
use serde::Serialize;

use super::entry::Entry;
use super::obtain;
use super::place::EntryPaths;
use super::process::Group;
use super::session;
use super::statistics::Interval;
use crate::campaign::outcome::Ending;
use crate::run::{note, say};
use membound_testkit::Random;

/// Number of programs in a batch.
const PROGRAMS: std::ops::RangeInclusive<u64> = 2..=4;
/// Timeout of a batch.
const LIMIT: Duration = Duration::from_secs(300);
/// Files that a program's preparation and earlier runs left in its directory, and that no run
/// reads.
const OF_RUNS: [&str; 5] = [".prepared", ".stdout", ".stderr", "stdout", "stderr"];
/// Maximum time of a harvest, relative to the kernel's scheduling.
const MAX_TIME_RATIO: f64 = 1.03;

/// Method of running a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchMethod {
    /// A harvest that knows none of the programs, on one CPU.
    FirstHarvest,
    /// One program after another, on one CPU.
    Sequence,
    /// A harvest that follows plans, on one CPU.
    Harvest,
    /// All at once, on all CPUs.
    SideBySide,
    /// A harvest that follows plans, on all CPUs.
    HarvestOnAll,
}

impl BatchMethod {
    /// The order in a round, counted from 0. The first harvest makes the plans of the others. What is
    /// compared changes places from round to round, so that neither gains by its place.
    const fn order(round: usize) -> [Self; 5] {
        use BatchMethod::{FirstHarvest, Harvest, HarvestOnAll, Sequence, SideBySide};
        if round.is_multiple_of(2) {
            [FirstHarvest, Sequence, Harvest, SideBySide, HarvestOnAll]
        } else {
            [FirstHarvest, Harvest, Sequence, HarvestOnAll, SideBySide]
        }
    }
}

/// Times of a batch.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    programs: Vec<String>,
    /// Seconds of every round, by method in the order of [`BatchMethod`].
    seconds: [Vec<f64>; 5],
    /// Time relative to the kernel's scheduling of the same round: first harvest and harvest on
    /// one CPU, harvest on all CPUs.
    ratios: [Interval; 3],
    same_output: bool,
}

impl Row {
    fn new(programs: Vec<String>, seconds: [Vec<f64>; 5], same_output: bool) -> Result<Self> {
        let ratio = |of: BatchMethod, to: BatchMethod| {
            let pairs = seconds[of as usize].iter().zip(&seconds[to as usize]);
            let ratios: Vec<f64> = pairs.map(|(of, to)| of / to).collect();
            Interval::of(&ratios).context("a batch without rounds")
        };
        let ratios = [
            ratio(BatchMethod::FirstHarvest, BatchMethod::Sequence)?,
            ratio(BatchMethod::Harvest, BatchMethod::Sequence)?,
            ratio(BatchMethod::HarvestOnAll, BatchMethod::SideBySide)?,
        ];
        Ok(Self {
            programs,
            seconds,
            ratios,
            same_output,
        })
    }

    /// Median, in seconds.
    fn time(&self, of: BatchMethod) -> f64 {
        median(&self.seconds[of as usize]).unwrap_or_default()
    }
}

/// Parameters of running batches.
pub(super) struct Setting<'a> {
    pub(super) membound: &'a Path,
    pub(super) machine: &'a Path,
    pub(super) count: usize,
    /// Time after which no further batch is started.
    pub(super) limit: Duration,
    pub(super) seed: u64,
    pub(super) rounds: usize,
}

/// Draws and runs batches; prints a line for each, and a summary.
pub(super) fn run(entries: &[&Entry], setting: &Setting<'_>) -> Result<Vec<Row>> {
    let programs = programs(entries)?;
    ensure!(programs.len() > 1, "fewer than two programs can be drawn");
    let mut random = Random::new(setting.seed);
    let mut rows = Vec::new();
    let start = Instant::now();
    while rows.len() < setting.count && start.elapsed() < setting.limit {
        let batch = draw(&programs, &mut random);
        let Some(bed) = Bed::new(&batch)? else {
            continue;
        };
        let names: Vec<&str> = batch.iter().map(|it| it.name.as_str()).collect();
        note(format_args!("{}: {}", rows.len() + 1, names.join(", ")));
        let row = bed.measure(setting)?;
        let [first, harvest, on_all] = row.ratios.map(|ratio| {
            let Interval { median, low, high } = ratio;
            format!("{median:.3} [{low:.2}, {high:.2}]")
        });
        say(format_args!(
            "{:<44} {:>6.2} s  first {first}  harvest {harvest}  side by side {:>6.2} s  harvest {on_all}{}",
            names.join(" + "),
            row.time(BatchMethod::Sequence),
            row.time(BatchMethod::SideBySide),
            if row.same_output {
                ""
            } else {
                "  OTHER OUTPUT"
            }
        ));
        rows.push(row);
    }
    for (index, what) in [
        "first harvest, one CPU",
        "harvest, one CPU",
        "harvest, all CPUs",
    ]
    .iter()
    .enumerate()
    {
        let mut ratios: Vec<f64> = rows.iter().map(|row| row.ratios[index].median).collect();
        ratios.sort_by(f64::total_cmp);
        let mean = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64;
        let kept = ratios
            .iter()
            .filter(|ratio| **ratio <= MAX_TIME_RATIO)
            .count();
        say(format_args!(
            "{what}: geometric mean {:.3}, best {:.3}, worst {:.3}, {kept} of {} at most {MAX_TIME_RATIO}",
            mean.exp(),
            ratios.first().copied().unwrap_or_default(),
            ratios.last().copied().unwrap_or_default(),
            ratios.len()
        ));
    }
    Ok(rows)
}

/// A program that can be drawn.
struct Program {
    name: String,
    words: Vec<String>,
    work: PathBuf,
    /// Whether its stdout is the same in every run.
    is_constant: bool,
}

/// The programs that end by themselves on one CPU too and need nothing before a run, after their preparation.
fn programs(entries: &[&Entry]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let Some(run) = &entry.run else { continue };
        let place = EntryPaths::of(&entry.name, index);
        if run.before.is_some()
            || entry.spins
            || !run.environment.is_empty()
            || obtain::missing(entry, &place).is_some()
        {
            continue;
        }
        session::prepare(entry, &place).with_context(|| entry.name.clone())?;
        programs.push(Program {
            name: entry.name.clone(),
            words: place.words(&run.command),
            work: place.work.clone(),
            is_constant: entry.output.stdout && entry.output.ignore.is_empty(),
        });
    }
    Ok(programs)
}

/// Some of the programs, possibly one several times.
fn draw<'a>(programs: &'a [Program], random: &mut Random) -> Vec<&'a Program> {
    let count = random.between(*PROGRAMS.start(), *PROGRAMS.end());
    (0..count).map(|_| random.pick(programs)).collect()
}

/// A directory with the files of all programs of a batch.
struct Bed<'a> {
    batch: &'a [&'a Program],
    room: tempfile::TempDir,
}

impl<'a> Bed<'a> {
    /// `None` if two programs have different files of one name.
    fn new(batch: &'a [&'a Program]) -> Result<Option<Self>> {
        let room = tempfile::tempdir()?;
        let files = room.path().join("files");
        std::fs::create_dir(&files)?;
        let mut known = BTreeSet::new();
        for program in batch.iter().filter(|it| known.insert(&it.name)) {
            for file in std::fs::read_dir(&program.work)? {
                let file = file?;
                let name = file.file_name();
                if OF_RUNS.iter().any(|it| name == **it) {
                    continue;
                }
                if std::os::unix::fs::symlink(file.path(), files.join(name)).is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Self { batch, room }))
    }

    fn measure(&self, setting: &Setting<'_>) -> Result<Row> {
        let mut seconds: [Vec<f64>; 5] = Default::default();
        let mut same_output = true;
        for round in 0..setting.rounds {
            let plans = tempfile::tempdir()?;
            for method in BatchMethod::order(round) {
                let begun = Instant::now();
                match method {
                    BatchMethod::Sequence => {
                        for (index, program) in self.batch.iter().enumerate() {
                            self.start(index, program, true)?.wait(LIMIT)?;
                        }
                    }
                    BatchMethod::SideBySide => self.side_by_side()?,
                    BatchMethod::FirstHarvest | BatchMethod::Harvest => {
                        self.harvest(setting, plans.path(), true)?
                    }
                    BatchMethod::HarvestOnAll => self.harvest(setting, plans.path(), false)?,
                }
                seconds[method as usize].push(begun.elapsed().as_secs_f64());
                // The first round's first harvest has no output to compare with.
                same_output &= method == BatchMethod::FirstHarvest || self.has_same_output();
            }
        }
        let programs = self.batch.iter().map(|it| it.name.clone()).collect();
        Row::new(programs, seconds, same_output)
    }

    /// Starts a program without membound.
    fn start(&self, index: usize, program: &Program, on_one: bool) -> Result<Group> {
        let mut command = on(on_one, Path::new(&program.words[0]));
        let out = std::fs::File::create(self.room.path().join(format!("alone-{index}")))?;
        command.args(&program.words[1..]).stdout(out);
        command.current_dir(self.room.path().join("files"));
        Group::start(quiet(command), None)
    }

    fn side_by_side(&self) -> Result<()> {
        let programs = self.batch.iter().enumerate();
        let groups: Vec<Group> = programs
            .map(|(index, program)| self.start(index, program, false))
            .collect::<Result<_>>()?;
        groups
            .into_iter()
            .try_for_each(|it| it.wait(LIMIT).map(drop))
    }

    fn harvest(&self, setting: &Setting<'_>, plans: &Path, on_one: bool) -> Result<()> {
        let mut command = on(on_one, setting.membound);
        command.args(["harvest", "run", "--no-primary", "--quiet", "--machine"]);
        command
            .arg(setting.machine)
            .arg("--output")
            .arg(self.room.path().join("out"));
        for program in self.batch {
            let words: Vec<String> = program.words.iter().map(|word| quoted(word)).collect();
            command.arg("--scavenger").arg(words.join(" "));
        }
        command.env("XDG_CACHE_HOME", plans).stdout(Stdio::null());
        command.current_dir(self.room.path().join("files"));
        let left = Group::start(quiet(command), None)?.wait(LIMIT)?;
        match left.ending {
            Ending::Exited(0) => Ok(()),
            ending => bail!("the harvest ended with {ending}"),
        }
    }

    /// Whether the programs' outputs in the last harvest equal their outputs alone, where these
    /// never vary.
    fn has_same_output(&self) -> bool {
        let same = |(index, program): (usize, &&Program)| {
            let read = |name: String| std::fs::read(self.room.path().join(name)).ok();
            let alone = read(format!("alone-{index}"));
            !program.is_constant || alone == read(format!("out/{}-0.out", index + 1))
        };
        self.batch.iter().enumerate().all(same)
    }
}

/// A command on one CPU, or on all.
fn on(one: bool, path: &Path) -> Command {
    if !one {
        return Command::new(path);
    }
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "0"]).arg(path);
    command
}

fn quiet(mut command: Command) -> Command {
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .env("LC_ALL", "C");
    command
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_batches_of_two_to_four() {
        let program = |name: &str| Program {
            name: name.to_owned(),
            words: vec!["true".to_owned()],
            work: PathBuf::new(),
            is_constant: true,
        };
        let programs = ["a", "b", "c"].map(program);
        let drawn = |seed| {
            let mut random = Random::new(seed);
            let names = |batch: Vec<&Program>| -> Vec<String> {
                batch.iter().map(|it| it.name.clone()).collect()
            };
            (0..50)
                .map(|_| names(draw(&programs, &mut random)))
                .collect::<Vec<_>>()
        };
        let batches = drawn(1);
        assert_eq!(batches, drawn(1));
        assert_ne!(batches, drawn(2));
        let sizes: BTreeSet<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, BTreeSet::from([2, 3, 4]));
        let names: BTreeSet<String> = batches.into_iter().flatten().collect();
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn words_are_read_back_by_a_shell() {
        for word in ["a b", "it's", "$x", ""] {
            let script = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
