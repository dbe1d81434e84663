//! Recordings of other profilers: recordings of perf made here, compared sample by sample with the output of
//! perf, and synthetic recordings of other processors.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use membound_run::{AccessSampler, FrameId, ModuleKind, RunData, ServedBy, Snoop, TimerKind};
use membound_testkit::perf_data::{Endian, PerfDataFile, PerfEvent, memory_recordings};
use membound_testkit::{is_there, skipped};

use crate::command::{Finished, Membound, busy};

/// A program with two threads that wait for memory and compute, in separate functions.
const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
static volatile long sink;
static int *next;
enum { N = 1 << 22 };
__attribute__((noinline)) long chase(long n) { int i = 0; while (n--) i = next[i]; return i; }
__attribute__((noinline)) long compute(long n) { long x = 1; while (n--) x = x * 3 + n; return x; }
__attribute__((noinline)) void work(void) { sink += chase(1500000); sink += compute(100000000); }
static void *run(void *unused) { work(); return unused; }
int main(void) {
  next = malloc(sizeof(int) * (long)N);
  for (long i = 0; i < N; i++) next[i] = (i * 7919 + 12345) % N;
  pthread_t thread;
  pthread_create(&thread, 0, run, 0);
  run(0);
  pthread_join(thread, 0);
}
"#;

/// The compiled program; prints why and returns `None` without a compiler or perf.
fn program(home: &Path) -> Option<PathBuf> {
    if !is_there("perf") {
        skipped("perf is not installed (Debian's package linux-perf)");
        return None;
    }
    if !is_there("gcc") {
        skipped("gcc is not installed");
        return None;
    }
    let (source, path) = (home.join("waits.c"), home.join("waits"));
    fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("gcc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"])
        .args([&path, &source])
        .status()
        .unwrap();
    assert!(built.success());
    Some(path)
}

/// Records the program by perf into `perf.data`; returns whether that is permitted.
fn record(home: &Path, options: &[&str]) -> bool {
    let _busy = busy();
    let file = fs::File::create(home.join("perf.data")).unwrap();
    let recorded = Command::new("perf")
        .args(["record", "-e", "cpu-clock", "--no-buildid-mmap", "-B", "-N"])
        .args([
            "-o",
            if options.contains(&"pipe") {
                "-"
            } else {
                "perf.data"
            },
        ])
        .args(options.iter().filter(|option| **option != "pipe"))
        .args(["--", "./waits"])
        .current_dir(home)
        .stdout(if options.contains(&"pipe") {
            Stdio::from(file)
        } else {
            Stdio::null()
        })
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    if !recorded.status.success() {
        let why = String::from_utf8_lossy(&recorded.stderr);
        skipped(format!(
            "perf cannot record here: {}",
            why.lines().next().unwrap_or_default()
        ));
    }
    recorded.status.success()
}

/// One sample in the output of perf.
#[derive(Debug)]
struct ScriptSample {
    tid: u32,
    t_us: u64,
    period: u64,
    function: String,
    file: String,
}

/// The output of `perf script` with these options.
fn script(home: &Path, options: &[&str]) -> String {
    let output = Command::new("perf")
        .args(["script", "-i", "perf.data"])
        .args(options)
        .current_dir(home)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// All samples of perf.data, from `perf script`.
fn script_samples(home: &Path) -> Vec<ScriptSample> {
    let text = script(home, &["-G", "-F", "tid,time,period,ip,sym,dso"]);
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap_or_default();
        let (tid, time, period, _ip) = (next(), next(), next(), next());
        let (seconds, micros) = time.trim_end_matches(':').split_once('.').unwrap();
        let (function, file) = line.rsplit_once(" (").unwrap();
        ScriptSample {
            tid: tid.parse().unwrap(),
            t_us: seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap(),
            period: period.parse().unwrap(),
            function: function.split_whitespace().last().unwrap().to_owned(),
            file: file.trim_end_matches(')').to_owned(),
        }
    };
    text.lines()
        .filter(|it| !it.trim().is_empty())
        .map(line)
        .collect()
}

/// The function of a frame, inlined functions left out, and its file.
fn place(run: &RunData, frame: FrameId) -> (String, String) {
    let outermost = run
        .locations
        .iter()
        .filter(|location| location.frame == frame)
        .max_by_key(|location| location.depth);
    let module = run.frames[frame.index()].module;
    let module = module.map(|id| &run.modules[id.index()]);
    let file = match module {
        Some(module) if module.kind == ModuleKind::Kernel => "[kernel.kallsyms]".to_owned(),
        Some(module) => module.path.clone(),
        None => "[unknown]".to_owned(),
    };
    (
        outermost.map(|it| it.function.clone()).unwrap_or_default(),
        file,
    )
}

/// How often each function of the program, and each file, was sampled.
fn counts(samples: impl Iterator<Item = (String, String)>) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for (function, file) in samples {
        let function = if file.ends_with("/waits") {
            function
        } else {
            String::new()
        };
        *counts.entry((function, file)).or_default() += 1;
    }
    counts
}

/// Checks that a run agrees with perf's output for the same recording.
fn is_the_same(run: &RunData, expected: &[ScriptSample]) {
    assert!(expected.len() > 100, "{}", expected.len());
    assert_eq!(run.samples.len(), expected.len());
    let all_ns: u64 = run.samples.iter().map(|sample| sample.weight_ns).sum();
    assert_eq!(
        all_ns,
        expected.iter().map(|sample| sample.period).sum::<u64>()
    );
    let first_us = expected.iter().map(|sample| sample.t_us).min().unwrap();
    let origin_us = first_us - run.samples[0].t_ns / 1000;
    let mut places = BTreeMap::new();
    for (sample, expected) in run.samples.iter().zip(expected) {
        assert_eq!(run.threads[sample.thread.index()].tid, expected.tid);
        assert_eq!(sample.weight_ns, expected.period);
        // perf prints microseconds, rounded down.
        assert!(sample.t_ns / 1000 + origin_us <= expected.t_us + 1);
        assert!(sample.t_ns / 1000 + origin_us + 1 >= expected.t_us);
        let leaf = run.stacks[sample.stack.index()].frame;
        places.entry(leaf).or_insert_with(|| place(run, leaf));
    }
    let ours = counts(run.samples.iter().map(|sample| {
        let leaf = run.stacks[sample.stack.index()].frame;
        places[&leaf].clone()
    }));
    let theirs = counts(expected.iter().map(|sample| {
        let is_kernel = sample.file.starts_with("[kernel") || sample.file.starts_with("[guest");
        let file = if is_kernel {
            "[kernel.kallsyms]"
        } else {
            &sample.file
        };
        (sample.function.clone(), file.to_owned())
    }));
    assert_eq!(ours, theirs);
    for function in ["chase", "compute"] {
        assert!(ours.keys().any(|(name, _)| name == function), "{ours:?}");
    }
}

fn import(membound: &Membound, line: &str) -> RunData {
    let done = membound.run(&format!("import {line} -o got.run"));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stdout, "");
    let run = RunData::open(&membound.home.path().join("got.run")).unwrap();
    assert!(run.meta.complete);
    run
}

#[test]
fn what_perf_records_is_imported_to_the_last_sample() {
    let membound = Membound::new();
    let home = membound.home.path();
    if program(home).is_none() {
        return;
    }
    for options in [&["-g"][..], &[], &["-F", "2000", "pipe"]] {
        if !record(home, options) {
            return;
        }
        let run = import(&membound, "perf.data");
        is_the_same(&run, &script_samples(home));
        assert_eq!(run.meta.timer, TimerKind::CpuClock);
        assert!(run.meta.imported.as_deref().unwrap().contains("cpu-clock"));
        // The program's code is available, so the run says what its samples waited for.
        assert!(!run.attributions.is_empty() && !run.code.is_empty());
        membound
            .run("report got.run --source nofunc")
            .complains(1, &["`nofunc`"]);
        let report = membound.run("report got.run --by function").printed();
        assert!(report.contains("chase"), "{report}");
        // Without latencies, hardly anything is known of the stalled share.
        let document = membound.run("report got.run --format json").json();
        let bound = &document["memory_bound"];
        let width = bound["high"].as_f64().unwrap() - bound["low"].as_f64().unwrap();
        assert!(width > 0.2, "{bound}");
        assert!(
            document["run"]["imported"]
                .as_str()
                .unwrap()
                .contains("perf.data")
        );
    }
}

#[test]
fn call_chains_lead_to_main_by_frame_pointers_and_by_unwinding() {
    let membound = Membound::new();
    let home = membound.home.path();
    if program(home).is_none() {
        return;
    }
    for options in [&["--call-graph", "fp"][..], &["--call-graph", "dwarf,4096"]] {
        if !record(home, options) {
            return;
        }
        let run = import(&membound, "perf.data");
        is_the_same(&run, &script_samples(home));
        let mut leading = 0;
        let mut in_chase = 0;
        for sample in &run.samples {
            let mut chain = Vec::new();
            let mut at = Some(sample.stack);
            while let Some(stack) = at {
                let row = run.stacks[stack.index()];
                chain.push(place(&run, row.frame).0);
                at = row.parent;
            }
            if chain[0] == "chase" {
                in_chase += 1;
                // A leaf without a frame of its own hides its caller from frame pointers.
                let leads = match options[1] {
                    "fp" => chain.iter().any(|name| name == "main" || name == "run"),
                    _ => chain[1] == "work" && chain.len() > 3,
                };
                leading += u64::from(leads);
            }
        }
        assert!(in_chase > 10, "{options:?}: {in_chase}");
        assert!(
            leading * 10 >= in_chase * 9,
            "{options:?}: {leading} of {in_chase}"
        );
        if options[1].starts_with("dwarf") {
            let addresses = run.samples.iter().filter(|sample| sample.address.is_some());
            assert!(addresses.count() > 0, "registers tell what was accessed");
        }
    }
}

#[test]
fn the_text_of_perf_script_gives_the_same_run() {
    let membound = Membound::new();
    let home = membound.home.path();
    if program(home).is_none() {
        return;
    }
    for options in [&["-g"][..], &[]] {
        if !record(home, options) {
            return;
        }
        let text = script(home, &["--header", "-F", "+pid,+period"]);
        fs::write(home.join("perf.txt"), text).unwrap();
        let run = import(&membound, "perf.txt");
        is_the_same(&run, &script_samples(home));
        assert_eq!(run.processes.len(), 1);
        let report = membound.run("report got.run --by function").printed();
        assert!(report.contains("chase"), "{report}");
    }
}

fn built(membound: &Membound, name: &str, bytes: &[u8]) {
    fs::write(membound.home.path().join(name), bytes).unwrap();
}

#[test]
fn accesses_that_processors_sampled_keep_their_levels_and_latencies() {
    let membound = Membound::new();
    let expected = [
        ("pebs", AccessSampler::Pebs, "PEBS", 10, 4),
        ("pebs-big", AccessSampler::Pebs, "PEBS", 10, 4),
        ("ibs", AccessSampler::Ibs, "IBS", 0, 3),
        ("spe", AccessSampler::Spe, "SPE", 0, 3),
    ];
    for (name, file) in memory_recordings() {
        let (_, sampler, shown, samples, accesses) =
            expected.iter().find(|it| it.0 == name).copied().unwrap();
        for bytes in [file.file(), file.pipe()] {
            built(&membound, "perf.data", &bytes);
            let run = import(&membound, "perf.data");
            assert_eq!(run.samples.len(), samples, "{name}");
            assert_eq!(run.hardware_accesses.len(), accesses, "{name}");
            let all = &run.hardware_accesses;
            assert!(all.iter().all(|access| access.sampler == sampler), "{name}");
            assert_eq!(all[0].served, Some(ServedBy::Dram), "{name}");
            assert!(all[0].latency_cycles.is_some(), "{name}");
            let summary = membound.run("report got.run").printed();
            assert!(
                summary.contains(&format!("Sampled by {shown}")),
                "{summary}"
            );
            let view = &membound.run("report got.run --format json").json()["hardware"];
            assert_eq!(view["accesses"], accesses, "{name}");
            assert_eq!(view["basis"], "measured");
            assert_eq!(view["samplers"][0], shown);
        }
    }
}

#[test]
fn lines_that_another_core_changed_are_shown() {
    let membound = Membound::new();
    let (_, file) = memory_recordings().remove(0);
    built(&membound, "perf.data", &file.file());
    let run = import(&membound, "perf.data");
    let changed = run
        .hardware_accesses
        .iter()
        .filter(|access| access.snoop == Some(Snoop::Modified));
    assert_eq!(changed.count(), 1);
    assert_eq!(run.processes[0].path, "/opt/memory/program");
    let view = &membound.run("report got.run --format json").json()["hardware"];
    let line = &view["changed_lines"][0];
    assert_eq!(line["address"], 0x7000_1000);
    assert_eq!(
        (line["changed"].as_u64(), line["accesses"].as_u64()),
        (Some(1), Some(2))
    );
    let loads = view["loads"].as_u64();
    assert_eq!((loads, view["stores"].as_u64()), (Some(3), Some(1)));
    // 350, 250 and 120 cycles, each with the same weight.
    assert_eq!(view["latency_cycles"], 240.0);
    let levels = view["levels"].as_array().unwrap();
    let names: Vec<&str> = levels
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["L1", "L3", "DRAM"]);
    assert_eq!(levels[2]["latency_cycles"], 300.0);
}

#[test]
fn sampled_accesses_are_on_the_page_and_in_the_csv() {
    let membound = Membound::new();
    for (name, file) in memory_recordings() {
        built(&membound, "perf.data", &file.file());
        import(&membound, "perf.data");
        let csv = membound
            .run("report got.run --by level --format csv")
            .printed();
        let pprof = membound
            .command(["report", "got.run", "--format", "pprof"])
            .output()
            .unwrap()
            .stdout;
        let has_latency = pprof.windows(14).any(|it| it == b"access_latency");
        assert!(has_latency, "{name}");
        membound.run("report got.run --html got.html").printed();
        let page = fs::read_to_string(membound.home.path().join("got.html")).unwrap();
        assert!(page.contains("Sampled accesses"), "{name}");
        if name.starts_with("pebs") {
            // 350 and 250 cycles, 120 cycles, and a store without a latency.
            let rows = [
                "L1,,,,0.25,,PEBS,1,",
                "L3,,,,0.25,,PEBS,1,120",
                "DRAM,,,,0.5,,PEBS,2,300",
            ];
            let found: Vec<&str> = csv.lines().filter(|line| line.contains("PEBS")).collect();
            assert_eq!(found, rows, "{csv}");
            let about = "Sampled by PEBS: 4 accesses · 3 loads · 1 store · 240 cycles on average";
            assert!(page.contains(about), "{name}");
            assert!(page.contains("line 0x70001000 of process 40"), "{name}");
        }
    }
}

#[test]
fn cycles_become_time_and_other_events_are_counted() {
    let membound = Membound::new();
    let event = |name, kind, config, id| PerfEvent {
        name,
        kind,
        config,
        ids: vec![id],
        ..PerfEvent::default()
    };
    let file = PerfDataFile::new(Endian::Little)
        .event(event("cycles", 0, 0, 1))
        .event(event("cache-misses", 0, 3, 2))
        .named_events();
    let file = (0..60_u64).fold(file, |file, number| {
        let id = if number % 3 == 2 { 2 } else { 1 };
        let body = file.bytes().words(&[id, 0x1000]).u32(7).u32(7);
        // 2 000 000 cycles every millisecond.
        let at_ns = 1_000_000 * (1 + number / 3 * 2 + number % 3);
        file.sample(body.u64(at_ns).u32(0).u32(0).u64(2_000_000))
    });
    built(&membound, "perf.data", &file.file());
    let run = import(&membound, "perf.data");
    assert_eq!(run.meta.timer, TimerKind::Cycles);
    assert_eq!(run.samples.len(), 40);
    assert!(
        run.samples
            .iter()
            .all(|sample| sample.weight_ns == 1_000_000)
    );
    let gap = |text: &str| run.gaps.iter().find(|gap| gap.reason.contains(text));
    assert_eq!(gap("cache-misses").unwrap().count, Some(20));
    assert!(gap("2.00 GHz").is_some(), "{:?}", run.gaps);
}

/// Checks that nothing is imported, with one line of error, and that the earlier output file is unchanged.
fn refused(membound: &Membound, name: &str, parts: &[&str]) {
    let home = membound.home.path();
    fs::write(home.join("kept.run"), "kept").unwrap();
    let done = membound.run(&format!("import {name} -o kept.run"));
    done.complains(1, parts);
    assert_eq!(fs::read_to_string(home.join("kept.run")).unwrap(), "kept");
    let temporary = fs::read_dir(home).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".tmp")
    });
    assert_eq!(temporary.count(), 0);
}

#[test]
fn what_cannot_be_read_is_refused_in_one_line_and_nothing_is_lost() {
    let membound = Membound::new();
    let (_, file) = memory_recordings().remove(0);
    let whole = file.file();
    built(&membound, "cut", &whole[..whole.len() - 1]);
    refused(&membound, "cut", &["cannot import cut", "cut off"]);
    built(&membound, "short", &whole[..40]);
    refused(&membound, "short", &["the header"]);
    let mut killed = whole.clone();
    killed[48..56].fill(0);
    built(&membound, "killed", &killed);
    refused(&membound, "killed", &["`perf record` was killed"]);
    built(&membound, "future", b"PERFILE3 and what is not known yet");
    refused(&membound, "future", &["PERFILE3", "perf script"]);
    built(
        &membound,
        "compressed",
        &file.clone().record(81, 0, &[0; 8], &[]).file(),
    );
    refused(&membound, "compressed", &["compressed", "-z"]);
    let event = PerfEvent {
        sample_type: 1 << 30,
        ..PerfEvent::default()
    };
    let unknown = PerfDataFile::new(Endian::Little)
        .event(event)
        .named_events();
    built(
        &membound,
        "fields",
        &unknown.record(9, 2, &[0; 8], &[]).file(),
    );
    refused(&membound, "fields", &["cpu-clock", "0x40000000"]);
    built(&membound, "other", b"\x7fELF\x02\x01\x01");
    refused(
        &membound,
        "other",
        &["neither a perf.data file", "`membound compare` takes"],
    );
    built(&membound, "empty", b"");
    refused(&membound, "empty", &["neither a perf.data file"]);
    built(
        &membound,
        "text",
        b"x 1 1.000000: 1 cpu-clock:\n\tzz f (x)\n",
    );
    refused(&membound, "text", &["line 2", "no frame"]);
    fs::create_dir(membound.home.path().join("directory")).unwrap();
    refused(&membound, "directory", &["is a directory"]);
    refused(&membound, "absent", &["cannot read absent"]);
    for at in [8, 16, 24, 32, 40, 48] {
        let mut hostile = whole.clone();
        hostile[at..at + 8].copy_from_slice(&(u64::MAX - 7).to_le_bytes());
        built(&membound, "hostile", &hostile);
        let _ = fs::remove_file(membound.home.path().join("other.run"));
        let done = membound.run("import hostile -o other.run -q");
        if done.code != Some(0) {
            done.complains(1, &["cannot import hostile"]);
            assert!(!membound.home.path().join("other.run").exists());
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_of_usage() {
    let membound = Membound::new();
    let (_, file) = memory_recordings().remove(0);
    built(&membound, "perf.data", &file.file());
    membound.run("import perf.data -o -").complains(2, &["-o"]);
    membound.run("import").complains(2, &["FILE"]);
    membound
        .run("import perf.data --nonsense")
        .complains(2, &["--nonsense"]);
    membound
        .run("import perf.data -o no/such/got.run")
        .complains(1, &["no/such"]);
    membound
        .run("import perf.data --machine perf.data")
        .complains(1, &["machine profile"]);
}

#[test]
fn a_pipe_is_imported_from_stdin_into_the_usual_run() {
    let membound = Membound::new();
    let (_, file) = memory_recordings().remove(0);
    built(&membound, "pipe", &file.pipe());
    let stdin = fs::File::open(membound.home.path().join("pipe")).unwrap();
    let done = membound
        .command(["import", "-", "-q"])
        .stdin(stdin)
        .output();
    let done = Finished::of(&done.unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let summary = membound.run("report").printed();
    assert!(summary.contains("Sampled by PEBS"), "{summary}");
}

#[test]
fn files_that_are_others_than_the_recorded_ones_give_no_names() {
    let membound = Membound::new();
    let home = membound.home.path();
    // The test program itself, as if another file had been recorded under its name.
    let own = std::env::current_exe().unwrap();
    let path = own.to_str().unwrap();
    let file = PerfDataFile::new(Endian::Little)
        .event(PerfEvent::default())
        .text_header(6, "aarch64");
    let map = file.bytes().u32(7).u32(7).words(&[0x40_0000, 0x10_0000, 0]);
    let map = map.words(&[0, 0, 0]).u32(5).u32(2).text(path);
    let body = file
        .bytes()
        .words(&[1, 0x40_1000])
        .u32(7)
        .u32(7)
        .words(&[5, 0, 9]);
    let file = file.told(10, 2, map, 1).sample(body);
    fs::write(home.join("perf.data"), file.file()).unwrap();
    let run = import(&membound, "perf.data");
    let why = run.gaps.iter().find(|gap| gap.reason.contains("aarch64"));
    assert!(
        why.is_some_and(|gap| gap.reason.contains(path)),
        "{:?}",
        run.gaps
    );
    assert!(run.locations.is_empty() && run.attributions.is_empty());
    assert_eq!(run.modules[0].path, path);
    assert_eq!(run.samples.len(), 1);
}
