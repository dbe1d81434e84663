//! Finding Pythons: along `PATH`, in pyenv's directory, by uv's download, and from Debian's next
//! release.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::needs::install_packages;
use crate::run::{note, on_path, program, root, stdout_of};

/// Directory of Pythons, environments, data and results.
pub(super) fn directory() -> PathBuf {
    root().join("target/python")
}

/// The error for a Python that is not available.
#[derive(Debug)]
pub(super) struct Absent(String);

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Absent {}

/// A Python of this version: installed, else downloaded by uv, else unpacked from Debian's unstable distribution.
pub(super) fn find(version: &str, uv: &Path) -> Result<PathBuf> {
    if let Ok(python) = find_installed(version) {
        return Ok(python);
    }
    let by_uv = download(version, uv);
    let by_debian = by_uv.or_else(|_| unpack(version));
    by_debian.map_err(|error| Absent(format!("not installed, and not to be had: {error:#}")).into())
}

/// An installed Python of this version.
pub(super) fn find_installed(version: &str) -> Result<PathBuf> {
    let name = format!("python{version}");
    let mut candidates: Vec<PathBuf> = on_path(&name).into_iter().collect();
    candidates.extend(of_pyenv(version));
    candidates.push(wrapper(version));
    candidates
        .into_iter()
        // A shim of pyenv is along PATH even if its version is not installed.
        .find(|python| is_of(python, version))
        .ok_or_else(|| Absent(format!("there is no {name} here")).into())
}

fn is_of(python: &Path, version: &str) -> bool {
    let tell = "import sys, venv; print('%d.%d' % sys.version_info[:2])";
    stdout_of(program(python).args(["-c", tell])).is_ok_and(|told| told.trim() == version)
}

/// Pythons of this version in pyenv's directory.
fn of_pyenv(version: &str) -> Vec<PathBuf> {
    let home = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let entries = home.and_then(|home| fs::read_dir(home.join("versions")).ok());
    entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with(&format!("{version}."))
        })
        .map(|entry| entry.path().join(format!("bin/python{version}")))
        .collect()
}

fn download(version: &str, uv: &Path) -> Result<PathBuf> {
    let place = directory().join("interpreters");
    let words = ["python", "install", "--quiet", "--no-bin", version];
    let mut install = program(uv);
    install.env("UV_HTTP_RETRIES", "0").args(words);
    stdout_of(install.arg("--install-dir").arg(&place))?;
    let find = ["python", "find", "--managed-python", version];
    let told = stdout_of(program(uv).args(find).env("UV_PYTHON_INSTALL_DIR", &place))?;
    Ok(PathBuf::from(told.trim()))
}

/// Directory for a Python of Debian's unstable distribution.
fn unpacked(version: &str) -> PathBuf {
    directory().join(format!("debian-{version}"))
}

/// Script that starts the unpacked Python.
fn wrapper(version: &str) -> PathBuf {
    unpacked(version).join(format!("usr/bin/python{version}-here"))
}

/// Unpacks this Python with the libraries that it needs into a directory of its own, not into the
/// system.
fn unpack(version: &str) -> Result<PathBuf> {
    if on_path("mmdebstrap").is_none() {
        install_packages(&["mmdebstrap"])?;
    }
    note(format_args!(
        "unpacking Python {version} from Debian's unstable distribution"
    ));
    let place = unpacked(version);
    drop(fs::remove_dir_all(&place));
    let mut make = program("mmdebstrap");
    make.args(["--quiet", "--variant=extract", "--format=directory"]);
    // Mirrors that are kept for a day serve lists that have expired.
    make.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    make.arg(format!("--include=python{version}"));
    stdout_of(make.args(["sid".as_ref(), place.as_os_str()]))?;
    // Its C library is newer than the system's, so its own loader starts it. The name by which it
    // is called leads it to its modules and to those of an environment.
    let script = format!(
        "#!/bin/sh\nexec {root}/usr/lib64/ld-linux-x86-64.so.2 --argv0 \"$0\" --library-path \
         {root}/usr/lib/x86_64-linux-gnu {root}/usr/bin/python{version} \"$@\"\n",
        root = place.display()
    );
    let path = wrapper(version);
    fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
