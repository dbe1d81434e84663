//! Fixtures from their sources, built once and kept until a source changes.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// What turns a source into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Compiler {
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

    /// The words before the source: how it is called in this suite.
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

/// Directory of the sources.
fn sources() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/rewrite/fixtures"
    ))
}

/// Where programs are built and kept.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rewrite");
        std::fs::create_dir_all(&path).expect("the target directory can be written");
        path
    });
    &DIRECTORY
}

/// When the newest of the sources was written.
fn newest_source() -> SystemTime {
    static NEWEST: LazyLock<SystemTime> = LazyLock::new(|| {
        std::fs::read_dir(sources())
            .expect("the fixtures are there")
            .filter_map(|entry| entry.ok()?.metadata().ok()?.modified().ok())
            .max()
            .expect("there are fixtures")
    });
    *NEWEST
}

/// Whether `name` can be started.
pub(crate) fn is_there(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    })
}

/// Builds `source` with `words`, separated by spaces, into a file of its own. `None`, after
/// saying so, when there is no such compiler here.
pub(crate) fn build(compiler: Compiler, source: &str, words: &str) -> Option<PathBuf> {
    type Built = Arc<OnceLock<PathBuf>>;
    static BUILT: LazyLock<Mutex<HashMap<String, Built>>> = LazyLock::new(Mutex::default);
    if !is_there(compiler.name()) {
        membound_testkit::skipped(format_args!("no {compiler}"));
        return None;
    }
    let name = file_name(compiler, source, words);
    let built = Arc::clone(
        BUILT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(name.clone())
            .or_default(),
    );
    Some(
        built
            .get_or_init(|| make(compiler, source, words, &name))
            .clone(),
    )
}

/// A file name that tells builds apart. It must not need quoting in a shell.
fn file_name(compiler: Compiler, source: &str, words: &str) -> String {
    let stem = source.split('.').next().expect("split gives one part");
    let ending = if words.contains("-shared") { ".so" } else { "" };
    let told: String = format!("{stem}-{compiler}{}", words.replace(' ', ""))
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "-+_".contains(*c))
        .collect();
    format!("{told}{ending}")
}

fn make(compiler: Compiler, source: &str, words: &str, name: &str) -> PathBuf {
    let path = directory().join(name);
    let fresh = path
        .metadata()
        .and_then(|data| data.modified())
        .is_ok_and(|made| made > newest_source());
    if fresh {
        return path;
    }
    // Under another name first: a test binary that is run twice at once must not find
    // half a program.
    let partial = directory().join(format!("{name}.{}", std::process::id()));
    let mut command = Command::new(compiler.name());
    command.current_dir(directory()).args(compiler.words());
    command.arg("-o").arg(&partial);
    let (before, after): (Vec<_>, Vec<_>) = words
        .split_whitespace()
        .partition(|word| !word.starts_with("-l"));
    command.args(before).arg(sources().join(source)).args(after);
    let output = command.output().expect("the compiler starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&partial, &path).expect("a file can be renamed where it was made");
    path
}
