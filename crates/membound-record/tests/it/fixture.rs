//! Builds C programs and talks to them through their standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use membound_testkit::skipped;
use tempfile::TempDir;

/// Serialises tests: each program must have the machine to itself.
pub(crate) fn busy() -> MutexGuard<'static, ()> {
    static BUSY: Mutex<()> = Mutex::new(());
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A built program in a directory of its own.
pub(crate) struct Fixture {
    _home: TempDir,
    pub(crate) program: PathBuf,
}

impl Fixture {
    /// Builds `source` from `fixtures`; `None`, with a message, if there is no compiler.
    pub(crate) fn build(source: &str) -> Option<Self> {
        Self::build_with(source, &[])
    }

    /// The same, with further `options`.
    pub(crate) fn build_with(source: &str, options: &[&str]) -> Option<Self> {
        let home = tempfile::tempdir().expect("a directory can be made");
        let code = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/fixtures")
            .join(source);
        let program = home.path().join("program");
        let built = Command::new("gcc")
            .args(["-O2", "-fomit-frame-pointer", "-pthread", "-o"])
            .args([&program, &code])
            .args(options)
            .output();
        match built {
            Ok(output) if output.status.success() => Some(Self {
                _home: home,
                program,
            }),
            Ok(output) => {
                skipped(String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                skipped(format_args!("gcc: {error}"));
                None
            }
        }
    }

    /// Starts it, and waits for its first line.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        self.start_as(words, &mut |_| ())
    }

    /// The same, started in another way.
    pub(crate) fn start_as(&self, words: &[&str], change: &mut dyn FnMut(&mut Command)) -> Running {
        let mut command = Command::new(&self.program);
        command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("the program starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut running = Running {
            child,
            input,
            output,
            said: Vec::new(),
        };
        running.said = running.hear();
        running
    }
}

/// A program that runs.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its first line.
    pub(crate) said: Vec<u64>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go on.
    pub(crate) fn say(&mut self, text: &str) {
        let input = self.input.as_mut().expect("it still listens");
        input.write_all(text.as_bytes()).expect("it reads");
        input.flush().expect("it reads");
    }

    /// The numbers of its next line; none at its end.
    pub(crate) fn hear(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says a line");
        line.split_whitespace()
            .filter_map(|word| match word.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => word.parse().ok(),
            })
            .collect()
    }

    /// Whether it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Whether it ends well.
    pub(crate) fn end(mut self) -> bool {
        drop(self.input.take());
        self.child.wait().expect("it is our child").success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
