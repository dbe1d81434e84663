//! The machine profile, the fixtures, and one profile of a program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use membound_testkit::{Compiler, Fixtures};
use membound_types::{MachineInfo, MachineProfile, Profile};
use tempfile::TempDir;

use crate::machine_profile::measured;

pub(crate) static FIXTURES: LazyLock<Fixtures> = LazyLock::new(|| {
    Fixtures::new(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/profile/fixtures"),
        concat!(env!("CARGO_TARGET_TMPDIR"), "/profile"),
    )
});

/// Builds a fixture with symbols and optimisation.
pub(crate) fn fixture(source: &str, words: &str) -> Option<PathBuf> {
    let compiler = match source.rsplit('.').next() {
        Some("cc") => Compiler::Gxx,
        Some("rs") => Compiler::Rustc,
        Some("go") => Compiler::Go,
        _ => Compiler::Gcc,
    };
    FIXTURES.build(compiler, source, words)
}

/// The line of `source` that holds `mark`, from 1.
pub(crate) fn line_of(source: &str, mark: &str) -> u32 {
    let text =
        std::fs::read_to_string(FIXTURES.sources().join(source)).expect("the fixture is there");
    let at = text.lines().position(|line| line.contains(mark));
    u32::try_from(at.expect("the mark is there") + 1).expect("fixtures are short")
}

/// An empty directory that is kept until the tests run again.
pub(crate) fn kept(name: &str) -> PathBuf {
    let path = FIXTURES.directory().join(name);
    drop(std::fs::remove_dir_all(&path));
    std::fs::create_dir_all(&path).expect("the directory is ours");
    path
}

/// A lock that a test holds while it measures.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command, with `home` for its files and caches.
pub(crate) fn membound(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    command
        .current_dir(home)
        .env("HOME", home)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_CACHE_HOME", FIXTURES.directory().join("cache"))
        .env_remove("LD_PRELOAD");
    command
}

/// A program that was profiled.
pub(crate) struct Profiled {
    pub(crate) output: Output,
    pub(crate) profile: Profile,
    pub(crate) run: PathBuf,
    pub(crate) home: PathBuf,
    /// Removes `home` when it is dropped, unless `home` is kept.
    _room: Option<TempDir>,
}

impl Profiled {
    /// `membound report` on the run with `words`.
    pub(crate) fn report<I>(&self, words: I) -> Output
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = membound(&self.home);
        command.arg("report").arg(&self.run).args(words);
        command.output().expect("the command starts")
    }

    /// Everything that a failed test's message should show.
    pub(crate) fn show(&self) -> String {
        format!(
            "{}\n--- program\n{}\n--- report\n{}",
            text(&self.output.stderr),
            text(&self.output.stdout),
            text(&self.report::<[&str; 0]>([]).stdout),
        )
    }
}

/// Bytes as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A machine profile without measurements, for tests that check no figures.
pub(crate) fn unmeasured() -> &'static Path {
    static UNMEASURED: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = FIXTURES.directory().join("unmeasured.json");
        let profile = MachineProfile::unmeasured(MachineInfo::default());
        let text = serde_json::to_string(&profile).expect("a profile can be written");
        std::fs::write(&path, text).expect("the directory is ours");
        path
    });
    &UNMEASURED
}

/// Profiles `program` with `options` and reads the report's document.
pub(crate) fn profile<I>(options: &[&str], program: &Path, arguments: I) -> Profiled
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    profile_on(&measured().0, options, program, arguments)
}

/// As [`profile`], with the machine profile from a file.
pub(crate) fn profile_on<I>(
    machine: &Path,
    options: &[&str],
    program: &Path,
    arguments: I,
) -> Profiled
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut profiled = profile_in(room.path(), machine, options, program, arguments);
    profiled._room = Some(room);
    profiled
}

/// As [`profile`], with the files in `home`, where they stay.
pub(crate) fn profile_in<I>(
    home: &Path,
    machine: &Path,
    options: &[&str],
    program: &Path,
    arguments: I,
) -> Profiled
where
    I: IntoIterator,
    I::Item: AsRef<OsStr>,
{
    let run = home.join("program.run");
    let mut command = membound(home);
    command
        .args(["profile", "--machine"])
        .arg(machine)
        .arg("-o")
        .arg(&run)
        .args(options)
        .arg("--")
        .arg(program)
        .args(arguments);
    let output = command.output().expect("the command starts");
    let mut report = membound(home);
    report.arg("report").arg(&run).args(["--format", "json"]);
    let report = report.output().expect("the command starts");
    assert!(
        membound_testkit::is_reported(&report),
        "{}{}",
        text(&output.stderr),
        text(&report.stderr)
    );
    let profile = serde_json::from_slice(&report.stdout).expect("it is the report's document");
    Profiled {
        output,
        profile,
        run,
        home: home.to_owned(),
        _room: None,
    }
}
