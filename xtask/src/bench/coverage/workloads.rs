//! Programs whose executed loads are counted, and how they run under callgrind.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::callgrind::{self, Trace};
use crate::run::{note, on_path, program, root, shown, succeed};

/// One of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Workload {
    /// Python's core types, json, re and sqlite3.
    Python,
    /// C++ streams, containers, regular expressions and exceptions.
    Streams,
    /// The sqlite3 shell on a script.
    Sqlite,
    /// A small Rust program in release.
    Rust,
    /// `membound model fit`, as a larger one.
    Membound,
}

impl Workload {
    pub(super) const ALL: [Self; 5] = [
        Self::Python,
        Self::Streams,
        Self::Sqlite,
        Self::Rust,
        Self::Membound,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Streams => "streams",
            Self::Sqlite => "sqlite",
            Self::Rust => "rust",
            Self::Membound => "membound",
        }
    }

    /// The command's words and the file for its stdin. Builds the program into `scratch` if
    /// necessary.
    fn prepared(self, scratch: &Path, membound: &Path) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
        let source = |name: &str| root().join("bench/coverage").join(name);
        Ok(match self {
            Self::Python => (vec![python()?, source("core.py")], None),
            Self::Streams => {
                let built = scratch.join("streams");
                let mut compiler = program("g++");
                compiler.args(["-O2", "-pthread", "-o"]).arg(&built);
                succeed(compiler.arg(source("streams.cpp")))?;
                (vec![built], None)
            }
            Self::Sqlite => {
                let shell = on_path("sqlite3").context("no sqlite3 on PATH")?;
                (
                    vec![shell, "-batch".into(), ":memory:".into()],
                    Some(source("work.sql")),
                )
            }
            Self::Rust => {
                let built = rust_program(scratch);
                let mut compiler = program("rustc");
                compiler.args(["-O", "--edition=2024", "-o"]).arg(&built);
                succeed(compiler.arg(source("work.rs")))?;
                (vec![built], None)
            }
            Self::Membound => {
                let table = scratch.join("latency.csv");
                std::fs::write(&table, curve())
                    .with_context(|| format!("cannot write {}", table.display()))?;
                (
                    vec![membound.into(), "model".into(), "fit".into(), table],
                    None,
                )
            }
        })
    }

    /// Runs it under callgrind and adds what it executed to `trace`.
    pub(super) fn run(self, scratch: &Path, membound: &Path, trace: &mut Trace) -> Result<()> {
        let (words, stdin) = self.prepared(scratch, membound)?;
        let out = scratch.join(format!("{}.callgrind", self.name()));
        let mut command: Command = program("valgrind");
        command
            .args(["--tool=callgrind", "--quiet", "--dump-instr=yes"])
            .args(["--collect-jumps=yes", "--skip-plt=no"])
            .arg(format!("--callgrind-out-file={}", out.display()))
            .args(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(path) = stdin {
            let file = File::open(&path);
            command.stdin(file.with_context(|| format!("cannot open {}", path.display()))?);
        }
        note(format_args!("{}: {}", self.name(), shown(&command)));
        let output = command.output().context("cannot start valgrind")?;
        if !output.status.success() {
            bail!(
                "`{}` failed under valgrind: {}: {}",
                self.name(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let file = File::open(&out).with_context(|| format!("no {}", out.display()))?;
        callgrind::read(BufReader::new(file), trace)
    }
}

/// Path at which the small Rust program is built.
pub(super) fn rust_program(scratch: &Path) -> PathBuf {
    scratch.join("work")
}

/// The system's Python rather than one of a version manager, whose entry on `PATH` is a script.
fn python() -> Result<PathBuf> {
    let system = Path::new("/usr/bin/python3");
    if system.is_file() {
        return Ok(system.to_owned());
    }
    on_path("python3").context("no python3 on PATH")
}

/// A latency curve of four levels with a little noise, for a fit.
fn curve() -> String {
    // Sizes of the levels as powers of two, and their latencies in nanoseconds; a larger buffer has
    // that much of its lines in each level.
    let levels = [(15, 1.2), (20, 3.5), (24, 14.0), (62, 110.0)];
    let mut table = String::from("size_bytes,ns\n");
    for step in 0..64_i32 {
        let bytes = (f64::from(step + 48) / 4.0).exp2() / 64.0;
        let bytes = bytes.floor() * 64.0;
        let mut held = 0.0;
        let mut ns = 0.0;
        for (power, level_ns) in levels {
            let within = (f64::from(power).exp2() / bytes).min(1.0);
            ns += level_ns * (within - held);
            held = within;
        }
        ns *= 1.0 + f64::from(step % 3 - 1) / 100.0;
        table += &format!("{bytes},{ns:.4}\n");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_climbs_from_the_first_level_to_the_last() {
        let curve = curve();
        let rows: Vec<&str> = curve.lines().collect();
        assert_eq!(rows.len(), 65);
        assert_eq!(rows[1], "4096,1.1880");
        let last: f64 = rows[64].split_once(',').unwrap().1.parse().unwrap();
        assert!((90.0..110.0).contains(&last), "{last}");
    }

    #[test]
    fn every_source_is_there() {
        for name in ["core.py", "streams.cpp", "work.sql", "work.rs"] {
            assert!(root().join("bench/coverage").join(name).is_file(), "{name}");
        }
    }
}
