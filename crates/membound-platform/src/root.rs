//! The directory under which sysfs, procfs and device files are read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Error;

/// Where `/proc`, `/sys` and `/dev` are: the machine itself, or a tree made for a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The machine itself: the root directory `/`.
    #[must_use]
    pub fn system() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A tree with its own `proc`, `sys` and `dev`.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// Whether this is the machine itself, so that system calls agree with the files.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// The full path of `relative`, which has no leading slash.
    #[must_use]
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.0.join(relative)
    }

    /// The whole file as text; bytes that are not UTF-8 become replacement characters.
    ///
    /// # Errors
    /// [`Error::Read`] with the full path.
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, Error> {
        let path = self.path(relative);
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// The file without surrounding white space, or `None` where it is absent, unreadable
    /// or empty. For attributes whose absence needs no reason.
    #[must_use]
    pub fn attribute(&self, relative: impl AsRef<Path>) -> Option<String> {
        let text = self.read(relative).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A number from a file that holds nothing else.
    #[must_use]
    pub fn number<T: FromStr>(&self, relative: impl AsRef<Path>) -> Option<T> {
        self.attribute(relative)?.parse().ok()
    }

    /// The names in a directory, sorted; empty where it cannot be read.
    #[must_use]
    pub fn names(&self, relative: impl AsRef<Path>) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(relative))
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The numbers N of all entries named `prefixN`, in ascending order.
    #[must_use]
    pub fn numbered(&self, relative: impl AsRef<Path>, prefix: &str) -> Vec<u32> {
        let mut numbers: Vec<u32> = self
            .names(relative)
            .iter()
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Whether the file or directory is there.
    #[must_use]
    pub fn exists(&self, relative: impl AsRef<Path>) -> bool {
        self.path(relative).exists()
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The error of `readlink`.
    pub fn link(&self, relative: impl AsRef<Path>) -> io::Result<PathBuf> {
        fs::read_link(self.path(relative))
    }
}
