//! `cargo xtask python`: the Python package is tested with each Python that it is for, and its notebook is executed.
//!
//! Each Python gets an environment of its own under `target/python`, made by uv, which comes from PyPI. The tests run
//! the release build of the command on programs that know what they do. One environment more has the oldest libraries
//! that the package declares. A Python that cannot be had is named: `skipped: reason`.

mod interpreters;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::run::{cargo, note, program, root, say, stdout_of, succeed};

/// Where the package and its tests are.
pub(crate) const PACKAGE: &str = "packaging/python";
/// The Pythons that the package is tested with.
const VERSIONS: [&str; 4] = ["3.11", "3.12", "3.13", "3.14"];
/// The oldest Python that installers give the wheel to: the command and rows are tried with it.
const OLDEST: &str = "3.9";
/// Makes environments, many times faster than pip.
const UV: &str = "uv==0.13.9";
/// What the tests need beside the libraries of frames.
const TOOLS: [&str; 4] = [
    "pytest==9.2.0",
    "mypy==2.4.1",
    "pandas-stubs==3.1.0.261029",
    "typing-extensions",
];
/// What the notebook needs beside these.
const NOTEBOOK: [&str; 4] = [
    "nbconvert==7.17.2",
    "nbclient==0.11.0",
    "ipykernel",
    "matplotlib==3.11.2",
];

/// Arguments of `python`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this Python, as in 3.12. May be repeated.
    #[arg(long, value_name = "X.Y")]
    only: Vec<String>,
    /// Do not execute the notebook.
    #[arg(long)]
    no_notebook: bool,
    /// A membound binary that is tested with [default: the release build, which is made].
    #[arg(long, value_name = "FILE")]
    command: Option<PathBuf>,
}

/// Libraries of frames in an environment.
#[derive(Clone, Copy)]
enum Libraries {
    /// Those that the registry serves today, pinned.
    Current,
    /// The oldest that the wheel's extras admit.
    Oldest,
}

impl Libraries {
    /// What uv is told to install.
    fn requirements(self) -> Vec<String> {
        match self {
            Self::Current => ["pandas==3.1.1", "polars==2.1.0", "pyarrow==26.0.1"]
                .map(str::to_owned)
                .to_vec(),
            Self::Oldest => crate::dist::EXTRAS
                .iter()
                .map(|(_, needs)| needs.replace(">=", "=="))
                .collect(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let command = match &args.command {
        Some(path) => std::fs::canonicalize(path)
            .with_context(|| format!("there is no {}", path.display()))?,
        None => release_build()?,
    };
    let bench = Bench::new(command)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut newest = None;
    for version in VERSIONS {
        if !args.only.is_empty() && args.only.iter().all(|only| only != version) {
            continue;
        }
        match interpreters::find(version, &bench.uv) {
            Ok(python) => match bench.test(version, &python, Libraries::Current) {
                Ok(environment) => {
                    passed += 1;
                    newest = Some((environment, python));
                }
                Err(error) => {
                    failed += 1;
                    note(format_args!("Python {version}: {error:#}"));
                }
            },
            Err(error) => {
                skipped += 1;
                say(format_args!("skipped: Python {version}: {error:#}"));
            }
        }
    }
    let mut further: Vec<(&str, Result<()>)> = Vec::new();
    if args.only.is_empty() {
        further.push(("the oldest libraries", bench.test_oldest_libraries()));
        further.push(("the oldest Python", bench.try_oldest_python()));
    }
    if let (Some((environment, _)), false) = (&newest, args.no_notebook) {
        further.push(("the notebook", bench.execute_notebook(environment).map(drop)));
    }
    for (what, outcome) in further {
        match outcome {
            Ok(()) => passed += 1,
            Err(error) if error.is::<interpreters::Absent>() => {
                skipped += 1;
                say(format_args!("skipped: {what}: {error:#}"));
            }
            Err(error) => {
                failed += 1;
                note(format_args!("{what}: {error:#}"));
            }
        }
    }
    say(format_args!("python: {passed} passed, {failed} failed, {skipped} skipped"));
    Ok(if failed == 0 && passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The step of `cargo xtask ci`: the first Python that is here, without the notebook.
pub(crate) fn check() -> Result<()> {
    let bench = Bench::new(release_build()?)?;
    for version in VERSIONS {
        if let Ok(python) = interpreters::find_installed(version) {
            return bench.test(version, &python, Libraries::Current).map(drop);
        }
    }
    say(format_args!("skipped: no Python of {} to {} here", VERSIONS[0], VERSIONS[3]));
    Ok(())
}

/// Executes the notebook with the newest Python that is here, and returns the notebook with what it showed.
pub(crate) fn executed_notebook() -> Result<PathBuf> {
    let bench = Bench::new(release_build()?)?;
    let found = VERSIONS.iter().rev().find_map(|version| {
        let python = interpreters::find_installed(version).ok()?;
        Some((*version, python))
    });
    let (version, python) = found.context("the notebook needs a Python of 3.11 or later")?;
    let environment = bench.environment(version, &python, Libraries::Current)?;
    bench.execute_notebook(&environment)
}

/// The release build of the command, made if need be.
fn release_build() -> Result<PathBuf> {
    succeed(&mut cargo(["build", "--release", "--locked", "--package=membound"]))?;
    Ok(root().join("target/release/membound"))
}

/// What all tests share: uv, the command, and what was recorded.
struct Bench {
    uv: PathBuf,
    command: PathBuf,
    /// Runs and the machine profile: recorded by the first Python, read by the others too.
    data: PathBuf,
}

impl Bench {
    fn new(command: PathBuf) -> Result<Self> {
        let directory = directory();
        let data = directory.join("data");
        // What another build of the command recorded.
        drop(std::fs::remove_dir_all(&data));
        std::fs::create_dir_all(&data).with_context(|| format!("cannot make {}", data.display()))?;
        let tools = directory.join("uv");
        let uv = tools.join("bin/uv");
        let is_there = stdout_of(program(&uv).arg("--version"))
            .is_ok_and(|told| UV.ends_with(told.split(' ').nth(1).unwrap_or_default().trim()));
        if !is_there {
            note("bringing in uv");
            stdout_of(program("python3").args(["-m", "venv", "--clear"]).arg(&tools))?;
            let mut pip = program(tools.join("bin/pip"));
            stdout_of(pip.args(["install", "--quiet", "--disable-pip-version-check", UV]))?;
        }
        Ok(Self { uv, command, data })
    }

    /// Runs the tests with one Python; its environment.
    fn test(&self, version: &str, python: &Path, libraries: Libraries) -> Result<PathBuf> {
        note(format_args!("── Python {version}"));
        let environment = self.environment(version, python, libraries)?;
        let mut pytest = self.python(&environment);
        succeed(pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]))?;
        Ok(environment)
    }

    /// The lowest Python with the oldest libraries: newer Pythons have no builds of these.
    fn test_oldest_libraries(&self) -> Result<()> {
        let python = interpreters::find(VERSIONS[0], &self.uv)?;
        self.test(&format!("{}-oldest", VERSIONS[0]), &python, Libraries::Oldest)
            .map(drop)
    }

    /// The command and rows with a Python for which there are no tests, without any library.
    fn try_oldest_python(&self) -> Result<()> {
        const TRY: &str = "import membound, sys\n\
                           rows = membound.open(sys.argv[1], backend='rows').stalls(by='line')\n\
                           assert rows[0]['stall_s'] > 0, rows[0]";
        let python = interpreters::find_installed(OLDEST)?;
        note(format_args!("── Python {OLDEST}, without libraries"));
        let try_it = |words: &[&str]| {
            let mut command = program(&python);
            self.surround(&mut command);
            stdout_of(command.args(words).arg(self.data.join("objects.run")))
        };
        ensure!(try_it(&["-m", "membound", "report"])?.contains("memory bound"));
        try_it(&["-c", TRY]).map(drop)
    }

    /// Executes the notebook; the copy that holds what it showed, with a page of HTML beside it.
    fn execute_notebook(&self, environment: &Path) -> Result<PathBuf> {
        note("── the notebook");
        let packages = NOTEBOOK.map(str::to_owned);
        self.install(environment, &packages)?;
        let output = directory().join("notebook");
        std::fs::create_dir_all(&output)
            .with_context(|| format!("cannot make {}", output.display()))?;
        let source = root().join(PACKAGE).join("first-look.ipynb");
        let copy = output.join("first-look.ipynb");
        std::fs::copy(&source, &copy).with_context(|| format!("cannot copy {}", source.display()))?;
        for format in ["notebook", "html"] {
            let mut convert = self.python(environment);
            convert.args(["-m", "nbconvert", "--log-level=ERROR", "--to", format]);
            if format == "notebook" {
                convert.args(["--execute", "--inplace"]);
            }
            convert.current_dir(&output);
            succeed(convert.arg(&copy))?;
        }
        Ok(copy)
    }

    /// An environment with the package's libraries and tools, made once.
    fn environment(&self, name: &str, python: &Path, libraries: Libraries) -> Result<PathBuf> {
        let environment = directory().join(name);
        let mut packages = libraries.requirements();
        packages.extend(TOOLS.map(str::to_owned));
        let made_of = format!("{}\n{}", python.display(), packages.join("\n"));
        let stamp = environment.join("made");
        if std::fs::read_to_string(&stamp).is_ok_and(|found| found == made_of) {
            return Ok(environment);
        }
        let mut make = program(&self.uv);
        make.args(["venv", "--quiet", "--clear", "--no-python-downloads", "--python"]);
        stdout_of(make.arg(python).arg(&environment))?;
        self.install(&environment, &packages)?;
        std::fs::write(&stamp, made_of)
            .with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(environment)
    }

    fn install(&self, environment: &Path, packages: &[String]) -> Result<()> {
        let mut install = program(&self.uv);
        install.args(["pip", "install", "--quiet", "--python"]);
        install.arg(environment.join("bin/python"));
        stdout_of(install.args(packages)).map(drop)
    }

    /// A Python of an environment that finds the package, the command and the data.
    fn python(&self, environment: &Path) -> Command {
        let mut python = program(environment.join("bin/python"));
        self.surround(&mut python);
        python
    }

    fn surround(&self, command: &mut Command) {
        let package = root().join(PACKAGE);
        command
            .env("PYTHONPATH", &package)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("MEMBOUND_COMMAND", &self.command)
            .env("MEMBOUND_TEST_DATA", &self.data)
            .current_dir(&package);
    }
}

/// Where environments, data and results lie.
fn directory() -> PathBuf {
    root().join("target/python")
}
