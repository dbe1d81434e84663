//! One entry: prepared, run in rounds with and without membound, compared.
//!
//! A round runs the program once without membound and once in every mode. Every other round
//! has the opposite order, so that a drift of the machine's speed does not favour a mode.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::entry::{Entry, Output, Run, Server, StopSignal, Threads, Truth, number};
use super::place::{EntryPaths, stamp};
use super::process::{Group, Left};
use super::recorded::{MACHINES, Recorded};
use super::statistics::Interval;
use super::truth::{Band, ProgramRun, band, saved};
use crate::campaign::outcome::Ending;
use crate::run::stdout_of;

/// Timeout of the preparation of an entry.
const PREPARATION_LIMIT: Duration = Duration::from_secs(600);
/// Timeout for a server to answer and, later, to end.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
/// Timeout of a report.
const REPORT_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of runs of a truth's other command.
const OTHER_RUNS: usize = 5;
/// Timeout of a simulation: cachegrind slows a program by a factor of fifty and more.
const SIMULATION_LIMIT: Duration = Duration::from_secs(150);
const READY_INTERVAL: Duration = Duration::from_millis(50);

/// What membound records of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Timer samples alone.
    Samples,
    /// Everything that is on by default.
    All,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::All => "all",
        }
    }

    const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Samples => &["--no-latencies", "--no-objects"],
            Self::All => &[],
        }
    }
}

/// How entries are run.
pub(crate) struct Plan {
    pub(crate) membound: PathBuf,
    /// Profile of the machine; `None` for membound's own default.
    pub(crate) machine: Option<PathBuf>,
    pub(crate) pairs: usize,
    pub(crate) modes: Vec<Mode>,
    /// Whether truths are measured.
    pub(crate) truths: bool,
}

/// One run, with or without membound.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Once {
    pub(crate) ending: String,
    pub(crate) wall_s: f64,
    pub(crate) program_s: f64,
    pub(crate) peak_kb: u64,
    pub(crate) output: String,
    pub(crate) throughput: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) recorded: Option<Recorded>,
    /// Why there is no report, if it failed.
    pub(crate) trouble: Option<String>,
    #[serde(skip)]
    stdout: String,
}

/// Results of an entry's runs in one mode.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) entry: String,
    pub(crate) mode: Mode,
    pub(crate) pairs: usize,
    /// Seconds of the program without membound, median.
    pub(crate) alone_s: f64,
    /// Loss: of a program's time, t/t₀ − 1; of throughput, 1 − r/r₀.
    pub(crate) cost: Option<Interval>,
    /// Time of everything, membound's start and end included, over the time alone, minus 1.
    pub(crate) wall_cost: Option<Interval>,
    /// Ratio of the requests' 99th percentile, minus 1.
    pub(crate) p99_cost: Option<Interval>,
    /// Additional time per process, in milliseconds, if the entry starts many processes.
    pub(crate) process_ms: Option<f64>,
    /// Additional memory at the peak, in MiB.
    pub(crate) memory_mb: Option<f64>,
    pub(crate) same_output: bool,
    pub(crate) same_ending: bool,
    pub(crate) longest_stop_ms: Option<f64>,
    /// The profile of the run whose share is the median.
    pub(crate) recorded: Option<Recorded>,
    pub(crate) truth: Option<Band>,
    pub(crate) truth_kind: Option<String>,
    pub(crate) held: Option<bool>,
    pub(crate) error: Option<f64>,
    /// Share of its time that the repaired build saves: see [`super::truth::saved`].
    #[serde(default)]
    pub(crate) saved: Option<f64>,
    /// Interval of that share.
    #[serde(default)]
    pub(crate) saved_interval: Option<[f64; 2]>,
    /// Whether the profile names the expected function and object.
    pub(crate) expected: Option<bool>,
    pub(crate) trouble: Option<String>,
}

impl Row {
    /// Saving that the profile predicts, and saving of the repaired build, at least 0.
    pub(crate) fn savings(&self) -> Option<Savings> {
        let recorded = self.recorded.as_ref()?;
        let predicted = recorded.predicted_gain.unwrap_or(0.0);
        let saved = self.saved?.max(0.0);
        Some(Savings {
            predicted,
            predicted_interval: recorded.predicted_interval.unwrap_or([predicted; 2]),
            saved,
            saved_interval: self.saved_interval.map(|ends| ends.map(|end| end.max(0.0))),
        })
    }
}

/// A predicted saving, and what a repaired build saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Savings {
    pub(crate) predicted: f64,
    pub(crate) predicted_interval: [f64; 2],
    pub(crate) saved: f64,
    /// `None` in results from before there were intervals.
    pub(crate) saved_interval: Option<[f64; 2]>,
}

/// An entry's rows, and the runs from which they were computed.
pub(crate) struct Found {
    pub(crate) rows: Vec<Row>,
    pub(crate) raw: Value,
}

/// Makes the inputs unless they exist already.
pub(crate) fn prepare(entry: &Entry, place: &EntryPaths) -> Result<()> {
    let mark = place.work.join(".prepared");
    let stamp = stamp(entry);
    if std::fs::read_to_string(&mark).is_ok_and(|text| text == stamp) {
        return Ok(());
    }
    if place.work.exists() {
        std::fs::remove_dir_all(&place.work)
            .with_context(|| format!("cannot remove {}", place.work.display()))?;
    }
    std::fs::create_dir_all(&place.work)
        .with_context(|| format!("cannot create {}", place.work.display()))?;
    for script in &entry.prepare {
        let command = place.script(script, ".stdout", ".stderr")?;
        let left = Group::start(command, None)?.wait(PREPARATION_LIMIT)?;
        ensure!(
            left.ending == Ending::Exited(0),
            "preparation ended with {}: {}",
            left.ending,
            tail(&place.text(".stderr"))
        );
    }
    std::fs::write(&mark, stamp).context("cannot mark the inputs as made")
}

/// Runs an entry as the plan says.
pub(crate) fn measure(entry: &Entry, place: &EntryPaths, plan: &Plan) -> Result<Found> {
    prepare(entry, place)?;
    // Files that the first run reads come from the disk; later runs find them in the page cache.
    let first = once(entry, place, plan, None)?;
    ensure!(
        first.ending == Ending::Exited(0).to_string() || entry.server.is_some(),
        "the program alone ended with {}: {}",
        first.ending,
        tail(&place.text(".stderr"))
    );
    // One pair is a trial, not a measurement, so the first run is used.
    let mut alone: Vec<Once> = if plan.pairs == 1 {
        vec![first]
    } else {
        Vec::new()
    };
    let mut with: Vec<(Mode, Vec<Once>)> =
        plan.modes.iter().map(|&mode| (mode, Vec::new())).collect();
    for round in 0..plan.pairs {
        if round % 2 == 0 && plan.pairs > 1 {
            alone.push(once(entry, place, plan, None)?);
        }
        for index in 0..with.len() {
            let index = if round % 2 == 0 {
                index
            } else {
                with.len() - 1 - index
            };
            let run = once(entry, place, plan, Some(with[index].0))?;
            with[index].1.push(run);
        }
        if round % 2 == 1 {
            alone.push(once(entry, place, plan, None)?);
        }
    }
    let mut other = Vec::new();
    let mut saving = None;
    let truth = match &entry.truth {
        Some(truth) if plan.truths => {
            let plain: Vec<ProgramRun> = alone.iter().map(Once::run).collect();
            other = other_runs(entry, place, truth, plan.pairs)?;
            saving = saved(truth, &plain, &other);
            let recorded: Vec<ProgramRun> = with
                .iter()
                .filter(|(mode, _)| *mode == Mode::All)
                .flat_map(|(_, runs)| runs.iter().map(Once::run))
                .collect();
            Some(band(truth, &plain, &recorded, &other))
        }
        _ => None,
    };
    let rows = with
        .iter()
        .map(|(mode, runs)| {
            let saving = saving.filter(|_| *mode == Mode::All);
            Row {
                saved: saving.map(|it| it.median),
                saved_interval: saving.map(|it| [it.low, it.high]),
                ..row(entry, *mode, &alone, runs, truth.as_ref())
            }
        })
        .collect();
    Ok(Found {
        rows,
        raw: serde_json::json!({
            "entry": entry.name,
            "alone": alone,
            "with": with,
            "other_s": other.iter().map(|run| run.program_s).collect::<Vec<_>>(),
        }),
    })
}

impl Once {
    fn run(&self) -> ProgramRun {
        ProgramRun {
            stdout: self.stdout.clone(),
            program_s: self.program_s,
        }
    }
}

/// Runs the truth's other command, besides the entry's own.
fn other_runs(
    entry: &Entry,
    place: &EntryPaths,
    truth: &Truth,
    pairs: usize,
) -> Result<Vec<ProgramRun>> {
    let environment = entry
        .run
        .as_ref()
        .map(|run| run.environment.clone())
        .unwrap_or_default();
    let one = |words: &[String], limit: Duration| -> Result<ProgramRun> {
        let words = place.words(words);
        let command = place.command(&words, &environment, ".other", ".other-errors")?;
        let left = Group::start(command, None)?.wait(limit)?;
        ensure!(
            left.ending == Ending::Exited(0),
            "the truth's command ended with {}: {}",
            left.ending,
            tail(&place.text(".other-errors"))
        );
        Ok(ProgramRun {
            stdout: place.text(".other"),
            program_s: left.program_s,
        })
    };
    let limit = Duration::from_secs(entry.limit_s);
    match truth {
        Truth::OwnStopwatch { .. } => Ok(Vec::new()),
        // Another guest may use half of a core for seconds, and what fits a cache then takes up to twice as long.
        Truth::FitsCachePair { small, .. } => (0..OTHER_RUNS).map(|_| one(small, limit)).collect(),
        Truth::PairedBuild { mended } => (0..OTHER_RUNS.min(pairs))
            .map(|_| one(mended, limit))
            .collect(),
        Truth::Cachegrind { command } => {
            let native = one(command, limit)?;
            // The simulation takes long and gives the same result each time.
            let kept = place
                .work
                .join(format!(".cachegrind-{:.12}", hash(&command.join(" "))));
            let simulated = match std::fs::read_to_string(&kept) {
                Ok(stdout) => ProgramRun {
                    stdout,
                    program_s: 0.0,
                },
                Err(_) => {
                    let mut words: Vec<String> = [
                        "valgrind",
                        "--tool=cachegrind",
                        "--cache-sim=yes",
                        "--cachegrind-out-file=/dev/null",
                        "--log-file={work}/.cachegrind-log",
                    ]
                    .map(str::to_owned)
                    .into();
                    words.extend(command.iter().cloned());
                    one(&words, SIMULATION_LIMIT)?;
                    let run = ProgramRun {
                        stdout: place.text(".cachegrind-log"),
                        program_s: 0.0,
                    };
                    std::fs::write(&kept, &run.stdout)?;
                    run
                }
            };
            Ok(vec![native, simulated])
        }
    }
}

/// Runs the entry's program once, in a mode or without membound.
fn once(entry: &Entry, place: &EntryPaths, plan: &Plan, mode: Option<Mode>) -> Result<Once> {
    let recording = place.work.join(".recording");
    drop(std::fs::remove_file(&recording));
    for file in &entry.output.files {
        drop(std::fs::remove_file(place.work.join(place.filled(file))));
    }
    let (before, words, environment) = match (&entry.run, &entry.server) {
        (
            Some(Run {
                command,
                environment,
                before,
            }),
            _,
        )
        | (
            None,
            Some(Server {
                command,
                environment,
                before,
                ..
            }),
        ) => (before, command, environment),
        (None, None) => bail!("an entry has either [run] or [server]"),
    };
    if let Some(script) = before {
        let left = Group::start(place.script(script, ".before", ".before-errors")?, None)?
            .wait(PREPARATION_LIMIT)?;
        ensure!(
            left.ending == Ending::Exited(0),
            "what comes before a run ended with {}: {}",
            left.ending,
            tail(&place.text(".before-errors"))
        );
    }
    let mut full = Vec::new();
    if let Some(mode) = mode {
        full.push(plan.membound.to_string_lossy().into_owned());
        full.extend(["profile", "--quiet", "-o"].map(str::to_owned));
        full.push(recording.to_string_lossy().into_owned());
        if let Some(machine) = &plan.machine {
            full.push("--machine".to_owned());
            full.push(machine.to_string_lossy().into_owned());
        }
        full.extend(mode.options().iter().map(|&word| word.to_owned()));
        full.push("--".to_owned());
    }
    full.extend(place.words(words));
    let command = place.command(&full, environment, ".stdout", ".stderr")?;
    let recorder = mode.map(|_| plan.membound.as_path());
    let limit = Duration::from_secs(entry.limit_s);
    let (left, load) = match &entry.server {
        None => (Group::start(command, recorder)?.wait(limit)?, None),
        Some(server) => {
            let (left, load) = serve(server, place, command, recorder, limit)?;
            (left, Some(load))
        }
    };
    let stdout = place.text(".stdout");
    let figure = |expression: Option<&str>| number(expression?, load.as_deref()?);
    let server = entry.server.as_ref();
    let mut once = Once {
        ending: left.ending.to_string(),
        wall_s: left.wall_s,
        program_s: left.program_s,
        peak_kb: left.peak_kb,
        output: fingerprint(&entry.output, place, &stdout, server.is_some())?,
        throughput: figure(server.map(|it| it.throughput.as_str())),
        p99: figure(server.and_then(|it| it.p99.as_deref())),
        recorded: None,
        trouble: None,
        stdout,
    };
    if mode.is_some() {
        match report(plan, place, &recording) {
            Ok(document) => once.recorded = Some(Recorded::of(&document)),
            Err(error) => once.trouble = Some(format!("{error:#}")),
        }
    }
    drop(std::fs::remove_file(&recording));
    Ok(once)
}

/// The report of a recording, as a JSON document.
fn report(plan: &Plan, place: &EntryPaths, recording: &Path) -> Result<Value> {
    ensure!(
        recording.exists(),
        "membound left no recording: {}",
        tail(&place.text(".stderr"))
    );
    let mut command = Command::new("timeout");
    command.arg(REPORT_LIMIT.as_secs().to_string());
    command.arg(&plan.membound).arg("report").arg(recording);
    for (machine, _) in MACHINES {
        command.args(["--machine", machine]);
    }
    let text = stdout_of(command.args(["--format", "json"]).current_dir(&place.work))?;
    serde_json::from_str(&text).context("the report is no JSON")
}

/// Starts a server, waits until it answers, loads it and stops it; returns the output of the load
/// generator.
fn serve(
    server: &Server,
    place: &EntryPaths,
    command: Command,
    recorder: Option<&Path>,
    limit: Duration,
) -> Result<(Left, String)> {
    let mut group = Group::start(command, recorder)?;
    let begun = Instant::now();
    loop {
        if let Some(ending) = group.poll()? {
            bail!(
                "the server ended with {ending}: {}",
                tail(&place.text(".stderr"))
            );
        }
        let ready = Group::start(
            place.script(&server.ready, ".ready", ".ready-errors")?,
            None,
        )?;
        if ready.wait(SERVER_LIMIT)?.ending == Ending::Exited(0) {
            break;
        }
        ensure!(
            begun.elapsed() < SERVER_LIMIT,
            "the server does not answer: {} {}",
            tail(&place.text(".stderr")),
            tail(&place.text(".ready-errors"))
        );
        std::thread::sleep(READY_INTERVAL);
    }
    let mut load = Group::start(place.script(&server.load, ".load", ".load-errors")?, None)?;
    let loaded = Instant::now();
    let ending = loop {
        if let Some(ending) = load.poll()? {
            break ending;
        }
        // The server's exit is checked when it is waited for.
        group.poll()?;
        if loaded.elapsed() > limit {
            break Ending::Hung;
        }
        std::thread::sleep(READY_INTERVAL);
    };
    drop(load);
    let text = place.text(".load") + &place.text(".load-errors");
    group.signal(match server.stop {
        StopSignal::Term => libc::SIGTERM,
        StopSignal::Int => libc::SIGINT,
    });
    let left = group.wait(SERVER_LIMIT)?;
    ensure!(
        ending == Ending::Exited(0),
        "the load generator ended with {ending}: {}",
        tail(&text)
    );
    Ok((left, text))
}

/// A hash of those parts of the program's output that must be the same in every run.
fn fingerprint(output: &Output, place: &EntryPaths, stdout: &str, serves: bool) -> Result<String> {
    let ignore = output
        .ignore
        .iter()
        .map(|expression| regex::Regex::new(expression))
        .collect::<Result<Vec<_>, _>>()?;
    let mut digest = Sha256::new();
    // A server's stdout is a log.
    if output.stdout && !serves {
        for line in stdout.lines() {
            if !ignore.iter().any(|expression| expression.is_match(line)) {
                digest.update(line);
                digest.update("\n");
            }
        }
    }
    for file in &output.files {
        let path = place.work.join(place.filled(file));
        digest.update(
            std::fs::read(&path)
                .with_context(|| format!("the program did not write {}", path.display()))?,
        );
    }
    Ok(hex(&digest.finalize()))
}

fn hash(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The end of a text, on one line.
fn tail(text: &str) -> String {
    const KEPT: usize = 300;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = words.chars().count().saturating_sub(KEPT);
    words.chars().skip(skipped).collect()
}

/// Computes the row of the runs in a mode, compared with those alone.
fn row(
    entry: &Entry,
    mode: Mode,
    alone: &[Once],
    runs: &[Once],
    truth: Option<&Result<Band>>,
) -> Row {
    let of = |value: &dyn Fn(&Once, &Once) -> Option<f64>| {
        let values: Vec<f64> = alone
            .iter()
            .zip(runs)
            .filter_map(|(alone, run)| value(alone, run))
            .filter(|value| value.is_finite())
            .collect();
        Interval::of(&values)
    };
    let cost = match entry.threads {
        Threads::Server => of(&|alone, run| Some(1.0 - run.throughput? / alone.throughput?)),
        Threads::AllCpus => of(&|alone, run| Some(1.0 - alone.program_s / run.program_s)),
        Threads::Single | Threads::ShortProcesses => {
            of(&|alone, run| Some(run.program_s / alone.program_s - 1.0))
        }
    };
    let process_ms = entry.processes.and_then(|processes| {
        let more = of(&|alone, run| Some(run.program_s - alone.program_s))?;
        Some(more.median * 1e3 / f64::from(processes))
    });
    let mut trouble: Option<String> = runs.iter().find_map(|run| run.trouble.clone());
    if let Some(Err(error)) = truth {
        trouble = trouble.or_else(|| Some(format!("no truth: {error:#}")));
    }
    let truth = truth.and_then(|truth| truth.as_ref().ok()).copied();
    let recorded = middle(runs).cloned();
    let share = recorded.as_ref().and_then(|it| it.share);
    // Samples alone do not give the share.
    let judged = truth.filter(|_| mode == Mode::All);
    Row {
        entry: entry.name.clone(),
        mode,
        pairs: runs.len().min(alone.len()),
        alone_s: of(&|alone, _| Some(alone.program_s)).map_or(0.0, |it| it.median),
        cost,
        wall_cost: of(&|alone, run| Some(run.wall_s / alone.wall_s - 1.0))
            .filter(|_| entry.server.is_none()),
        p99_cost: of(&|alone, run| Some(run.p99? / alone.p99? - 1.0)),
        process_ms,
        memory_mb: of(&|alone, run| Some((run.peak_kb as f64 - alone.peak_kb as f64) / 1024.0))
            .map(|it| it.median),
        same_output: alone
            .iter()
            .chain(runs)
            .all(|run| run.output == alone[0].output),
        same_ending: runs.iter().all(|run| run.ending == alone[0].ending),
        longest_stop_ms: runs
            .iter()
            .filter_map(|run| run.recorded.as_ref()?.longest_stop_ms)
            .max_by(f64::total_cmp),
        expected: recorded
            .as_ref()
            .filter(|_| mode == Mode::All)
            .and_then(|recorded| is_as_expected(entry, recorded)),
        truth,
        truth_kind: entry.truth.as_ref().map(|it| it.name().to_owned()),
        held: judged.and_then(|truth| Some(truth.is_held_by(share?))),
        error: judged.and_then(|truth| Some(truth.error_of(share?))),
        saved: None,
        saved_interval: None,
        recorded,
        trouble,
    }
}

/// The profile whose share is the median, the lower one of two.
fn middle(runs: &[Once]) -> Option<&Recorded> {
    let mut recorded: Vec<&Recorded> = runs
        .iter()
        .filter_map(|run| run.recorded.as_ref())
        .collect();
    recorded.sort_by(|left, right| {
        let share = |it: &Recorded| it.share.map_or(-1.0, |share| share[0]);
        share(left).total_cmp(&share(right))
    });
    recorded.get(recorded.len().checked_sub(1)? / 2).copied()
}

fn is_as_expected(entry: &Entry, recorded: &Recorded) -> Option<bool> {
    let expect = entry.expect.as_ref()?;
    let names = |found: Option<&str>, part: Option<&String>| {
        part.is_none_or(|part| found.is_some_and(|found| found.contains(part.as_str())))
    };
    Some(
        names(recorded.top_function.as_deref(), expect.function.as_ref())
            && names(
                recorded.top_object.as_ref().map(|(name, _)| name.as_str()),
                expect.object.as_ref(),
            ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A membound that records nothing: it runs the program, and reports what is in a file.
    fn stub(directory: &Path, document: &Value) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = directory.join("membound");
        std::fs::write(directory.join("document"), document.to_string()).unwrap();
        let script = format!(
            "#!/bin/sh\nif [ $1 = report ]; then exec cat {0}/document; fi\n\
             while [ $1 != -- ]; do [ $1 = -o ] && echo run > $2; echo $1 >> {0}/words; shift; done\n\
             shift\n\"$@\"\n",
            directory.display()
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn plan(directory: &Path) -> Plan {
        let document = serde_json::json!({
            "memory_bound": { "fraction": 0.5, "low": 0.4, "high": 0.6, "unknown": 0.1 },
            "functions": [{ "name": "walk", "stall_fraction": 0.4 }],
            "overhead": { "longest_stop_ms": 1.5 },
        });
        Plan {
            membound: stub(directory, &document),
            machine: None,
            pairs: 2,
            modes: vec![Mode::Samples, Mode::All],
            truths: true,
        }
    }

    fn entry(text: &str) -> Entry {
        let entry: Entry = toml::from_str(text).unwrap();
        entry.check().unwrap();
        entry
    }

    #[test]
    fn an_entry_runs_from_its_preparation_to_its_rows() {
        let directory = tempfile::tempdir().unwrap();
        let entry = entry(
            r#"
            name = "x"
            about = "a test"
            kind = "tool"
            threads = "single"
            needs = ["sh"]
            prepare = ["echo 7 > input"]
            [run]
            command = ["sh", "-c", "cat input; echo share 0.55; date +%N > made; : > made"]
            [output]
            ignore = ["^share"]
            files = ["{work}/made"]
            [truth]
            kind = "own-stopwatch"
            share = 'share (\S+)'
            [expect]
            function = "walk"
            "#,
        );
        let place = EntryPaths::below(directory.path());
        let found = measure(&entry, &place, &plan(directory.path())).unwrap();
        let [samples, all] = &found.rows[..] else {
            panic!("a row for each mode");
        };
        assert!(samples.same_output && all.same_output);
        assert!(samples.same_ending && all.same_ending);
        assert_eq!(samples.held, None);
        assert_eq!(all.held, Some(true));
        assert!((all.error.unwrap() - 0.05).abs() < 1e-9);
        assert_eq!(all.expected, Some(true));
        assert_eq!(all.longest_stop_ms, Some(1.5));
        assert_eq!(all.pairs, 2);
        assert!(all.cost.is_some() && all.trouble.is_none());
        let words = std::fs::read_to_string(directory.path().join("words")).unwrap();
        assert_eq!(words.matches("--no-latencies").count(), 2);
    }

    #[test]
    fn another_output_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let entry = entry(
            "name = \"x\"\nabout = \"\"\nkind = \"tool\"\nthreads = \"single\"\nneeds = [\"sh\"]\n\
             [run]\ncommand = [\"sh\", \"-c\", \"echo $$\"]\n",
        );
        let place = EntryPaths::below(directory.path());
        let found = measure(&entry, &place, &plan(directory.path())).unwrap();
        assert!(!found.rows[0].same_output);
    }

    #[test]
    fn a_server_is_loaded_and_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let entry = entry(
            r#"
            name = "x"
            about = "a test"
            kind = "server"
            threads = "server"
            needs = ["sh"]
            [server]
            command = ["sh", "-c", "echo $$ > pid; trap 'exit 0' TERM; touch up; while :; do sleep 0.01; done"]
            before = "rm -f up"
            ready = "test -e up"
            load = "echo 1000 requests per second; echo p99 0.25 ms"
            throughput = '(\S+) requests per second'
            p99 = 'p99 (\S+) ms'
            "#,
        );
        let place = EntryPaths::below(directory.path());
        let found = measure(&entry, &place, &plan(directory.path())).unwrap();
        let row = &found.rows[1];
        assert!(row.cost.unwrap().median.abs() < 1e-9);
        assert!(row.p99_cost.unwrap().median.abs() < 1e-9);
        let pid = place.text("pid");
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }
}
