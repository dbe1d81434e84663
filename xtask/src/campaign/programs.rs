//! The programs of the campaign, and how each is prepared.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::generate::{c_source, words};
use super::outcome::Comparison;
use super::task::{Scratch, Task};
use crate::run::{on_path, root, stdout_of, succeed};

/// Result of a program's preparation: its tasks, or what the machine lacks.
type Prepared = Result<std::result::Result<Vec<Task>, String>>;

/// A program of the campaign.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) prepare: fn(&Scratch) -> Prepared,
}

pub(crate) const PROGRAMS: [Program; 9] = [
    Program {
        name: "python",
        what: "python3's own tests: core types, json, re, sqlite3, threading, ctypes, …",
        prepare: python,
    },
    Program {
        name: "sqlite3",
        what: "the sqlite3 shell on a scripted workload, in memory and on disk",
        prepare: sqlite,
    },
    Program {
        name: "exceptions",
        what: "a C++ program full of exceptions",
        prepare: exceptions,
    },
    Program {
        name: "rayon",
        what: "a Rust program with a thread pool and panics",
        prepare: rayon,
    },
    Program {
        name: "gcc",
        what: "gcc -O2 on 50 000 lines of C: cc1, as, ld; identical objects",
        prepare: gcc,
    },
    Program {
        name: "musl",
        what: "programs with musl",
        prepare: musl,
    },
    Program {
        name: "git",
        what: "git on a repository made for it",
        prepare: git,
    },
    Program {
        name: "perl",
        what: "a Perl script of hashes, sorting and regular expressions",
        prepare: perl,
    },
    Program {
        name: "tools",
        what: "tar, gzip, xz, openssl, sort, awk, sed and grep on each other's output",
        prepare: tools,
    },
];

/// Modules of python3's own tests.
const PYTHON_TESTS: &str = "\
    test_int test_long test_float test_complex test_bool test_list test_tuple test_dict \
    test_set test_unicode test_bytes test_memoryview test_array test_struct test_math \
    test_cmath test_decimal test_exceptions test_generators test_coroutines test_descr test_gc \
    test_json test_re test_sqlite3 test_threading test_thread test_ctypes test_pickle \
    test_zlib test_hashlib test_signal test_subprocess test_posix test_collections \
    test_itertools";

fn python(_: &Scratch) -> Prepared {
    // pyenv's python3 is a script, so the interpreter is asked for its path.
    let mut candidates = Vec::new();
    for name in ["python3", "/usr/bin/python3"] {
        let mut ask = Command::new(name);
        ask.args(["-c", "import sys, test.test_int; print(sys.executable)"]);
        candidates.extend(stdout_of(&mut ask).ok());
    }
    let Some(python) = candidates.first().map(|path| PathBuf::from(path.trim())) else {
        return Ok(Err(
            "no python3 with its tests; Debian package: libpython3.11-testsuite".to_owned(),
        ));
    };
    let module = python
        .file_name()
        .context("a python is a file")?
        .to_string_lossy()
        .into_owned();
    let tasks = PYTHON_TESTS
        .split(' ')
        .map(|test| {
            Task::new(test, &python)
                .args(["-m", "test", "-v", test])
                .env("PYTHONHASHSEED", "0")
                .compares(Comparison::TestResults)
                .patches(&module)
        })
        .collect();
    Ok(Ok(tasks))
}

fn sqlite(scratch: &Scratch) -> Prepared {
    let Some(sqlite) = on_path("sqlite3") else {
        return Ok(Err("no sqlite3".to_owned()));
    };
    let script = scratch.write("workload.sql", include_str!("files/workload.sql"))?;
    let task = |name: &str, database: &str| {
        Task::new(name, &sqlite)
            .args(["-batch", database])
            .stdin(script.clone())
            .patches("libsqlite3")
    };
    Ok(Ok(vec![
        task("memory", ":memory:"),
        task("disk", "workload.db").makes("workload.db"),
    ]))
}

/// A source of the command's own tests.
fn fixture(name: &str) -> PathBuf {
    root()
        .join("crates/membound/tests/rewrite/fixtures")
        .join(name)
}

fn exceptions(scratch: &Scratch) -> Prepared {
    if on_path("g++").is_none() {
        return Ok(Err("no g++".to_owned()));
    }
    let mut library = Command::new("g++");
    library.current_dir(scratch.path());
    library.args(["-O2", "-fPIC", "-shared", "-o", "libthrower.so"]);
    succeed(library.arg(fixture("thrower.cpp")))?;
    let mut program = Command::new("g++");
    program.current_dir(scratch.path());
    program.args(["-O2", "-pthread", "-o", "exceptions"]);
    program.arg(fixture("exceptions.cpp"));
    succeed(program.args(["-L.", "-lthrower", "-Wl,-rpath,$ORIGIN"]))?;
    let cases = [
        "deep",
        "nested",
        "rethrow",
        "function-try",
        "constructors",
        "destructors",
        "vectors",
        "across",
        "threads",
        "streams",
        "expressions",
        "noexcept",
        "uncaught",
    ];
    let program = scratch.path().join("exceptions");
    let tasks = cases
        .iter()
        .map(|case| {
            Task::new(case, &program)
                .args([*case])
                .patches("exceptions")
                .patches("libstdc++")
        })
        .collect();
    Ok(Ok(tasks))
}

fn rayon(scratch: &Scratch) -> Prepared {
    scratch.write("rayon/Cargo.toml", include_str!("files/rayon.toml"))?;
    scratch.write("rayon/src/main.rs", include_str!("files/rayon.rs"))?;
    let mut build = crate::run::cargo(["build", "--release", "--quiet"]);
    build
        .current_dir(scratch.path().join("rayon"))
        .env("CARGO_TARGET_DIR", scratch.path().join("rayon/target"));
    if let Err(error) = succeed(&mut build) {
        return Ok(Err(format!("the program with rayon is not built: {error}")));
    }
    let program = scratch.path().join("rayon/target/release/parallel");
    Ok(Ok(["sums", "panics", "nested", "strings"]
        .iter()
        .map(|case| {
            Task::new(case, &program)
                .args([*case])
                .env("RAYON_NUM_THREADS", "4")
                .patches("parallel")
        })
        .collect()))
}

fn gcc(scratch: &Scratch) -> Prepared {
    let Some(gcc) = on_path("gcc") else {
        return Ok(Err("no gcc".to_owned()));
    };
    let (Some(assembler), Some(linker)) = (file_behind("as"), file_behind("ld")) else {
        return Ok(Err("no as or ld".to_owned()));
    };
    scratch.write("large.c", c_source(50_000))?;
    scratch.write("small.c", c_source(2_000))?;
    let compile = |name: &str, level: &str, source: &str| {
        Task::new(name, &gcc)
            .args([level, "-c", source, "-o", "compiled.o"])
            .makes("compiled.o")
            .patches("cc1")
            .patches(&assembler)
    };
    Ok(Ok(vec![
        compile("small", "-O2", "small.c"),
        compile("debug", "-g", "small.c"),
        Task::new("link", &gcc)
            .args(["-O1", "-pipe", "small.c", "-o", "linked"])
            .makes("linked")
            .patches("cc1")
            .patches(&linker),
        compile("large", "-O2", "large.c"),
    ]))
}

fn musl(scratch: &Scratch) -> Prepared {
    if on_path("musl-gcc").is_none() {
        return Ok(Err("no musl-gcc; Debian package: musl-tools".to_owned()));
    }
    let mut tasks = Vec::new();
    for (source, cases) in [
        ("plain", &[""][..]),
        ("signals", &[""]),
        (
            "control",
            &[
                "interpreters",
                "switches",
                "ipa-ra",
                "tail-calls",
                "recursion",
            ],
        ),
        (
            "threads",
            &["churn", "atomics", "conditions", "cancel-deferred"],
        ),
    ] {
        let program = scratch.path().join(source);
        let mut build = Command::new("musl-gcc");
        build
            .args(["-O2", "-pthread", "-mcx16", "-o"])
            .arg(&program);
        succeed(build.arg(fixture(&format!("{source}.c"))))?;
        for case in cases {
            let name = if case.is_empty() { source } else { case };
            tasks.push(
                Task::new(name, &program)
                    .args(case.split_whitespace())
                    .patches(source),
            );
        }
    }
    Ok(Ok(tasks))
}

/// The name of the file that runs as `tool`, which may be a link.
fn file_behind(tool: &str) -> Option<String> {
    let path = on_path(tool)?.canonicalize().ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// A shell script of this directory, whose tools must be there.
fn script(scratch: &Scratch, name: &str, text: &str, tools: &[&str]) -> Prepared {
    if let Some(missing) = tools.iter().find(|tool| on_path(tool).is_none()) {
        return Ok(Err(format!("no {missing}")));
    }
    let script = scratch.write(&format!("{name}.sh"), text)?;
    scratch.write("words", words(20_000))?;
    let mut task = Task::new(name, Path::new("/bin/sh")).args([script]);
    for tool in tools {
        task = task.patches(&file_behind(tool).context("it was found just now")?);
    }
    Ok(Ok(vec![task]))
}

fn git(scratch: &Scratch) -> Prepared {
    script(scratch, "git", include_str!("files/git.sh"), &["git"])
}

fn perl(scratch: &Scratch) -> Prepared {
    let Some(perl) = on_path("perl") else {
        return Ok(Err("no perl".to_owned()));
    };
    let script = scratch.write("script.pl", include_str!("files/script.pl"))?;
    let input = scratch.write("words", words(20_000))?;
    Ok(Ok(vec![
        Task::new("perl", perl)
            .args([script, input])
            .env("PERL_HASH_SEED", "0")
            .patches("perl"),
    ]))
}

fn tools(scratch: &Scratch) -> Prepared {
    script(
        scratch,
        "tools",
        include_str!("files/tools.sh"),
        &["tar", "gzip", "xz", "openssl", "sort", "awk", "sed", "grep"],
    )
}
