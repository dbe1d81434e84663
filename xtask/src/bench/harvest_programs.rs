//! The programs of `bench/harvest/`: primaries, scavengers and the programs that measure them,
//! built with the system's compilers.
//!
//! Each source describes what its program does, accepts and prints. Running them is left to the
//! bench.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::run::{program, root, stdout_of};

/// Sources of programs, by name and ending.
const PROGRAMS: [(&str, &str); 7] = [
    ("chase", "c"),
    ("kv", "cpp"),
    ("join", "rs"),
    ("server", "c"),
    ("other", "c"),
    ("interleaved", "c"),
    ("alone", "c"),
];

/// Sources of scavengers: each becomes a program and a shared object.
const SCAVENGERS: [(&str, &str); 4] = [
    ("scan", "c"),
    ("schase", "c"),
    ("graph", "cpp"),
    ("compute", "rs"),
];

/// What is built from a source.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Program,
    Object,
}

/// Paths of the built programs.
pub(crate) struct Programs {
    /// Executables by name: primaries, scavengers, `interleaved` and `alone`.
    pub(crate) programs: BTreeMap<&'static str, PathBuf>,
    /// Shared objects of the scavengers by name.
    pub(crate) objects: BTreeMap<&'static str, PathBuf>,
}

/// Builds all of them into `directory`, which must exist.
///
/// An error names the compiler that could not be started, or contains its message.
pub(crate) fn build(directory: &Path) -> Result<Programs> {
    build_with(directory, None)
}

/// Like [`build`], with the object file `storm` linked to the primaries.
pub(crate) fn build_with(directory: &Path, storm: Option<&Path>) -> Result<Programs> {
    let mut built = Programs {
        programs: BTreeMap::new(),
        objects: BTreeMap::new(),
    };
    for (name, ending) in PROGRAMS.into_iter().chain(SCAVENGERS) {
        let path = directory.join(name);
        let mut compiler = compiler(name, ending, Form::Program, &path);
        if let Some(storm) = storm.filter(|_| PROGRAMS.contains(&(name, ending))) {
            if ending == "rs" {
                compiler.arg(format!("-Clink-arg={}", storm.display()));
            } else {
                compiler.arg(storm);
            }
        }
        stdout_of(&mut compiler)?;
        built.programs.insert(name, path);
    }
    for (name, ending) in SCAVENGERS {
        let path = directory.join(format!("{name}.so"));
        stdout_of(&mut compiler(name, ending, Form::Object, &path))?;
        built.objects.insert(name, path);
    }
    Ok(built)
}

/// The compiler command that makes the file `path` from a source.
fn compiler(name: &str, ending: &str, form: Form, path: &Path) -> Command {
    let source = root().join(format!("bench/harvest/{name}.{ending}"));
    let mut command = program(match ending {
        "rs" => "rustc",
        "cpp" => "g++",
        _ => "gcc",
    });
    command.arg("-o").arg(path).arg(source);
    if ending == "rs" {
        command.args(["--edition", "2024", "-O", "-g"]);
        command.args(match form {
            Form::Program => ["--cfg", "program"],
            Form::Object => ["--crate-type", "cdylib"],
        });
    } else {
        command.args(["-O2", "-g", "-Wall", "-Wextra", "-pthread", "-lm"]);
        if form == Form::Object {
            command.args(["-shared", "-fPIC"]);
        }
    }
    command
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::process::{Output, Stdio};

    use membound_testkit::{is_there, skipped};

    use super::*;

    /// Predictable output of a run, and names whose values vary.
    struct Case {
        program: &'static str,
        words: &'static [&'static str],
        /// `name value`, or a name whose value is a measurement.
        prints: &'static [&'static str],
    }

    /// Runs of small sizes. Where the numbers come from: two chases of 5000 hops over 1024 lines
    /// end at place 904; three of 1000 over the same 64 lines, begun at 0, 21 and 42, at 40, 61 and
    /// 18; of 1024 keys with payloads 1, 4 … 3070 each is found twice in each of two probes; `kv`
    /// serves as many requests twice before it measures.
    const CASES: [Case; 15] = [
        Case {
            program: "chase",
            words: &["2", "64K", "own", "5000", "4k", "any"],
            prints: &["hops 10000", "checksum 1808", "ns_per_hop", "batch_p95_ns"],
        },
        Case {
            program: "chase",
            words: &["3", "4K", "shared", "1000"],
            prints: &["hops 3000", "checksum 119", "cpu_ns_per_hop"],
        },
        Case {
            program: "kv",
            words: &["256K", "50", "3000", "4", "wait", "0", "any", "any", "4k"],
            prints: &[
                "operations 36000",
                "service_p95_ns",
                "sojourn_p99_ns",
                "rate_per_s",
            ],
        },
        Case {
            program: "kv",
            words: &["64K", "50", "300", "4", "spin", "20000"],
            prints: &["operations 3600", "rate_per_s 20000", "waits 0"],
        },
        Case {
            program: "kv",
            words: &["1M", "10", "300", "4", "clock"],
            prints: &["operations 3600", "worker_cpu_s"],
        },
        Case {
            program: "join",
            words: &["1024", "4096", "3", "2"],
            prints: &["matches 4096", "checksum 6289408", "probe_ns_per_row"],
        },
        Case {
            program: "server",
            words: &["both", "64K", "8", "2000", "100"],
            prints: &[
                "requests 200",
                "replies 200",
                "wrong 0",
                "service_p95_ns",
                "latency_p99_ns",
            ],
        },
        Case {
            program: "other",
            words: &["5000"],
            prints: &["rounds 5000", "ns_per_round", "batch_p50_ns"],
        },
        Case {
            program: "interleaved",
            words: &["64K", "6400", "shared", "4k", "3"],
            prints: &[
                "alone_ns",
                "hop_ns_1",
                "hop_ns_16",
                "alone_l1_ns",
                "switch_ns_16",
            ],
        },
        Case {
            program: "interleaved",
            words: &["4K", "1000", "own", "4k", "2", "64", "any"],
            prints: &["hop_ns_64", "switch_ns_64"],
        },
        Case {
            program: "scan",
            words: &["130"],
            prints: &["work 130"],
        },
        Case {
            program: "schase",
            words: &["64K", "1000", "4k"],
            prints: &["work 1024"],
        },
        Case {
            program: "graph",
            words: &["1024", "2"],
            prints: &["work 4096"],
        },
        Case {
            program: "graph",
            words: &["64", "3"],
            prints: &["work 384"],
        },
        Case {
            program: "compute",
            words: &["3"],
            prints: &["work 3"],
        },
    ];

    /// Arguments that a program must refuse: not a number, out of range, or more than it has
    /// parameters.
    const REFUSED: [(&str, &[&str]); 16] = [
        ("chase", &["x"]),
        ("chase", &["8", "3M"]),
        ("chase", &["1", "16M", "own", "1", "4k", "any", "0", "more"]),
        ("kv", &["1X"]),
        ("kv", &["1M", "50", "10", "1", "sleep"]),
        ("join", &["1000"]),
        ("join", &["1024", "1024"]),
        ("server", &["x"]),
        ("server", &["drive"]),
        ("other", &["-1"]),
        ("interleaved", &["99999999999999999999"]),
        ("alone", &["1"]),
        ("scan", &["1", "2"]),
        ("schase", &["64"]),
        ("graph", &["1000"]),
        ("compute", &["1.5"]),
    ];

    fn output(command: &mut Command) -> Output {
        command.output().expect("what was built can be started")
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("the programs write UTF-8")
    }

    /// Checks that a run printed `prints`, and that every value is a finite number.
    #[track_caller]
    fn check(command: &mut Command, prints: &[&str]) {
        let output = output(command);
        let told = format!("{command:?}: {output:?}");
        assert!(output.status.success(), "{told}");
        assert!(output.stderr.is_empty(), "{told}");
        let lines: Vec<&str> = text(&output.stdout).lines().collect();
        for line in &lines {
            let value = line
                .split_once(' ')
                .and_then(|(_, value)| value.parse::<f64>().ok());
            assert!(value.is_some_and(f64::is_finite), "{line}: {told}");
        }
        for wanted in prints {
            let has = lines.iter().any(|line| {
                line == wanted
                    || line
                        .split_once(' ')
                        .is_some_and(|(name, _)| name == *wanted)
            });
            assert!(has, "no {wanted}: {told}");
        }
    }

    /// Checks that a run ends with one line of complaint and exit code 2.
    #[track_caller]
    fn check_refused(command: &mut Command) {
        let output = output(command);
        let told = format!("{command:?}: {output:?}");
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(output.stdout.is_empty(), "{told}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{told}");
    }

    /// Checks that each program that counts takes the next line of the file and counts its work
    /// there.
    fn check_counts(built: &Programs, directory: &Path) {
        let counts = directory.join("counts");
        std::fs::write(&counts, [0; 4096]).expect("there is room");
        let cases: [(&str, &[&str], u64); 5] = [
            ("chase", &["1", "64K", "own", "5000"], 5000),
            ("scan", &["130"], 130),
            ("schase", &["64K", "1000"], 1024),
            ("graph", &["1024", "2"], 4096),
            ("compute", &["3"], 3),
        ];
        for (name, words, _) in cases {
            let mut command = program(&built.programs[name]);
            check(command.args(words).env("HARVEST_PROGRESS", &counts), &[]);
        }
        let bytes = std::fs::read(&counts).expect("it was written");
        let lines = bytes.chunks_exact(64);
        let found: Vec<u64> = lines
            .map(|line| u64::from_ne_bytes(*line.first_chunk().expect("a line is longer")))
            .collect();
        let told: Vec<u64> = cases.iter().map(|(_, _, units)| *units).collect();
        assert_eq!((found[0], &found[1..6]), (5, &*told));
        // A program that cannot count in the file does not begin.
        let mut command = program(&built.programs["scan"]);
        command.args(["1"]).env("HARVEST_PROGRESS", directory);
        assert_eq!(output(&mut command).status.code(), Some(1), "{command:?}");
    }

    /// A server and its client in two processes that were started apart.
    fn check_apart(server: &Path) {
        let mut serving = program(server)
            .args(["serve", "64K", "8"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("what was built can be started");
        let mut printed = BufReader::new(serving.stdout.take().expect("it is piped"));
        let mut line = String::new();
        printed.read_line(&mut line).expect("it can be read");
        let port = line
            .trim()
            .strip_prefix("port ")
            .expect("the port comes first");
        let words = ["drive", port, "64K", "8", "2000", "100"];
        check(program(server).args(words), &["replies 200", "wrong 0"]);
        // It has served its only client, and ends.
        let mut rest = String::new();
        printed.read_to_string(&mut rest).expect("it can be read");
        assert!(rest.contains("requests 200\n"), "{rest}");
        assert!(serving.wait().expect("it ends").success());
    }

    #[test]
    fn programs_to_harvest_with_find_what_they_must_and_refuse_other_words() {
        for compiler in ["gcc", "g++", "rustc"] {
            if !is_there(compiler) {
                skipped(format_args!("no {compiler}"));
                return;
            }
        }
        let directory = tempfile::tempdir().expect("there is room");
        let built = build(directory.path()).unwrap_or_else(|error| panic!("{error:#}"));
        for case in CASES {
            let mut command = program(&built.programs[case.program]);
            check(command.args(case.words), case.prints);
            if let Some(object) = built.objects.get(case.program) {
                let mut command = program(&built.programs["alone"]);
                command.args(["0", "any"]).arg(object).args(case.words);
                check(&mut command, case.prints);
                check(&mut command, &["alone_work", "alone_work_per_cpu_s"]);
            }
        }
        check_apart(&built.programs["server"]);
        for (name, words) in REFUSED {
            check_refused(program(&built.programs[name]).args(words));
            if let Some(object) = built.objects.get(name) {
                // `alone` calls the object's main and returns its exit code.
                let mut command = program(&built.programs["alone"]);
                command.args(["0", "any"]).arg(object).args(words);
                assert_eq!(output(&mut command).status.code(), Some(2), "{command:?}");
            }
        }
        check_counts(&built, directory.path());
        // Without an amount they work for ever: `alone` ends after 20 ms while they still work.
        for (name, object) in &built.objects {
            let words: &[&str] = match *name {
                "graph" => &["1024"],
                "schase" => &["64K"],
                _ => &[],
            };
            let mut command = program(&built.programs["alone"]);
            command.args(["20", "any"]).arg(object).args(words);
            check(&mut command, &["alone_work"]);
        }
    }
}
