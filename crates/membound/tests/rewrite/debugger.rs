//! Debuggers and profilers beside a patched program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::build::{Compiler, build, is_there};
use crate::case::Case;
use crate::run::{Ending, RunDirectory, check, clean, finish, wait};

/// The functions of `chain.c` from the innermost out, as they stand on its stack.
const CHAIN: [&str; 6] = ["level6", "level5", "level4", "level3", "level2", "level1"];

/// The process that runs `program`, once there is one.
fn process_of(program: &Path) -> u32 {
    let started = Instant::now();
    loop {
        let found = std::fs::read_dir("/proc")
            .expect("proc is mounted")
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .find(|pid| {
                std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
            });
        if let Some(pid) = found {
            return pid;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it never ran");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the file contains this line.
fn wait_for(path: &Path, line: &str) {
    let started = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|text| text.contains(line)) {
        assert!(started.elapsed() < Duration::from_secs(60), "no `{line}`");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A patched fixture that runs until it is asked to stop.
struct RunningFixture {
    room: RunDirectory,
    child: Child,
    pid: u32,
}

impl RunningFixture {
    /// Starts the program built from `source`; prints why and returns `None` if it cannot be built.
    fn start(source: &str, words: &[&str]) -> Option<Self> {
        let built = build(Compiler::Gcc, source, "-O2")?;
        let room = RunDirectory::new();
        // A copy, by whose path the process is found.
        let program: PathBuf = room.path().join("program");
        std::fs::copy(built, &program).expect("the directory is ours");
        let program = program.canonicalize().expect("it was just made");
        let stop = room.path().join("stop");
        File::create(&stop).expect("the directory is ours");
        let out = room.path().join("stdout");
        let child = check(&room, words)
            .arg(&program)
            .arg(&stop)
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("the directory is ours"))
            .stderr(File::create(room.path().join("stderr")).expect("the directory is ours"))
            .spawn()
            .expect("the command starts");
        wait_for(&out, "working");
        let pid = process_of(&program);
        Some(Self { room, child, pid })
    }

    /// Lets it end, and checks that it ended as it would have alone.
    fn stop(mut self) -> RunDirectory {
        std::fs::remove_file(self.room.path().join("stop")).expect("the directory is ours");
        assert_eq!(Ending::from(wait(&mut self.child)), Ending::Exited(0));
        let out = std::fs::read_to_string(self.room.path().join("stdout")).expect("it can be read");
        assert_eq!(out, "working\nworked\n");
        self.room
    }

    /// The output of gdb attached to it; prints why and returns `None` if that is not permitted.
    fn gdb(&self, words: &[&str]) -> Option<String> {
        let output = Command::new("gdb")
            .args(["-nx", "-batch", "-p", &self.pid.to_string()])
            .args(words)
            .args(["-ex", "detach"])
            .env("DEBUGINFOD_URLS", "")
            .stdin(Stdio::null())
            .output()
            .expect("the command starts");
        let Output { stdout, stderr, .. } = output;
        let text = String::from_utf8_lossy(&stdout).into_owned();
        let errors = String::from_utf8_lossy(&stderr);
        if !text.contains("#0") && errors.contains("ptrace: Operation not permitted") {
            membound_testkit::skipped("ptrace is not permitted");
            return None;
        }
        assert!(text.contains("#0"), "gdb shows no stack: {text}{errors}");
        Some(format!("{text}{errors}"))
    }
}

#[test]
fn gdb_attaches_shows_the_stack_and_leaves() {
    if !is_there("gdb") {
        membound_testkit::skipped("no gdb");
        return;
    }
    let Some(working) = RunningFixture::start("waits.c", &["--body", "count"]) else {
        return;
    };
    for _ in 0..5 {
        let Some(text) = working.gdb(&["-ex", "bt", "-ex", "info registers rip"]) else {
            break;
        };
        assert!(
            frames(&text).any(|line| line.contains(" main (")),
            "the stack does not reach main: {text}"
        );
    }
    working.stop();
}

/// The lines of a stack.
fn frames(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with('#'))
}

/// Whether gdb is installed and can run scripts.
fn gdb_runs_scripts() -> bool {
    let found = Command::new("gdb")
        .args(["-nx", "-batch", "-ex", "python print(6 * 7)"])
        .stdin(Stdio::null())
        .output();
    let able = found.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("42"));
    if !able {
        membound_testkit::skipped("no gdb with Python");
    }
    able
}

/// Wherever the thread is, in a trampoline, in the rest of one, on an island or in the agent, the stack shown
/// is the original program's.
#[track_caller]
fn gdb_sees_the_original_stack(body: &str) {
    if !gdb_runs_scripts() {
        return;
    }
    let Some(working) = RunningFixture::start("chain.c", &["--body", body]) else {
        return;
    };
    let script = working.room.path().join("membound.py");
    let mut printed = Command::new(env!("CARGO_BIN_EXE_membound"));
    clean(&mut printed, &working.room);
    let printed = printed
        .args(["rewrite", "gdb-script"])
        .output()
        .expect("the command starts");
    assert!(printed.status.success());
    std::fs::write(&script, printed.stdout).expect("the directory is ours");
    let script = script.to_str().expect("the path is text");
    let mut in_trampolines = 0;
    for _ in 0..20 {
        let Some(text) = working.gdb(&["-x", script, "-ex", "bt", "-ex", "bt -no-filters"]) else {
            working.stop();
            return;
        };
        assert!(!text.contains("Python Exception"), "{text}");
        // Two stacks, each from its first line on.
        let lines: Vec<&str> = frames(&text).collect();
        let second = lines
            .iter()
            .rposition(|line| line.starts_with("#0"))
            .expect("there are two stacks");
        for stack in [&lines[..second], &lines[second..]] {
            let mut outer = stack.iter();
            // A thread in `access`, between two rounds, has only main.
            let inner = stack.iter().any(|line| line.contains("level1 "));
            let expected = CHAIN.iter().filter(|_| inner);
            let expected = expected
                .map(|name| format!(" {name} ("))
                .chain([" main (".to_owned()]);
            let first = stack.iter().position(|line| line.contains(" level"));
            let skipped = first.map_or(0, |at| deepest(stack[at]));
            for name in expected.skip(skipped) {
                assert!(outer.any(|line| line.contains(&name)), "no{name}: {text}");
            }
        }
        // Also behind frames of the agent.
        let found = frames(&text).any(|line| line.contains("membound's trampoline"));
        in_trampolines += u32::from(found);
    }
    assert!(in_trampolines > 0, "no stop was in a trampoline");
    working.stop();
}

/// Index of the first function of the chain that may be on the stack when `line` is the innermost frame: a
/// frame of the function itself, or of a trampoline for it.
fn deepest(line: &str) -> usize {
    let found = CHAIN
        .iter()
        .position(|name| line.contains(&format!(" {name} ")));
    found.unwrap_or(0)
}

#[test]
fn gdb_sees_the_original_stack_while_accesses_are_counted() {
    gdb_sees_the_original_stack("count");
}

#[test]
fn gdb_sees_the_original_stack_despite_garbage() {
    gdb_sees_the_original_stack("rubbish");
}

#[test]
fn gdb_sees_the_original_stack_from_inside_the_agent() {
    gdb_sees_the_original_stack("sample");
}

/// A handler that unwinds the stack reaches main from wherever it interrupts.
#[test]
fn handlers_follow_the_stack_to_main() {
    let Some(program) = build(Compiler::Gcc, "chain.c", "-O2") else {
        return;
    };
    Case::new(program, "backtrace 3000").check();
}

/// As above, where threads are often inside the agent.
#[test]
fn handlers_follow_the_stack_out_of_the_agent() {
    let Some(program) = build(Compiler::Gcc, "chain.c", "-O2") else {
        return;
    };
    let case = Case::new(program, "backtrace 1000");
    let plain = case.plain();
    for body in ["sample", "record"] {
        let (outcome, _) = case.patched(&["--body", body]);
        assert_eq!(outcome.stdout(), plain.stdout(), "{body}: {outcome:?}");
    }
}

/// A line of a perf map.
fn map_lines(text: &str) -> Vec<(u64, u64, &str)> {
    let hex = |word: Option<&str>| {
        u64::from_str_radix(word.expect("three words a line"), 16).expect("it is a number")
    };
    text.lines()
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            (
                hex(words.next()),
                hex(words.next()),
                words.next().expect("three words a line"),
            )
        })
        .collect()
}

/// Ranges of executable memory in the process `pid` that no named file backs.
fn nameless_code(pid: u32) -> Vec<std::ops::Range<u64>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it can be read");
    maps.lines()
        .filter(|line| line.contains(" r-xp ") && line.trim_end().ends_with(" 0"))
        .map(|line| {
            let (start, rest) = line.split_once('-').expect("a range");
            let end = rest.split(' ').next().expect("split gives one part");
            let hex = |word| u64::from_str_radix(word, 16).expect("it is a number");
            hex(start)..hex(end)
        })
        .collect()
}

/// The file of names that perf reads, removed when the test is over.
struct PerfMap(PathBuf);

impl PerfMap {
    fn of(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }
}

impl Drop for PerfMap {
    fn drop(&mut self) {
        // It may not have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn perf_maps_name_the_trampolines() {
    let Some(working) = RunningFixture::start("chain.c", &["--body", "count", "--perf-map"]) else {
        return;
    };
    let map = PerfMap::of(working.pid);
    let text = std::fs::read_to_string(&map.0).expect("it can be read");
    let lines = map_lines(&text);
    let code = nameless_code(working.pid);
    assert!(!lines.is_empty() && !code.is_empty());
    for (start, bytes, name) in &lines {
        let within =
            |range: &&std::ops::Range<u64>| range.start <= *start && start + bytes <= range.end;
        assert!(
            code.iter().any(|range| within(&range)),
            "{name} at {start:x}"
        );
        assert!(name.contains("[membound "), "{name}");
    }
    let mut sorted = lines.clone();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
    for function in CHAIN {
        let own = |(_, _, name): &&(u64, u64, &str)| {
            name.starts_with(&format!("{function}+0x")) && name.ends_with(" [membound program]")
        };
        assert!(
            lines.iter().any(|line| own(&line)),
            "{function} is not named"
        );
    }
    let room = working.stop();
    let stderr = std::fs::read_to_string(room.path().join("stderr")).expect("it can be read");
    assert!(stderr.contains(map.0.to_str().unwrap()), "{stderr}");
    assert!(map.0.exists(), "perf report reads it later");
}

/// A file or link of another user in the shared directory is replaced, never written through.
#[test]
fn names_for_perf_do_not_follow_links() {
    let Some(program) = build(Compiler::Gcc, "chain.c", "-O2") else {
        return;
    };
    let room = RunDirectory::new();
    let precious = room.path().join("precious");
    std::fs::write(&precious, "precious").expect("the directory is ours");
    // The shell prints its process ID, which the patched program keeps.
    let script = format!(
        "ln -s {} /tmp/perf-$$.map; echo $$; exec {} gone",
        precious.display(),
        program.display()
    );
    let mut command = check(&room, &["--body", "count", "--perf-map"]);
    command.args(["/bin/sh", "-c", &script]);
    let outcome = finish(&mut command, &room, b"");
    let stdout = outcome.stdout();
    let pid: u32 = stdout.lines().next().unwrap().parse().unwrap();
    let map = PerfMap::of(pid);
    // `ln` had one too.
    let stderr = outcome.stderr();
    let _all: Vec<PerfMap> = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("membound: names for perf are in "))
        .filter_map(|line| line.split(';').next())
        .map(|path| PerfMap(PathBuf::from(path)))
        .collect();
    assert_eq!(outcome.ending, Ending::Exited(0), "{outcome:?}");
    assert_eq!(
        std::fs::read_to_string(&precious).expect("it can be read"),
        "precious"
    );
    assert!(map.0.symlink_metadata().unwrap().is_file());
    assert!(
        std::fs::read_to_string(&map.0)
            .unwrap()
            .contains("level6+0x")
    );
}

#[test]
fn perf_resolves_samples_in_trampolines() {
    let Some(working) = RunningFixture::start("chain.c", &["--body", "count", "--perf-map"]) else {
        return;
    };
    let map = PerfMap::of(working.pid);
    let data = working.room.path().join("perf.data");
    let recorded = Command::new("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "500", "-o"])
        .arg(&data)
        .args(["-p", &working.pid.to_string(), "--", "sleep", "2"])
        .stdin(Stdio::null())
        .output();
    let able = recorded.is_ok_and(|output| output.status.success());
    if able {
        let script = Command::new("perf")
            .args(["script", "-F", "ip,sym", "-i"])
            .arg(&data)
            .output()
            .expect("the command starts");
        let text = String::from_utf8_lossy(&script.stdout).into_owned();
        let code = nameless_code(working.pid);
        let inside: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| {
                let ip = line.split(' ').next().unwrap_or_default();
                let ip = u64::from_str_radix(ip, 16).unwrap_or(0);
                code.iter().any(|range| range.contains(&ip))
            })
            .collect();
        assert!(!inside.is_empty(), "no sample in a trampoline: {text}");
        for line in inside {
            assert!(line.contains("[membound "), "{line}");
        }
    } else {
        membound_testkit::skipped("no perf, or it may not run");
    }
    working.stop();
    drop(map);
}
