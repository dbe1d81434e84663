//! Paths of an entry's files, and its commands with the placeholders filled in.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::entry::{Entry, folder};
use crate::run::root;

/// First port of the servers; each entry of a run has its own.
const FIRST_PORT: u16 = 18_400;

/// Paths and port of an entry.
#[derive(Clone, Debug)]
pub(crate) struct EntryPaths {
    /// `target/field`, with the installed programs.
    pub(crate) target: PathBuf,
    /// The entry's own directory.
    pub(crate) work: PathBuf,
    port: u16,
}

impl EntryPaths {
    /// The place of the entry `name`, which has the number `index` in its run.
    pub(crate) fn of(name: &str, index: usize) -> Self {
        let target = root().join("target/field");
        Self {
            work: target.join("work").join(name),
            target,
            port: FIRST_PORT + u16::try_from(index).unwrap_or_default(),
        }
    }

    /// A place below `directory`, for tests.
    #[cfg(test)]
    pub(crate) fn below(directory: &Path) -> Self {
        Self {
            target: directory.to_owned(),
            work: directory.join("work"),
            port: FIRST_PORT,
        }
    }

    /// `text` with the placeholders filled in.
    pub(crate) fn filled(&self, text: &str) -> String {
        text.replace("{inputs}", &folder().join("inputs").to_string_lossy())
            .replace("{target}", &self.target.to_string_lossy())
            .replace("{work}", &self.work.to_string_lossy())
            .replace("{port}", &self.port.to_string())
    }

    /// The words of a command with the placeholders filled in.
    pub(crate) fn words(&self, words: &[String]) -> Vec<String> {
        words.iter().map(|word| self.filled(word)).collect()
    }

    /// A command in the entry's directory, with its output in the files `stdout` and
    /// `stderr` there.
    pub(crate) fn command(
        &self,
        words: &[String],
        environment: &BTreeMap<String, String>,
        stdout: &str,
        stderr: &str,
    ) -> Result<Command> {
        let (program, rest) = words.split_first().context("a command without words")?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .envs(
                environment
                    .iter()
                    .map(|(name, value)| (name, self.filled(value))),
            )
            .env("LC_ALL", "C")
            .current_dir(&self.work)
            .stdin(Stdio::null())
            .stdout(self.file(stdout)?)
            .stderr(self.file(stderr)?);
        Ok(command)
    }

    /// A shell script in the entry's directory.
    pub(crate) fn script(&self, script: &str, stdout: &str, stderr: &str) -> Result<Command> {
        let words = ["sh", "-c", &self.filled(script)].map(str::to_owned);
        self.command(&words, &BTreeMap::new(), stdout, stderr)
    }

    /// Text of a file in the entry's directory; empty if the file does not exist.
    pub(crate) fn text(&self, name: &str) -> String {
        let bytes = std::fs::read(self.work.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn file(&self, name: &str) -> Result<File> {
        let path = self.work.join(name);
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))
    }
}

/// Hash of everything from which an entry's inputs are made: its scripts, its sources and the
/// shared inputs that the scripts mention.
pub(crate) fn stamp(entry: &Entry) -> String {
    use sha2::{Digest as _, Sha256};
    let mut digest = Sha256::new();
    digest.update(format!("{:?}{:?}", entry.prepare, entry.obtain));
    let mut inputs: Vec<PathBuf> = std::fs::read_dir(folder().join("inputs"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect();
    inputs.sort();
    let scripts = entry.prepare.concat();
    for path in inputs {
        if mentions(&scripts, &path) {
            digest.update(std::fs::read(&path).unwrap_or_default());
        }
    }
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn mentions(scripts: &str, path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| scripts.contains(&*name.to_string_lossy()))
}
