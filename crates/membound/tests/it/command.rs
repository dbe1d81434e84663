//! Starts the command with a data directory of its own.

use std::ffi::OsStr;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tempfile::TempDir;

/// Held for reading by every test that keeps the machine busy, for writing by a test whose figure needs a
/// quiet machine.
static MACHINE: RwLock<()> = RwLock::new(());

/// The machine, shared with other tests.
pub(crate) fn busy() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, without other tests.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// The command, without any environment of the user that could change it.
pub(crate) struct Membound {
    pub(crate) home: TempDir,
}

impl Membound {
    pub(crate) fn new() -> Self {
        Self {
            home: tempfile::tempdir().expect("there is room for a directory"),
        }
    }

    pub(crate) fn command<I>(&self, args: I) -> Command
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
        command
            .args(args)
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("XDG_DATA_HOME", self.home.path().join("data"))
            .env_remove("COLUMNS")
            .env_remove("NO_COLOR");
        command
    }

    /// Runs the command while other tests run too.
    pub(crate) fn run(&self, line: &str) -> Finished {
        let _busy = busy();
        self.run_as_it_is(line)
    }

    /// Runs the command while no other test does.
    pub(crate) fn run_alone(&self, line: &str) -> Finished {
        let _alone = alone();
        self.run_as_it_is(line)
    }

    fn run_as_it_is(&self, line: &str) -> Finished {
        Finished::of(
            &self
                .command(line.split_whitespace())
                .output()
                .expect("the command starts"),
        )
    }
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The stdout of a command, which must have ended with code 0 and an empty stderr.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""));
        self.stdout
    }

    pub(crate) fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8"),
        }
    }

    /// The JSON on stdout of a command that succeeded.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }

    /// Asserts one line on stderr that holds all `parts`, nothing on stdout, and the code.
    pub(crate) fn complains(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "`{part}` is not in: {}",
                self.stderr
            );
        }
    }
}

/// A number in a document.
pub(crate) fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}
