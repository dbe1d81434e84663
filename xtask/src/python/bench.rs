//! Environments, and the tests and the notebook in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::interpreters::{self, directory};
use crate::run::{note, program, root, stdout_of, succeed};

/// Directory of the package and its tests.
const PACKAGE: &str = "packaging/python";
/// Environment variable with the path of the binary that the package runs.
pub(super) const COMMAND: &str = "MEMBOUND_COMMAND";
/// The oldest Python for which installers accept the wheel: the command and rows are tried with it.
const OLDEST: &str = "3.9";
/// Tool that makes environments, many times faster than pip.
const UV: &str = "uv==0.13.9";
/// Packages that the tests need besides the data frame libraries.
const TOOLS: [&str; 4] = [
    "pytest==9.2.0",
    "mypy==2.4.1",
    "pandas-stubs==3.1.0.261029",
    "typing-extensions",
];
/// Packages that the notebook needs besides these.
const NOTEBOOK: [&str; 4] = [
    "nbconvert==7.17.2",
    "nbclient==0.11.0",
    "ipykernel",
    "matplotlib==3.11.2",
];

/// Data frame libraries in an environment.
#[derive(Clone, Copy)]
pub(super) enum Libraries {
    /// Pinned current versions.
    Current,
    /// The oldest versions that the wheel's extras allow.
    Oldest,
}

impl Libraries {
    /// Requirements for uv.
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

/// The executed notebook.
pub(crate) struct Notebook {
    /// The copy with the output of its cells; its program and its run are beside it.
    pub(crate) path: PathBuf,
    /// The Python that executed it.
    pub(crate) python: PathBuf,
    /// The membound binary that it used.
    pub(crate) command: PathBuf,
}

/// What all tests share: uv, the command, and the recorded data.
pub(super) struct Bench {
    pub(super) uv: PathBuf,
    command: PathBuf,
    /// Runs and the machine profile: recorded by the first Python, read by the others too.
    data: PathBuf,
}

impl Bench {
    pub(super) fn new(command: PathBuf) -> Result<Self> {
        let directory = directory();
        let data = directory.join("data");
        // Data that another build of the command recorded.
        drop(std::fs::remove_dir_all(&data));
        std::fs::create_dir_all(&data)
            .with_context(|| format!("cannot make {}", data.display()))?;
        let tools = directory.join("uv");
        let uv = tools.join("bin/uv");
        let is_there = stdout_of(program(&uv).arg("--version"))
            .is_ok_and(|told| UV.ends_with(told.split(' ').nth(1).unwrap_or_default().trim()));
        if !is_there {
            note("bringing in uv");
            stdout_of(
                program("python3")
                    .args(["-m", "venv", "--clear"])
                    .arg(&tools),
            )?;
            let mut pip = program(tools.join("bin/pip"));
            stdout_of(pip.args(["install", "--quiet", "--disable-pip-version-check", UV]))?;
        }
        Ok(Self { uv, command, data })
    }

    /// Runs the tests with one Python; returns its environment.
    pub(super) fn test(
        &self,
        version: &str,
        python: &Path,
        libraries: Libraries,
    ) -> Result<PathBuf> {
        note(format_args!("── Python {version}"));
        let environment = self.environment(version, python, libraries)?;
        let mut pytest = self.python(&environment);
        succeed(pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]))?;
        Ok(environment)
    }

    /// Tests the lowest Python with the oldest libraries: newer Pythons have no builds of these.
    pub(super) fn test_oldest_libraries(&self, version: &str) -> Result<()> {
        let python = interpreters::find(version, &self.uv)?;
        let name = format!("{version}-oldest");
        self.test(&name, &python, Libraries::Oldest).map(drop)
    }

    /// Tries the command and rows with a Python for which there are no tests, without any library.
    pub(super) fn try_oldest_python(&self) -> Result<()> {
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

    /// Executes a copy of the notebook, and makes a page of HTML beside it.
    pub(super) fn execute_notebook(&self, environment: &Path) -> Result<Notebook> {
        note("── the notebook");
        let packages = NOTEBOOK.map(str::to_owned);
        self.install(environment, &packages)?;
        let output = directory().join("notebook");
        std::fs::create_dir_all(&output)
            .with_context(|| format!("cannot make {}", output.display()))?;
        let source = root().join(PACKAGE).join("first-look.ipynb");
        let copy = output.join("first-look.ipynb");
        std::fs::copy(&source, &copy)
            .with_context(|| format!("cannot copy {}", source.display()))?;
        for format in ["notebook", "html"] {
            let mut convert = self.python(environment);
            convert.args(["-m", "nbconvert", "--log-level=ERROR", "--to", format]);
            if format == "notebook" {
                convert.args(["--execute", "--inplace"]);
            }
            convert.current_dir(&output);
            succeed(convert.arg(&copy))?;
        }
        Ok(Notebook {
            path: copy,
            python: environment.join("bin/python"),
            command: self.command.clone(),
        })
    }

    /// An environment with the package's libraries and tools, made once.
    pub(super) fn environment(
        &self,
        name: &str,
        python: &Path,
        libraries: Libraries,
    ) -> Result<PathBuf> {
        let environment = directory().join(name);
        let mut packages = libraries.requirements();
        packages.extend(TOOLS.map(str::to_owned));
        let made_of = format!("{}\n{}", python.display(), packages.join("\n"));
        let stamp = environment.join("made");
        if std::fs::read_to_string(&stamp).is_ok_and(|found| found == made_of) {
            return Ok(environment);
        }
        let mut make = program(&self.uv);
        make.args("venv --quiet --clear --no-python-downloads --python".split(' '));
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

    /// A Python of an environment, with variables for the package, the command and the data.
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
            .env(COMMAND, &self.command)
            .env("MEMBOUND_TEST_DATA", &self.data)
            .current_dir(&package);
    }
}
