//! The test binaries of the workspace: listing, building and running them.

use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::reader::Reader;
use super::report::{Failure, Report};
use super::start::undisturbed;
use super::times::Ends;
use crate::run::cargo;

/// The environment variable with proptest's seed. Without a seed it draws another every time, and
/// the same tree would pass today and fail tomorrow; looking for new cases is left to campaigns.
const SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20181109");

/// The suite that runs first: it measures the machine while no other test runs, and other suites use its profile.
const FIRST: &str = "membound/profile";

/// A program that runs tests and reports them as libtest does.
pub(super) struct Binary {
    /// Prefix of its tests' names: `PACKAGE/TARGET`; `PACKAGE` for a package's own unit tests;
    /// `doc` for all examples in documentation.
    pub(super) name: String,
    kind: Kind,
}

enum Kind {
    File {
        path: PathBuf,
        /// The directory of its package, in which cargo starts it.
        directory: PathBuf,
    },
    Documentation,
}

/// Cargo's message about something that it built.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test binaries of the workspace and returns them in the order in which they run.
///
/// # Errors
/// When one cannot be built; cargo has printed the reason.
pub(super) fn build() -> Result<Vec<Binary>> {
    // Not the examples: no test starts them, and clippy compiles them.
    let mut command = cargo("test --workspace --no-run --lib --bins --tests".split(' '));
    command.arg("--message-format=json-render-diagnostics");
    command.stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests cannot be built: {}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("cargo wrote other than UTF-8")?;
    let mut binaries = text
        .lines()
        .filter_map(|line| Binary::of(line).transpose())
        .collect::<Result<Vec<_>>>()?;
    binaries.sort_by(|one, other| one.place().cmp(&other.place()));
    Ok(binaries)
}

/// The examples in the documentation, which are built and run together.
pub(super) fn documentation() -> Binary {
    Binary {
        name: "doc".to_owned(),
        kind: Kind::Documentation,
    }
}

impl Binary {
    /// The test binary that this line of cargo's output describes, if it describes one.
    fn of(line: &str) -> Result<Option<Self>> {
        let message: Message = serde_json::from_str(line)
            .with_context(|| format!("cargo wrote what is no message: {line}"))?;
        let (Some(path), Some(manifest), Some(target), Some(Profile { test: true })) = (
            message.executable,
            message.manifest_path,
            message.target,
            message.profile,
        ) else {
            return Ok(None);
        };
        let directory = manifest.parent().unwrap_or(Path::new("/")).to_owned();
        let package = directory.file_name().unwrap_or_default().to_string_lossy();
        let name = match target.kind.iter().any(|kind| kind == "test") {
            true => format!("{package}/{}", target.name),
            false if target.name.replace('_', "-") == *package => package.into_owned(),
            false => format!("{package}/{}", target.name),
        };
        let is_artifact = message.reason == "compiler-artifact";
        Ok(is_artifact.then_some(Self {
            name,
            kind: Kind::File { path, directory },
        }))
    }

    /// Its place in the order in which the binaries run.
    fn place(&self) -> (bool, &str) {
        (self.name != FIRST, &self.name)
    }

    /// Runs its tests with `words` for libtest, and reads their output; `show` receives the lines
    /// to be shown.
    ///
    /// # Errors
    /// When it cannot be started or read.
    pub(super) fn run(&self, words: &[&str], show: &mut dyn FnMut(&str)) -> Result<Report> {
        let name = &self.name;
        let mut command = self.command();
        let mut child = command
            .arg("--show-output")
            .args(words)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the tests of {name}"))?;
        let stdout = child.stdout.take().expect("stdout was asked to be a pipe");
        let ends = Ends::new(threads(words));
        let (mut report, ends) = follow(stdout, name, ends, show)?;
        if matches!(self.kind, Kind::File { .. }) {
            report.times = ends.times(name);
        }
        let status = child.wait().context("cannot wait for tests")?;
        if !status.success() && report.failures.is_empty() {
            let what = format!("{name} ended with {status} and named no failed test");
            report.failures.push(Failure::without_name(what));
        }
        Ok(report)
    }

    fn command(&self) -> Command {
        let mut command = match &self.kind {
            Kind::File { path, directory } => {
                let mut command = undisturbed(path, directory);
                command.env("CARGO_MANIFEST_DIR", directory);
                command
            }
            Kind::Documentation => cargo(["test", "--quiet", "--workspace", "--doc", "--"]),
        };
        if std::env::var_os(SEED.0).is_none() {
            command.env(SEED.0, SEED.1);
        }
        command
    }
}

/// Number of tests that libtest runs in parallel when it is given `words`.
fn threads(words: &[&str]) -> usize {
    let asked = (words.iter()).find_map(|word| word.strip_prefix("--test-threads="));
    let set = std::env::var("RUST_TEST_THREADS").ok();
    let number = asked.map(str::to_owned).or(set);
    number
        .and_then(|number| number.parse().ok())
        .or_else(|| available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
}

/// Reads the output of a process of libtest, and when its tests ended.
fn follow(
    stdout: impl Read,
    name: &str,
    mut ends: Ends,
    show: &mut dyn FnMut(&str),
) -> Result<(Report, Ends)> {
    let began = Instant::now();
    let mut reader = Reader::new(name);
    let mut lines = BufReader::new(stdout);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if lines.read_until(b'\n', &mut bytes)? == 0 {
            return Ok((reader.end(), ends));
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        ends.take(line, began.elapsed());
        if reader.take(line) {
            show(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/some-crate/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}","crate_types":["bin"]}},"profile":{{"opt_level":"0","test":{test}}},"executable":"/t/{name}-1"}}"#
        )
    }

    fn name(line: &str) -> Option<String> {
        Binary::of(line).unwrap().map(|binary| binary.name)
    }

    #[test]
    fn binaries_are_named_by_package_and_target() {
        let named = [
            (message("test", "it", true), "some-crate/it"),
            (message("lib", "some_crate", true), "some-crate"),
            (message("bin", "other", true), "some-crate/other"),
        ];
        for (line, expected) in named {
            assert_eq!(name(&line).as_deref(), Some(expected), "{line}");
        }
        for line in [
            message("bin", "some-crate", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ] {
            assert_eq!(name(&line), None, "{line}");
        }
        assert!(Binary::of("not JSON").is_err());
    }
}
