//! Building fixtures, and running them alone and with scavengers.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use membound_testkit::{Compiler, Fixtures};
use membound_types::{
    HarvestExplore, HarvestRole, HarvestRun, MachineInfo, MachineProfile, Scavenger, ScavengerState,
};
use tempfile::TempDir;

use crate::plan;

/// Time after which a program counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(60);

static FIXTURES: LazyLock<Fixtures> = LazyLock::new(|| {
    Fixtures::new(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/harvest/fixtures"),
        concat!(env!("CARGO_TARGET_TMPDIR"), "/harvest"),
    )
});

/// Builds a fixture; see [`Fixtures::build`].
pub(crate) fn fixture(source: &str, words: &str) -> Option<PathBuf> {
    let compiler = if source.ends_with(".cc") {
        Compiler::Gxx
    } else {
        Compiler::Gcc
    };
    FIXTURES.build(compiler, source, &format!("{words} -lm"))
}

/// Builds a fixture that needs no library; see [`Fixtures::build`].
pub(crate) fn fixture_of(compiler: Compiler, source: &str, words: &str) -> Option<PathBuf> {
    FIXTURES.build(compiler, source, words)
}

/// The fixture of scavengers.
pub(crate) fn scavenger() -> Option<PathBuf> {
    fixture("scavenger.c", "-O2 -fstack-protector-all")
}

/// Output and end of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramResult {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The exit code, or the signal as the error.
    pub(crate) end: Result<i32, i32>,
}

/// A program under `membound harvest run`.
#[derive(Debug)]
pub(crate) struct Harvest {
    room: TempDir,
    primary: PathBuf,
    words: Vec<String>,
    scavengers: Vec<(PathBuf, String)>,
    /// Command lines of scavengers without a plan.
    unplanned_scavengers: Vec<String>,
    options: Vec<String>,
    /// The machine profile.
    machine: PathBuf,
    /// Whether the program has a plan.
    planned: Planned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planned {
    Yes,
    No,
}

/// Result of a harvest.
#[derive(Debug)]
pub(crate) struct Harvested {
    pub(crate) left: ProgramResult,
    pub(crate) document: HarvestRun,
    /// Standard output of each scavenger.
    pub(crate) outputs: Vec<String>,
}

impl Harvest {
    /// A harvest of `primary`, called with `words`, separated by spaces.
    pub(crate) fn of(primary: &Path, words: &str) -> Self {
        Self {
            room: tempfile::tempdir().expect("there is room for a directory"),
            primary: primary.to_owned(),
            words: words.split_whitespace().map(str::to_owned).collect(),
            scavengers: Vec::new(),
            unplanned_scavengers: Vec::new(),
            options: Vec::new(),
            machine: machine().to_owned(),
            planned: Planned::Yes,
        }
    }

    /// Without a plan of the program; scavengers keep theirs.
    pub(crate) fn unplanned(mut self) -> Self {
        self.planned = Planned::No;
        self
    }

    /// With this machine profile.
    pub(crate) fn on(mut self, machine: &Path) -> Self {
        self.machine = machine.to_owned();
        self
    }

    /// The program and its words.
    pub(crate) fn primary_words(&self) -> Vec<String> {
        let name = self.primary.display().to_string();
        std::iter::once(name).chain(self.words.clone()).collect()
    }

    /// Adds a scavenger.
    pub(crate) fn with(mut self, program: &Path, words: &str) -> Self {
        self.scavengers.push((program.to_owned(), words.to_owned()));
        self
    }

    /// Adds a scavenger without a plan, after those with one.
    pub(crate) fn with_unplanned(mut self, program: &Path, words: &str) -> Self {
        let line = format!("{} {words}", program.display());
        self.unplanned_scavengers.push(line);
        self
    }

    /// Adds options, separated by spaces.
    pub(crate) fn options(mut self, words: &str) -> Self {
        let words = words.split_whitespace().map(str::to_owned);
        self.options.extend(words);
        self
    }

    /// Runs the program alone, unpatched.
    pub(crate) fn alone(&self) -> ProgramResult {
        let mut command = Command::new(&self.primary);
        command.args(&self.words);
        finish(&mut command, self.room.path())
    }

    /// Runs it with its scavengers.
    pub(crate) fn run(&self) -> Harvested {
        let room = self.room.path();
        let json = room.join("harvest.json");
        let output = room.join("output");
        std::fs::create_dir_all(&output).expect("the directory is ours");
        let mut command = self.command();
        command
            .arg("--output")
            .arg(&output)
            .arg("--json")
            .arg(&json);
        command.arg("--").arg(&self.primary).args(&self.words);
        let left = finish(&mut command, room);
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        let document: HarvestRun = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("no document: {error}\n{left:#?}"));
        let read = |scavenger: &Scavenger| {
            let path = scavenger.output.as_deref().expect("it was asked for");
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
        };
        let outputs = document.scavengers.iter().map(read).collect();
        Harvested {
            left,
            document,
            outputs,
        }
    }

    /// The command `membound harvest run` with plans, scavengers and options, without the program.
    pub(crate) fn command(&self) -> Command {
        self.command_of("run")
    }

    /// Runs `membound harvest explore` on it; returns its output, and its document if it wrote one.
    pub(crate) fn explore(&self) -> (ProgramResult, Option<HarvestExplore>) {
        let json = self.room.path().join("explore.json");
        let mut command = self.command_of("explore");
        command.arg("--json").arg(&json);
        command.arg("--").arg(&self.primary).args(&self.words);
        let left = finish(&mut command, self.room.path());
        let text = std::fs::read_to_string(&json).unwrap_or_default();
        (left, serde_json::from_str(&text).ok())
    }

    /// A subcommand of `harvest` with plans, scavengers and options, without the program.
    pub(crate) fn command_of(&self, subcommand: &str) -> Command {
        let room = self.room.path();
        let mut command = Command::new(env!("CARGO_BIN_EXE_membound"));
        command.args(["harvest", subcommand, "--quiet", "--machine"]);
        command.arg(&self.machine).args(&self.options);
        let plan = |program: &Path, role: HarvestRole, name: &str| {
            let path = room.join(name);
            let text = serde_json::to_string(&plan::of(program, role)).expect("a plan is text");
            std::fs::write(&path, text).expect("the directory is ours");
            path
        };
        if self.planned == Planned::Yes {
            let path = plan(&self.primary, HarvestRole::Primary, "primary.json");
            command.arg("--plan").arg(path);
        }
        let mut known: Vec<&Path> = Vec::new();
        for (index, (program, words)) in self.scavengers.iter().enumerate() {
            if !known.contains(&program.as_path()) {
                known.push(program);
                let name = format!("scavenger-{index}.json");
                let path = plan(program, HarvestRole::Scavenger, &name);
                command.arg("--plan").arg(path);
            }
            let line = format!("{} {words}", program.display());
            command.arg("--scavenger").arg(line);
        }
        for line in &self.unplanned_scavengers {
            command.arg("--scavenger").arg(line);
        }
        command
    }

    /// Runs the program alone and harvested and compares both; the document must have no notes.
    #[track_caller]
    pub(crate) fn check(&self) -> Harvested {
        let harvested = self.check_noted();
        let document = &harvested.document;
        assert!(document.notes.is_empty(), "{document:#?}");
        harvested
    }

    /// The same, with any notes.
    #[track_caller]
    pub(crate) fn check_noted(&self) -> Harvested {
        let alone = self.alone();
        let harvested = self.run();
        let document = &harvested.document;
        assert_eq!(alone, harvested.left, "{document:#?}");
        assert!(document.primary.yields > 0, "nobody yielded: {document:#?}");
        harvested
    }
}

impl Harvested {
    /// Checks how the scavenger with this number ended.
    #[track_caller]
    pub(crate) fn ended(&self, index: usize, state: ScavengerState, end: Option<Result<i32, i32>>) {
        let scavenger = &self.document.scavengers[index];
        let found = match (scavenger.exit_code, scavenger.signal) {
            (Some(code), _) => Some(Ok(code)),
            (None, Some(signal)) => Some(Err(signal)),
            (None, None) => None,
        };
        assert_eq!((scavenger.state, found), (state, end), "{scavenger:#?}");
        let was_away = scavenger.turns > 0 || state == ScavengerState::Refused;
        assert!(was_away, "it was given no turn: {scavenger:#?}");
    }

    /// Checks that a scavenger ended with code 0 and this output.
    #[track_caller]
    pub(crate) fn wrote(&self, index: usize, output: &str) {
        self.ended(index, ScavengerState::Finished, Some(Ok(0)));
        assert_eq!(self.outputs[index], output, "{:#?}", self.document);
    }
}

/// What a scavenger writes when it runs alone.
pub(crate) fn output_of(program: &Path, words: &str) -> String {
    let harvest = Harvest::of(program, words);
    let left = harvest.alone();
    assert_eq!(left.end, Ok(0), "{left:#?}");
    left.stdout
}

/// A machine profile without measurements, since these tests do not check figures.
pub(crate) fn machine() -> &'static Path {
    static MACHINE: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = FIXTURES.directory().join("machine.json");
        let text = serde_json::to_string(&MachineProfile::unmeasured(MachineInfo::default()))
            .expect("a profile can be written");
        std::fs::write(&path, text).expect("the directory is ours");
        path
    });
    &MACHINE
}

/// Runs `command` to its end, in an environment of its own.
pub(crate) fn finish(command: &mut Command, room: &Path) -> ProgramResult {
    // Files rather than pipes: a child that outlives its parent would keep a pipe open.
    let [out, err] = ["stdout", "stderr"].map(|name| room.join(name));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", room)
        .env("XDG_CACHE_HOME", room.join("cache"))
        .current_dir(room)
        .stdin(Stdio::null())
        .stdout(File::create(&out).expect("the directory is ours"))
        .stderr(File::create(&err).expect("the directory is ours"))
        .process_group(0);
    let mut child = command.spawn().expect("the program starts");
    let status = wait(&mut child);
    let read = |path| {
        let bytes = std::fs::read(path).expect("it was just made");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (read(out), read(err));
    let Some(status) = status else {
        panic!("{command:?}: it did not end within {TIMEOUT:?}\n{stdout}\n{stderr}");
    };
    let signal = || status.signal().expect("it exited or was killed");
    ProgramResult {
        stdout,
        stderr,
        end: status.code().ok_or_else(signal),
    }
}

/// Waits for `child`; kills its group when it takes too long, and returns `None`.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let group = i32::try_from(child.id()).expect("process numbers fit");
    // SAFETY: the child leads this group and has not been waited for.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    child.wait().expect("it is our child");
    None
}
