//! Raw results under `bench/results/`: written with machine, date and commit, read again for pages.
//!
//! A result names the commit of its code, so only results of a clean commit are kept. That is
//! checked before anything is measured, so that hours of measuring do not end in a refusal.

use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use membound_types::{MachineInfo, MachineProfile};
use serde_json::{Value, json};

use crate::run::{program, root, say, stdout_of};

/// Paths that keeping a result changes itself: the results, and the page that is written from them.
const WRITTEN: [&str; 2] = ["bench/results", "docs/field.md"];

/// Suffix of a result's file name.
const ENDING: &str = ".json.gz";

/// Result of a bench.
pub(crate) struct Kept {
    /// The bench's name.
    pub(crate) bench: &'static str,
    /// The machine, from the first document of membound.
    pub(crate) machine: MachineInfo,
    /// The rows of the table.
    pub(crate) summary: Value,
    /// Everything that the rows were computed from.
    pub(crate) raw: Value,
}

impl Kept {
    /// Result of runs that each measured everything: one profile per run.
    ///
    /// # Errors
    /// When there is no profile.
    pub(crate) fn of_profiles(
        bench: &'static str,
        summary: Vec<Value>,
        raw: &[MachineProfile],
    ) -> Result<Self> {
        Ok(Self {
            bench,
            machine: raw.first().context("no run was asked for")?.machine.clone(),
            summary: summary.into(),
            raw: json!(raw),
        })
    }
}

/// Whether results are kept, and for which commit.
pub(crate) struct Store {
    commit: Option<String>,
}

impl Store {
    /// Prepares to keep results of the current commit; with `dry`, to keep none.
    ///
    /// # Errors
    /// Without `dry`, when the checkout differs from its commit.
    pub(crate) fn open(dry: bool) -> Result<Self> {
        let commit = if dry {
            None
        } else {
            Some(clean_commit(root())?)
        };
        Ok(Self { commit })
    }

    /// Writes `bench/results/DATE-CPU-BENCH.json.gz` and prints its path.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn keep(&self, kept: &Kept) -> Result<()> {
        let Some(commit) = &self.commit else {
            say("raw results: not kept (--dry)");
            return Ok(());
        };
        let directory = root().join("bench/results");
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let path = directory.join(format!(
            "{}-{}-{}{ENDING}",
            slug(&kept.machine.date),
            slug(&kept.machine.cpu.model_name),
            kept.bench
        ));
        let mut machine = kept.machine.clone();
        // The host's name is not kept.
        machine.host = String::new();
        let text = json!({
            "bench": kept.bench,
            "commit": commit,
            "machine": machine,
            "summary": kept.summary,
            "raw": kept.raw,
        })
        .to_string();
        let home = std::env::var("HOME").unwrap_or_default();
        let text = without_paths(&text, &root().to_string_lossy(), &home);
        write(&path, &(text + "\n")).with_context(|| format!("cannot write {}", path.display()))?;
        let listed = list(&directory, &path, kept, commit);
        listed.with_context(|| format!("cannot list {}", path.display()))?;
        say(format_args!("raw results: {}", path.display()));
        Ok(())
    }
}

/// Adds a row to the list of results in `directory`. A description in words is added by hand.
fn list(directory: &Path, path: &Path, kept: &Kept, commit: &str) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (date, time) = kept.machine.date.split_at_checked(10).unwrap_or_default();
    let minute = time.get(1..6).unwrap_or_default();
    let rows = kept
        .summary
        .as_array()
        .or_else(|| kept.summary["rows"].as_array());
    let rows = rows.map_or(0, Vec::len);
    let (bench, machine) = (kept.bench, &kept.machine.cpu.model_name);
    let mut list = std::fs::OpenOptions::new()
        .append(true)
        .open(directory.join("README.md"))?;
    writeln!(
        list,
        "| [{date} {minute} {bench}]({name}) | {commit} | {machine} | {rows} rows |"
    )
}

/// Whether the file at `path` is a result of `bench`.
pub(crate) fn is_of(path: &Path, bench: &str) -> bool {
    path.to_string_lossy()
        .ends_with(&format!("-{bench}{ENDING}"))
}

/// Every result of `bench` in `directory`, the oldest first, each with its file's name.
///
/// # Errors
/// When a file cannot be read, or is another document.
pub(crate) fn all_of<T: serde::de::DeserializeOwned>(
    directory: &Path,
    bench: &str,
) -> Result<Vec<(String, T)>> {
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .flatten()
        .map(|file| file.path())
        .filter(|path| is_of(path, bench))
        .collect();
    paths.sort();
    let result = |path: std::path::PathBuf| {
        let text = read(&path)?;
        let kept = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok((name.into_owned(), kept))
    };
    paths.into_iter().map(result).collect()
}

/// The document in the file at `path`.
///
/// # Errors
/// When it cannot be read, or is not compressed text.
pub(crate) fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| GzDecoder::new(file).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut encoder = GzEncoder::new(std::fs::File::create(path)?, Compression::best());
    encoder.write_all(text.as_bytes())?;
    encoder.finish().map(drop)
}

/// The commit of the checkout at `root`; an error if anything but results has changed.
fn clean_commit(root: &Path) -> Result<String> {
    let mut status = program("git");
    status.current_dir(root).args(["status", "--porcelain"]);
    status.args(["--", "."]);
    status.args(WRITTEN.map(|path| format!(":(exclude){path}")));
    let changed = stdout_of(&mut status)?;
    if let Some(first) = changed.lines().next() {
        let all = changed.lines().count();
        bail!(
            "results are kept of clean commits only, and {all} files differ ({}): commit them, or use --dry",
            first.trim()
        );
    }
    let commit =
        stdout_of(
            program("git")
                .current_dir(root)
                .args(["rev-parse", "--short", "HEAD"]),
        )?;
    Ok(commit.trim().to_owned())
}

/// `text` with paths relative to the checkout, and to the home directory as `~`.
fn without_paths(text: &str, checkout: &str, home: &str) -> String {
    let text = text.replace(&format!("{checkout}/"), "");
    match home {
        "" | "/" => text,
        home => text.replace(&format!("{home}/"), "~/"),
    }
}

/// `text` as part of a file name: lower-case letters and digits, single hyphens.
fn slug(text: &str) -> String {
    text.split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect::<Vec<_>>()
        .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::succeed;

    fn git(root: &Path, words: &[&str]) {
        let mut git = program("git");
        git.args(["-c", "user.name=x", "-c", "user.email=x@localhost"]);
        succeed(git.args(words).current_dir(root)).unwrap();
    }

    #[test]
    fn a_checkout_that_differs_from_its_commit_is_refused_and_named() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        std::fs::write(root.join("code.rs"), "1").unwrap();
        git(root, &["init", "--quiet"]);
        git(root, &["add", "."]);
        git(root, &["commit", "--quiet", "--message=first"]);
        let commit = clean_commit(root).unwrap();
        assert!(commit.len() >= 7, "{commit}");

        // Files that an earlier run kept do not count as changes.
        std::fs::create_dir_all(root.join("bench/results")).unwrap();
        std::fs::write(root.join("bench/results/x.json.gz"), "").unwrap();
        assert_eq!(clean_commit(root).unwrap(), commit);

        std::fs::write(root.join("code.rs"), "2").unwrap();
        let refused = clean_commit(root).unwrap_err().to_string();
        assert!(refused.contains("1 files differ (M code.rs)"), "{refused}");
        git(root, &["checkout", "--quiet", "code.rs"]);
        std::fs::write(root.join("new.rs"), "").unwrap();
        let refused = clean_commit(root).unwrap_err().to_string();
        assert!(refused.contains("?? new.rs"), "{refused}");
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("2026-11-20-x-field.json.gz");
        write(&path, "{\"rows\": []}\n").unwrap();
        assert_eq!(read(&path).unwrap(), "{\"rows\": []}\n");
        assert!(is_of(&path, "field"));
        assert!(!is_of(&path, "latency"));
    }

    #[test]
    fn every_kept_result_is_listed_and_of_a_clean_commit() {
        let directory = root().join("bench/results");
        let list = std::fs::read_to_string(directory.join("README.md")).unwrap();
        for file in std::fs::read_dir(&directory).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name == "README.md" {
                continue;
            }
            assert!(list.contains(&format!("({name})")), "{name} is not listed");
            let kept: Value = serde_json::from_str(&read(&path).unwrap()).unwrap();
            let commit = kept["commit"].as_str().unwrap_or("-dirty");
            assert!(!commit.contains("dirty"), "{name}");
        }
    }

    #[test]
    fn kept_results_name_no_directory_of_the_machine() {
        let text = "a /src/checkout/x/y, b /home/me/.cache/z, c ./w";
        let kept = without_paths(text, "/src/checkout", "/home/me");
        assert_eq!(kept, "a x/y, b ~/.cache/z, c ./w");
        assert_eq!(without_paths("/a", "/src", "/"), "/a");
    }

    #[test]
    fn names_of_results_are_plain() {
        assert_eq!(slug("AMD EPYC 9B45 (Turin)"), "amd-epyc-9b45-turin");
        assert_eq!(slug("2026-01-02T03:04:05Z"), "2026-01-02t03-04-05z");
    }
}
