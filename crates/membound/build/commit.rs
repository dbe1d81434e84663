//! The commit of a source tree, as git tells it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commit that is checked out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Its hash, shortened.
    pub(crate) hash: String,
    /// The day on which it was made, YYYY-MM-DD.
    pub(crate) date: String,
    /// Files that git tracks differ from it.
    pub(crate) is_dirty: bool,
}

impl Commit {
    /// The commit of the repository that tracks `directory`; none where there is no git or no
    /// repository, or where the directory is merely unpacked inside one.
    pub(crate) fn of(directory: &Path) -> Option<Self> {
        if git(directory, &["ls-files", "."])?.is_empty() {
            return None;
        }
        let told = git(directory, &["log", "-1", "--format=%h %cs", "--abbrev=9"])?;
        let (hash, date) = told.split_once(' ')?;
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

/// Files of git that change when another commit is checked out: `HEAD`, the branch that it
/// names, and the log of `HEAD`, which tells of a branch that is in no file of its own. Git
/// finds them, since a worktree keeps them elsewhere than a clone.
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

/// What git writes to stdout, trimmed; none where it fails.
fn git(directory: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Without the option `status` would rewrite the index.
    command.arg("--no-optional-locks").args(words);
    let output = command.current_dir(directory).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
