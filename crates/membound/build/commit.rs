//! The commit of a source tree, asked from git.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commit that is checked out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Its abbreviated hash.
    pub(crate) hash: String,
    /// The day on which it was committed, YYYY-MM-DD.
    pub(crate) date: String,
    /// Whether files that git tracks differ from it.
    pub(crate) is_dirty: bool,
}

impl Commit {
    /// The commit of the repository that tracks `directory`; `None` if there is no git or no repository, or
    /// if the directory is only unpacked inside one.
    pub(crate) fn of(directory: &Path) -> Option<Self> {
        if git(directory, &["ls-files", "."])?.is_empty() {
            return None;
        }
        let output = git(directory, &["log", "-1", "--format=%h %cs", "--abbrev=9"])?;
        let (hash, date) = output.split_once(' ')?;
        let changed = git(
            directory,
            &["status", "--porcelain", "--untracked-files=no"],
        )?;
        Some(Self {
            hash: hash.to_owned(),
            date: date.to_owned(),
            is_dirty: !changed.is_empty(),
        })
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dirty = if self.is_dirty { "-dirty" } else { "" };
        write!(f, "{}{dirty} of {}", self.hash, self.date)
    }
}

/// Files of git that change when another commit is checked out: `HEAD`, the branch that it names, and the log
/// of `HEAD`, which also changes for a packed branch, which has no file of its own. Git is asked for their
/// paths, since a worktree keeps them elsewhere than a clone.
pub(crate) fn watched(directory: &Path) -> Vec<PathBuf> {
    let branch = git(directory, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = [
        Some("HEAD".to_owned()),
        branch,
        Some("logs/HEAD".to_owned()),
    ];
    let paths = names.into_iter().flatten().filter_map(|name| {
        let path = git(directory, &["rev-parse", "--git-path", &name])?;
        Some(directory.join(path))
    });
    paths.filter(|path| path.exists()).collect()
}

/// The trimmed stdout of git; `None` if git fails.
fn git(directory: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Without this option `git status` would rewrite the index.
    command.arg("--no-optional-locks").args(words);
    let output = command.current_dir(directory).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
