//! Trees of sysfs and procfs files for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::Root;

/// A directory with files in it that goes away with the value.
pub(crate) struct Tree(tempfile::TempDir);

impl Tree {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("the directory for temporary files is writable"))
    }

    /// Adds a file, with its directories.
    pub(crate) fn file(self, relative: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.0.path().join(relative);
        make_parent(&path);
        fs::write(path, text).expect("a new file can be written");
        self
    }

    /// Adds a symbolic link, dangling or not.
    pub(crate) fn link(self, relative: &str, target: &str) -> Self {
        let path = self.0.path().join(relative);
        make_parent(&path);
        symlink(target, path).expect("a new link can be made");
        self
    }

    /// Adds an empty directory.
    pub(crate) fn dir(self, relative: &str) -> Self {
        fs::create_dir_all(self.0.path().join(relative)).expect("a new directory can be made");
        self
    }

    pub(crate) fn root(&self) -> Root {
        Root::at(self.0.path())
    }
}

fn make_parent(path: &Path) {
    let parent = path
        .parent()
        .expect("a relative path has a parent below the root");
    fs::create_dir_all(parent).expect("a new directory can be made");
}
