//! What was made is installed and tried: the package in an empty Debian, the wheel in an
//! empty Python environment.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::stage::write;
use crate::needs::install_packages;
use crate::run::{note, on_path, program, stdout_of, succeed};

/// What an installed command is tried with.
const TRY: &str = include_str!("try.sh");
/// The Debian that is made where this one does not say what it is.
const USUAL_SUITE: &str = "stable";

/// Installs and tries both.
pub(super) fn run(package: &Path, wheel: &Path) -> Result<()> {
    let place = tempfile::tempdir().context("there is no room for a directory")?;
    let script = place.path().join("try.sh");
    write(&script, TRY)?;
    note(format_args!("── {} in an empty Debian", package.display()));
    in_debian(package, &script)?;
    note(format_args!(
        "── {} in a Python environment",
        wheel.display()
    ));
    in_python(wheel, &script, place.path())
}

/// mmdebstrap makes a root with what Debian calls essential, mounts the kernel's file
/// systems in it, runs the hooks, and leaves nothing behind.
fn in_debian(package: &Path, script: &Path) -> Result<()> {
    if on_path("mmdebstrap").is_none() {
        install_packages(&["mmdebstrap"])?;
    }
    let mut make = program("mmdebstrap");
    make.args(["--quiet", "--variant=essential", "--format=null"]);
    for (from, to) in [(package, "package.deb"), (script, "try.sh")] {
        let from = from.display();
        make.arg(format!("--customize-hook=upload {from} /{to}"));
    }
    let inside = "dpkg --install /package.deb && sh /try.sh membound && dpkg --purge membound";
    make.arg(format!("--customize-hook=chroot \"$1\" sh -c '{inside}'"));
    succeed(make.args([&suite(), "/dev/null"]))
}

/// The name of the Debian that runs this.
fn suite() -> String {
    let told = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = told
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let is_debian = told.lines().any(|line| line == "ID=debian");
    let name = name.filter(|_| is_debian).unwrap_or(USUAL_SUITE);
    name.to_owned()
}

/// Installs the wheel with nothing else, and starts the command by its name and as a module.
fn in_python(wheel: &Path, script: &Path, place: &Path) -> Result<()> {
    let environment = place.join("venv");
    succeed(program("python3").args(["-m", "venv"]).arg(&environment))?;
    let tool = |name: &str| environment.join("bin").join(name);
    let install = [
        "install",
        "--quiet",
        "--no-index",
        "--disable-pip-version-check",
    ];
    succeed(program(tool("pip")).args(install).arg(wheel))?;
    let [by_name, by_module] = [tool("membound"), tool("python3")];
    let long = stdout_of(program(&by_name).arg("--version"))?;
    let same = stdout_of(program(&by_module).args(["-m", "membound", "--version"]))?;
    ensure!(
        long == same,
        "`python -m membound` is {same} instead of {long}"
    );
    let command = format!("{} -m membound", by_module.display());
    succeed(program("sh").arg(script).arg(command))
}
