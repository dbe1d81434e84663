//! Fixtures, built once from their sources and built again when a source changes.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use crate::skipped;

/// Compiler that builds a fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// gcc.
    Gcc,
    /// g++.
    Gxx,
    /// clang.
    Clang,
    /// gcc with musl's headers and library.
    Musl,
    /// The rustc that builds membound.
    Rustc,
    /// go build.
    Go,
}

impl Compiler {
    fn name(self) -> &'static str {
        match self {
            Self::Gcc => "gcc",
            Self::Gxx => "g++",
            Self::Clang => "clang",
            Self::Musl => "musl-gcc",
            Self::Rustc => "rustc",
            Self::Go => "go",
        }
    }

    /// Arguments before the source, as this suite calls the compiler.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Gcc | Self::Gxx | Self::Clang | Self::Musl => &["-g", "-pthread"],
            Self::Rustc => &["--edition", "2024", "-g"],
            Self::Go => &["build"],
        }
    }
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a file `name` is in a directory of `PATH`.
#[must_use]
pub fn is_there(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    })
}

/// The fixtures of one integration binary.
#[derive(Debug)]
pub struct Fixtures {
    sources: PathBuf,
    directory: PathBuf,
    newest_source: SystemTime,
    built: Mutex<HashMap<String, Arc<OnceLock<PathBuf>>>>,
}

impl Fixtures {
    /// Fixtures whose sources are in `sources`, to be built in `directory`.
    ///
    /// # Panics
    /// When there are no sources, or the directory cannot be created.
    #[must_use]
    pub fn new(sources: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Self {
        let (sources, directory) = (sources.into(), directory.into());
        std::fs::create_dir_all(&directory).expect("the target directory can be written");
        let newest_source = std::fs::read_dir(&sources)
            .expect("the fixtures are there")
            .filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok())
            .max()
            .expect("there are fixtures");
        Self {
            sources,
            directory,
            newest_source,
            built: Mutex::default(),
        }
    }

    /// Directory in which programs are built and kept.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Directory of the sources.
    #[must_use]
    pub fn sources(&self) -> &Path {
        &self.sources
    }

    /// Builds `source` with the arguments `words`, separated by spaces, into a file of its own.
    /// Returns `None`, and reports a skip, when this machine has no such compiler.
    ///
    /// # Panics
    /// With the compiler's message when it refuses the source.
    pub fn build(&self, compiler: Compiler, source: &str, words: &str) -> Option<PathBuf> {
        if !is_there(compiler.name()) {
            skipped(format_args!("no {compiler}"));
            return None;
        }
        let name = file_name(compiler, source, words);
        let built = Arc::clone(
            self.built
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(name.clone())
                .or_default(),
        );
        let path = built.get_or_init(|| self.make(compiler, source, words, &name));
        Some(path.clone())
    }

    fn make(&self, compiler: Compiler, source: &str, words: &str, name: &str) -> PathBuf {
        let path = self.directory.join(name);
        let fresh = path
            .metadata()
            .and_then(|data| data.modified())
            .is_ok_and(|made| made > self.newest_source);
        if fresh {
            return path;
        }
        // Built under another name first: a test binary that runs twice at once must not find half
        // a program.
        let partial = self
            .directory
            .join(format!("{name}.{}", std::process::id()));
        let mut command = Command::new(compiler.name());
        command.current_dir(&self.directory).args(compiler.words());
        command.arg("-o").arg(&partial);
        let (before, after): (Vec<_>, Vec<_>) = words
            .split_whitespace()
            .partition(|word| !word.starts_with("-l"));
        command
            .args(before)
            .arg(self.sources.join(source))
            .args(after);
        let output = command.output().expect("the compiler starts");
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::rename(&partial, &path).expect("a file can be renamed where it was made");
        path
    }
}

/// A file name that differs between builds. It must not need quoting in a shell.
fn file_name(compiler: Compiler, source: &str, words: &str) -> String {
    let stem = source.split('.').next().expect("split gives one part");
    let ending = if words.contains("-shared") { ".so" } else { "" };
    let told: String = format!("{stem}-{compiler}{}", words.replace(' ', ""))
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-+_".contains(*c))
        .collect();
    format!("{told}{ending}")
}
