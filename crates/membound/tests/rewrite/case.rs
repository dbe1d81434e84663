//! One way of calling a fixture, run as it is and patched in every way.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use membound_types::RewriteCheck;

use crate::run::{
    Ending, Outcome, RunDirectory, check, clean, executions, finish, module, profile,
};

/// Exit code with which a fixture says that this machine cannot run the case.
const CANNOT: i32 = 77;

/// What the report must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The program and the C library were patched, and patched instructions were executed.
    Patched,
    /// The program ran unpatched, and the report says why.
    Unpatched,
    /// Nothing: the run may end before a report can be written.
    Anything,
}

/// Whether patches are also removed and installed again while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Churn {
    /// No.
    Still,
    /// Every five milliseconds, in a further run.
    Restless,
}

/// A program, its arguments, and how it ends.
#[derive(Clone)]
pub(crate) struct Case {
    program: PathBuf,
    args: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    stdin: Vec<u8>,
    ending: Ending,
    expected: Expected,
    churn: Churn,
    also: Vec<String>,
}

impl Case {
    /// `program` with arguments separated by spaces, which ends with 0.
    pub(crate) fn new(program: impl Into<PathBuf>, args: &str) -> Self {
        Self {
            program: program.into(),
            args: args.split_whitespace().map(OsString::from).collect(),
            environment: Vec::new(),
            stdin: Vec::new(),
            ending: Ending::Exited(0),
            expected: Expected::Patched,
            churn: Churn::Still,
            also: Vec::new(),
        }
    }

    /// A further argument.
    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// A variable of the program's environment.
    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// What it reads from standard input.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Expects this exit code.
    pub(crate) fn exits(mut self, code: i32) -> Self {
        self.ending = Ending::Exited(code);
        self
    }

    /// Expects this signal to end it.
    pub(crate) fn killed_by(mut self, signal: i32) -> Self {
        self.ending = Ending::Killed(signal);
        self
    }

    /// See [`Expected`].
    pub(crate) fn expected(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    /// See [`Churn`].
    pub(crate) fn restless(mut self) -> Self {
        self.churn = Churn::Restless;
        self
    }

    /// A further module that must have been patched and executed.
    pub(crate) fn also(mut self, module: &str) -> Self {
        self.also.push(module.to_owned());
        self
    }

    /// Runs it unpatched, then with every body, and compares.
    #[track_caller]
    pub(crate) fn check(&self) {
        let plain = self.plain();
        if plain.ending == Ending::Exited(CANNOT) {
            membound_testkit::skipped(plain.stdout().trim());
            return;
        }
        assert_eq!(plain.ending, self.ending, "unpatched: {plain:?}");
        self.check_against(&plain, &["--body", "count"]);
        self.check_against(&plain, &["--body", "rubbish"]);
        if self.churn == Churn::Restless {
            self.check_against(&plain, &["--body", "count", "--churn", "5"]);
        }
        self.check_profiled(&plain, &["--sampler", "auto"]);
        self.check_profiled(&plain, &["--sampler", "agent"]);
    }

    /// Checks that the profiled program leaves what it leaves unpatched, and that the run can be read.
    #[track_caller]
    fn check_profiled(&self, plain: &Outcome, words: &[&str]) {
        let room = RunDirectory::new();
        let mut command = profile(&room, words);
        command.arg(&self.program);
        self.complete(&mut command);
        let outcome = scrubbed(finish(&mut command, &room, &self.stdin), &room);
        let same = outcome.stdout == plain.stdout
            && own_stderr(&outcome) == plain.stderr()
            && outcome.ending == plain.ending;
        assert!(
            same,
            "profile {words:?}\nunpatched: {plain:?}\nprofiled: {outcome:?}"
        );
        match room.profile() {
            Ok(profile) => {
                let (code, signal) = self.end();
                assert_eq!((profile.run.exit_code, profile.run.signal), (code, signal));
                assert!(!profile.incomplete, "{words:?}: {profile:?}");
            }
            Err(error) => assert_eq!(self.expected, Expected::Anything, "{words:?}: {error}"),
        }
    }

    /// Exit code and signal that it ends with.
    const fn end(&self) -> (Option<i32>, Option<i32>) {
        match self.ending {
            Ending::Exited(code) => (Some(code), None),
            Ending::Killed(signal) => (None, Some(signal)),
        }
    }

    /// Runs it unpatched.
    pub(crate) fn plain(&self) -> Outcome {
        let room = RunDirectory::new();
        let mut command = Command::new(&self.program);
        clean(&mut command, &room);
        self.complete(&mut command);
        scrubbed(finish(&mut command, &room, &self.stdin), &room)
    }

    /// Runs it patched; returns what it left, and the report.
    pub(crate) fn patched(&self, words: &[&str]) -> (Outcome, Option<RewriteCheck>) {
        let room = RunDirectory::new();
        let mut command = check(&room, words);
        command.arg(&self.program);
        self.complete(&mut command);
        let outcome = scrubbed(finish(&mut command, &room, &self.stdin), &room);
        (outcome, room.report())
    }

    fn complete(&self, command: &mut Command) {
        command.args(&self.args);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
    }

    #[track_caller]
    fn check_against(&self, plain: &Outcome, words: &[&str]) {
        let (outcome, report) = self.patched(words);
        let same = outcome.stdout == plain.stdout
            && own_stderr(&outcome) == plain.stderr()
            && outcome.ending == plain.ending;
        assert!(
            same,
            "{words:?}\nunpatched: {plain:?}\npatched: {outcome:?}\n{}",
            summary(report.as_ref())
        );
        let Some(report) = report else {
            assert_eq!(
                self.expected,
                Expected::Anything,
                "{words:?}: no report; {outcome:?}"
            );
            return;
        };
        self.check_report(&report, words, &outcome);
    }

    #[track_caller]
    fn check_report(&self, report: &RewriteCheck, words: &[&str], outcome: &Outcome) {
        match self.expected {
            Expected::Anything => return,
            Expected::Unpatched => {
                assert!(!report.patched, "{words:?}: {}", summary(Some(report)));
                let reason = report.reason.as_deref().expect("it is said why");
                assert!(
                    outcome.stderr().contains(reason),
                    "`{reason}` is not in {outcome:?}"
                );
            }
            Expected::Patched => {
                assert!(report.patched, "{words:?}: {}", summary(Some(report)));
                for name in self.modules() {
                    let found = module(report, &name)
                        .unwrap_or_else(|| panic!("no module {name}: {}", summary(Some(report))));
                    assert!(
                        found.counts.patched > 0 && (words[1] != "count" || executions(found) > 0),
                        "{words:?}: {name} was not patched: {}",
                        summary(Some(report))
                    );
                }
            }
        }
        assert_eq!((report.exit_code, report.signal), self.end());
    }

    /// Names of the modules that must have been patched.
    fn modules(&self) -> Vec<String> {
        let own = self.program.file_name().expect("a program is a file");
        std::iter::once(own.to_string_lossy().into_owned())
            .chain(self.also.iter().cloned())
            .collect()
    }
}

/// The program's own standard error, without membound's lines, which begin with its name, and its table,
/// which follows after the end of the program.
fn own_stderr(outcome: &Outcome) -> String {
    outcome
        .stderr()
        .split_inclusive('\n')
        .take_while(|line| !line.starts_with("membound: body "))
        .filter(|line| !line.starts_with("membound: "))
        .collect()
}

/// The outcome with the name of the run's directory replaced, which differs between runs.
fn scrubbed(mut outcome: Outcome, room: &RunDirectory) -> Outcome {
    let name = room.path().to_string_lossy();
    for bytes in [&mut outcome.stdout, &mut outcome.stderr] {
        if let Ok(text) = std::str::from_utf8(bytes) {
            *bytes = text.replace(&*name, "ROOM").into_bytes();
        }
    }
    outcome
}

/// A report in a few lines.
pub(crate) fn summary(report: Option<&RewriteCheck>) -> String {
    let Some(report) = report else {
        return "no report".to_owned();
    };
    let mut lines = vec![format!(
        "patched: {}, reason: {:?}, exit {:?}, signal {:?}",
        report.patched, report.reason, report.exit_code, report.signal
    )];
    for module in &report.modules {
        lines.push(format!(
            "{}: {} of {} patched, {} executions{}",
            module.path,
            module.counts.patched,
            module.counts.accesses,
            executions(module),
            module.unpatched.as_deref().unwrap_or_default()
        ));
    }
    for process in &report.processes {
        lines.push(format!(
            "{} {}: {}{}",
            process.pid,
            Path::new(&process.path).display(),
            process.patched,
            process.reason.as_deref().unwrap_or_default()
        ));
    }
    lines.join("\n")
}

/// Tests of one fixture: `name: "arguments"`, each followed by methods of [`Case`].
macro_rules! cases {
    ($program:expr; $($name:ident: $args:literal $(. $method:ident ($($value:expr),*))*;)+) => {
        $(
            #[test]
            fn $name() {
                let Some(program) = $program else { return };
                $crate::case::Case::new(program, $args)$(.$method($($value),*))*.check();
            }
        )+
    };
}
pub(crate) use cases;
