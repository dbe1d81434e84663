//! Runs a program to its end, and collects what it left.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use membound_types::{CheckedModule, MachineInfo, MachineProfile, Profile, RewriteCheck};
use tempfile::TempDir;

/// Longer than any fixture takes on a busy machine; a program that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(180);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code.
    Exited(i32),
    /// By a signal.
    Killed(i32),
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        match status.code() {
            Some(code) => Self::Exited(code),
            None => Self::Killed(status.signal().expect("it exited or was killed")),
        }
    }
}

/// What a program left.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) ending: Ending,
}

impl Outcome {
    /// Standard output as text.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.ending)?;
        writeln!(f, "--- stdout\n{}", shortened(&self.stdout()))?;
        writeln!(f, "--- stderr\n{}", shortened(&self.stderr()))
    }
}

/// The beginning and the end of a long text.
fn shortened(text: &str) -> String {
    const SIDE: usize = 2000;
    if text.chars().count() <= 2 * SIDE {
        return text.to_owned();
    }
    let begin: String = text.chars().take(SIDE).collect();
    let end: Vec<char> = text.chars().rev().take(SIDE).collect();
    format!("{begin}\n[…]\n{}", end.iter().rev().collect::<String>())
}

/// A directory for one run, and its files.
pub(crate) struct RunDirectory {
    directory: TempDir,
}

impl RunDirectory {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("there is room for a directory"),
        }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The report of the run that `profile` wrote here.
    pub(crate) fn profile(&self) -> Result<Profile, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
        clean(&mut command, self);
        let output = command
            .arg("report")
            .arg(self.path().join("program.run"))
            .args(["--format", "json"])
            .output()
            .expect("the command starts");
        if !membound_testkit::is_reported(&output) {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).expect("the report is of the documented form"))
    }

    /// The report that `rewrite check --json` wrote here, if it did.
    pub(crate) fn report(&self) -> Option<RewriteCheck> {
        let text = std::fs::read_to_string(self.path().join("report.json")).ok()?;
        Some(serde_json::from_str(&text).expect("the report is of the documented form"))
    }
}

/// The command `membound rewrite check WORDS --json REPORT --`, without any environment of the user that
/// could change it or the program.
pub(crate) fn check(room: &RunDirectory, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    clean(&mut command, room);
    command
        .args(["rewrite", "check"])
        .args(words)
        .arg("--json")
        .arg(room.path().join("report.json"))
        .arg("--");
    command
}

/// The command `membound profile WORDS -o RUN --`, with the same environment.
pub(crate) fn profile(room: &RunDirectory, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
    clean(&mut command, room);
    command
        .args(["profile", "--quiet", "--machine"])
        .arg(machine())
        .args(words)
        .arg("-o")
        .arg(room.path().join("program.run"))
        .arg("--");
    command
}

/// A machine profile without measurements, since these tests do not check levels.
fn machine() -> &'static Path {
    static MACHINE: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = crate::build::directory().join("machine.json");
        let text = serde_json::to_string(&MachineProfile::unmeasured(MachineInfo::default()))
            .expect("a profile can be written");
        std::fs::write(&path, text).expect("the directory is ours");
        path
    });
    &MACHINE
}

/// Gives `command` an environment of its own, and every signal its default action, because shells and `nohup`
/// make some signals ignored. Both ways of running a program get the same, so that programs that print it
/// print the same.
pub(crate) fn clean(command: &mut Command, room: &RunDirectory) {
    let cache = crate::build::directory().join(cache_name());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", room.path())
        .env("XDG_DATA_HOME", room.path().join("data"))
        .env("XDG_CACHE_HOME", cache)
        .current_dir(room.path());
    let defaults = || {
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: no handler is installed. Those that have no other action are refused.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: `defaults` calls nothing that is not permitted after fork.
    unsafe { command.pre_exec(defaults) };
}

/// Plans are kept between tests but not between builds of membound: during development the engine changes
/// more often than the version in its plans.
fn cache_name() -> String {
    let made = Path::new(env!("CARGO_BIN_EXE_membound"))
        .metadata()
        .and_then(|data| data.modified())
        .expect("the command was built");
    let since = made
        .duration_since(std::time::UNIX_EPOCH)
        .expect("it was built after 1970");
    format!("cache-{}", since.as_nanos())
}

/// Runs `command` with `stdin` to its end.
pub(crate) fn finish(command: &mut Command, room: &RunDirectory, stdin: &[u8]) -> Outcome {
    // Files rather than pipes: a child that outlives its parent would keep a pipe open.
    let out = room.path().join("stdout");
    let err = room.path().join("stderr");
    command
        .stdout(File::create(&out).expect("the directory is ours"))
        .stderr(File::create(&err).expect("the directory is ours"))
        .stdin(Stdio::piped());
    // A group of its own: some programs kill theirs.
    command.process_group(0);
    let mut child = command.spawn().expect("the program starts");
    let mut pipe = child.stdin.take().expect("stdin is a pipe");
    let input = stdin.to_vec();
    let writer = std::thread::spawn(move || {
        // A program need not read its input.
        drop(pipe.write_all(&input));
    });
    let ending = Ending::from(wait(&mut child));
    writer.join().expect("writing does not panic");
    Outcome {
        stdout: std::fs::read(out).expect("it was just made"),
        stderr: std::fs::read(err).expect("it was just made"),
        ending,
    }
}

/// Waits for `child`; kills its group when it takes too long.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    let mut late = false;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            assert!(!late, "it was still running after {TIMEOUT:?}");
            return status;
        }
        if started.elapsed() > TIMEOUT && !late {
            late = true;
            let group = i32::try_from(child.id()).expect("process numbers fit");
            // SAFETY: the child leads this group and has not been waited for.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The module of `report` whose file name contains `name`.
pub(crate) fn module<'a>(report: &'a RewriteCheck, name: &str) -> Option<&'a CheckedModule> {
    report.modules.iter().find(|module| {
        Path::new(&module.path)
            .file_name()
            .is_some_and(|file| file.to_string_lossy().contains(name))
    })
}

/// Executions of a module; 0 if they were not counted.
pub(crate) fn executions(module: &CheckedModule) -> u64 {
    module.executions.known().copied().unwrap_or(0)
}
